"""A signal handler at every place where the interpreter lets one in: it raises, speaks or forks.

The interpreter looks for signals at the beginning of a function, behind a call and at the end of
a loop's turn. Each of these is struck once, on the way of one record out of the process.
"""

from __future__ import annotations

import dis
import gc
import os
import signal
import socket
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from hermes_supervise.agent_shim import chute, line, link, ring, spool
from hermes_supervise.agent_shim.link import Link
from hermes_supervise.ipc import frames
from hermes_supervise.ipc import ring as layout

OURS = {module.__file__ for module in (chute, line, link, ring, spool, frames)}
LETS_IN = ("CALL", "RESUME", "JUMP_BACKWARD")

# An exception before a new socket has a name leaves it to Python to close it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

WAYS = ["soon", "at once", "after a pause", "after another's word", "nobody there"]


@pytest.fixture(autouse=True)
def left_as_it_was() -> Iterator[None]:
    yield
    gc.collect()  # closes it here, and not in the middle of another test
    assert sys.exc_info() == (None, None, None)


class Line:
    """A process's line to a supervisor that looks at what it is told, and answers nothing."""

    def __init__(self, folder: str, spool_folder: str) -> None:
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(f"{folder}/s")
        self._listening.listen(8)
        self._listening.setblocking(False)
        self._peers: list[tuple[socket.socket, frames.Decoder]] = []
        self._folder = Path(spool_folder)
        self.told: dict[int, bytes] = {}
        self.link = Link(f"{folder}/s", spool_folder, {})
        self.link.send(b"tbegin")
        self.link.send_soon(b"tbefore")

    def look(self) -> None:
        """At all that is out of the process by now. What was one number's once stays so."""
        for seq, frame in [*self._on_the_line(), *self.in_files()]:
            assert self.told.setdefault(seq, frame) == frame, f"{seq} is two records"

    def words(self) -> list[bytes]:
        """All that was ever told, which is in files, too, and of which no number is missing."""
        self.look()
        assert dict(self.in_files()) == self.told, "the supervisor may die, too"
        return self.words_in_files()

    def words_in_files(self) -> list[bytes]:
        kept = dict(self.in_files())
        assert sorted(kept) == list(range(1, len(kept) + 1)), sorted(kept)
        return [frames.payload_of(kept[seq])[:20] for seq in sorted(kept)]

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
        """Nobody is there any more."""
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
def a_line() -> Iterator[Line]:
    with tempfile.TemporaryDirectory() as near, tempfile.TemporaryDirectory() as folder:
        at = Line(near, folder)
        try:
            yield at
        finally:
            at.close()


@cache
def lets_in(code: CodeType) -> dict[int, int]:
    """The instructions behind which signals are looked for, and where each goes on."""
    steps = list(dis.get_instructions(code))
    found = {}
    for step, following in pairwise(steps):
        if step.opname.startswith(LETS_IN):
            found[step.offset] = step.argval if step.opcode in dis.hasjrel else following.offset
    return found


@contextmanager
def struck(place: int, strike: Callable[[], None]) -> Iterator[list[int]]:
    """Strike once, when signals have been looked for so many times. Holds how often they were."""
    count = [0]
    goes_on: dict[object, int | None] = {}

    def about_to_run(where: object, code: CodeType, offset: int) -> None:
        # A call that failed goes on elsewhere, and nobody looks for signals before.
        looked = goes_on.get(where) == offset
        goes_on[where] = lets_in(code).get(offset)
        if looked:
            count[0] += 1
            if count[0] == place:
                strike()

    with instructions(about_to_run):
        yield count


if sys.version_info >= (3, 12):

    @contextmanager
    def instructions(about_to_run: Callable[[object, CodeType, int], None]) -> Iterator[None]:
        seen = sys.monitoring
        tool, event = seen.DEBUGGER_ID, seen.events.INSTRUCTION

        def called(code: CodeType, offset: int) -> Any:
            if code.co_filename not in OURS:
                return seen.DISABLE
            frame = sys._getframe(1)  # as a signal handler is given it
            return about_to_run(frame, code, offset)

        seen.use_tool_id(tool, "struck")
        seen.register_callback(tool, event, called)
        seen.set_events(tool, event)
        try:
            yield
        finally:
            seen.set_events(tool, 0)
            seen.free_tool_id(tool)

else:

    @contextmanager
    def instructions(about_to_run: Callable[[object, CodeType, int], None]) -> Iterator[None]:
        def within(frame: FrameType, event: str, _: Any) -> Any:
            if event == "opcode":
                about_to_run(frame, frame.f_code, frame.f_lasti)
            return within

        def entered(frame: FrameType, event: str, _: Any) -> Any:
            if frame.f_code.co_filename not in OURS:
                return None
            frame.f_trace_opcodes = True
            return within

        kept = sys.gettrace()
        sys.settrace(entered)
        try:
            yield
        finally:
            sys.settrace(kept)


def cut_off() -> None:
    raise KeyboardInterrupt


def say(at: Line, way: str, word: bytes) -> None:
    if way in ("at once", "nobody there"):
        at.link.send(word)
    else:
        at.link.send_soon(word)


def prepare(at: Line, way: str) -> None:
    if way == "nobody there":
        at.look()
        at.leave()
    elif way.startswith("after"):
        assert at.link._alone(lambda: None)
        assert at.link._chute is None
    if way == "after a pause":
        at.link._speak_at = 0.0  # as if what came before had lain for long enough
        assert at.link._ring is not None
        at.link._chute = chute.begin(at.link, at.link._ring)


def interrupted(at: Line, way: str, word: bytes, place: int) -> int:
    """Say a word, and be struck by an exception. How often signals were looked for."""

    def strike() -> None:
        at.look()  # as a supervisor may at that very moment
        raise KeyboardInterrupt

    raised = False
    with struck(place, strike) as count:
        try:
            say(at, way, word)
        except KeyboardInterrupt:
            raised = True
    assert raised == (count[0] >= place), "the agent's exception is the agent's"
    return count[0]


@pytest.mark.parametrize("way", WAYS)
def test_an_exception_there_loses_nothing_else_and_says_nothing_twice(way: str) -> None:
    place = 0
    while True:
        place += 1
        with a_line() as at:
            prepare(at, way)
            if interrupted(at, way, b"tstruck", place) < place:
                break
            at.link.send_soon(b"tafter")
            at.link.send(b"tend")
            words = at.words()
            rest = [word for word in words if word != b"tstruck"]
            assert rest == [b"tbegin", b"tbefore", b"tafter", b"tend"], (place, words)
            assert words.count(b"tstruck") <= 1, (place, words)
            assert at.link.faults == 0
    assert place > 10


def test_a_second_exception_while_the_first_is_mended_says_nothing_twice() -> None:
    """One at every place of a call and one at every place of the next."""
    first = 0
    while True:
        first += 1
        with a_line() as at:
            if interrupted(at, "at once", b"tone", first) < first:
                break
        second = 0
        while True:
            second += 1
            with a_line() as at:
                interrupted(at, "at once", b"tone", first)
                found = interrupted(at, "soon", b"ttwo", second)
                at.link.send(b"tend")
                words = at.words()
                assert len(words) == len(set(words)), (first, second, words)
                assert [word for word in words if word not in (b"tone", b"ttwo")] == [
                    b"tbegin", b"tbefore", b"tend",
                ]  # fmt: skip
            if found < second:
                break
    assert first > 10


@pytest.mark.parametrize("length", [1, 300_000], ids=["short", "a larger ring is made for"])
@pytest.mark.parametrize("way", WAYS)
def test_a_word_there_is_heard_once_and_what_it_struck_is_too(way: str, length: int) -> None:
    place = 0
    while True:
        place += 1
        with a_line() as at:
            prepare(at, way)

            def strike(at: Line = at) -> None:
                at.look()
                at.link.send_soon(b"tby the handler     " + b"!" * length)

            with struck(place, strike) as count:
                say(at, way, b"tstruck")
            if count[0] < place:
                break
            handed_over = {frames.payload_of(frame) for _, frame in at.in_files()}
            assert b"tstruck" in handed_over, f"{place}: the call has returned"
            at.link.send(b"tend")
            words = at.words()
            assert words[:2] == [b"tbegin", b"tbefore"] and words[-1] == b"tend", (place, words)
            assert sorted(words[2:-1]) == [b"tby the handler     ", b"tstruck"], (place, words)
            assert at.link.faults == 0
    assert place > 10


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_there_leaves_both_with_a_stream_of_their_own() -> None:
    """In a handler that returns in both: the child finds itself in the middle of the call."""
    place = 0
    while True:
        place += 1
        with a_line() as at:
            pids: list[int] = []
            with struck(place, lambda pids=pids: pids.append(os.fork())) as count:  # type: ignore[misc]
                at.link.send_soon(b"tstruck")
            if pids == [0]:
                at.link.send(b"tchild")
                said = at.words_in_files()
                before_it_began = [b"tstruck", b"tchild"] if place == 1 else []
                os._exit(said not in ([b"tchild"], before_it_began))
            if count[0] < place:
                break
            assert os.waitstatus_to_exitcode(os.waitpid(pids[0], 0)[1]) == 0, place
            at.link.send(b"tend")
            assert at.words_in_files() == [b"tbegin", b"tbefore", b"tstruck", b"tend"], place
    assert place > 10


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_does_not_write_into_its_parents_ring(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the child the call goes on, in the parent it is cut off. The ring's descriptor has
    become the agent's, so that the child does not unmap it."""
    monkeypatch.setattr(ring, "identity", lambda _: object())
    place = 0
    while True:
        place += 1
        with a_line() as at:
            pids: list[int] = []

            def strike(pids: list[int] = pids) -> None:
                pids.append(os.fork())
                if pids[0]:
                    os.waitpid(pids[0], 0)
                    raise KeyboardInterrupt

            with struck(place, strike) as count:
                try:
                    at.link.send_soon(b"tstruck")
                except KeyboardInterrupt:
                    pass
            if pids == [0]:
                os._exit(0)
            if count[0] < place:
                break
            remembered = [frames.payload_of(frame) for frame in at.link._unacked]
            kept = [frames.payload_of(frame) for _, frame in at.in_files()]
            assert kept.count(b"tstruck") <= remembered.count(b"tstruck"), place
    assert place > 10


def test_a_stream_without_a_pause_keeps_nobody_waiting_who_has_the_lock() -> None:
    with a_line() as at:
        at.link._busy = True
        at.link.send_soon(b"tlater")
        assert at.words_in_files() == [b"tbegin", b"tbefore"]
        at.link._busy = False
        at.link.send(b"tend")
        assert at.words() == [b"tbegin", b"tbefore", b"tlater", b"tend"]


def test_a_fault_of_ours_there_is_made_good_by_the_same_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encode, fails = frames.encode, [True]

    def failing(seq: int, payload: bytes) -> bytes:
        if fails.pop():
            raise MemoryError
        monkeypatch.setattr(frames, "encode", encode)
        return encode(seq, payload)

    with a_line() as at:
        fails.insert(0, False)
        monkeypatch.setattr(frames, "encode", failing)
        at.link.send_soon(b"tno memory")
        assert at.words() == [b"tbegin", b"tbefore", b"tno memory"]
        assert at.link.faults == 1


def test_nobody_goes_on_while_another_thread_still_has_its_record_in_hand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever holds the lock sends for all: to see one's record taken is not to see it sent."""
    keep = Link._keep
    sending, queued, taken, go_on = (threading.Event() for _ in range(4))
    found: list[bytes] = []

    def slowly(self: Link, seq: int, frame: bytes) -> bool:
        if frame.endswith(b"tfirst"):
            sending.set()
            assert queued.wait(30)
        elif frame.endswith(b"tsecond"):
            taken.set()
            assert go_on.wait(30)
        return keep(self, seq, frame)

    class Waiting(deque[bytes]):
        def extend(self, payloads: Iterable[bytes]) -> None:
            super().extend(payloads)
            if threading.current_thread() is second:
                queued.set()
                assert taken.wait(30)

    def speak() -> None:
        at.link.send(b"tsecond")
        found.extend(frames.payload_of(frame) for _, frame in at.in_files())

    with a_line() as at:
        at.link._waiting = Waiting()
        monkeypatch.setattr(Link, "_keep", slowly)
        first = threading.Thread(target=at.link.send, args=(b"tfirst",))
        second = threading.Thread(target=speak)
        first.start()
        assert sending.wait(30)
        second.start()
        assert taken.wait(30)
        second.join(0.2)  # time enough to go on too early
        go_on.set()
        first.join()
        second.join()
        assert b"tsecond" in found, "it has returned"
        assert at.words() == [b"tbegin", b"tbefore", b"tfirst", b"tsecond"]


def test_a_handler_in_the_chute_speaks_while_another_thread_waits_for_it_to_be_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other has the lock and waits for the chute: who is in there must not want the lock."""
    encode = frames.encode
    inside, waits = threading.Event(), threading.Event()

    def slowly(seq: int, payload: bytes) -> bytes:
        if payload == b"tinside":
            inside.set()
            assert waits.wait(30)
            at.link.send_soon(b"tby the handler")
            at.link.send(b"tand at once")
            assert at.link.acknowledged(0) is False
        return encode(seq, payload)

    def sleep(_: float) -> None:
        waits.set()

    with a_line() as at:
        monkeypatch.setattr(frames, "encode", slowly)
        monkeypatch.setattr(link, "sleep", sleep)
        streaming = threading.Thread(target=at.link.send_soon, args=(b"tinside",), daemon=True)
        streaming.start()
        assert inside.wait(30)
        other = threading.Thread(target=at.link.send, args=(b"tother",), daemon=True)
        other.start()
        for thread in (streaming, other):
            thread.join(30)
            assert not thread.is_alive()
        words = at.words()
        assert words[:3] == [b"tbegin", b"tbefore", b"tinside"]
        assert sorted(words[3:]) == [b"tand at once", b"tby the handler", b"tother"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "raised", [StopIteration("x"), GeneratorExit(), ValueError("x"), BlockingIOError()]
)
def test_whatever_a_handler_raises_there_is_the_agents(raised: BaseException, way: str) -> None:
    """A generator, and a socket, take some of these for their own."""

    def handler(_: int, frame: FrameType | None) -> None:
        raise raised

    place = 0
    while True:
        place += 1
        with a_line() as at:
            prepare(at, way)
            caught = None

            def strike() -> None:
                found = sys._getframe()
                while found.f_code.co_filename not in OURS:
                    assert found.f_back is not None
                    found = found.f_back
                handler(signal.SIGALRM, found)

            with struck(place, strike) as count:
                try:
                    say(at, way, b"tstruck")
                except BaseException as error:
                    caught = error
            if count[0] < place:
                break
            assert caught is raised, place
            at.link.send(b"tend")
            words = at.words()
            assert words[:2] == [b"tbegin", b"tbefore"] and words[-1] == b"tend"
            assert at.link.faults == 0
    assert place > 10


def test_the_same_bytes_twice_are_two_records() -> None:
    """One of them cut off behind its taking, the other of a thread that waits behind it."""
    word = b"tword"
    place = 0
    while True:
        place += 1
        with a_line() as at:

            def strike(at: Line = at) -> None:
                at.link._waiting.append((word,))  # as another thread does just now
                raise KeyboardInterrupt

            with struck(place, strike) as count:
                try:
                    at.link.send(word)
                except KeyboardInterrupt:
                    pass
            if count[0] < place:
                break
            remembered = word in [frames.payload_of(frame) for frame in at.link._unacked]
            at.link.send(b"tend")
            words = at.words()
            assert words[:2] == [b"tbegin", b"tbefore"] and words[-1] == b"tend"
            assert words.count(word) == 2 if remembered else words.count(word) in (1, 2), place
    assert place > 10


def test_a_child_that_is_struck_before_it_knows_that_it_is_one_finds_out() -> None:
    """Python ignores what is raised in there. Without a fork, which all links would hear of."""
    place = 0
    while True:
        place += 1
        with a_line() as at:
            parents = at.link.stream
            at.link._intact.clear()  # the first that a child does
            with struck(place, cut_off) as count:
                try:
                    at.link._forked()
                except KeyboardInterrupt:
                    pass
            if count[0] < place:
                break
            at.link.send_soon(b"tsoon")
            at.link.send(b"tchild")
            assert at.link.stream != parents, place
            assert at.words_in_files() == [b"tsoon", b"tchild"], place
            at.link.stream = parents
            assert at.words_in_files() == [b"tbegin", b"tbefore"], place
    assert place > 10


def test_threads_that_stream_and_send_at_once_have_each_record_once_and_in_their_order() -> None:
    threads, each = 6, 400

    def speak(number: int) -> None:
        for count in range(each):
            word = b"t%d %03d" % (number, count)
            (at.link.send if count % 37 == number else at.link.send_soon)(word)

    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with a_line() as at:
            speakers = [threading.Thread(target=speak, args=(number,)) for number in range(threads)]
            for speaker in speakers:
                speaker.start()
            while any(speaker.is_alive() for speaker in speakers):
                at.look()
            words = at.words()
    finally:
        sys.setswitchinterval(switching)
    assert len(words) == 2 + threads * each
    for number in range(threads):
        own = [word for word in words if word.startswith(b"t%d " % number)]
        assert own == sorted(own) and len(own) == each
    assert at.link.faults == 0
