"""python tests/soak.py [SESSIONS]: hours of a busy gateway in minutes, and nothing piles up (G7).

One process with one conversation after the other, as a gateway has them, and now and then a
worker below it that is killed. Some conversations are stored by the agent itself, as Hermes
does, the others by us. Meanwhile memory, descriptors and disk of the supervisor are looked at,
and in the end there is no file left, and every message is where it belongs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from support import Supervised, World, until

GATEWAY = """
import sqlite3
from hermes_supervise.agent_shim import sdk

total, folder = int(sys.argv[1]), sys.argv[2]
text = "What is said in a gateway, all day long. " * 60
own = sqlite3.connect(os.path.join(folder, "own.db"))
own.executescript(open(os.path.join(folder, "schema.sql")).read())

def worker(number):
    '''A process of its own below the gateway, killed in the middle of its reply.'''
    if os.fork() == 0:
        mine = sdk.session(f"worker-{number}")
        mine.message("user", "work")
        for piece in range(20):
            mine.delta(f"w{piece} ")
        os.kill(os.getpid(), signal.SIGKILL)
    os.wait()

def kept_by_itself(number):
    chat = sdk.session(f"own-{number}", db=own_path, settles=True)
    own.execute("INSERT INTO sessions (id, source, started_at) VALUES (?, 'cli', ?)",
                (chat.id, time.time()))
    for turn in range(4):
        uid = chat.message("user" if turn % 2 == 0 else "assistant", text)
        row = own.execute("INSERT INTO messages (session_id, role, content, timestamp)"
                          " VALUES (?, ?, ?, ?)",
                          (chat.id, "user" if turn % 2 == 0 else "assistant", text, time.time()))
        own.commit()
        chat.settled([uid], [row.lastrowid])
    own.execute("UPDATE sessions SET ended_at = ?, end_reason = 'done' WHERE id = ?",
                (time.time(), chat.id))
    own.commit()
    chat.end("done")

def kept_by_us(number):
    with sdk.session(f"ours-{number}") as chat:
        for turn in range(2):
            chat.message("user", text)
            for piece in range(0, len(text), 40):
                chat.delta(text[piece:piece + 40])
            chat.message("assistant", text)

own_path = os.path.join(folder, "own.db")
for number in range(total):
    (kept_by_itself if number % 2 else kept_by_us)(number)
    if number % 100 == 0:
        worker(number)
    if number % (total // 20) == 0:
        # At a gateway's pace there is time to look at what was said.
        assert sdk.connection().acknowledged(60)
        ready(f"done {number}")
        sys.stdin.readline()
ready("over")
sys.stdin.readline()
"""

# Of what we look at, how much more there may be at the end than half way through.
_MORE_MEMORY = 1.15
_MORE_DISK = 1.25
# What is not yet compacted, and what was: of so much nobody can say that it grows.
_SEGMENTS_KIB = 3 * 8 * 1024
_DESCRIPTORS = 4


class Seen(NamedTuple):
    number: int
    memory_kib: int
    descriptors: int
    processes: int
    disk_kib: int

    def __str__(self) -> str:
        return (
            f"{self.number:>7,} sessions  {self.memory_kib:>7,} KiB  {self.descriptors:>3} "
            f"descriptors  {self.processes} processes  {self.disk_kib:>7,} KiB on disk"
        )


def look(world: World, supervisor: int, number: int) -> Seen:
    status = Path(f"/proc/{supervisor}/smaps_rollup").read_text()
    memory = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("Pss:"))
    below = subprocess.run(
        ["ps", "--ppid", str(supervisor), "-o", "pid="], capture_output=True, text=True
    ).stdout.split()
    disk = sum(_blocks(file) for run in world.runs() for file in run.iterdir())
    descriptors = len(os.listdir(f"/proc/{supervisor}/fd"))
    return Seen(number, memory, descriptors, len(below), disk // 2)


def _blocks(file: Path) -> int:
    try:
        return file.stat().st_blocks
    except FileNotFoundError:
        return 0  # compacted, or recovered, at this moment


def soak(world: World, sessions: int, *, checkpoint: float = 2.0) -> list[Seen]:
    """What was seen on the way, at twenty moments; fails where anything piles up."""
    from hermes_supervise.supervisor.statedb import schema

    script = ";\n".join(schema.statements()) + ";"
    (world.folder / "schema.sql").write_text(script)
    program = world.script(GATEWAY, "gateway.py")
    command = [sys.executable, program, str(sessions), str(world.folder)]
    env = {**world.env, "HERMES_SUPERVISE_CHECKPOINT": str(checkpoint)}
    agent = world.run(command, *world.hook, env=env, stdin=subprocess.PIPE)
    seen: list[Seen] = []
    for step in range(0, sessions, sessions // 20):
        agent.wait_for(f"done {step}", 600)
        if step:
            _quiet(world, agent)
            seen.append(look(world, agent.pid, step))
            print(seen[-1], flush=True)
        agent.send_line()
    agent.wait_for("over", 600)
    agent.send_line()
    assert agent.finish(600) == 0, agent.errors
    _flat(seen)
    _nothing_left(world, sessions)
    return seen


def _quiet(world: World, agent: Supervised) -> None:
    """What the supervisor was doing is done: nobody works below it but the agent and a standby."""
    until(
        lambda: look(world, agent.pid, 0).processes <= 2, "recovery and checkpoints are over", 120
    )


def _flat(seen: list[Seen]) -> None:
    # A share of its pages is that of whoever works below it at the moment: the most counts.
    half = Seen(*map(max, zip(*seen[: len(seen) // 2], strict=True)))
    rest = Seen(*map(max, zip(*seen[len(seen) // 2 :], strict=True)))
    assert rest.memory_kib <= half.memory_kib * _MORE_MEMORY, "memory grows"
    assert rest.descriptors <= half.descriptors + _DESCRIPTORS, "descriptors pile up"
    assert rest.disk_kib <= max(half.disk_kib * _MORE_DISK, _SEGMENTS_KIB), "the journal piles up"


def _nothing_left(world: World, sessions: int) -> None:
    assert world.runs() == [], "a run's folder is left"
    runtime = Path(world.env["XDG_RUNTIME_DIR"]) / "hermes-supervise"
    assert not list(runtime.glob("*.sock")), "a socket is left"
    waiting = world.state / "hermes-supervise" / "hooks" / "waiting"
    until(lambda: not waiting.exists() or not list(waiting.iterdir()), "all hooks have run", 120)
    with world.database() as db:
        ours = dict(db.execute(
            "SELECT session_id, count(*) FROM messages WHERE session_id LIKE 'ours-%' GROUP BY 1"
        ).fetchall())  # fmt: skip
        assert ours == {f"ours-{n}": 4 for n in range(0, sessions, 2)}
        workers = db.execute(
            "SELECT session_id, count(*), max(content) FROM messages "
            "WHERE session_id LIKE 'worker-%' GROUP BY 1"
        ).fetchall()
        words = "".join(f"w{piece} " for piece in range(20))
        expected = {(f"worker-{n}", 2) for n in range(0, sessions, 100)}
        assert {(name, count) for name, count, _ in workers} == expected
        assert all(words in db.execute(
            "SELECT content FROM messages WHERE session_id = ? AND role = 'assistant'", (name,)
        ).fetchone()[0] for name, _ in expected)  # fmt: skip
        assert db.execute("SELECT count(*) FROM sessions WHERE ended_at IS NULL").fetchone()[0] == 0
    hooked = [event["session_id"] for event in world.events()]
    assert sorted(hooked) == sorted(f"worker-{n}" for n in range(0, sessions, 100))


def main(words: list[str]) -> None:
    sessions = int(words[0]) if words else 10_000
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as runtime:
        world = World(Path(folder), Path(runtime))
        try:
            seen = soak(world, sessions)
        finally:
            world.close()
    first, last = seen[0], seen[-1]
    print(
        f"{sessions:,} sessions: memory {last.memory_kib / first.memory_kib:.2f} x that after a "
        f"twentieth, {last.descriptors - first.descriptors:+} descriptors, no file left"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
