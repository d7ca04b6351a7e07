"""The queue on disk: pending, done and abandoned hooks.

Never runs anything. Every change is synced before it is reported.

    hooks/waiting/<run>.<stream>/<id>.json     one hook; the hooks of one process share a folder
    hooks/waiting/<run>.<stream>/<id>.ledger   what an agent's own hooks have done so far
    hooks/waiting/<run>.<stream>/lock          held (flock) by the runner that works on the folder
    hooks/done/<id>.json, hooks/dead/<id>.json finished hooks; the newest are kept
    hooks/dropped                              how many abandoned hooks were too old to be kept

A file gets its name only when it is complete, and changes only under the folder's lock. It moves
from `waiting` to `done` or `dead` with a rename, and only the user moves it back. So whoever looks
into the folders in that order finds every hook exactly once.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os

from ...ipc import endpoint
from ...ipc.endpoint import private_folder, sync_folder
from ...ipc.lightweight.dataclass import asdict
from ..storage import run_folder as runs
from .entry import Entry as Entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# Enough for a day of hooks, and for months of failures.
_DONE_KEPT = 200
_DEAD_KEPT = 500

WAITING, DONE, DEAD = "waiting", "done", "dead"
_FIELDS = set(Entry.__annotations__)


def folder(*names: str) -> str:
    """A folder of the queue, created if it is missing."""
    path = private_folder(os.path.join(endpoint.state_folder(), "hooks"))
    for name in names:
        path = private_folder(os.path.join(path, name))
    return path


# -- adding ----------------------------------------------------------------------------------


def add(entry: Entry) -> Entry:
    """Put a hook into the queue, durably. If it is there already, return that entry instead."""
    while True:
        # Check again after each try: the runner that removed the folder may have run this hook.
        existing = find(entry.id, entry.group)
        if existing is not None:
            return existing
        group_folder = folder(WAITING, entry.group)
        try:
            _write(os.path.join(group_folder, f"{entry.id}.json"), entry)
            break
        except FileNotFoundError:
            continue  # a runner has just removed the empty folder
    sync_folder(os.path.dirname(group_folder))
    return entry


def find(id: str, group: str) -> Entry | None:
    """The hook with this id, pending or finished."""
    root = os.path.join(endpoint.state_folder(), "hooks")
    for names in ((WAITING, group), (DONE,), (DEAD,)):
        entry = read(os.path.join(root, *names, f"{id}.json"))
        if entry is not None:
            return entry
    return None


class EnqueueLog:
    """The hooks that a run has queued, noted in the run's folder.

    With it no hook is queued twice, even if it was done so long ago that it is no longer kept.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._keys: set[str] = set()
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                for line in file:
                    try:
                        self._keys.add(json.loads(line)["queued"])
                    except (ValueError, TypeError, KeyError):
                        continue  # the writer died in the middle of this line
        except FileNotFoundError:
            pass

    def add(self, entries: list[Entry]) -> list[Entry]:
        """Queue the entries that are new. Returns all of them that still exist."""
        existing = []
        for entry in entries:
            if entry.key in self._keys:
                known = find(entry.id, entry.group)
                existing += [known] if known is not None else []
                continue
            existing.append(add(entry))
            self._keys.add(entry.key)
            self._note(entry.key)
        return existing

    def _note(self, key: str) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with open(os.open(self._path, flags, 0o600), "a", encoding="utf-8") as file:
            # Starts with a newline, so that a torn line before it does not swallow this one.
            file.write("\n" + json.dumps({"queued": key}) + "\n")
            file.flush()
            os.fsync(file.fileno())


# -- working on it ---------------------------------------------------------------------------


def groups() -> list[str]:
    """The folders with pending hooks, older runs first."""
    waiting = os.path.join(endpoint.state_folder(), "hooks", WAITING)
    try:
        return [os.path.join(waiting, name) for name in sorted(os.listdir(waiting))]
    except FileNotFoundError:
        return []


def claim(group_folder: str, *, wait: bool = False) -> runs.Run | None:
    """Lock a folder. None if another process holds the lock, or the folder is gone."""
    return runs.claim(group_folder, wait=wait)


def entries(group_folder: str) -> list[Entry]:
    """The pending hooks of a folder, in the order in which they were queued."""
    try:
        names = [name for name in os.listdir(group_folder) if name.endswith(".json")]
    except FileNotFoundError:
        return []
    readable = (read(os.path.join(group_folder, name)) for name in names)
    return sorted((e for e in readable if e is not None), key=lambda e: (e.queued, e.place))


def ledger(claimed: runs.Run, entry: Entry) -> str:
    return claimed.path(f"{entry.id}.ledger")


def save(claimed: runs.Run, entry: Entry) -> None:
    _write(claimed.path(f"{entry.id}.json"), entry)


def finish(claimed: runs.Run, entry: Entry) -> None:
    """Move a hook that is done or abandoned out of `waiting`."""
    target, other = (DONE, DEAD) if entry.state == "done" else (DEAD, DONE)
    target_folder = folder(target)
    ledger_file = ledger(claimed, entry)
    if os.path.exists(ledger_file):
        if target == DEAD:
            os.replace(ledger_file, os.path.join(target_folder, f"{entry.id}.ledger"))
        else:
            os.unlink(ledger_file)
    os.replace(claimed.path(f"{entry.id}.json"), os.path.join(target_folder, f"{entry.id}.json"))
    sync_folder(target_folder)
    sync_folder(claimed.folder)
    _unlink(os.path.join(folder(other), f"{entry.id}.json"))
    _drop_old(DONE, _DONE_KEPT)
    dropped_now = _drop_old(DEAD, _DEAD_KEPT)
    if dropped_now:
        _count_dropped(dropped_now)


def release(claimed: runs.Run) -> None:
    """Unlock a folder, and remove it if it is empty."""
    names = os.listdir(claimed.folder)
    if not any(name.endswith(".json") for name in names):
        for name in names:
            # A draft that somebody is still writing stays, and so does the folder.
            if name.endswith(".ledger") or _is_dead_draft(claimed.path(name)):
                _unlink(claimed.path(name))
        _unlink(claimed.path("lock"))
        try:
            os.rmdir(claimed.folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise
    claimed.release()


def retry_abandoned(entry: Entry) -> None:
    """Queue an abandoned hook again, with as many attempts as a new one has."""
    entry.forget_failures()
    group_folder = folder(WAITING, entry.group)
    dead = folder(DEAD)
    ledger_file = os.path.join(dead, f"{entry.id}.ledger")
    if os.path.exists(ledger_file):
        os.replace(ledger_file, os.path.join(group_folder, f"{entry.id}.ledger"))
    _write(os.path.join(group_folder, f"{entry.id}.json"), entry)
    sync_folder(os.path.dirname(group_folder))
    _unlink(os.path.join(dead, f"{entry.id}.json"))


def retry_failed(entry: Entry) -> bool:
    """Make a failed hook due at once. False if a runner is working on its folder."""
    claimed = claim(os.path.join(folder(WAITING), entry.group))
    if claimed is None:
        return False
    try:
        current = read(claimed.path(f"{entry.id}.json"))
        if current is not None and current.state == "failed":
            current.forget_failures()
            save(claimed, current)
    finally:
        release(claimed)
    return True


def forget(entry: Entry) -> bool:
    """Remove a hook for good, whatever its state. False if a runner is working on its folder."""
    for state in (DONE, DEAD):
        _unlink(os.path.join(folder(state), f"{entry.id}.json"))
        _unlink(os.path.join(folder(state), f"{entry.id}.ledger"))
    group_folder = os.path.join(folder(WAITING), entry.group)
    if not os.path.exists(os.path.join(group_folder, f"{entry.id}.json")):
        return True
    claimed = claim(group_folder)
    if claimed is None:
        return not os.path.exists(os.path.join(group_folder, f"{entry.id}.json"))
    try:
        _unlink(claimed.path(f"{entry.id}.json"))
        _unlink(ledger(claimed, entry))
        sync_folder(claimed.folder)
    finally:
        release(claimed)
    return True


# -- looking ---------------------------------------------------------------------------------


def all_entries() -> Iterator[tuple[str, Entry]]:
    """All hooks with their state: waiting, running, failed, cut off, dead or done."""
    for group_folder in groups():
        locked = _is_locked(group_folder)
        for entry in entries(group_folder):
            state = entry.state
            yield ("cut off" if state == "running" and not locked else state), entry
    for state in (DEAD, DONE):
        for path in _by_age(state):
            finished = read(path)
            if finished is not None:
                yield state, finished


def dropped() -> int:
    """How many abandoned hooks were too old to be kept."""
    try:
        with open(os.path.join(folder(), "dropped")) as file:
            return int(file.read())
    except (FileNotFoundError, ValueError):
        return 0


def _is_locked(group_folder: str) -> bool:
    try:
        claimed = claim(group_folder)
    except OSError:
        return False
    if claimed is None:
        return os.path.exists(group_folder)
    claimed.release()
    return False


def read(path: str) -> Entry | None:
    """The hook in a file. None if there is none, or it cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            stored = json.load(file)
        return Entry(**{name: stored[name] for name in stored if name in _FIELDS})
    except (OSError, ValueError, TypeError):
        return None


# -- files -----------------------------------------------------------------------------------


def _write(path: str, entry: Entry) -> None:
    parent, name = os.path.split(path)
    draft = os.path.join(parent, f".{name}.{os.getpid()}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(draft, flags, 0o600), "w", encoding="utf-8") as file:
        try:
            _lock(file.fileno())  # held while this process lives; see `_is_dead_draft`
            json.dump(asdict(entry), file)
            file.flush()
            os.fsync(file.fileno())
            os.replace(draft, path)
        except BaseException:
            _unlink(draft)
            raise
    sync_folder(parent)


def _is_dead_draft(path: str) -> bool:
    """Whether the writer of this draft is dead.

    A writer that has not locked its draft yet finds it gone, and starts again.
    """
    if not path.endswith(".new"):
        return False
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        return _lock(fd)
    finally:
        os.close(fd)


def _lock(fd: int) -> bool:
    """Lock a file. False if another process holds it; True where files cannot be locked at all."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _by_age(state: str) -> list[str]:
    """The files of finished hooks, oldest first."""
    parent = folder(state)
    dated = []
    for name in os.listdir(parent):
        if name.endswith(".json"):
            path = os.path.join(parent, name)
            try:
                dated.append((os.stat(path).st_mtime_ns, path))
            except FileNotFoundError:
                continue
    return [path for _, path in sorted(dated)]


def _drop_old(state: str, kept: int) -> int:
    old = _by_age(state)[:-kept]
    for path in old:
        _unlink(path)
        _unlink(path.removesuffix(".json") + ".ledger")
    return len(old)


def _count_dropped(more: int) -> None:
    path = os.path.join(folder(), "dropped")
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(path, flags, 0o600), "r+") as file:
        before = file.read()
        file.seek(0)
        file.write(str((int(before) if before.isdecimal() else 0) + more))


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
