"""`hermes-supervise config`: the settings in force, as TOML, and where each comes from.

Never changes anything. It cannot show what a flag would change.
"""

from __future__ import annotations

import argparse
import json
import os

from ....ipc import endpoint
from ...agents.state_db import default_db
from ...model.options import Options
from ...model.text import printable
from .. import options
from ..arguments import settings_file
from ..errors import PROBLEMS, Parser
from ..options import BY_NAME, TABLE, UsageError
from ..output import style, table
from ..settings import read

# Variables that hermes-supervise sets for an agent. They are not settings.
_NOT_SETTINGS = (
    endpoint.SOCKET_VARIABLE, endpoint.SPOOL_VARIABLE, endpoint.RUN_VARIABLE,
    endpoint.RESUMED_VARIABLE, endpoint.DEPTH_VARIABLE,
)  # fmt: skip


def parser() -> argparse.ArgumentParser:
    command = Parser(
        prog="hermes-supervise config",
        description="Show the settings and where each one comes from, as TOML. Fails if one is "
        "wrong.",
    )
    style.add_options(command)
    return command


def main(argv: list[str]) -> int:
    args = parser().parse_args(argv)
    file = settings_file()
    exists = os.path.exists(file)
    chosen = Options()
    sources, problems = _from_file(chosen, file) if exists else ({}, [])
    problems += _from_variables(chosen, sources)
    chosen.db = chosen.db or default_db()
    if args.json:
        settings = {
            option.name: {
                "value": getattr(chosen, option.name),
                "from": sources.get(option.name, "default"),
            }
            for option in TABLE
        }
        answer = {"file": file, "exists": exists, "settings": settings, "problems": problems}
        print(json.dumps(answer, indent=2))
    else:
        print(f"# {printable(file)}{'' if exists else ' (does not exist)'}\n")
        print("\n".join(_toml(chosen, sources, file, style.for_output(args))))
        if problems:
            print()
        for problem in problems:
            print(f"# {printable(problem)}")
    return PROBLEMS if problems else 0


def _toml(chosen: Options, sources: dict[str, str], file: str, styled: style.Style) -> list[str]:
    """A line of TOML for each setting, with its source as a comment. One without a value is
    a comment."""
    assignments = {}
    for option in TABLE:
        value = getattr(chosen, option.name)
        name = option.name if value is not None else f"# {option.name}"
        assignments[option.name] = f"{name} = {_toml_value(value)}"
    widths = [table.measure(line) for line in assignments.values()]
    column = min(max(widths), 40)
    lines = []
    for option in TABLE:
        source = sources.get(option.name, "default")
        name = "dim" if source == "default" else "bold"
        source = source.replace(f"{file}:", "config.toml, line ")
        line = assignments[option.name]
        padding = " " * (column - table.measure(line))
        lines.append(styled(f"{line}{padding}  # {printable(source)}", name))
    return lines


def _toml_value(value: object) -> str:
    if value is None:
        return '""'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, str):
        return _toml_string(value)
    return str(value)


def _toml_string(text: str) -> str:
    """A basic string. What cannot be printed is escaped, so that it cannot control a terminal."""
    escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    characters = []
    for character in text:
        if character in escapes:
            characters.append(escapes[character])
        elif character.isprintable():
            characters.append(character)
        else:
            characters.append(f"\\U{ord(character):08X}")
    return f'"{"".join(characters)}"'


def _from_file(chosen: Options, file: str) -> tuple[dict[str, str], list[str]]:
    entries, problems = read(file)
    sources: dict[str, str] = {}
    for entry in entries:
        option = BY_NAME[entry.name]
        if entry.name not in sources:
            options.begin(chosen, option)
        sources[entry.name] = f"{file}:{entry.line}"
        options.put(chosen, option, entry.text, file)
    return sources, problems


def _from_variables(chosen: Options, sources: dict[str, str]) -> list[str]:
    problems = []
    known = {option.variable: option for option in TABLE}
    prefix = endpoint.SWITCH_VARIABLE + "_"
    for name in sorted(n for n in os.environ if n.startswith(prefix)):
        option = known.get(name)
        if option is None:
            if name not in _NOT_SETTINGS:
                problems.append(f"{name}: unknown setting{options.suggestion(name, known)}")
            continue
        try:
            options.value_of(option, os.environ[name], name)
        except UsageError as error:
            problems.append(str(error))
            continue
        options.begin(chosen, option)
        options.put(chosen, option, os.environ[name], name)
        sources[option.name] = name
    return problems
