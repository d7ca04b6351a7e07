"""An agent's own transcript, byte for byte, as frames that are shipped beside its records.

Never interprets a line: an agent that resumes a session from its own file needs that file, and the
rows of state.db do not make one. Which file it is, the transcript process reports with the session.

    raw    {"kind": "raw", "session", "path", "version", "inode", "offset", "text" or "base64"}
           a piece of the file. `version` rises when the file is another one, or was cut: its
           pieces begin at 0 again
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode

from ...ipc import frames, records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_PIECE = 512 * 1024
# So many pieces at once: what is said meanwhile is shipped between them.
_AT_ONCE = 16


class RawFile:
    """One transcript, and how far it was read."""

    def __init__(self, path: str, session: str, stream: str) -> None:
        self.path = path
        self.session = session
        self.stream = stream
        self.version = 1
        self.inode = 0
        self.offset = 0
        self.is_whole = False
        """There was nothing more to read the last time."""

    def read(self, *, final: bool) -> list[bytes]:
        """What is new, up to the last line that is whole. `final`: nobody writes any more."""
        try:
            with open(os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
                found = os.fstat(file.fileno())
                if self.inode and (found.st_ino != self.inode or found.st_size < self.offset):
                    self.version += 1
                    self.offset = 0
                self.inode = found.st_ino
                file.seek(self.offset)
                made: list[bytes] = []
                while len(made) < _AT_ONCE and (piece := self._piece(file.read(_PIECE), final)):
                    made.append(self._frame(piece))
                    self.offset += len(piece)
                    file.seek(self.offset)
                self.is_whole = len(made) < _AT_ONCE
                return made
        except OSError:
            self.is_whole = True  # removed, or not there yet
            return []

    def _piece(self, data: bytes, final: bool) -> bytes:
        end = data.rfind(b"\n") + 1
        return data[:end] if end else data if final or len(data) == _PIECE else b""

    def _frame(self, piece: bytes) -> bytes:
        record: dict[str, Any] = {
            "kind": "raw", "session": self.session, "path": self.path, "version": self.version,
            "inode": self.inode, "offset": self.offset,
        }  # fmt: skip
        try:
            record["text"] = piece.decode()
        except UnicodeDecodeError:
            record["base64"] = b64encode(piece).decode()
        return frames.encode(frames.HANDSHAKE, records.fit(record))

    def as_record(self) -> list[Any]:
        return [self.session, self.stream, self.version, self.inode, self.offset]

    def restore(self, record: dict[str, Any]) -> None:
        """A frame of ours was in the outbox."""
        self.version, self.inode = int(record["version"]), int(record["inode"])
        self.offset = int(record["offset"]) + len(_bytes(record))


def restored(path: str, known: list[Any]) -> RawFile:
    made = RawFile(path, str(known[0]), str(known[1]))
    made.version, made.inode, made.offset = (int(number) for number in known[2:])
    return made


def put_together(shipped: Iterable[bytes]) -> dict[str, tuple[str, bytes]]:
    """By the path that it had: the session and the contents of each file, from the frames of one
    stream. Of several versions the last one of which the beginning is there."""
    pieces: dict[tuple[str, int], dict[int, bytes]] = {}
    sessions: dict[str, str] = {}
    for frame in shipped:
        if frames.number_of(frame) != frames.HANDSHAKE:
            continue
        record = _record(frame)
        if record.get("kind") != "raw" or not _is_sound(record):
            continue
        sessions[record["path"]] = record["session"]
        known = pieces.setdefault((record["path"], record["version"]), {})
        known[record["offset"]] = _bytes(record)
    found: dict[str, tuple[str, bytes]] = {}
    for (path, _), placed in sorted(pieces.items()):
        contents = b""
        while piece := placed.get(len(contents)):
            contents += piece
        if contents:
            found[path] = sessions[path], contents
    return found


def _is_sound(record: dict[str, Any]) -> bool:
    texts = (record.get("path"), record.get("session"))
    numbers = (record.get("version"), record.get("offset"))
    return all(isinstance(x, str) for x in texts) and all(isinstance(x, int) for x in numbers)


def _bytes(record: dict[str, Any]) -> bytes:
    text, coded = record.get("text"), record.get("base64")
    if isinstance(text, str):
        return text.encode("utf-8", "surrogatepass")
    try:
        return b64decode(coded) if isinstance(coded, str) else b""
    except ValueError:
        return b""


def _record(frame: bytes) -> dict[str, Any]:
    try:
        return records.unpack(frames.payload_of(frame))
    except records.BadRecord:
        return {}
