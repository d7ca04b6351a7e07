"""Disks that fill up, and a state.db that is locked, replaced, huge or busy: nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hermes_supervise.ipc import frames, records
from hermes_supervise.supervisor.recovery import finish
from hermes_supervise.supervisor.run.recover import finish_left_behind
from hermes_supervise.supervisor.statedb.connection import PATIENCE
from hermes_supervise.supervisor.statedb.writer import Replaced, SessionWriter, StateDb
from hermes_supervise.supervisor.storage import run_folder as runs
from streams import recover
from support import Supervised, World, kill, short, until
from terminals import Terminal
from test_processes import texts
from test_statedb import SAID, abandon, has_open, holding, make, side_files, tail

# What takes minutes; `make test-slow` has it.
SLOW = os.environ.get("SLOW") == "all"

# -- a full disk -----------------------------------------------------------------------------


@contextmanager
def a_disk_of_its_own(folder: Path, size: str) -> Iterator[Path]:
    """A small file system in the place of a folder; yields a file that fills it when it grows."""
    folder.mkdir(mode=0o700, parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", folder]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"this user cannot mount a file system: {done.stderr.strip()}")
    try:
        yield folder / "filler"
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(filler: Path) -> None:
    with open(filler, "ab") as file, pytest.raises(OSError, match="No space left"):
        while True:
            os.write(file.fileno(), b"\0" * 4096)


# For agents whose messages have no place on disk: of what a slow supervisor has not read, the
# socket holds a little and the agent itself 4 MiB, which die with it.
PATIENT = """
import fcntl, struct, termios
from hermes_supervise.agent_shim.sdk import connection

def wait_until_read():
    while (connected := connection()._stream._connection) is not None:
        left = fcntl.ioctl(connected._socket.fileno(), termios.TIOCOUTQ, bytes(4))
        if struct.unpack("i", left) == (0,):
            return
        time.sleep(0.0005)
"""

# Says something, more when it is told to, and in the end whether it is acknowledged.
TALKER = (
    PATIENT
    + """
chat = session("chat", source="cli")
chat.message("user", "before")
assert connection().acknowledged(20)
ready("ready")
for line in sys.stdin:
    for number in range(300):
        chat.message("assistant", f"{line.strip()} {number} " + "x" * 2000)
        wait_until_read()
    ready("said " + line.strip())
    while line.strip() == "after" and not connection().acknowledged(1):
        chat.message("user", "still there?")
    ready("certain " + line.strip())
"""
)


def tell(agent: Supervised, line: str) -> None:
    assert agent.process.stdin is not None
    agent.process.stdin.write(line.encode() + b"\n")
    agent.process.stdin.flush()


def spoken(world: World) -> list[str]:
    """What was said, each message by its first two words; without what fills the waiting."""
    contents = [content or "" for content in texts(world)]
    return [" ".join(text.split()[:2]) for text in contents if text != "still there?"]


def numbered(*words: str) -> list[str]:
    return ["before", *(f"{word} {number}" for word in words for number in range(300))]


def test_a_disk_that_is_full_while_the_agent_speaks_costs_it_nothing(world: World) -> None:
    hurried = TALKER.replace("        wait_until_read()\n", "")
    with a_disk_of_its_own(world.state, "3m") as filler:
        agent = world.supervise(hurried, *world.hook, stdin=subprocess.PIPE)
        agent.wait_for("ready")
        fill(filler)
        tell(agent, "full")
        agent.wait_for("said full")
        filler.unlink()
        tell(agent, "after")
        agent.wait_for("certain after")
        agent.kill_agent()
        assert agent.finish() == -signal.SIGKILL
        assert spoken(world) == numbered("full", "after")
        assert len(world.events()) == 1
        assert world.runs() == []
    assert agent.errors.count(b"cannot be written") == 1, "once, however often it was tried"
    assert agent.errors.count(b"No space left") == 1


def test_a_failed_recovery_is_named_on_a_line_of_its_own(world: World) -> None:
    """The killed agent had left the cursor inside a line, and the terminal in a mode of its own."""
    drawing = """
import tty
tty.setraw(0)
chat = session("chat")
chat.message("user", "x")
assert chat.acknowledged(30)
os.write(1, b"in the middle")
forever()
"""
    terminal = Terminal()
    try:
        with a_disk_of_its_own(world.state, "3m") as filler:
            agent = terminal.run(world, [sys.executable, world.script(drawing)])
            terminal.wait_for("in the middle")
            fill(filler)
            agent.kill_agent()
            terminal.wait_for("make room there")
            assert agent.process.wait(60) == -signal.SIGKILL
            filler.unlink()
            assert world.call("recover").returncode == 0
        before = terminal.raw.partition(b"hermes-supervise: recovery did not finish")[0]
        assert before.endswith(b"\n\x1b[J"), before[-40:]
    finally:
        terminal.close()


def test_killed_while_the_disk_is_full_it_is_finished_when_there_is_room(world: World) -> None:
    with a_disk_of_its_own(world.state, "3m") as filler:
        agent = world.supervise(TALKER, *world.hook, stdin=subprocess.PIPE)
        agent.wait_for("ready")
        fill(filler)
        tell(agent, "full")
        agent.wait_for("said full")
        agent.kill_agent()
        assert agent.finish() == -signal.SIGKILL
        # No journal took it, and the supervisor had it: state.db is on another disk.
        assert spoken(world) == numbered("full")
        row = world.session("chat")
        assert row is not None and row["end_reason"] == "interrupted"
        # A hook is queued on the disk that is full.
        assert len(world.runs()) == 1
        assert b"records are lost" not in agent.errors
        assert b"SIGKILL" in agent.errors
        assert agent.errors.count(b": No space left on device\n") >= 1, "the reason"
        assert b"hermes-supervise recover" in agent.errors, "what to type then"
        tried = world.call("recover")
        assert tried.returncode == 1
        assert "state.db" in tried.stdout, "where its messages are"
        assert "No space left on device" in tried.stdout, "the reason, not the name of a class"
        assert "Errno" not in tried.stdout and "make room there" in tried.stdout
        looked = world.call("doctor", "--json")
        checks = json.loads(looked.stdout)["checks"]
        [folder] = [check for check in checks if check["state"] == "bad"]
        assert folder["name"] == "state folder"
        assert str(world.state) in folder["text"] and "make room" in folder["text"]
        filler.unlink()
        done = world.call("recover")
        assert done.returncode == 0, done.stdout + done.stderr
        assert spoken(world) == numbered("full")
        assert len(world.events()) == 1
        [report] = world.reports()
        assert (report["outcome"], report["problems"]) == ("interrupted", [])
        assert report["reason"]["signal"] == signal.SIGKILL
        assert world.runs() == []


def test_what_is_only_in_memory_is_stored_before_the_agent_ends(world: World) -> None:
    """Then it is in state.db, too, if the supervisor is killed as well."""
    with a_disk_of_its_own(world.state, "3m") as filler:
        agent = world.supervise(TALKER, "--no-adopt", "--checkpoint", "600", stdin=subprocess.PIPE)
        agent.wait_for("ready")
        fill(filler)
        tell(agent, "full")
        agent.wait_for("said full")
        until(lambda: spoken(world) == numbered("full"), "a checkpoint of what is in memory")
        filler.unlink()
        tell(agent, "after")
        agent.wait_for("certain after")
        agent.abandon()
        done = world.call("recover")
        assert done.returncode == 0, done.stdout + done.stderr
        assert spoken(world) == numbered("full", "after")
        assert world.runs() == []


def test_a_journal_that_cannot_be_begun_costs_nothing_either(world: World) -> None:
    """The disk is full when the agent says its first word: it has no file at all."""
    late = TALKER.replace("chat = ", "ready('born'); sys.stdin.readline()\nchat = ").replace(
        "assert connection().acknowledged(20)\n", ""
    )
    with a_disk_of_its_own(world.state, "3m") as filler:
        agent = world.supervise(late, *world.hook, stdin=subprocess.PIPE)
        agent.wait_for("born")
        fill(filler)
        tell(agent, "speak")
        agent.wait_for("ready")
        tell(agent, "full")
        agent.wait_for("said full")
        agent.kill_agent()
        assert agent.finish() == -signal.SIGKILL
        assert spoken(world) == numbered("full")
        row = world.session("chat")
        assert row is not None and row["end_reason"] == "interrupted"


# More than the supervisor keeps in memory.
TALKATIVE = (
    PATIENT
    + """
chat = session("chat", source="cli")
chat.message("user", "before")
chat.acknowledged(20)
ready("ready")
sys.stdin.readline()
for number in range(320):
    chat.message("assistant", f"full {number} " + "x" * 250_000)
    wait_until_read()
ready("said")
forever()
"""
)


def test_what_there_was_no_room_for_anywhere_is_counted(world: World) -> None:
    with a_disk_of_its_own(world.state, "3m") as filler:
        agent = world.supervise(TALKATIVE, stdin=subprocess.PIPE)
        agent.wait_for("ready")
        fill(filler)
        tell(agent, "speak")
        agent.wait_for("said")
        agent.kill_agent()
        assert agent.finish() == -signal.SIGKILL
        stored = len(spoken(world))
        assert 260 < stored < 300, "64 MiB, and the last 4 that the agent has itself"
        filler.unlink()
        done = world.call("recover")
        assert done.returncode == 0, done.stdout + done.stderr
        assert len(spoken(world)) == stored
        [report] = world.reports()
        assert f"{321 - stored} records were lost before they could be stored" in report["problems"]
        assert world.runs() == []


def test_a_disk_that_is_full_while_nobody_supervises_is_waited_out(world: World) -> None:
    with a_disk_of_its_own(world.state, "3m") as filler:
        agent = world.supervise(TALKER, "--no-adopt", stdin=subprocess.PIPE)
        agent.wait_for("ready")
        left = agent.agent
        kill(agent.pid)
        agent.process.wait()
        fill(filler)
        tell(agent, "full")
        agent.wait_for("said full")
        filler.unlink()
        tell(agent, "more")
        agent.wait_for("said more")
        kill(left)
        done = world.call("recover")
        assert done.returncode == 0, done.stdout + done.stderr
        assert spoken(world) == numbered("full", "more")
        assert world.runs() == []


# -- locked ----------------------------------------------------------------------------------


def test_nobody_who_holds_the_file_for_two_minutes_outlasts_us(world: World) -> None:
    assert PATIENCE > 120
    assert finish.Finisher(runs.Run(str(world.folder), -1), finish.Observer())._patience == PATIENCE
    make(world.db)
    abandon(world)
    with holding(world.db) as other:
        other.do("BEGIN IMMEDIATE")
        waiting = subprocess.Popen([*world.command, "recover"], env=world.env)
        until(lambda: has_open(waiting.pid, world.db), "the recoverer at the database")
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(120 if SLOW else 1)
        other.do("COMMIT")
        assert waiting.wait(30) == 0
    assert short(world.messages("chat")) == SAID
    assert world.runs() == []


# -- replaced --------------------------------------------------------------------------------


def put_in_place(world: World, new: Path) -> None:
    """As one restores a backup: the old file's WAL goes with it."""
    for end in ("-wal", "-shm"):
        Path(f"{world.db}{end}").unlink(missing_ok=True)
    os.replace(new, world.db)


def another(world: World) -> Path:
    path = world.folder / "another.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = delete")
    make(path, "INSERT INTO sessions (id, source, started_at) VALUES ('restored', 'cli', 1)",
         journal_mode="delete")  # fmt: skip
    return path


def test_a_file_that_is_put_in_its_place_while_we_wait_is_the_one_that_is_written(
    world: World,
) -> None:
    make(world.db)
    abandon(world)
    new = another(world)
    with holding(world.db) as other:
        other.do("BEGIN IMMEDIATE")
        waiting = subprocess.Popen([*world.command, "recover"], env=world.env)
        # Not before it has the WAL: one that it made anew would be taken for the new file's.
        shared = Path(f"{world.db}-shm")
        until(lambda: has_open(waiting.pid, shared), "the recoverer waits for the lock")
        put_in_place(world, new)
        other.do("COMMIT")
        assert waiting.wait(30) == 0
    assert short(world.messages("chat")) == SAID
    assert world.session("restored") is not None, "it is the new file"
    row = world.session("chat")
    assert row is not None and row["end_reason"] == "interrupted"
    assert world.runs() == []


def test_a_file_that_is_replaced_between_two_steps_is_noticed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(world.db)
    new = another(world)
    contents = [f"message {number}" for number in range(1000)]
    monkeypatch.setattr("hermes_supervise.supervisor.statedb.writer.STEP", 400)
    steps: list[int] = []
    real = SessionWriter._step

    def replaced_after_the_first(*arguments: object) -> object:
        steps.append(1)
        if len(steps) == 2:
            put_in_place(world, new)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(SessionWriter, "_step", replaced_after_the_first)
    database = StateDb(str(world.db))
    with pytest.raises(Replaced, match="replaced by another file"):
        recover(database, tail("s", *contents))
    database.close()
    again = StateDb(str(world.db))
    assert recover(again, tail("s", *contents)) is not None
    again.close()
    assert [row["content"] for row in world.messages("s")] == contents
    assert world.session("restored") is not None


# -- other journal modes, and sizes ----------------------------------------------------------


@pytest.mark.parametrize("mode", ["truncate", "persist", "memory", "off"])
def test_an_agent_with_another_kind_of_journal_keeps_it_and_both_write(
    world: World, mode: str
) -> None:
    make(world.db, journal_mode="delete")
    abandon(world)
    with holding(world.db) as other:
        assert other.do(f"PRAGMA journal_mode = {mode}") == f"[('{mode}',)]"
        other.do("INSERT INTO sessions (id, source, started_at) VALUES ('own', 'cli', 1)")
        done = world.call("recover")
        assert done.returncode == 0, done.stdout + done.stderr
        other.do("INSERT INTO messages (session_id, role, timestamp) VALUES ('own', 'user', 2)")
        assert other.do("SELECT count(*) FROM messages") == f"[({len(SAID) + 1},)]"
        assert other.do("PRAGMA journal_mode") == f"[('{mode}',)]"
        assert other.do("PRAGMA integrity_check") == "[('ok',)]"
    assert short(world.messages("chat")) == SAID
    assert world.runs() == []


def grow(path: Path, size: int, page: int) -> None:
    """Give a database so many bytes of free pages, the last of them to be used first. They are
    listed as SQLite lists what was deleted; nothing is written but the list."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = delete")
        db.execute(f"PRAGMA page_size = {page}")
        db.execute("VACUUM")
        assert db.execute("PRAGMA page_size").fetchone()[0] == page
        assert db.execute("PRAGMA freelist_count").fetchone()[0] == 0
    locked = (1 << 30) // page + 1
    with open(path, "r+b") as file:
        [used] = struct.unpack(">I", file.read(32)[28:])
        last = size // page
        free = [number for number in range(used + 1, last + 1) if number != locked]
        room = page // 4 - 8
        following, count = 0, len(free)
        while free:
            leaves, free = free[: room + 1], free[room + 1 :]
            trunk = leaves.pop()
            file.seek((trunk - 1) * page)
            file.write(struct.pack(f">{len(leaves) + 2}I", following, len(leaves), *leaves))
            following = trunk
        file.truncate(last * page)
        file.seek(28)
        file.write(struct.pack(">3I", last, following, count))


def test_a_file_of_five_gigabytes_is_written_where_it_ends(world: World) -> None:
    make(world.db)
    # With Hermes' small pages SQLite alone takes five seconds to check the file.
    page = 4096 if SLOW else 65536
    grow(world.db, 5 << 30, page)
    assert world.db.stat().st_size == 5 << 30
    with world.database() as db:
        free = db.execute("PRAGMA freelist_count").fetchone()[0]
    abandon(world)
    done = world.call("recover")
    assert done.returncode == 0, done.stdout + done.stderr
    assert short(world.messages("chat")) == SAID
    assert world.runs() == []
    with world.database() as db:
        assert db.execute("PRAGMA page_count").fetchone()[0] == (5 << 30) // page
        assert db.execute("PRAGMA freelist_count").fetchone()[0] <= free


# -- in use ----------------------------------------------------------------------------------


def leave(world: World, name: str) -> runs.Run:
    """A run that was left behind, with one session in its journal."""
    stream = os.urandom(16).hex()
    run = runs.create({"db": str(world.db)})
    hello = {"kind": "hello", "stream": stream, "pid": 2**22 - 1, "start": 1}
    said = {"kind": "message", "session": name, "at": time.time(),
            "message": {"role": "user", "content": name}}  # fmt: skip
    frames_of = frames.encode(0, records.pack(hello)) + frames.encode(1, records.pack(said))
    Path(run.path(f"{stream}.000001.log")).write_bytes(frames_of)
    return run


def test_nobody_who_uses_the_file_loses_it_to_a_thousand_recoveries(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fifth of them in every run of the tests; `make test-slow` does them all."""
    count = 1000 if SLOW else 200
    monkeypatch.setenv("XDG_STATE_HOME", str(world.state))
    make(world.db)
    with holding(world.db) as writer, holding(world.db) as reader:
        insert = "INSERT INTO sessions (id, source, started_at) VALUES ('own-{}', 'cli', 1)"
        writer.do(insert.format("first"))
        assert reader.do("SELECT count(*) FROM sessions") == "[(1,)]"
        files = [os.stat(world.db).st_ino, *side_files(world.db)]
        for number in range(count):
            run = leave(world, f"chat-{number}")
            finish_left_behind(run)
            runs.retire(run)
            assert [os.stat(world.db).st_ino, *side_files(world.db)] == files
            if number % 50 == 0:
                writer.do(insert.format(number))
                seen = reader.do("SELECT count(*) FROM messages")
                assert seen == f"[({number + 1},)]", "they see what we write"
        ended = "SELECT count(*) FROM sessions WHERE end_reason = 'interrupted'"
        assert reader.do(ended) == f"[({count},)]"
        assert writer.do("PRAGMA integrity_check") == "[('ok',)]"
        written = "SELECT count(*) FROM sessions WHERE id LIKE 'own-%'"
        assert reader.do(written) == f"[({count // 50 + 1},)]", "and what they write stays"
    assert world.runs() == []
    shutil.rmtree(world.state)


def test_a_run_whose_settings_power_took_is_finished_by_default_and_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(world.state))
    run = leave(world, "chat")
    settings = Path(run.path("run.json"))
    settings.write_bytes(bytes(settings.stat().st_size))
    run.release()
    done = world.call("recover")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "run.json" in done.stdout
    assert short(world.messages("chat")) == [("user", "chat")]
    assert world.runs() == []


def test_what_power_took_of_the_agents_rows_is_written_again(world: World) -> None:
    """The file is as it was before the agent wrote rows that it said it had written."""
    make(world.db)
    older = world.folder / "older.db"
    shutil.copy(world.db, older)
    agent = world.supervise(
        """
import sqlite3
db = sqlite3.connect(os.path.join(os.environ["HERMES_HOME"], "state.db"), isolation_level=None)
db.execute("INSERT INTO sessions (id, source, started_at) VALUES ('chat', 'cli', 1)")
from hermes_supervise.agent_shim.sdk import connection
chat = session("chat", source="cli")
for number in range(3):
    uid = chat.message("user", f"message {number}", uid=f"u{number}")
    at = db.execute("INSERT INTO messages (session_id, role, content, timestamp) "
                    "VALUES ('chat', 'user', ?, ?)", (f"message {number}", time.time()))
    chat.settled([f"u{number}"], rows=[at.lastrowid])
db.close()
assert connection().acknowledged(20)
ready()
forever()
"""
    )
    agent.wait_for("ready")
    agent.abandon()
    put_in_place(world, older)
    done = world.call("recover")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row["content"] for row in world.messages("chat")] == [
        f"message {number}" for number in range(3)
    ]
