"""state.db as others leave it: locked, broken, full, foreign, in use. Nothing is lost in it."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hermes_supervise.supervisor.model.stream import Item, Session
from hermes_supervise.supervisor.statedb import schema
from hermes_supervise.supervisor.statedb.writer import Part, StateDb
from streams import recover
from support import Supervised, World, alive, children, has_open, kill, short, until

AGENT = """
from hermes_supervise.agent_shim.sdk import connection

chat = session("chat", source="cli")
chat.title("A title")
chat.message("user", "q")
chat.delta("half a rep")
assert connection().acknowledged(20)
ready()
forever()
"""
SAID = [("user", "q"), ("assistant", "half a rep")]

# Another process that has the file open: executes one line of SQL at a time.
HOLDER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=20, isolation_level=None)
print("open", flush=True)
for line in sys.stdin:
    print(db.execute(line).fetchall(), flush=True)
"""


class Holder:
    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", HOLDER, str(path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.pid = self._process.pid
        self._answer()

    def do(self, sql: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(sql + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the other process ended"
        return line.strip()

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


@contextmanager
def holding(path: Path) -> Iterator[Holder]:
    holder = Holder(path)
    try:
        yield holder
    finally:
        holder.end()


def make(path: Path, *more: str, journal_mode: str = "wal") -> None:
    """A database that another program made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(f"PRAGMA journal_mode = {journal_mode}")
        for statement in (*schema.statements(), *more):
            db.execute(statement)


def start(world: World, source: str = AGENT) -> Supervised:
    agent = world.supervise(source, *world.hook)
    agent.wait_for("ready")
    return agent


def abandon(world: World, source: str = AGENT) -> Path:
    """Supervisor and agent die at once; the run they leave."""
    start(world, source).abandon()
    [run] = world.runs()
    return run


def recoverer(agent: Supervised, path: Path) -> int:
    """The forked process that has state.db open, once it has."""
    found = until(lambda: [c for c in children(agent.pid) if has_open(c, path)], "a recoverer")
    return int(found[0])


def ended(world: World) -> tuple[str | None, str | None]:
    row = world.session("chat")
    assert row is not None
    return row["end_reason"], row["title"]


# -- locked ----------------------------------------------------------------------------------


def test_a_lock_is_waited_for_and_a_killed_recoverer_is_replaced(world: World) -> None:
    make(world.db)
    with holding(world.db) as other:
        other.do("BEGIN IMMEDIATE")
        agent = start(world)
        agent.kill_agent()
        first = recoverer(agent, world.db)
        kill(first)
        second = until(lambda: [c for c in (recoverer(agent, world.db),) if c != first], "another")
        # Beyond the patience of anybody who does not mean to wait.
        with pytest.raises(subprocess.TimeoutExpired):
            agent.process.wait(2)
        assert second
        assert world.messages("chat") == []
        assert world.events() == [], "the hook comes after the rows"
        other.do("COMMIT")
        assert agent.finish() == -signal.SIGKILL
    assert short(world.messages("chat")) == SAID
    assert ended(world) == ("interrupted", "A title")
    assert len(world.events()) == 1
    assert world.runs() == []


def test_a_lock_beyond_all_patience_is_named_and_a_later_recovery_completes(world: World) -> None:
    make(world.db)
    run = abandon(world)
    impatient = (
        "import sys; from hermes_supervise.supervisor.storage import run_folder as run\n"
        "from hermes_supervise.supervisor.run.recover import finish_left_behind\n"
        "from hermes_supervise.supervisor.hooks.runner import work\n"
        "found = run.claim(sys.argv[1]); finish_left_behind(found, 0.3); run.retire(found)\n"
        "work(None, lambda: None)"
    )
    with holding(world.db) as other:
        other.do("BEGIN IMMEDIATE")
        subprocess.run([sys.executable, "-c", impatient, run], env=world.env, check=True)
    assert world.runs() == [run], "the journal is kept"
    [report] = world.reports()
    assert not report["complete"]
    assert "locked by another process" in report["problems"][0]
    assert len(world.events()) == 1, "hooks run all the same"
    completed(world)


def completed(world: World) -> None:
    """`recover` does the rest, and does not run the hook again."""
    answer = world.call("recover")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert short(world.messages("chat")) == SAID
    assert ended(world) == ("interrupted", "A title")
    [event] = world.events()
    assert event["extra"]["written"] is False
    assert world.runs() == []
    [report] = world.reports()
    assert report["complete"]
    assert [ran["outcome"] for ran in report["hooks"]] == ["ok"]


def test_of_two_recoverers_one_does_it_and_the_other_says_so(world: World) -> None:
    make(world.db)
    run = abandon(world)
    with holding(world.db) as other:
        other.do("BEGIN IMMEDIATE")
        first = subprocess.Popen(
            [*world.command, "recover"], env=world.env, stdout=subprocess.PIPE, text=True
        )
        until(lambda: has_open(first.pid, world.db), "the first recoverer at the database")
        second = world.call("recover", "--json")
        assert (second.returncode, json.loads(second.stdout)["supervised"]) == (0, [run.name])
        other.do("COMMIT")
        printed, _ = first.communicate(timeout=30)
    assert first.returncode == 0
    assert printed.startswith("chat  interrupted; ")
    assert short(world.messages("chat")) == SAID
    assert len(world.events()) == 1
    assert world.call("recover").stdout == "nothing to recover\n"


def test_recover_waits_for_a_job_that_outlived_its_supervisor(world: World) -> None:
    """The job has the run's lock: to say that somebody has it and to return would leave the
    session unfinished, with status 0 and nobody alive who serves the run."""
    make(world.db)
    agent = world.supervise(AGENT, "--no-adopt", *world.hook)
    agent.wait_for("ready")
    with holding(world.db) as other:
        other.do("BEGIN IMMEDIATE")
        agent.kill_agent()
        job = recoverer(agent, world.db)
        kill(agent.pid)
        agent.process.wait()
        waiting = subprocess.Popen([*world.command, "recover"], env=world.env)
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(1)
        assert alive(job)
        other.do("COMMIT")
        assert waiting.wait(30) == 0
    assert short(world.messages("chat")) == SAID
    assert ended(world) == ("interrupted", "A title")
    assert len(world.events()) == 1
    assert world.runs() == []


# -- broken ----------------------------------------------------------------------------------


def _a_folder(world: World) -> Callable[[], object]:
    world.db.mkdir(parents=True)
    return world.db.rmdir


def _another_file(world: World) -> Callable[[], object]:
    world.home.mkdir()
    world.db.write_text("This is not what it says it is.\n" * 100)
    return world.db.unlink


def _damaged(world: World) -> Callable[[], object]:
    make(world.db)
    with closing(sqlite3.connect(world.db)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    good = world.db.read_bytes()
    world.db.write_bytes(good[:100] + b"\x5a" * (len(good) - 100))

    def mend() -> None:
        for path in world.home.iterdir():
            path.unlink()
        world.db.write_bytes(good)

    return mend


def _no_home(world: World) -> Callable[[], object]:
    world.home.write_text("a file where a folder should be")
    return world.home.unlink


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (_a_folder, "it is a folder"),
        (_another_file, "not a database"),
        (_damaged, "malformed"),
        (_no_home, "File exists"),
    ],
    ids=["a folder in its place", "another file in its place", "damaged", "no folder for it"],
)
def test_what_cannot_be_written_is_kept_named_and_written_later(
    world: World, spoil: Callable[[World], Callable[[], object]], named: str
) -> None:
    kept_and_completed(world, spoil(world), named)


def kept_and_completed(world: World, mend: Callable[[], object], named: str) -> None:
    agent = start(world)
    agent.kill_agent()
    assert agent.finish() == -signal.SIGKILL
    errors = agent.errors.decode()
    assert f" {world.db}: " in errors
    assert named in errors
    assert "hermes-supervise recover" in errors
    assert len(world.events()) == 1, "hooks run all the same"
    assert len(world.runs()) == 1, "the journal is kept"
    again = world.call("recover")
    assert again.returncode == 1
    assert named in again.stdout
    assert len(world.runs()) == 1
    mend()
    completed(world)


@contextmanager
def a_small_disk(world: World) -> Iterator[Callable[..., None]]:
    """state.db on a file system of its own; yields `mount` to change it."""

    def mount(*arguments: str) -> None:
        done = subprocess.run(["mount", *arguments, world.home], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"this user cannot mount a file system: {done.stderr.strip()}")

    world.home.mkdir()
    mount("-t", "tmpfs", "-o", "size=2m", "tmpfs")
    try:
        make(world.db)
        yield mount
    finally:
        subprocess.run(["umount", "--lazy", world.home], check=True)


def test_a_read_only_disk_is_named_and_what_was_said_is_written_later(world: World) -> None:
    with a_small_disk(world) as mount:
        mount("-o", "remount,ro")
        kept_and_completed(world, lambda: mount("-o", "remount,rw"), "read-only")


def test_a_full_disk_is_named_and_what_was_said_is_written_later(world: World) -> None:
    with a_small_disk(world), holding(world.db) as other:
        # The WAL and its index are there, as they are while Hermes runs; then the disk fills.
        other.do("UPDATE schema_version SET version = version")
        filler = world.home / "filler"
        with open(filler, "wb") as file, pytest.raises(OSError, match="No space left"):
            while True:
                os.write(file.fileno(), b"\0" * 4096)
        kept_and_completed(world, filler.unlink, "no room on the disk")


# -- in use by others ------------------------------------------------------------------------


def tail(name: str, *contents: str) -> Session:
    """A session as replay gives it."""
    items = [Item(f"m{n}", {"role": "user", "content": c}, 5.0) for n, c in enumerate(contents)]
    return Session(name, {"source": "cli"}, items=items, began=4.0)


def side_files(path: Path) -> list[int]:
    return [os.stat(f"{path}{end}").st_ino for end in ("-wal", "-shm")]


def test_the_wal_of_a_living_holder_is_neither_unlinked_nor_checkpointed(world: World) -> None:
    make(world.db)
    with holding(world.db) as other:
        other.do("PRAGMA wal_autocheckpoint = 0")
        other.do("INSERT INTO sessions (id, source, started_at) VALUES ('own', 'cli', 1)")
        other.do("SELECT count(*) FROM messages")
        before, files = hashlib.sha256(world.db.read_bytes()).digest(), side_files(world.db)
        for number in range(50):
            database = StateDb(str(world.db))
            recover(database, tail(f"s{number}", "x" * 20_000))
            database.close()
            reader = StateDb(str(world.db), read_only=True)
            assert reader.reader.transcript(f"s{number}")[0] is not None
            reader.close()
            assert side_files(world.db) == files
        assert hashlib.sha256(world.db.read_bytes()).digest() == before, "checkpointed"
        assert os.stat(f"{world.db}-wal").st_size > 4_000_000
        other.do("INSERT INTO messages (session_id, role, timestamp) VALUES ('own', 'user', 2)")
        assert other.do("SELECT count(*) FROM messages") == "[(51,)]"
        assert other.do("SELECT count(*) FROM sessions WHERE ended_at = 9") == "[(50,)]"
        assert other.do("PRAGMA integrity_check") == "[('ok',)]"


def test_opening_loses_nothing_of_what_a_crashed_writer_left_in_the_wal(world: World) -> None:
    make(world.db)
    with holding(world.db) as other:
        other.do("PRAGMA wal_autocheckpoint = 0")
        for number in range(100):
            values = f"('crashed-{number}', 'cli', 1)"
            other.do(f"INSERT INTO sessions (id, source, started_at) VALUES {values}")
        kill(other.pid)
    files = side_files(world.db)
    for read_only in (True, False):
        StateDb(str(world.db), read_only=read_only).close()
        assert side_files(world.db) == files
    database = StateDb(str(world.db))
    recover(database, tail("chat", "q"))
    database.close()
    with world.database() as db:
        query = "SELECT count(*) FROM sessions WHERE id LIKE 'crashed-%'"
        assert db.execute(query).fetchone()[0] == 100
    assert side_files(world.db) == files


def test_a_rollback_journal_stays_one(world: World) -> None:
    make(world.db, journal_mode="delete")
    agent = start(world)
    agent.kill_agent()
    agent.finish()
    assert short(world.messages("chat")) == SAID
    with world.database() as db:
        assert db.execute("PRAGMA journal_mode").fetchone()[0] == "delete"
    assert [path.name for path in world.home.iterdir()] == ["state.db"]


def test_a_file_that_we_make_is_the_users_alone(world: World) -> None:
    agent = start(world)
    agent.kill_agent()
    agent.finish()
    for path in world.home.iterdir():
        assert path.stat().st_mode & 0o077 == 0, path
    assert world.home.stat().st_mode & 0o077 == 0


# -- foreign tables --------------------------------------------------------------------------

TOOL = """
chat = session("chat", cwd="/somewhere")
chat.message("user", "q", mood=None, weather="ignored")
with chat.tool("look", call=None):
    ready()
    forever()
"""


def columns(world: World) -> dict[str, list[str]]:
    with world.database() as db:
        tables = ("sessions", "messages")
        return {t: [row[1] for row in db.execute(f"PRAGMA table_info({t})")] for t in tables}


def test_older_tables_are_written_as_they_are(world: World) -> None:
    old = ("ALTER TABLE messages DROP COLUMN active",
           "ALTER TABLE messages DROP COLUMN effect_disposition",
           "ALTER TABLE sessions DROP COLUMN cwd",
           "UPDATE schema_version SET version = 11")  # fmt: skip
    make(world.db, *old)
    before = columns(world)
    agent = start(world, TOOL)
    agent.kill_agent()
    agent.finish()
    rows = world.messages("chat")
    assert [row["role"] for row in rows] == ["user", "assistant", "tool"]
    assert rows[2]["tool_call_id"] == json.loads(rows[1]["tool_calls"])[0]["id"]
    assert rows[2]["tool_name"] is None, "releases of that age send it on, and are refused"
    assert columns(world) == before


def test_newer_tables_get_their_own_defaults(world: World) -> None:
    new = ("ALTER TABLE messages ADD COLUMN mood TEXT NOT NULL DEFAULT 'calm'",
           "ALTER TABLE sessions ADD COLUMN weather TEXT NOT NULL DEFAULT 'fair'",
           "UPDATE schema_version SET version = 99")  # fmt: skip
    make(world.db, *new)
    before = columns(world)
    agent = start(world, TOOL)
    agent.kill_agent()
    agent.finish()
    rows = world.messages("chat")
    assert [row["mood"] for row in rows] == ["calm"] * 3
    assert rows[2]["tool_name"] == "look"
    row = world.session("chat")
    assert row is not None
    assert (row["weather"], row["cwd"]) == ("fair", "/somewhere")
    assert columns(world) == before


def test_values_that_no_column_can_hold_do_not_keep_the_rest_from_being_written(
    world: World,
) -> None:
    source = """
chat = session("chat", model_config={"a": 1})
chat.message("user", "one", timestamp=float("nan"), token_count=10**30)
chat.message("user", "two", timestamp=10**30, active=None, role_is_fine=True)
chat.message("user", "three", tool_calls=[], reasoning_details=[{"a": 1}], finish_reason=None)
chat.message("user", "four \\ud800 \\x00 end", session_id="elsewhere", id=1)
chat.message("user", [{"type": "text", "text": "five"}])
ready()
forever()
"""
    agent = start(world, source)
    agent.kill_agent()
    agent.finish()
    rows = world.messages("chat")
    assert short(rows) == [
        ("user", "one"),
        ("user", "two"),
        ("user", "three"),
        ("user", "four \ufffd \x00 end"),
        ("user", '\x00json:[{"type": "text", "text": "five"}]'),
    ]
    assert all(row["timestamp"] > 1e9 for row in rows)
    assert rows[2]["reasoning_details"] == '[{"a": 1}]'
    assert world.runs() == []


# -- a long tail -----------------------------------------------------------------------------

LONG = """
from hermes_supervise.agent_shim.sdk import connection

history = [{"role": "user", "content": "same"} for _ in range(300)]
chat = session("chat", history=history)
for number in range(700):
    chat.message("user", "same" if number % 3 else f"live {number}")
chat.delta("half")
assert connection().acknowledged(20)
ready()
forever()
"""


IN_STEPS = """
from hermes_supervise.supervisor.__main__ import main
from hermes_supervise.supervisor.statedb import writer as statedb
statedb.STEP = 400
main()
"""


def test_a_long_tail_goes_in_once_and_in_order_however_often_it_is_cut_off(world: World) -> None:
    chance = random.Random(20_240_229)
    abandon(world, LONG)
    seen: list[int] = []
    marked = 0
    while world.runs():
        assert len(seen) < 100
        before = rows_in(world)
        process = subprocess.Popen(
            [sys.executable, "-c", IN_STEPS, "recover"], env=world.env, stdout=subprocess.DEVNULL
        )
        if len(seen) % 3 == 2:
            # At any moment at all: while it starts, in a step, between two, at its end.
            until_or_after(process, chance.uniform(0.05, 0.3))
        else:
            until(lambda: rows_in(world) > before or process.poll() is not None, "a step")  # noqa: B023
        process.kill()
        process.wait()
        seen.append(rows_in(world))
        marked += unfinished(world)
    assert any(0 < count < 1001 for count in seen), f"never cut off in the middle: {seen}"
    assert marked, "the marker moves along with the steps"
    sent = ["same"] * 300 + ["same" if n % 3 else f"live {n}" for n in range(700)] + ["half"]
    assert [row["content"] for row in world.messages("chat")] == sent
    row = world.session("chat")
    assert row is not None
    assert (row["message_count"], row["end_reason"]) == (1001, "interrupted")
    [report] = world.reports()
    assert report["recovered"]["messages"] == 1001
    # A hook that was cut off itself is repeated, with `repeated` in its input.
    extras = [event["extra"] for event in world.events()]
    attempts = [extra["attempt"] for extra in extras]
    assert attempts == sorted(set(attempts)), "no attempt twice"
    assert [extra["repeated"] for extra in extras] == [attempt > 1 for attempt in attempts]


def until_or_after(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        pass


def _ask(world: World, query: str) -> list[Any]:
    if not world.db.exists():
        return []
    with closing(sqlite3.connect(f"file:{world.db}?mode=ro", uri=True, timeout=20)) as db:
        try:
            return db.execute(query).fetchall()
        except sqlite3.OperationalError:  # no such table yet
            return []


def rows_in(world: World) -> int:
    found = _ask(world, "SELECT count(*) FROM messages")
    return int(found[0][0]) if found else 0


def unfinished(world: World) -> bool:
    found = _ask(world, "SELECT value FROM state_meta WHERE key LIKE 'hermes_supervise:%:chat'")
    markers = [json.loads(value) for (value,) in found]
    return any("rows" in marker and not marker.get("done") for marker in markers)


def test_a_long_tail_with_gaps_is_completed_against_the_rows_that_were_there(world: World) -> None:
    """The plan is made again after a cut: from what the agent wrote, not from what we did."""
    make(world.db, "INSERT INTO sessions (id, source, started_at) VALUES ('s', 'cli', 1)")
    contents = [f"{n % 5}" for n in range(1000)]
    with closing(sqlite3.connect(world.db, isolation_level=None)) as db:
        for content in contents[:50]:
            db.execute(
                "INSERT INTO messages (session_id, role, content, timestamp) "
                "VALUES ('s', 'user', ?, 5)", (content,),
            )  # fmt: skip
    copy = world.folder / "copy.db"
    code = (
        "import os, sys, streams, test_statedb as t\n"
        "from hermes_supervise.supervisor.statedb import writer as statedb\n"
        "statedb.STEP = 200\n"
        "steps, insert = int(sys.argv[2]), statedb.SessionWriter._step\n"
        "def cut(*a):\n"
        "    global steps\n"
        "    if steps == 0: os.kill(os.getpid(), 9)\n"
        "    steps -= 1\n"
        "    return insert(*a)\n"
        "statedb.SessionWriter._step = cut\n"
        "contents = [str(n % 5) for n in range(1000)]\n"
        "streams.recover(statedb.StateDb(sys.argv[1]), t.tail('s', *contents))\n"
    )
    tests = Path(__file__).parent
    env = world.env | {"PYTHONPATH": f"{tests}:{tests.parent / 'lib'}"}
    for steps in range(1, 5):
        shutil.copy(world.db, copy)
        for cut, status in ((steps, -signal.SIGKILL), (1, -signal.SIGKILL), (9, 0)):
            if status and (steps == 4 and cut == 1):
                continue
            done = subprocess.run([sys.executable, "-c", code, copy, str(cut)], env=env)
            assert done.returncode == status
        with closing(sqlite3.connect(copy)) as db:
            rows = db.execute("SELECT content FROM messages ORDER BY id").fetchall()
        assert [row[0] for row in rows] == contents, f"cut off after {steps} steps"
        for end in ("", "-wal", "-shm"):
            Path(f"{copy}{end}").unlink(missing_ok=True)


def test_a_step_ends_when_it_has_held_the_lock_for_long_enough(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However slow the machine, others get their turn: here one row takes as long as a step may."""
    make(world.db)
    monkeypatch.setattr("hermes_supervise.supervisor.statedb.writer.HOLD", 0.0)
    contents = [f"message {number}" for number in range(20)]
    left: list[tuple[int, int]] = []
    database = StateDb(str(world.db))
    part = Part("0" * 32, tail("s", *contents), 9.0, end=(9.0, "interrupted"))
    database.write([part], progress=lambda wrote, rest: left.append((wrote, rest))).run()
    database.close()
    assert left == [(1, 19 - number) for number in range(20)]
    assert [row["content"] for row in world.messages("s")] == contents


def test_who_makes_a_new_file_at_the_same_moment_waits_for_the_other(tmp_path: Path) -> None:
    for number in range(12):
        path = str(tmp_path / f"{number}.db")
        gate, opened = os.pipe()
        makers = []
        for _ in range(6):
            maker = os.fork()
            if maker == 0:
                code = 1
                try:
                    os.close(opened)
                    os.read(gate, 1)
                    StateDb(path).close()
                    code = 0
                finally:
                    os._exit(code)
            makers.append(maker)
        os.close(gate)
        os.close(opened)
        assert [os.waitpid(maker, 0)[1] for maker in makers] == [0] * 6
