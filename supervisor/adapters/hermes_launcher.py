"""The launcher script of Hermes' installer, seen through.

Never runs it: the script clears PYTHONPATH before it starts Hermes, and the shim with it, so
the interpreter and the entry point that it names are started instead.
"""

from __future__ import annotations

import os

NAMES = ("hermes", "hermes-agent", "hermes-acp")
MODULES = ("hermes_cli", "run_agent", "acp_adapter", "tui_gateway")


def launched_directly(command: list[str]) -> list[str]:
    """The command that the script would have executed, or `command` if it is no such script."""
    try:
        with open(_on_path(command[0]), "rb") as file:
            text = file.read(8192).decode("utf-8", "replace")
    except OSError:
        return command
    if not text.startswith("#!") or "unset PYTHONPATH" not in text:
        return command
    import re

    found = re.search(r'^\s*exec\s+"([^"$]+)"\s+"([^"$]+)"\s+"\$@"\s*$', text, re.M)
    return [found[1], found[2], *command[1:]] if found else command


def is_hermes(command: list[str]) -> bool:
    """Whether a command line says by itself that it runs Hermes."""
    words = [os.path.basename(word) for word in command]
    if not words:
        return False
    if words[0] in NAMES:
        return True
    if not words[0].startswith(("python", "pypy")):
        return False
    for index, word in enumerate(words[1:], 1):
        if word == "-m":
            return any(name.split(".")[0] in MODULES for name in command[index + 1 : index + 2])
        if not word.startswith("-"):
            return word in NAMES
    return False


def container() -> str | None:
    """The container that Hermes hands over to instead of running here, by name."""
    inside = os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv")
    if inside or os.environ.get("HERMES_DEV") == "1":
        return None
    home = os.environ.get("HERMES_HOME") or os.path.expanduser("~/.hermes")
    try:
        with open(os.path.join(home, ".container-mode"), encoding="utf-8") as file:
            fields = dict(line.strip().split("=", 1) for line in file if "=" in line)
    except (OSError, ValueError):
        return None
    return fields.get("container_name", "hermes-agent")


def _on_path(name: str) -> str:
    if "/" in name:
        return name
    for folder in os.get_exec_path():
        if os.access(os.path.join(folder, name), os.X_OK):
            return os.path.join(folder, name)
    return name
