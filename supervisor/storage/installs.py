"""What is known about installed agents: which parts of each will not be captured.

A launch reads one small file, so that it can warn the user before the agent starts. `doctor` writes
it, and so does a run that learned it from the agent itself. Never used for another install: it is
valid only while the files that it names have not changed.

    installs/<name>    the words that start the agent, on one line
                       <mtime in ns> <size> <path>, a line for each file that was looked at
                       an empty line
                       what to tell the user; nothing if everything is captured
"""

from __future__ import annotations

import os
import zlib

from ...ipc import endpoint

_BETWEEN = "\x1f"


def known(start: list[str]) -> str | None:
    """What to tell the user before this agent starts: "" if everything is captured, None if
    nobody has looked since it was installed. `start`: what runs it, without its arguments."""
    try:
        with open(_path(start), encoding="utf-8") as file:
            head, _, text = file.read().partition("\n\n")
    except (OSError, ValueError):
        return None
    lines = head.split("\n")
    if lines[0] != _one_line(start):
        return None
    try:
        same = all(line == _state(line.split(" ", 2)[2]) for line in lines[1:])
    except (OSError, IndexError):
        return None
    return text.rstrip("\n") if same else None


def remember(start: list[str], files: list[str], text: str) -> None:
    """Write down what to tell the user. `files`: those that will change when the agent does."""
    folder = endpoint.private_folder(os.path.join(endpoint.state_folder(), "installs"))
    path = _path(start)
    lines = [_one_line(start), *(_state(file) for file in files if "\n" not in file)]
    temporary = f"{path}.{os.getpid()}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n\n" + text.replace("\n", " ") + "\n")
    os.replace(temporary, os.path.join(folder, os.path.basename(path)))


def _path(start: list[str]) -> str:
    number = zlib.crc32(_one_line(start).encode("utf-8", "replace"))
    return os.path.join(endpoint.state_folder(), "installs", f"{number:08x}")


def _one_line(start: list[str]) -> str:
    return _BETWEEN.join(start).replace("%", "%25").replace("\n", "%0A")


def _state(path: str) -> str:
    status = os.stat(path)
    return f"{status.st_mtime_ns} {status.st_size} {path}"
