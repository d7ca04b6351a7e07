"""config.toml: the settings that hold for every run, until a variable or a flag says otherwise.

Never keeps the agent from running: what is wrong in the file is told by file, line and key, and
the rest of it holds. And never believes a file that somebody else can write: the hooks in it
are commands.

Importing `tomllib` takes two thirds as long as a whole launch, so what was read from a file
without a fault is written down, as the words a flag would have, beside the runs, with what the
file system said of the file then. As long as it says the same, the file is not parsed again.
"""

from __future__ import annotations

import os
import stat
import time

from ..ipc import endpoint
from .options import BY_NAME, Option, UsageError, begin, meant, put, value_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .options import Options

_LARGEST = 1024 * 1024
_FORM = "1"
# A file that changes twice within a tick of its clock looks the same after both.
_TICK = 2.0


class Entry:
    """A value in the file, as a flag would have it, and the line it stands in."""

    def __init__(self, name: str, text: str, line: int) -> None:
        self.name = name
        self.text = text
        self.line = line


def from_file(options: Options, path: str) -> list[str]:
    """Take what the file says into `options`; what is wrong with it."""
    entries, problems = read(path)
    begun: set[str] = set()
    for entry in entries:
        option = BY_NAME[entry.name]
        if entry.name not in begun:
            begin(options, option)
            begun.add(entry.name)
        put(options, option, entry.text, f"{path}:{entry.line}: {entry.name}")
    return problems


def read(path: str) -> tuple[list[Entry], list[str]]:
    """What is in the file and can be used, and what is wrong with the rest."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            found = os.fstat(fd)
            wrong = _not_to_be_believed(found)
            if wrong:
                return [], [f"{path}: {wrong}; none of it is used"]
            look = _look(found)
            if (known := _remembered(look)) is not None:
                return known, []
            data = os.read(fd, _LARGEST + 1)
        finally:
            os.close(fd)
    except OSError as error:
        return [], [f"{path}: {error.strerror or error}; none of it is used"]
    entries, problems = _understood(data, path)
    if not problems and time.time() - max(found.st_mtime, found.st_ctime) > _TICK:
        _remember(look, entries)
    return entries, problems


def _not_to_be_believed(found: os.stat_result) -> str | None:
    if not stat.S_ISREG(found.st_mode):
        return "not a file"
    if found.st_uid not in (os.getuid(), 0):
        return f"belongs to user {found.st_uid}"
    # Where everybody has a group of his own, of his own number, files are open to that group.
    by_group = found.st_mode & stat.S_IWGRP and found.st_gid != found.st_uid
    if by_group or found.st_mode & stat.S_IWOTH:
        return f"others can write to it (mode {found.st_mode & 0o777:o}); chmod go-w it"
    return None


def _understood(data: bytes, path: str) -> tuple[list[Entry], list[str]]:
    import tomllib

    if len(data) > _LARGEST:
        return [], [f"{path}: larger than any settings; none of it is used"]
    try:
        text = data.decode()
        told = tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return [], [f"{path}:{line}: not UTF-8; none of the file is used"]
    except tomllib.TOMLDecodeError as error:
        what, _, where = str(error).rpartition(" (at ")
        told_line = where.removeprefix("line ").partition(",")[0]
        number = told_line if told_line.isdecimal() else str(text.count("\n") + 1)
        return [], [f"{path}:{number}: not TOML: {what or error}; none of the file is used"]
    entries: list[Entry] = []
    problems = []
    for key, value in told.items():
        line_of_key = _line_of(key, text)
        where = f"{path}:{line_of_key}"
        option = BY_NAME.get(key)
        if option is None:
            problems.append(f"{where}: unknown key {key!r}{_meant(key)}")
            continue
        texts = _as_flags(option, value)
        try:
            if texts is None:
                raise UsageError(f"{where}: {key}: {value!r} is not {_kind(option)}")
            for one in texts:
                value_of(option, one, f"{where}: {key}")
        except UsageError as error:
            problems.append(str(error))
        else:
            entries += [Entry(key, one, line_of_key) for one in texts]
    return entries, problems


def _as_flags(option: Option, value: object) -> list[str] | None:
    """A value as flags would have it; None if it is of another kind."""
    if option.read is None:
        return [str(int(value))] if isinstance(value, bool) else None
    if option.is_number:
        is_one = isinstance(value, int | float) and not isinstance(value, bool)
        return [str(value)] if is_one else None
    texts = value if option.many else [value]
    if not isinstance(texts, list):
        return None
    return texts if all(isinstance(one, str) and "\0" not in one for one in texts) else None


def _kind(option: Option) -> str:
    if option.read is None:
        return "true or false"
    if option.is_number:
        return "a number of seconds" if option.value == "S" else "a number"
    return f'a list, as in ["{option.value}"]' if option.many else "a string"


def _meant(key: str) -> str:
    """Keys are written with underscores, as the hooks are that some of them name."""
    plain = key.lower().replace("-", "_")
    return f" ({plain}?)" if plain in BY_NAME else meant(plain, BY_NAME)


def _line_of(key: str, text: str) -> int:
    """`tomllib` does not say where it found a key."""
    forms = (key, f'"{key}"', f"'{key}'")
    for number, line in enumerate(text.splitlines(), 1):
        head = line.split("=", 1)[0].strip().strip("[]").strip()
        if head in forms or head.split(".", 1)[0].strip() in forms:
            return number
    return 1


# -- what was read before ----------------------------------------------------------------------


def _look(found: os.stat_result) -> str:
    """What tells one state of a file from another."""
    seen = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    return " ".join(map(str, (_FORM, *seen)))


def _remembered(look: str) -> list[Entry] | None:
    try:
        with open(_memory(), "rb") as file:
            words = file.read().decode().split("\0")
        if words.pop(0) != look:
            return None
        entries = [Entry(*_entry(words[at : at + 3])) for at in range(0, len(words), 3)]
        for entry in entries:
            value_of(BY_NAME[entry.name], entry.text, "")
        return entries
    except (OSError, ValueError, KeyError, UsageError):
        return None  # none, another, or from a version with other settings


def _entry(words: list[str]) -> tuple[str, str, int]:
    name, text, line = words
    return name, text, int(line)


def _remember(look: str, entries: list[Entry]) -> None:
    words = [look]
    for entry in entries:
        words += [entry.name, entry.text, str(entry.line)]
    try:
        path = _memory()
        draft = f"{path}.{os.getpid()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(draft, flags, 0o600)
        try:
            os.write(fd, "\0".join(words).encode())
        finally:
            os.close(fd)
        os.replace(draft, path)
    except OSError:
        pass  # then it is parsed again


def _memory() -> str:
    return os.path.join(endpoint.state_folder(), "settings")
