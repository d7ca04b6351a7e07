"""Watching a process that need not be our child: told of its death, and of how it died.

Never signals a process. A pid alone is nobody: the identity is (pid, start time).
"""

from __future__ import annotations

import os
import time

from ..ipc.endpoint import process_start

# linux/pidfd.h: _IOWR(0xFF, 11, struct pidfd_info), the first published size of the struct.
_PIDFD_GET_INFO = 0xC040FF0B
_PIDFD_INFO_EXIT = 1 << 3
_EXIT_CODE_AT = 60


class PidfdWatch:
    """A descriptor that becomes readable when the process is dead."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = os.pidfd_open(pid)

    def fileno(self) -> int:
        return self._fd

    def dead(self) -> bool:
        return self.wait(0)

    def wait(self, seconds: float) -> bool:
        import select

        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        return bool(poller.poll(seconds * 1000))

    def status(self) -> int | None:
        """The wait status of the dead process, where the kernel still tells."""
        status = _zombie_status(self.pid)
        if status is not None:
            return status
        import fcntl

        info = bytearray(64)
        info[0:8] = _PIDFD_INFO_EXIT.to_bytes(8, "little")
        try:
            fcntl.ioctl(self._fd, _PIDFD_GET_INFO, info)
        except OSError:
            return None
        if not int.from_bytes(info[0:8], "little") & _PIDFD_INFO_EXIT:
            return None
        return int.from_bytes(info[_EXIT_CODE_AT : _EXIT_CODE_AT + 4], "little")

    def close(self) -> None:
        os.close(self._fd)


class PsutilWatch:
    """For systems without pidfds: nothing to wait on, so `dead` has to be asked now and then."""

    def __init__(self, pid: int) -> None:
        import psutil

        self.pid = pid
        self._process = psutil.Process(pid)

    def fileno(self) -> None:
        return None

    def dead(self) -> bool:
        import psutil

        try:
            return not self._process.is_running() or self._process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    def wait(self, seconds: float) -> bool:
        """psutil's own wait reaps a child, and takes another's zombie for alive."""
        end = time.monotonic() + seconds
        while not (dead := self.dead()) and time.monotonic() < end:
            time.sleep(0.01)
        return dead

    def status(self) -> int | None:
        return _zombie_status(self.pid)

    def close(self) -> None:
        pass


Watch = PidfdWatch | PsutilWatch


def watch(pid: int, start: int | None) -> Watch | None:
    """Watch the process that began at `start`; None if it is gone already."""
    found: Watch | None
    try:
        found = PidfdWatch(pid) if hasattr(os, "pidfd_open") else _asked(pid)
    except ProcessLookupError:
        return None
    except OSError:  # not permitted, or no descriptor left
        found = _asked(pid)
    if found is not None and start is not None and process_start(pid) not in (start, None):
        found.close()
        return None
    return found


def lives(pid: int, start: int) -> bool:
    """Whether the process that began at `start` is there and no zombie: one that nobody collects
    has its place in /proc for ever, and is dead all the same."""
    if process_start(pid) != start:
        return False
    watched = watch(pid, start)
    if watched is None:
        return False
    try:
        return not watched.dead()
    finally:
        watched.close()


def _asked(pid: int) -> PsutilWatch | None:
    import psutil

    try:
        return PsutilWatch(pid)
    except psutil.NoSuchProcess:
        return None


def _zombie_status(pid: int) -> int | None:
    """A zombie's wait status: the last field of its stat line."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
    except OSError:
        return None
    fields = line[line.rindex(b")") + 2 :].split()
    return int(fields[49]) if fields[0] in (b"Z", b"X") else None
