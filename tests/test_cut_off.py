"""A signal handler at every place where the interpreter lets one in: it raises, or it speaks.

The interpreter looks for signals at the beginning of a function, behind a call and at the end of
a loop's turn. Each of these is struck once, on the way of one record out of the process.
"""

from __future__ import annotations

import dis
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hermes_supervise.agent_shim import line, link, ring, spool
from hermes_supervise.agent_shim.link import Link
from hermes_supervise.ipc import frames
from hermes_supervise.ipc import ring as layout

OURS = {module.__file__ for module in (line, link, ring, spool, frames)}
# An exception before a new socket has a name leaves it to Python to close it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

WAYS = ["soon", "at once", "after a pause", "nobody there"]


class Line:
    """A process's line to a supervisor that looks at what it is told, and answers nothing."""

    def __init__(self, folder: str, spool_folder: str) -> None:
        self.link = Link(f"{folder}/s", spool_folder, {})
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(f"{folder}/s")
        self._listening.listen(8)
        self._listening.setblocking(False)
        self._peers: list[tuple[socket.socket, frames.Decoder]] = []
        self._folder = Path(spool_folder)
        self.told: dict[int, bytes] = {}

    def look(self) -> None:
        """At all that is out of the process by now. What was one number's once stays so."""
        for seq, frame in [*self._on_the_line(), *self.in_files()]:
            assert self.told.setdefault(seq, frame) == frame, f"{seq} is two records"

    def _on_the_line(self) -> Iterator[tuple[int, bytes]]:
        try:
            while self._listening.fileno() >= 0:
                peer = self._listening.accept()[0]
                peer.setblocking(False)
                self._peers.append((peer, frames.Decoder()))
        except BlockingIOError:
            pass
        for peer, decoder in self._peers:
            try:
                while data := peer.recv(1024 * 1024):
                    yield from ((seq, frame) for seq, frame in decoder.feed(data) if seq)
            except BlockingIOError:
                pass
            assert decoder.damage is None

    def in_files(self) -> Iterator[tuple[int, bytes]]:
        stem = self._folder / self.link.stream
        if (held := stem.with_suffix(".ring")).exists():
            yield from layout.frames_after(held.read_bytes(), 0)
        if (spooled := stem.with_suffix(".spool")).exists():
            yield from (pair for pair in frames.salvage(spooled.read_bytes()).frames if pair[0])

    def leave(self) -> None:
        """Nobody is there any more, and nobody was for long enough to be asked again."""
        self.look()
        for peer, _ in self._peers:
            peer.close()
        self._peers.clear()
        self._listening.close()

    def close(self) -> None:
        self.link._drop_ring()
        self.link._hang_up()
        self.link._spool.let_go()
        self.leave()


@contextmanager
def struck(place: int, strike: Callable[[], None]) -> Iterator[list[int]]:
    """Strike once, when signals have been looked for so many times. Holds how often they were."""
    count = [0]
    before: dict[FrameType, str] = {}

    def within(frame: FrameType, event: str, _: Any) -> Any:
        if event != "opcode":
            return within
        last = before.get(frame, "")
        before[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
        if last.startswith(("CALL", "RESUME", "JUMP_BACKWARD")):
            count[0] += 1
            if count[0] == place:
                strike()
        return within

    def entered(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in OURS:
            return None
        frame.f_trace_opcodes = True
        return within

    kept = sys.gettrace()
    sys.settrace(entered)
    try:
        yield count
    finally:
        sys.settrace(kept)


def say(at: Line, way: str, word: bytes) -> None:
    if way in ("at once", "nobody there"):
        at.link.send(word)
    else:
        if way == "after a pause":
            at.link._speak_at = 0.0  # as if it had lain for long enough
        at.link.send_soon(word)


def strike_everywhere(way: str, raising: bool) -> int:
    """How many places there were."""
    place = 0
    while True:
        place += 1
        with tempfile.TemporaryDirectory() as near, tempfile.TemporaryDirectory() as folder:
            at = Line(near, folder)
            try:
                at.link.send(b"tbegin")
                say(at, "soon", b"tbefore")
                if way == "nobody there":
                    at.leave()

                def strike(at: Line = at) -> None:
                    at.look()  # as a supervisor may at that very moment
                    if raising:
                        raise KeyboardInterrupt
                    at.link.send_soon(b"tby the handler")

                raised = False
                with struck(place, strike) as count:
                    try:
                        say(at, way, b"tstruck")
                    except KeyboardInterrupt:
                        raised = True
                if count[0] < place:
                    return place - 1
                assert raised == raising, "the agent's exception is the agent's"
                say(at, "soon", b"tafter")
                at.link.send(b"tend")
                at.look()
                assert sorted(at.told) == list(range(1, len(at.told) + 1)), "no number is missing"
                assert dict(at.in_files()) == at.told, "the supervisor may die, too"
                words = [frames.payload_of(at.told[seq]) for seq in sorted(at.told)]
                others = [word for word in words if word not in (b"tstruck", b"tby the handler")]
                assert others == [b"tbegin", b"tbefore", b"tafter", b"tend"], (place, words)
                assert words.count(b"tby the handler") == (not raising), (place, words)
                assert words.count(b"tstruck") <= 1, (place, words)
                assert raising or b"tstruck" in words, (place, words)
                assert at.link.faults == 0
            finally:
                at.close()


@pytest.mark.parametrize("way", WAYS)
def test_an_exception_there_loses_nothing_else_and_says_nothing_twice(way: str) -> None:
    assert strike_everywhere(way, raising=True) > 5


@pytest.mark.parametrize("way", WAYS)
def test_a_word_there_is_heard_once(way: str) -> None:
    assert strike_everywhere(way, raising=False) > 5
