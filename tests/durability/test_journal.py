"""The journal: what is acknowledged is in it (I1), and it only grows by whole frames (I2)."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
from pathlib import Path

import pytest
from hermes_supervise.ipc import frames, records
from hermes_supervise.supervisor.ingest.connection import Connection, Stream
from hermes_supervise.supervisor.ingest.observer import Observer
from hermes_supervise.supervisor.ingest.streams import Streams
from hermes_supervise.supervisor.process.loop import Loop
from hermes_supervise.supervisor.recovery.gather import gather
from hermes_supervise.supervisor.storage import run_folder as runs
from hermes_supervise.supervisor.storage.journal import Journal

NAME = "0123456789abcdef" * 2
HELLO = frames.encode(0, records.pack({"kind": "hello", "stream": NAME, "version": 1, "oldest": 1}))


def message(number: int) -> bytes:
    return frames.encode(number, records.pack({"kind": "message", "uid": str(number)}))


@pytest.mark.parametrize("always", [True, False])
def test_an_acknowledgement_follows_the_write_and_the_sync_where_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, always: bool
) -> None:
    happened: list[str] = []
    real_sync = os.fdatasync

    def seen_sync(fd: int) -> None:
        happened.append("synced")
        with pytest.raises(BlockingIOError):
            agent.recv(1)  # nothing has been acknowledged yet
        real_sync(fd)

    agent, ours = socket.socketpair(socket.AF_UNIX)
    agent.setblocking(False)
    ours.setblocking(False)
    with agent, ours:
        connection = Connection(ours, os.getpid())
        agent.sendall(HELLO)
        assert connection.receive()
        assert connection.read_hello() is not None
        connection.welcome(Stream(NAME, os.getpid(), Journal(str(tmp_path), NAME, HELLO)))
        agent.recv(65536)
        monkeypatch.setattr(os, "fdatasync", seen_sync)
        agent.sendall(message(1) + message(2))
        assert connection.receive()
        connection.store(always_sync=always)
        [(seq, frame)] = frames.Decoder().feed(agent.recv(65536))
        assert (seq, frames.payload_of(frame)) == (2, b"")
        assert happened == (["synced"] if always else [])
        assert gather(str(tmp_path), NAME).frames[1:] == [(1, message(1)), (2, message(2))]


def test_numbers_that_come_again_are_stored_once(tmp_path: Path) -> None:
    agent, ours = socket.socketpair(socket.AF_UNIX)
    with agent, ours:
        ours.setblocking(False)
        connection = Connection(ours, os.getpid())
        agent.sendall(HELLO)
        connection.receive()
        assert connection.read_hello() is not None
        connection.welcome(Stream(NAME, os.getpid(), Journal(str(tmp_path), NAME, HELLO)))
        for number in (1, 2, 1, 2, 3, 2, 4):
            agent.sendall(message(number))
        connection.receive()
        connection.store(always_sync=False)
    journal = (tmp_path / f"{NAME}.000001.log").read_bytes()
    assert journal == HELLO + b"".join(message(number) for number in (1, 2, 3, 4))


def test_a_write_that_fails_half_way_leaves_whole_frames(tmp_path: Path) -> None:
    """A file size limit stands in for a full disk: it, too, takes a part and refuses the rest."""
    journal = Journal(str(tmp_path), NAME, HELLO)
    journal.append(message(1))
    size = journal.size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, before[1]))
        with pytest.raises(OSError):
            journal.append(message(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert (tmp_path / f"{NAME}.000001.log").stat().st_size == size
    journal.append(message(2))
    journal.close()
    found = gather(str(tmp_path), NAME)
    assert [seq for seq, _ in found.frames] == [0, 1, 2]
    assert not found.damaged


def test_a_segment_that_could_not_be_begun_leaves_neither_its_name_nor_a_descriptor(
    tmp_path: Path,
) -> None:
    """Full at the first word: once there is room, the same stream must find its place."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    open_before = os.listdir("/dev/fd")
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
        with pytest.raises(OSError):
            Journal(str(tmp_path), NAME, HELLO)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert os.listdir("/dev/fd") == open_before
    assert list(tmp_path.iterdir()) == []
    journal = Journal(str(tmp_path), NAME, HELLO)
    journal.append(message(1))
    journal.close()
    assert [seq for seq, _ in gather(str(tmp_path), NAME).frames] == [0, 1]


def test_segments_begin_with_who_speaks_and_are_read_as_one(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path), NAME, HELLO, segment_bytes=200)
    for number in range(1, 21):
        journal.append(message(number))
        if journal.full:
            journal.begin_next_segment()
    journal.close()
    segments = sorted(tmp_path.glob("*.log"))
    assert len(segments) > 3
    assert all(segment.read_bytes().startswith(HELLO) for segment in segments)
    assert [seq for seq, _ in gather(str(tmp_path), NAME).frames] == [0, *range(1, 21)]


def test_before_there_is_a_journal_every_folder_above_it_is_made_to_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    synced: set[int] = set()
    real = os.fsync

    def seen(fd: int) -> None:
        synced.add(os.fstat(fd).st_ino)
        real(fd)

    monkeypatch.setattr(os, "fsync", seen)
    run = runs.create({"sync": "interval"})
    synced.clear()
    runs.make_durable(run.folder)
    above = [Path(run.path("run.json")), *Path(run.path("run.json")).parents][:6]
    assert above[-1] == tmp_path
    assert {path.stat().st_ino for path in above} <= synced
    runs.retire(run)


def test_zeros_written_ahead_never_cover_a_frame_and_go_when_a_segment_is_closed(
    tmp_path: Path,
) -> None:
    journal = Journal(str(tmp_path), NAME, HELLO, segment_bytes=2000, ahead=True)
    first = tmp_path / f"{NAME}.000001.log"
    said = HELLO
    for number in range(1, 40):
        frame = frames.encode(number, b"x" * (number * 7 % 300))
        journal.append(frame)
        said += frame
        data = first.read_bytes()
        assert data.startswith(said)
        assert not data[len(said) :].strip(b"\0"), "zeros, and nothing else"
        assert len(frames.salvage(data).frames) == number + 1
        assert frames.salvage(data).holes == []
    journal.begin_next_segment()
    assert first.read_bytes() == said


def test_a_write_that_fails_half_way_takes_the_zeros_with_it_and_the_next_ones_lie_behind(
    tmp_path: Path,
) -> None:
    journal = Journal(str(tmp_path), NAME, HELLO, ahead=True)
    whole = frames.encode(1, b"whole")
    journal.append(whole)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
    try:
        with pytest.raises(OSError):
            journal.append(frames.encode(2, bytes(400_000)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    path = tmp_path / f"{NAME}.000001.log"
    assert path.read_bytes() == HELLO + whole
    after = frames.encode(2, b"after")
    journal.append(after)
    journal.close()
    assert path.read_bytes() == HELLO + whole + after


class RingOfAStreamingAgent:
    """Has another record each time it is looked at."""

    def frames_after(self, last: int) -> list[tuple[int, bytes]]:
        return [(last + 1, message(last + 1))]


def test_what_was_kept_in_memory_is_written_also_while_the_agent_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = runs.create({})
    streams = Streams(
        Loop(), run.folder, Observer(), lambda stream: None,
        sync="interval", transcript_stream=None, batch=None,
    )  # fmt: skip
    stream = streams.begin({"stream": NAME}, HELLO, os.getpid(), (os.getpid(), None))
    stream.ring = RingOfAStreamingAgent()  # type: ignore[assignment]
    write = stream.journal._write

    def refuse(data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(stream.journal, "_write", refuse)
    streams._sync()
    streams._sync()
    assert (stream.last, stream.received) == (0, 2), "kept in memory"
    monkeypatch.setattr(stream.journal, "_write", write)
    streams._sync()
    assert (stream.last, stream.received) == (3, 3)
    assert stream.unwritten.frames == []
    numbered = gather(run.folder, NAME).frames[2:]  # behind hello and peer
    assert numbered == [(n, message(n)) for n in (1, 2, 3)]
    stream.journal.close()
    run.release()
