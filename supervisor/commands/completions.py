"""`hermes-supervise completions SHELL`: a script that teaches a shell to complete our command
lines, and the agent's behind ours as that shell completes it alone.

Never a list of its own: see `surface`.
"""

from __future__ import annotations

import argparse
from importlib import import_module

_SHELLS = ("bash", "zsh", "fish")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="hermes-supervise completions",
        description="Print a script that completes our command lines, and the agent's behind them.",
        epilog="bash: source <(hermes-supervise completions bash), in ~/.bashrc. "
        "zsh: the same with zsh, in ~/.zshrc, behind compinit. "
        "fish: hermes-supervise completions fish | source, in ~/.config/fish/config.fish.",
    )
    made.add_argument("shell", choices=_SHELLS, metavar="|".join(_SHELLS), help="the shell")
    return made


def main(arguments: list[str]) -> int:
    if arguments == ["sessions"]:  # said by those scripts, not by people
        from ..recovery import report
        from .sessions import last_of_each

        for one in last_of_each(report.every()):
            if one.session.isprintable():
                print(one.session)
        return 0
    shell = parser().parse_args(arguments).shell
    from . import surface

    script = import_module(f".complete_{shell}", __package__)
    print(script.render(surface.run_flags(), surface.commands()), end="")
    return 0
