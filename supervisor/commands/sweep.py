"""`hermes-supervise sweep`: end the sessions that leaked before we came. Deletes nothing.

Never ends a session without proof, and always says first what it is about to do, and why.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from dataclasses import asdict
from typing import Any

from .. import run as runs
from ..recovery import leaked
from ..recovery.leaked import Leaked
from ..recovery.statedb import Trouble
from ..recovery.unended import Unended
from ..text import printable
from . import paint


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="hermes-supervise sweep",
        description="End sessions that nobody will ever end, where that can be proved.",
    )
    made.add_argument("--dry-run", action="store_true", help="only say what would be done")
    made.add_argument("--db", metavar="PATH", help="the state.db (default: that of Hermes)")
    paint.add_options(made)
    return made


def main(arguments: list[str]) -> int:
    wanted = parser().parse_args(arguments)
    path = os.path.abspath(wanted.db or runs.default_db())
    if not os.path.exists(path):
        print(f"{printable(path)} is not there", file=sys.stderr)
        return 1
    try:
        found, left = _found(path)
        if not wanted.json:
            _announce(path, found, left, paint.chosen(wanted))
        if found and not wanted.dry_run:
            _end(path, found)
    except Trouble as trouble:
        print(printable(str(trouble)), file=sys.stderr)
        return 1
    if wanted.json:
        told = {"db": path, "dry_run": wanted.dry_run, "leaked": [asdict(one) for one in found],
                "left_alone": left}  # fmt: skip
        print(json.dumps(told, indent=2))
    elif found and not wanted.dry_run:
        print(f"ended {sum(one.ended for one in found)} of {len(found)}")
        for one in found:
            if not one.ended:
                print(f"{printable(one.session)}  was ended or taken up meanwhile; left as it is")
    return 0


def _found(path: str) -> tuple[list[Leaked], Counter[str]]:
    database = Unended(path, read_only=True)
    try:
        return leaked.judge(database.rows(), leaked.evidence(path), time.time())
    finally:
        database.close()


def _announce(path: str, found: list[Leaked], left: Counter[str], brush: paint.Paint) -> None:
    print(f"in {printable(path)}:")
    for one in found:
        name, leaks = brush(printable(one.session), "bold"), brush("leaked", "yellow")
        print(f"{name}  {leaks}, to be ended as {one.reason}: {printable(one.why)}")
    for why, count in sorted(left.items()):
        print(f"{count} open {'session' if count == 1 else 'sessions'} left alone: {why}")
    if not found:
        print("nothing to sweep")
    sys.stdout.flush()


def _end(path: str, found: list[Leaked]) -> None:
    """End what was announced, if with the file in hand it still looks the same."""
    announced = {one.session: one for one in found}

    def still(rows: list[dict[str, Any]]) -> list[tuple[str, float, str]]:
        again, _ = leaked.judge(rows, leaked.evidence(path), time.time())
        return [
            (one.session, announced[one.session].at, one.reason)
            for one in again
            if one.session in announced and one.reason == announced[one.session].reason
        ]

    database = Unended(path)
    try:
        for name in database.end_those(still):
            announced[name].ended = True
    finally:
        database.close()
