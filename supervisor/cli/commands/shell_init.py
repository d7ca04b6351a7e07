"""`hermes-supervise shell-init SHELL`: makes the known agents supervised wherever they are typed.

Prints a function for each agent, for the start file of an interactive shell. Never supervises
twice: inside a supervised run, and with HERMES_SUPERVISE=0, the function runs the agent itself. So
does `command AGENT`. A program that is not installed stays "command not found".
"""

from __future__ import annotations

import argparse
import shlex

from ....ipc import endpoint
from ...agents import registry
from ..errors import Parser
from .completions import SHELLS
from .desktop import our_command

_POSIX = """\
# Supervise agents in this shell, made by `hermes-supervise shell-init {shell}`.
case $- in
*i*)
    _hermes_supervise_run() {{
        if [ -n "${{{run}-}}" ] || [ "${{{switch}-}}" = 0 ] || [ ! -x {program} ] ||
            ! {exists} "$1" >/dev/null 2>&1; then
            command "$@"
        else
            {command} -- "$@"
        fi
    }}
{functions}
    ;;
esac
"""
_FISH = """\
# Supervise agents in this shell, made by `hermes-supervise shell-init fish`.
if status is-interactive
    function _hermes_supervise_run
        if set -q {run}; or test "${switch}" = 0; or not test -x {program}
            or not command -q $argv[1]
            command $argv
        else
            {command} -- $argv
        end
    end
{functions}
end
"""


def parser() -> argparse.ArgumentParser:
    command = Parser(
        prog="hermes-supervise shell-init",
        description="Print a script that runs the known agents under supervision wherever you type "
        "them in an interactive shell. `command AGENT` runs the agent alone, and so does "
        "HERMES_SUPERVISE=0.",
        epilog="Add one line to the shell's start file:\n"
        '~/.bashrc: eval "$(hermes-supervise shell-init bash)"\n'
        '~/.zshrc: eval "$(hermes-supervise shell-init zsh)"\n'
        "~/.config/fish/config.fish: hermes-supervise shell-init fish | source",
    )
    command.add_argument("shell", choices=SHELLS, metavar="|".join(SHELLS), help="the shell")
    return command


def main(argv: list[str]) -> int:
    shell = parser().parse_args(argv).shell
    words = our_command()
    names = [name for name in registry.names() if _is_command(name)]
    if shell == "fish":
        functions = [
            f"    function {name} --wraps {name}; _hermes_supervise_run {name} $argv; end"
            for name in names
        ]
    else:
        # `function` keeps an alias of the same name from being expanded here.
        functions = [
            f'    function {name} {{ _hermes_supervise_run {name} "$@"; }}' for name in names
        ]
    template = _FISH if shell == "fish" else _POSIX
    text = template.format(
        shell=shell,
        run=endpoint.RUN_VARIABLE,
        switch=endpoint.SWITCH_VARIABLE,
        program=shlex.quote(words[0]),
        command=shlex.join(words),
        exists="whence -p" if shell == "zsh" else "type -P",
        functions="\n".join(functions),
    )
    print(text, end="")
    return 0


def _is_command(name: str) -> bool:
    """Whether people type this name. The reader of plain JSON lines has no program."""
    agent = registry.named(name)
    return agent is not registry.plain_lines()
