"""The platform, on Linux: what /proc says about processes.

/proc may be missing, empty, or of another pid namespace (`unshare --pid` without `--mount-proc`):
there the same numbers are other processes. Then nothing is read from it: what is not known is
answered by None or an empty list.

Never signals a process, and never says that one is dead.
"""

from __future__ import annotations

import os

_PAGE = os.sysconf("SC_PAGE_SIZE")
_MOST_BELOW = 200

_proc_is_ours: bool | None = None


def sees_processes() -> bool:
    """True if /proc can be read, and is of the namespace that our pids are of."""
    global _proc_is_ours
    if _proc_is_ours is None:
        _proc_is_ours = _pids_in_proc() == [os.getpid()]
    return _proc_is_ours


def _pids_in_proc() -> list[int]:
    """Our pids in the namespace of /proc and in those below it, down to our own."""
    try:
        with open("/proc/self/status", "rb") as file:
            text = file.read()
        at = text.find(b"\nNSpid:")
        at = at if at >= 0 else text.index(b"\nPid:")  # a kernel without namespaces
        return [int(word) for word in text[at + 1 : text.index(b"\n", at + 1)].split()[1:]]
    except (OSError, ValueError):
        return []


def _of(pid: int, name: str) -> str:
    """A file of a process. Raises OSError where that would be another process' file."""
    if not sees_processes():
        raise FileNotFoundError(f"/proc/{pid} cannot be read, or is another process")
    return f"/proc/{pid}/{name}"


def stat_fields(pid: int) -> list[bytes] | None:
    """The fields of a process' stat line after its name, which may contain anything."""
    try:
        with open(_of(pid, "stat"), "rb") as file:
            line = file.read()
        return line[line.rindex(b")") + 2 :].split()
    except (OSError, ValueError):
        return None


# -- processes ----------------------------------------------------------------------------------


class ProcessInfo:
    """A line of the process table."""

    __slots__ = ("alive", "foreground", "group", "parent", "pid", "session", "start")

    def __init__(self, pid: int, fields: list[bytes]) -> None:
        self.pid = pid
        self.alive = fields[0] not in (b"Z", b"X")
        self.parent, self.group, self.session = (int(field) for field in fields[1:4])
        self.foreground = int(fields[5])
        """The group in the foreground of its terminal; -1: it has none; 0: not known."""
        self.start = int(fields[19])


def process_table(pids: list[int] | None = None) -> list[ProcessInfo]:
    """The table's lines for these processes, or for all."""
    lines = []
    for pid in _all_pids() if pids is None else pids:
        try:
            fields = stat_fields(pid)
            if fields is not None:
                lines.append(ProcessInfo(pid, fields))
        except (ValueError, IndexError):
            continue
    return lines


def _all_pids() -> list[int]:
    try:
        names = os.listdir("/proc") if sees_processes() else []
    except OSError:
        return []
    return [int(name) for name in names if name.isdigit()]


def own_children() -> list[int] | None:
    """Our children by the kernel's own list, which is shorter to read than the whole table.
    No child leaves it while we look: only we could reap it. None where there is no such list."""
    pid = os.getpid()
    try:
        with open(_of(pid, f"task/{pid}/children"), "rb") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return None


def user_of(pid: int) -> int | None:
    """The user that a process runs as, be it a zombie; None if it cannot be seen."""
    try:
        return os.stat(_of(pid, "")).st_uid
    except OSError:
        return None


def command_line(pid: int) -> list[str]:
    """Empty if it cannot be read."""
    try:
        with open(_of(pid, "cmdline"), "rb") as file:
            return os.fsdecode(file.read()).rstrip("\0").split("\0")
    except OSError:
        return []


def environment(pid: int) -> list[bytes]:
    """The entries a process was started with, as NAME=VALUE; empty if they cannot be read."""
    try:
        with open(_of(pid, "environ"), "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def below(pid: int, most: int = _MOST_BELOW) -> list[tuple[int, int]]:
    """The descendants of a process, each with its parent, parents first; at most `most` of them."""
    descendants: list[tuple[int, int]] = []
    waiting = [pid]
    while waiting and len(descendants) < most:
        parent = waiting.pop(0)
        fresh = [(child, parent) for child in _children_of(parent)]
        descendants += fresh
        waiting += [child for child, _ in fresh]
    return descendants[:most]


def _children_of(pid: int) -> list[int]:
    children: list[int] = []
    try:
        tasks = os.listdir(_of(pid, "task"))
    except OSError:
        return children
    for task in tasks:
        try:
            with open(_of(pid, f"task/{task}/children"), "rb") as file:
                children += [int(word) for word in file.read().split()]
        except OSError:
            continue
    return sorted(children)


# -- files --------------------------------------------------------------------------------------


def fd_target(pid: int, fd: int) -> tuple[int, int] | None:
    """Device and inode of what a descriptor of a process stands for."""
    try:
        status = os.fstat(fd) if pid == os.getpid() else os.stat(_of(pid, f"fd/{fd}"))
    except OSError:
        return None
    return status.st_dev, status.st_ino


def open_files(pid: int) -> list[str]:
    """The paths a process has open; empty if they cannot be read."""
    paths = []
    try:
        names = os.listdir(_of(pid, "fd"))
    except OSError:
        return []
    for name in names:
        try:
            paths.append(os.readlink(_of(pid, f"fd/{name}")))
        except OSError:
            continue
    return paths


def is_open_for_writing(pid: int, path: str) -> bool:
    """Whether a process has a file open and may write to it. `path` is a real path."""
    try:
        fds = os.listdir(_of(pid, "fd"))
    except OSError:
        return False
    return any(_may_write(pid, fd, path) for fd in fds)


def _may_write(pid: int, fd: str, path: str) -> bool:
    try:
        if os.readlink(_of(pid, f"fd/{fd}")) != path:
            return False
        with open(_of(pid, f"fdinfo/{fd}")) as file:
            flags = int(file.read().partition("flags:")[2].split()[0], 8)
    except (OSError, IndexError, ValueError):
        return False  # it was closed meanwhile, and the others were not
    return flags & os.O_ACCMODE != os.O_RDONLY


def lock_holder(inode: int) -> int | None:
    """The process that holds a flock on a file, by the kernel's list; None if none is listed."""
    if not sees_processes():
        return None
    try:
        with open("/proc/locks") as file:
            for line in file:
                words = line.split()
                if words[1] == "FLOCK" and words[5].endswith(f":{inode}"):
                    return int(words[4])
    except (OSError, ValueError, IndexError):
        pass
    return None


# -- memory -------------------------------------------------------------------------------------


def resident(pid: int) -> int | None:
    """The bytes a process has in RAM. One short file: cheap enough to read while it works."""
    try:
        with open(_of(pid, "statm"), "rb") as file:
            pages = int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * _PAGE or None  # 0: it is dead


def proportional(pid: int) -> int | None:
    """The same with shared pages counted by shares, so that sums are what is really used."""
    try:
        with open(_of(pid, "smaps_rollup"), "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None
