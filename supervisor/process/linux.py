"""The platform, on Linux: pidfds, prctl, cgroups, SO_PEERCRED; /proc is in linux_proc.py.

Never signals a process. A pid alone identifies nobody: an identity is (pid, start time).

Where /proc cannot be read, deaths, our children and who connects are known without it, and nobody
is declared dead on that ground.
"""

from __future__ import annotations

import os
import sys
import time

from ...ipc.lightweight import ctypes, socket
from .linux_proc import stat_fields
from .polled_watch import PolledWatch

_TICKS = os.sysconf("SC_CLK_TCK")

# -- identity -----------------------------------------------------------------------------------


def process_start(pid: int) -> int | None:
    """When a process began, in clock ticks since boot: with the pid, its identity. Where /proc
    does not tell it, a negative number that no other process of this boot has (Linux 6.9). None:
    the process is gone, or cannot be told from a later one with its pid."""
    fields = stat_fields(pid)
    return int(fields[19]) if fields is not None else _number_of(pid)


def is_another(pid: int, start: int | None) -> bool:
    """True if whoever has this pid is proved not to be the process that began at `start`."""
    if start is None:
        return False
    if start < 0:
        return _number_of(pid) not in (start, None)
    fields = stat_fields(pid)
    return fields is not None and int(fields[19]) != start


def _number_of(pid: int) -> int | None:
    """What stands for a start time that cannot be read: a pidfd's inode."""
    try:
        fd = os.pidfd_open(pid)
    except (OSError, AttributeError):
        return None
    try:
        number = os.fstat(fd).st_ino
        return None if number == _shared_inode() else -number
    finally:
        os.close(fd)


def _shared_inode() -> int | None:
    """The inode of all descriptors that are no file; a pidfd's before Linux 6.9."""
    import select  # start-up: only where there is no /proc

    poll = select.epoll()
    try:
        return os.fstat(poll.fileno()).st_ino
    finally:
        poll.close()


def boot_id() -> str:
    """A name for this boot of the machine; empty if it is not known."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def pid_namespace() -> str:
    """The number of our pid namespace; empty if it is not known."""
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return ""


def since_boot(start: int | None = None) -> float:
    """Seconds since a process started at `start`, or since boot."""
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    return now if start is None else max(0.0, now - start / _TICKS)


# -- deaths -------------------------------------------------------------------------------------

# linux/pidfd.h: _IOWR(0xFF, 11, struct pidfd_info), the first published size of the struct.
_PIDFD_GET_INFO = 0xC040FF0B
_PIDFD_INFO_EXIT = 1 << 3
_EXIT_CODE_AT = 60
_SO_PEERPIDFD = 77


def _exit_status(pidfd: int) -> int | None:
    """The wait status of a dead process, also when its parent has collected it (Linux 6.15)."""
    import fcntl  # start-up: only a death needs it

    info = bytearray(64)
    info[0:8] = _PIDFD_INFO_EXIT.to_bytes(8, "little")
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info)
    except OSError:
        return None
    if not int.from_bytes(info[0:8], "little") & _PIDFD_INFO_EXIT:
        return None
    return int.from_bytes(info[_EXIT_CODE_AT : _EXIT_CODE_AT + 4], "little")


class PidfdWatch:
    """Watches a process by a descriptor that becomes readable when the process is dead."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = os.pidfd_open(pid)

    def fileno(self) -> int:
        return self._fd

    def dead(self) -> bool:
        return self.wait(0)

    def wait(self, seconds: float) -> bool:
        import select  # start-up: only a death needs it

        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        return bool(poller.poll(seconds * 1000))

    def status(self) -> int | None:
        """The wait status of the dead process, where the kernel still knows it."""
        status = _zombie_status(self.pid)
        if status is not None:
            return status
        return _exit_status(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class ProcWatch(PolledWatch):
    """For a kernel without pidfds, or when no descriptor is left."""

    def dead(self) -> bool:
        return _is_gone_or_zombie(self.pid, self._start)

    def status(self) -> int | None:
        return _zombie_status(self.pid)


Watch = PidfdWatch | ProcWatch


def watch(pid: int, start: int | None) -> Watch | None:
    """Watch the process that began at `start`; None if it is gone already."""
    candidate: Watch
    try:
        candidate = PidfdWatch(pid)
    except ProcessLookupError:
        return None
    except (OSError, AttributeError):  # not permitted, no descriptor left, or an old kernel
        candidate = ProcWatch(pid, start)
        if candidate.dead() and stat_fields(pid) is None:
            return None
    if is_another(pid, start):
        candidate.close()
        return None
    return candidate


def _zombie_status(pid: int) -> int | None:
    """A zombie's wait status: the last field of its stat line."""
    fields = stat_fields(pid)
    return int(fields[49]) if fields is not None and fields[0] in (b"Z", b"X") else None


def _is_gone_or_zombie(pid: int, start: int | None) -> bool:
    fields = stat_fields(pid)
    if fields is not None:
        return fields[0] in (b"Z", b"X") or is_another(pid, start)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False  # that /proc cannot be read does not prove a death


# -- memory -------------------------------------------------------------------------------------


def group_memory() -> dict[str, int]:
    """The peak of our cgroup and its limit, where it has one: group_peak, group_limit."""
    figures: dict[str, int] = {}
    for is_v2, path in _cgroups():
        if is_v2:
            folder, names = f"/sys/fs/cgroup{path}", ("memory.max", "memory.peak")
        else:
            folder = f"/sys/fs/cgroup/memory{path}"
            names = ("memory.limit_in_bytes", "memory.max_usage_in_bytes")
        limit, peak = (_number_in(f"{folder}/{name}") for name in names)
        # In version 1, no limit is a limit that nobody can reach.
        if limit is not None and limit < 1 << 60:
            figures["group_limit"] = limit
            if peak is not None:
                figures["group_peak"] = peak
    return figures


def oom_kills() -> int | None:
    """How many processes of our cgroup the kernel has killed because memory ran out."""
    for is_v2, path in sorted(_cgroups(), reverse=True):
        path = path.rstrip("/")
        if is_v2:
            counter = f"/sys/fs/cgroup{path}/memory.events"
        else:
            counter = f"/sys/fs/cgroup/memory{path}/memory.oom_control"
        try:
            with open(counter, "rb") as file:
                for line in file:
                    name, _, count = line.partition(b" ")
                    if name == b"oom_kill":
                        return int(count)
        except (OSError, ValueError):
            continue
    return None


def _cgroups() -> list[tuple[bool, str]]:
    """Our memory cgroups: whether it is version 2, and its path."""
    try:
        with open("/proc/self/cgroup") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    groups = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            groups.append((True, path))
        elif "memory" in controllers.split(","):
            groups.append((False, path))
    return groups


def _number_in(path: str) -> int | None:
    try:
        with open(path, "rb") as file:
            return int(file.read())
    except (OSError, ValueError):  # not there, or "max"
        return None


# -- ourselves ----------------------------------------------------------------------------------

# linux/prctl.h
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37


HAS_SUBREAPERS = True


def become_subreaper() -> None:
    """Become the parent of processes that a dead agent leaves behind, so that we see their
    deaths."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def is_subreaper() -> bool:
    import ctypes  # start-up: only `doctor` asks

    answer = ctypes.c_int(0)
    ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0)
    return bool(answer.value)


def forbid_core_dump() -> None:
    """Forbid core dumps: a collector of core files ignores the resource limit."""
    _prctl(_PR_SET_DUMPABLE, 0)


def die_with_parent(number: int) -> None:
    """Have this process get a signal when its parent dies."""
    _prctl(_PR_SET_PDEATHSIG, number)


def _prctl(option: int, value: int) -> None:
    try:
        ctypes.call("prctl", option, value, 0, 0, 0)
    except Exception:
        pass  # without it orphans go to init, and are seen by their connection alone


# -- peers --------------------------------------------------------------------------------------


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Pid and uid of the process at the other end. Raises OSError if that is unknown."""
    from struct import calcsize, unpack  # start-up: only for a connection

    form = "iII"
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, calcsize(form))
    pid, uid, _ = unpack(form, data)
    return pid, uid


def peer_exit_status(connection: socket.socket) -> int | None:
    """The wait status of the process at the other end, if it is dead and the kernel still knows
    it (Linux 6.16): a process may be gone before we can begin to watch it."""
    try:
        data = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, 4)
    except OSError:
        return None
    pidfd = int.from_bytes(data, sys.byteorder)
    try:
        return _exit_status(pidfd)
    finally:
        os.close(pidfd)
