"""pure: a launcher as macOS has it: a `.command` file for the Finder, a plist for launchd.

Never more than text: the icon of a file is no part of its text there, and is left as it is.
"""

from __future__ import annotations

import plistlib
from shlex import join, quote

from .launcher import MARK, CannotWrite, Launcher, signed, storable

LABEL = "hermes-supervise.recover"
ASKED = "# finishes leftovers at login\n"


def command_file(launcher: Launcher) -> str:
    """Opened with a double click, it runs in a terminal: what we say is read there."""
    storable([launcher.name, launcher.folder, *launcher.words()])
    first = f"cd {quote(launcher.folder)} || exit\n" if launcher.folder else ""
    asked = ASKED if launcher.autostart else ""
    return signed(f"#!/bin/sh\n# {MARK}\n{asked}{first}exec {join(launcher.words())}\n")


def login_agent(supervisor: list[str]) -> str:
    """At login: finish what an earlier session left."""
    words = [*supervisor, "recover", "--notify"]
    storable(words)
    told = {"Label": LABEL, "ProgramArguments": words, "RunAtLoad": True}
    try:
        made = plistlib.dumps(told).decode()
    except ValueError as why:
        raise CannotWrite(str(why)) from None
    head, begin, rest = made.partition("<plist")
    return signed(f"{head}<!-- {MARK} -->\n{begin}{rest}")
