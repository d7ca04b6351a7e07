"""`hermes-supervise ps`: the runs that are alive, and what the sessions in them are doing.

Never disturbs them: reads their folders, holds no lock, opens no database.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import time
from typing import Any

from .. import footprint, notice
from .. import run as runs
from ..recovery.finish import agent_of, is_alive, open_calls
from ..recovery.gather import gather
from ..recovery.replay import Session, Told, replay
from ..text import printable
from . import paint, table
from .table import Column, Row
from .words import one_line, size

_TRIES = 5
_STYLES = {"alive": "green", "adopted": "yellow", "finishing": "yellow", "lost": "red"}


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="hermes-supervise ps",
        description="The runs that are alive, and what the sessions in them are doing.",
    )
    paint.add_options(made)
    return made


def main(arguments: list[str]) -> int:
    wanted = parser().parse_args(arguments)
    runs.runs_folder()  # raises where it may not be used: that is not "none"
    now = time.time()
    found = [look(folder, now) for folder in runs.left_behind()]
    living = [one for one in found if one is not None and one["supervisor"]["state"] != "gone"]
    left = [one["run"] for one in found if one is not None and one not in living]
    if wanted.json:
        print(json.dumps({"runs": living, "left_behind": left}, indent=2))
        return 0
    for line in _lines(living, now, paint.chosen(wanted)):
        print(line)
    if left:
        number = "1 run was" if len(left) == 1 else f"{len(left)} runs were"
        print(f"{number} left behind; the next start, or `hermes-supervise recover`, finishes it")
    return 0


# -- looking -----------------------------------------------------------------------------------


def look(folder: str, now: float) -> dict[str, Any] | None:
    """A run as it is at this moment; None if it went away while we looked."""
    run = runs.Run(folder, -1)
    try:
        with open(run.path("run.json"), encoding="utf-8") as file:
            about = json.load(file)
    except (OSError, ValueError):
        about = {}
    about = about if isinstance(about, dict) else {}
    told = _streams(run)
    if told is None:
        return None
    agent = runs.living_agent(run)
    speaking = [one for one in told if is_alive(one)]
    pids = {(one.peer or one.hello)["pid"] for one in speaking} | ({agent[0]} if agent else set())
    command = about.get("command")
    return {
        "run": run.name,
        "command": [str(word) for word in command] if isinstance(command, list) else [],
        "cwd": about.get("cwd"),
        "started": about.get("started"),
        "pid": agent[0] if agent else min(pids, default=None),
        "supervisor": _supervisor(folder, lives=bool(pids)),
        "memory": _memory(pids),
        "sessions": [
            _session(session, one, now)
            for one in speaking
            for session in one.sessions.values()
            if session.ended is None
        ],
    }


def _streams(run: runs.Run) -> list[Told] | None:
    for _ in range(_TRIES):
        try:
            return [replay(gather(run.folder, stream).frames) for stream in run.streams()]
        except FileNotFoundError:
            if not os.path.isdir(run.folder):
                return None  # it was settled
        except OSError:
            break
    return []  # being compacted all the time, or not for us to read


def _supervisor(folder: str, *, lives: bool) -> dict[str, Any]:
    """alive; adopted: it took the run over from one that died; finishing: it is dead, or
    recovering, and what it began goes on; lost: nobody watches a living agent; gone: neither."""
    pid = runs.holder(folder)
    if pid is None:
        return {"state": "lost" if lives else "gone", "pid": None}
    words = _command_line(pid)
    if words is None:
        return {"state": "alive" if lives else "finishing", "pid": None}
    if not lives:
        return {"state": "finishing", "pid": pid}
    return {"state": "adopted" if words[-2:-1] == ["adopt"] else "alive", "pid": pid}


def _command_line(pid: int) -> list[str] | None:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return os.fsdecode(file.read()).rstrip("\0").split("\0")
    except OSError:
        return None


def _memory(pids: set[int]) -> dict[str, Any]:
    """Of the agent and all that is below it. Shares, where the kernel tells; they add up."""
    family = {pid for top in pids for pid, _ in [(top, 0), *footprint.below(top)]}
    shares = [footprint.proportional(pid) for pid in family]
    resident = [footprint.resident(pid) for pid in family]
    known = [share for share in shares if share is not None]
    return {
        "pss": sum(known) if known and len(known) == len(family) else None,
        "rss": sum(one for one in resident if one is not None) if any(resident) else None,
        "processes": len(family),
    }


def _session(session: Session, told: Told, now: float) -> dict[str, Any]:
    calls = open_calls(session)
    since = session.phase_at or None
    who = told.peer or told.hello
    return {
        "session": session.id,
        "agent": agent_of(told),
        "pid": who.get("pid"),
        "doing": session.phase.value,
        "since": since,
        "tools": calls,
        "words": notice.activity(session.phase.value, since, calls, now, stopped=session.stopped),
        "characters": len(session.reply.text) if session.reply is not None else 0,
        "model": session.about.get("model"),
        "subagent": bool(session.about.get("subagent")),
        "title": session.title,
        "began": session.began or None,
    }


# -- showing -----------------------------------------------------------------------------------


def _lines(living: list[dict[str, Any]], now: float, brush: paint.Paint) -> list[str]:
    if not living:
        return ["nothing is running under supervision"]
    columns = [Column("RUN"), Column("PID", right=True), Column("UP"), Column("MEMORY", right=True),
               Column("SUPERVISOR"), Column("COMMAND", least=8)]  # fmt: skip
    return table.render(columns, [_row(one, now, brush) for one in living], brush)


def _row(one: dict[str, Any], now: float, brush: paint.Paint) -> Row:
    started, state = one["started"], one["supervisor"]["state"]
    up = notice.duration(now - started) if isinstance(started, int | float) else "unknown"
    memory = one["memory"]["pss"] or one["memory"]["rss"]
    cells = [
        one["run"],
        str(one["pid"] or "unknown"),
        up,
        size(memory),
        state,
        one_line(printable(shlex.join(one["command"]))),
    ]
    room = None if brush.width is None else brush.width - 4
    notes = [(table.cut(f"\u2514 {line}", room), "") for line in _sessions(one)]
    return Row(cells, {0: "bold", 4: _STYLES.get(state, "")}, notes)


def _sessions(one: dict[str, Any]) -> list[str]:
    if not one["sessions"]:
        return ["no session has begun"]
    lines = []
    for session in one["sessions"]:
        words = [session["words"], printable(session["agent"] or "")]
        if session["characters"]:
            words[0] += f", {session['characters']:,} characters so far"
        if session["title"]:
            words.append(printable(one_line(str(session["title"]))))
        lines.append("  ".join([one_line(printable(session["session"])), *filter(None, words)]))
    return lines
