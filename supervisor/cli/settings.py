"""config.toml: settings for every run, overridden by variables and flags.

Never keeps the agent from running: errors are reported with file, line and key, and the rest of the
file is used. Never reads a file that others can write, because hooks in it are commands.

Importing `tomllib` takes two thirds of a launch. So the values of a valid file are cached next to
the runs, as the text of flags, together with the file's identity (inode, size, times). While that
stays the same, the file is not parsed again.
"""

from __future__ import annotations

import os
import stat
import time

from ...ipc import endpoint
from .options import BY_NAME, Option, UsageError, begin, put, suggestion, value_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..model.options import Options

_MAX_SIZE = 1024 * 1024
_CACHE_FORMAT = "1"
# A file that changes twice within a tick of its clock has the same times after both.
_TICK = 2.0


class Entry:
    """A value in the file, as the text of a flag, and its line."""

    def __init__(self, name: str, text: str, line: int) -> None:
        self.name = name
        self.text = text
        self.line = line


def from_file(options: Options, path: str) -> list[str]:
    """Set the options from the file. Returns what is wrong with it."""
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
    """The valid values in the file, and what is wrong with the rest."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(fd)
            if (why := _untrusted(status)) is not None:
                return [], [f"{path}: {why}; the file is ignored"]
            identity = _identity(status)
            if (cached := _from_cache(identity)) is not None:
                return cached, []
            data = os.read(fd, _MAX_SIZE + 1)
        finally:
            os.close(fd)
    except OSError as error:
        return [], [f"{path}: {error.strerror or error}; the file is ignored"]
    entries, problems = _parse(data, path)
    if not problems and time.time() - max(status.st_mtime, status.st_ctime) > _TICK:
        _write_cache(identity, entries)
    return entries, problems


def _untrusted(status: os.stat_result) -> str | None:
    """Why this file is not used; None if it is fine."""
    if not stat.S_ISREG(status.st_mode):
        return "not a file"
    if status.st_uid not in (os.getuid(), 0):
        return f"belongs to user {status.st_uid}"
    # Many systems give each user a group of the same number; such a group is the user alone.
    by_group = status.st_mode & stat.S_IWGRP and status.st_gid != status.st_uid
    if by_group or status.st_mode & stat.S_IWOTH:
        mode = status.st_mode & 0o777
        return f"others can write to it (mode {mode:o}; chmod go-w fixes that)"
    return None


def _parse(data: bytes, path: str) -> tuple[list[Entry], list[str]]:
    import tomllib  # start-up: see above

    if len(data) > _MAX_SIZE:
        return [], [f"{path}: too large; the file is ignored"]
    try:
        text = data.decode()
        document = tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return [], [f"{path}:{line}: not UTF-8; the file is ignored"]
    except tomllib.TOMLDecodeError as error:
        what, _, place = str(error).rpartition(" (at ")
        line_text = place.removeprefix("line ").partition(",")[0]
        number = line_text if line_text.isdecimal() else str(text.count("\n") + 1)
        return [], [f"{path}:{number}: not TOML: {what or error}; the file is ignored"]
    entries: list[Entry] = []
    problems = []
    for key, value in document.items():
        line_of_key = _line_of(key, text)
        where = f"{path}:{line_of_key}"
        option = BY_NAME.get(key)
        if option is None:
            problems.append(f"{where}: unknown key {key!r}{_suggestion(key)}")
            continue
        texts = _as_flags(option, value)
        try:
            if texts is None:
                raise UsageError(f"{where}: {key}: {value!r} is not {_kind(option)}")
            for flag_text in texts:
                value_of(option, flag_text, f"{where}: {key}")
        except UsageError as error:
            problems.append(str(error))
        else:
            entries += [Entry(key, flag_text, line_of_key) for flag_text in texts]
    return entries, problems


def _as_flags(option: Option, value: object) -> list[str] | None:
    """A value as the texts of flags; None if it has the wrong type."""
    if option.read is None:
        return [str(int(value))] if isinstance(value, bool) else None
    if option.is_number:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return [str(value)] if is_number else None
    texts = value if option.many else [value]
    if not isinstance(texts, list):
        return None
    return texts if all(isinstance(text, str) and "\0" not in text for text in texts) else None


def _kind(option: Option) -> str:
    if option.read is None:
        return "true or false"
    if option.is_number:
        return "a number of seconds" if option.value == "S" else "a number"
    return f'a list, as in ["{option.value}"]' if option.many else "a string"


def _suggestion(key: str) -> str:
    """Keys have underscores; people may write them as flags."""
    plain = key.lower().replace("-", "_")
    return f"; did you mean {plain}?" if plain in BY_NAME else suggestion(plain, BY_NAME)


def _line_of(key: str, text: str) -> int:
    """The line of a key, which `tomllib` does not report."""
    forms = (key, f'"{key}"', f"'{key}'")
    for number, line in enumerate(text.splitlines(), 1):
        head = line.split("=", 1)[0].strip().strip("[]").strip()
        if head in forms or head.split(".", 1)[0].strip() in forms:
            return number
    return 1


# -- the cache ----------------------------------------------------------------------------------


def _identity(status: os.stat_result) -> str:
    """What distinguishes one state of a file from another."""
    facts = (
        status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    )  # fmt: skip
    return " ".join(map(str, (_CACHE_FORMAT, *facts)))


def _from_cache(identity: str) -> list[Entry] | None:
    try:
        with open(_cache_file(), "rb") as file:
            words = file.read().decode().split("\0")
        if words.pop(0) != identity:
            return None
        entries = [Entry(*_entry(words[at : at + 3])) for at in range(0, len(words), 3)]
        for entry in entries:
            value_of(BY_NAME[entry.name], entry.text, "")
        return entries
    except (OSError, ValueError, KeyError, UsageError):
        return None  # missing, of another file, or from another version


def _entry(words: list[str]) -> tuple[str, str, int]:
    name, text, line = words
    return name, text, int(line)


def _write_cache(identity: str, entries: list[Entry]) -> None:
    words = [identity]
    for entry in entries:
        words += [entry.name, entry.text, str(entry.line)]
    try:
        path = _cache_file()
        draft = f"{path}.{os.getpid()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(draft, flags, 0o600)
        try:
            os.write(fd, "\0".join(words).encode())
        finally:
            os.close(fd)
        os.replace(draft, path)
    except OSError:
        pass  # the file is parsed again next time


def _cache_file() -> str:
    return os.path.join(endpoint.state_folder(), "settings")
