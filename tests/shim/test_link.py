"""The link from the agent to its supervisor: nothing is lost and nobody waits, whatever breaks."""

from __future__ import annotations

import os
import re
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hermes_supervise.ipc import frames, records, ring
from support import DEADLINE, Supervised, World, alive, kill, short, until, wait_dead

Record = dict[str, Any]

WAIT = """
def wait_for_test():
    sys.stdin.readline()

"""


def words(start: int, stop: int) -> str:
    return "".join(f"word{number} " for number in range(start, stop))


def spools(world: World) -> list[Path]:
    return [path for run in world.runs() for path in run.glob("*.spool")]


def stopped(pid: int) -> bool:
    line = Path(f"/proc/{pid}/stat").read_text()
    return line[line.rindex(")") + 2] == "T"


def problems(world: World) -> list[str]:
    return [problem for report in world.reports() for problem in report["problems"]]


class Peer:
    """The test itself, in the supervisor's place at the socket."""

    def __init__(self, world: World) -> None:
        self.path = os.path.join(world.env["XDG_RUNTIME_DIR"], "peer.sock")
        self.spool_folder = world.folder / "spool"
        self.spool_folder.mkdir()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(8)
        self.listener.settimeout(DEADLINE)
        self.connections: dict[socket.socket, frames.Decoder] = {}
        self.received: list[tuple[int, bytes]] = []

    def accept(self) -> socket.socket:
        connection, _ = self.listener.accept()
        connection.settimeout(DEADLINE)
        self.connections[connection] = frames.Decoder()
        return connection

    def receive(self, connection: socket.socket, upto: int | None = None) -> None:
        """Receive what is sent on a connection, to its end or up to a number."""
        while data := connection.recv(65536):
            came = self.connections[connection].feed(data)
            assert self.connections[connection].damage is None
            self.received += came
            if upto is not None and any(seq >= upto for seq, _ in came):
                return

    def receive_for_now(self, connection: socket.socket) -> None:
        """Receive what is in the buffer, which makes room in it."""
        connection.setblocking(False)
        try:
            self.receive(connection)
        except BlockingIOError:
            connection.settimeout(DEADLINE)

    def spooled(self) -> list[tuple[int, bytes]]:
        found = []
        for path in self.spool_folder.glob("*.spool"):
            salvaged = frames.salvage(path.read_bytes())
            assert (salvaged.holes, salvaged.torn) == ([], None), "the spool holds whole frames"
            found += salvaged.frames
        return found

    def in_ring(self) -> list[tuple[int, bytes]]:
        """What is in the rings of the processes that were heard of."""
        who = {frame for seq, frame in self.received + self.spooled() if seq == frames.HANDSHAKE}
        found = []
        for path in self.spool_folder.glob("*.ring"):
            data = path.read_bytes()
            if ring.hello_in(data) in who:
                found += ring.frames_after(data, 0)
        return found

    def everything(self) -> list[Record]:
        """What recovery would see: connection, spool and ring together, with no number missing."""
        union: dict[int, bytes] = {}
        for seq, frame in self.received + self.spooled() + self.in_ring():
            if seq != frames.HANDSHAKE:
                assert union.setdefault(seq, frame) == frame, "one number, one frame"
        assert sorted(union) == list(range(1, len(union) + 1))
        return [records.unpack(frames.payload_of(union[seq])) for seq in sorted(union)]

    def close(self) -> None:
        for each in [self.listener, *self.connections]:
            each.close()


@pytest.fixture
def peer(world: World) -> Iterator[Peer]:
    made = Peer(world)
    try:
        yield made
    finally:
        made.close()


def speak(
    world: World, source: str, address: str, spool: str | Path, *switches: str
) -> subprocess.Popen[bytes]:
    """Start an agent with this socket and this spool folder, whatever is there."""
    env = world.env | {"HERMES_SUPERVISE_SOCKET": address, "HERMES_SUPERVISE_SPOOL": str(spool)}
    return subprocess.Popen(
        [sys.executable, *switches, world.script(WAIT + source)],
        env=env, cwd=world.folder,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def streamed_in(numbered: list[tuple[int, bytes]]) -> str:
    return streamed([records.unpack(frames.payload_of(frame)) for _, frame in numbered])


def streamed(found: list[Record], session: str = "chat") -> str:
    return "".join(
        record.get("text", "")
        for record in found
        if record["kind"] == "delta" and record["session"] == session
    )


# -- what is handed over stays ------------------------------------------------------------


def test_what_was_handed_over_survives_a_sigkill_right_after_it(world: World, peer: Peer) -> None:
    """Nobody reads before the agent is dead: it was in the socket's buffer and in the ring."""
    agent = speak(
        world,
        """
chat = session("chat")
chat.message("user", "go")
for number in range(100):
    chat.delta(f"word{number} ")
os.kill(os.getpid(), signal.SIGKILL)
""",
        peer.path,
        peer.spool_folder,
    )
    assert agent.wait(DEADLINE) == -signal.SIGKILL
    agent.communicate()
    peer.receive(peer.accept())
    assert peer.spooled() == []
    found = peer.everything()
    assert [record["kind"] for record in found[:2]] == ["session", "message"]
    assert streamed(found) == words(0, 100)


def test_a_message_larger_than_any_buffer_arrives_whole(world: World) -> None:
    agent = world.supervise(
        """
chat = session("chat")
chat.message("user", "go")
chat.message("assistant", "".join(f"{n} " for n in range(300_000)))
chat.delta("after")
ready()
forever()
"""
    )
    agent.wait_for("ready")
    agent.kill_agent()
    agent.finish()
    whole = "".join(f"{n} " for n in range(300_000))
    rows = world.messages("chat")
    assert [len(row["content"]) for row in rows] == [2, len(whole), 5]
    assert rows[1]["content"] == whole
    assert problems(world) == []


def test_a_message_over_the_frame_limit_arrives_cut_with_a_marker(world: World, peer: Peer) -> None:
    agent = speak(
        world,
        """
chat = session("chat")
chat.message("user", "x" * (17 * 1024 * 1024))
chat.delta("y" * (17 * 1024 * 1024))
chat.delta("after")
""",
        peer.path,
        peer.spool_folder,
    )
    peer.receive(peer.accept())
    assert agent.communicate(timeout=DEADLINE) == (b"", b"")
    found = peer.everything()
    body, _, marker = found[1]["message"]["content"].rpartition("\n")
    assert len(body) > 16_000_000 and set(body) == {"x"}
    assert re.fullmatch(r"\[\d+ characters cut here: .*\]", marker)
    assert streamed(found) == "y" * (17 * 1024 * 1024) + "after", "a delta is split, not cut"


# -- a supervisor that is slow, stopped or gone --------------------------------------------


def test_a_stopped_supervisor_delays_nobody_and_loses_nothing(world: World) -> None:
    agent = world.supervise(
        WAIT
        + """
import resource
chat = session("chat")
chat.message("user", "go")
def stream(start, stop):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    for number in range(start, stop):
        chat.delta(f"word{number} " + "." * 300)
    return str(resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before)
stream(0, 10)
ready("begun")
wait_for_test()
ready("waited " + stream(10, 4000))
wait_for_test()
stream(4000, 4100)
ready("went on")
forever()
""",
        stdin=subprocess.PIPE,
    )
    agent.wait_for("begun")
    victim = agent.agent
    kill(agent.pid, signal.SIGSTOP)
    until(lambda: stopped(agent.pid), "the supervisor stopped")
    agent.send_line()
    waits = int(agent.wait_for("waited").split()[1])
    assert waits < 100, "of 3,990 calls, few wait for a supervisor that does not read"
    [spool] = spools(world)
    assert spool.stat().st_size > 300_000, "what found no room in the buffer is in the spool"
    kill(agent.pid, signal.SIGCONT)
    agent.send_line()
    agent.wait_for("went on")
    kill(victim)
    assert agent.finish() == -signal.SIGKILL
    whole = "".join(f"word{number} " + "." * 300 for number in range(4100))
    assert short(world.messages("chat")) == [("user", "go"), ("assistant", whole)]
    assert problems(world) == []


def test_the_connection_is_used_again_when_a_stopped_supervisor_continues(
    world: World, peer: Peer
) -> None:
    """After the gap that the spool fills, frames come on the same connection again."""
    agent = speak(
        world,
        """
chat = session("chat")
for number in range(3000):
    chat.delta(f"word{number} " + "." * 300)
ready()
wait_for_test()
for number in range(3000, 3010):
    chat.delta(f"word{number} " + "." * 300)
""",
        peer.path,
        peer.spool_folder,
    )
    watched = Supervised(agent)
    watched.wait_for("ready")
    connection = peer.accept()
    peer.receive_for_now(connection)
    assert 100 < len(peer.received) < 3000
    watched.send_line()
    peer.receive(connection)
    assert watched.finish() == 0
    assert records.unpack(frames.payload_of(peer.received[-1][1]))["kind"] == "bye"
    whole = "".join(f"word{number} " + "." * 300 for number in range(3010))
    assert streamed(peer.everything()) == whole


def test_a_killed_supervisor_leaves_the_agent_its_output_and_its_status(world: World) -> None:
    source = """
chat = session("chat")
chat.message("user", "go")
for number in range(100):
    chat.delta(f"word{number} ")
ready(str(os.getpid()))
wait_for_test()
for number in range(100, 200):
    chat.delta(f"word{number} ")
ready("last words")
sys.exit(7)
"""
    script = world.script(WAIT + source)
    shell = f"{sys.executable} {script}; echo status $?"
    agent = world.run(["sh", "-c", shell], "--no-adopt", stdin=subprocess.PIPE)
    pid = int(agent.wait_for(""))
    kill(agent.pid)
    wait_dead(agent.pid)
    assert alive(pid)
    agent.send_line()
    agent.wait_for("last words")
    assert agent.wait_for("status") == "status 7"
    wait_dead(pid)
    agent.finish()
    assert agent.errors == b""
    [spool] = spools(world)
    found = [
        records.unpack(frames.payload_of(f)) for _, f in frames.salvage(spool.read_bytes()).frames
    ]
    assert found[0]["kind"] == "hello" and found[-1]["kind"] == "bye"
    assert streamed(found).endswith(words(100, 200))
    answer = world.call("recover")
    assert answer.returncode == 0, answer.stderr
    assert short(world.messages("chat")) == [("user", "go"), ("assistant", words(0, 200))]
    assert (problems(world), world.runs()) == ([], [])


def test_nothing_is_lost_when_the_supervisor_is_killed_and_then_the_agent(world: World) -> None:
    agent = world.supervise(
        WAIT
        + """
chat = session("chat")
chat.message("user", "go")
for number in range(2000):
    chat.delta(f"word{number} ")
ready()
wait_for_test()
for number in range(2000, 2100):
    chat.delta(f"word{number} ")
ready("more")
forever()
""",
        "--no-adopt",
        stdin=subprocess.PIPE,
    )
    agent.wait_for("ready")
    victim = agent.agent
    kill(agent.pid)
    wait_dead(agent.pid)
    agent.send_line()
    agent.wait_for("more")
    answer = world.call("recover")
    assert "still running" in answer.stdout, "a living agent is left alone"
    kill(victim)
    wait_dead(victim)
    answer = world.call("recover")
    assert answer.returncode == 0, answer.stderr
    rows = world.messages("chat")
    assert short(rows) == [("user", "go"), ("assistant", words(0, 2100))]
    assert rows[-1]["finish_reason"] == "interrupted"
    assert (problems(world), world.runs()) == ([], [])


def test_sigpipe_with_its_deadly_default_does_not_kill_the_agent(world: World, peer: Peer) -> None:
    agent = speak(
        world,
        """
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
chat = session("chat")
chat.delta("before ")
ready()
wait_for_test()
chat.delta("after")
ready("survived")
""",
        peer.path,
        peer.spool_folder,
    )
    watched = Supervised(agent)
    watched.wait_for("ready")
    peer.accept().close()
    peer.listener.close()
    watched.send_line()
    watched.wait_for("survived")
    assert watched.finish() == 0
    assert streamed(peer.everything()) == "before after"


# -- nobody there, and nowhere to write ----------------------------------------------------

CALM = """
with session("chat") as chat:
    chat.message("user", "go")
    for number in range(500):
        chat.delta(f"word{number} ")
ready("done")
sys.exit(3)
"""


@pytest.mark.parametrize("socket_is", ["missing", "stale", "a file", "too long a path"])
def test_with_nobody_at_the_socket_everything_is_in_the_spool(
    world: World, peer: Peer, socket_is: str
) -> None:
    peer.listener.close()
    address = {
        "missing": peer.path + ".not",
        "stale": peer.path,
        "a file": __file__,
        "too long a path": "/" + "x" * 200,
    }[socket_is]
    agent = speak(world, CALM, address, peer.spool_folder)
    assert agent.communicate(timeout=DEADLINE) == (b"done\n", b"")
    assert agent.returncode == 3
    found = peer.everything()
    assert streamed(found) == words(0, 500)
    assert [record["kind"] for record in found[-2:]] == ["ended", "bye"]
    hello = records.unpack(frames.payload_of(peer.spooled()[0][1]))
    assert (hello["kind"], hello["pid"]) == ("hello", agent.pid)
    assert streamed_in(peer.spooled()) == words(0, 500), "the ring is not needed for it"
    for file in peer.spool_folder.iterdir():
        assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("spool", ["missing/folder", "agent.py", "/dev/full", "", "nul\udcff"])
def test_without_socket_and_spool_the_agent_does_not_notice(world: World, spool: str) -> None:
    agent = speak(world, CALM, str(world.folder / "nobody"), spool, "-X", "dev", "-W", "error")
    assert agent.communicate(timeout=DEADLINE) == (b"done\n", b"")
    assert agent.returncode == 3


def test_memory_stays_bounded_when_there_is_nowhere_to_put_it(world: World) -> None:
    agent = speak(
        world,
        """
import resource
chat = session("chat")
chat.delta("x")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for number in range(300):
    chat.delta("x" * 200_000)
ready(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
""",
        str(world.folder / "nobody"),
        "missing",
    )
    output, errors = agent.communicate(timeout=DEADLINE)
    assert (agent.returncode, errors) == (0, b"")
    assert int(output) < 30_000, "60 MB were sent; about 4 MB are kept"


def test_a_full_disk_under_the_spool_is_waited_out_without_half_a_frame(
    world: World, peer: Peer
) -> None:
    peer.listener.close()
    agent = speak(
        world,
        """
import resource
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
chat = session("chat")
chat.message("user", "go")
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, most))
for number in range(500):
    chat.delta(f"word{number} ")
folder = os.environ["HERMES_SUPERVISE_SPOOL"]
[spool] = [name for name in os.listdir(folder) if name.endswith(".spool")]
ready(str(os.path.getsize(os.path.join(folder, spool))))
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
for number in range(500, 600):
    chat.delta(f"word{number} ")
ready("done")
""",
        peer.path,
        peer.spool_folder,
    )
    output, errors = agent.communicate(timeout=DEADLINE)
    size, done = output.split()
    assert (agent.returncode, done, errors) == (0, b"done", b"")
    assert 3000 < int(size) <= 4096, "the disk was full"
    assert streamed(peer.everything()) == words(0, 600)


def test_room_for_a_part_of_what_waits_takes_that_part(world: World, peer: Peer) -> None:
    """And a call on a full disk does not write again, in vain, what earlier calls could not."""
    peer.listener.close()
    agent = speak(
        world,
        """
import resource
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
def written():
    with open("/proc/self/io") as file:
        return int(dict(line.split(": ") for line in file)["wchar"])
chat = session("chat")
chat.message("user", "go")
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, most))
for number in range(20_000):
    chat.delta(f"word{number} ")
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, most))
before = written()
for number in range(20_000, 20_100):
    chat.delta(f"word{number} ")
ready(str(written() - before))
""",
        peer.path,
        peer.spool_folder,
    )
    output, errors = agent.communicate(timeout=DEADLINE)
    assert (agent.returncode, errors) == (0, b"")
    [spool] = peer.spool_folder.glob("*.spool")
    assert 190_000 < spool.stat().st_size <= 200_000
    kept = streamed_in(peer.spooled())
    assert kept == words(0, 20_100)[: len(kept)]
    assert int(output) < 100 * 10_000, "the spool itself, and little more for each of the calls"


def test_what_neither_connection_nor_spool_takes_is_sent_later_and_first(
    world: World, peer: Peer
) -> None:
    """Records that were only in memory are sent before newer ones."""
    agent = speak(
        world,
        """
chat = session("chat")
for number in range(3000):
    chat.delta(f"word{number} " + "." * 300)
ready()
wait_for_test()
chat.delta("end")
import select
while not select.select([sys.stdin], [], [], 0.001)[0]:
    chat.delta("+")
""",
        peer.path,
        "missing",
    )
    watched = Supervised(agent)
    watched.wait_for("ready")
    connection = peer.accept()
    peer.receive_for_now(connection)
    assert 100 < len(peer.received) < 3000
    watched.send_line()
    peer.receive(connection, upto=3002)
    watched.send_line()
    peer.receive(connection)
    assert watched.finish() == 0
    whole = "".join(f"word{number} " + "." * 300 for number in range(3000))
    assert streamed(peer.everything()).rstrip("+") == whole + "end"


# -- a peer that misbehaves ----------------------------------------------------------------


def _never_reads(peer: Peer, connection: socket.socket) -> None:
    pass


def _answers_garbage(peer: Peer, connection: socket.socket) -> None:
    peer.receive(connection, upto=40)
    connection.sendall(os.urandom(1000))


def _answers_what_was_never_sent(peer: Peer, connection: socket.socket) -> None:
    peer.receive(connection, upto=40)
    connection.sendall(frames.encode(1 << 40, b""))


def _closes(peer: Peer, connection: socket.socket) -> None:
    connection.close()


def _resets(peer: Peer, connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.recv(10)
    connection.close()


def _refuses(peer: Peer, connection: socket.socket) -> None:
    connection.sendall(frames.encode(frames.HANDSHAKE, records.pack({"kind": "refused"})))
    connection.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    "misbehave",
    [_never_reads, _answers_garbage, _answers_what_was_never_sent, _closes, _resets, _refuses],
)
def test_whatever_the_other_end_does_the_agent_goes_on_and_nothing_is_lost(
    world: World, peer: Peer, misbehave: Any
) -> None:
    agent = speak(
        world,
        """
chat = session("chat")
for number in range(50):
    chat.delta(f"word{number} ")
chat.turn("start")
ready("half")
wait_for_test()
for number in range(50, 4000):
    chat.delta(f"word{number} " + "." * 100)
ready("done")
sys.exit(3)
""",
        peer.path,
        peer.spool_folder,
    )
    watched = Supervised(agent)
    watched.wait_for("half")
    connection = peer.accept()
    misbehave(peer, connection)
    # The peer accepts a second connection at most, and does not read from it.
    watched.send_line()
    watched.wait_for("done")
    assert watched.finish() == 3
    assert watched.errors == b""
    peer.listener.setblocking(False)
    unread = [connection] if misbehave is _never_reads else []
    try:
        unread.append(peer.accept())
    except BlockingIOError:
        pass
    for open_connection in unread:
        peer.receive(open_connection)
    whole = words(0, 50) + "".join(f"word{n} " + "." * 100 for n in range(50, 4000))
    assert streamed(peer.everything()) == whole


# -- threads, signal handlers, exceptions --------------------------------------------------


def test_sixteen_threads_lose_and_reorder_nothing(world: World) -> None:
    """All begin at once, so the first look for the supervisor is a race as well."""
    agent = world.supervise(
        """
sys.setswitchinterval(1e-5)
both = session("both")
start = threading.Barrier(16)
def work(me):
    start.wait()
    own = session(f"own{me}")
    own.message("user", "go")
    for number in range(20):
        both.message("user", f"{me} {number}")
        for piece in range(10):
            own.delta(f"{number}.{piece} ")
threads = [threading.Thread(target=work, args=(me,)) for me in range(16)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
ready()
forever()
"""
    )
    agent.wait_for("ready")
    agent.kill_agent()
    agent.finish()
    said = [row["content"].split() for row in world.messages("both")]
    whole = "".join(f"{number}.{piece} " for number in range(20) for piece in range(10))
    for me in range(16):
        assert [n for who, n in said if who == str(me)] == [str(n) for n in range(20)]
        assert short(world.messages(f"own{me}")) == [("user", "go"), ("assistant", whole)]
    assert len(said) == 16 * 20
    assert problems(world) == []


def test_the_first_look_for_the_supervisor_is_the_same_for_all_threads(
    world: World, peer: Peer
) -> None:
    agent = speak(
        world,
        """
from hermes_supervise.agent_shim import sdk
sys.setswitchinterval(1e-6)
links = []
def look():
    start.wait()
    links.append(sdk.connection())
for _ in range(50):
    sdk._found.clear()
    links.clear()
    start = threading.Barrier(8)
    threads = [threading.Thread(target=look) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(set(map(id, links))) == 1 and links[0] is not None, links
""",
        peer.path,
        peer.spool_folder,
    )
    assert agent.communicate(timeout=DEADLINE) == (b"", b"")


def test_a_signal_handler_may_report_while_the_main_thread_does(world: World) -> None:
    agent = world.supervise(
        """
main, other = session("main"), session("other")
count, here = 0, False
def handler(*_):
    global count, here
    if not here:  # handlers interrupt each other as well, which the count cannot bear
        here = True
        other.delta(f"word{count} ")
        main.title(f"title {count}")
        count += 1
        here = False
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
for number in range(20000):
    main.delta(f"word{number} ")
signal.setitimer(signal.ITIMER_REAL, 0)
ready(f"interrupted {count}")
forever()
"""
    )
    count = int(agent.wait_for("interrupted").split()[1])
    assert count > 20
    agent.kill_agent()
    agent.finish()
    assert short(world.messages("main")) == [("assistant", words(0, 20000))]
    assert short(world.messages("other")) == [("assistant", words(0, count))]
    assert problems(world) == []


@pytest.mark.parametrize("raised", ["KeyboardInterrupt", "TimeoutError"])
def test_an_exception_from_a_signal_handler_passes_through_and_the_stream_stays_whole(
    world: World, raised: str
) -> None:
    """A call that returned is there once, in order; one that was interrupted, once at most."""
    agent = world.supervise(
        """
chat = session("chat")
inside = False
struck = set()
def handler(*_):
    if inside:
        struck.add(number)
        raise RAISED
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
returned, cut = [], []
for number in range(2000):
    text = f"<{number}>" + "." * (40000 if number % 50 == 0 else 10)
    try:
        inside = True
        chat.delta(text)
        inside = False
        returned.append(number)
    except RAISED:
        inside = False
        cut.append(number)
signal.setitimer(signal.ITIMER_REAL, 0)
assert struck == set(cut), f"none was swallowed: {struck ^ set(cut)}"
chat.delta("<end>")
ready(f"returned {returned}".replace(" ", "").replace("returned", "returned "))
ready(f"cut {cut}".replace(" ", "").replace("cut", "cut "))
forever()
""".replace("RAISED", raised)
    )
    returned = set(re.findall(r"\d+", agent.wait_for("returned")))
    cut = set(re.findall(r"\d+", agent.wait_for("cut")))
    assert len(cut) > 20, "the exception did strike inside calls"
    agent.kill_agent()
    agent.finish()
    [row] = world.messages("chat")
    found = re.findall(r"<(\d+|end)>", row["content"])
    assert found.pop() == "end"
    assert found == sorted(set(found), key=int), "once and in order"
    assert returned <= set(found) <= returned | cut
    assert problems(world) == []


def test_ctrl_c_in_the_middle_of_a_piece_is_never_swallowed(world: World) -> None:
    """Python's own handler for it is written in C, and leaves no frame in a traceback."""
    agent = world.supervise(
        """
from hermes_supervise.ipc import frames
encode, armed = frames.encode, False
def struck(seq, payload):
    global armed
    frame = encode(seq, payload)
    if armed:
        armed = False
        signal.raise_signal(signal.SIGINT)
    return frame
frames.encode = struck
signal.signal(signal.SIGINT, signal.default_int_handler)
chat, heard = session("chat"), 0
for number in range(50):
    chat.delta(f"<{number}>")
    try:
        armed = True
        chat.delta(".")
    except KeyboardInterrupt:
        heard += 1
chat.delta("<end>")
ready(f"heard {heard} {chat._link.faults}")
forever()
"""
    )
    assert agent.wait_for("heard") == "heard 50 0"
    agent.kill_agent()
    agent.finish()
    whole = "".join(f"<{number}>." for number in range(50)) + "<end>"
    assert short(world.messages("chat")) == [("assistant", whole)], "the next call sends it"
    assert problems(world) == []


# -- fork and exec -------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["os.fork", "multiprocessing"])
def test_a_forked_child_has_a_stream_of_its_own_and_leaves_its_parents_alone(
    world: World, way: str
) -> None:
    start = {
        "os.fork": "child = os.fork()\nif child == 0:\n    work()\n",
        "multiprocessing": "import multiprocessing\n"
        "process = multiprocessing.get_context('fork').Process(target=work)\n"
        "process.start()\nchild = process.pid\n",
    }[way]
    agent = world.supervise(
        WAIT
        + """
chat = session("parent")
chat.message("user", "go")
chat.delta("before ")
def work():
    own = session("child")
    own.message("user", "child goes")
    own.delta("half a ")
    chat.message("tool", "the child knows the parent's session")
    ready(f"child {os.getpid()}")
    forever()
"""
        + start
        + """
wait_for_test()
chat.delta("after")
ready("went on")
forever()
""",
        *world.hook,
        stdin=subprocess.PIPE,
    )
    child = int(agent.wait_for("child").split()[1])
    kill(child)
    until(world.events, "the child's session is recovered while its parent lives")
    assert short(world.messages("child")) == [("user", "child goes"), ("assistant", "half a ")]
    parent = world.session("parent")
    assert parent is None or parent["ended_at"] is None, "the parent's session lives on"
    agent.send_line()
    agent.wait_for("went on")
    agent.kill_agent()
    agent.finish()
    rows = short(world.messages("parent"))
    assert ("assistant", "before after") in rows
    assert rows.count(("tool", "the child knows the parent's session")) == 1
    parent = world.session("parent")
    assert parent is not None and parent["end_reason"] == "interrupted"
    assert problems(world) == []


def test_a_child_of_libcs_fork_has_a_stream_of_its_own(world: World, peer: Peer) -> None:
    """Python's fork hooks do not run there. Its first call is a delta of its parent's session."""
    agent = speak(
        world,
        """
import ctypes
chat = session("chat")
chat.delta("before ")
chat.delta("the fork ")
child = ctypes.PyDLL(None).fork()
if child == 0:
    for number in range(500):
        chat.delta(f"child{number} ")
    os._exit(0)
for number in range(500):
    chat.delta(f"word{number} ")
assert os.waitpid(child, 0)[1] == 0
os.kill(os.getpid(), signal.SIGKILL)
""",
        peer.path,
        peer.spool_folder,
    )
    assert agent.wait(DEADLINE) == -signal.SIGKILL
    assert agent.communicate() == (b"", b"")
    peer.receive(peer.accept())
    found = peer.everything()
    assert streamed(found) == "before the fork " + words(0, 500)
    peer.received.clear()
    peer.receive(peer.accept())
    found = peer.everything()
    assert found[0]["kind"] == "session", "the child's stream names the session first"
    assert streamed(found) == "".join(f"child{number} " for number in range(500))


def test_a_forked_child_that_exits_sends_no_bye_for_its_parent(world: World, peer: Peer) -> None:
    agent = speak(
        world,
        """
chat = session("chat")
chat.delta("before ")
silent = os.fork()
if silent == 0:
    sys.exit(0)
speaking = os.fork()
if speaking == 0:
    session("child").delta("hello")
    sys.exit(0)
for child in (silent, speaking):
    assert os.waitpid(child, 0)[1] == 0
chat.delta("after")
os.kill(os.getpid(), signal.SIGKILL)
""",
        peer.path,
        peer.spool_folder,
    )
    assert agent.wait(DEADLINE) == -signal.SIGKILL
    assert agent.communicate() == (b"", b"")
    peer.receive(peer.accept())
    found = peer.everything()
    assert [record["kind"] for record in found] == ["session", "delta", "delta"]
    assert streamed(found) == "before after"
    peer.received.clear()
    peer.receive(peer.accept())
    assert [record["kind"] for record in peer.everything()] == ["session", "delta", "bye"]


def test_a_child_forked_while_other_threads_are_in_a_call_can_report(
    world: World, peer: Peer
) -> None:
    peer.listener.close()
    agent = speak(
        world,
        """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
chat = session("chat")
stop = False
def stream():
    while not stop:
        chat.delta("x" * 1000)
threads = [threading.Thread(target=stream) for _ in range(4)]
[thread.start() for thread in threads]
for number in range(30):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        chat.delta(f"child {number}")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, number
stop = True
[thread.join() for thread in threads]
""",
        peer.path,
        peer.spool_folder,
    )
    assert agent.communicate(timeout=DEADLINE) == (b"", b"")
    assert agent.returncode == 0
    children = set()
    for path in peer.spool_folder.glob("*.spool"):
        salvaged = frames.salvage(path.read_bytes())
        assert (salvaged.holes, salvaged.torn) == ([], None)
        last = records.unpack(frames.payload_of(salvaged.frames[-1][1]))
        if last["kind"] == "delta":
            children.add(last["text"])
            assert [seq for seq, _ in salvaged.frames] == [0, 1, 2]
    assert children == {f"child {number}" for number in range(30)}


def test_an_agent_that_execs_itself_loses_nothing_reported_before(world: World) -> None:
    agent = world.supervise(
        """
again = len(sys.argv) > 1
chat = session("second" if again else "first")
chat.message("user", "again" if again else "go")
chat.delta("half a reply")
if not again:
    os.execv(sys.executable, [sys.executable, __file__, "again"])
ready()
forever()
"""
    )
    agent.wait_for("ready")
    agent.kill_agent()
    assert agent.finish() == -signal.SIGKILL
    assert short(world.messages("first")) == [("user", "go"), ("assistant", "half a reply")]
    assert short(world.messages("second")) == [("user", "again"), ("assistant", "half a reply")]
    assert problems(world) == []


# -- an agent that closes what it does not know --------------------------------------------


def test_a_descriptor_the_agent_closed_and_used_again_is_not_written_to(
    world: World, peer: Peer
) -> None:
    agent = speak(
        world,
        """
import socket
chat = session("chat")
chat.delta("before ")
wait_for_test()
os.closerange(3, 100)
mine = socket.socketpair()
for each in mine:
    each.setblocking(False)
files = [os.open("mine", os.O_RDWR | os.O_CREAT) for _ in range(4)]
for number in range(100):
    chat.delta(f"word{number} ")
for each in mine:
    try:
        assert not each.recv(100), "the agent's socket got our bytes"
    except BlockingIOError:
        pass
assert os.fstat(files[0]).st_size == 0, "the agent's file got our bytes"
ready("done")
""",
        peer.path,
        peer.spool_folder,
    )
    watched = Supervised(agent)
    first = peer.accept()
    watched.send_line()
    watched.wait_for("done")
    assert watched.finish() == 0
    assert watched.errors == b""
    peer.receive(first)
    peer.listener.setblocking(False)
    try:
        peer.receive(peer.accept())
    except BlockingIOError:
        pass
    assert streamed(peer.everything()) == "before " + words(0, 100)
