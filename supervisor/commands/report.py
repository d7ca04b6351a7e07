"""`hermes-supervise report`: the story of a death as one page of HTML, to keep or to share.

Never changes anything of the session, and writes nothing but the file that it was asked for.
"""

from __future__ import annotations

import argparse
import os
import sys

from ..recovery import report
from ..text import printable, storable
from . import page, paint, redact, show
from .sessions import shell_word


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="hermes-supervise report",
        description="The story of a session's death as one self-contained page of HTML.",
    )
    made.add_argument("session", metavar="SESSION", help="the id of a session")
    made.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="where to write it (default: standard output, if that is no terminal)",
    )
    made.add_argument(
        "--redact",
        action="store_true",
        help="leave out what was said, and paths and names; structure and times stay",
    )
    return made


def main(arguments: list[str]) -> int:
    wanted = parser().parse_args(arguments)
    found = [one for one in report.every() if one.session == wanted.session]
    if not found:
        print("\n".join(show.unknown(wanted.session)), file=sys.stderr)
        return 1
    if wanted.output is None and sys.stdout.isatty():
        name = shell_word(wanted.session)
        print("this is a page of HTML, and no good on a terminal; type", file=sys.stderr)
        print(f"  hermes-supervise report {name} -o death.html", file=sys.stderr)
        return 1
    session, messages = show.read(found[-1])
    if wanted.redact:
        session, messages = redact.transcript(session, messages, found[-1])
        found = [redact.settled(one) for one in found]
    text = storable(page.page(found, session, messages, redacted=wanted.redact))
    if wanted.output is None:
        print(text, end="")
        return 0
    path = os.path.abspath(wanted.output)
    # What was said is in it: nobody else's to read until its owner says so.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(text)
    brush = paint.paint_for(sys.stderr)
    print(f"written to {brush(printable(path), 'bold')}", file=sys.stderr)
    return 0
