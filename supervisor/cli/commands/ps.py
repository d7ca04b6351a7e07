"""`hermes-supervise ps`: the supervised runs, and what each session is doing; once or live.

Never disturbs them: reads their folders, holds no lock, opens no database.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from typing import Any

from ...agents import other_user, registry
from ...model.stream import ReplayedStream, Session
from ...model.text import printable
from ...process import memory as footprint
from ...process.platform import command_line, user_of
from ...recovery.gather import files_of, gather
from ...recovery.reading import agent_of, is_alive, not_captured, open_calls
from ...recovery.replay import replay
from ...run import notice, out_of_reach
from ...storage import run_folder as runs
from ...storage import run_lock, run_notes
from ..errors import USAGE, CommandError, Parser
from ..output import replicated, style, table
from ..output.formatting import number, one_line, size
from ..output.table import Column, Row

_TRIES = 5
_STYLES = {"alive": "green", "adopted": "yellow", "finishing": "yellow", "lost": "red"}
# What people read in place of the JSON value.
_SHOWN_STATES = {"adopted": "successor", "finishing": "recovering"}

Run = dict[str, Any]


def parser() -> argparse.ArgumentParser:
    command = Parser(
        prog="hermes-supervise ps",
        description="List supervised runs and what each session is doing.",
    )
    command.add_argument(
        "-w", "--watch", action="store_true", help="keep the list on screen, live; q leaves"
    )
    style.add_options(command)
    return command


def main(argv: list[str]) -> int:
    args = parser().parse_args(argv)
    runs.runs_folder()  # raises if it cannot be used: that is not "no runs"
    if args.watch:
        return _watch(args)
    running, waiting = snapshot(time.time())
    if args.json:
        print(json.dumps({"runs": running, "left_behind": waiting}, indent=2))
        return 0
    print("\n".join(_lines(running, waiting, time.time(), style.for_output(args))))
    return 0


def _watch(args: argparse.Namespace) -> int:
    if args.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CommandError("--watch needs a terminal, and cannot be combined with --json", USAGE)
    from ..output.live import show_live  # start-up: only for --watch

    def draw() -> list[str]:
        now = time.time()
        running, waiting = snapshot(now)
        styled = style.for_output(args)
        head = time.strftime("supervised runs at %H:%M:%S; q leaves", time.localtime(now))
        return [styled(head, "dim"), "", *_lines(running, waiting, now, styled)]

    show_live(draw)
    return 0


# -- looking -----------------------------------------------------------------------------------


def snapshot(now: float) -> tuple[list[Run], list[str]]:
    """The runs in progress, and the names of those that wait to be recovered."""
    found = [run for folder in runs.left_behind() if (run := look(folder, now)) is not None]
    running = [run for run in found if run["supervisor"]["state"] != "gone"]
    return running, [run["run"] for run in found if run not in running]


def look(folder: str, now: float) -> Run | None:
    """A run at this moment; None if it has ended, and its folder only stays because of processes
    that it left running."""
    run = runs.Run(folder, -1)
    about = runs.settings(run)
    streams = _streams(run)
    if streams is None:
        return None
    agent = run_notes.living_agent(run.folder)
    alive = [stream for stream in streams if is_alive(stream)]
    pids = {(stream.peer or stream.hello)["pid"] for stream in alive}
    pids |= {agent[0]} if agent else set()
    supervisor = _supervisor(folder, agent_lives=bool(pids))
    if supervisor["state"] == "gone" and runs.has_nothing_to_recover(run):
        return None
    unreachable = out_of_reach.look(folder)
    words = about.get("command", [])
    return {
        "run": run.name,
        "command": words,
        "cwd": about.get("cwd"),
        "started": about.get("started"),
        "pid": agent[0] if agent else min(pids, default=None),
        "supervisor": supervisor,
        "memory": _memory(pids),
        "not_captured": _not_captured(run, words, agent[0]) if agent and not alive else None,
        "out_of_reach": unreachable.command if unreachable else None,
        "sessions": [
            _session(session, stream, now) | _replica(run, stream)
            for stream in alive
            for session in stream.sessions.values()
            if session.ended is None
        ],
    }


def _not_captured(run: runs.Run, command: list[str], pid: int) -> str | None:
    """Why nothing is captured of an agent that has sent nothing."""
    user = user_of(pid)
    user = user if user not in (None, os.getuid()) else run_notes.other_user(run.folder)
    if user is not None:
        return other_user.seen(user)
    agent = registry.recognised(command) if command else None
    if agent is None or not agent.injected or os.path.exists(run.path("reached")):
        return None
    return agent.why_not_captured(pid)


def _streams(run: runs.Run) -> list[ReplayedStream] | None:
    for _ in range(_TRIES):
        try:
            return [replay(gather(run.folder, stream).frames) for stream in run.streams()]
        except FileNotFoundError:
            if not os.path.isdir(run.folder):
                return None  # it was finished
        except OSError:
            break
    return []  # compacted again and again while we read, or not readable for us


def _supervisor(folder: str, *, agent_lives: bool) -> dict[str, Any]:
    """The state of the supervisor: alive; adopted: a successor took over; finishing: the agent is
    dead and is being recovered; lost: a living agent without a supervisor; gone: neither."""
    pid = run_lock.holder_of(folder)
    if pid is None:
        return {"state": "lost" if agent_lives else "gone", "pid": None}
    words = command_line(pid)
    if not words:
        return {"state": "alive" if agent_lives else "finishing", "pid": None}
    if not agent_lives:
        return {"state": "finishing", "pid": pid}
    return {"state": "adopted" if words[-2:-1] == ["adopt"] else "alive", "pid": pid}


def _memory(pids: set[int]) -> dict[str, Any]:
    """The memory of the agent and its child processes. Proportional sizes, if known, add up."""
    family = {pid for top in pids for pid, _ in [(top, 0), *footprint.below(top)]}
    shares = [footprint.proportional(pid) for pid in family]
    resident = [footprint.resident(pid) for pid in family]
    known = [share for share in shares if share is not None]
    return {
        "pss": sum(known) if known and len(known) == len(family) else None,
        "rss": sum(each for each in resident if each is not None) if any(resident) else None,
        "processes": len(family),
    }


def _session(session: Session, stream: ReplayedStream, now: float) -> dict[str, Any]:
    calls = open_calls(session)
    since = session.phase_at or None
    peer = stream.peer or stream.hello
    unstored = [
        item for item in session.items
        if item.live and not item.settled and item.uid not in session.stored
    ]  # fmt: skip
    return {
        "session": session.id,
        "agent": agent_of(stream),
        "pid": peer.get("pid"),
        "doing": session.phase.value,
        "since": since,
        "tools": calls,
        "words": notice.activity(session.phase.value, since, calls, now, stopped=session.stopped),
        "characters": len(session.reply.text) if session.reply is not None else 0,
        "unstored": len(unstored),
        "model": session.about.get("model"),
        "subagent": bool(session.about.get("subagent")),
        "title": session.title,
        "began": session.began or None,
        "not_captured": not_captured(stream),
    }


def _replica(run: runs.Run, stream: ReplayedStream) -> dict[str, Any]:
    """The numbers of the last journaled and replicated records; nothing without a replica."""
    if run_notes.replica_of(run.folder) is None:
        return {}
    name = str(stream.hello.get("stream"))
    found = replicated.progress(name)
    files = [file for file in files_of(run.folder, name) if not file.endswith(".ring")]
    try:
        journaled = gather(run.folder, name, files).frames[-1:]
    except OSError:
        journaled = []
    return {
        "replica": {
            "said": stream.last,
            "journaled": journaled[0][0] if journaled else 0,
            "replicated": found["replicated"] if found is not None else 0,
            "connected": bool(found and found["connected"]),
            "problem": found["problem"] if found is not None else None,
        }
    }


# -- showing -----------------------------------------------------------------------------------


def _lines(running: list[Run], waiting: list[str], now: float, styled: style.Style) -> list[str]:
    lines = ["no supervised runs"]
    if running:
        columns = [Column("RUN"), Column("PID", right=True), Column("UP"),
                   Column("MEMORY", right=True), Column("SUPERVISOR"),
                   Column("COMMAND", least=8)]  # fmt: skip
        lines = table.render(columns, [_row(run, now, styled) for run in running], styled)
    if waiting:
        verb = "waits" if len(waiting) == 1 else "wait"
        lines.append(
            f"{number(len(waiting), 'run')} {verb} to be recovered; "
            "run `hermes-supervise recover`, or start an agent"
        )
    return lines


def _row(run: Run, now: float, styled: style.Style) -> Row:
    started, state = run["started"], run["supervisor"]["state"]
    up = notice.duration(now - started) if isinstance(started, int | float) else "unknown"
    cells = [
        run["run"],
        str(run["pid"] or "unknown"),
        up,
        size(run["memory"]["pss"] or run["memory"]["rss"]),
        _SHOWN_STATES.get(state, state),
        one_line(printable(shlex.join(run["command"]))),
    ]
    notes = [
        (line, "")
        for parts in _session_parts(run)
        for line in table.fill("\u2514", parts, table.room_for_notes(styled))
    ]
    if run["out_of_reach"]:
        notes += [
            (
                "out of reach: its supervisor was killed, and the shell took the terminal back",
                "red",
            ),
            (run["out_of_reach"], table.COMMAND),
        ]
    return Row(cells, {0: "bold", 4: _STYLES.get(state, "")}, notes)


def _session_parts(run: Run) -> list[list[str]]:
    """What is said of each session. A part is kept on one line."""
    if run["not_captured"]:
        return [[f"not captured: {printable(run['not_captured'])}"]]
    if not run["sessions"]:
        return [["no session yet"]]
    lines = []
    for session in run["sessions"]:
        doing = session["words"]
        if session["characters"]:
            doing += f", {number(session['characters'], 'character')} so far"
        parts = [one_line(printable(session["session"])), doing, _safety(session)]
        parts.append(_how_far(session.get("replica")))
        parts.append(printable(session["agent"] or ""))
        if session["title"]:
            parts.append(printable(one_line(str(session["title"]))))
        if session["not_captured"]:
            parts.append(f"not captured: {printable(', '.join(session['not_captured']))}")
        lines.append([part for part in parts if part])
    return lines


def _how_far(replica: dict[str, Any] | None) -> str:
    if replica is None:
        return ""
    said, there = replica["said"], replica["replicated"]
    text = "all replicated" if there >= said else f"{there:,} of {said:,} records replicated"
    if replica["problem"]:
        text += f" ({printable(one_line(str(replica['problem'])))})"
    return text


def _safety(session: dict[str, Any]) -> str:
    """Where the messages are: everything that `ps` sees is recorded; state.db may not have it
    yet."""
    unstored = session["unstored"]
    if not unstored:
        return "all messages in state.db"
    return f"{number(unstored, 'message')} in the journal only"
