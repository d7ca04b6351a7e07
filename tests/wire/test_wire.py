"""The wire as other programs speak it: the vectors in docs/protocol.md, and an agent in Node.js."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hermes_supervise.ipc import frames, records
from page_examples import examples
from support import Supervised, World, kill, short, until

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "node" / "agent.js"


class Vector:
    """A vector of the page: what it is, its number, its payload as a text, and its bytes."""

    def __init__(self, name: str, number: str, payload: str, digits: str) -> None:
        self.name = name
        self.number = int(number)
        self.data = bytes.fromhex("".join(digits.split()))
        compact = re.fullmatch(r"([tr]) (\S+) (.*)", payload)
        if compact:
            is_reasoning = compact[1] == "r"
            self.payload = records.pack_delta(compact[2], compact[3], reasoning=is_reasoning)
            field = "reasoning" if is_reasoning else "text"
            self.record: Any = {"kind": "delta", "session": compact[2], field: compact[3]}
        else:
            self.payload = payload.encode() if payload != "(empty)" else b""
            self.record = json.loads(payload) if self.payload else None


def vectors() -> list[Vector]:
    page = (ROOT / "docs" / "protocol.md").read_text()
    section = page.partition("## Test vectors")[2].partition("\n## ")[0]
    found = re.findall(
        r"^    (\w+), number (\d+)\n    (.+)\n((?:        [0-9a-f ]+\n)+)", section, flags=re.M
    )
    return [Vector(*fields) for fields in found]


def test_the_page_has_a_vector_of_every_kind_that_a_client_needs() -> None:
    assert [vector.name for vector in vectors()] == [
        "hello", "session", "message", "delta", "reasoning", "bye", "welcome", "ack", "cut",
        "piece", "rest",
    ]  # fmt: skip


@pytest.mark.parametrize("vector", vectors(), ids=lambda vector: vector.name)
def test_a_vector_encodes_and_decodes_as_the_page_says(vector: Vector) -> None:
    assert frames.encode(vector.number, vector.payload) == vector.data
    decoder = frames.Decoder()
    [(number, frame)] = decoder.feed(vector.data)
    assert decoder.damage is None
    assert (number, frames.payload_of(frame)) == (vector.number, vector.payload)
    if vector.record is not None:
        assert records.unpack(vector.payload) == vector.record


# Says the bytes of the page, and tells what came back.
MIMIC = """
import socket
line = socket.socket(socket.AF_UNIX)
line.connect(os.environ["HERMES_SUPERVISE_SOCKET"])
line.sendall(bytes.fromhex(sys.argv[1]))
heard = b""
while len(heard) < int(sys.argv[2]):
    heard += line.recv(4096)
ready("heard " + heard.hex())
forever()
"""


def test_a_supervisor_takes_the_vectors_and_answers_with_those_of_the_page(world: World) -> None:
    named = {vector.name: vector for vector in vectors()}
    names = ("hello", "session", "message", "delta", "reasoning", "cut", "piece", "rest")
    said = [named[name].data for name in names]
    answers = named["welcome"].data + frames.encode(7, b"")
    agent = world.run(
        [
            *world.command[:1], world.script(MIMIC), b"".join(said).hex(), str(len(answers))
        ]
    )  # fmt: skip
    assert agent.wait_for("heard").split()[1] == answers.hex()
    agent.kill_agent()
    agent.finish()
    rows = world.messages("chat-1")
    assert short(rows) == [("user", "Grüße"), ("assistant", "Hi, ü"), ("user", "Long")]
    assert rows[1]["reasoning"] == "hm"


def test_the_single_vector_of_the_page_is_that_of_bye() -> None:
    shown = [example.text for example in examples("docs/protocol.md")]
    [vector] = [text for text in shown if text.startswith("f5485301")]
    assert bytes.fromhex(vector) == frames.encode(1, b'{"kind":"bye"}')


def test_the_minimum_on_the_page_is_recovered(world: World) -> None:
    pages = [example.text for example in examples("docs/protocol.md")]
    [shown] = [text for text in pages if text.startswith('{"kind":"hello"')]
    # Its pid is for the process to fill in.
    payloads = [line.replace("6f1c…", "6f1c" * 8).encode() for line in shown.splitlines()]
    answers = frames.encode(0, b'{"kind":"welcome","version":1,"have":0}') + frames.encode(3, b"")
    source = f"""
from hermes_supervise.ipc import frames
payloads = {payloads!r}
payloads[0] = payloads[0].replace(b"4711", b"%d" % os.getpid())
sys.argv[1:] = [b"".join(map(frames.encode, range(4), payloads)).hex(), {str(len(answers))!r}]
{MIMIC}"""
    agent = world.run([*world.command[:1], world.script(source)])
    agent.wait_for("heard")
    agent.kill_agent()
    agent.finish()
    assert short(world.messages("chat-1")) == [("user", "Hello?"), ("assistant", "Hi, I am")]


# -- in another language -----------------------------------------------------------------------


def node() -> str:
    found = shutil.which("node")
    assert found is not None, "Node.js is needed here"
    return found


def test_node_encodes_the_vectors_of_the_page() -> None:
    code = """
const { frame, asDelta } = require(process.argv[1]);
const encoded = JSON.parse(process.argv[2]).map(([number, payload, delta]) =>
  frame(number, delta ? asDelta(...delta) : Buffer.from(payload)).toString('hex'));
console.log(JSON.stringify(encoded));
"""
    wanted = [vector for vector in vectors() if vector.name != "reasoning"]
    given = [
        (v.number, "" if v.name == "delta" else v.payload.decode(),
         ["chat-1", "Hi, ü"] if v.name == "delta" else None)
        for v in wanted
    ]  # fmt: skip
    done = subprocess.run(
        [node(), "-e", code, str(EXAMPLE), json.dumps(given)],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert json.loads(done.stdout) == [vector.data.hex() for vector in wanted]


class Counting:
    """The example while it counts, and what it has shown so far."""

    def __init__(self, world: World, *words: str) -> None:
        self.world = world
        self.agent: Supervised = world.run([node(), str(EXAMPLE), *words])
        self.pid = self.agent.agent
        self.shown = b""

    def wait_shown(self, piece: bytes) -> None:
        assert self.agent.process.stdout is not None
        while piece not in self.shown:
            more = os.read(self.agent.process.stdout.fileno(), 4096)
            assert more, "it ended before it showed that"
            self.shown += more

    def rows(self) -> list[tuple[str, str | None]]:
        with self.world.database() as db:
            [[session]] = db.execute("SELECT id FROM sessions").fetchall()
        return short(self.world.messages(session))


def test_an_agent_in_node_is_recovered_to_the_last_piece_that_it_showed(world: World) -> None:
    it = Counting(world, "Count for me", "1000")
    it.wait_shown(b" 7 ")
    kill(it.pid)
    assert it.agent.finish() == -signal.SIGKILL
    (role, asked), (_, reply) = it.rows()
    assert (role, asked) == ("user", "Count for me")
    shown = (it.shown + it.agent.output).decode()
    assert reply is not None
    assert reply.startswith(shown)
    assert reply == "".join(f"{n} " for n in range(1, reply.count(" ") + 1))
    assert reply.count(" ") <= shown.count(" ") + 1


def test_an_agent_in_node_that_ends_in_order_is_completed(world: World) -> None:
    it = Counting(world, "Three", "3")
    assert it.agent.finish() == 0
    assert it.rows() == [("user", "Three"), ("assistant", "1 2 3 ")]
    with world.database() as db:
        assert db.execute("SELECT end_reason FROM sessions").fetchone()[0] == "completed"


def test_an_agent_in_node_continues_when_its_supervisor_is_killed(world: World) -> None:
    it = Counting(world, "Count for me", "1000")
    it.wait_shown(b" 5 ")
    kill(it.agent.pid)
    until(world.successors, "a successor")
    it.wait_shown(b" 15 ")
    kill(it.pid)
    until(lambda: world.runs() == [], "the run is settled")
    reply = it.rows()[-1][1]
    assert reply is not None
    assert reply.startswith("".join(f"{n} " for n in range(1, 16)))
    assert reply == "".join(f"{n} " for n in range(1, reply.count(" ") + 1))


def test_unsupervised_the_example_counts_all_the_same() -> None:
    done = subprocess.run(
        [node(), str(EXAMPLE), "x", "3"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 2 3 \n", "")
