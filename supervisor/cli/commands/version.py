"""`hermes-supervise version`: the same as --version, for those who type it as a command."""

from __future__ import annotations

import argparse

from ..errors import Parser
from ..usage import version


def parser() -> argparse.ArgumentParser:
    return Parser(prog="hermes-supervise version", description="Show the version.")


def main(argv: list[str]) -> int:
    parser().parse_args(argv)
    print(version())
    return 0
