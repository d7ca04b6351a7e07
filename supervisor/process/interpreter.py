"""Which Python a command line runs, as far as that can be known without running it.

Never starts anything.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil

# With one of these Python does not read PYTHONPATH, or no sitecustomize on it.
_DEAF = {"I": "isolated", "E": "ignores the environment", "S": "runs without site"}
_TAKES_A_VALUE = ("-W", "-X", "--check-hash-based-pycs")
# How pip writes a first line that would be too long for the kernel.
_LONG_FIRST_LINE = re.compile(r"""^'''exec' +("[^"]+"|\S+) +"\$0" +"\$@"$""", re.M)


class Interpreter:
    """A Python, the options it gets, and the file it is to run, if it is a file."""

    def __init__(self, python: str, options: list[str], entry: str | None) -> None:
        self.python = python
        self.options = options
        self.entry = entry

    @property
    def deaf(self) -> str | None:
        """The option that keeps the shim out, and what it does."""
        for option in self.options:
            if option.startswith("-") and not option.startswith("--"):
                for letter in option[1:]:
                    if letter in _DEAF:
                        return f"-{letter} ({_DEAF[letter]})"
        return None


def of(command: list[str]) -> Interpreter | None:
    """The interpreter a command runs; None if it is no Python, or if that cannot be known."""
    path = shutil.which(command[0])
    if path is None:
        return None
    if is_python(path):
        return _called(path, command[1:])
    try:
        with open(path, "rb") as file:
            text = file.read(4096).decode("utf-8", "replace")
    except OSError:
        return None
    if not text.startswith("#!"):
        return None
    long = _LONG_FIRST_LINE.search(text)
    try:
        words = shlex.split(long[1] if long else text[2:].partition("\n")[0])
    except ValueError:
        return None
    if words and os.path.basename(words[0]) == "env":
        words = words[1:]
        while words and (words[0].startswith("-") or "=" in words[0]):
            del words[0]
    python = shutil.which(words[0]) if words else None
    if python is None or not is_python(python):
        return None
    return Interpreter(python, _called(python, words[1:]).options, path)


def is_python(path: str) -> bool:
    return os.path.basename(path).startswith(("python", "pypy"))


def _called(python: str, words: list[str]) -> Interpreter:
    options: list[str] = []
    index = 0
    while index < len(words) and words[index].startswith("-") and words[index] not in ("-m", "-c"):
        taken = 2 if words[index] in _TAKES_A_VALUE else 1
        options += words[index : index + taken]
        index += taken
    entry = words[index] if index < len(words) and not words[index].startswith("-") else None
    return Interpreter(python, options, entry)
