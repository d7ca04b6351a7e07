"""Launcher files: finding those of others, and writing, listing and removing ours.

Never overwrites or removes a file that we did not write. Keeps a file that somebody has edited
since, unless the caller asks for it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from zlib import crc32

from ...ipc.endpoint import xdg_folder
from ...ipc.lightweight.dataclass import dataclass
from . import entry, mac, xdg
from .entry import Entry
from .launcher import CHANGED, FOREIGN, OURS, CannotWrite, File, Launcher, state_of

_PREFIX = "hermes-supervise-"


@dataclass
class Place:
    """Where a system keeps launchers, and the entry that runs at login."""

    launchers: str
    ending: str
    login: str


@dataclass
class InstalledLauncher:
    """A launcher that we wrote, as it is now."""

    name: str
    path: str
    state: str
    autostart: bool
    command: str
    """The agent's command line."""


def place(system: str = sys.platform) -> Place:
    if system == "darwin":
        agents = os.path.expanduser("~/Library/LaunchAgents")
        login = os.path.join(agents, f"{mac.LABEL}.plist")
        return Place(os.path.expanduser("~/Applications"), ".command", login)
    config = xdg_folder("XDG_CONFIG_HOME", "~/.config")
    login = os.path.join(config, "autostart", f"{_PREFIX}recover.desktop")
    return Place(os.path.join(_data_home(), "applications"), ".desktop", login)


def files(launcher: Launcher, where: Place) -> list[File]:
    """The files of this launcher."""
    if where.ending == ".command":
        path = os.path.join(where.launchers, launcher.name.replace("/", "-") + where.ending)
        needed = [File(path, mac.command_file(launcher), 0o755)]
        login = mac.login_agent(launcher.supervisor)
    else:
        path = os.path.join(where.launchers, id_of(launcher, where))
        needed = [File(path, xdg.render(launcher))]
        login = xdg.render_autostart(launcher.supervisor)
    return needed + ([File(where.login, login)] if launcher.autostart else [])


def id_of(launcher: Launcher, where: Place) -> str:
    """The file name of a launcher.

    It is that of the wrapped launcher, which hides that one, so that menus show one entry. The
    user's own launchers cannot be hidden, and a launcher with another name is another launcher.
    """
    wraps = launcher.wraps
    if wraps is not None and launcher.name == wraps.get("Name"):
        theirs = os.path.join(where.launchers, wraps.id)
        hidden = os.path.abspath(wraps.path) != os.path.abspath(theirs)
        return wraps.id if hidden else f"{_PREFIX}{wraps.id}"
    name = launcher.name.lower()
    plain = "-".join("".join(c if c.isascii() and c.isalnum() else " " for c in name).split())
    unique = plain if plain == "-".join(name.split()) else f"{plain}-{crc32(name.encode()):08x}"
    return f"{_PREFIX}{unique.strip('-')}.desktop"


# -- those of others -------------------------------------------------------------------------


def wrapped(command: list[str]) -> Entry | None:
    """The existing launcher that is named by path or id, or that starts exactly this command."""
    if len(command) == 1 and command[0].endswith(".desktop"):
        return _named(command[0])
    for other in _others():
        if not other.says("Hidden") and _same(entry.arguments(other.raw("Exec") or ""), command):
            return other
    return None


def _named(name: str) -> Entry:
    if os.path.isfile(name):
        named = _read(os.path.basename(name), os.path.abspath(name))
        if named is None:
            raise CannotWrite(f"{name} was written by hermes-supervise, or cannot be read")
        return named
    named = next((other for other in _others() if other.id == name), None)
    if named is None:
        raise CannotWrite(f"no launcher is named {name}")
    return named


def _others() -> list[Entry]:
    """Launchers that we did not write, each id once: the user's before the system's."""
    system = os.environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share"
    known: dict[str, Entry] = {}
    for folder in [_data_home(), *filter(os.path.isabs, system.split(":"))]:
        top = os.path.join(folder, "applications")
        for at, _, names in sorted(os.walk(top)):
            for name in sorted(names):
                path = os.path.join(at, name)
                id = os.path.relpath(path, top).replace("/", "-")
                if name.endswith(".desktop") and id not in known:
                    other = _read(id, path)
                    if other is not None:
                        known[id] = other
    return list(known.values())


def _read(id: str, path: str) -> Entry | None:
    """None if we wrote it, or it is not a launcher."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError):
        return None
    parsed = entry.parse(id, path, text)
    is_launcher = state_of(text) == FOREIGN and parsed.raw("Exec") and parsed.raw("Name")
    return parsed if is_launcher else None


def _same(these: list[str], those: list[str]) -> bool:
    return bool(these) and these[1:] == those[1:] and _program(these[0]) == _program(those[0])


def _program(word: str) -> str:
    return os.path.realpath(shutil.which(word) or word)


def _data_home() -> str:
    return xdg_folder("XDG_DATA_HOME", "~/.local/share")


# -- ours ------------------------------------------------------------------------------------


def write(needed: list[File], *, force: bool) -> None:
    """Write all of them or none. Raises CannotWrite if another file is in the way."""
    for file in needed:
        state = _state(file.path)
        if state == FOREIGN:
            raise CannotWrite(f"{file.path} exists and was not written by hermes-supervise")
        if state == CHANGED and not force:
            raise CannotWrite(f"{file.path} was edited since it was written; --force overwrites it")
    for file in needed:
        folder = os.path.dirname(file.path)
        try:
            os.makedirs(folder, 0o700, exist_ok=True)
            draft = f"{file.path}.new"
            with open(draft, "w", encoding="utf-8") as output:
                output.write(file.text)
            os.chmod(draft, file.mode)
            os.replace(draft, file.path)
        except OSError as error:
            why = f"cannot use {folder}: {error.strerror or error}"
            raise OSError(why + _variable_that_moves(folder)) from error


def _variable_that_moves(folder: str) -> str:
    variables = {"applications": "XDG_DATA_HOME", "autostart": "XDG_CONFIG_HOME"}
    variable = variables.get(os.path.basename(folder))
    return f"; {variable} moves it" if variable else ""


def installed(where: Place) -> list[InstalledLauncher]:
    launchers = []
    names = os.listdir(where.launchers) if os.path.isdir(where.launchers) else []
    for name in sorted(names):
        path = os.path.join(where.launchers, name)
        state = _state(path) if name.endswith(where.ending) else None
        if state in (OURS, CHANGED):
            with open(path, encoding="utf-8", errors="replace") as file:
                text = file.read()
            if where.ending == ".desktop":
                parsed = entry.parse(name, path, text)
                shown, autostart = parsed.get("Name"), parsed.says(entry.AUTOSTART)
                words = entry.arguments(parsed.raw("Exec") or "")
            else:
                shown, autostart = name.removesuffix(where.ending), mac.ASKED in text
                words = mac.command_words(text)
            command = shlex.join(words[words.index("--") + 1 :] if "--" in words else words)
            launchers.append(InstalledLauncher(shown, path, str(state), autostart, command))
    return launchers


def remove(where: Place, name: str | None, *, force: bool) -> tuple[list[str], list[str]]:
    """Remove the launchers of this name, or all of ours (None), and the login entry once no
    launcher is left that asked for it. Returns what was removed, and what was kept because
    somebody had edited it."""
    every = installed(where)
    chosen = [it for it in every if name in (None, it.name, os.path.basename(it.path))]
    removed = [it.path for it in chosen if force or it.state == OURS]
    kept = [it.path for it in chosen if it.path not in removed]
    still_asked = any(it.autostart for it in every if it.path not in removed)
    if (chosen or name is None) and not still_asked:
        state = _state(where.login)
        if state == OURS or (force and state == CHANGED):
            removed.append(where.login)
        elif state == CHANGED:
            kept.append(where.login)
    for path in removed:
        os.unlink(path)
    return removed, kept


def _state(path: str) -> str | None:
    """The state of a file; None if there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            return state_of(file.read())
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        return FOREIGN
