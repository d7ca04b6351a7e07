"""Colours and the width of the terminal: for people, and only where there is one.

Never paints what a program reads, nor against NO_COLOR or a terminal that knows no colours.
"""

from __future__ import annotations

import os
import shutil
import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from typing import TextIO

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34",
          "cyan": "36"}  # fmt: skip


class Paint:
    """Puts text into colours, or leaves it as it is. `width` is None where nobody looks."""

    def __init__(self, on: bool = False, width: int | None = None) -> None:
        self.on = on
        self.width = width

    def __call__(self, text: str, *styles: str) -> str:
        codes = ";".join(_CODES[style] for style in styles if style)
        return f"\x1b[{codes}m{text}\x1b[0m" if self.on and codes and text else text


def add_options(parser: ArgumentParser, *, below: bool = False) -> None:
    """What every command that tells something can be asked. `below`: the parser is that of a
    second word, and a default of its own would undo what was said before that."""
    parser.add_argument(
        "--json",
        action="store_true",
        default=SUPPRESS if below else False,
        help="print JSON, for programs",
    )
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default=SUPPRESS if below else "auto",
        help="auto (default): on a terminal, unless NO_COLOR is set or TERM is dumb",
    )


def chosen(wanted: Namespace) -> Paint:
    return paint_for(sys.stdout, wanted.color)


def paint_for(stream: TextIO, wanted: str = "auto") -> Paint:
    terminal = stream.isatty()
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM", "dumb") == "dumb"
    on = wanted == "always" or (wanted == "auto" and terminal and not plain)
    return Paint(on, _width(stream) if terminal else None)


def _width(stream: TextIO) -> int:
    """Of the terminal at this stream; the usual one where it does not say."""
    try:
        asked = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        asked = 0
    told = os.environ.get("COLUMNS", "")
    return (int(told) if told.isdecimal() else 0) or asked or shutil.get_terminal_size().columns
