"""`hermes-supervise sessions`: interrupted and recovered sessions, and how to resume each.

Never changes anything; of state.db it reads the titles, and whether somebody has gone on.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from .. import notice
from ..plain import asdict
from ..recovery import report
from ..recovery.report import Settled
from ..text import printable
from . import paint, table
from .table import Column, Row
from .words import ago, one_line

_STYLES = {"interrupted": "yellow", "resumed since": "green", "not written": "red"}


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="hermes-supervise sessions",
        description="Interrupted and recovered sessions, newest first, and how to resume each.",
    )
    made.add_argument(
        "--all", action="store_true", help="also those that ended in order, and subagents'"
    )
    paint.add_options(made)
    return made


def main(arguments: list[str]) -> int:
    wanted = parser().parse_args(arguments)
    every = last_of_each(report.every())
    found = [one for one in every if wanted.all or _matters(one)]
    briefly = _read(found)
    if wanted.json:
        told = [{**asdict(one), **_now(one, briefly)} for one in found]
        print(json.dumps(told, indent=2))
        return 0
    for line in _lines(found, briefly, paint.chosen(wanted)):
        print(line)
    if not found:
        more = f"; --all lists {len(every)} that ended in order" if every else ""
        print(f"no session was interrupted{more}")
    return 0


def last_of_each(every: list[Settled]) -> list[Settled]:
    """What was said last of each session, newest first."""
    last = {(one.db, one.session): one for one in sorted(every, key=lambda one: one.died_at)}
    return sorted(last.values(), key=lambda one: one.died_at, reverse=True)


def _matters(one: Settled) -> bool:
    mine = one.outcome == "interrupted" and not one.subagent
    return mine or not one.complete


def _read(found: list[Settled]) -> dict[tuple[str, str], dict[str, Any]]:
    """Title and end of each, as they are now; what cannot be read is left out."""
    from ..recovery.statedb import StateDb, Trouble

    names: dict[str, list[str]] = {}
    for one in found:
        names.setdefault(one.db, []).append(one.session)
    told: dict[tuple[str, str], dict[str, Any]] = {}
    for path, sessions in names.items():
        try:
            database = StateDb(path, read_only=True)
        except Trouble:
            continue
        try:
            for name, row in database.briefly(sessions).items():
                told[path, name] = row
        except Trouble:
            continue
        finally:
            database.close()
    return told


def _now(one: Settled, briefly: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Any]:
    row = briefly.get((one.db, one.session), {})
    state = one.outcome
    if not one.complete:
        state = "not written"
    elif row and one.outcome == "interrupted" and row.get("end_reason") != "interrupted":
        state = "resumed since"
    return {"title": row.get("title"), "state": state}


def _lines(
    found: list[Settled], briefly: dict[tuple[str, str], dict[str, Any]], brush: paint.Paint
) -> list[str]:
    if not found:
        return []
    now = time.time()
    columns = [Column("SESSION"), Column("WHEN"), Column("STATE"),
               Column("HOW", least=14), Column("TITLE", least=8)]  # fmt: skip
    rows = [_row(one, _now(one, briefly), now) for one in found]
    return table.render(columns, rows, brush)


def _row(one: Settled, told: dict[str, Any], now: float) -> Row:
    cells = [
        one_line(printable(one.session)),
        ago(one.died_at, now),
        told["state"],
        printable(one.cause),
        one_line(printable(str(told["title"] or ""))),
    ]
    notes = []
    if one.outcome == "interrupted":
        quiet = notice.silence(one)
        notes.append((notice.recovered(one) + (f"; {quiet}" if quiet else ""), "dim"))
        if told["state"] == "interrupted":
            show = f"hermes-supervise show {shell_word(one.session)}"
            notes.append((printable(one.resume or show), table.COMMAND))
    if not one.complete:
        notes += [(printable(problem), "") for problem in one.problems]
        notes.append(("hermes-supervise recover", table.COMMAND))
    return Row(cells, {0: "bold", 2: _STYLES.get(told["state"], "")}, notes)


def shell_word(name: str) -> str:
    from shlex import quote

    return printable(quote(name))
