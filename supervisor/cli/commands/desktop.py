"""`hermes-supervise desktop`: launchers that start an agent under supervision, and systemd units.

Never changes a launcher that somebody else wrote. A wrapped one is hidden by ours, and comes back
when ours is removed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys

from ...desktop import entry, files, systemd
from ...desktop.launcher import CHANGED, CannotWrite, Launcher
from ...model.text import printable
from ..errors import PROBLEMS, USAGE, CommandError, Parser
from ..output import style, table
from ..output.formatting import one_line
from ..output.table import Column, Row


def parser() -> argparse.ArgumentParser:
    command = Parser(
        prog="hermes-supervise desktop",
        description="Install launchers that start an agent under supervision.",
    )
    subcommands = command.add_subparsers(
        dest="subcommand", metavar="install|remove|list|systemd", required=True
    )
    installing = subcommands.add_parser(
        "install",
        help="write a launcher for COMMAND, or wrap an existing launcher",
        usage="%(prog)s [OPTIONS] -- COMMAND [ARG...]",
    )
    installing.add_argument(
        "--icon", metavar="ICON", help="an icon name from the theme, or an image file"
    )
    installing.add_argument(
        "--terminal",
        action=argparse.BooleanOptionalAction,
        help="run it in a terminal or not (default: as the wrapped launcher does, otherwise yes)",
    )
    installing.add_argument(
        "--autostart-recover", action="store_true", help="also run `recover` at each login"
    )
    removing = subcommands.add_parser(
        "remove", help="remove the files that install wrote, and nothing else"
    )
    listing = subcommands.add_parser("list", help="list the launchers that install wrote")
    style.add_options(listing)
    printing = subcommands.add_parser(
        "systemd",
        help="print a systemd user unit that runs COMMAND as a service",
        usage="%(prog)s [OPTIONS] -- COMMAND [ARG...]",
    )
    for sub in (installing, removing, printing):
        sub.add_argument("--name", metavar="NAME", help="name of the launcher or unit")
    for sub in (installing, removing):
        sub.add_argument("--force", action="store_true", help="even if the file was edited since")
    for sub in (installing, printing):
        sub.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND",
                         help="a command line, or the id or path of a .desktop file")  # fmt: skip
    return command


def main(argv: list[str]) -> int:
    # How argparse treats `--` differs between releases of Python.
    cut = argv.index("--") if "--" in argv else len(argv)
    args = parser().parse_args(argv[:cut])
    rest = argv[cut:] if getattr(args, "command", None) else argv[cut + 1 :]
    command = [*getattr(args, "command", []), *rest]
    try:
        if args.subcommand == "list":
            return _list(args)
        if args.subcommand == "remove":
            return _remove(args.name, force=args.force)
        if not command:
            raise CommandError("no command given; see `hermes-supervise desktop --help`", USAGE)
        launcher = _launcher(args, command)
        if args.subcommand == "systemd":
            print(systemd.unit(launcher), end="")
            return 0
        return _install(launcher, force=args.force)
    except CannotWrite as why:
        raise CommandError(str(why)) from None


def _launcher(args: argparse.Namespace, command: list[str]) -> Launcher:
    wraps = files.wrapped(command)
    if wraps is not None:
        command = entry.arguments(wraps.raw("Exec") or "")
    program = shutil.which(command[0]) if command else None
    if program is None:
        raise CannotWrite(f"{command[0] if command else wraps}: not found")
    # A desktop has another PATH and another folder than this shell.
    names_local_file = any(not os.path.isabs(w) and os.path.isfile(w) for w in command[1:])
    command = [os.path.abspath(program), *command[1:]]
    name = os.path.basename(program)
    launcher = Launcher(name, our_command(), command, icon="utilities-terminal")
    launcher.wraps = wraps
    launcher.folder = os.getcwd() if names_local_file else ""
    if wraps is not None:
        launcher.name, launcher.icon = wraps.get("Name"), wraps.get("Icon")
        launcher.folder = wraps.get("Path")
        launcher.terminal = wraps.says("Terminal")
    launcher.name = args.name or launcher.name
    if args.subcommand == "systemd":
        return launcher
    if args.icon:
        launcher.icon = os.path.abspath(args.icon) if os.path.exists(args.icon) else args.icon
        if "/" in launcher.icon and not os.path.exists(launcher.icon):
            raise CannotWrite(f"{launcher.icon}: no such icon")
    if args.terminal is not None:
        launcher.terminal = args.terminal
    launcher.autostart = args.autostart_recover
    return launcher


def our_command() -> list[str]:
    """The command line that runs hermes-supervise from any folder and with any PATH."""
    name = os.path.basename(sys.argv[0])
    script = shutil.which(sys.argv[0]) if name == "hermes-supervise" else None
    if script is not None:
        return [os.path.abspath(script)]
    package = (__package__ or "").rsplit(".", 2)[0]
    return [os.path.abspath(sys.executable), "-m", package]


def _install(launcher: Launcher, *, force: bool) -> int:
    needed = files.files(launcher, files.place())
    files.write(needed, force=force)
    for file in needed:
        print(f"written: {printable(file.path)}")
    wraps = launcher.wraps
    if wraps is not None and os.path.basename(needed[0].path) == wraps.id:
        print(f"it replaces {printable(wraps.path)} in menus; that file is not changed")
    elif wraps is not None and launcher.name == wraps.get("Name"):
        print(f"{printable(wraps.path)} has the same name and is not changed;")
        print("use --name to give this one another name")
    return 0


def _remove(name: str | None, *, force: bool) -> int:
    removed, kept = files.remove(files.place(), name, force=force)
    for path in removed:
        print(f"removed: {printable(path)}")
    for path in kept:
        print(f"edited since it was written, not removed: {printable(path)}; --force removes it")
    if not removed and not kept:
        print("no launcher to remove" + (f" is named {printable(name)}" if name else ""))
    return PROBLEMS if kept or (name and not removed) else 0


def _list(args: argparse.Namespace) -> int:
    installed = files.installed(files.place())
    if args.json:
        launchers = [
            {"name": launcher.name, "path": launcher.path, "command": launcher.command,
             "changed": launcher.state == CHANGED, "recovers_at_login": launcher.autostart}
            for launcher in installed
        ]  # fmt: skip
        print(json.dumps({"launchers": launchers}, indent=2))
        return 0
    if not installed:
        print("no launchers are installed")
        return 0
    columns = [Column("LAUNCHER"), Column("COMMAND", least=16), Column("AUTOSTART")]
    rows = []
    for launcher in installed:
        edited = " (edited since it was written)" if launcher.state == CHANGED else ""
        rows.append(
            Row(
                [
                    one_line(printable(launcher.name)),
                    one_line(printable(launcher.command)),
                    "recovers at login" if launcher.autostart else "no",
                ],
                {0: "bold"},
                [(f"{printable(launcher.path)}{edited}", "dim")],
            )
        )
    print("\n".join(table.render(columns, rows, style.for_output(args))))
    return 0
