"""`hermes-supervise metrics`: what was supervised and recovered so far, as Prometheus text.

Never contains the name of a session, a command or message text. Counters only grow, also when old
reports are deleted (storage/counters.py).
"""

from __future__ import annotations

import argparse
import os

from ...hooks import queue
from ...storage import counters
from ...storage import run_folder as runs
from ...storage.run_notes import living_agent
from ..errors import Parser
from .sessions import to_recover

_COUNTERS = (
    (counters.RUNS, "runs_total", "Runs that ended and had a session."),
    (counters.SESSIONS, "sessions_total", "Sessions of those runs."),
    (counters.INTERRUPTED, "sessions_interrupted_total", "Sessions cut off and recovered."),
    (counters.MESSAGES, "messages_recovered_total", "Messages that recovery wrote to state.db."),
    (counters.CHARACTERS, "characters_recovered_total", "Characters of replies in progress."),
    (counters.CALLS, "tool_calls_unknown_total", "Tool calls whose effect is unknown."),
    (counters.FAILED_HOOKS, "hook_failures_total", "Attempts of hooks that failed."),
)  # fmt: skip


def parser() -> argparse.ArgumentParser:
    command = Parser(
        prog="hermes-supervise metrics",
        description="Print what was supervised and recovered so far, as Prometheus text.",
    )
    command.add_argument(
        "-o", "--output", metavar="FILE", help="write it to FILE in one step, for a collector"
    )
    return command


def main(argv: list[str]) -> int:
    args = parser().parse_args(argv)
    text = "".join(_lines())
    if args.output is None:
        print(text, end="")
        return 0
    draft = f"{args.output}.{os.getpid()}.new"
    try:
        with open(draft, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(draft, args.output)
    except OSError:
        if os.path.exists(draft):
            os.unlink(draft)
        raise
    return 0


def _lines() -> list[str]:
    folders = list(runs.left_behind())  # first: a report that moves meanwhile is found at its goal
    paths = {os.path.basename(f): os.path.join(f, "report.jsonl") for f in folders}
    for name in os.listdir(runs.reports_folder()):
        if name.endswith(".jsonl"):
            paths[name.removesuffix(".jsonl")] = os.path.join(runs.reports_folder(), name)
    totals = counters.add_up(paths)
    lines = [_metric(name, "counter", what, totals[key]) for key, name, what in _COUNTERS]
    waiting = to_recover()
    running = sum(living_agent(folder) is not None for folder in folders)
    states = [state for state, _ in queue.all_entries()]
    lines.append(_metric("runs_running", "gauge", "Runs whose agent is alive.", running))
    lines.append(_metric("runs_waiting", "gauge", "Runs that wait for recovery.", len(waiting)))
    size = sum(_size(folder) for folder in folders)
    lines.append(_metric("journal_bytes", "gauge", "Bytes of journals not settled yet.", size))
    for state, name in (("dead", "hooks_abandoned"), ("failed", "hooks_failed")):
        what = "Hooks given up." if state == "dead" else "Hooks that wait for another attempt."
        lines.append(_metric(name, "gauge", what, states.count(state)))
    return lines


def _metric(name: str, kind: str, what: str, value: int) -> str:
    name = f"hermes_supervise_{name}"
    return f"# HELP {name} {what}\n# TYPE {name} {kind}\n{name} {value}\n"


def _size(folder: str) -> int:
    size = 0
    try:
        for entry in os.scandir(folder):
            if runs.is_stream_file(entry.name):
                size += entry.stat(follow_symlinks=False).st_size
    except OSError:
        pass  # it has just been settled
    return size
