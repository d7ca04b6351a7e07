"""`hermes-supervise desktop`: launchers that start an agent under supervision, and a unit for it
as a service.

Never touches a launcher of anybody else's: one that is wrapped is hidden by ours, and is back when
ours is removed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys

from ..desktop import entry, files, systemd
from ..desktop.launcher import CHANGED, CannotWrite, Launcher
from ..text import printable


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="hermes-supervise desktop",
        description="Launchers that start an agent under supervision.",
    )
    what = made.add_subparsers(dest="what", metavar="install|remove|list|systemd", required=True)
    installing = what.add_parser(
        "install",
        help="write a launcher for COMMAND, or one around an existing launcher",
        usage="%(prog)s [OPTIONS] -- COMMAND [ARG...]",
    )
    installing.add_argument("--icon", metavar="ICON", help="a name from the theme, or a file")
    installing.add_argument(
        "--terminal",
        action=argparse.BooleanOptionalAction,
        help="whether it runs in a terminal (default: as the existing launcher says, or else yes)",
    )
    installing.add_argument(
        "--autostart-recover", action="store_true", help="at login, finish what a crash has left"
    )
    removing = what.add_parser("remove", help="take away what install wrote, and nothing else")
    listing = what.add_parser("list", help="the launchers that install wrote")
    listing.add_argument("--json", action="store_true", help="print JSON, for programs")
    printing = what.add_parser(
        "systemd",
        help="print a user unit that runs COMMAND as a service",
        usage="%(prog)s [OPTIONS] -- COMMAND [ARG...]",
    )
    for one in (installing, removing, printing):
        one.add_argument("--name", metavar="NAME", help="what it is called")
    for one in (installing, removing):
        one.add_argument("--force", action="store_true", help="even if it was changed since")
    for one in (installing, printing):
        one.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND",
                         help="a command line, or the id or path of a .desktop file")  # fmt: skip
    return made


def main(arguments: list[str]) -> int:
    # argparse's own ways with `--` differ between releases of Python.
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    wanted = parser().parse_args(arguments[:cut])
    behind = arguments[cut:] if getattr(wanted, "command", None) else arguments[cut + 1 :]
    command = [*getattr(wanted, "command", []), *behind]
    try:
        if wanted.what == "list":
            return _list(as_json=wanted.json)
        if wanted.what == "remove":
            return _remove(wanted.name, force=wanted.force)
        if not command:
            raise CannotWrite("no command given; see hermes-supervise desktop --help")
        launcher = _launcher(wanted, command)
        if wanted.what == "systemd":
            print(systemd.unit(launcher), end="")
            return 0
        return _install(launcher, force=wanted.force)
    except CannotWrite as why:
        print(f"hermes-supervise: {printable(str(why))}", file=sys.stderr)
        return 1


def _launcher(wanted: argparse.Namespace, command: list[str]) -> Launcher:
    wraps = files.wrapped(command)
    if wraps is not None:
        command = entry.arguments(wraps.raw("Exec") or "")
    program = shutil.which(command[0]) if command else None
    if program is None:
        raise CannotWrite(f"{command[0] if command else wraps}: not found")
    # A desktop's PATH is rarely that of a shell, and neither is its folder.
    here = any(not os.path.isabs(word) and os.path.isfile(word) for word in command[1:])
    command = [os.path.abspath(program), *command[1:]]
    made = Launcher(os.path.basename(program), _ourselves(), command, icon="utilities-terminal")
    made.wraps = wraps
    made.folder = os.getcwd() if here else ""
    if wraps is not None:
        made.name, made.icon, made.folder = map(wraps.get, ("Name", "Icon", "Path"))
        made.terminal = wraps.says("Terminal")
    made.name = wanted.name or made.name
    if wanted.what == "systemd":
        return made
    if wanted.icon:
        made.icon = os.path.abspath(wanted.icon) if os.path.exists(wanted.icon) else wanted.icon
        if "/" in made.icon and not os.path.exists(made.icon):
            raise CannotWrite(f"{made.icon}: no such icon")
    if wanted.terminal is not None:
        made.terminal = wanted.terminal
    made.autostart = wanted.autostart_recover
    return made


def _ourselves() -> list[str]:
    """Words that run us, wherever they are said."""
    name = os.path.basename(sys.argv[0])
    found = shutil.which(sys.argv[0]) if name == "hermes-supervise" else None
    if found is not None:
        return [os.path.abspath(found)]
    package = (__package__ or "").rpartition(".")[0]
    return [os.path.abspath(sys.executable), "-m", package]


def _install(launcher: Launcher, *, force: bool) -> int:
    made = files.files(launcher, files.place())
    files.write(made, force=force)
    for one in made:
        print(f"written: {printable(one.path)}")
    if launcher.wraps is not None and os.path.basename(made[0].path) == launcher.wraps.id:
        print(f"it takes the place of {printable(launcher.wraps.path)}, which is left as it is")
    elif launcher.wraps is not None and launcher.name == launcher.wraps.get("Name"):
        print(f"{printable(launcher.wraps.path)} is left as it is, and has the same name;")
        print("with --name the two can be told apart")
    return 0


def _remove(name: str | None, *, force: bool) -> int:
    removed, spared = files.remove(files.place(), name, force=force)
    for path in removed:
        print(f"removed: {printable(path)}")
    for path in spared:
        print(f"changed since we wrote it, and left: {printable(path)}; --force removes it")
    if not removed and not spared:
        print("there is no launcher of ours" + (f" named {printable(name)}" if name else ""))
    return 1 if spared or (name and not removed) else 0


def _list(*, as_json: bool) -> int:
    found = files.installed(files.place())
    if as_json:
        launchers = [
            {"name": one.name, "path": one.path, "changed": one.state == CHANGED,
             "recovers_at_login": one.autostart}
            for one in found
        ]  # fmt: skip
        print(json.dumps({"launchers": launchers}, indent=2))
        return 0
    for one in found:
        notes = ["changed since"] * (one.state == CHANGED) + ["recovers at login"] * one.autostart
        more = f"  ({', '.join(notes)})" if notes else ""
        print(f"{printable(one.name)}  {printable(one.path)}{more}")
    if not found:
        print("no launcher is installed")
    return 0
