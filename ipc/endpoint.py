"""Where the two ends meet: variable names, private folders, the socket's path, its owner.

Never reads or writes a message.
"""

from __future__ import annotations

import os
import stat

from .handlers import raised_by_signal_handler

# In the environment of a supervised process.
SOCKET_VARIABLE = "HERMES_SUPERVISE_SOCKET"
SPOOL_VARIABLE = "HERMES_SUPERVISE_SPOOL"
RUN_VARIABLE = "HERMES_SUPERVISE_RUN"
RESUMED_VARIABLE = "HERMES_SUPERVISE_RESUMED"
SWITCH_VARIABLE = "HERMES_SUPERVISE"
# How many starts of the agent by itself are above a process: the shim counts them.
DEPTH_VARIABLE = "HERMES_SUPERVISE_DEPTH"

# Linux gives sun_path 108 bytes, macOS 104; both count the closing NUL.
LONGEST_PATH = 103


class NotPrivate(OSError):
    """A folder that belongs to somebody else, or that others can read or write."""


def private_file(path: str, flags: int) -> int:
    """The `opener` of a file that is ours alone. A link in its place is not followed."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def private_folder(path: str) -> str:
    """Make sure `path` is a folder that is ours alone, making it if it is missing."""
    try:
        try:
            os.mkdir(path, 0o700)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            os.mkdir(path, 0o700)
        # If its own name were lost, synced names in it would be lost with it. If this fails,
        # nothing else does.
        try:
            sync_folder(os.path.dirname(path))
        except OSError:
            pass
    except FileExistsError:
        pass  # it was there, or another start has just made it
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        raise NotPrivate(f"{path} is not a folder")
    if status.st_uid != os.getuid():
        raise NotPrivate(f"{path} belongs to user {status.st_uid}")
    if status.st_mode & 0o077:
        raise NotPrivate(
            f"{path} is open to others (mode {status.st_mode & 0o777:o}); run: chmod 700 {path}"
        )
    return path


def is_same_file(fd: int, path: str) -> bool:
    """True if the path still leads to the file that is open: it may have been removed."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def runtime_folder() -> str:
    """The folder for sockets; short, because a socket's path must be."""
    base = xdg_folder("XDG_RUNTIME_DIR")
    if base and os.path.isdir(base):
        folder = os.path.join(base, "hermes-supervise")
        if len(os.fsencode(folder)) <= LONGEST_PATH - 40:
            return private_folder(folder)
    try:
        return private_folder(f"/tmp/hermes-supervise-{os.getuid()}")
    except NotPrivate:
        # Anybody can take that name first. Nobody else can take one in the state folder.
        own = os.path.join(state_folder(), "sockets")
        if len(os.fsencode(own)) > LONGEST_PATH - 40:
            raise
        return private_folder(own)


def socket_path(run: str) -> str:
    return os.path.join(runtime_folder(), run + ".sock")


def state_folder() -> str:
    """The folder for runs and reports."""
    path = os.path.join(xdg_folder("XDG_STATE_HOME", "~/.local/state"), "hermes-supervise")
    try:
        return private_folder(path)
    except NotPrivate:
        raise
    except OSError as error:
        why = error.strerror or str(error)
        raise OSError(f"cannot use {path}: {why}; XDG_STATE_HOME moves it") from error


def xdg_folder(variable: str, default: str = "") -> str:
    """The folder that a variable names, or else the default. A relative path is ignored, as the
    XDG specification asks: two processes in different folders would mean different folders."""
    base = os.environ.get(variable, "")
    return base if os.path.isabs(base) else os.path.expanduser(default)


def process_start(pid: int) -> int | None:
    """When a process began, in clock ticks since boot: with the pid, its identity.

    None where there is no /proc, and for a process that is gone. In a /proc of another pid
    namespace our pid is another process, but `self` is always us.
    """
    who = "self" if pid == os.getpid() else pid
    try:
        with open(f"/proc/{who}/stat", "rb") as file:
            line = file.read()
        # The name in parentheses may hold anything; the fields are counted after it.
        return int(line[line.rindex(b")") + 2 :].split()[19])
    except (OSError, ValueError, IndexError) as error:
        if raised_by_signal_handler(error):
            raise
        return None


def working_folder() -> str | None:
    """The current folder. None: it was removed."""
    try:
        return os.getcwd()
    except OSError as error:
        if raised_by_signal_handler(error):
            raise
        return None


def identity(fd: int) -> tuple[int, int] | None:
    """Device and inode of an open file. A number alone may stand for another file by now.

    None: the descriptor is closed.
    """
    try:
        status = os.fstat(fd)
    except OSError as error:
        if raised_by_signal_handler(error):
            raise
        return None
    return status.st_dev, status.st_ino


def sync_file(path: str) -> None:
    """Make a file's content and its name safe from a loss of power. Others than files are left
    alone."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            getattr(os, "fdatasync", os.fsync)(fd)  # macOS has only the second
    finally:
        os.close(fd)
    sync_folder(os.path.dirname(path))


def sync_folder(path: str) -> None:
    """Make the names in a folder safe from a loss of power: a file without a name is lost."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
