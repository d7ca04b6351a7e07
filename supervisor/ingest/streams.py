"""The streams of a run and their journals: opened, written, synced, given to recovery, closed.

Never reads a connection: the server does. A stream outlives its connections; it ends with its
process, and only the run knows when that is.

What a journal does not take stays in memory, and is tried again at every sync. What is in a ring
and was not sent yet is read from there: a sender may leave deltas in its ring alone for a moment.
"""

from __future__ import annotations

import os
import time

from ..agents import registry
from ..storage import run_folder as runs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..model.unwritten import Unwritten
    from ..process.loop import Loop
    from .connection import Stream
    from .observer import Observer

_SYNC_INTERVAL = 1.0
# What the journals do not take stays in memory up to so many bytes, of all streams together.
_MOST_UNWRITTEN = 64 * 1024 * 1024


class Streams:
    def __init__(
        self,
        loop: Loop,
        folder: str,
        observer: Observer,
        acknowledge: Callable[[Stream], None],
        *,
        sync: str,
        transcript_stream: str | None,
        batch: float | None,
    ) -> None:
        """`acknowledge` is called when records of a stream came into its journal by another way
        than a connection. The others as `Server` has them."""
        self._loop = loop
        self._folder = folder
        self._observer = observer
        self._acknowledge = acknowledge
        self.always_sync = sync == "always"
        self._transcript_stream = transcript_stream
        self._sync_scheduled = False
        self._batch = batch
        self._batch_scheduled = False
        self._batch_reported = 0.0
        self._folder_is_durable = False
        self.served: dict[str, Stream] = {}
        """By name: the streams whose processes are alive, as far as we know."""
        self._closed: dict[str, Stream] = {}
        """Streams of dead processes whose journals did not take everything."""
        self._in_recovery: set[str] = set()

    def begin(
        self, hello: dict[str, object], frame: bytes, pid: int, owner: tuple[int, int | None]
    ) -> Stream:
        """The stream of a process that has said hello, in this frame. `pid`: the process whose
        death ends it; 0: no process. `owner`: the process that it belongs to, with its start."""
        from .connection import peer_frame  # start-up: only once a process connects

        stream = self._open(str(hello["stream"]), pid, frame + peer_frame(*owner))
        stream.stores_itself = registry.stores_itself(hello.get("agent"))
        return stream

    def _open(self, name: str, pid: int, handshake: bytes, after: int = 0) -> Stream:
        # Start-up: only once a process connects.
        from ..storage.journal import Journal
        from .connection import Stream

        def journal(*, begin: bool) -> Journal:
            ahead = self.always_sync
            return Journal(self._folder, name, handshake, after=after, ahead=ahead, begin=begin)

        try:
            if not self._folder_is_durable:
                runs.make_durable(self._folder)
                self._folder_is_durable = True
            stream = Stream(name, pid, journal(begin=True))
        except OSError as error:
            self.warn_about_journal(error)
            stream = Stream(name, pid, journal(begin=False))
            stream.keep_handshake(handshake, error)
        self.served[name] = stream
        return stream

    def resume(
        self, name: str, owner: tuple[int, int | None], last: int, sessions: set[str]
    ) -> Stream:
        """Continue a stream that an earlier supervisor of this run was writing. `sessions`: those
        that it announced then."""
        from .connection import peer_frame  # start-up: only once a process connects

        files = [file.split(".") for file in os.listdir(self._folder) if _is_segment(file, name)]
        numbers = [int(parts[1]) for parts in files if parts[1].isdecimal()]
        handshake = peer_frame(*owner)
        pid = 0 if name == self._transcript_stream else owner[0]
        stream = self._open(name, pid, handshake, after=max(numbers, default=0))
        stream.last = stream.received = last
        stream.sessions |= sessions
        self.appended(stream)
        return stream

    def close(self, stream: Stream, last_frame: bytes) -> None:
        del self.served[stream.name]
        if (error := stream.close(last_frame)) is not None:
            self.warn_about_journal(error)
        if stream.unwritten.frames or stream.unwritten.refused:
            self._closed[stream.name] = stream

    def unwritten(self) -> dict[str, Unwritten]:
        """What is in no journal, by stream."""
        streams = {**self.served, **self._closed}
        return {
            name: stream.unwritten
            for name, stream in streams.items()
            if stream.unwritten.frames or stream.unwritten.refused
        }

    def recovered(self, names: list[str]) -> None:
        """These streams are finished: nothing of them is needed any more."""
        for name in names:
            self._closed.pop(name, None)

    def write_what_is_left(self) -> int:
        """At the end: have the journals take what recovery could not finish, after all. Returns
        how many records they did not take."""
        lost = 0
        for stream in self._closed.values():
            try:
                stream.write_again(always_sync=True)
            except OSError:
                lost += sum(seq > 0 for seq, _ in stream.unwritten.frames)
            stream.journal.close()
        return lost

    def write_anew(self) -> None:
        """The run's folder was removed and made again: so are the journals."""
        for stream in self.served.values():
            try:
                stream.journal.write_anew()
            except OSError as error:
                self.warn_about_journal(error)

    def of(self, pid: int) -> list[Stream]:
        """The streams that end with a process."""
        return [stream for stream in self.served.values() if stream.pid == pid]

    def give_to_recovery(self, names: list[str]) -> None:
        """Recovery works on these streams. A process that connects with one of them meanwhile has
        to wait: its records must not get into a stream that is being finished."""
        self._in_recovery.update(names)

    def was_given_to_recovery(self, name: str) -> bool:
        return name in self._in_recovery

    def is_settled(self, name: str) -> bool:
        """True if recovery found the process dead and removed the stream's files. Everything that
        is still in the connection was in the ring as well."""
        files = os.listdir(self._folder)
        return name not in self.served and not any(file.startswith(name) for file in files)

    # -- the journals ------------------------------------------------------------------------

    def appended(self, stream: Stream) -> None:
        """Records may have been appended to a stream: report it, and plan what follows."""
        if stream.journal.full:
            try:
                closed = stream.journal.begin_next_segment()
            except OSError as error:
                self.warn_about_journal(error)
            else:
                self._observer.segment_closed(stream, closed)
        if stream.news:
            self._observer.records_arrived(stream)
        to_do = stream.journal.dirty or stream.ring_checks or stream.unwritten.frames
        if to_do and not self._sync_scheduled:
            self._sync_scheduled = True
            self._loop.after(_SYNC_INTERVAL, self._sync)
        waits = stream.journal.dirty or stream.ring_checks
        if self._batch is not None and waits and not self._batch_scheduled:
            self._batch_scheduled = True
            self._loop.after(self._batch, self._read_batch)

    def report_batch(self) -> None:
        """What comes after a silence does not wait for the end of the interval."""
        now = time.monotonic()
        if self._batch is not None and now - self._batch_reported >= self._batch:
            self._batch_reported = now
            self._observer.batch_journaled()

    def _read_batch(self) -> None:
        """As `_sync`, but more often, and nothing is synced."""
        self._batch_scheduled = False
        for stream in self.served.values():
            try:
                if stream.ring_checks:
                    stream.ring_checks += 1  # only syncs count
                self._read_ring(stream)
            except OSError as error:
                self.warn_about_journal(error)
        self._observer.batch_journaled()
        for stream in self.served.values():
            self.appended(stream)

    def _sync(self) -> None:
        self._sync_scheduled = False
        self._observer.synced()
        for stream in self.served.values():
            # Each on its own: the ring of an agent that streams is never empty, and what it holds
            # has to be kept also while the journal cannot be written.
            for step in (self._write_again, self._read_ring, _sync_journal):
                try:
                    step(stream)
                except OSError as error:
                    self.warn_about_journal(error)
            self.appended(stream)

    def _write_again(self, stream: Stream) -> None:
        if stream.write_again(always_sync=self.always_sync):
            self._acknowledge(stream)

    def _read_ring(self, stream: Stream) -> None:
        """Append what is in the stream's ring and was not sent yet."""
        if not stream.ring_checks:
            return
        from .ring_reader import RingReader  # start-up: only once a process connects

        stream.ring_checks -= 1
        stream.ring = stream.ring or RingReader(self._folder, stream.name)
        try:
            frames = stream.ring.frames_after(stream.received)
        except OSError:
            stream.ring_checks = 0  # it has no ring
            return
        # Behind a gap, frames are in the spool or on the connection.
        following = [pair for n, pair in enumerate(frames, stream.received + 1) if pair[0] == n]
        if following:
            stream.ring_checks = stream.RING_CHECKS
            failed = stream.append(following, always_sync=self.always_sync, room=self.room)
            if failed is not None:
                raise failed
            self._acknowledge(stream)

    def room(self) -> int:
        """How many bytes may still be kept in memory."""
        return _MOST_UNWRITTEN - sum(kept.size for kept in self.unwritten().values())

    def warn_about_journal(self, error: OSError) -> None:
        self._observer.warn(f"the journal cannot be written: {error.strerror or error}")


def _sync_journal(stream: Stream) -> None:
    stream.journal.sync()


def _is_segment(file: str, stream: str) -> bool:
    return file.startswith(stream + ".") and file.endswith(".log")
