"""Long output goes through a pager, on a terminal and if there is one.

Never changes what is printed, and never fails because of a pager.
"""

from __future__ import annotations

import os
import shutil
import sys
from argparse import ArgumentParser


def add_option(parser: ArgumentParser) -> None:
    parser.add_argument("--no-pager", action="store_true", help="do not use a pager")


def show(lines: list[str], *, use_pager: bool = True) -> None:
    """Print the lines, through $PAGER (default: less) if they do not fit the screen."""
    command = _pager() if use_pager and _is_long(lines) else None
    if command is None:
        print("\n".join(lines))
        return
    import subprocess  # start-up: rarely needed

    env = {"LESS": "FRX", **os.environ}
    try:
        pager = subprocess.Popen(
            command, shell=True, env=env, stdin=subprocess.PIPE, text=True, errors="replace"
        )
    except OSError:
        print("\n".join(lines))
        return
    try:
        pager.communicate("\n".join(lines) + "\n")
    except (BrokenPipeError, KeyboardInterrupt):
        pager.wait()


def _is_long(lines: list[str]) -> bool:
    if not (sys.stdout.isatty() and sys.stdin.isatty()):
        return False
    try:
        return len(lines) >= os.get_terminal_size(sys.stdout.fileno()).lines
    except OSError:
        return False


def _pager() -> str | None:
    if os.environ.get("TERM", "dumb") == "dumb":
        return None
    chosen = os.environ.get("PAGER")
    if chosen is not None:
        return chosen if chosen.strip() not in ("", "cat") else None
    return "less" if shutil.which("less") else None
