"""Reads the files of an agent as they grow: which exist, which belong to this run, what is new.

Never writes to a file of the agent's, and never keeps one open. Reading is driven from outside
(`look`): when a file has changed, from time to time, and once more when the agent is dead.

    appended              the rest is read
    replaced, truncated   read again from the beginning; what was reported is not reported again.
    or rewritten          Seen by another inode, a smaller size, or other bytes at the beginning
                          or the end of what was read
    without a newline     the last line waits, unless its writer is dead and the line is whole
"""

from __future__ import annotations

import json
import os
from collections import Counter
from hashlib import blake2b

from ..agents.messages import moment
from ..agents.protocol import Database, LineFiles
from ..ingest.blocking_client import NotDelivered
from .deduplicator import Deduplicator
from .lines import Lines
from .ownership import Ownership

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..agents.protocol import Entry, Fold, Read, Record
    from .deduplicator import Mark


_CHUNK = 1024 * 1024
_PROBE = 256
# Seconds until a file of another run is looked at again; each time twice as long.
_FIRST_RETRY, _LAST_RETRY = 0.5, 60.0
# What a parser may raise for a line that is JSON, but not of the expected shape.
MALFORMED = (TypeError, ValueError, LookupError, AttributeError, RecursionError)


class NotOurs(Exception):
    """The transcript of another agent."""


class Transcript:
    """One file of lines. `launched`: when the agent was launched; `stood`: how long the file was
    then, if that is known. If not, the times in its lines decide what is of this run."""

    def __init__(
        self, path: str, files: LineFiles, launched: float, stood: int | None, ownership: Ownership
    ) -> None:
        self.path = path
        self._files = files
        self._launched = launched
        self._stood = stood
        self._ownership = ownership
        self._is_ours = False
        self._complained = False
        self._identity: tuple[int, int] | None = None
        self._begin()

    def _begin(self) -> None:
        self._lines = Lines()
        self._fold: Fold = self._files.fold(self.path)
        self._head = self._tail = b""
        self._times: Counter[bytes] = Counter()
        self._live = False
        self._first = True

    def read(self, *, final: bool) -> Iterator[list[Read]]:
        """What is new, a piece of the file at a time."""
        with open(self.path, "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            if self._identity is not None and self._was_rewritten(file.fileno(), status):
                self._stood = 0 if self._files.named_by_user else None
                self._begin()
            self._identity = status.st_dev, status.st_ino
            while data := os.pread(file.fileno(), _CHUNK, self._lines.offset):
                if len(self._head) < _PROBE:
                    self._head = (self._head + data)[:_PROBE]
                self._tail = (self._tail + data)[-_PROBE:]
                yield [
                    record
                    for place, line in self._lines.feed(data)
                    for record in self._line(place, line)
                ]
        place, rest = self._lines.rest()
        if final and _is_whole(rest):
            yield list(self._line(place, rest))

    def _was_rewritten(self, fd: int, status: os.stat_result) -> bool:
        offset = self._lines.offset
        return (
            (status.st_dev, status.st_ino) != self._identity
            or status.st_size < offset
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
            live = self._decide_live(place, entry)
            if self._first and not self._is_ours:
                self._first = False
                if not self._belongs(entry):
                    raise NotOurs
            records = self._fold.line(entry, key)
            if live and records and not self._is_ours:
                if not self._decide_ours():
                    raise NotOurs
                self._is_ours = True
        except MALFORMED:
            name = os.path.basename(self.path)
            text = f"{name} has a line at byte {place} that could not be parsed"
            trouble: Record = {"kind": "trouble", "session": self._fold.family, "text": text}
            if not self._complained:  # once, however many there are
                self._complained = self._live
                yield trouble, "malformed", self._live
            return
        for number, record in enumerate(records):
            yield record, f"{key}.{number}", live

    def _decide_live(self, place: int, entry: Entry) -> bool:
        """True if a line belongs to this run. Then all lines that follow do."""
        if self._stood is not None:
            self._live = place >= self._stood
        elif not self._live:
            at = moment(self._files.time_of(entry))
            self._live = at is not None and at >= self._launched
        return self._live

    def _belongs(self, entry: Entry) -> bool:
        return (
            self._files.belongs(entry)
            or self._files.written_here(self.path) is True
            or self._ownership.is_held(self.path, self._files.is_server)
        )

    def _decide_ours(self) -> bool:
        written_here = self._files.written_here(self.path)
        if written_here is not None:
            return written_here and self._ownership.claim(self.path)
        owners = self._files.owners(self._fold)
        named_by_user = self._files.named_by_user
        return self._ownership.decide(
            self.path, owners, named_by_user=named_by_user, is_server=self._files.is_server
        )


def _files_of(files: LineFiles) -> Iterator[str]:
    """Everything in the folders of a source. A folder may be a single file instead."""
    for place in files.folders():
        if not os.path.isdir(place):
            yield place
        for folder, below, names in os.walk(place):
            below.sort()
            # The names begin with a time: a parent comes before its subagents.
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
        sources: list[LineFiles | Database],
        launched: float,
        stood: dict[str, int],
        ownership: Ownership,
        deduplicator: Deduplicator,
        report: Callable[[list[tuple[Mark, Record]]], None],
        clock: Callable[[], float],
    ) -> None:
        """`stood`: how long the files that the user named were at the launch."""
        self._sources = sources
        self._launched = launched
        self._stood = stood
        self._ownership = ownership
        self._deduplicator = deduplicator
        self._report = report
        self._clock = clock
        self._old_sizes: dict[str, int] = {}
        self._transcripts: dict[str, Transcript] = {}
        self._seen: dict[str, tuple[int, int, int]] = {}
        self._refused: dict[str, tuple[float, float]] = {}
        self.unread: list[str] = []
        """Of this run, and not readable when they had to be read to their end: each with why."""

    def folders(self) -> list[str]:
        return [folder for source in self._sources for folder in source.folders()]

    def is_idle(self) -> bool:
        """True if nobody continues in the background what the agent was doing when it ended."""
        return all(source.is_idle() for source in self._sources if isinstance(source, Database))

    def look(self, changed: set[str] | None = None, *, final: bool = False) -> None:
        """Read what is new in these files, or in all."""
        databases = [source for source in self._sources if isinstance(source, Database)]
        first = set().union(*(database.look_first() for database in databases))
        changed = None if changed is None else changed | first
        for source in self._sources:
            if isinstance(source, Database):
                for piece in source.read(final=final):
                    self._report_new(piece)
                continue
            known = _files_of(source) if changed is None else sorted(changed)
            for path in filter(source.accepts, known):
                try:
                    self._look_at(source, path, final)
                except NotDelivered:
                    raise
                except OSError as error:  # the others are readable
                    removed = isinstance(error, FileNotFoundError | NotADirectoryError)
                    ours = source.named_by_user or self._ownership.is_noted(path)
                    if final and ours and not removed:
                        self._could_not_read(path, error.strerror or str(error))

    def _look_at(self, files: LineFiles, path: str, final: bool) -> None:
        status = os.stat(path)
        now = (status.st_ino, status.st_size, status.st_mtime_ns)
        if self._seen.get(path) == now and not final:
            return
        if not final and self._clock() < self._refused.get(path, (0.0, 0.0))[0]:
            return
        self._seen[path] = now
        transcript = self._transcripts.get(path)
        if transcript is None:
            if status.st_mtime < self._launched:
                self._old_sizes[path] = status.st_size  # not written to since the launch
                return
            stood = self._old_sizes.get(path)
            if files.named_by_user:
                stood = self._stood.get(path, 0)
            transcript = Transcript(path, files, self._launched, stood, self._ownership)
            self._transcripts[path] = transcript
        try:
            for piece in transcript.read(final=final):
                self._report_new(piece)
        except NotOurs:
            if final and self._ownership.is_noted(path):
                self._could_not_read(path, "another process has claimed it")
            # It may become ours: our agent may resume that session.
            del self._transcripts[path], self._seen[path]
            wait = min(2 * self._refused.get(path, (0.0, _FIRST_RETRY / 2))[1], _LAST_RETRY)
            self._refused[path] = (self._clock() + wait, wait)

    def _could_not_read(self, path: str, why: str) -> None:
        self.unread.append(f"{os.path.basename(path)} could not be read to its end: {why}")

    def _report_new(self, read: list[Read]) -> None:
        now = self._clock()
        new = []
        for record, key, live in read:
            new += self._deduplicator.new(record, key, now, live=live)
        self._report(new)
