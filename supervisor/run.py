"""The folder of one run: its name, its lock, what a later recoverer must know of it.

Never reads a journal.

    runs/<run>/lock        held (flock) by whoever may finish this run: its supervisor
                           for life, else one recoverer
    runs/<run>/run.json    the command, and where and how to finish its sessions
    runs/<run>/agent       the process that was started: pid, start time, boot
    runs/<run>/…           journals and spools (see journal.py), hooks.jsonl, report.jsonl

A run whose folder is there and whose lock is free was left behind. The folder goes away
once everything in it has been settled and the agent is gone: until then it may speak.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time

from ..ipc import endpoint, jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_REPORTS_KEPT = 500


class Run:
    """A run's folder, with its lock held through `lock`."""

    def __init__(self, folder: str, lock: int) -> None:
        self.folder = folder
        self.name = os.path.basename(folder)
        self.lock = lock
        self.watcher: str | None = None
        """The stream of its watcher, if transcripts are to be read."""

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def streams(self) -> list[str]:
        """The streams that still have something in this folder."""
        found = {name.split(".", 1)[0] for name in os.listdir(self.folder) if is_stream_file(name)}
        return sorted(found)

    def release(self) -> None:
        os.close(self.lock)


def is_stream_file(name: str) -> bool:
    stem = name.partition(".")[0]
    named = len(stem) == 32 and not stem.strip("0123456789abcdef")
    return named and name.endswith((".log", ".spool", ".ring", ".settled"))


def runs_folder() -> str:
    return endpoint.private_folder(os.path.join(endpoint.state_folder(), "runs"))


def create(about: dict[str, object]) -> Run:
    lock = None
    while lock is None:
        name = time.strftime("%Y%m%d-%H%M%S-") + os.urandom(4).hex()
        folder = os.path.join(runs_folder(), name)
        os.mkdir(folder, 0o700)
        # None: who looks for runs left behind has found it before it was locked, and removes it.
        lock = _lock(folder)
    described = {"boot": boot_id(), "started": time.time(), **about}
    with open(os.path.join(folder, "run.json"), "w", opener=_private) as file:
        file.write(jsontext.compact(described))
    run = Run(folder, lock)
    run.watcher = str(about["watcher"]) if "watcher" in about else None
    return run


def make_last(folder: str) -> None:
    """See to it that a loss of power takes neither the run's folder nor what is written down
    about the run: before the first journal is in it, which would be lost or misread without."""
    try:
        fd = os.open(os.path.join(folder, "run.json"), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        pass
    else:
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    for path in (folder, runs_folder(), endpoint.state_folder()):
        endpoint.sync_folder(path)
    # Those above may be as new; who cannot write there has made nothing there.
    above = os.path.dirname(endpoint.state_folder())
    while os.access(above, os.W_OK | os.R_OK):
        endpoint.sync_folder(above)
        if above == os.path.dirname(above):
            break
        above = os.path.dirname(above)


def note_agent(run: Run, pid: int) -> None:
    """Write down for whom the run is. Who has said nothing yet is known by this alone."""
    try:
        with open(run.path("agent"), "w", opener=_private) as file:
            file.write(f"{pid} {endpoint.process_start(pid)} {boot_id()}")
    except OSError:
        pass  # then it has to speak before its supervisor dies


def living_agent(run: Run) -> tuple[int, int] | None:
    """Pid and start time of the agent, if it still lives."""
    try:
        with open(run.path("agent")) as file:
            pid, start, boot = file.read().split(" ")
        who = int(pid), int(start)
    except (OSError, ValueError):
        return None
    from .watch import lives

    return who if boot == boot_id() and lives(*who) else None


def holder(folder: str) -> int | None:
    """The process that has a run's lock, by the kernel's own list, so that nobody is disturbed.
    0: somebody has it, but who is not to be seen from here. None: nobody."""
    path = os.path.join(folder, "lock")
    try:
        inode = os.stat(path).st_ino
    except OSError:
        return None
    try:
        with open("/proc/locks") as file:
            for line in file:
                words = line.split()
                if words[1] == "FLOCK" and words[5].endswith(f":{inode}"):
                    return int(words[4])
    except (OSError, ValueError, IndexError):
        pass
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


def claim(folder: str, *, wait: bool = False) -> Run | None:
    """The run, if nobody else holds it, or once nobody does; None if it is settled."""
    lock = _lock(folder, wait=wait)
    return None if lock is None else Run(folder, lock)


def left_behind() -> Iterator[str]:
    """Folders of runs that may need finishing; `claim` tells whether they do."""
    try:
        names = sorted(os.listdir(runs_folder()))
    except OSError:
        return
    for name in names:
        yield os.path.join(runs_folder(), name)


def retire(run: Run) -> None:
    """End a run. One that is settled goes away, but for its report; else it waits."""
    if not run.streams() and living_agent(run) is None:
        if os.path.exists(run.path("report.jsonl")):
            _keep_report(run)
        _remove(run)
    run.release()


def owing_hooks() -> list[str]:
    """Runs of which hooks wait in the queue, each with its stream (hooks/queue.py)."""
    try:
        return os.listdir(os.path.join(endpoint.state_folder(), "hooks", "waiting"))
    except OSError:
        return []


def reports_folder() -> str:
    return endpoint.private_folder(os.path.join(endpoint.state_folder(), "reports"))


def _keep_report(run: Run) -> None:
    """Before the rest goes: what was told must not be lost with what it was told of."""
    kept = reports_folder()
    endpoint.sync_folder(os.path.dirname(kept))
    os.replace(run.path("report.jsonl"), os.path.join(kept, run.name + ".jsonl"))
    endpoint.sync_folder(kept)
    _forget_old_reports()


def _forget_old_reports() -> None:
    names = sorted(os.listdir(reports_folder()))
    for name in names[:-_REPORTS_KEPT]:
        try:
            os.unlink(os.path.join(reports_folder(), name))
        except FileNotFoundError:
            pass  # another run ends at the same time


def _remove(run: Run) -> None:
    """Take a settled run's folder away. The lock goes last, so that nobody claims half a run."""
    for name in os.listdir(run.folder):
        if name != "lock":
            os.unlink(run.path(name))
    try:
        os.unlink(endpoint.socket_path(run.name))
    except OSError:
        pass  # it is there only if its supervisor was killed
    os.unlink(run.path("lock"))
    try:
        os.rmdir(run.folder)
    except OSError as error:
        # Whoever looked in after the lock was gone made a new one, and removes it in turn.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise


def default_db() -> str:
    """Where Hermes keeps its sessions, and so where those of other agents go."""
    home = os.environ.get("HERMES_HOME") or os.path.expanduser("~/.hermes")
    return os.path.join(os.path.abspath(home), "state.db")


def boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def _lock(folder: str, *, wait: bool = False) -> int | None:
    path = os.path.join(folder, "lock")
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except (FileNotFoundError, NotADirectoryError):
        return None  # settled meanwhile, or nothing of ours
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        # The one who held it may have removed the run meanwhile: then this is nobody's lock.
        if os.path.samestat(os.fstat(fd), os.stat(path)):
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:  # a file system without locks
        os.close(fd)
        raise
    os.close(fd)
    return None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
