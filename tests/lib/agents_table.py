"""Every agent CLI, every death, in its TUI and non-interactive: measured, not told.

    make test-agents                           the tests, then all of this
    python tests/lib/agents_table.py codex TUI mid-reply …    only what is named
    python tests/lib/agents_table.py --record …               writes docs/agents.json, and from it
                                               the table in docs/watchers.md, after every cell

A script, not a test: all of it takes half an hour on two cores. Each cell is the real CLI, alive
and at its moment when it dies, against a scripted model. What is counted is what was on its screen,
or on its standard output, at that moment, and what stands in state.db afterwards.
"""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from hermes_supervise.supervisor.cli.proof.scripted_model import WORD, ScriptedModel
from real_agents import (
    AGENTS,
    ROOT,
    RealAgent,
    again_and_again,
    ask_in,
    folder,
    processes_of,
    run_once,
)
from support import Supervised, World, children, kill, until, wait_dead
from tmux import Tmux

sys.path.append(str(ROOT))

from figures.pages import with_part

RECORD = ROOT / "docs" / "agents.json"
PAGE = ROOT / "docs" / "watchers.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
NAMES = ("claude", "codex", "gemini", "opencode", "qwen", "pi", "copilot")
MODES = ("TUI", "once")
DEATHS = (
    "clean", "mid-reply", "mid-tool", "terminal closed", "all at once", "supervisor first",
    "two in one folder", "resume", "restart",
)  # fmt: skip
_KEPT = 55  # words, after which the model is held
_SEEN = "w049"
# These hear that the terminal is closed, end their tool, and store what became of the call.
_ANSWERS_ITSELF = ("opencode",)
# These store a session with its first reply: killed in that, there is none to go on with.
_STORES_LATE = ("pi",)

Cell = dict[str, Any]


def cells(name: str) -> list[Cell]:
    return [
        {"agent": name, "mode": mode, "death": death}
        for mode in MODES
        for death in DEATHS
        if (mode == "TUI" or death != "terminal closed")
        and (name not in _STORES_LATE or death not in ("resume", "restart"))
    ]


class Attempt:
    """One cell: a home, a model and, for a TUI, a terminal."""

    def __init__(self, cell: Cell, home: Path, runtime: Path) -> None:
        self.death, self.is_tui = cell["death"], cell["mode"] == "TUI"
        self.world, self.model = World(home, runtime), ScriptedModel()
        self.agent: RealAgent = AGENTS[cell["agent"]](self.world, self.model)
        self.window = Tmux(self.world) if self.is_tui else None
        self.beside: Tmux | None = None
        self.begun = home / "begun-tool"
        self.shown: set[str] = set()

    def close(self) -> None:
        self.model.close()
        for window in (self.window, self.beside):
            if window is not None:
                window.close()
        for pid in self._daemons():
            _end(pid)
        self.world.close()

    def measure(self) -> Cell:
        other = self._begin_beside() if self.death == "two in one folder" else None
        has_tool = self.death in ("mid-tool", "terminal closed")
        prompt = "WORDS 20" if self.death == "clean" else "WORDS 80"
        self.model.hold_after(-1 if self.death != "clean" else 10**9)
        if has_tool:
            prompt = f"CALL touch {self.begun}; sleep 300"
        options = ["--restart", "on-crash"] if self.death == "restart" else []
        run = self._ask(prompt, *options)
        if self.death == "clean":
            self._leave(run, self.window)
            return self._counted(prompt)
        self._wait_for_the_moment(has_tool)
        self._die(run)
        if other is not None:
            self._end_beside(other)
        elif self.death == "restart":
            self._go_on(run)
        elif self.death == "resume":
            self._resume()
        return self._counted(prompt)

    def _ask(self, prompt: str, *options: str) -> Supervised:
        if self.window is not None:
            return ask_in(self.window, self.agent, prompt, *self.world.hook, *options)
        return run_once(self.agent, prompt, *self.world.hook, *options)

    # -- more than one start -------------------------------------------------------------------

    def _begin_beside(self) -> Supervised:
        """Another one in the same folder, in a tool that ends when the file `go` is there."""
        # Short, so that it is on one line of the screen.
        prompt = f"CALL touch ../{self.begun.name}; until test -e ../go; do sleep 1; done"
        if self.window is None:
            run = run_once(self.agent, prompt)
        else:
            self.beside = Tmux(self.world, name="beside")
            run = ask_in(self.beside, self.agent, prompt)
        until(self.begun.exists, "the other one runs its tool", 90)
        return run

    def _end_beside(self, other: Supervised) -> None:
        assert all(map(_is_open, self._rows_of("CALL"))), "the other one goes on"
        (self.world.folder / "go").touch()
        if self.beside is not None:
            self.beside.wait_for("done", 90)
        self._let_go()
        self._leave(other, self.beside, "done")
        until(lambda: self._has_ended("CALL"), "the other one ends", 90)

    def _let_go(self) -> None:
        self.model.held_at = 10**9
        self.model.gate.set()

    def _go_on(self, run: Supervised) -> None:
        """What was killed is started again by its supervisor."""
        if self.window is None:
            return  # it was told to continue, and has ended
        self.window.wait_for(self.agent.ready_resumed or self.agent.ready, 90)
        self._ask_again(run)

    def _resume(self) -> None:
        self._let_go()
        session = str(self._row_of("WORDS 80")["id"])
        options = self.world.hook
        if self.window is None:
            command = self.agent.resumed_once(session, "WORDS 20")
            run = self.world.run(command, *options, cwd=str(self.agent.work))
            self._leave(run, None)
            return
        self.window.close()
        self.window = Tmux(self.world, name="resumed")
        command = [*self.world.command, *options, "--", *self.agent.resumed(session)]
        self.window.start(command, self.agent.work)
        self.window.wait_for(self.agent.ready_resumed or self.agent.ready, 90)
        self._ask_again(None)

    def _ask_again(self, run: Supervised | None) -> None:
        assert self.window is not None
        window, before = self.window, len(self.model.requests)
        again_and_again(lambda: window.type("WORDS 20"), lambda: "WORDS 20" in window.screen)
        again_and_again(lambda: window.press("Enter"), lambda: len(self.model.requests) > before)
        until(lambda: self.model.sent == 20, "it answers", 90)
        self._leave(run, window)

    # -- its end -------------------------------------------------------------------------------

    def _wait_for_the_moment(self, has_tool: bool) -> None:
        until(lambda: self.model.requests, "the model is asked", 90)
        self.model.go_on_until(_KEPT)
        if has_tool:
            until(self.begun.exists, "the tool runs", 90)
        elif self.window is not None:
            self.window.wait_for(_SEEN, 90)
        else:
            until(lambda: self.model.sent >= _KEPT, "the reply is half said", 90)
        if self.window is not None:
            self.shown = set(WORD.findall(self.window.screen))

    def _leave(self, run: Supervised | None, window: Tmux | None, last: str = "w019") -> None:
        if window is None:
            assert run is not None and run.finish(120) == 0
            if last != "done":
                self.shown |= set(WORD.findall(run.output.decode()))
            return
        window.wait_for(last, 90)
        if last != "done":
            self.shown |= set(WORD.findall(window.screen))

        if self.agent.name in ("codex", "qwen"):
            again_and_again(lambda: window.type("/quit"), lambda: "/quit" in window.screen)
            again_and_again(lambda: window.press("Enter"), window.has_ended)
        else:
            again_and_again(lambda: window.press("C-c", "C-c"), window.has_ended)
        # A daemon may have something to do for a turn that the TUI has shown to its end.
        until(lambda: not self._is_followed(), "its end is stored", 90)

    def _is_followed(self) -> bool:
        """True while somebody has still to store what a run said, but for one beside."""
        runs = Path(self.world.state).glob("hermes-supervise/runs/*/*.log")
        return self.death != "two in one folder" and any(runs)

    def _die(self, run: Supervised) -> None:
        if self.death == "terminal closed":
            assert self.window is not None
            self.window.close()
            self._settle(run)
            return
        ours: list[int] = []
        if self.death in ("all at once", "supervisor first"):
            ours = [run.pid, *(pid for pid in children(run.pid) if pid != run.agent)]
        victims = processes_of(run.agent)
        if self.death != "two in one folder":  # in which another one has the same daemon
            victims += self._daemons()
        if self.death == "all at once":
            victims += ours
        elif self.death == "supervisor first":
            [place] = Path(self.world.state).glob("hermes-supervise/runs/*")
            kill(run.pid)
            wait_dead(run.pid)
            until(lambda: _successor(place, run.pid), "the run is taken over", 60)
        for number in (signal.SIGSTOP, signal.SIGKILL):  # so that none of them sees another die
            for pid in victims:
                kill(pid, number)
        for pid in victims:
            wait_dead(pid)
        if self.death == "restart":
            self._let_go()
            if self.window is not None:
                self.window.clear()
                until(lambda: len(self.world.events()) >= 1, "the hook has run", 60)
                return
        self._settle(run)

    def _settle(self, run: Supervised) -> None:
        if self.window is None:
            run.finish(120)
            self.shown = set(WORD.findall(run.output.decode()))
        if self.death == "all at once":
            assert self.world.call("recover").returncode == 0
        goes_on = self.is_tui and self.death in ("terminal closed", "two in one folder")
        if goes_on and self._daemons():
            if self.death == "terminal closed":
                for pid in self._daemons():  # or it would go on for as long as the tool
                    _end(pid)
            else:
                self._let_go()
                until(lambda: self._has_ended("WORDS 80"), "its turn ends", 90)
                return
        until(lambda: self._has_ended(""), "it ends", 90)
        until(lambda: len(self.world.events()) >= 1, "the hook has run", 60)

    def _daemons(self) -> list[int]:
        found = []
        for name in ("daemon-updater.pid", "daemon.pid"):
            path = self.world.folder / ".codex" / "app-server-daemon" / name
            try:
                pid = int(json.loads(path.read_text())["pid"])
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
            except (OSError, ValueError, KeyError):
                continue
            if b"app-server" in words:
                found.append(pid)
        return found

    def _row_of(self, question: str) -> Cell:
        """The session in which something was asked."""
        [found] = self._rows_of(question)
        return found

    def _rows_of(self, question: str) -> list[Cell]:
        return [
            row
            for row in self.agent.sessions()
            if row["parent_session_id"] is None
            and any(question in text for text in self._texts(row, "user"))
        ]

    def _has_ended(self, question: str) -> bool:
        return any(not _is_open(row) for row in self._rows_of(question))

    def _texts(self, row: Cell, role: str) -> list[str]:
        rows = self.world.messages(str(row["id"]))
        return [str(row["content"]).strip() for row in rows if row["role"] == role]

    def _counted(self, prompt: str) -> Cell:
        row = self._row_of(prompt)
        rows = self.world.messages(str(row["id"]))
        replies = self._texts(row, "assistant")
        stored = set(WORD.findall(" ".join(replies)))
        made = sum(
            len(json.loads(message["tool_calls"])) for message in rows if message["tool_calls"]
        )
        reports = [report for report in self.world.reports() if report["session"] == row["id"]]
        unknown = sum(report["recovered"]["calls_unknown"] for report in reports)
        said = [text for text in [*self._texts(row, "user"), *replies] if text]
        done = {
            "shown": len(self.shown),
            "missing": len(self.shown - stored),
            "calls": unknown,
            "answered": len([message for message in rows if message["role"] == "tool"]) - unknown,
            "unanswered": made - len([message for message in rows if message["role"] == "tool"]),
            "twice": len(said) - len(set(said)),
            "hooks": len(self.world.events()),
            "ended": row["end_reason"],
            "unseen": any(report["unseen_reply"] for report in reports),
        }
        if self.death == "two in one folder":
            done["beside"] = self._row_of("CALL")["end_reason"]
        return done


def _is_open(row: Cell) -> bool:
    return not row["ended_at"]


def _successor(place: Path, before: int) -> bool:
    from hermes_supervise.supervisor.storage.run_lock import holder_of

    return (holder_of(str(place)) or before) != before


def _end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def as_promised(cell: Cell) -> bool:
    """Nothing that was shown is missing without a word, no call is without an answer, nothing is
    stored twice, and the end is told as it was."""
    if "failed" in cell or (cell["missing"] and not cell["unseen"]):
        return False
    if cell["unanswered"] or cell["twice"] or cell.get("beside", "exited") != "exited":
        return False
    name, mode, death = _place(cell)
    ended, hooks = "interrupted", 1
    if death == "clean" or (name, mode, death) == ("codex", "TUI", "two in one folder"):
        ended, hooks = "exited", 0  # a killed TUI of Codex' is not its agent
    elif death in ("resume", "restart"):
        ended = "exited"
    calls = {"mid-tool": (1, 0), "terminal closed": (1, 0)}.get(death, (0, 0))
    if name in _ANSWERS_ITSELF and death == "terminal closed":
        calls = (0, 1)
    found = cell["ended"], cell["hooks"], (cell["calls"], cell["answered"])
    return found == (ended, hooks, calls)


def attempt(cell: Cell) -> Cell:
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="agents", ignore_cleanup_errors=True) as at,
        tempfile.TemporaryDirectory(prefix="hs", ignore_cleanup_errors=True) as runtime,
    ):
        attempt = Attempt(cell, Path(at), Path(runtime))
        try:
            done = {**cell, **attempt.measure()}
        except Exception as error:
            done = {**cell, "failed": f"{type(error).__name__}: {error}"[:200]}
        finally:
            attempt.close()
    name = " · ".join(cell[key] for key in ("agent", "mode", "death"))
    text = done.get("failed") or _in_table(done)
    mark = "" if as_promised(done) else "  NOT AS PROMISED"
    print(f"{name}: {text}  [{time.monotonic() - began:.0f} s]{mark}", flush=True)
    return done


def table(record: dict[str, Any]) -> str:
    """The record as a table: agent and mode down, death across."""
    by_place = {_place(cell): cell for cell in record["cells"]}
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    lines = [
        f"Run on {record['date']}: {versions}. Each cell: words on "
        "the screen (or on standard output) → those of them that are stored; calls stored as "
        'unknown, or answered by the agent itself; hooks; the end of the session. "(said)": the '
        "report says that words are missing. A dash: there is no such case, or it was not run.",
        "",
        "| agent | mode | " + " | ".join(DEATHS) + " |",
        "|---" * (2 + len(DEATHS)) + "|",
    ]
    for name in NAMES:
        for mode in MODES:
            found = [_in_table(by_place.get((name, mode, death))) for death in DEATHS]
            lines.append(f"| {name} | {mode} | " + " | ".join(found) + " |")
    return "\n".join(lines)


def _place(cell: Cell) -> tuple[str, str, str]:
    return cell["agent"], cell["mode"], cell["death"]


def _in_table(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    if "failed" in cell:
        return "not measured"
    kept = cell["shown"] - cell["missing"]
    words = f"{cell['shown']} → {kept}" + (" (said)" if cell["missing"] and cell["unseen"] else "")
    names = {"calls": "calls", "answered": "answered", "hooks": "hooks"}
    counts = [f"{cell[key]} {name}" for key, name in names.items() if cell.get(key)]
    return ", ".join([words, *counts, str(cell["ended"] or "open")])


def version_of(name: str) -> str:
    program = str(folder() / name)
    done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=120)
    found = re.search(r"\d+\.\d+\.\d+", done.stdout + done.stderr)
    return found[0] if found else "unknown"


def write(done: Cell) -> None:
    """Put a cell into the record, in place of an earlier one, and the record into the page. Two
    that measure different agents at a time do so in turn."""
    with open(__file__) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _write(done)


def _write(done: Cell) -> None:
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {"versions": {}, "cells": []}
    others = {_place(cell): cell for cell in record["cells"]}
    others[_place(done)] = done
    order = [_place(cell) for name in NAMES for cell in cells(name)]
    record = {
        "date": datetime.date.today().isoformat(),
        "versions": {**record["versions"], done["agent"]: version_of(done["agent"])},
        "cells": [others[place] for place in order if place in others],
    }
    record["versions"] = dict(sorted(record["versions"].items()))
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    PAGE.write_text(with_part(PAGE.read_text(), BEGIN, END, f"{table(record)}\n"))


def main() -> int:
    words = set(sys.argv[1:]) - {"--record"}
    todo = [cell for name in NAMES for cell in cells(name)]
    for known in (NAMES, MODES, DEATHS):
        if chosen := words.intersection(known):
            todo = [cell for cell in todo if chosen.intersection(_place(cell))]
    bad = 0
    for cell in todo:
        done = attempt(cell)
        bad += not as_promised(done)
        if "--record" in sys.argv:
            write(done)
    print(f"{len(todo)} runs, {bad} not as promised")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
