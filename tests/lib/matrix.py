"""Every release of Hermes, every front end, every death, at three moments: measured.

    make test-matrix                     all of it; writes docs/hermes-releases.json and the table
    make test-matrix AGENT=/path/hermes  the Hermes that is installed there; prints, writes nothing
    python tests/lib/matrix.py 0.17.0 …  these releases only; prints, and writes nothing

A script, not a test: it takes half an hour on two cores. Each cell is a real process that is alive,
and at its moment, when the signal is sent. What is counted is what stands in state.db and in a
plugin's ledger afterwards. Two cells a release run without us, to show what there is to lose.
"""

from __future__ import annotations

import collections
import concurrent.futures
import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from hermes_world import ROOT, Hermes, Model, call, say
from support import World, alive, kill, until

sys.path.append(str(ROOT))

from figures.pages import with_part

RELEASES = (
    "0.13.0", "0.14.0", "0.15.0", "0.15.1", "0.15.2", "0.16.0", "0.17.0", "0.18.0", "0.18.1",
    "0.18.2", "0.19.0",
)  # fmt: skip
# Measured in short, only to keep the run short; a later one of the same number is run in full.
SHORT = ("0.15.0", "0.15.1", "0.18.0", "0.18.1")
RECORD = ROOT / "docs" / "hermes-releases.json"
PAGE = ROOT / "docs" / "hermes.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"

FRONTS = {
    "chat -q -Q": ["chat", "-q", "hello there", "-Q", "--yolo"],
    "chat -q": ["chat", "-q", "hello there", "--yolo"],
    "-z": ["-z", "hello there"],
    "AIAgent": [],
}
MOMENTS = ("mid-reply", "2nd of 3 tools", "reply whole, not shown")
DEATHS = ("KILL", "TERM", "HUP")
REPLY = "one two three four five six seven eight nine ten eleven twelve"
# Seconds. Two releases at once on a machine that does other things as well are slow.
LONG = 300.0
COUNTS = ("lost", "twice", "dangling", "hooks")

EMBEDDED = """
import os, sys
os.environ["HERMES_YOLO_MODE"] = "1"
from hermes_state import SessionDB
from run_agent import AIAgent
agent = AIAgent(base_url=sys.argv[1], api_key="none", model="scripted", session_id="embedded",
                platform="webui", session_db=SessionDB(), quiet_mode=True, skip_context_files=True)
agent.run_conversation("hello there")
"""
# Holds a reply that has come whole, before anybody is shown it.
HOLDER = """
import os, time

def register(ctx):
    def came(**kw):
        open(os.environ["FLAGS"] + "/whole", "w").close()
        while not os.path.exists(os.environ["FLAGS"] + "/go"):
            time.sleep(0.01)
    ctx.register_hook("post_api_request", came)
"""

Cell = dict[str, Any]


def cells(release: str) -> list[Cell]:
    """What is run for a release: everything that can differ."""
    found: list[Cell] = []
    fronts = list(FRONTS) if release not in SHORT else ["chat -q -Q"]
    if "/" in release and not (Path(release).parent / "python").exists():
        fronts.remove("AIAgent")  # a launcher: there is no interpreter beside it to embed it in
    for front in fronts:
        # Of what is not `chat`, KILL and one TERM, to keep the run short.
        handles = front.startswith("chat")
        quiet = front == "chat -q -Q"
        for moment in MOMENTS[: 3 if quiet and release not in SHORT else 2]:
            for death in DEATHS:
                if (
                    (quiet and release not in SHORT)
                    or death == "KILL"
                    or (moment == MOMENTS[0] and (handles or death == "TERM"))
                ):
                    cell = {"front": front, "moment": moment, "death": death, "with us": True}
                    found.append(cell)
    for moment in MOMENTS[:2]:
        found.append({"front": "chat -q -Q", "moment": moment, "death": "KILL", "with us": False})
    return [{"release": release, **cell} for cell in found]


# -- one cell --------------------------------------------------------------------------------


def measure(cell: Cell) -> Cell:
    with tempfile.TemporaryDirectory(prefix="hs") as runtime, tempfile.TemporaryDirectory() as at:
        model, world = Model(), World(Path(at), Path(runtime))
        try:
            hermes = Hermes(cell["release"], world, model)
            return {**cell, **_run(cell, hermes)}
        finally:
            model.close()
            world.close()


def _run(cell: Cell, hermes: Hermes) -> Cell:
    world, model = hermes.world, hermes.model
    flags = world.folder / "flags"
    flags.mkdir()
    world.env["FLAGS"] = str(flags)
    ledger = hermes.plugin()
    second = flags / "second"
    if cell["moment"] == MOMENTS[0]:
        model.script = [[*say(REPLY), ("hold", "here")]]
    elif cell["moment"] == MOMENTS[1]:
        commands = ("echo first-done", f"echo $$ > {second}; exec sleep 300", "echo third-done")
        model.script = [
            [call("terminal", {"command": command, "timeout": 600}, f"call_{number}")
             for number, command in enumerate(commands)]
        ]  # fmt: skip
    else:
        model.script = [say(REPLY)]
        folder = world.home / "plugins" / "holder"
        folder.mkdir(parents=True)
        (folder / "plugin.yaml").write_text("name: holder\nversion: 1\ndescription: holds\n")
        (folder / "__init__.py").write_text(HOLDER)
        hermes.configure("plugins:\n  enabled: [ledger, holder]\n")
    command = [hermes.command, *FRONTS[cell["front"]]]
    if cell["front"] == "AIAgent":
        program = world.folder / "embedded.py"
        program.write_text(EMBEDDED)
        command = [hermes.python, str(program), f"http://127.0.0.1:{model.port}/v1"]
    with_us = [*world.command, "--"] if cell["with us"] else []
    nothing = subprocess.DEVNULL
    process = subprocess.Popen(
        with_us + command, env=world.env, cwd=world.folder,
        stdin=nothing, stdout=nothing, stderr=nothing,
    )  # fmt: skip
    world._started.append(process)
    try:
        _wait_for(cell, hermes, flags)
        pid = _agent_below(process.pid, with_us) if with_us else process.pid
        kill(pid, getattr(signal, f"SIG{cell['death']}"))
        (flags / "go").touch()
        process.wait(LONG)
    finally:
        if second.exists() and (left := int(second.read_text() or 0)) and alive(left):
            os.kill(left, signal.SIGKILL)  # the tool that Hermes left behind
    return _counted(cell, world, ledger)


def _agent_below(supervisor: int, with_us: list[str]) -> int:
    from support import Supervised

    class Started:
        pid, stdout = supervisor, None

    return Supervised(Started()).agent  # type: ignore[arg-type]


def _wait_for(cell: Cell, hermes: Hermes, flags: Path) -> None:
    """Wait for the moment, and where we run for the last word to be handed over."""

    def handed_over(what: bytes) -> bool:
        return what in hermes.world.said()

    if cell["moment"] == MOMENTS[0]:
        hermes.model.wait_until_held()
        last = b"twelve "
    elif cell["moment"] == MOMENTS[1]:
        until(lambda: (flags / "second").exists() and (flags / "second").read_text(), deadline=LONG)
        last = b"first-done"
    else:
        until((flags / "whole").exists, "the whole reply has come", deadline=LONG)
        last = b"twelve "
    if cell["with us"]:
        until(lambda: handed_over(last), "the last word is handed over")
    else:
        time.sleep(0.5)  # nobody to ask; what was sent on this machine has come by then


def _counted(cell: Cell, world: World, ledger: Path) -> Cell:
    rows: list[dict[str, Any]] = []
    ended = None
    if world.db.exists():
        with world.database() as db:
            sessions = [dict(row) for row in db.execute("SELECT * FROM sessions")]
            rows = [dict(row) for row in db.execute("SELECT * FROM messages ORDER BY id")]
        ended = sessions[0]["end_reason"] if sessions else None
    said = {"user": "hello there", "assistant": REPLY}
    if cell["moment"] == MOMENTS[1]:
        said = {"user": "hello there", "tool": "first-done"}
    lost = 0
    for role, words in said.items():
        stored = " ".join(row["content"] or "" for row in rows if row["role"] == role)
        lost += sum(word not in stored for word in words.split())
    made = [call["id"] for row in rows for call in json.loads(row["tool_calls"] or "[]")]
    if cell["moment"] == MOMENTS[1]:
        lost += 3 - len(set(made))
    answered = [row["tool_call_id"] for row in rows if row["role"] == "tool"]
    plain = [(r["role"], r["content"], r["tool_call_id"], r["tool_calls"]) for r in rows]
    twice = sum(number - 1 for number in collections.Counter(plain).values())
    # A partial beside the whole, and the like.
    twice += max(0, sum(r["role"] == "assistant" for r in rows) - 1)
    hooks = [json.loads(line) for line in _lines(ledger)]
    fired = [name for name, event in hooks if name != "on_session_end" or event.get("interrupted")]
    names = ("on_session_end", "on_session_finalize")
    return {
        "lost": lost,
        "twice": twice,
        "dangling": len(set(made) - set(answered)),
        "hooks": sum(abs(1 - fired.count(name)) for name in names),
        "ended": ended,
    }


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


# -- all of them -----------------------------------------------------------------------------


def attempt(cell: Cell) -> Cell:
    began = time.monotonic()
    try:
        done = measure(cell)
    except Exception as error:
        done = {**cell, "failed": f"{type(error).__name__}: {error}"}
    name = " · ".join(str(cell[key]) for key in ("release", "front", "moment", "death"))
    result = done.get("failed") or " ".join(f"{done[key]} {key}" for key in COUNTS)
    alone = "" if cell["with us"] else " (without us)"
    took = time.monotonic() - began
    print(f"{name}{alone}: {result}, ended {done.get('ended')!r}  [{took:.0f} s]", flush=True)
    return done


def install(release: str) -> None:
    if "/" in release:
        subprocess.check_call([release, "--version"])
        return
    if not (ROOT / f".venv-hermes-{release}" / "bin" / "hermes").exists():
        subprocess.check_call(["make", "-s", f".venv-hermes-{release}/.installed"], cwd=ROOT)
    # The first start of a new installation takes a minute by itself.
    python = ROOT / f".venv-hermes-{release}" / "bin" / "python"
    with tempfile.TemporaryDirectory() as home:
        env = {**os.environ, "HERMES_HOME": home}
        subprocess.check_call([python, "-c", "import cli, run_agent"], env=env)


def table(record: dict[str, Any]) -> str:
    """The recorded run as a table: release and front end down, moment and death across."""
    by_place: dict[tuple[Any, ...], Cell] = {}
    for cell in record["cells"]:
        key = (cell["release"], cell["front"], cell["moment"], cell["death"], cell["with us"])
        by_place[key] = cell
    columns = [(moment, death) for moment in MOMENTS for death in DEATHS]
    lines = [
        f"Run on {record['date']}, Python {record['python']}; "
        f"{len(record['cells'])} runs. Each "
        "cell: words and calls lost / rows twice / calls dangling / hooks missing or doubled.",
        *record.get("remarks", []),
        "",
        "| Hermes | front end | " + " | ".join(f"{m}, {d}" for m, d in columns) + " |",
        "|---" * (2 + len(columns)) + "|",
    ]
    for release in record["releases"]:
        for front, with_us in [("chat -q -Q", False), *((front, True) for front in FRONTS)]:
            found = [
                _in_table(by_place.get((release, front, moment, death, with_us)))
                for moment, death in columns
            ]
            name = f"`{front}`" if with_us else f"`{front}`, *without us*"
            if any(found):
                lines.append(f"| {release} | {name} | " + " | ".join(found) + " |")
    return "\n".join(lines)


def _in_table(cell: Cell | None) -> str:
    if cell is None:
        return ""
    if "failed" in cell:
        return "not measured"
    counted = "/".join(str(cell[key]) for key in COUNTS)
    return counted if cell["ended"] == "interrupted" else f"{counted}, {cell['ended'] or 'open'}"


def _ended_truly(cell: Cell) -> bool:
    """Releases since 0.20.4 end a session themselves on TERM and HUP; what they wrote stays."""
    if cell["death"] == "KILL":
        return bool(cell["ended"] == "interrupted")
    return cell["ended"] is not None


def put_into_page(text: str) -> None:
    PAGE.write_text(with_part(PAGE.read_text(), BEGIN, END, f"{text}\n"))


def main() -> int:
    chosen = tuple(sys.argv[1:]) or RELEASES
    for release in chosen:
        install(release)
    todo = [cell for release in chosen for cell in cells(release)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        done = list(pool.map(attempt, todo))
    bad = [
        cell
        for cell in done
        if cell["with us"]
        and ("failed" in cell or not _ended_truly(cell) or any(cell[k] for k in COUNTS))
    ]
    print(f"{len(done)} runs, {len(bad)} not as promised")
    if chosen == RELEASES:
        record = {
            "date": datetime.date.today().isoformat(),
            "python": ".".join(map(str, sys.version_info[:2])),
            "releases": list(chosen),
            "cells": done,
        }
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
        put_into_page(table(record))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
