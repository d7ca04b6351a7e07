"""`hermes-supervise sweep`: ends stale sessions from before supervision. Deletes nothing.

Never ends a session without proof, and prints first what it will do and why.
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

from ...agents.state_db import default_db
from ...model.text import printable
from ...recovery import stale_sessions
from ...recovery.stale_sessions import Leaked
from ...statedb.sweep import OpenSessions
from ...statedb.writer import StateDbError
from ..errors import USAGE, CommandError, Parser
from ..output import style
from ..output.formatting import number
from ..output.patience import explained

# What people read in place of the JSON key.
_SHOWN_REASONS = {
    stale_sessions.FOR_RECOVER: "left for `hermes-supervise recover`",
    stale_sessions.A_CHAT: "a chat that the gateway will continue",
    stale_sessions.WENT_ON: "continued after its process was gone",
    stale_sessions.FILE_IN_USE: "its process is gone, but another process has the database open",
}


def parser() -> argparse.ArgumentParser:
    command = Parser(
        prog="hermes-supervise sweep",
        description="End stale sessions that nothing else will end, where that can be proved.",
    )
    command.add_argument("--dry-run", action="store_true", help="only print what would be done")
    command.add_argument(
        "--db", metavar="PATH", help="the state.db to sweep (default: the one Hermes uses)"
    )
    style.add_options(command)
    return command


def main(argv: list[str]) -> int:
    args = parser().parse_args(argv)
    path = os.path.abspath(args.db or default_db())
    if not os.path.exists(path):
        raise CommandError(f"{path} does not exist; use --db to name a state.db", USAGE)
    try:
        stale, left_alone = _judge(path)
        if not args.json:
            _announce(path, stale, left_alone, style.for_output(args))
        if stale and not args.dry_run:
            with explained("still waiting for state.db; another process may have it locked"):
                _end(path, stale)
    except StateDbError as error:
        raise CommandError(str(error)) from error
    if args.json:
        answer = {"db": path, "dry_run": args.dry_run,
                  "leaked": [asdict(session) for session in stale],
                  "left_alone": left_alone}  # fmt: skip
        print(json.dumps(answer, indent=2))
    elif stale and not args.dry_run:
        print(f"ended {sum(session.ended for session in stale)} of {len(stale)}")
        for session in stale:
            if not session.ended:
                print(f"{printable(session.session)}  ended or resumed in the meantime; left alone")
    return 0


def _judge(path: str) -> tuple[list[Leaked], Counter[str]]:
    database = OpenSessions(path, read_only=True)
    try:
        return stale_sessions.judge(database.rows(), stale_sessions.evidence(path), time.time())
    finally:
        database.close()


def _announce(
    path: str, stale: list[Leaked], left_alone: Counter[str], styled: style.Style
) -> None:
    print(f"in {printable(path)}:")
    for session in stale:
        name, mark = styled(printable(session.session), "bold"), styled("stale", "yellow")
        print(f"{name}  {mark}, will be ended as {session.reason}: {printable(session.why)}")
    for why, count in sorted(left_alone.items()):
        what = number(count, "open session")
        print(f"{what} left alone: {_SHOWN_REASONS.get(why, why)}")
    if not stale:
        print("nothing to sweep")
    sys.stdout.flush()


def _end(path: str, stale: list[Leaked]) -> None:
    """End the sessions that were announced, if they are still stale under the write lock."""
    announced = {session.session: session for session in stale}

    def still_stale(rows: list[dict[str, Any]]) -> list[tuple[str, float, str]]:
        again, _ = stale_sessions.judge(rows, stale_sessions.evidence(path), time.time())
        return [
            (session.session, announced[session.session].at, session.reason)
            for session in again
            if session.session in announced and session.reason == announced[session.session].reason
        ]

    database = OpenSessions(path)
    try:
        for name in database.end(still_stale):
            announced[name].ended = True
    finally:
        database.close()
