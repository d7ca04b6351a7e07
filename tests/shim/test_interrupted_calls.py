"""A signal handler at every place where the interpreter runs one: it raises, sends or forks.

The interpreter looks for signals at the beginning of a function, after a call and at the end of a
loop's turn. Each of these places is struck once, on the way of one record out of the process.
"""

from __future__ import annotations

import ctypes
import dis
import gc
import inspect
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
from hermes_supervise.agent_shim import (
    connection,
    fork_mark,
    link,
    ring,
    spool,
    standard_streams,
    stream,
)  # fmt: skip
from hermes_supervise.agent_shim.link import Link
from hermes_supervise.agent_shim.stream import IDLE, RUNNING, Stream
from hermes_supervise.ipc import frames
from hermes_supervise.ipc import ring as layout

OURS = {
    module.__file__
    for module in (connection, fork_mark, link, ring, spool, standard_streams, stream, frames)
}
LETS_IN = ("CALL", "RESUME", "JUMP_BACKWARD")

# A socket that has no name yet when an exception strikes is closed by Python.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

WAYS = ["soon", "at once", "after a pause", "nobody there"]


hooks: list[Callable[[], None]] = []
os.register_at_fork(after_in_child=lambda: [hook() for hook in hooks])


def register_for_this_test(*, after_in_child: Callable[[], None]) -> None:
    hooks[:] = [after_in_child]


@pytest.fixture(autouse=True)
def left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Thousands of rings are made here, and each is written in full.
    monkeypatch.setattr(stream, "_FIRST_HALF", 4096)
    # Python forgets no fork hook: those of all earlier tests would run in every child.
    monkeypatch.setattr(os, "register_at_fork", register_for_this_test)
    yield
    hooks.clear()
    gc.collect()  # closes it here, and not in the middle of another test
    assert sys.exc_info() == (None, None, None)


class Scene:
    """A process's link, and a supervisor that looks at what it is sent, and answers nothing."""

    def __init__(self, folder: str, spool_folder: str) -> None:
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(f"{folder}/s")
        self._listening.listen(8)
        self._listening.setblocking(False)
        self._peers: list[tuple[socket.socket, frames.Decoder]] = []
        self._folder = Path(spool_folder)
        self.seen: dict[int, bytes] = {}
        self.link = Link(f"{folder}/s", spool_folder, {})
        self.link.send(b"tbegin")
        self.link.send_soon(b"tbefore")

    def look(self) -> None:
        """Look at all that is out of the process by now. A number stays with its record."""
        for seq, frame in [*self._received(), *self.in_files()]:
            assert self.seen.setdefault(seq, frame) == frame, f"{seq} is two records"

    def words(self) -> list[bytes]:
        """All that was ever sent. It is in files as well, and no number is missing."""
        self.look()
        assert dict(self.in_files()) == self.seen, "the supervisor may die as well"
        return self.words_in_files()

    def words_in_files(self) -> list[bytes]:
        kept = dict(self.in_files())
        assert sorted(kept) == list(range(1, len(kept) + 1)), sorted(kept)
        return [frames.payload_of(kept[seq])[:20] for seq in sorted(kept)]

    def _received(self) -> Iterator[tuple[int, bytes]]:
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
        """The supervisor goes away."""
        for peer, _ in self._peers:
            peer.close()
        self._peers.clear()
        self._listening.close()

    def close(self) -> None:
        self.link._stream._drop_ring()
        self.link._stream._disconnect()
        self.link._stream._spool.close()
        self.leave()


@contextmanager
def a_scene() -> Iterator[Scene]:
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # much quicker than a disk
    with (
        tempfile.TemporaryDirectory(dir=memory) as near,
        tempfile.TemporaryDirectory(dir=memory) as folder,
    ):
        at = Scene(near, folder)
        try:
            yield at
        finally:
            at.close()


@cache
def lets_in(code: CodeType) -> dict[int, int]:
    """The instructions after which signals are looked for, and where each goes on."""
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
            here = inspect.currentframe()
            assert here is not None
            frame = here.f_back  # as a signal handler is given it
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


def say(at: Scene, way: str, word: bytes) -> None:
    if way in ("at once", "nobody there"):
        at.link.send(word)
    else:
        at.link.send_soon(word)


def prepare(at: Scene, way: str) -> None:
    if way == "nobody there":
        at.look()
        at.leave()
    elif way == "after a pause":
        at.link._stream._send_by = 0.0  # as if what came before had been in the ring long enough


def interrupted(at: Scene, way: str, word: bytes, place: int) -> int:
    """Send a record, and be struck by an exception. How often signals were looked for."""

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
def test_an_exception_there_loses_nothing_else_and_repeats_nothing(way: str) -> None:
    place = 0
    while True:
        place += 1
        with a_scene() as at:
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


def test_a_second_exception_during_the_repair_repeats_nothing() -> None:
    """One at every place of a call and one at every place of the next."""
    first = 0
    while True:
        first += 1
        with a_scene() as at:
            if interrupted(at, "at once", b"tone", first) < first:
                break
        second = 0
        while True:
            second += 1
            with a_scene() as at:
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
def test_a_record_of_a_handler_and_the_interrupted_one_are_sent_once(way: str, length: int) -> None:
    place = 0
    while True:
        place += 1
        with a_scene() as at:
            prepare(at, way)

            def strike(at: Scene = at) -> None:
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


# Both keep Python's own lock, so that the child of the second can run. Python's hooks run for the
# first alone.
FORKS: dict[str, Callable[[], int]] = {"os.fork": os.fork, "libc": ctypes.PyDLL(None).fork}
every_fork = pytest.mark.parametrize("fork", FORKS.values(), ids=FORKS.keys())
forks_with_threads = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


@forks_with_threads
@every_fork
@pytest.mark.parametrize("way", WAYS)
def test_a_fork_there_leaves_both_with_a_stream_of_their_own(
    way: str, fork: Callable[[], int]
) -> None:
    """In a handler that returns in both: the child finds itself in the middle of the call."""
    place = 0
    while True:
        place += 1
        with a_scene() as at:
            prepare(at, way)
            pids: list[int] = []
            with struck(place, lambda pids=pids: pids.append(fork())) as count:  # type: ignore[misc]
                say(at, way, b"tstruck")
            if pids == [0]:
                at.link.send(b"tchild")
                sent = at.words_in_files()
                before_it_began = [b"tstruck", b"tchild"] if place == 1 else []
                os._exit(sent not in ([b"tchild"], before_it_began))
            if count[0] < place:
                break
            assert os.waitstatus_to_exitcode(os.waitpid(pids[0], 0)[1]) == 0, place
            at.link.send(b"tend")
            assert at.words_in_files() == [b"tbegin", b"tbefore", b"tstruck", b"tend"], place
    assert place > 10


@forks_with_threads
@every_fork
def test_a_forked_child_does_not_write_into_its_parents_ring(
    monkeypatch: pytest.MonkeyPatch, fork: Callable[[], int]
) -> None:
    """In the child the call goes on, in the parent it is interrupted. The ring's descriptor has
    become the agent's, so that the child does not unmap it."""
    monkeypatch.setattr(ring, "identity", lambda _: object())
    place = 0
    while True:
        place += 1
        with a_scene() as at:
            pids: list[int] = []

            def strike(pids: list[int] = pids) -> None:
                pids.append(fork())
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
            remembered = [frames.payload_of(frame) for frame in at.link._stream._unacked]
            kept = [frames.payload_of(frame) for _, frame in at.in_files()]
            assert kept.count(b"tstruck") <= remembered.count(b"tstruck"), place
    assert place > 10


@forks_with_threads
@every_fork
def test_a_child_forked_while_another_thread_has_the_lock_sends_all_the_same(
    fork: Callable[[], int],
) -> None:
    """The lock was copied with nobody in the child to release it."""
    locked, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with at.link._stream._lock:
            locked.set()
            assert go_on.wait(30)

    with a_scene() as at:
        parents = at.link.stream
        holder = threading.Thread(target=hold)
        holder.start()
        assert locked.wait(30)
        child = fork()
        if child == 0:
            signal.alarm(20)  # kills a child that hangs
            at.link.send_soon(b"tsoon")
            at.link.send(b"tchild")
            os._exit(at.words_in_files() != [b"tsoon", b"tchild"] or at.link.stream == parents)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        go_on.set()
        holder.join()
        at.link.send(b"tend")
        assert at.link.stream == parents
        assert at.words_in_files() == [b"tbegin", b"tbefore", b"tend"]


@pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="its locks are released by their owners alone"
)
@forks_with_threads
def test_a_child_forked_in_a_handler_while_its_thread_waits_for_the_lock_goes_on() -> None:
    """The handler returns in both: in the child, into a wait for a thread that is not there."""
    locked, go_on = threading.Event(), threading.Event()
    main, pids, places = threading.get_ident(), [], []

    def hold() -> None:
        with at.link._stream._lock:
            locked.set()
            while not pids:
                signal.pthread_kill(main, signal.SIGUSR1)
                go_on.wait(0.01)

    def handler(_: int, frame: FrameType) -> None:
        places.append((frame.f_code, frame.f_lasti))
        waits = places[-2:] == 2 * [(Stream._exclusively.__code__, frame.f_lasti)]
        if waits and not pids:
            pids.append(os.fork())
            if pids == [0]:
                signal.alarm(20)  # kills a child that hangs

    with a_scene() as at:
        parents = at.link.stream
        holder = threading.Thread(target=hold)
        kept = signal.signal(signal.SIGUSR1, handler)
        try:
            holder.start()
            assert locked.wait(30)
            at.link.send(b"tparent")
            if pids == [0]:
                at.link.send(b"tchild")
                os._exit(at.words_in_files() != [b"tchild"] or at.link.stream == parents)
            assert os.waitstatus_to_exitcode(os.waitpid(pids[0], 0)[1]) == 0
        finally:
            holder.join()
            signal.signal(signal.SIGUSR1, kept)
        at.link.send(b"tend")
        assert at.words_in_files() == [b"tbegin", b"tbefore", b"tparent", b"tend"]


@forks_with_threads
@every_fork
def test_parent_and_child_that_go_on_at_once_do_not_mix(fork: Callable[[], int]) -> None:
    """One ring between two processes would hold neither's records."""
    with a_scene() as at:
        child = fork()
        who = b"c" if child == 0 else b"p"
        words = [b"t%b%04d" % (who, number) for number in range(2000)]
        for word in words:
            at.link.send_soon(word)
        before = [] if child == 0 else [b"tbegin", b"tbefore"]
        if child == 0:
            os._exit(at.words_in_files() != words)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert at.words_in_files() == before + words


def test_where_the_kernel_wipes_no_page_a_child_is_known_by_its_process_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fork_mark, "_wiped_on_fork", lambda: None)
    with a_scene() as at:
        child = FORKS["libc"]()
        at.link.send(b"tchild" if child == 0 else b"tend")
        if child == 0:
            os._exit(at.words_in_files() != [b"tchild"])
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert at.words_in_files() == [b"tbegin", b"tbefore", b"tend"]


def test_a_call_of_a_handler_leaves_its_record_to_the_call_that_it_interrupts() -> None:
    with a_scene() as at:
        at.link._stream._phase = RUNNING  # as the handler finds it
        at.link.send_soon(b"tlater")
        at.link.send(b"tand this")
        assert at.link.acknowledged(0) is False
        assert at.words_in_files() == [b"tbegin", b"tbefore"]
        at.link._stream._phase = IDLE
        at.link.send(b"tend")
        assert at.words() == [b"tbegin", b"tbefore", b"tlater", b"tand this", b"tend"]


@pytest.mark.parametrize("way", ["soon", "at once"])
def test_a_fault_of_our_own_there_is_made_good_by_the_same_call(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    encode, fails = frames.encode, [True]

    def failing(seq: int, payload: bytes) -> bytes:
        if fails.pop():
            raise MemoryError
        monkeypatch.setattr(frames, "encode", encode)
        return encode(seq, payload)

    with a_scene() as at:
        fails.insert(0, False)
        monkeypatch.setattr(frames, "encode", failing)
        say(at, way, b"tno memory")
        assert at.words() == [b"tbegin", b"tbefore", b"tno memory"]
        assert at.link.faults == 1


def test_a_call_returns_only_when_its_record_is_sent_whoever_sends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever has the lock delivers for all. A record that left the queue may not be sent yet."""
    keep = Stream._keep_in_ring
    sending, queued, taken, go_on = (threading.Event() for _ in range(4))
    found: list[bytes] = []

    def slowly(self: Stream, seq: int, frame: bytes) -> bool:
        if frame.endswith(b"tfirst"):
            sending.set()
            assert queued.wait(30)
        elif frame.endswith(b"tsecond"):
            taken.set()
            assert go_on.wait(30)
        return keep(self, seq, frame)

    class Waiting(deque[Any]):
        def extend(self, payloads: Iterable[Any]) -> None:
            super().extend(payloads)
            if threading.current_thread() is second:
                queued.set()
                assert taken.wait(30)

    def speak() -> None:
        at.link.send(b"tsecond")
        found.extend(frames.payload_of(frame) for _, frame in at.in_files())

    with a_scene() as at:
        at.link._stream._queue = Waiting()
        monkeypatch.setattr(Stream, "_keep_in_ring", slowly)
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


def test_a_handler_in_a_call_sends_while_another_thread_waits_for_the_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The handler has the lock already, by the call that it interrupts, and does not wait."""
    encode = frames.encode
    inside, others = threading.Event(), threading.Event()

    def slowly(seq: int, payload: bytes) -> bytes:
        if payload == b"tinside":
            inside.set()
            assert others.wait(30)
            at.link.send_soon(b"tby the handler")
            at.link.send(b"tand at once")
            assert at.link.acknowledged(0) is False
        return encode(seq, payload)

    class Queue(deque[Any]):
        def extend(self, payloads: Iterable[Any]) -> None:
            super().extend(payloads)
            others.set()  # it waits for the lock now, or will in a moment

    with a_scene() as at:
        at.link._stream._queue = Queue()
        monkeypatch.setattr(frames, "encode", slowly)
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
def test_whatever_a_handler_raises_there_reaches_the_agent(raised: BaseException, way: str) -> None:
    """A socket takes some of these for its own."""

    def handler(_: int, frame: FrameType | None) -> None:
        raise raised

    place = 0
    while True:
        place += 1
        with a_scene() as at:
            prepare(at, way)
            caught = None

            def strike() -> None:
                found = inspect.currentframe()
                while found is not None and found.f_code.co_filename not in OURS:
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
    """One of them was interrupted after it left the queue, the other is another thread's."""
    word = b"tword"
    place = 0
    while True:
        place += 1
        with a_scene() as at:

            def strike(at: Scene = at) -> None:
                at.link._stream._queue.append((word, False))  # as another thread does just now
                raise KeyboardInterrupt

            with struck(place, strike) as count:
                try:
                    at.link.send(word)
                except KeyboardInterrupt:
                    pass
            if count[0] < place:
                break
            remembered = word in [frames.payload_of(frame) for frame in at.link._stream._unacked]
            at.link.send(b"tend")
            words = at.words()
            assert words[:2] == [b"tbegin", b"tbefore"] and words[-1] == b"tend"
            assert words.count(word) == 2 if remembered else words.count(word) in (1, 2), place
    assert place > 10


def test_a_child_that_is_struck_before_it_has_a_stream_begins_one_all_the_same() -> None:
    """Python ignores what is raised in a fork hook. Without a fork, which every link would see."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    place = 0
    while True:
        place += 1
        with a_scene() as at:
            parents = at.link.stream
            at.link._stream.mark[0] = 0  # type: ignore[index]  # as the kernel does in a child
            with struck(place, interrupt) as count:
                try:
                    at.link._forked()
                except KeyboardInterrupt:
                    pass
            if count[0] < place:
                break
            at.link.send_soon(b"tsoon")
            at.link.send(b"tchild")
            assert at.link.stream != parents and at.link.generation == 1, place
            assert at.words_in_files() == [b"tsoon", b"tchild"], place
            own, at.link._stream.name = at.link.stream, parents
            assert at.words_in_files() == [b"tbegin", b"tbefore"], place
            at.link._stream.name = own
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
        with a_scene() as at:
            senders = [threading.Thread(target=speak, args=(number,)) for number in range(threads)]
            for sender in senders:
                sender.start()
            while any(sender.is_alive() for sender in senders):
                at.look()
            words = at.words()
    finally:
        sys.setswitchinterval(switching)
    assert len(words) == 2 + threads * each
    for number in range(threads):
        own = [word for word in words if word.startswith(b"t%d " % number)]
        assert own == sorted(own) and len(own) == each
    assert at.link.faults == 0
