"""Colours and the width of the terminal: for people, and only on a terminal.

Never colours what a program reads, and respects NO_COLOR and TERM=dumb.
"""

from __future__ import annotations

import os
import shutil
import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from typing import TextIO

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34",
          "cyan": "36"}  # fmt: skip


class Style:
    """Colours text, or returns it unchanged. `width` is None if the output is not a terminal."""

    def __init__(self, on: bool = False, width: int | None = None) -> None:
        self.on = on
        self.width = width

    def __call__(self, text: str, *names: str) -> str:
        codes = ";".join(_CODES[name] for name in names if name)
        return f"\x1b[{codes}m{text}\x1b[0m" if self.on and codes and text else text


def add_options(parser: ArgumentParser, *, subcommand: bool = False) -> None:
    """Add the options that every command with output has.

    `subcommand`: the parser belongs to a subcommand. It must not have defaults of its own, which
    would override options that were given before the subcommand.
    """
    parser.add_argument(
        "--json",
        action="store_true",
        default=SUPPRESS if subcommand else False,
        help="print JSON, for programs",
    )
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default=SUPPRESS if subcommand else "auto",
        help="auto (default): on a terminal, unless NO_COLOR is set or TERM is dumb",
    )


def for_output(args: Namespace) -> Style:
    """The style of standard output, as the options ask."""
    return for_stream(sys.stdout, args.color)


def for_stream(stream: TextIO, color: str = "auto") -> Style:
    terminal = stream.isatty()
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM", "dumb") == "dumb"
    on = color == "always" or (color == "auto" and terminal and not plain)
    return Style(on, _width(stream) if terminal else None)


def _width(stream: TextIO) -> int:
    """The width of the terminal at this stream; 80 columns if it does not say."""
    try:
        reported = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        reported = 0
    variable = os.environ.get("COLUMNS", "")
    chosen = int(variable) if variable.isdecimal() else 0
    return chosen or reported or shutil.get_terminal_size().columns
