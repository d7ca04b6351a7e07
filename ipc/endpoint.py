"""Where the two ends meet: variable names, private folders, the socket's path, whose it is.

Never reads or writes a message.
"""

from __future__ import annotations

import os
import stat

# What a supervised process finds in its environment.
SOCKET_VARIABLE = "HERMES_SUPERVISE_SOCKET"
SPOOL_VARIABLE = "HERMES_SUPERVISE_SPOOL"
RUN_VARIABLE = "HERMES_SUPERVISE_RUN"
RESUMED_VARIABLE = "HERMES_SUPERVISE_RESUMED"
SWITCH_VARIABLE = "HERMES_SUPERVISE"

# Linux gives sun_path 108 bytes, macOS 104; both count the closing NUL.
LONGEST_PATH = 103


class NotPrivate(OSError):
    """A folder that someone else could read, write or have put there."""


def private_folder(path: str) -> str:
    """Make sure `path` is a folder that is ours alone, making it if it is missing."""
    try:
        try:
            os.mkdir(path, 0o700)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            os.mkdir(path, 0o700)
        # Synced names in it would be lost with its own. Where that cannot be done, so be it.
        try:
            sync_folder(os.path.dirname(path))
        except OSError:
            pass
    except FileExistsError:
        pass  # it was there, or another start was quicker
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise NotPrivate(f"{path} is not a folder")
    if found.st_uid != os.getuid():
        raise NotPrivate(f"{path} belongs to user {found.st_uid}")
    if found.st_mode & 0o077:
        raise NotPrivate(f"{path} is open to others (mode {found.st_mode & 0o777:o}); chmod 700 it")
    return path


def runtime_folder() -> str:
    """The folder for sockets; short, because a socket's path must be."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and os.path.isdir(base):
        folder = os.path.join(base, "hermes-supervise")
        if len(os.fsencode(folder)) <= LONGEST_PATH - 40:
            return private_folder(folder)
    return private_folder(f"/tmp/hermes-supervise-{os.getuid()}")


def socket_path(run: str) -> str:
    return os.path.join(runtime_folder(), run + ".sock")


def state_folder() -> str:
    """The folder for runs and reports."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return private_folder(os.path.join(base, "hermes-supervise"))


def process_start(pid: int) -> int | None:
    """When a process began, in clock ticks since boot: with the pid, its identity.

    None where there is no /proc, and for a process that is gone.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
        # The name in parentheses may hold anything; the fields count from behind it.
        return int(line[line.rindex(b")") + 2 :].split()[19])
    except (OSError, ValueError, IndexError) as error:
        _unless_the_agents(error)
        return None


def _unless_the_agents(error: Exception) -> None:
    from .handlers import is_the_agents

    if is_the_agents(error):
        raise error


def working_folder() -> str | None:
    try:
        return os.getcwd()
    except OSError as error:
        _unless_the_agents(error)
        return None


def identity(fd: int) -> tuple[int, int] | None:
    """What a descriptor stands for, whatever its number stood for before."""
    try:
        found = os.fstat(fd)
    except OSError as error:
        _unless_the_agents(error)
        return None
    return found.st_dev, found.st_ino


def sync_file(path: str) -> None:
    """Make what anybody has written to a file last, and its name. What is no file is let be."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            os.fdatasync(fd)
    finally:
        os.close(fd)
    sync_folder(os.path.dirname(path))


def sync_folder(path: str) -> None:
    """Make the names in a folder last: a synced file that nobody can find is lost too."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
