"""A connection to a state.db that others also use: patient, harmless, and durable on commit.

Never reads or writes a row.

C1  Once COMMIT has returned, no power cut undoes it, whatever the journal mode: with a
    rollback journal the commit is the removal of a file, and a removed name comes back unless
    its folder was synced. Only `synchronous = EXTRA` does that.
C2  The WAL of another process is neither checkpointed nor unlinked, not even by closing last.
C3  What was committed is in the file that has the path now, or `Replaced` says that it is not.
"""

from __future__ import annotations

import os
import time
from array import array

import apsw

from ...ipc.endpoint import sync_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 150.0

# What undoes one statement is kept in memory up to so many bytes. Because of the search index
# every message needs it, and SQLite's default, 64 KiB, would have most of it written into a
# temporary file: twice as many writes as all others, of what was said, outside of our folders.
_UNDONE_IN_MEMORY = 8 * 1024 * 1024
if not apsw.connections():  # whose library cannot be stopped under them
    apsw.shutdown()
    apsw.config(apsw.SQLITE_CONFIG_STMTJRNL_SPILL, _UNDONE_IN_MEMORY)
    apsw.initialize()


class StateDbError(Exception):
    """state.db could not be read or written; the text names file and reason."""


class Replaced(StateDbError):
    """Another file has the path now: we wrote to a file that nobody will find."""


class Patience:
    """Waits for another process that holds the file: at times Hermes optimises its index for half a
    minute."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._since: float | None = None

    def __call__(self, tries: int) -> bool:
        now = time.monotonic()
        if tries == 0 or self._since is None:
            self._since = now
        if now - self._since > self.seconds:
            return False
        # Jitter, so that two who wait do not wake together for ever.
        jitter = os.urandom(1)[0] / 255
        time.sleep(0.01 + 0.05 * jitter if tries < 20 else 0.1 + 0.2 * jitter)
        return True


def to_write(path: str, patience: Patience) -> apsw.Connection:
    _make_folder(os.path.dirname(os.path.abspath(path)))
    before = os.umask(0o077)
    try:
        db = apsw.Connection(path)
    finally:
        os.umask(before)
    db.set_busy_handler(patience)
    _keep_the_wal(db)
    db.execute("PRAGMA foreign_keys = ON")
    db.execute("PRAGMA synchronous = EXTRA")
    # KiB, used as far as needed: of a long recovery, the pages of the search index that are merged.
    db.execute("PRAGMA cache_size = -24000")
    return db


def to_read(path: str, patience: Patience) -> apsw.Connection:
    db = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
    db.set_busy_handler(patience)
    _keep_the_wal(db)
    return db


def insist(patience: Patience, work: Callable[[], None]) -> None:
    """Retry where SQLite gives up without asking its busy handler: two processes wait for each
    other, as when both switch a new file to WAL."""
    tries = 0
    while True:
        try:
            return work()
        except apsw.BusyError:
            if not patience(tries):
                raise
            tries += 1


class transaction:
    """Everything that is done within it is committed, or nothing."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._db.execute("COMMIT")
        finally:
            # Also after a commit that failed: it would hold the lock until we exit.
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        if kind is None and has_moved(self._db):
            raise Replaced(f"{self._db.filename}: replaced by another file while it was written")


class plain_errors:
    """Within it, every error of SQLite and of the system becomes a `StateDbError`."""

    def __init__(self, path: str, patience: Patience) -> None:
        self._path = path
        self._patience = patience

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, apsw.Error | OSError | ValueError):  # ValueError: no path can be this
            why = explained(error, self._path, self._patience)
            raise StateDbError(f"{self._path}: {why}") from error


def make_last(db: apsw.Connection) -> None:
    """Have this transaction sync the file though it changes nothing.

    The rows that we read may have been written by a process that did not sync, or was killed before
    it could. Before another copy is deleted because of them, they must be durable.
    """
    [version] = db.execute("PRAGMA user_version").fetchone() or [0]
    db.execute(f"PRAGMA user_version = {version}")


def has_moved(db: apsw.Connection) -> bool:
    answer = array("i", [0])
    db.file_control("main", apsw.SQLITE_FCNTL_HAS_MOVED, answer.buffer_info()[0])
    return bool(answer[0])


def explained(error: Exception, path: str, patience: Patience) -> str:
    kinds: list[tuple[type[Exception], str]] = [
        (apsw.BusyError, f"locked by another process for more than {patience.seconds:g} s"),
        (apsw.NotADBError, "not a database"),
        (apsw.CorruptError, "malformed"),
        (apsw.FullError, "no room on the disk"),
        (apsw.ReadOnlyError, "read-only"),
        (apsw.CantOpenError, "cannot be opened" + _why_not(path)),
    ]
    for kind, words in kinds:
        if isinstance(error, kind):
            return f"{words} ({error})"
    return str(error)


def _why_not(path: str) -> str:
    """What SQLite does not say: why a file cannot be opened for writing."""
    if "\0" in path:
        return ""
    if os.path.isdir(path):
        return ", it is a folder"
    folder = os.path.dirname(os.path.abspath(path))
    return "" if os.access(folder, os.W_OK) else ", its folder is read-only"


def _keep_the_wal(db: apsw.Connection) -> None:
    """Leave the WAL in place when we close: it may be all that a crashed writer left."""
    flag = array("i", [1])
    db.file_control("main", apsw.SQLITE_FCNTL_PERSIST_WAL, flag.buffer_info()[0])
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)


def _make_folder(path: str) -> None:
    """With those above it, and to last: SQLite syncs the folder of its file, and no other."""
    if os.path.isdir(path):
        return
    above = os.path.dirname(path)
    _make_folder(above)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
    sync_folder(above)
