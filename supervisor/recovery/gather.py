"""Reads a stream's files into one sequence of frames: journal segments, spool and ring, by number.

Never changes a file. What is damaged is named, with the place; what is whole is used.

If `<stream>.settled` exists, the stream has been finished, and only its removal was interrupted:
its remaining files are ignored.

Records that compaction dropped may still be in an older segment or in the spool: they are skipped.
Spool and ring say who sent them, but neither what the kernel saw nor that the process is dead.
"""

from __future__ import annotations

import os
import stat

from ...ipc import frames, records, ring
from ...ipc.lightweight.dataclass import dataclass, field
from ..model.unwritten import Unwritten

_HOLES_TOLD = 3


@dataclass
class Gathered:
    frames: list[tuple[int, bytes]] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    damaged: dict[str, str] = field(default_factory=dict)
    """File name to what is wrong with it. A torn end is not: the writer died, that is all."""
    newest: float = 0.0
    """When the last byte was written: the last sign of life, if nobody saw the death."""
    handed_over: int = 0
    """The highest number that is known to exist, even if its frame is missing."""


def files_of(folder: str, stream: str) -> list[str]:
    return sorted(
        name
        for name in os.listdir(folder)
        if name.startswith(stream + ".") and name.endswith((".log", ".spool", ".ring"))
    )


def stored_name(stream: str) -> str:
    """The file that lists what we stored of a living stream. It is read with the segments."""
    return f"{stream}.stored.log"


def tombstone(folder: str, stream: str) -> str:
    return os.path.join(folder, stream + ".settled")


def gather(
    folder: str,
    stream: str,
    only: list[str] | None = None,
    unwritten: Unwritten | None = None,
) -> Gathered:
    """`only`: not all files. `unwritten`: what a living supervisor has in memory besides."""
    unwritten = unwritten or Unwritten()
    found = Gathered(handed_over=unwritten.refused)
    if os.path.exists(tombstone(folder, stream)):
        found.files = files_of(folder, stream)
        return found
    handshakes: dict[bytes, None] = {}
    numbered: dict[int, bytes] = {}
    through, compacted = 0, set[int]()
    for name in files_of(folder, stream) if only is None else only:
        path = os.path.join(folder, name)
        found.files.append(name)
        if not stat.S_ISREG(os.lstat(path).st_mode):
            found.damaged[name] = "not a file"
            continue
        with open(path, "rb") as file:
            data = file.read()
            if name != stored_name(stream):  # we wrote that one, so it is no sign of life
                found.newest = max(found.newest, os.fstat(file.fileno()).st_mtime)
        if name.endswith(".ring"):
            salvaged = _in_ring(data)
            found.handed_over = max(found.handed_over, ring.handed_over(data))
        else:
            salvaged = frames.salvage(data)
        if salvaged.holes:
            descriptions = [repr(hole) for hole in salvaged.holes[:_HOLES_TOLD]]
            more = len(salvaged.holes) - len(descriptions)
            found.damaged[name] = "; ".join(descriptions) + (f"; and {more} more" if more else "")
        for seq, frame in salvaged.frames:
            if seq != frames.HANDSHAKE:
                numbered.setdefault(seq, frame)
            elif frame not in handshakes:
                said = _understood(frame)
                if name.endswith((".spool", ".ring")) and said.get("kind") != "hello":
                    continue
                handshakes[frame] = None
                upto = said.get("through")
                if said.get("kind") == "compacted" and isinstance(upto, int) and upto > through:
                    through, compacted = upto, {number for number, _ in salvaged.frames}
    for seq, frame in unwritten.frames:
        if seq != frames.HANDSHAKE:
            numbered.setdefault(seq, frame)
        else:
            handshakes.setdefault(frame)
    numbered = {seq: frame for seq, frame in numbered.items() if seq > through or seq in compacted}
    found.frames = [(frames.HANDSHAKE, frame) for frame in handshakes]
    found.frames += sorted(numbered.items())
    return found


def _in_ring(data: bytes) -> frames.Salvage:
    found = frames.Salvage()
    hello = ring.hello_in(data)
    if hello is not None:
        found.frames = [(frames.HANDSHAKE, hello), *ring.frames_after(data, 0)]
    return found


def _understood(frame: bytes) -> dict[str, object]:
    try:
        return records.unpack(frames.payload_of(frame))
    except records.BadRecord:
        return {}
