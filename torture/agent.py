"""The agent: runs its script through the SDK, and notes each call before and after.

Never knows when it will be killed. Run as a program, it is the agent of a real command line.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sqlite3
import sys
import time
from dataclasses import dataclass
from typing import Any

from hermes_supervise.agent_shim import sdk

from . import plan
from .ledger import Ledger, Slot
from .plan import Process
from .script import Op


@dataclass
class Stored:
    """A message as the agent stores it."""

    role: str
    content: str | None
    call: str | None = None
    calls: tuple[str, ...] = ()
    reasoning: str | None = None


class Player:
    def __init__(self, processes: list[Process], ledger: Ledger, lane: int, number: int) -> None:
        self._processes = processes
        self._ledger = ledger
        self._lane = lane
        self._slot: Slot = ledger.slot(lane, number)
        self._number = number
        self._sessions: dict[int, sdk.Session] = {}
        self._tools: dict[str, sdk.Tool] = {}
        self._messages: dict[str, Stored] = {}
        self._streamed: dict[int, str] = {}
        self._thought: dict[int, str] = {}
        self._db: sqlite3.Connection | None = None

    def play(self) -> None:
        self._slot.born()
        process = self._processes[self._number]
        for index, op in enumerate(process.ops):
            self._pass(index)
            self._slot.begin(index + 1)
            getattr(self, "_" + op.name)(op)
            self._slot.returned_from(index + 1)
        self._pass(len(process.ops))
        while True:
            self._slot.wait_at(len(process.ops))
            time.sleep(0.001)

    def _pass(self, index: int) -> None:
        while index >= self._slot.gate:
            self._slot.wait_at(index)
            time.sleep(0.0001)

    # -- what it does ------------------------------------------------------------------------

    def _open(self, op: Op) -> None:
        if op.flag:
            with self._database() as db:
                db.execute(
                    "INSERT INTO sessions (id, source, started_at) VALUES (?, 'torture', ?)",
                    (op.uid, time.time()),
                )
        self._sessions[op.on] = sdk.session(op.uid, source="torture", model="m")
        self._forget_reply(op.on)
        link = sdk.connection()
        assert link is not None
        self._slot.speaks_as(link.stream)

    def _user(self, op: Op) -> None:
        self._say(op, "user", op.text)
        self._forget_reply(op.on)

    def _aside(self, op: Op) -> None:
        self._say(op, "assistant", op.text, aside=True)
        self._forget_reply(op.on)

    def _again(self, op: Op) -> None:
        self._say(op, self._messages[op.uid].role, op.text)

    def _assistant(self, op: Op) -> None:
        more: dict[str, Any] = {"tool_calls": [_made(id) for id in op.ids]} if op.ids else {}
        content = op.text if op.text is not None else self._streamed[op.on] or None
        self._say(op, "assistant", op.text, **more)
        reasoning = self._thought[op.on] or None
        self._messages[op.uid] = Stored("assistant", content, None, op.ids, reasoning)
        self._forget_reply(op.on)

    def _say(self, op: Op, role: str, content: str | None, **more: Any) -> None:
        self._messages[op.uid] = Stored(role, content)
        self._sessions[op.on].message(role, content, uid=op.uid, **more)

    def _delta(self, op: Op) -> None:
        restart = op.how == "restart"
        self._sessions[op.on].delta(op.text or "", reasoning=op.flag, restart=restart)
        if restart:
            self._forget_reply(op.on)
        of = self._thought if op.flag else self._streamed
        of[op.on] += op.text or ""

    def _forget_reply(self, on: int) -> None:
        self._streamed[on] = self._thought[on] = ""

    def _start(self, op: Op) -> None:
        session = self._sessions[op.on]
        tool = session.tool("do", call=None if op.flag else op.ids[0])
        tool.call = op.ids[0]
        if op.flag:
            self._forget_reply(op.on)
        self._tools[tool.call] = tool.__enter__()

    def _finish(self, op: Op) -> None:
        """The SDK sends two records. An agent that stores messages itself has to know their uids,
        so it sends a message of its own instead."""
        [id] = op.ids
        tool = self._tools.pop(id)
        self._messages[f"answer {id}"] = Stored("tool", op.text, id)
        if op.flag:
            self._sessions[op.on].message("tool", op.text, uid=f"answer {id}", tool_call_id=id)
        else:
            tool.result = op.text
            tool.__exit__(None, None, None)

    def _turn(self, op: Op) -> None:
        self._sessions[op.on].turn(op.how)

    def _title(self, op: Op) -> None:
        self._sessions[op.on].title(op.text or "")

    def _hook(self, op: Op) -> None:
        self._sessions[op.on].hook("on_session_end")

    def _rotate(self, op: Op) -> None:
        self._sessions[op.on].rotate(op.uid)
        if op.flag:
            with self._database() as db:
                db.execute(
                    "INSERT INTO sessions (id, source, started_at, parent_session_id) "
                    "VALUES (?, 'torture', ?, ?)",
                    (op.uid, time.time(), op.how),
                )
                self._end_row(db, op.how, "compression")

    def _end(self, op: Op) -> None:
        self._sessions[op.on].end(op.how)

    def _acked(self, op: Op) -> None:
        link = sdk.connection()
        if link is not None and link.acknowledged(0.05):
            self._slot.acknowledged_up_to(self._slot.returned)

    def _nap(self, op: Op) -> None:
        time.sleep(op.number / 1e6)

    def _fork(self, op: Op) -> None:
        if self._db is not None:  # SQLite's locks and mappings do not survive a fork
            self._db.close()
            self._db = None
        if os.fork() == 0:
            try:
                Player(self._processes, self._ledger, self._lane, op.number).play()
            finally:
                os._exit(99)

    def _exit(self, op: Op) -> None:
        if op.how == "orderly":
            atexit._run_exitfuncs()
        os._exit(op.number)

    # -- what it stores itself -----------------------------------------------------------------

    def _database(self) -> sqlite3.Connection:
        if self._db is None:
            path = os.path.join(os.environ["HERMES_HOME"], "state.db")
            self._db = sqlite3.connect(path, timeout=30, isolation_level="IMMEDIATE")
        return self._db

    def _store(self, op: Op) -> None:
        session = self._sessions[op.on]
        rows = []
        with self._database() as db:
            for uid in op.ids:
                rows.append(self._insert(db, session.id, self._messages[uid]))
            self._count(db, session.id)
        if op.how != "silent":
            session.settled(list(op.ids), rows if op.how == "rows" else None)

    def _rewrite(self, op: Op) -> None:
        session = self._sessions[op.on]
        with self._database() as db:
            db.execute("DELETE FROM messages WHERE session_id = ?", (session.id,))
            for text in op.ids:
                self._insert(db, session.id, Stored("assistant", text))
            self._count(db, session.id)
        session.rewritten()

    def _insert(self, db: sqlite3.Connection, id: str, message: Stored) -> int:
        made = json.dumps([_made(call) for call in message.calls]) if message.calls else None
        inserted = db.execute(
            "INSERT INTO messages (session_id, role, content, tool_call_id, tool_calls, "
            "timestamp, reasoning) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (id, message.role, message.content, message.call, made, time.time(), message.reasoning),
        )
        return inserted.lastrowid or 0

    def _count(self, db: sqlite3.Connection, id: str) -> None:
        db.execute(
            "UPDATE sessions SET message_count ="
            " (SELECT count(*) FROM messages WHERE session_id = ?1), tool_call_count ="
            " (SELECT coalesce(sum(json_array_length(tool_calls)), 0) FROM messages"
            "  WHERE session_id = ?1 AND tool_calls IS NOT NULL) WHERE id = ?1",
            (id,),
        )

    def _end_row(self, db: sqlite3.Connection, id: str, reason: str) -> None:
        db.execute(
            "UPDATE sessions SET ended_at = ?, end_reason = ? WHERE id = ? AND ended_at IS NULL",
            (time.time(), reason, id),
        )


def _made(id: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "do", "arguments": "{}"}}


def main() -> None:
    """As a program: ledger, seed, share, chapter, lane."""
    path, seed, share, chapter, lane = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    run = plan.scenario(seed, float(share)).chapters[int(chapter)].lanes[int(lane)]
    try:
        Player(run.processes, Ledger(path), int(lane), 0).play()
    finally:
        os._exit(98)


if __name__ == "__main__":
    main()
