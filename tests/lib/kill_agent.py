"""The agent of the kill-point sweep: plays a script, and keeps a ledger outside of our folders.

The ledger is what the sweep believes: `begin N` before a step, `done N` when the call has
returned (so that it was handed over), `safe N` when all of it was acknowledged or spooled.

    python -I -S kill_agent.py PACKAGE OUTSIDE SCRIPT DB
"""

from __future__ import annotations

import os
import signal
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE, OUTSIDE, SCRIPT, DB = sys.argv[1:]
sys.path[:0] = [PACKAGE, HERE]

import kill_points  # noqa: E402
from kill_script import LONG, SCRIPTS  # noqa: E402

# Before they are counted: what is noted outside is nobody's operation.
note, open_outside, rename_outside = os.write, os.open, os.rename
ledger = os.open(f"{OUTSIDE}/ledger", os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
kill_points.arm("agent", OUTSIDE, os.environ.get(kill_points.PLAN, ""))

from hermes_supervise.agent_shim import sdk  # noqa: E402

if os.environ.get("KILL_NO_RING"):
    from hermes_supervise.agent_shim import ring

    ring._keeps_blocks = lambda folder: False


if SCRIPT.startswith("long"):
    from hermes_supervise.ipc import records

    whole = records.fit_all
    records.fit_all = lambda record: whole(record, LONG)


def store(session: str, uids: tuple[str, ...]) -> list[int]:
    """As an agent does that keeps state.db itself: rows of its own, then a word about it."""
    import sqlite3

    said = {uid: (role, text) for what, given in script if what == "message"
            for uid, role, text, _ in [given]}  # fmt: skip
    db = sqlite3.connect(DB, timeout=20)
    now = time.time()
    db.execute("INSERT INTO sessions (id, source, started_at) VALUES (?, 'cli', ?)", (session, now))
    rows = []
    for uid in uids:
        role, text = said[uid]
        # No recovery writes a count of tokens: so the sweep knows whose row it is.
        made = db.execute(
            "INSERT INTO messages (session_id, role, content, timestamp, token_count) "
            "VALUES (?, ?, ?, ?, 7)",
            (session, role, text, now),
        )
        rows.append(made.lastrowid)
    db.execute("UPDATE sessions SET message_count = ? WHERE id = ?", (len(rows), session))
    db.commit()
    query = "SELECT id, session_id, role, content, timestamp FROM messages WHERE token_count = 7"
    stored = open_outside(f"{OUTSIDE}/stored.new", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC)
    note(stored, "".join(f"{row!r}\n" for row in db.execute(query)).encode())
    rename_outside(f"{OUTSIDE}/stored.new", f"{OUTSIDE}/stored")
    db.close()
    return [row for row in rows if row is not None]


def meet_the_successor() -> None:
    """If the supervisor was killed and somebody takes its place, go on when he listens."""
    end = time.monotonic() + 20
    while os.environ.get("KILL_ADOPT") and os.path.exists(f"{OUTSIDE}/dead-supervisor"):
        with open(f"{OUTSIDE}/trace") as file:
            trace = file.read().splitlines()
        if not any(line.endswith(" fork standby") for line in trace) or time.monotonic() > end:
            return
        if any(line.startswith("successor ") and line.endswith(" listen") for line in trace):
            break
        time.sleep(0.002)
    link = sdk.connection()
    if link is not None:
        link._stream._retry_at = 0.0  # as if the pause between two tries were over


def play(what: str, given: object) -> None:
    global chat, rows
    if what == "session":
        stores = any(name == "store" for name, _ in script)
        chat = sdk.session(given, source="cli", model="m-1", db=DB, settles=stores)
    elif what == "message":
        uid, role, text, more = given
        chat.message(role, text, uid=uid, **more)
    elif what == "delta":
        chat.delta(given[0], reasoning=given[1])
    elif what == "turn":
        chat.turn(given)
    elif what == "title":
        chat.title(given)
    elif what == "store":
        rows = store(chat.id, given)
    elif what == "settled":
        chat.settled(list(given), rows)
    elif what == "tool":
        phase, call, result = given
        chat._say("tool", phase=phase, call=call, name="ls", result=result)
    elif what == "rotate":
        chat.rotate(given)
    elif what == "end":
        chat.end(given)
    elif what == "meet the successor":
        meet_the_successor()
    elif what == "die":
        note(ledger, f"done {number}\nsafe {number}\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)


script = SCRIPTS[SCRIPT.removesuffix("-burst")]
steps = list(enumerate(script, 1))
if ("die", None) in script:
    at = script.index(("die", None))
    steps = steps[at + 1 :] if os.environ.get("KILL_LIFE") else steps[: at + 1]
for number, (what, given) in steps:
    note(ledger, f"begin {number}\n".encode())
    play(what, given)
    note(ledger, f"done {number}\n".encode())
    kill_points.point("handed over")
    # With a pause for the answer every record is one of its own; a burst goes in few reads.
    link = sdk.connection()
    if link is not None and not SCRIPT.endswith("-burst") and link.acknowledged(10):
        note(ledger, f"safe {number}\n".encode())
note(ledger, b"finished\n")
if script[-1][0] != "end":
    os.kill(os.getpid(), signal.SIGKILL)
