"""Kill points: a process that counts what it does to the outside world, and dies after the K-th.

Loaded into the process under test: into an agent by its own first line, into what is executed
anew by the `sitecustomize` beside the package, into what the sweep forks by a call. Counted is
whatever another process could find afterwards: files made, written, synced, cut, renamed,
removed, locked; what SQLite does to its files; sockets bound, connected, sent to, received from;
processes started and ended. A kill is a real SIGKILL, of this process or of its whole group.

Counts go on across a fork: a role is one line of work, whoever of the family does it. Each
operation leaves a line in a trace outside of our folders, so that a dry run counts them, and a
failure can say after what the process died.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import inspect
import io
import mmap
import os
import signal
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# In the environment of what is executed: the folder for traces, and whom to kill where, as
# words of ROLE:K:VICTIM, with `self` or `group` for the victim.
FOLDER = "KILL_POINTS"
PLAN = "KILL_AT"
# Given in place of the real sizes, so that a short conversation fills segments, and takes more
# than one transaction.
SEGMENT = "KILL_SEGMENT_BYTES"
STEP = "KILL_STEP"
# No journal can be written.
FULL = "KILL_FULL"

# Counted as they are; what writes to a pipe or a terminal as well is looked at first.
FILE_CALLS = (
    "pwrite", "writev", "pwritev", "posix_fallocate", "fsync", "fdatasync", "ftruncate",
    "truncate", "rename", "replace", "unlink", "remove", "mkdir", "rmdir", "link", "symlink",
    "chmod", "mkfifo",
)  # fmt: skip
PROCESS_CALLS = ("fork", "posix_spawn", "posix_spawnp")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_real_open, _real_write, _real_kill = os.open, os.write, os.kill
_real_close, _real_fstat, _real_getpid = os.close, os.fstat, os.getpid
_real_builtin_open = builtins.open

# Who forks, and what that process is.
_FORKED = {
    "signals.py": "standby",
    "jobs.py": "helper",
    "launcher.py": "runner",
}

_counts: dict[str, mmap.mmap] = {}
_role = ""
_folder = ""
_plan: dict[str, tuple[int, str]] = {}
_locks: set[int] = set()


def point(what: str) -> None:
    """An operation has happened. If it is the one, it was the last."""
    if not _role:
        return
    counter = _counts.setdefault(_role, mmap.mmap(-1, 8))
    number = int.from_bytes(counter[:8], "little") + 1
    counter[:8] = number.to_bytes(8, "little")
    _note(f"{_role} {number} {what}\n")
    at, victim = _plan.get(_role, (0, ""))
    if number == at and _first_death():
        _note(f"{_role} {number} killed {victim}\n")
        _real_kill(0 if victim == "group" else _real_getpid(), signal.SIGKILL)


def _note(line: str) -> None:
    # Opened each time: who closes every descriptor there is would close this one.
    fd = _real_open(f"{_folder}/trace", os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    _real_write(fd, line.encode())
    _real_close(fd)


def _first_death() -> bool:
    """Who takes the place of the dead does the same again, and must live."""
    try:
        _real_close(_real_open(f"{_folder}/dead-{_role}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True


def arm(role: str, folder: str, plan: str) -> None:
    """Count from now on, as `role`."""
    global _role, _folder
    for word in plan.split():
        name, number, victim = word.split(":")
        _plan[name] = int(number), victim
    _folder = folder
    _role = role
    # Made here, so that what is forked later counts on.
    for name in (role, *_FORKED.values()):
        _counts.setdefault(name, mmap.mmap(-1, 8))
    _wrap_files()
    _wrap_sockets()
    _wrap_processes()
    if role != "agent":
        _wrap_sqlite()
        _make_smaller()


def arm_by_environment() -> None:
    """In a process that was executed: a successor, or nothing that is swept."""
    if FOLDER in os.environ and "adopt" in sys.orig_argv[-2:]:
        arm("successor", os.environ[FOLDER], os.environ.get(PLAN, ""))


def _name(path: Any) -> str:
    """A path in a trace: without what differs from run to run."""
    name = os.path.basename(os.fsdecode(path)) if not isinstance(path, int) else _of(path)
    stem, _, kind = name.partition(".")
    if name.startswith(".") and name.endswith(".new"):
        return ".*.json.new"
    return f"*.{kind}" if len(stem) in (12, 32) else name


def _of(fd: int) -> str:
    try:
        return _name(os.readlink(f"/proc/self/fd/{fd}"))
    except OSError:
        return "?"


def _is_file(fd: int) -> bool:
    return stat.S_ISREG(_real_fstat(fd).st_mode)


# -- files ---------------------------------------------------------------------------------------


def _wrap_files() -> None:
    def counted(name: str) -> None:
        real = getattr(os, name)

        def call(*args: Any, **more: Any) -> Any:
            done = real(*args, **more)
            point(f"{name} {_name(args[0])}")
            return done

        setattr(os, name, call)

    for name in FILE_CALLS:
        counted(name)

    def open_file(path: Any, flags: int, *args: Any, **more: Any) -> int:
        fd = _real_open(path, flags, *args, **more)
        if flags & _WRITING and _is_file(fd):
            point(f"open {_name(path)}")
        return fd

    def write(fd: int, data: Any) -> int:
        done = _real_write(fd, data)
        if _is_file(fd):
            point(f"write {_name(fd)}")
        return done

    real_flock = fcntl.flock

    def close(fd: int) -> None:
        _real_close(fd)
        if fd in _locks:
            _locks.discard(fd)
            point("unlock lock")

    def flock(fd: Any, operation: int) -> None:
        real_flock(fd, operation)
        _locks.add(fd if isinstance(fd, int) else fd.fileno())
        point("flock lock")

    os.open, os.write, os.close, fcntl.flock = open_file, write, close, flock  # type: ignore
    builtins.open = io.open = _open  # type: ignore


class _Raw(io.FileIO):
    def write(self, data: Any) -> int | None:
        done = super().write(data)
        point(f"write {_name(self.fileno())}")
        return done


def _open(file: Any, mode: str = "r", *args: Any, **more: Any) -> Any:
    """`open`, which writes below Python's `os.write`."""
    if not set(mode) & set("wax+") or (isinstance(file, int) and not _is_file(file)):
        return _real_builtin_open(file, mode, *args, **more)
    plain = mode.replace("t", "").replace("b", "")
    opener = more.get("opener")
    raw = _Raw(file, plain, opener=opener)
    if opener is None and not isinstance(file, int):
        point(f"open {_name(raw.fileno())}")
    buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
    if "b" in mode:
        return buffered
    return io.TextIOWrapper(buffered, encoding=more.get("encoding"))


# -- sockets -------------------------------------------------------------------------------------


def _wrap_sockets() -> None:
    from hermes_supervise.ipc.lightweight import socket

    real = socket.socket

    class Socket(real):  # type: ignore
        __slots__ = ()

        def bind(self, address: Any) -> None:
            super().bind(address)
            point("bind")

        def listen(self, *args: Any) -> None:
            super().listen(*args)
            point("listen")

        def connect(self, address: Any) -> None:
            super().connect(address)
            point("connect")

        def _accept(self) -> Any:
            made = super()._accept()
            point("accept")
            return made

        def send(self, *args: Any) -> int:
            done = super().send(*args)
            point("send")
            return done

        def recv(self, *args: Any) -> bytes:
            data = super().recv(*args)
            point("recv" if data else "end of line")
            return data

    socket.socket = Socket  # type: ignore


# -- processes -----------------------------------------------------------------------------------


def _wrap_processes() -> None:
    real_fork = os.fork

    def fork() -> int:
        global _role
        pid = real_fork()
        caller = os.path.basename(inspect.currentframe().f_back.f_code.co_filename)  # type: ignore
        name = _FORKED.get(caller, caller)
        if pid == 0:
            _role = name
        else:
            point(f"fork {name}")
        return pid

    def counted(real: Any) -> Any:
        def spawn(*args: Any, **more: Any) -> int:
            pid: int = real(*args, **more)
            point(f"start {os.path.basename(args[0])}")
            return pid

        return spawn

    os.fork = fork
    os.posix_spawn, os.posix_spawnp = counted(os.posix_spawn), counted(os.posix_spawnp)
    if _role == "agent":
        return
    import subprocess

    class Popen(subprocess.Popen):  # type: ignore
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            point("start hook")

        def wait(self, *args: Any, **more: Any) -> int:
            code = super().wait(*args, **more)
            point("end hook")
            return code

    subprocess.Popen = Popen  # type: ignore


# -- SQLite --------------------------------------------------------------------------------------


def _wrap_sqlite() -> None:
    import apsw

    base = apsw.vfs_names()[0]

    class File(apsw.VFSFile):
        def __init__(self, name: Any, flags: list[int]) -> None:
            super().__init__(base, name, flags)
            path = name.filename() if isinstance(name, apsw.URIFilename) else name
            self.name = os.path.basename(path or "temporary")

        def xWrite(self, data: bytes, offset: int) -> None:
            super().xWrite(data, offset)
            point(f"write {self.name}")

        def xTruncate(self, size: int) -> None:
            super().xTruncate(size)
            point(f"truncate {self.name}")

        def xSync(self, flags: int) -> None:
            super().xSync(flags)
            point(f"sync {self.name}")

        def xLock(self, level: int) -> None:
            super().xLock(level)
            point(f"lock {self.name}")

        def xUnlock(self, level: int) -> None:
            super().xUnlock(level)
            point(f"unlock {self.name}")

    class Files(apsw.VFS):
        def __init__(self) -> None:
            super().__init__("kill-points", base, makedefault=True)

        def xOpen(self, name: Any, flags: list[int]) -> File:
            path = name.filename() if isinstance(name, apsw.URIFilename) else name
            is_new = bool(path) and not os.path.exists(path)
            file = File(name, flags)
            if is_new:
                point(f"open {file.name}")
            return file

        def xDelete(self, name: str, sync: bool) -> None:
            super().xDelete(name, sync)
            point(f"delete {os.path.basename(name)}")

    global _files
    _files = Files()  # registered for as long as it is referred to


_files: Any = None


def _make_smaller() -> None:
    from hermes_supervise.supervisor.run import compaction
    from hermes_supervise.supervisor.statedb import writer
    from hermes_supervise.supervisor.storage import journal

    if SEGMENT in os.environ:
        size = int(os.environ[SEGMENT])
        begin = journal.Journal.__init__

        def begin_small(self: Any, folder: str, stream: str, handshake: bytes, **more: Any) -> None:
            begin(self, folder, stream, handshake, **{"segment_bytes": size, **more})

        journal.Journal.__init__ = begin_small  # type: ignore
        compaction.SEGMENT_BYTES = size
    if FULL in os.environ:

        def no_room(self: Any, data: bytes) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        journal.Journal.append = no_room  # type: ignore
    if STEP in os.environ:
        writer.STEP = int(os.environ[STEP])
