"""The files of an agent, read as they grow: which there are, which are this run's, what is new.

Never writes to a file of the agent's, and never keeps one open. Reading is driven from outside
(`look`): when a file was changed, now and then, and once more when the agent is dead.

    appended           the rest is read
    replaced, cut off or changed before that (another inode, a smaller size, other bytes at the
    beginning or at the end of what was read)
                       read again from its beginning; what was told is not told again
    without an end     the last line waits, unless its writer is dead and it is whole
"""

from __future__ import annotations

import json
import os
from collections import Counter
from hashlib import blake2b

from ..speaker import Unheard
from .jsonl import SOURCE as NAMED
from .lines import Lines
from .messages import moment
from .ours import Ours
from .teller import Teller

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, Protocol

    from .messages import Entry, Record
    from .teller import Mark

    Read = tuple[Record, str, bool]
    """A record, the key it has whenever it is read, and whether it is of this run."""

    class Fold(Protocol):
        family: str

        def line(self, entry: Entry, key: str) -> list[Record]: ...

    class Adapter(Protocol):
        source: str

        def folders(self) -> list[str]: ...
        def is_one(self, path: str) -> bool: ...
        def fold(self, path: str) -> Any: ...
        def belongs(self, entry: Entry) -> bool: ...
        def owners(self, fold: Any) -> list[int]: ...

    class Database(Protocol):
        def folders(self) -> list[str]: ...
        def read(self, *, final: bool) -> Iterator[list[Read]]: ...


_CHUNK = 1024 * 1024
_PROBE = 256
# Seconds until a file that was not ours is looked at again; each time twice as long.
_ASK_AGAIN, _ASK_LAST = 0.5, 60.0
# What a line that is JSON, but not what an adapter expects, can raise in it.
MALFORMED = (TypeError, ValueError, LookupError, AttributeError, RecursionError)


class NotOurs(Exception):
    """The transcript of another agent."""


class Transcript:
    """One file of lines. `launched`: when the agent was started; `stood`: how long the file was
    at that moment, where that is known. Else the times in its lines tell."""

    def __init__(
        self, path: str, adapter: Adapter, launched: float, stood: int | None, ours: Ours
    ) -> None:
        self.path = path
        self._adapter = adapter
        self._launched = launched
        self._stood = stood
        self._ours = ours
        self._is_ours = False
        self._complained = False
        self._identity: tuple[int, int] | None = None
        self._begin()

    def _begin(self) -> None:
        self._lines = Lines()
        self._fold: Fold = self._adapter.fold(self.path)
        self._head = self._tail = b""
        self._times: Counter[bytes] = Counter()
        self._live = False
        self._first = True

    def read(self, *, final: bool) -> Iterator[list[Read]]:
        """What is new, a piece of the file at a time."""
        with open(self.path, "rb", buffering=0) as file:
            found = os.fstat(file.fileno())
            if self._identity is not None and self._was_rewritten(file.fileno(), found):
                self._stood = 0 if self._adapter.source == NAMED else None
                self._begin()
            self._identity = found.st_dev, found.st_ino
            while data := os.pread(file.fileno(), _CHUNK, self._lines.offset):
                if len(self._head) < _PROBE:
                    self._head = (self._head + data)[:_PROBE]
                self._tail = (self._tail + data)[-_PROBE:]
                yield [
                    one for place, line in self._lines.feed(data) for one in self._line(place, line)
                ]
        place, rest = self._lines.rest()
        if final and _is_whole(rest):
            yield list(self._line(place, rest))

    def _was_rewritten(self, fd: int, found: os.stat_result) -> bool:
        offset = self._lines.offset
        return (
            (found.st_dev, found.st_ino) != self._identity
            or found.st_size < offset
            or os.pread(fd, len(self._head), 0) != self._head
            or os.pread(fd, len(self._tail), offset - len(self._tail)) != self._tail
        )

    def _line(self, place: int, line: bytes) -> Iterator[Read]:
        digest = blake2b(line, digest_size=12).digest()
        self._times[digest] += 1
        key = f"{digest.hex()}-{self._times[digest]}"
        try:
            entry = json.loads(line)
            if not isinstance(entry, dict):
                raise ValueError("not an object")
            live = self._is_live(place, entry)
            if self._first and not self._is_ours:
                self._first = False
                if not self._adapter.belongs(entry) and not self._ours.held(self.path):
                    raise NotOurs
            records = self._fold.line(entry, key)
            if live and records and not self._is_ours:
                if not self._ours.are(self.path, self._adapter.owners(self._fold)):
                    raise NotOurs
                self._is_ours = True
        except MALFORMED:
            name = os.path.basename(self.path)
            text = f"{name} has a line at byte {place} that is not understood"
            trouble: Record = {"kind": "trouble", "session": self._fold.family, "text": text}
            if not self._complained:  # of the first alone, however many there are
                self._complained = self._live
                yield trouble, "malformed", self._live
            return
        for number, record in enumerate(records):
            yield record, f"{key}.{number}", live

    def _is_live(self, place: int, entry: Entry) -> bool:
        """Of this run, and not what stood there before."""
        if self._stood is not None:
            self._live = place >= self._stood
        elif not self._live:
            at = moment(entry.get("timestamp") or entry.get("startTime"))
            self._live = at is not None and at >= self._launched
        return self._live


def _files(adapter: Adapter) -> Iterator[str]:
    """Everything in its folders. A folder may be a file, too, that the user has named."""
    for place in adapter.folders():
        if not os.path.isdir(place):
            yield place
        for folder, below, names in os.walk(place):
            below.sort()
            # Their names begin with when they began: a parent comes before its subagents.
            yield from (os.path.join(folder, name) for name in sorted(names))


def _is_whole(line: bytes) -> bool:
    try:
        return bool(line.strip()) and json.loads(line) is not None
    except ValueError:
        return False


class Follower:
    """All the transcripts of one run."""

    def __init__(
        self,
        adapters: list[Adapter],
        databases: list[Database],
        launched: float,
        named: dict[str, int],
        ours: Ours,
        teller: Teller,
        say: Callable[[list[tuple[Mark, Record]]], None],
        clock: Callable[[], float],
    ) -> None:
        """`named`: the files that the user named, and their sizes when the agent was started."""
        self._adapters = adapters
        self._databases = databases
        self._launched = launched
        self._named = named
        self._ours = ours
        self._teller = teller
        self._say = say
        self._clock = clock
        self._stood: dict[str, int] = {}
        self._transcripts: dict[str, Transcript] = {}
        self._seen: dict[str, tuple[int, int, int]] = {}
        self._refused: dict[str, tuple[float, float]] = {}

    def folders(self) -> list[str]:
        sources: list[Adapter | Database] = [*self._adapters, *self._databases]
        return [folder for source in sources for folder in source.folders()]

    def look(self, changed: set[str] | None = None, *, final: bool = False) -> None:
        """Read what is new in these files, or in all."""
        for adapter in self._adapters:
            known = _files(adapter) if changed is None else sorted(changed)
            for path in filter(adapter.is_one, known):
                try:
                    self._look_at(adapter, path, final)
                except Unheard:
                    raise
                except OSError:
                    continue  # gone meanwhile, or not to be read: the others are
        for database in self._databases:
            for piece in database.read(final=final):
                self._tell(piece)

    def _look_at(self, adapter: Adapter, path: str, final: bool) -> None:
        found = os.stat(path)
        now = (found.st_ino, found.st_size, found.st_mtime_ns)
        if self._seen.get(path) == now and not final:
            return
        if not final and self._clock() < self._refused.get(path, (0.0, 0.0))[0]:
            return
        self._seen[path] = now
        transcript = self._transcripts.get(path)
        if transcript is None:
            if found.st_mtime < self._launched:
                self._stood[path] = found.st_size  # as it was before the agent came
                return
            stood = self._stood.get(path)
            if adapter.source == NAMED:
                stood = self._named.get(path, 0)
            transcript = Transcript(path, adapter, self._launched, stood, self._ours)
            self._transcripts[path] = transcript
        try:
            for piece in transcript.read(final=final):
                self._tell(piece)
        except NotOurs:
            # It may become ours yet: our agent may take the session up.
            del self._transcripts[path], self._seen[path]
            wait = min(2 * self._refused.get(path, (0.0, _ASK_AGAIN / 2))[1], _ASK_LAST)
            self._refused[path] = (self._clock() + wait, wait)

    def _tell(self, read: list[Read]) -> None:
        now = self._clock()
        told = []
        for record, key, live in read:
            told += self._teller.tell(record, key, now, live=live)
        self._say(told)
