"""The platform where there is neither /proc nor a pidfd: psutil, kqueue, waitpid, getpeereid.

Written for macOS and the BSDs, tested on Linux by HERMES_SUPERVISE_PLATFORM=portable, and not run
on macOS by us. What cannot be known here is answered with None or an empty list, and no process is
declared dead because of that.

psutil is imported when it is first needed: a run without a death does not pay for it.
"""

from __future__ import annotations

import os
import sys
import time

from .polled_watch import PolledWatch

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any

_TICKS = os.sysconf("SC_CLK_TCK")
_MOST_BELOW = 200


def _ask(pid: int, question: str) -> Any:
    """What psutil answers to a question about a process; None if it cannot tell."""
    import psutil  # late: nobody pays for it before it is needed

    try:
        return getattr(psutil.Process(pid), question)()
    except (psutil.Error, OSError):
        return None


def sees_processes() -> bool:
    """True if processes other than our children can be looked at."""
    return _ask(os.getpid(), "status") is not None


# -- identity -----------------------------------------------------------------------------------


def process_start(pid: int) -> int | None:
    """When a process began: with the pid, its identity. On Linux this is the number that a shim
    reads from /proc; elsewhere a shim gives none. None: the process is gone, or cannot be seen."""
    began = _ask(pid, "create_time")
    if began is None:
        return None
    if sys.platform.startswith("linux"):
        import psutil  # late: nobody pays for it before it is needed

        began -= psutil.boot_time()
    ticks: int = round(began * _TICKS)
    return ticks


def is_another(pid: int, start: int | None) -> bool:
    """True if whoever has this pid is proved not to be the process that began at `start`. A
    negative start is a number that only Linux knows."""
    if start is None or start < 0:
        return False
    return process_start(pid) not in (start, None)


def boot_id() -> str:
    """A name for this boot of the machine. macOS has one; elsewhere the moment of the boot, to
    ten seconds, stands for it, because a clock that is set moves that moment a little."""
    if sys.platform == "darwin":
        import subprocess  # late: only macOS asks a program

        command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
        try:
            return subprocess.run(command, capture_output=True, text=True).stdout.strip()
        except OSError:
            return ""
    import psutil  # late: nobody pays for it before it is needed

    return f"boot-{round(psutil.boot_time(), -1):.0f}"


def pid_namespace() -> str:
    """The namespace that our pids are of; empty: not known. Only Linux has several."""
    return ""


def since_boot(start: int | None = None) -> float:
    """Seconds since a process started at `start`, or since boot."""
    import psutil  # late: nobody pays for it before it is needed

    if start is None:
        return max(0.0, time.time() - psutil.boot_time())
    if sys.platform.startswith("linux"):
        return max(0.0, time.time() - psutil.boot_time() - start / _TICKS)
    return max(0.0, time.time() - start / _TICKS)


# -- deaths -------------------------------------------------------------------------------------


class KqueueWatch:
    """Watches a process by a kernel queue, which becomes readable when the process exits."""

    def __init__(self, pid: int) -> None:
        import select  # start-up: only a watched process needs it

        self.pid = pid
        self._status: int | None = None
        self._dead = False
        kq: Any = select
        self._queue = kq.kqueue()
        event = kq.kevent(
            pid,
            filter=kq.KQ_FILTER_PROC,
            flags=kq.KQ_EV_ADD | kq.KQ_EV_ONESHOT,
            # NOTE_EXITSTATUS has no name in `select`; macOS gives it to children only.
            fflags=kq.KQ_NOTE_EXIT,
        )
        try:
            self._queue.control([event], 0)
        except OSError:
            self._queue.close()
            raise

    def fileno(self) -> int:
        fd: int = self._queue.fileno()
        return fd

    def dead(self) -> bool:
        return self.wait(0)

    def wait(self, seconds: float) -> bool:
        if not self._dead and self._queue.control([], 1, seconds):
            self._dead = True
        return self._dead

    def status(self) -> int | None:
        return None  # the status of our own children comes from waitpid; no other is available

    def close(self) -> None:
        self._queue.close()


class PsutilWatch(PolledWatch):
    """For systems without kqueue. psutil's own wait would reap a child of ours, and take a
    stranger's zombie for alive."""

    def dead(self) -> bool:
        import psutil  # late: nobody pays for it before it is needed

        if is_another(self.pid, self._start):
            return True  # the pid is somebody else's
        try:
            return bool(psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return not _exists(self.pid)
        except (psutil.Error, OSError):
            return False  # a process that cannot be seen may be alive


Watch = KqueueWatch | PsutilWatch


def _has_process(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it is there, and not ours to signal
    return True


def _exists(pid: int) -> bool:
    """Where psutil sees nothing. A dead child of ours that nobody has reaped does not count."""
    try:
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return _has_process(pid) and os.waitid(os.P_PID, pid, flags) is None
    except (OSError, AttributeError):
        return True  # no child of ours


def watch(pid: int, start: int | None) -> Watch | None:
    """Watch the process that began at `start`; None if it is gone already."""
    import select  # start-up: only a watched process needs it

    candidate: Watch
    if not _has_process(pid):
        return None
    try:
        candidate = KqueueWatch(pid) if hasattr(select, "kqueue") else PsutilWatch(pid, start)
    except ProcessLookupError:
        return None
    except OSError:
        candidate = PsutilWatch(pid, start)
    if is_another(pid, start):
        candidate.close()
        return None
    return candidate


# -- processes ----------------------------------------------------------------------------------


class ProcessInfo:
    """A line of the process table."""

    __slots__ = ("alive", "foreground", "group", "parent", "pid", "session", "start")

    def __init__(self, process: Any) -> None:
        import psutil  # late: nobody pays for it before it is needed

        self.pid = int(process.pid)
        self.alive = process.status() != psutil.STATUS_ZOMBIE
        self.parent = int(process.ppid())
        self.group = os.getpgid(self.pid)
        self.session = os.getsid(self.pid)
        self.foreground = 0
        """The group in the foreground of its terminal; -1: it has none; 0: not known."""
        self.start = process_start(self.pid) or 0


def process_table(pids: list[int] | None = None) -> list[ProcessInfo]:
    """The table's lines for these processes, or for all."""
    import psutil  # late: nobody pays for it before it is needed

    lines = []
    for pid in psutil.pids() if pids is None else pids:
        try:
            lines.append(ProcessInfo(psutil.Process(pid)))
        except (psutil.Error, OSError):
            continue
    return lines


def own_children() -> list[int] | None:
    children = _ask(os.getpid(), "children")
    return None if children is None else [child.pid for child in children]


def user_of(pid: int) -> int | None:
    """The user that a process runs as; None if it cannot be seen."""
    users = _ask(pid, "uids")
    return None if users is None else int(users.effective)


def command_line(pid: int) -> list[str]:
    """Empty if it cannot be read."""
    return list(_ask(pid, "cmdline") or ())


def environment(pid: int) -> list[bytes]:
    """The entries a process was started with, as NAME=VALUE; empty if they cannot be read."""
    entries = _ask(pid, "environ") or {}
    return [os.fsencode(f"{name}={value}") for name, value in entries.items()]


def below(pid: int, most: int = _MOST_BELOW) -> list[tuple[int, int]]:
    """The descendants of a process, each with its parent, parents first; at most 200."""
    descendants: list[tuple[int, int]] = []
    waiting = [pid]
    while waiting and len(descendants) < most:
        parent = waiting.pop(0)
        fresh = [(child.pid, parent) for child in _ask(parent, "children") or ()]
        descendants += fresh
        waiting += [child for child, _ in fresh]
    return descendants[:most]


# -- files --------------------------------------------------------------------------------------


def fd_target(pid: int, fd: int) -> tuple[int, int] | None:
    """Device and inode of what a descriptor stands for; here only of our own."""
    if pid != os.getpid():
        return None
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def open_files(pid: int) -> list[str]:
    """The paths a process has open; empty if they cannot be read."""
    return [file.path for file in _ask(pid, "open_files") or ()]


def is_open_for_writing(pid: int, path: str) -> bool:
    """Whether a process has a file open and may write to it. `path` is a real path. Where it is
    not known whether it may write, an open file counts."""
    return any(
        file.path == path and getattr(file, "mode", "a") != "r"
        for file in _ask(pid, "open_files") or ()
    )


def lock_holder(inode: int) -> int | None:
    """The holder of a lock is not known here."""
    return None


# -- memory -------------------------------------------------------------------------------------


def resident(pid: int) -> int | None:
    """The bytes a process has in RAM."""
    figures = _ask(pid, "memory_info")
    return int(figures.rss) or None if figures is not None else None


def proportional(pid: int) -> int | None:
    """The same with shared pages counted by shares: not available here."""
    return None


def group_memory() -> dict[str, int]:
    """There are no groups of processes with a limit here."""
    return {}


def oom_kills() -> int | None:
    """Nobody counts them here."""
    return None


# -- ourselves ----------------------------------------------------------------------------------


HAS_SUBREAPERS = False


def become_subreaper() -> None:
    """There are no subreapers here: processes that a dead agent leaves behind go to init. Their
    deaths are seen through their connections and by watching them."""


def is_subreaper() -> bool:
    return False


def forbid_core_dump() -> None:
    """The resource limit, which the caller sets, is all there is."""


def die_with_parent(number: int) -> None:
    """Not available here: a process that outlives its parent ends at its own time limit."""


# -- peers --------------------------------------------------------------------------------------

_SOL_LOCAL = 0
_LOCAL_PEERPID = 2  # macOS, sys/un.h


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Pid and uid of the process at the other end. The pid is 0 where the system does not report
    it; then the hello does. Raises OSError if the uid is unknown."""
    import ctypes  # start-up: with the first connection
    import socket

    get_peer = getattr(ctypes.CDLL(None, use_errno=True), "getpeereid", None)
    if get_peer is None:  # glibc has none
        from struct import calcsize, unpack  # only on Linux, for the tests

        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, calcsize("iII"))
        pid, uid, _ = unpack("iII", data)
        return pid, uid
    peer_uid, peer_gid = ctypes.c_uint32(), ctypes.c_uint32()
    if get_peer(connection.fileno(), ctypes.byref(peer_uid), ctypes.byref(peer_gid)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    try:
        pid = connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID)
    except OSError:
        pid = 0
    return pid, peer_uid.value


def peer_exit_status(connection: socket.socket) -> int | None:
    """The wait status of a dead process at the other end. Only Linux reports it."""
    return None
