"""Reads the files of a run as they grow: journal and spool, and what recovery put aside.

Never changes a file of the run, and reads no byte of a living file twice. The supervisor journals
what is in a ring, but not behind numbers that only the spool has: that is read here.
"""

from __future__ import annotations

import os

from ...ipc import frames, ring
from ..ingest.ring_reader import RingReader
from ..storage.run_folder import is_stream_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    Frames = list[tuple[int, bytes]]


class RunFiles:
    """The files of one run."""

    def __init__(self, folder: str, kept: str) -> None:
        self.folder = folder
        self._kept = kept
        self._rings: dict[str, RingReader] = {}
        self._places: dict[int, int] = {}
        """By inode: how far a file is read. Its name may be given to another one."""

    @property
    def gone(self) -> bool:
        """The run is over, and everything that it left was read."""
        return not os.path.isdir(self.folder) and not _names(self._kept)

    def read(self) -> Iterator[tuple[str, Frames]]:
        """What is new, by stream. What was put aside comes first: it is older."""
        for name in sorted(_names(self._kept)):
            yield name.partition(".")[0], self._read_kept(os.path.join(self._kept, name))
        for name in sorted(_names(self.folder)):
            if is_stream_file(name) and _is_journal(name):
                yield name.partition(".")[0], self._read_on(os.path.join(self.folder, name))

    def read_ring(self, stream: str, after: int) -> Frames:
        """What follows record number `after` in a stream's ring."""
        reader = self._rings.setdefault(stream, RingReader(self.folder, stream))
        try:
            return list(reader.frames_after(after))
        except OSError:
            return []  # it has none, or no longer

    def forget_kept(self) -> None:
        """What was put aside is in the outbox: remove it."""
        for name in _names(self._kept):
            path = os.path.join(self._kept, name)
            # Its number may be given to a file that begins now.
            if self._places.pop(os.stat(path).st_ino, None) is not None:
                os.unlink(path)
        try:
            os.rmdir(self._kept)
        except OSError:
            pass  # something was put there just now, or nothing ever was

    def _read_on(self, path: str) -> Frames:
        try:
            with open(path, "rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                place = self._places.get(inode, 0)
                file.seek(place)
                found, taken = whole_frames(file.read())
        except FileNotFoundError:
            return []  # put aside just now
        self._places[inode] = place + taken
        return found

    def _read_kept(self, path: str) -> Frames:
        with open(path, "rb") as file:
            inode = os.fstat(file.fileno()).st_ino
            data = file.read()
        place = self._places.get(inode, 0)
        self._places[inode] = len(data)
        if ".ring@" in path:
            hello = ring.hello_in(data)
            return [] if hello is None else [(0, hello), *ring.frames_after(data, 0)]
        return frames.salvage(data[place:]).frames


def whole_frames(data: bytes) -> tuple[list[tuple[int, bytes]], int]:
    """The frames at the beginning, and where they end. Behind them is what is being written, or
    room for more."""
    decoder = frames.Decoder()
    found = decoder.feed(data)
    return found, sum(len(frame) for _, frame in found)


def _is_journal(name: str) -> bool:
    return name.endswith((".log", ".spool")) and not name.endswith(".stored.log")


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
