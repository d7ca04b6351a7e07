"""All that can be typed, as data: read off the table of options and the commands' own parsers.

Never a list of its own: what is completed and what the manual says is what is understood.
"""

from __future__ import annotations

import argparse
from importlib import import_module

from ..options import HELP, TABLE, VERSION
from ..plain import dataclass, field


@dataclass
class Flag:
    names: list[str]
    value: str
    """What its value is called; nothing for a switch."""
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
    """What it is given: SESSION, COMMAND and the like."""
    choices: list[str] = field(default_factory=list)
    below: list[Command] = field(default_factory=list)


# What a shell can complete by what a value is called.
FILES, PROGRAMS, SESSIONS = ("PATH", "FILE", "ICON"), ("CMD", "COMMAND"), ("SESSION",)


def known_kind(value: str) -> str:
    return value if value in FILES + PROGRAMS + SESSIONS else ""


def run_flags() -> list[Flag]:
    """The options of a run."""
    told = [
        Flag([one.flag], one.value, list(one.choices), " ".join(one.meaning.split()))
        for one in TABLE
    ]
    return [
        *told,
        Flag(list(HELP), "", [], "show a summary of all this"),
        Flag(list(VERSION), "", [], "show the version"),
    ]


def commands() -> list[Command]:
    from ..__main__ import COMMANDS

    found = []
    for name, (usage, meaning) in COMMANDS.items():
        one = Command(name, usage, meaning)
        module = import_module(f".{name}", __package__)
        if hasattr(module, "parser"):
            _read(module.parser(), one)
        found.append(one)
    return found


def _read(parser: argparse.ArgumentParser, into: Command) -> None:
    for action in parser._actions:
        choices = [str(choice) for choice in action.choices or ()]
        if isinstance(action, argparse._SubParsersAction):
            for told in action._choices_actions:
                below = Command(told.dest, "", told.help or "")
                _read(action.choices[told.dest], below)
                into.below.append(below)
        elif action.option_strings:
            takes_one = action.nargs is None
            value = str(action.metavar or "|".join(choices) or action.dest) if takes_one else ""
            into.flags.append(Flag(list(action.option_strings), value, choices, action.help or ""))
        else:
            into.takes, into.choices = str(action.metavar or action.dest), choices
