"""state.db as Hermes 0.20 and later make it: an index with a tokenizer of its own, leases of turns,
profiles, equal messages. The shapes are those of the releases; the files are made here."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from hermes_supervise.supervisor.model.stream import Item, Session
from hermes_supervise.supervisor.statedb import new_files, schema
from hermes_supervise.supervisor.statedb.writer import Part, StateDb
from support import World, short, until

AGENT = """
chat = session("chat", source="cli")
chat.message("user", "漢字 and words")
chat.delta("かな as well")
ready()
forever()
"""
SAID = [("user", "漢字 and words"), ("assistant", "かな as well")]

# A tokenizer of its own: every character of more than one byte is a token, and every word.
TOKENIZER = """
#include <sqlite3ext.h>
SQLITE_EXTENSION_INIT1

static int create(void *x, const char **args, int n, Fts5Tokenizer **out) {
  *out = (Fts5Tokenizer *)&create;
  return SQLITE_OK;
}
static void destroy(Fts5Tokenizer *t) {}

static int tokenize(Fts5Tokenizer *t, void *ctx, int flags, const char *text, int size,
                    int (*token)(void *, int, const char *, int, int, int)) {
  int at = 0, rc = SQLITE_OK;
  while (at < size && rc == SQLITE_OK) {
    int end = at + 1;
    if (text[at] & 0x80) {
      while (end < size && (text[end] & 0xc0) == 0x80) end++;
    } else if (text[at] == ' ') {
      at++;
      continue;
    } else {
      while (end < size && text[end] != ' ' && !(text[end] & 0x80)) end++;
    }
    rc = token(ctx, 0, text + at, end - at, at, end);
    at = end;
  }
  return rc;
}

int sqlite3_extension_init(sqlite3 *db, char **error, const sqlite3_api_routines *api) {
  SQLITE_EXTENSION_INIT2(api);
  static fts5_tokenizer made = {create, destroy, tokenize};
  fts5_api *fts = 0;
  sqlite3_stmt *ask = 0;
  if (sqlite3_prepare_v2(db, "SELECT fts5(?1)", -1, &ask, 0) != SQLITE_OK) return SQLITE_ERROR;
  sqlite3_bind_pointer(ask, 1, &fts, "fts5_api_ptr", 0);
  sqlite3_step(ask);
  sqlite3_finalize(ask);
  return fts ? fts->xCreateTokenizer(fts, "cjk_unicode61", 0, &made, 0) : SQLITE_ERROR;
}
"""
INDEX = "messages_fts_cjk"
_ADD = f"INSERT INTO {INDEX}(rowid, content) VALUES (new.id, new.content);"
_DROP = f"INSERT INTO {INDEX}({INDEX}, rowid, content) VALUES ('delete', old.id, old.content);"
MADE = (
    f"CREATE VIRTUAL TABLE {INDEX} USING "
    "fts5(content, content='messages', content_rowid='id', tokenize='cjk_unicode61')",
    f"CREATE TRIGGER {INDEX}_insert AFTER INSERT ON messages BEGIN {_ADD} END",
    f"CREATE TRIGGER {INDEX}_delete AFTER DELETE ON messages BEGIN {_DROP} END",
    f"CREATE TRIGGER {INDEX}_update AFTER UPDATE OF content ON messages BEGIN {_DROP} {_ADD} END",
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, built as a user would build Hermes' own."""
    if shutil.which("gcc") is None:
        pytest.skip("no C compiler here")
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "tokenizer.c").write_text(TOKENIZER)
    built = folder / "libfts5_cjk.so"
    ran = subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O1", str(folder / "tokenizer.c"), "-o", str(built)],
        capture_output=True, text=True,
    )  # fmt: skip
    if "sqlite3ext.h" in ran.stderr:
        pytest.skip("no headers of SQLite here")
    assert ran.returncode == 0, ran.stderr
    return built


def opened(path: Path, library: Path) -> apsw.Connection:
    db = apsw.Connection(str(path))
    db.enable_load_extension(True)
    db.load_extension(str(library))
    return db


def with_the_index(world: World, tokenizer: Path) -> None:
    """A file with the index in it, which a process made that has the tokenizer."""
    world.home.mkdir(parents=True)
    with closing(opened(world.db, tokenizer)) as db:
        for statement in (*schema.statements(), *MADE):
            db.execute(statement)
        db.execute("INSERT INTO sessions (id, source, started_at) VALUES ('old', 'cli', 1)")
        db.execute(
            "INSERT INTO messages (session_id, role, content, timestamp) "
            "VALUES ('old', 'user', '古い話', 1)"
        )


def installed(world: World, tokenizer: Path, *, mode: int = 0o644) -> Path:
    library = world.home / "lib" / "libfts5_cjk.so"
    library.parent.mkdir()
    shutil.copy(tokenizer, library)
    library.chmod(mode)
    return library


def killed(world: World, source: str = AGENT) -> None:
    agent = world.supervise(source)
    agent.wait_for("ready")
    agent.kill_agent()
    assert agent.finish() == -signal.SIGKILL
    assert world.runs() == [], agent.errors.decode()


def found(world: World, tokenizer: Path, word: str) -> int:
    with closing(opened(world.db, tokenizer)) as db:
        db.execute(f"INSERT INTO {INDEX}({INDEX}, rank) VALUES ('integrity-check', 1)")
        query = f"SELECT count(*) FROM {INDEX} WHERE {INDEX} MATCH ?"
        [row] = db.execute(query, (f'"{word}"',)).fetchall()
        return int(row[0])


def stale(world: World) -> str | None:
    with world.database() as db:
        row = db.execute("SELECT value FROM state_meta WHERE key = 'fts_cjk_stale'").fetchone()
    return row[0] if row else None


def triggers(world: World) -> set[str]:
    with world.database() as db:
        rows = db.execute(f"SELECT name FROM sqlite_master WHERE name GLOB '{INDEX}_*'")
        return {row["name"] for row in rows} & {f"{INDEX}_{x}" for x in _KINDS}


_KINDS = ("insert", "delete", "update")


@pytest.mark.parametrize("named", [False, True], ids=["in Hermes' folder", "by variable"])
def test_the_users_own_tokenizer_keeps_the_index(
    world: World, tokenizer: Path, named: bool
) -> None:
    with_the_index(world, tokenizer)
    library = installed(world, tokenizer)
    if named:
        elsewhere = library.rename(world.folder / "mine.so")
        world.env["HERMES_FTS5_CJK_SO"] = str(elsewhere)
    killed(world)
    assert short(world.messages("chat")) == SAID
    assert (found(world, tokenizer, "漢"), found(world, tokenizer, "な")) == (1, 1)
    assert found(world, tokenizer, "古") == 1
    assert stale(world) is None
    assert triggers(world) == {f"{INDEX}_{x}" for x in _KINDS}


@pytest.mark.parametrize("there", ["not there", "not a library", "anybody may write it"])
def test_without_the_tokenizer_the_index_is_left_behind_as_hermes_leaves_it(
    world: World, tokenizer: Path, there: str
) -> None:
    with_the_index(world, tokenizer)
    if there != "not there":
        library = installed(world, tokenizer)
        if there == "not a library":
            library.write_bytes(b"something else")
        else:
            library.chmod(0o666)
    killed(world)
    assert short(world.messages("chat")) == SAID
    assert (stale(world), triggers(world)) == ("1", set())
    [report] = world.reports()
    assert "optimize-storage" in " ".join(report["problems"])
    with world.database() as db:
        query = "SELECT count(*) FROM messages_fts WHERE messages_fts MATCH 'well'"
        assert db.execute(query).fetchone()[0] == 1, "the other indexes are kept"
    with closing(opened(world.db, tokenizer)) as again:
        again.execute(f"INSERT INTO {INDEX}({INDEX}) VALUES ('rebuild')")
    assert found(world, tokenizer, "漢") == 1, "and it can be rebuilt"


def test_a_recovery_that_writes_no_message_leaves_the_index_alone(
    world: World, tokenizer: Path
) -> None:
    with_the_index(world, tokenizer)
    killed(world, "chat = session('old', source='cli', settles=True)\nready()\nforever()\n")
    assert (stale(world), triggers(world)) == (None, {f"{INDEX}_{x}" for x in _KINDS})


# -- leases ------------------------------------------------------------------------------------

LEASES = (
    "CREATE TABLE session_turn_leases (conversation_id TEXT PRIMARY KEY, holder TEXT NOT NULL, "
    "acquired_at REAL NOT NULL, expires_at REAL NOT NULL)"
)


def test_exactly_the_dead_process_lease_of_a_turn_is_given_back(world: World) -> None:
    world.home.mkdir()
    with closing(sqlite3.connect(world.db, isolation_level=None)) as db:
        for statement in (*schema.statements(), LEASES):
            db.execute(statement)
    agent = world.supervise(
        """
for name in ("turn", "stamped", "other", "later", "alike", "named*"):
    session(name, source="cli").message("user", "hello")
ready()
forever()
"""
    )
    agent.wait_for("ready")
    pid, far = agent.agent, 4e9
    ours, elsewhere = os.stat("/proc/self/ns/pid").st_ino, 1
    leases: list[tuple[Any, ...]] = [
        # The key is the first session of the lineage, whatever the turn's own is called.
        ("root", f"pid={pid}:turn=turn:task:0a0a0a0a:platform=cli", 1.0),
        ("root-2", f"pid={pid}:pidns={ours}:turn=stamped:task:0a0a0a0a:platform=cli", 1.0),
        ("other", "pid=1:turn=other:task:0a0a0a0a:platform=cli", 1.0),
        ("other-2", f"pid={pid}:pidns={elsewhere}:turn=other:task:0a0a0a0a:platform=cli", 1.0),
        ("later", f"pid={pid}:turn=later:task:0a0a0a0a:platform=cli", far),
        ("alike", f"pid={pid}0:turn=alike:task:0a0a0a0a:platform=cli", 1.0),
        ("named", f"pid={pid}:turn=named and more:task:0a0a0a0a:platform=cli", 1.0),
    ]
    with closing(sqlite3.connect(world.db, isolation_level=None)) as db:
        db.executemany(
            "INSERT INTO session_turn_leases VALUES (?, ?, ?, 4e9)",
            leases,
        )
    agent.kill_agent()
    assert agent.finish() == -signal.SIGKILL
    with world.database() as db:
        left = {row[0] for row in db.execute("SELECT conversation_id FROM session_turn_leases")}
    assert left == {"other", "other-2", "later", "alike", "named"}


# -- new rows and new files ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("home", "profile"), [(".", "default"), ("profiles/work", "work")], ids=["root", "profile"]
)
def test_a_session_that_we_make_belongs_to_the_profile_of_its_file(
    tmp_path: Path, home: str, profile: str
) -> None:
    path = tmp_path / home / "state.db"
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in (*schema.statements(), "ALTER TABLE sessions ADD profile_name TEXT"):
            db.execute(statement)
    store(path, "hello")
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT profile_name FROM sessions").fetchall() == [(profile,)]


def store(path: Path, *said: str, at: float = 1_700_000_000.25) -> list[float]:
    """Store messages that were all said at one moment; the moments that they have then."""
    session = Session("chat", {"source": "cli"})
    for number, words in enumerate(said, 1):
        message = {"role": "user", "content": words}
        session.items.append(Item(f"u{number}", message, at, records=[number]))
    session.spoke = True
    database = StateDb(str(path))
    try:
        database.write([Part("a" * 32, session, at, end=(at, "interrupted"))]).run()
    finally:
        database.close()
    with closing(sqlite3.connect(path)) as db:
        rows = db.execute("SELECT content, timestamp FROM messages ORDER BY id").fetchall()
    assert [content for content, _ in rows] == list(said)
    return [timestamp for _, timestamp in rows]


def test_equal_messages_of_one_moment_get_different_times_and_stay_in_order(tmp_path: Path) -> None:
    at = 1_700_000_000.25
    moments = store(tmp_path / "state.db", "again", "again", "else", "again", at=at)
    assert moments == sorted(moments)
    assert moments[0] == at, "nothing is moved that need not be"
    equal = [moments[0], moments[1], moments[3]]
    assert len(set(equal)) == 3
    assert moments[-1] - at < 0.001


def test_different_messages_of_one_moment_keep_it(tmp_path: Path) -> None:
    assert set(store(tmp_path / "state.db", "one", "two", "three", at=5.0)) == {5.0}


@pytest.mark.parametrize(
    ("version", "fault"),
    [
        ((3, 40, 1), True), ((3, 44, 5), True), ((3, 44, 6), False), ((3, 50, 6), True),
        ((3, 50, 7), False), ((3, 51, 2), True), ((3, 51, 3), False), ((3, 54, 0), False),
    ],
)  # fmt: skip
def test_which_releases_of_sqlite_make_hermes_avoid_wal(
    version: tuple[int, int, int], fault: bool
) -> None:
    assert new_files.has_the_wal_fault(version) is fault


@pytest.mark.parametrize(
    ("version", "config", "mode"),
    [
        ((3, 54, 0), None, "wal"),
        ((3, 40, 1), None, "delete"),
        (
            (3, 54, 0),
            "model:\n  default: x\ndatabase:\n  journal_mode: 'DELETE'  # NFS\n",
            "delete",
        ),
        ((3, 54, 0), "database:\n  journal_mode: wal\n", "wal"),
        ((3, 54, 0), "database:\n  other: 1\nelse:\n  journal_mode: delete\n", "wal"),
    ],
)
def test_a_new_file_has_the_journal_mode_that_hermes_would_choose(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: tuple[int, int, int],
    config: str | None,
    mode: str,
) -> None:
    monkeypatch.setattr(new_files, "_version", lambda: version)
    if config is not None:
        (tmp_path / "config.yaml").write_text(config)
    store(tmp_path / "state.db", "hello")
    with closing(sqlite3.connect(tmp_path / "state.db")) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == (mode,)


# -- an end of ours, and somebody who goes on ------------------------------------------------------

# Stores its messages itself, and knows nothing of our end mark: it never touches it.
STORES = """
import sqlite3
db = sqlite3.connect(os.path.join(os.environ["HERMES_HOME"], "state.db"), isolation_level=None)
db.execute("INSERT OR IGNORE INTO sessions (id, source, started_at) VALUES ('chat', 'cli', ?)",
           (time.time(),))
chat = session("chat", source="cli", settles=True)
def say(words):
    chat.turn("start")
    uid = chat.message("user", words)
    row = db.execute("INSERT INTO messages (session_id, role, content, timestamp) "
                     "VALUES ('chat', 'user', ?, ?)", (words, time.time())).lastrowid
    chat.settled([uid], [row])
"""


def end(world: World) -> tuple[float | None, str | None]:
    row = world.session("chat")
    assert row is not None
    return row["ended_at"], row["end_reason"]


def test_our_end_is_taken_back_when_an_agent_that_stores_itself_goes_on(world: World) -> None:
    store(world.db, "earlier")
    with closing(sqlite3.connect(world.db, isolation_level=None)) as db:
        db.execute("UPDATE sessions SET ended_at = NULL, end_reason = NULL")
    killed(world, STORES + "say('one')\nready()\nforever()\n")
    first = end(world)
    assert first[1] == "interrupted"
    world.env["HERMES_SUPERVISE_CHECKPOINT"] = "0.5"
    agent = world.supervise(STORES + "say('two')\nready()\nforever()\n")
    agent.wait_for("ready")
    until(lambda: end(world) == (None, None), "the end is taken back while it lives")
    before = time.time()
    agent.kill_agent()
    assert agent.finish() == -signal.SIGKILL
    at, reason = end(world)
    assert reason == "interrupted"
    assert at is not None and at >= before - 1
    assert [row["content"] for row in world.messages("chat")] == ["earlier", "one", "two"]


@pytest.mark.parametrize("how", ["killed", "ended"])
def test_at_the_latest_with_its_own_end(world: World, how: str) -> None:
    store(world.db, "earlier")
    with closing(sqlite3.connect(world.db, isolation_level=None)) as db:
        db.execute("UPDATE sessions SET ended_at = NULL, end_reason = NULL")
    killed(world, STORES + "say('one')\nready()\nforever()\n")
    first = end(world)
    if how == "killed":
        killed(world, STORES + "say('two')\nready()\nforever()\n")
        assert end(world)[1] == "interrupted"
    else:
        agent = world.supervise(STORES + "say('two')\nchat.end('cli_close')\n")
        assert agent.finish() == 0
        assert end(world)[1] == "cli_close"
    ended_at, earlier = end(world)[0], first[0]
    assert ended_at is not None and earlier is not None and ended_at > earlier


def test_an_end_of_the_agents_own_is_left_alone(world: World) -> None:
    store(world.db, "earlier")
    with closing(sqlite3.connect(world.db, isolation_level=None)) as db:
        db.execute("UPDATE sessions SET ended_at = 7, end_reason = 'cli_close'")
    world.env["HERMES_SUPERVISE_CHECKPOINT"] = "0.5"
    killed(world, STORES + "say('one')\nready()\nforever()\n")
    assert end(world) == (7, "cli_close")
