"""`hermes-supervise report`: what happened to a session as one HTML page, to keep or to share.

Never changes the session, and writes only the file it was asked for.
"""

from __future__ import annotations

import argparse
import os
import sys

from ...model.text import printable, storable
from ..errors import USAGE, CommandError, Parser
from ..output import page, redact, style
from ..session_lookup import find, reports_about
from . import show
from .sessions import shell_word


def parser() -> argparse.ArgumentParser:
    command = Parser(
        prog="hermes-supervise report",
        description="Write what happened to a session as one self-contained HTML page.",
    )
    command.add_argument("session", metavar="SESSION", help=show.SESSION_HELP)
    command.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="the file to write (default: standard output, unless it is a terminal)",
    )
    command.add_argument(
        "--redact",
        action="store_true",
        help="leave out texts, paths and names; keep structure and times",
    )
    return command


def main(argv: list[str]) -> int:
    args = parser().parse_args(argv)
    found = find(args.session, reports_about(args.session))
    if args.output is None and sys.stdout.isatty():
        name = shell_word(args.session)
        raise CommandError(
            "not printing HTML to a terminal; write it to a file:\n"
            f"  hermes-supervise report {name} -o death.html",
            USAGE,
        )
    session, messages = show.read(found[-1])
    if args.redact:
        session, messages = redact.transcript(session, messages, found[-1])
        found = [redact.report(r) for r in found]
    text = storable(page.page(found, session, messages, redacted=args.redact))
    write_page(text, args.output)
    return 0


def write_page(text: str, output: str | None) -> None:
    """Write a page to a file, or to standard output."""
    if output is None:
        print(text, end="")
        return
    path = os.path.abspath(output)
    # It contains messages, so only the user may read it.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(text)
    styled = style.for_stream(sys.stderr)
    print(f"written to {styled(printable(path), 'bold')}", file=sys.stderr)
