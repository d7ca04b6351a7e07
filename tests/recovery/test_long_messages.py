"""A message of more than 16 MiB, the most that a frame takes, is stored byte for byte: it goes over
the wire as it was cut, and is completed by pieces."""

from __future__ import annotations

import hashlib
import signal
from pathlib import Path
from typing import Any

import pytest
from hermes_supervise.ipc import frames, records
from hermes_supervise.supervisor.recovery.compact import essential
from hermes_supervise.supervisor.recovery.replay import replay
from hermes_supervise.supervisor.run.recover import finish_left_behind
from hermes_supervise.supervisor.storage import run_folder as runs
from hypothesis import given, settings
from hypothesis import strategies as st
from installed import InstalledWorld, installed_world, release_tree
from support import Supervised, World, short, until
from test_malformed import hello, left
from test_statedb import make

# Each longer than 16 MiB, also where it is not escaped.
TEXT = """
text = "".join(f"{number} \\u00fc\\U0001f600 " for number in range(1_200_000))
message = {"role": "user", "content": text}
"""
CALLS = """
function = {"name": "write", "arguments": "x" * 17_000_000}
message = {"role": "assistant", "tool_calls": [{"id": "c", "function": function}]}
"""
LONG = """
import hashlib, json
chat = session("chat", source="cli")
chat.message("user", "short")
chat.message(**message)
chat.message("tool", "done", tool_call_id="c")
text = message.get("content") or json.dumps(message["tool_calls"])
ready("said " + hashlib.sha256(text.encode()).hexdigest())
while True:  # what is in the spool alone is looked at when more arrives
    chat.turn("start")
    time.sleep(0.05)
"""


@pytest.mark.parametrize(
    ("what", "how"), [(TEXT, "agent"), (CALLS, "both"), (CALLS, "stored while it runs")]
)
def test_a_message_that_no_frame_takes_is_stored_byte_for_byte(
    world: World, what: str, how: str
) -> None:
    make(world.db)
    every = "0.1" if how == "stored while it runs" else "0"
    agent = world.supervise(what + LONG, "--checkpoint", every)
    digest = agent.wait_for("said").split()[1]
    if how == "stored while it runs":
        until(lambda: len(world.messages("chat")) == 3, "a checkpoint of all")
    if how == "both":
        agent.abandon()
        done = world.call("recover")
        assert done.returncode == 0, done.stdout + done.stderr
    else:
        agent.kill_agent()
        assert agent.finish() == -signal.SIGKILL
    rows = world.messages("chat")
    assert [row["content"] for row in (rows[0], rows[2])] == ["short", "done"]
    text = rows[1]["content"] or rows[1]["tool_calls"]
    assert len(text) > 10_000_000
    assert hashlib.sha256(text.encode()).hexdigest() == digest
    assert [report["problems"] for report in world.reports()] == [[]]
    assert world.runs() == []


# -- cut off between the pieces --------------------------------------------------------------


def sent(text: str, limit: int = 4000) -> list[tuple[int, bytes]]:
    """The payloads of a conversation with a message of which no frame takes the whole."""
    record = {"kind": "message", "session": "chat", "uid": "m", "at": 2.0,
              "message": {"role": "user", "content": text}}  # fmt: skip
    first = records.pack({"kind": "session", "session": "chat", "at": 1.0})
    return list(enumerate([first, *records.fit_all(record, limit)], 1))


@pytest.mark.parametrize("pieces", range(4))
def test_killed_between_the_pieces_it_is_as_it_was_cut_and_the_report_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch, pieces: int
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(world.state))
    text = "".join(f"{number} " for number in range(2_000))
    payloads = sent(text)
    assert len(payloads) == 2 + 3
    run = runs.create({"db": str(world.db)})
    left(Path(run.folder), "5" * 32, [(0, hello("5" * 32)), *payloads[: 2 + pieces]])
    finish_left_behind(run)
    runs.retire(run)
    [(_, content)] = short(world.messages("chat"))
    assert content is not None
    [report] = world.reports()
    if pieces == 3:
        assert content == text
        assert report["problems"] == []
    else:
        kept, _, rest = content.partition("\n[")
        assert text.startswith(kept) and "characters cut here" in rest
        [problem] = report["problems"]
        assert "cut" in problem and problem.endswith(": 1")


def test_a_message_over_the_limit_stays_cut_and_the_report_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(world.state))
    monkeypatch.setattr(records, "LONGEST", 5000)
    payloads = sent("x" * 6000)
    assert len(payloads) == 2
    run = runs.create({"db": str(world.db)})
    left(Path(run.folder), "5" * 32, [(0, hello("5" * 32)), *payloads])
    finish_left_behind(run)
    runs.retire(run)
    [report] = world.reports()
    [problem] = report["problems"]
    assert problem.endswith(": 1") and "256 MiB" in problem


@settings(max_examples=100, deadline=None)
@given(
    words=st.text(min_size=1, max_size=100), length=st.integers(3000, 20_000),
    cut=st.integers(0, 30), extra=st.booleans(),
)  # fmt: skip
def test_compaction_between_the_pieces_changes_nothing(
    words: str, length: int, cut: int, extra: bool
) -> None:
    text = (words * length)[:length]
    payloads = sent(text, 3000)
    if extra:
        other = {"kind": "message", "session": "chat", "message": {"role": "user", "content": "o"}}
        payloads.append((len(payloads) + 1, records.pack(other)))
    numbered = [(seq, frames.encode(seq, payload)) for seq, payload in payloads]
    assert all(len(payload) <= 3000 for _, payload in payloads)
    compacted = essential(numbered[:cut]) + numbered[cut:]

    def outline(frames_: list[tuple[int, bytes]]) -> list[Any]:
        session = replay(frames_).sessions["chat"]
        return [[item.uid, item.message, item.at] for item in session.items] + [session.cut]

    assert outline(compacted) == outline(numbered)
    assert outline(numbered)[0][1]["content"] == records.join_pieces([text])


# -- a supervisor that does not know pieces --------------------------------------------------

SPEAKS = """
import socket
link = socket.socket(socket.AF_UNIX)
link.connect(os.environ["HERMES_SUPERVISE_SOCKET"])
link.sendall(bytes.fromhex(sys.argv[1]))
heard = b""
while len(heard) < int(sys.argv[2]):
    heard += link.recv(4096)
ready("said")
forever()
"""


def test_an_older_supervisor_keeps_what_it_kept(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    payloads = sent("a long text " * 1000)
    said = frames.encode(0, records.pack({
        "kind": "hello", "version": 1, "oldest": 1, "stream": "5" * 32,
    }))  # fmt: skip
    said += b"".join(frames.encode(seq, payload) for seq, payload in payloads)
    answers = frames.encode(0, records.pack({"kind": "welcome", "version": 1, "have": 0}))
    answers += frames.encode(len(payloads), b"")
    with installed_world(tmp_path, release_tree(tree), InstalledWorld) as world:
        script = world.script(SPEAKS)
        agent: Supervised = world.run([world.python, script, said.hex(), str(len(answers))])
        agent.wait_for("said")
        agent.kill_agent()
        agent.finish()
        [(_, content)] = short(world.messages("chat"))
        assert content is not None and "characters cut here" in content
        assert [report["problems"] for report in world.reports()] == [[]]
