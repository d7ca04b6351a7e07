"""The ring: what was handed over survives the agent, its supervisor, and both dying at once."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hermes_supervise.agent_shim.link import Link
from hermes_supervise.agent_shim.ring import Ring, _keeps_blocks
from hermes_supervise.ipc import frames, records, ring
from hermes_supervise.supervisor.ingest.ring_reader import RingReader
from hypothesis import given, settings
from hypothesis import strategies as st
from installed import ROOT, release_tree
from support import DEADLINE, Supervised, World, alive, kill, short, until, wait_dead

HELLO = frames.encode(frames.HANDSHAKE, records.pack({"kind": "hello"}))
STREAM = "0" * 32

# Sends as many deltas as each line says, and then nothing until the next line.
TALKER = """
chat = session("chat")
chat.message("user", "talk")
ready(f"pid {os.getpid()}")
for line in sys.stdin:
    for number in range(int(line)):
        chat.delta(f"w{number} ")
    ready("said")
"""


def words(total: int) -> str:
    return "".join(f"w{number} " for number in range(total))


def start(world: World, source: str = TALKER, *options: str) -> tuple[Supervised, int]:
    agent = world.supervise(source, *options, stdin=subprocess.PIPE)
    return agent, int(agent.wait_for("pid").split()[1])


def talk(agent: Supervised, number: int) -> None:
    agent.send_line(str(number))
    agent.wait_for("said")


def talk_unheard_and_die(world: World, agent: Supervised, pid: int, number: int) -> None:
    """Send to a supervisor that is stopped and never reads it; kill both; recover."""
    os.kill(agent.pid, signal.SIGSTOP)
    talk(agent, number)
    assert alive(agent.pid) and alive(pid)
    kill(agent.pid)
    kill(pid)
    agent.process.wait()
    wait_dead(pid)
    done = world.call("recover")
    assert done.returncode == 0, done.stdout + done.stderr


# -- the file ------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 30)), min_size=1, max_size=80),
    st.integers(0, 3000),
)
def test_everything_unacknowledged_is_there_at_every_moment(
    said: list[tuple[int, int]], torn_at: int
) -> None:
    """Also when the writer is killed in the middle of a frame."""
    with tempfile.TemporaryDirectory() as folder:
        held = Ring(folder, STREAM, HELLO, 8 * 1024)
        held.publish()
        path = Path(folder, ring.name_of(STREAM))
        unacked: dict[int, bytes] = {}
        safe = 0
        view = RingReader(folder, STREAM)
        for seq, (length, lag) in enumerate(said, 1):
            frame = frames.encode(seq, b"t" + os.urandom(length))
            if not held.put(seq, frame, safe):
                continue  # it goes into the spool instead
            unacked[seq] = frame
            data = path.read_bytes()
            assert ring.hello_in(data) == HELLO
            found = dict(ring.frames_after(data, 0))
            assert unacked.items() <= found.items()
            assert dict(ring.frames_after(data, safe)) == unacked
            if lag % 3:
                assert dict(view.frames_after(safe)) == unacked, "so does a reader"
            place = data.index(frame)
            torn = data[: place + torn_at] + bytes(len(data))[place + torn_at :]
            rest = ring.frames_after(torn if torn_at < len(frame) else data, safe)
            whole = unacked if torn_at >= len(frame) else unacked.keys() - {seq}
            others = {n for n, _ in rest}
            assert others <= set(whole), "half a frame is none"
            safe = max(safe, seq - lag)
            unacked = {n: frame for n, frame in unacked.items() if n > safe}
        held.drop()


def test_a_ring_is_made_only_where_the_file_system_keeps_its_blocks() -> None:
    """On another one a full disk would kill the agent with SIGBUS."""
    assert not _keeps_blocks("/proc")
    with pytest.raises(OSError):
        Ring("/proc/self", STREAM, HELLO, 8 * 1024)
    if os.path.isdir("/dev/shm"):
        assert _keeps_blocks("/dev/shm")


@pytest.fixture
def linked(tmp_path: Path) -> Iterator[tuple[Link, socket.socket, Path]]:
    """A process's link to a supervisor that has not read anything yet."""
    with tempfile.TemporaryDirectory() as near, socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{near}/s")
        listening.listen()
        link = Link(f"{near}/s", str(tmp_path), {})
        link.send(records.pack({"kind": "session", "session": "s"}))
        peer = listening.accept()[0]
        yield link, peer, tmp_path
        peer.close()
        link._stream._drop_ring()
        link._stream._disconnect()
        link._stream._spool.close()


def take_all(link: Link, peer: socket.socket) -> None:
    """Read what is there, and acknowledge everything that was sent."""
    peer.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while peer.recv(1024 * 1024):
            pass
    peer.send(frames.encode(link._stream._next - 1, b""))
    link._stream._exclusively(link._stream._read_acks)


def test_a_ring_that_was_full_once_still_grows_for_a_long_message(
    linked: tuple[Link, socket.socket, Path],
) -> None:
    """Otherwise all long ones would go into the spool, which only grows."""
    link, peer, folder = linked
    for _ in range(8000):
        link.send_soon(records.pack_delta("s", "x" * 50))
    spool = folder / f"{link.stream}.spool"
    before = spool.stat().st_size
    assert before, "the ring was full"
    assert not list(folder.glob("*.new"))
    take_all(link, peer)
    for _ in range(3):
        link.send(records.pack_delta("s", "y" * 200_000))
        take_all(link, peer)
    assert spool.stat().st_size == before
    assert link.faults == 0


def test_an_unpublished_ring_is_replaced(
    linked: tuple[Link, socket.socket, Path],
) -> None:
    """A signal handler may have raised while it was being made."""
    link, _, folder = linked
    (folder / f"{link.stream}.ring.new").write_bytes(b"cut off")
    link.send(records.pack_delta("s", "y" * 200_000))
    data = (folder / f"{link.stream}.ring").read_bytes()
    assert [seq for seq, _ in ring.frames_after(data, 0)] == [1, 2]


# -- killed ----------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["agent", "supervisor"])
def test_nothing_is_lost_when_both_are_killed_and_the_supervisor_had_read_nothing(
    world: World, first: str
) -> None:
    """It is stopped before the agent sends, and never continues."""
    agent, pid = start(world, TALKER, "--no-adopt", *world.hook)
    os.kill(agent.pid, signal.SIGSTOP)
    talk(agent, 1000)
    assert alive(agent.pid) and alive(pid)
    for victim in (pid, agent.pid) if first == "agent" else (agent.pid, pid):
        kill(victim)
    agent.process.wait()
    wait_dead(pid)
    done = world.call("recover")
    assert done.returncode == 0, done.stdout + done.stderr
    assert short(world.messages("chat")) == [("user", "talk"), ("assistant", words(1000))]
    assert world.runs() == []


def test_nothing_is_lost_when_the_agent_dies_without_noticing_its_supervisors_death(
    world: World,
) -> None:
    agent, pid = start(world, TALKER, "--no-adopt", *world.hook)
    os.kill(agent.pid, signal.SIGSTOP)
    talk(agent, 300)
    kill(agent.pid)
    agent.process.wait()
    assert alive(pid)
    kill(pid)
    wait_dead(pid)
    assert world.call("recover").returncode == 0
    assert short(world.messages("chat")) == [("user", "talk"), ("assistant", words(300))]


def test_nothing_is_lost_when_the_supervisor_never_accepted_the_connection(world: World) -> None:
    """Then the ring is all there is. It says itself whose it is."""
    agent = world.supervise(
        """
ready(f"pid {os.getpid()}")
sys.stdin.readline()
chat = session("chat")
chat.message("user", "talk")
for number in range(20):
    chat.delta(f"w{number} ")
ready("said")
forever()
""",
        "--no-adopt",
        stdin=subprocess.PIPE,
    )
    pid = int(agent.wait_for("pid").split()[1])
    talk_unheard_and_die(world, agent, pid, 1)
    assert short(world.messages("chat")) == [("user", "talk"), ("assistant", words(20))]


def test_deltas_in_the_ring_get_into_the_journal_without_another_record(
    world: World,
) -> None:
    agent, pid = start(world)
    talk(agent, 50)
    [run] = world.runs()

    def in_journal() -> bool:
        return any(b"w49 " in path.read_bytes() for path in run.glob("*.log"))

    until(in_journal, "the supervisor has looked into the ring")
    kill(pid)
    agent.finish()
    assert short(world.messages("chat")) == [("user", "talk"), ("assistant", words(50))]


def test_a_long_message_makes_the_ring_larger_and_one_too_long_goes_into_the_spool(
    world: World,
) -> None:
    sizes = [1000, 200_000, 50, 900_000, 3_000_000, 10]
    agent = world.supervise(
        f"""
chat = session("chat")
sys.stdin.readline()
for size in {sizes}:
    chat.message("user", "x" * size)
ready("said")
forever()
""",
        "--no-adopt",
        stdin=subprocess.PIPE,
    )
    until(lambda: list((world.state / "hermes-supervise" / "runs").glob("*/*.log")), "a journal")
    pid = agent.agent
    talk_unheard_and_die(world, agent, pid, 1)
    assert [len(content) for _, content in short(world.messages("chat"))] == sizes


# -- do no harm ------------------------------------------------------------------------------


def test_without_room_for_a_ring_the_socket_alone_does(world: World) -> None:
    agent = world.supervise(
        """
import resource
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, most))
chat = session("chat")
chat.message("user", "talk")
for number in range(200):
    chat.delta(f"w{number} ")
ready("said")
forever()
"""
    )
    agent.wait_for("said")
    assert not [file for run in world.runs() for file in run.glob("*.ring*")]
    agent.kill_agent()
    agent.finish()
    assert short(world.messages("chat")) == [("user", "talk"), ("assistant", words(200))]


def test_an_agent_that_closes_everything_keeps_its_records_and_its_own_files(world: World) -> None:
    """It gets the number of a descriptor that was ours. A fork later unmaps the ring."""
    agent = world.supervise(
        """
chat = session("chat")
chat.message("user", "talk")
for number in range(10):
    chat.delta(f"w{number} ")
os.closerange(3, 100)
mine = [os.open(os.devnull, os.O_RDONLY) for _ in range(60)]
child = os.fork()
if child == 0:
    for fd in mine:
        os.fstat(fd)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
for number in range(10, 30):
    chat.delta(f"w{number} ")
for fd in mine:
    os.fstat(fd)
ready("said")
forever()
"""
    )
    agent.wait_for("said")
    agent.kill_agent()
    agent.finish()
    assert short(world.messages("chat")) == [("user", "talk"), ("assistant", words(30))]


def test_a_death_that_nobody_saw_is_not_dated_before_the_last_record(world: World) -> None:
    """A mapped file has no time of writing, but its records do."""
    agent, pid = start(
        world,
        """
chat = session("chat")
chat.message("user", "talk")
ready(f"pid {os.getpid()}")
for line in sys.stdin:
    for number in range(int(line)):
        chat.message("assistant", f"w{number}")
    ready("said")
""",
        "--no-adopt",
    )
    talk_unheard_and_die(world, agent, pid, 20)
    rows = world.messages("chat")
    assert len(rows) == 21
    row = world.session("chat")
    assert row is not None and row["ended_at"] >= rows[-1]["timestamp"]


# -- upgraded --------------------------------------------------------------------------------

LATE = """
import os, sys
view, current = sys.argv[1:]
sys.path.insert(0, view)
from hermes_supervise.agent_shim import session
assert "hermes_supervise.agent_shim.ring" not in sys.modules, "it is loaded late"
for package in ("agent_shim", "ipc"):
    os.unlink(f"{view}/hermes_supervise/{package}")
    os.symlink(f"{current}/{package}", f"{view}/hermes_supervise/{package}")
chat = session("chat")
for number in range(3000):
    chat.delta(f"w{number} ")
chat.message("user", "x" * 400_000)
ring = sys.modules["hermes_supervise.agent_shim.ring"]
assert ring.__file__.startswith(view) and hasattr(ring, "ForkedChild"), "the new one"
assert chat._link._ring is not None and chat._link.faults == 0
print(chat._link.stream)
sys.stdout.flush()
os._exit(0)
"""


def test_a_shim_of_the_release_uses_the_ring_of_the_current_version(tmp_path: Path) -> None:
    """It loads `ring.py` with an agent's first record, perhaps after an upgrade."""
    release = release_tree(tmp_path / "release")
    view = tmp_path / "view"
    (view / "hermes_supervise").mkdir(parents=True)
    for package in ("agent_shim", "ipc"):
        (view / "hermes_supervise" / package).symlink_to(release / package)
    with socket.socket(socket.AF_UNIX) as listening, tempfile.TemporaryDirectory() as near:
        listening.bind(f"{near}/s")
        listening.listen()
        where = {"HERMES_SUPERVISE_SOCKET": f"{near}/s", "HERMES_SUPERVISE_SPOOL": str(tmp_path)}
        ran = subprocess.run(
            [sys.executable, "-I", "-c", LATE, str(view), str(ROOT)],
            env=where, capture_output=True, text=True, timeout=DEADLINE,
        )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
    data = (tmp_path / ring.name_of(ran.stdout.strip())).read_bytes()
    found = ring.frames_after(data, 0)
    assert [seq for seq, _ in found] == list(range(1, 3003))
    assert len(found[-1][1]) > 400_000
