"""One file in supervisor/agents/ is all that a new agent takes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest
from hermes_supervise.supervisor.agents.protocol import Agent
from support import World, kill, short, until
from transcripts import watcher_of

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "agents" / "parrot.py"

PARROT = f"""\
#!{sys.executable}
import datetime, json, os, signal, sys

resumed = sys.argv[sys.argv.index("--resume") + 1] if "--resume" in sys.argv else None
path = os.path.expanduser("~/.parrot/%s.jsonl" % (resumed or "first"))
os.makedirs(os.path.dirname(path), exist_ok=True)

def write(who, text):
    with open(path, "a") as file:
        at = datetime.datetime.now(datetime.timezone.utc).isoformat()
        file.write(json.dumps({{"time": at, "who": who, "text": text, "model": "polly-1"}}) + "\\n")

write("user", "hello")
write("parrot", "hello!")
if resumed is None:
    write("user", "and again?")
print("ready", os.getpid(), *sys.argv[1:], flush=True)
if resumed is None:
    signal.pause()
"""


@pytest.fixture
def with_parrot(world: World, tmp_path: Path) -> World:
    """The supervisor from a tree with one file more, and a parrot to run."""
    tree = tmp_path / "tree" / "hermes_supervise"
    for room in ("ipc", "agent_shim", "supervisor"):
        shutil.copytree(ROOT / room, tree / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(EXAMPLE, tree / "supervisor" / "agents")
    world.env["PYTHONPATH"] = str(tree.parent)
    program = world.folder / "bin" / "parrot"
    program.parent.mkdir()
    program.write_text(PARROT)
    program.chmod(0o755)
    world.env["PATH"] = f"{program.parent}{os.pathsep}{world.env['PATH']}"
    return world


def test_it_is_recognised_followed_recovered_and_resumed(with_parrot: World) -> None:
    run = with_parrot.run(["parrot", "--model", "x"], *with_parrot.hook, "--restart", "on-crash")
    pid = int(run.wait_for("ready").split()[1])
    until(lambda: watcher_of(run.pid), "the process that follows its transcript")
    kill(pid)
    assert run.wait_for("ready").split()[2:] == ["--model", "x", "--resume", "first"]
    assert run.finish() == 0, run.errors
    assert short(with_parrot.messages("first")) == [
        ("user", "hello"), ("assistant", "hello!"), ("user", "and again?"),
        ("user", "hello"), ("assistant", "hello!"),
    ]  # fmt: skip
    row = with_parrot.session("first")
    assert row is not None
    assert (row["source"], row["model"]) == ("parrot", "polly-1")
    [event] = with_parrot.events()
    assert (event["session_id"], event["extra"]["signal"]) == ("first", signal.SIGKILL)
    assert {report["resume"] for report in with_parrot.reports()} == {"parrot --resume first"}


def test_doctor_describes_it_and_it_can_be_named_with_an_option(with_parrot: World) -> None:
    checks = json.loads(with_parrot.call("doctor", "--json", "--", "parrot").stdout)["checks"]
    texts = [check["text"] for check in checks if check["name"] in ("agent", "transcripts")]
    assert any(text.startswith("Parrot") for text in texts)
    assert any(str(with_parrot.folder / ".parrot") in text for text in texts)
    assert with_parrot.call("--agent", "parrot", "--", "true").returncode == 0
    assert with_parrot.call("--agent", "budgie", "--", "true").returncode == 125


def test_the_page_shows_the_whole_file() -> None:
    page = (ROOT / "docs" / "adding-an-agent.md").read_text()
    shown = "".join(re.findall(r"```python\n(.*?)```\n", page, re.S))
    code = EXAMPLE.read_text().partition('"""\n\n')[2]
    assert shown.split() == code.split()


def test_what_the_page_says_to_override_is_there_to_be_overridden() -> None:
    page = (ROOT / "docs" / "adding-an-agent.md").read_text()
    rows = re.findall(r"^\| [^`|]+ \| (`.*`) \|$", page, re.M)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert len(named) > 10
    assert {name for name in named if not hasattr(Agent, name)} == set()
