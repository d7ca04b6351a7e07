"""Sessions that Hermes would hide or keep locked after a crash: real releases are asked."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
from typing import Any

from hermes_world import ROOT
from support import Supervised, World, until

MAKE = "from hermes_state import SessionDB; SessionDB().close()"
LISTED = """
import json
from hermes_state import SessionDB
print(json.dumps([one["id"] for one in SessionDB().list_sessions_rich(limit=50)]))
"""
WORDS = "please look   into\tthe \u202ematter " + "at great length " * 10

AGENT = f"""
words = {WORDS!r}
for name in ("first", "second", "third"):
    chat = session(name, source="cli")
    chat.message("user", words if name != "third" else [{{"type": "image"}}])
    with chat.tool("terminal", {{}}, call="call_1") as tool:
        tool.result = "done"
child = session("child", source="cli", parent="first")
child.message("user", words)
titled = session("titled", source="cli")
titled.title("A name of its own")
titled.message("user", words)
with titled.tool("terminal", {{}}, call="call_1"):
    ready()
    forever()
"""


def hermes(version: str, world: World, code: str) -> str:
    python = ROOT / f".venv-hermes-{version}" / "bin" / "python"
    return subprocess.check_output([python, "-c", code], env=world.env, text=True, timeout=60)


def killed(agent: Supervised) -> None:
    agent.wait_for("ready")
    agent.kill_agent()
    assert agent.finish() == -signal.SIGKILL


def titles(world: World) -> dict[str, Any]:
    with world.database() as db:
        return {row["id"]: row["title"] for row in db.execute("SELECT id, title FROM sessions")}


def test_in_an_old_file_recovered_sessions_are_titled_and_stay_listed_after_the_upgrade(
    world: World,
) -> None:
    world.home.mkdir()
    hermes("0.13.0", world, MAKE)
    killed(world.supervise(AGENT))
    found = titles(world)
    start = "please look into the matter at great length"
    assert found["first"].startswith(start)
    assert found["second"].startswith(start)
    assert found["second"].endswith(" (2)")
    assert found["third"]
    assert found["titled"] == "A name of its own"
    assert found["child"] is None, "only what stands by itself would be hidden"
    assert all(len(title) <= 80 for title in found.values() if title)
    listed = json.loads(hermes("0.19.0", world, LISTED))
    assert {"first", "second", "third", "titled"} <= set(listed)


def test_in_a_newer_file_no_title_is_made_up(world: World) -> None:
    world.home.mkdir()
    hermes("0.19.0", world, MAKE)
    killed(world.supervise(AGENT))
    assert titles(world)["first"] is None
    assert {"first", "second", "third"} <= set(json.loads(hermes("0.19.0", world, LISTED)))


def test_only_the_dead_process_locks_are_given_back(world: World) -> None:
    world.home.mkdir()
    hermes("0.19.0", world, MAKE)
    agent = world.supervise(
        """
for name in ("mine", "of-another", "of-my-successor", "of-a-like-pid"):
    session(name, source="cli").message("user", "hello")
ready()
forever()
"""
    )
    agent.wait_for("ready")
    pid = agent.agent
    until(lambda: any(world.runs()), "the run is there")
    far = 4e9
    with sqlite3.connect(world.db) as db:
        db.executemany(
            "INSERT INTO compression_locks VALUES (?, ?, ?, ?)",
            [
                ("mine", f"pid={pid}:tid=1:agent=a", 1.0, far),
                ("of-another", "pid=1:tid=1:agent=a", 1.0, far),
                ("of-my-successor", f"pid={pid}:tid=1:agent=b", far, far),
                ("of-a-like-pid", f"pid={pid}0:tid=1:agent=a", 1.0, far),
            ],
        )
    db.close()
    agent.kill_agent()
    assert agent.finish() == -signal.SIGKILL
    with world.database() as db:
        left = {row["session_id"] for row in db.execute("SELECT * FROM compression_locks")}
    assert left == {"of-another", "of-my-successor", "of-a-like-pid"}
