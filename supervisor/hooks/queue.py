"""The queue on disk: hooks that wait, that are done, that were given up.

Never runs anything. What is written here is synced before anybody is told of it.

    hooks/waiting/<run>.<stream>/<id>.json     one hook; what one process owed is one folder
    hooks/waiting/<run>.<stream>/<id>.ledger   what Hermes' own runner has done of it
    hooks/waiting/<run>.<stream>/lock          held (flock) by whoever works on them
    hooks/done/<id>.json, hooks/dead/<id>.json what came of them; the newest are kept
    hooks/dropped                              how many dead letters were too old to be kept

A file gets its name only when it is whole, and changes only under the folder's lock; it moves
from `waiting` to `done` or `dead` with a rename, and only the user moves it back. So whoever
looks in that order finds it, and finds it once.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os

from ...ipc import endpoint
from ...ipc.endpoint import private_folder, sync_folder
from .. import run as runs
from ..plain import asdict
from .entry import Entry as Entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# Enough to see what became of a day's hooks, and of months of trouble.
_DONE_KEPT = 200
_DEAD_KEPT = 500

WAITING, DONE, DEAD = "waiting", "done", "dead"
_FIELDS = set(Entry.__annotations__)


def place(*names: str) -> str:
    """A folder of the queue, made if need be."""
    path = private_folder(os.path.join(endpoint.state_folder(), "hooks"))
    for name in names:
        path = private_folder(os.path.join(path, name))
    return path


# -- putting in ------------------------------------------------------------------------------


def add(entry: Entry) -> Entry:
    """Put it into the queue, for good once this returns; or find it there: then that one."""
    while True:
        # Also after each try: who removed the folder may have run this one, too.
        known = find(entry.id, entry.group)
        if known is not None:
            return known
        folder = place(WAITING, entry.group)
        try:
            _write(os.path.join(folder, f"{entry.id}.json"), entry)
            break
        except FileNotFoundError:
            continue  # whoever worked on the last of this folder has just removed it
    sync_folder(os.path.dirname(folder))
    return entry


def find(id: str, group: str) -> Entry | None:
    name = f"{id}.json"
    places = ((WAITING, group), (DONE,), (DEAD,))
    found = (read(os.path.join(endpoint.state_folder(), "hooks", *one, name)) for one in places)
    return next((one for one in found if one is not None), None)


class Queued:
    """Which hooks a run has put into the queue, whatever became of them: noted in its folder,
    so that no hook is queued twice, however long ago it was done."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._keys: set[str] = set()
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                for line in file:
                    try:
                        self._keys.add(json.loads(line)["queued"])
                    except (ValueError, TypeError, KeyError):
                        continue  # the line that was being written when its writer died
        except FileNotFoundError:
            pass

    def add(self, entries: list[Entry]) -> list[Entry]:
        """Queue what has not been; those of `entries` that are still there to be seen."""
        seen = []
        for entry in entries:
            if entry.key in self._keys:
                known = find(entry.id, entry.group)
                seen += [known] if known is not None else []
                continue
            seen.append(add(entry))
            self._keys.add(entry.key)
            fd = os.open(
                self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW,
                0o600,
            )  # fmt: skip
            with open(fd, "a", encoding="utf-8") as file:
                # Begins with a newline: a torn line before it must not swallow this one.
                file.write("\n" + json.dumps({"queued": entry.key}) + "\n")
                file.flush()
                os.fsync(file.fileno())
        return seen


# -- working on it ---------------------------------------------------------------------------


def groups() -> list[str]:
    """The folders with hooks that wait, those of older runs first."""
    folder = os.path.join(endpoint.state_folder(), "hooks", WAITING)
    try:
        return [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
    except FileNotFoundError:
        return []


def claim(folder: str, *, wait: bool = False) -> runs.Run | None:
    """The folder with its lock held; None if somebody else is at it, or nothing is left."""
    return runs.claim(folder, wait=wait)


def entries(folder: str) -> list[Entry]:
    """What waits in a folder, in the order it was put in."""
    try:
        names = [name for name in os.listdir(folder) if name.endswith(".json")]
    except FileNotFoundError:
        return []
    found = (read(os.path.join(folder, name)) for name in names)
    return sorted((e for e in found if e is not None), key=lambda e: (e.queued, e.place))


def ledger(claimed: runs.Run, entry: Entry) -> str:
    return claimed.path(f"{entry.id}.ledger")


def save(claimed: runs.Run, entry: Entry) -> None:
    _write(claimed.path(f"{entry.id}.json"), entry)


def settle(claimed: runs.Run, entry: Entry) -> None:
    """What is done or given up leaves those that wait."""
    target, other = (DONE, DEAD) if entry.state == "done" else (DEAD, DONE)
    folder = place(target)
    ledger_file = ledger(claimed, entry)
    if os.path.exists(ledger_file):
        if target == DEAD:
            os.replace(ledger_file, os.path.join(folder, f"{entry.id}.ledger"))
        else:
            os.unlink(ledger_file)
    os.replace(claimed.path(f"{entry.id}.json"), os.path.join(folder, f"{entry.id}.json"))
    sync_folder(folder)
    sync_folder(claimed.folder)
    _unlink(os.path.join(place(other), f"{entry.id}.json"))
    _forget_old(DONE, _DONE_KEPT)
    dropped = _forget_old(DEAD, _DEAD_KEPT)
    if dropped:
        _count_dropped(dropped)


def release(claimed: runs.Run) -> None:
    """Let go of a folder, and of one that is empty for good."""
    names = os.listdir(claimed.folder)
    if not any(name.endswith(".json") for name in names):
        for name in names:
            # Not what somebody is just writing, though: then the folder stays.
            if name.endswith(".ledger") or _was_given_up(claimed.path(name)):
                _unlink(claimed.path(name))
        _unlink(claimed.path("lock"))
        try:
            os.rmdir(claimed.folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise
    claimed.release()


def revive(entry: Entry) -> None:
    """Have a dead letter tried anew, with as many attempts as a new one has."""
    entry.forgive()
    folder = place(WAITING, entry.group)
    dead = place(DEAD)
    ledger_file = os.path.join(dead, f"{entry.id}.ledger")
    if os.path.exists(ledger_file):
        os.replace(ledger_file, os.path.join(folder, f"{entry.id}.ledger"))
    _write(os.path.join(folder, f"{entry.id}.json"), entry)
    sync_folder(os.path.dirname(folder))
    _unlink(os.path.join(dead, f"{entry.id}.json"))


def hasten(entry: Entry) -> bool:
    """Have one that failed tried anew at once; False if somebody is working on its folder."""
    claimed = claim(os.path.join(place(WAITING), entry.group))
    if claimed is None:
        return False
    try:
        now = read(claimed.path(f"{entry.id}.json"))
        if now is not None and now.state == "failed":
            now.forgive()
            save(claimed, now)
    finally:
        release(claimed)
    return True


# -- looking ---------------------------------------------------------------------------------


def settled(state: str) -> list[Entry]:
    """Those in `done` or `dead`, oldest first."""
    return [entry for path in _by_age(state) if (entry := read(path)) is not None]


def dropped() -> int:
    try:
        with open(os.path.join(place(), "dropped")) as file:
            return int(file.read())
    except (FileNotFoundError, ValueError):
        return 0


def is_worked_on(folder: str) -> bool:
    try:
        claimed = claim(folder)
    except OSError:
        return False
    if claimed is None:
        return os.path.exists(folder)
    claimed.release()
    return False


def read(path: str) -> Entry | None:
    """None where there is none, or nothing that can be understood."""
    try:
        with open(path, encoding="utf-8") as file:
            told = json.load(file)
        return Entry(**{name: told[name] for name in told if name in _FIELDS})
    except (OSError, ValueError, TypeError):
        return None


# -- files -----------------------------------------------------------------------------------


def _write(path: str, entry: Entry) -> None:
    folder, name = os.path.split(path)
    new = os.path.join(folder, f".{name}.{os.getpid()}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(new, flags, 0o600), "w", encoding="utf-8") as file:
        try:
            _lock(file.fileno())  # for as long as we live: see `_was_given_up`
            json.dump(asdict(entry), file)
            file.flush()
            os.fsync(file.fileno())
            os.replace(new, path)
        except BaseException:
            _unlink(new)
            raise
    sync_folder(folder)


def _was_given_up(path: str) -> bool:
    """A file that was being written by somebody who is dead by now. One that has not got to
    locking it yet finds it gone, and begins anew."""
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
    """Whether nobody else holds it; True, too, where files cannot be locked at all."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _by_age(state: str) -> list[str]:
    folder = place(state)
    found = []
    for name in os.listdir(folder):
        if name.endswith(".json"):
            path = os.path.join(folder, name)
            try:
                found.append((os.stat(path).st_mtime_ns, path))
            except FileNotFoundError:
                continue
    return [path for _, path in sorted(found)]


def _forget_old(state: str, kept: int) -> int:
    old = _by_age(state)[:-kept]
    for path in old:
        _unlink(path)
        _unlink(path.removesuffix(".json") + ".ledger")
    return len(old)


def _count_dropped(more: int) -> None:
    path = os.path.join(place(), "dropped")
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


def every() -> Iterator[tuple[str, Entry]]:
    """All there are, each with what it is now: waiting, running, failed, cut off, dead, done."""
    for folder in groups():
        worked_on = is_worked_on(folder)
        for entry in entries(folder):
            state = entry.state
            yield ("cut off" if state == "running" and not worked_on else state), entry
    for state in (DEAD, DONE):
        for entry in settled(state):
            yield state, entry
