"""`hermes-supervise completions SHELL`: prints a completion script.

It completes our command lines, and the agent's after ours as the shell does without us. Never has a
list of its own: see `completions/schema.py`.
"""

from __future__ import annotations

import argparse
from importlib import import_module

from ..errors import Parser

SHELLS = ("bash", "zsh", "fish")


def parser() -> argparse.ArgumentParser:
    command = Parser(
        prog="hermes-supervise completions",
        description="Print a completion script for hermes-supervise and the agent's command line.",
        epilog="Add one line to the shell's start file:\n"
        "~/.bashrc: source <(hermes-supervise completions bash)\n"
        "~/.zshrc, after compinit: source <(hermes-supervise completions zsh)\n"
        "~/.config/fish/config.fish: hermes-supervise completions fish | source",
    )
    command.add_argument("shell", choices=SHELLS, metavar="|".join(SHELLS), help="the shell")
    return command


def main(argv: list[str]) -> int:
    if argv == ["sessions"]:  # called by those scripts
        from ...recovery import report as reports  # start-up: only to complete a session
        from ..session_lookup import latest  # start-up: the same

        for report in latest(reports.every()):
            if report.session.isprintable():
                print(report.session)
        return 0
    shell = parser().parse_args(argv).shell
    from ..completions import schema  # imports every command

    script = import_module(f"..completions.{shell}", __package__)
    print(script.render(schema.run_flags(), schema.commands()), end="")
    return 0
