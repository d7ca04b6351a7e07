"""Whatever others wrote in place of what belongs there: it costs what it says and nothing else.

A run with a process that sends malformed records in valid frames and an innocent process beside it,
settings of wrong types, and rows and markers in state.db that somebody else made. What is well
formed is stored, of both.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hermes_supervise.ipc import frames
from hermes_supervise.supervisor.run.recover import finish_left_behind
from hermes_supervise.supervisor.storage import run_folder as runs
from support import World, short, until
from test_statedb import make

KINDS = (
    "hello", "session", "history", "message", "delta", "tool", "turn", "settled",
    "title", "hook", "trouble", "peer", "death", "stored", "compacted", "something new",
)  # fmt: skip
# Every field that a record, a session or run.json has a meaning for.
FIELDS = (
    "version", "oldest", "pid", "start", "boot", "for", "executable", "argv", "cwd", "agent",
    "agent_version", "capabilities", "missing", "speaks_for", "env", "source", "model", "platform",
    "parent", "subagent", "started", "resume", "settles", "becoming", "captured", "since",
    "messages", "message", "uid", "role", "content", "tool_calls", "tool_call_id", "text",
    "reasoning", "restart", "phase", "call", "name", "result", "by", "uids", "rows", "title",
    "reason", "at", "mono", "aside", "withdrawn", "user_id", "system_prompt", "model_config",
    "timestamp", "finish_reason", "tool_name", "through", "sessions", "over", "resets", "key",
    "signal", "code", "orphans", "memory", "task_id", "turn_id", "shell_hooks", "tapped",
)  # fmt: skip
SETTINGS = (
    "boot", "started", "command", "cwd", "supervisor", "supervisor_start", "grace", "sync",
    "checkpoint", "idle_finalize", "orphans", "after", "watch", "agent", "stood", "hook_timeout",
    "hook_retry", "on_session_end", "on_session_finalize", "on_session_reset", "terminal",
)  # fmt: skip
MARKER = (
    "rows", "owns", "counts", "through", "steps", "told", "title", "ended", "end", "died", "at",
    "life", "outcome", "crash", "turn", "lost", "note",
)  # fmt: skip
WORDS = (
    "",
    "chat",
    "user",
    "assistant",
    "tool",
    "hermes",
    "claude",
    "\ud800",
    "a\0b",
    "/",
    "1",
    "x" * 300,
)
NUMBERS: tuple[Any, ...] = (
    0,
    1,
    -1,
    1.5,
    1e308,
    float("inf"),
    float("nan"),
    2**63,
    -(2**70),
    10**300,
)


def deep(choose: random.Random) -> Any:
    value: Any = choose.choice(WORDS)
    for _ in range(choose.choice((90, 300, 900))):
        value = [value] if choose.random() < 0.5 else {"id": value}
    return value


def anything(choose: random.Random, depth: int = 3) -> Any:
    kind = choose.randrange(9 if depth else 6)
    if kind < 4:
        return (None, True, choose.choice(NUMBERS), choose.choice(WORDS))[kind]
    if kind < 6:
        return choose.choice(FIELDS)
    if kind == 6:
        return [anything(choose, depth - 1) for _ in range(choose.randrange(4))]
    if kind == 7:
        return {
            choose.choice(FIELDS): anything(choose, depth - 1) for _ in range(choose.randrange(4))
        }
    return deep(choose) if choose.random() < 0.2 else anything(choose, depth - 1)


def some(choose: random.Random, names: tuple[str, ...], most: int) -> dict[str, Any]:
    return {choose.choice(names): anything(choose) for _ in range(choose.randrange(most))}


def malformed(choose: random.Random, session: str) -> dict[str, Any]:
    record = {"kind": choose.choice(KINDS), "session": session, **some(choose, FIELDS, 12)}
    if record["kind"] == "message" and choose.random() < 0.7:
        record["message"] = {
            "role": choose.choice(("user", "assistant", "tool")),
            **some(choose, FIELDS, 8),
        }
    return record


def written(record: dict[str, Any]) -> bytes:
    return json.dumps(record, allow_nan=True).encode()


def left(folder: Path, stream: str, payloads: list[tuple[int, bytes]]) -> None:
    data = b"".join(frames.encode(seq, payload) for seq, payload in payloads)
    (folder / f"{stream}.000001.log").write_bytes(data)


def spoken(session: str, word: str) -> bytes:
    message = {"role": "user", "content": word}
    return written(
        {"kind": "message", "session": session, "uid": word, "message": message, "at": 1.0}
    )


def hello(stream: str, **more: Any) -> bytes:
    return written({"kind": "hello", "stream": stream, "pid": 2**22 - 1, "start": 1, **more})


@pytest.mark.parametrize("seed", range(12))
def test_it_costs_what_it_says_and_nothing_else(
    world: World, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(world.state))
    monkeypatch.setenv("HERMES_HOME", str(world.home))
    make(world.db)
    choose = random.Random(seed)
    for _ in range(10):
        bad, good = os.urandom(16).hex(), os.urandom(16).hex()
        mine, innocent = f"bad-{bad[:6]}", f"good-{good[:6]}"
        run = runs.create({"db": str(world.db)})
        folder = Path(run.folder)
        settings = {"db": str(world.db), **some(choose, SETTINGS, 6)}
        (folder / "run.json").write_text(json.dumps(settings))
        payloads = [(0, hello(bad, **some(choose, FIELDS, 5)))]
        payloads += [
            (0, written({**malformed(choose, mine), "kind": choose.choice(("peer", "death"))}))
            for _ in range(choose.randrange(3))
        ]
        number = 0
        for word in ("first", "second", "third"):
            number += 1
            payloads.append((number, spoken(mine, word)))
            for _ in range(choose.randrange(4)):
                number += 1
                other = choose.choice((mine, f"else-{bad[:6]}", innocent))
                payloads.append((number, written(malformed(choose, other))))
        left(folder, bad, payloads)
        left(
            folder,
            good,
            [(0, hello(good)), (1, spoken(innocent, "innocent")), (2, spoken(innocent, "end"))],
        )
        with closing(sqlite3.connect(world.db, isolation_level=None)) as db:
            for name in (mine, innocent):
                for stream in (bad, os.urandom(16).hex()):
                    db.execute(
                        "INSERT OR REPLACE INTO state_meta VALUES (?, ?)",
                        (f"hermes_supervise:{stream}:{name}", json.dumps(some(choose, MARKER, 5))),
                    )
                db.execute(
                    "INSERT OR IGNORE INTO sessions (id, source, started_at) VALUES (?, 'cli', 1)",
                    (name,),
                )
                for calls in (
                    deep(choose),
                    anything(choose),
                    "{",
                    "[" * 100_000,
                    '[{"id": [1]}, 5, null',
                ):
                    text = (
                        json.dumps(calls)
                        if not isinstance(calls, str)
                        else calls.replace("\ud800", "")
                    )
                    db.execute(
                        "INSERT INTO messages (session_id, role, content, tool_calls, timestamp) "
                        "VALUES (?, ?, ?, ?, 0.5)",
                        (name, "assistant", "\0json:" + text, text),
                    )
        finish_left_behind(run)
        runs.retire(run)
        assert said(world, innocent) == ["innocent", "end"]
        assert said(world, mine) == ["first", "second", "third"]
        assert not folder.exists()


def said(world: World, session: str) -> list[str]:
    """What the test itself said in a session."""
    ours = ("innocent", "end", "first", "second", "third")
    return [
        text for role, text in short(world.messages(session)) if role == "user" and text in ours
    ]


# Speaks the protocol by itself: `session()` would send nothing malformed.
RAW = """
import json, socket
from hermes_supervise.ipc import frames

def say(number, **record):
    link.sendall(frames.encode(number, json.dumps(record).encode()))

link = socket.socket(socket.AF_UNIX)
link.connect(os.environ["HERMES_SUPERVISE_SOCKET"])
say(0, kind="hello", version=1, oldest=1, stream="5" * 32, pid=os.getpid(), agent=["x"], argv=5,
    cwd=7, boot={}, missing={"a": 1}, executable=[], start=-1, agent_version=[])
calls = [{"id": [1], "function": {"name": 5}}, 7, None]
for _ in range(500):
    calls = [calls]
say(1, kind="session", session="bad", model={"a": [1]}, source=[1], db=["x"], cwd=5, parent={})
say(2, kind="message", session="bad", uid="a", message={"role": "user", "content": "first"})
say(3, kind="message", session="bad", uid="b", message={"role": "assistant", "tool_calls": calls})
say(4, kind="message", session="bad", uid={"c": 1}, message={"role": ["user"]})
say(5, kind="message", session="bad", uid="d", message={"role": "user", "content": "second"})
chat = session("good", source="cli")
chat.message("user", "innocent")
assert chat.acknowledged()
answers = frames.Decoder()
while 5 not in dict(answers.feed(link.recv(4096))):
    pass
ready("said")
forever()
"""
TORN = {
    "hook_timeout": [], "on_session_end": True, "on_session_finalize": [5], "started": "x",
    "boot": {}, "hook_retry": "a,b", "command": "x", "cwd": 5, "after": [], "watch": 7,
    "supervisor": "me", "checkpoint": {}, "grace": None,
}  # fmt: skip


def test_malformed_records_and_settings_block_nobodys_recovery(world: World) -> None:
    agent = world.supervise(RAW)
    agent.wait_for("said")
    [folder] = world.runs()
    agent.abandon()
    (folder / "run.json").write_text(json.dumps({"db": str(world.db), **TORN}))
    assert world.call("ps").returncode == 0
    assert world.call("doctor", "--json").stdout
    done = world.call("recover")
    assert done.returncode == 0, done.stdout + done.stderr
    assert said(world, "bad") == ["first", "second"]
    assert said(world, "good") == ["innocent"]
    assert world.runs() == []
    for report in world.reports():
        assert any("run.json" in problem for problem in report["problems"])


def test_the_malformed_records_of_one_process_spare_the_others_while_it_runs(world: World) -> None:
    make(world.db)
    agent = world.supervise(RAW, *world.hook, "--checkpoint", "0.1")
    agent.wait_for("said")
    until(lambda: said(world, "bad") == ["first", "second"], "a checkpoint")
    agent.kill_agent()
    assert agent.finish() == -signal.SIGKILL
    assert said(world, "bad") == ["first", "second"]
    assert said(world, "good") == ["innocent"]
    assert world.runs() == []
