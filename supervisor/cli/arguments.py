"""The options of a run, from config.toml, the variables and the command line, the last strongest.

Never fails because of config.toml: its errors are collected in `problems`, and the rest of the file
is used. Loads the table of options only if one is set: most runs are started without any.
"""

from __future__ import annotations

import os

from ...ipc.endpoint import xdg_folder
from ..model.options import Options, UsageError

_VARIABLES = "HERMES_SUPERVISE_"


class Asked(Exception):
    """The user asked for the help or the version instead of a run."""


def settings_file() -> str:
    """The path of config.toml, whether it exists or not."""
    base = xdg_folder("XDG_CONFIG_HOME", "~/.config")
    return os.path.join(base, "hermes-supervise", "config.toml")


def parse(arguments: list[str]) -> tuple[Options, list[str]]:
    """The options and the command, which starts at the first word that is not an option, or after
    `--`. Raises UsageError and Asked."""
    options = Options()
    has_file = os.path.exists(file := settings_file())
    if not has_file and not any(name.startswith(_VARIABLES) for name in os.environ):
        if arguments[:1] == ["--"]:
            return options, arguments[1:]
        if not arguments or arguments[0][:1] != "-":
            return options, arguments
    # Start-up: most runs are started without an option.
    from .options import BY_FLAG, HELP, TABLE, VERSION, begin, put, suggestion

    if has_file:
        from .settings import from_file  # start-up: only if there is a file

        options.problems = from_file(options, file)
    for each in TABLE:
        if (text := os.environ.get(each.variable)) is not None:
            begin(options, each)
            put(options, each, text, each.variable)
    given: set[str] = set()
    index = 0
    while index < len(arguments):
        word = arguments[index]
        if word == "--":
            return options, arguments[index + 1 :]
        if not word.startswith("-") or word == "-":
            return options, arguments[index:]
        flag, equals, text = word.partition("=")
        if word in HELP + VERSION:
            raise Asked(word)
        option = BY_FLAG.get(flag)
        if option is None:
            raise UsageError(f"unknown option {flag}{suggestion(flag, BY_FLAG)}")
        if option.read is None:
            if equals:
                raise UsageError(f"{flag} takes no value")
            text = "1"
        elif not equals:
            index += 1
            if index >= len(arguments):
                raise UsageError(f"{flag} needs a value: {flag} {option.value}")
            text = arguments[index]
        if flag not in given:
            begin(options, option)
        given.add(flag)
        put(options, option, text, flag)
        index += 1
    return options, []
