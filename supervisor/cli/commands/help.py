"""`hermes-supervise help [COMMAND]`: the same as --help, for those who type it as a command."""

from __future__ import annotations

import argparse
from importlib import import_module

from ..errors import USAGE, CommandError, Parser
from ..options import suggestion
from ..usage import COMMANDS, usage


def parser() -> argparse.ArgumentParser:
    command = Parser(prog="hermes-supervise help", description="Show the help of a command.")
    command.add_argument("name", nargs="?", metavar="NAME", help="the command")
    return command


def main(argv: list[str]) -> int:
    name = parser().parse_args(argv).name
    if name is None:
        print(usage(), end="")
        return 0
    if name not in COMMANDS:
        close = suggestion(name, COMMANDS) or "; `hermes-supervise --help` lists them"
        raise CommandError(f"no command {name!r}{close}", USAGE)
    status = import_module(f".{name.replace('-', '_')}", __package__).main(["--help"])
    assert isinstance(status, int)
    return status
