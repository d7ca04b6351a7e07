"""A launcher for macOS: a `.command` file for the Finder, a plist for launchd. Pure.

Never sets an icon: on macOS it is not part of the file's text.
"""

from __future__ import annotations

import plistlib
from shlex import join, quote, split

from .launcher import MARK, CannotWrite, Launcher, signed, storable

LABEL = "hermes-supervise.recover"
ASKED = "# finishes leftovers at login\n"


def command_file(launcher: Launcher) -> str:
    """A double click opens it in a terminal, where notices can be read."""
    storable([launcher.name, launcher.folder, *launcher.words()])
    change_folder = f"cd {quote(launcher.folder)} || exit\n" if launcher.folder else ""
    asked = ASKED if launcher.autostart else ""
    return signed(f"#!/bin/sh\n# {MARK}\n{asked}{change_folder}exec {join(launcher.words())}\n")


def command_words(text: str) -> list[str]:
    """The command line in a `.command` file, as far as it is still as we wrote it."""
    lines = [line for line in text.splitlines() if line.startswith("exec ")]
    try:
        return split(lines[-1])[1:] if lines else []
    except ValueError:
        return []  # somebody has edited it


def login_agent(supervisor: list[str]) -> str:
    """A property list that runs `recover` at login."""
    words = [*supervisor, "recover", "--notify"]
    storable(words)
    properties = {"Label": LABEL, "ProgramArguments": words, "RunAtLoad": True}
    try:
        text = plistlib.dumps(properties).decode()
    except ValueError as why:
        raise CannotWrite(str(why)) from None
    head, begin, rest = text.partition("<plist")
    return signed(f"{head}<!-- {MARK} -->\n{begin}{rest}")
