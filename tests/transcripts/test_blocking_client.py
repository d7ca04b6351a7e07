"""Our own client: what it says is stored once, whatever happens to its line."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest
from hermes_supervise.ipc import frames, records
from hermes_supervise.supervisor.ingest.blocking_client import BlockingClient, NotDelivered
from support import DEADLINE, World, kill, short, until

# Tells where its supervisor listens, and speaks no word itself.
QUIET = 'ready("at " + os.environ["HERMES_SUPERVISE_SOCKET"])\nforever()\n'

CLIENT = """
import sys
from hermes_supervise.supervisor.ingest.blocking_client import BlockingClient
client = BlockingClient(sys.argv[1])
client.send({"kind": "session", "session": "said", "source": "test"})
for number in range(3):
    message = {"role": "user", "content": f"word {number}"}
    client.send({"kind": "message", "session": "said", "message": message})
    print("said", number, flush=True)
    sys.stdin.readline()
"""


def test_what_was_said_is_in_the_database_when_the_client_is_gone(world: World) -> None:
    agent = world.supervise(QUIET)
    address = agent.wait_for("at").split()[1]
    done = subprocess.run(
        [*world.command[:1], "-c", CLIENT, address], env=world.env, input="\n\n\n", text=True,
        capture_output=True, timeout=30,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    agent.kill_agent()
    agent.finish()
    assert short(world.messages("said")) == [("user", f"word {n}") for n in range(3)]


def test_a_line_that_was_cut_is_begun_anew_and_nothing_is_said_twice(world: World) -> None:
    agent = world.supervise(QUIET)
    address = agent.wait_for("at").split()[1]
    [run] = until(world.runs)
    client = BlockingClient(address)
    client.send({"kind": "session", "session": "said"})
    message = {"role": "user", "content": "first"}
    client.send({"kind": "message", "session": "said", "message": message})
    kill(agent.pid)
    agent.process.wait()
    with pytest.raises(NotDelivered):
        for _ in range(1000):
            client.send({"kind": "message", "session": "said", "message": {"role": "user"}})
    until(world.successors, "a successor")

    def heard() -> bool:
        try:
            client.send()
        except NotDelivered:
            return False
        return True

    until(heard, "the successor listens")
    frames = b"".join(path.read_bytes() for path in Path(run).glob(f"{client.stream}.*"))
    assert frames.count(b'"first"') == 1
    client.close()


def test_what_was_said_while_nobody_listened_goes_with_the_next(world: World) -> None:
    agent = world.supervise(QUIET)
    address = agent.wait_for("at").split()[1]
    client = BlockingClient(address)
    os.rename(address, f"{address}.away")
    first, second = ({"role": "user", "content": word} for word in ("first", "second"))
    with pytest.raises(NotDelivered):
        client.send({"kind": "message", "session": "said", "message": first})
    os.rename(f"{address}.away", address)
    client.send({"kind": "message", "session": "said", "message": second})
    client.close()
    [run] = world.runs()
    text = b"".join(path.read_bytes() for path in run.glob(f"{client.stream}.*"))
    assert 0 < text.index(b'"first"') < text.index(b'"second"')


def test_what_the_supervisor_has_and_did_not_acknowledge_is_sent_again(world: World) -> None:
    """It may have it in memory alone, because its disk is full."""
    address = os.path.join(world.env["XDG_RUNTIME_DIR"], "socket")  # a short path
    heard: list[int] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        listener.settimeout(DEADLINE)

        def serve(have: int, *answers: bytes) -> None:
            peer, _ = listener.accept()
            with peer:
                peer.settimeout(DEADLINE)
                welcome = {"kind": "welcome", "version": 1, "have": have}
                peer.sendall(frames.encode(0, records.pack(welcome)))
                decoder, numbers = frames.Decoder(), [0]
                while numbers[-1] != 1 and (data := peer.recv(65536)):
                    numbers += [seq for seq, _ in decoder.feed(data)]
                heard.extend(numbers[2:])
                peer.sendall(b"".join(answers))

        def supervisor() -> None:
            serve(0)
            serve(1, frames.encode(1, b""))

        thread = threading.Thread(target=supervisor)
        thread.start()
        client = BlockingClient(address)
        with pytest.raises(NotDelivered):
            client.send({"kind": "bye"})
        client.send()
        client.close()
        thread.join(DEADLINE)
    assert heard == [1, 1]


def test_a_client_learns_that_nobody_is_there(tmp_path: Path) -> None:
    with pytest.raises(NotDelivered):
        BlockingClient(str(tmp_path / "none.sock")).send({"kind": "bye"})


def test_a_supervisor_that_is_stopped_is_not_waited_for_for_ever(world: World) -> None:
    agent = world.supervise(QUIET)
    address = agent.wait_for("at").split()[1]
    client = BlockingClient(address, timeout=0.2)
    new: list[dict[str, object]] = [{"kind": "session", "session": "said"}]

    def is_delivered() -> bool:
        try:
            client.send(*new)
            return True
        except NotDelivered:  # a busy machine; the client keeps what it was given
            new.clear()
            return False

    until(is_delivered, "a supervisor that is not stopped answers in time")
    os.kill(agent.pid, signal.SIGSTOP)
    try:
        with pytest.raises(NotDelivered, match="does not answer"):
            client.send({"kind": "message", "session": "said", "message": {"role": "user"}})
    finally:
        os.kill(agent.pid, signal.SIGCONT)
        client.close()
