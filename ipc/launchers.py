"""Launcher scripts, read and not run: what they would execute.

Never runs a script, and understands it completely or not at all: a script with an unknown word is
left alone. What is understood is a shell script that clears variables and then executes a fixed
command line followed by its own arguments; that may be another such script. Installers write
scripts of this kind.
"""

from __future__ import annotations

import os

from . import isolation

_MOST_HOPS = 4
_MOST_BYTES = 65536
_LONGEST_FIRST_LINE = 1024
_SHELLS = ("sh", "bash", "dash")
_ALL_ARGUMENTS = '"$@"'
# Unquoted, these mean something to a shell.
_SPECIAL = frozenset("|&<>()$`*?[]{}~!\r")


class Launcher:
    """What a chain of scripts ends in."""

    def __init__(self, command: list[str], unset: frozenset[str]) -> None:
        self.command = command
        self.unset = unset
        """The variables that the scripts clear on the way."""

    @property
    def keeps_us_out(self) -> bool:
        isolated = is_python(self.command[0]) and isolation.switches(self.command)
        return "PYTHONPATH" in self.unset or bool(isolated)


def followed(command: list[str]) -> Launcher | str | None:
    """Where the scripts behind a command lead, or why that is not known; None if there is no
    script."""
    current = command
    unset: set[str] = set()
    for _ in range(_MOST_HOPS):
        path = on_path(current[0])
        try:
            with open(path, "rb") as file:
                text = file.read(_MOST_BYTES).decode("utf-8", "replace")
        except OSError as error:
            return None if current is command else f"{path}: {error.strerror or error}"
        interpreter = _named_by(text) if text.startswith("#!") else os.path.basename(path)
        if interpreter not in _SHELLS:
            if current is command:
                return None
            if not is_python(interpreter):
                return f"{path} is neither a Python nor a script of a known shape"
            return Launcher(current, frozenset(unset))
        words = _executed(text, unset)
        if words is None:
            return f"{path} is a script of unknown shape"
        current = [*words, *current[1:]]
    return f"{command[0]}: more than {_MOST_HOPS} scripts behind one another"


def admitting(
    command: list[str], env: dict[str, str], folder: str
) -> tuple[list[str], dict[str, str]]:
    """What to start instead of `command` so that the shim's `folder` is on the path of the Python
    behind it, as a command line and an environment; unchanged if nothing is in the way of that,
    or if what is in the way is not understood."""
    launcher = None if is_python(command[0]) else followed(command)
    if isinstance(launcher, Launcher) and launcher.keeps_us_out:
        env = {name: value for name, value in env.items() if name not in launcher.unset}
        if "PYTHONPATH" in launcher.unset:
            env["PYTHONPATH"] = folder  # and nothing else: the script would have cleared it
        command = launcher.command
    if not is_python(command[0]):
        return command, env
    return isolation.admitting(command, env, folder) or (command, env)


def is_python(path: str) -> bool:
    return os.path.basename(path).startswith(("python", "pypy"))


def on_path(name: str) -> str:
    if "/" in name:
        return name
    for folder in os.get_exec_path():
        if os.access(os.path.join(folder, name), os.X_OK):
            return os.path.join(folder, name)
    return name


def first_line(path: str) -> list[str]:
    """The words of a script's first line that name its interpreter; none if it has no such."""
    try:
        with open(path, "rb") as file:
            text = file.read(_LONGEST_FIRST_LINE).decode("utf-8", "replace")
    except OSError:
        return []
    return _first_line(text) if text.startswith("#!") else []


def _first_line(text: str) -> list[str]:
    words = text.partition("\n")[0][2:].split()
    if words and os.path.basename(words[0]) == "env":
        del words[0]
        while words and (words[0].startswith("-") or "=" in words[0]):
            del words[0]
    return words


def _named_by(text: str) -> str:
    """The program that a script's first line names, also behind `env`."""
    if text.partition("\n")[2].startswith("'''exec' "):
        return "python"  # as pip and uv write it, if its path is long or relative
    return os.path.basename("".join(_first_line(text)[:1]))


def _executed(text: str, unset: set[str]) -> list[str] | None:
    """The words that a script executes with its own arguments behind them, if that and clearing
    variables is all it does; None if not. Adds to `unset` what it clears."""
    statements = _statements(text)
    if not statements:
        return None
    *before, last = statements
    for words in before:
        if words[0] != "unset" or any(word.startswith("-") for word in words):
            return None
        unset.update(words[1:])
    if last[0] != "exec" or last[-1] is not _ALL_ARGUMENTS or len(last) < 3:
        return None
    words = last[1:-1]
    given = any(word is _ALL_ARGUMENTS for word in words)
    return None if given or words[0].startswith("-") or "/" not in words[0] else words


def _statements(text: str) -> list[list[str]] | None:
    """A script as lists of words; None if it holds more than words, quotes and "$@".

    `shlex` would do half of this, and costs a start more than the rest of it.
    """
    statements: list[list[str]] = []
    words: list[str] = []
    word: str | None = None
    index = 0
    while index < len(text):
        letter = text[index]
        index += 1
        if letter == "#" and word is None:
            index = text.find("\n", index)
            if index < 0:
                break
        elif letter in " \t\n;":
            if word is not None:
                words.append(word)
                word = None
            if letter in "\n;" and words:
                statements.append(words)
                words = []
        elif letter == "'":
            end = text.find("'", index)
            if end < 0:
                return None
            word = (word or "") + text[index:end]
            index = end + 1
        elif letter == '"':
            if word is None and text.startswith('$@"', index):
                words.append(_ALL_ARGUMENTS)
                index += 3
                if text[index : index + 1] not in ("", " ", "\t", "\n", ";"):
                    return None
                continue
            quoted = _quoted(text, index)
            if quoted is None:
                return None
            word = (word or "") + quoted[0]
            index = quoted[1]
        elif letter == "\\":
            if index < len(text) and text[index] != "\n":
                word = (word or "") + text[index]
            index += 1
        elif letter in _SPECIAL:
            return None
        else:
            word = (word or "") + letter
    if word is not None:
        words.append(word)
    return [*statements, words] if words else statements


def _quoted(text: str, index: int) -> tuple[str, int] | None:
    """What stands between double quotes, and where it ends."""
    word = ""
    while index < len(text):
        letter = text[index]
        index += 1
        if letter == '"':
            return word, index
        if letter == "\\" and text[index : index + 1] in ('"', "\\", "$", "`"):
            word += text[index]
            index += 1
        elif letter == "$":
            name = next((n for n in ("HOME", "{HOME}") if text.startswith(n, index)), None)
            follows = text[index + len(name or "") :][:1]
            if name is None or follows.isalnum() or follows == "_" or "HOME" not in os.environ:
                return None
            word += os.environ["HOME"]
            index += len(name)
        elif letter == "`":
            return None
        else:
            word += letter
    return None
