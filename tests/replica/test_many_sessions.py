"""Ten thousand sessions on one replica: listed, found and recovered like one."""

from __future__ import annotations

import json
import os
import time

import pytest
from fleet import Fleet
from hermes_supervise.ipc import frames, records
from hermes_supervise.supervisor.replica.server import Server

pytestmark = pytest.mark.skipif(not os.environ.get("SLOW"), reason="`make test-slow`")

MACHINES, RUNS, SESSIONS = 20, 10, 50


def frame(seq: int, **record: object) -> bytes:
    return frames.encode(seq, records.pack(dict(record)))


def fill(server: Server) -> None:
    for machine in range(MACHINES):
        name = f"{machine:016x}"
        server.register(name, f"box-{machine}")
        for run in range(RUNS):
            run_name = f"20260101-{machine:03d}-{run:08d}"
            stream = f"{machine:016x}{run:016x}"
            server.add_run(name, run_name, json.dumps({"command": ["agent"]}).encode())
            hello = frame(0, kind="hello", stream=stream, pid=1, version=1)
            batch, shares = [(stream, 1, 0, hello)], []
            for number in range(SESSIONS):
                session, seq = f"chat-{machine}-{run}-{number}", 2 * number + 1
                about = {"session": session, "at": 1000.0 + number}
                opened = frame(seq, kind="session", source="cli", **about)
                text = {"role": "user", "content": f"said in {session}"}
                said = frame(seq + 1, kind="message", uid=f"u{seq}", message=text, **about)
                batch += [(stream, seq + 1, seq, opened), (stream, seq + 2, seq + 1, said)]
                shares.append((session, stream, f"Title {number}"))
            server.ship(name, batch, {stream: run_name}, shares, [run_name])


def test_ten_thousand_sessions_are_listed_and_one_of_them_is_recovered(fleet: Fleet) -> None:
    server = Server(fleet.url)
    fill(server)
    there = fleet.machine()
    began = time.monotonic()
    found = there.fleet()
    took = time.monotonic() - began
    assert len(found["machines"]) == MACHINES and len(found["runs"]) == MACHINES * RUNS
    assert sum(len(run["sessions"]) for run in found["runs"]) == MACHINES * RUNS * SESSIONS
    assert took < 60
    fleet.declare_lost(f"{7:016x}", there)
    assert there.call("fleet", "recover", "chat-7-3-21").returncode == 0
    with there.database() as db:
        [[count]] = db.execute("SELECT count(*) FROM sessions").fetchall()
    assert count == SESSIONS, "the whole run, and no other"
    [row] = there.messages("chat-7-3-21")
    assert row["content"] == "said in chat-7-3-21"
    server.close()
