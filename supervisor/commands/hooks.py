"""`hermes-supervise hooks`: the queue of end-of-session hooks, looked at, and tried again.

Never runs a hook that ended well a second time, and never shows what only its program is told.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from ..hooks import queue
from ..hooks.entry import Entry
from ..text import printable
from . import paint, table
from .recover import see_to_hooks
from .table import Column, Row
from .words import one_line

_STYLES = {"failed": "yellow", "dead": "red", "running": "green"}
_DONE_SHOWN = 20
_OUTPUT_SHOWN = 3


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="hermes-supervise hooks",
        description="Hooks that wait, run, failed, were given up, or were done lately.",
    )
    paint.add_options(made)
    commands = made.add_subparsers(dest="what", metavar="list|retry")
    listing = commands.add_parser("list", help="all there are (the default)")
    retrying = commands.add_parser("retry", help="try hooks that failed or were given up now")
    retrying.add_argument("id", nargs="*", metavar="ID", help="ids, or how they begin")
    retrying.add_argument("--all", action="store_true", help="all of them")
    for one in (listing, retrying):
        paint.add_options(one, below=True)
    return made


def main(arguments: list[str]) -> int:
    wanted = parser().parse_args(arguments)
    if wanted.what == "retry":
        if bool(wanted.id) == wanted.all:
            parser().error("say which to retry: ID..., or --all")
        return _retry(wanted.id, wanted)
    _list(list(queue.every()), wanted)
    return 0


# -- retry -----------------------------------------------------------------------------------


def _retry(ids: list[str], wanted: argparse.Namespace) -> int:
    every = list(queue.every())
    problems = []
    chosen: list[tuple[str, Entry]] = []
    for id in ids:
        found = [(state, entry) for state, entry in every if entry.id.startswith(id)]
        if len(found) != 1:
            problems.append(f"{id}: {'several begin so' if found else 'no such hook'}")
        elif found[0][0] == "done":
            problems.append(f"{id}: ended well already")
        else:
            chosen += found
    if not ids:
        chosen = [(state, entry) for state, entry in every if state in ("failed", "dead")]
    for state, entry in chosen:
        if state == "dead":
            queue.revive(entry)
        elif state == "failed" and not queue.hasten(entry):
            problems.append(f"{entry.id}: another of its process is running; it comes after that")
    over = see_to_hooks()
    picked = {entry.id for _, entry in chosen}
    told = [(state, entry) for state, entry in queue.every() if entry.id in picked]
    _list(told, wanted, problems=problems, nothing="no hook has failed")
    if not over and not wanted.json:
        print("not over yet; it goes on in the background")
    return 1 if problems or any(state in ("failed", "dead") for state, _ in told) else 0


# -- list ------------------------------------------------------------------------------------


def _list(
    found: list[tuple[str, Entry]],
    wanted: argparse.Namespace,
    *,
    problems: list[str] | None = None,
    nothing: str = "no hooks wait, and none were run lately",
) -> None:
    dropped = queue.dropped()
    if wanted.json:
        what = {
            "hooks": [_as_dict(state, entry) for state, entry in found],
            "dropped": dropped,
            "problems": problems or [],
        }
        print(json.dumps(what, indent=2))
        return
    done = [pair for pair in found if pair[0] == "done"]
    shown = [pair for pair in found if pair[0] != "done"] + done[-_DONE_SHOWN:]
    columns = [Column("HOOK"), Column("STATE", least=20), Column("EVENT"),
               Column("SESSION", least=12)]  # fmt: skip
    rows = [_row(state, entry) for state, entry in shown]
    if rows:
        print("\n".join(table.render(columns, rows, paint.chosen(wanted))))
    for problem in problems or ():
        print(printable(problem))
    if dropped:
        print(f"{dropped} older ones that were given up are no longer kept")
    if not found and not problems:
        print(nothing)


def _row(state: str, entry: Entry) -> Row:
    cells = [entry.id, _told(state, entry), entry.event, one_line(printable(entry.session))]
    notes = [(one_line(printable(entry.command)), "dim")]
    if state in ("failed", "dead"):
        said = entry.attempts[-1].get("output", "").splitlines()[-_OUTPUT_SHOWN:]
        notes += [(f"| {printable(line)}", "") for line in said]
        notes.append((f"hermes-supervise hooks retry {entry.id}", table.COMMAND))
    return Row(cells, {0: "bold", 1: _STYLES.get(state, "")}, notes)


def _told(state: str, entry: Entry) -> str:
    last = entry.attempts[-1] if entry.attempts else {}
    attempt = f"attempt {len(entry.attempts)}"
    if state == "done":
        return f"done {_clock(last['ended'])}" + (
            f" ({attempt})" if len(entry.attempts) > 1 else ""
        )
    if state == "running":
        return f"running since {_clock(last['at'])} ({attempt})"
    if state == "failed":
        again = _clock(entry.due(time.time()))
        return f"failed: {printable(last['outcome'])} ({attempt}), again at {again}"
    if state == "dead":
        return f"given up: {printable(last['outcome'])} ({attempt})"
    return f"{state} since {_clock(entry.queued)}"


def _as_dict(state: str, entry: Entry) -> dict[str, Any]:
    last = entry.attempts[-1] if entry.attempts else {}
    return {
        "id": entry.id,
        "state": state,
        "event": entry.event,
        "kind": entry.kind,
        "session": entry.session,
        "run": entry.run,
        "command": entry.command,
        "queued": entry.queued,
        "attempts": len(entry.attempts),
        "outcome": last.get("outcome"),
        "output": last.get("output", ""),
        "last": last.get("at"),
        "next": entry.due(time.time()) if state == "failed" else None,
    }


def _clock(at: float) -> str:
    today = time.strftime("%Y-%m-%d", time.localtime(at)) == time.strftime("%Y-%m-%d")
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M", time.localtime(at))
