"""`hermes-supervise config`: the settings in force, and where each came from.

Never changes anything. What a flag would say cannot be seen here.
"""

from __future__ import annotations

import argparse
import json
import os

from ...ipc import endpoint
from .. import options
from ..options import BY_NAME, TABLE, Options, UsageError
from ..run import default_db
from ..settings import read
from ..text import printable
from . import paint, table
from .table import Column, Row

# What carries us into an agent is nobody's setting.
_NOT_SETTINGS = (
    endpoint.SOCKET_VARIABLE, endpoint.SPOOL_VARIABLE, endpoint.RUN_VARIABLE,
    endpoint.RESUMED_VARIABLE,
)  # fmt: skip


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="hermes-supervise config",
        description="The settings in force, and where each came from. Fails if one is wrong.",
    )
    paint.add_options(made)
    return made


def main(arguments: list[str]) -> int:
    wanted = parser().parse_args(arguments)
    file = options.settings_file()
    exists = os.path.exists(file)
    chosen = Options()
    sources, problems = _from_file(chosen, file) if exists else ({}, [])
    problems += _from_variables(chosen, sources)
    chosen.db = chosen.db or default_db()
    if wanted.json:
        settings = {
            option.name: {
                "value": getattr(chosen, option.name),
                "from": sources.get(option.name, "default"),
            }
            for option in TABLE
        }
        told = {"file": file, "exists": exists, "settings": settings, "problems": problems}
        print(json.dumps(told, indent=2))
    else:
        print(f"{printable(file)}{'' if exists else ' (not there)'}\n")
        print("\n".join(_lines(chosen, sources, file, paint.chosen(wanted))))
        if problems:
            print()
        for problem in problems:
            print(printable(problem))
    return 1 if problems else 0


def _lines(chosen: Options, sources: dict[str, str], file: str, brush: paint.Paint) -> list[str]:
    rows = []
    for option in TABLE:
        source = sources.get(option.name, "default")
        style = "dim" if source == "default" else "bold"
        # The file's path stands above.
        source = source.replace(f"{file}:", "config.toml:")
        value = _shown(getattr(chosen, option.name))
        rows.append(Row([option.name, printable(value), source], dict.fromkeys(range(3), style)))
    return table.render([Column("SETTING"), Column("VALUE", least=12), Column("FROM")], rows, brush)


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
                problems.append(f"{name}: no such setting{options.meant(name, known)}")
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


def _shown(value: object) -> str:
    """As config.toml would have it."""
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value, ensure_ascii=False)
