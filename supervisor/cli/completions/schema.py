"""The CLI schema: everything that can be typed, read from the option table and the parsers.

Never a list of its own, so completions and the man page always match what the program accepts.
"""

from __future__ import annotations

import argparse
from importlib import import_module

from ....ipc.lightweight.dataclass import dataclass, field
from ..options import HELP, TABLE, VERSION
from ..usage import COMMANDS


@dataclass
class Flag:
    names: list[str]
    value: str
    """The name of its value; empty for a switch."""
    choices: list[str]
    meaning: str

    @property
    def brief(self) -> str:
        """The meaning in a few words."""
        text = self.meaning
        for end in (";", ". ", " (default"):
            text = text.partition(end)[0]
        return text if " " in text else self.meaning


@dataclass
class Command:
    name: str
    usage: str
    meaning: str
    flags: list[Flag] = field(default_factory=list)
    takes: str = ""
    """The name of its argument: SESSION, COMMAND and so on."""
    choices: list[str] = field(default_factory=list)
    below: list[Command] = field(default_factory=list)
    """Its subcommands."""


# What a shell can complete, by the name of a value.
FILES, PROGRAMS, SESSIONS = ("PATH", "FILE", "ICON"), ("CMD", "COMMAND"), ("SESSION",)


def known_kind(value: str) -> str:
    return value if value in FILES + PROGRAMS + SESSIONS else ""


def run_flags() -> list[Flag]:
    """The options of a run."""
    flags = [
        Flag([option.flag], option.value, list(option.choices), " ".join(option.meaning.split()))
        for option in TABLE
    ]
    return [
        *flags,
        Flag(list(HELP), "", [], "show a summary of the options and commands"),
        Flag(list(VERSION), "", [], "show the version"),
    ]


def commands() -> list[Command]:
    every = []
    for name, (usage, meaning) in COMMANDS.items():
        command = Command(name, usage, meaning)
        module = import_module(f"..commands.{name.replace('-', '_')}", __package__)
        if hasattr(module, "parser"):
            _read(module.parser(), command)
        for subname, (submeaning, parser) in getattr(module, "SUBCOMMANDS", {}).items():
            below = Command(subname, "", submeaning)
            _read(parser(), below)
            command.below.append(below)
        every.append(command)
    return every


def _read(parser: argparse.ArgumentParser, into: Command) -> None:
    for action in parser._actions:
        choices = [str(choice) for choice in action.choices or ()]
        if isinstance(action, argparse._SubParsersAction):
            for described in action._choices_actions:
                below = Command(described.dest, "", described.help or "")
                _read(action.choices[described.dest], below)
                into.below.append(below)
        elif action.option_strings:
            takes_value = action.nargs is None
            value = str(action.metavar or "|".join(choices) or action.dest) if takes_value else ""
            into.flags.append(Flag(list(action.option_strings), value, choices, action.help or ""))
        else:
            into.takes, into.choices = str(action.metavar or action.dest), choices
