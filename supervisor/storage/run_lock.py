"""The lock of a run's folder: held (flock) by the one process that may finish the run.

That is its supervisor, or a recoverer after the supervisor's death. Forked jobs inherit it, so a
job may hold it longer than its supervisor lives. `lock_file` is for what one process does at a
time, whatever the run: retrying hooks, shipping to a replica.

Never waits for a lock, unless asked to.
"""

from __future__ import annotations

import fcntl
import os

from ...ipc import endpoint
from ..process.platform import lock_holder, process_start

_claimed: set[str] = set()


def lock(folder: str, *, wait: bool = False) -> int | None:
    """A descriptor with the lock; None: another process has it, or there is no such run.
    `wait`: until it is free."""
    path = os.path.join(folder, "lock")
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except (FileNotFoundError, NotADirectoryError):
        return None  # settled meanwhile, or not one of our folders
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        # The last holder may have removed the run; then this is the lock of a deleted file.
        if os.path.samestat(os.fstat(fd), os.stat(path)):
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:  # a file system without locks
        os.close(fd)
        raise
    os.close(fd)
    return None


def lock_file(path: str) -> int | None:
    """A descriptor with the lock of a file that is never removed; it is made if it is not there.
    None: another process has the lock, or the file system has no locks."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def note_claimed(folder: str) -> None:
    """This process has locked a run that others can find."""
    _claimed.add(folder)


def release(folder: str, descriptor: int) -> None:
    _claimed.discard(folder)
    os.close(descriptor)


def is_claimed_here(folder: str) -> bool:
    """True if this process, or one that it was forked from, locked the run and has not released
    it. The kernel's list of locks does not tell a forked process from its parent."""
    return folder in _claimed


def holder_of(folder: str) -> int | None:
    """The pid that holds a run's lock, read from the kernel's list of locks, which disturbs
    nobody. 0: locked by a process that cannot be seen from here. None: not locked."""
    path = os.path.join(folder, "lock")
    try:
        inode = os.stat(path).st_ino
    except OSError:
        return None
    if (pid := lock_holder(inode)) is not None:
        return pid
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0
    except OSError:
        return None
    finally:
        os.close(fd)
    return None


def is_held_by_orphan(folder: str) -> bool:
    """True if a run is locked, and the process that locked it is dead: a job that it had forked
    holds the lock. Nobody supervises such a run."""
    pid = holder_of(folder)
    if pid is None:
        return False
    if pid:
        from ..process.death import lives  # start-up: only commands ask this

        return not lives(pid, process_start(pid) or 0)
    from ...ipc.lightweight import socket  # start-up: only commands ask this

    # In a container the kernel does not name a holder that is dead. But a supervisor that was
    # killed has left its socket.
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(endpoint.socket_path(os.path.basename(folder)))
    except ConnectionRefusedError:
        return True
    except OSError:
        pass
    finally:
        connection.close()
    return False
