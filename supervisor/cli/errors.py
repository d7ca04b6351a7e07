"""Errors of our own commands: a text for people, an exit status, and JSON for programs.

0     done
1     done, and the answer is not good: something is wrong, or could not be completed
2     the command line is wrong, or names a session, run or hook that does not exist
125   hermes-supervise could not do it: a folder, file or database cannot be used
"""

from __future__ import annotations

import argparse
import os
import sys
from textwrap import wrap
from typing import Any

from ..model.text import printable
from ..process import launch

PROBLEMS = 1
USAGE = 2
# What `launch.say` begins a line with.
_PREFIX = "hermes-supervise: "
FAILED = launch.OUR_FAILURE


class CommandError(Exception):
    def __init__(self, text: str, status: int = FAILED) -> None:
        super().__init__(text)
        self.status = status


class _HelpFormatter(argparse.HelpFormatter):
    """Breaks no line at a hyphen: `hermes-supervise` is a word that people copy. A newline in a
    description or an epilog stays one."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = [
            wrap(line, width, initial_indent=indent, subsequent_indent=indent,
                 break_on_hyphens=False, break_long_words=False)
            for line in text.splitlines()
        ]  # fmt: skip
        return "\n".join("\n".join(wrapped) for wrapped in lines)


class _Subcommands(argparse._SubParsersAction):  # type: ignore[type-arg]
    """A subcommand's own help begins with what the list of subcommands says about it."""

    def add_parser(self, name: str, **options: Any) -> Any:
        meaning = options.get("help") or ""
        return super().add_parser(
            name, **{"description": f"{meaning[:1].upper()}{meaning[1:]}.", **options}
        )


class Parser(argparse.ArgumentParser):
    """Raises CommandError for a wrong command line, so that --json gets an object."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"formatter_class": _HelpFormatter, **options})
        self.register("action", "parsers", _Subcommands)

    def error(self, message: str) -> None:  # type: ignore[override]
        self.print_usage(sys.stderr)
        raise CommandError(f"{message}; see `{self.prog} --help`", USAGE)


def described(error: OSError) -> str:
    """Which file or folder cannot be used, and why, without the number that the system gives it."""
    if error.filename is None or error.strerror is None:
        return str(error)
    return f"cannot use {os.fsdecode(error.filename)}: {error.strerror}"


def folded(text: str) -> str:
    """Broken at words where standard error is a terminal that is narrower. A line that is a command
    of its own, as in a list, stays as it is."""
    from .output import style, table  # start-up: only for an error

    width = style.for_stream(sys.stderr).width
    if width is None:
        return text
    first, *rest = text.split("\n")
    lines = table.fold(_PREFIX + first, width, "  ")
    lines[0] = lines[0].removeprefix(_PREFIX)
    for line in rest:
        command = line.startswith("  hermes-supervise ")
        lines += [line] if command else table.fold(line, width, "    ")
    return "\n".join(lines)


def report(text: str, *, as_json: bool) -> None:
    """An error on standard error. With --json, also an object on standard output."""
    launch.say(folded(printable(text)))
    if as_json:
        import json  # start-up: only for --json

        print(json.dumps({"error": text}))
