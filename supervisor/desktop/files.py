"""Where launchers are: those of others found, ours written and taken away.

Never overwrites or removes what we did not write, nor what somebody has changed since, unless
that is asked for.
"""

from __future__ import annotations

import os
import shutil
import sys
from zlib import crc32

from ..plain import dataclass
from . import entry, mac
from .entry import Entry
from .launcher import CHANGED, FOREIGN, OURS, CannotWrite, File, Launcher, state_of

_PREFIX = "hermes-supervise-"


@dataclass
class Place:
    """Where a system has its launchers, and what it starts at login."""

    launchers: str
    ending: str
    login: str


@dataclass
class Found:
    """A launcher of ours as it is now."""

    name: str
    path: str
    state: str
    autostart: bool


def place(system: str = sys.platform) -> Place:
    if system == "darwin":
        agents = os.path.expanduser("~/Library/LaunchAgents")
        login = os.path.join(agents, f"{mac.LABEL}.plist")
        return Place(os.path.expanduser("~/Applications"), ".command", login)
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    login = os.path.join(config, "autostart", f"{_PREFIX}recover.desktop")
    return Place(os.path.join(_data_home(), "applications"), ".desktop", login)


def files(launcher: Launcher, where: Place) -> list[File]:
    """All that this launcher needs."""
    if where.ending == ".command":
        path = os.path.join(where.launchers, launcher.name.replace("/", "-") + where.ending)
        made = [File(path, mac.command_file(launcher), 0o755)]
        login = mac.login_agent(launcher.supervisor)
    else:
        path = os.path.join(where.launchers, id_of(launcher, where))
        made = [File(path, entry.render(launcher))]
        login = entry.render_autostart(launcher.supervisor)
    return made + ([File(where.login, login)] if launcher.autostart else [])


def id_of(launcher: Launcher, where: Place) -> str:
    """That of the launcher it wraps, which it then hides, so that menus and docks have one and
    not two. One of the user's own is hidden by nothing, and one of another name is another."""
    wraps = launcher.wraps
    if wraps is not None and launcher.name == wraps.get("Name"):
        theirs = os.path.join(where.launchers, wraps.id)
        hidden = os.path.abspath(wraps.path) != os.path.abspath(theirs)
        return wraps.id if hidden else f"{_PREFIX}{wraps.id}"
    name = launcher.name.lower()
    plain = "-".join("".join(c if c.isascii() and c.isalnum() else " " for c in name).split())
    told = plain if plain == "-".join(name.split()) else f"{plain}-{crc32(name.encode()):08x}"
    return f"{_PREFIX}{told.strip('-')}.desktop"


# -- those of others -------------------------------------------------------------------------


def wrapped(command: list[str]) -> Entry | None:
    """The launcher that is named by its path or its id, or that starts this very command."""
    if len(command) == 1 and command[0].endswith(".desktop"):
        return _named(command[0])
    for found in _others():
        if not found.says("Hidden") and _same(entry.arguments(found.raw("Exec") or ""), command):
            return found
    return None


def _named(name: str) -> Entry:
    if os.path.isfile(name):
        found = _read(os.path.basename(name), os.path.abspath(name))
        if found is None:
            raise CannotWrite(f"{name} is a launcher of ours already, or cannot be read")
        return found
    found = next((one for one in _others() if one.id == name), None)
    if found is None:
        raise CannotWrite(f"there is no launcher {name}")
    return found


def _others() -> list[Entry]:
    """Launchers that are not ours, each id once: the user's before the system's."""
    told = os.environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share"
    known: dict[str, Entry] = {}
    for folder in [_data_home(), *told.split(":")]:
        top = os.path.join(folder, "applications")
        for at, _, names in sorted(os.walk(top)):
            for name in sorted(names):
                path = os.path.join(at, name)
                id = os.path.relpath(path, top).replace("/", "-")
                if name.endswith(".desktop") and id not in known:
                    found = _read(id, path)
                    if found is not None:
                        known[id] = found
    return list(known.values())


def _read(id: str, path: str) -> Entry | None:
    """None for what is ours, or is none."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError):
        return None
    found = entry.parse(id, path, text)
    is_one = state_of(text) == FOREIGN and found.raw("Exec") and found.raw("Name")
    return found if is_one else None


def _same(these: list[str], those: list[str]) -> bool:
    return bool(these) and these[1:] == those[1:] and _program(these[0]) == _program(those[0])


def _program(word: str) -> str:
    return os.path.realpath(shutil.which(word) or word)


def _data_home() -> str:
    return os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")


# -- ours ------------------------------------------------------------------------------------


def write(made: list[File], *, force: bool) -> None:
    """All of them or none. Raises CannotWrite where something else is in the way."""
    for one in made:
        state = _state(one.path)
        if state == FOREIGN:
            raise CannotWrite(f"{one.path} is there, and is not ours")
        if state == CHANGED and not force:
            raise CannotWrite(f"{one.path} was changed since we wrote it; --force writes it anew")
    for one in made:
        os.makedirs(os.path.dirname(one.path), 0o700, exist_ok=True)
        new = f"{one.path}.new"
        with open(new, "w", encoding="utf-8") as file:
            file.write(one.text)
        os.chmod(new, one.mode)
        os.replace(new, one.path)


def installed(where: Place) -> list[Found]:
    found = []
    names = os.listdir(where.launchers) if os.path.isdir(where.launchers) else []
    for name in sorted(names):
        path = os.path.join(where.launchers, name)
        state = _state(path) if name.endswith(where.ending) else None
        if state in (OURS, CHANGED):
            with open(path, encoding="utf-8", errors="replace") as file:
                text = file.read()
            if where.ending == ".desktop":
                read = entry.parse(name, path, text)
                shown, asked = read.get("Name"), read.says(entry.AUTOSTART)
            else:
                shown, asked = name.removesuffix(where.ending), mac.ASKED in text
            found.append(Found(shown, path, str(state), asked))
    return found


def remove(where: Place, name: str | None, *, force: bool) -> tuple[list[str], list[str]]:
    """Take away the launchers of this name, or all of ours, and what runs at login once no
    launcher is left that asked for it: what was removed, and what was not, being changed."""
    every = installed(where)
    chosen = [one for one in every if name in (None, one.name, os.path.basename(one.path))]
    doomed = [one.path for one in chosen if force or one.state == OURS]
    spared = [one.path for one in chosen if one.path not in doomed]
    still_asked = any(one.autostart for one in every if one.path not in doomed)
    if (chosen or name is None) and not still_asked:
        state = _state(where.login)
        if state == OURS or (force and state == CHANGED):
            doomed.append(where.login)
        elif state == CHANGED:
            spared.append(where.login)
    for path in doomed:
        os.unlink(path)
    return doomed, spared


def _state(path: str) -> str | None:
    """Of the file there; None if there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            return state_of(file.read())
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        return FOREIGN
