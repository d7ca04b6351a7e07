"""What recovery wrote, before real releases of Hermes: they list, search, show and resume it."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hermes_world import Model, say
from support import World, kill, until
from transcripts import CLAUDE, install

RELEASES = ("0.19.0", "0.13.0")
_ROOT = Path(__file__).parents[2]

# Killed in the middle of everything: a call with a result, one without, a reply half said.
AGENT = """
def call(id, name, arguments):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}

chat = session("20260101_000000_abcdef", source="cli", model="some-model")
chat.title("Recovered by name")
chat.message("user", "please look for the armadillo 大别山项目")
calls = [call("call_1", "read_file", '{"path": "zebra.txt"}'), call("call_2", "terminal", "{}")]
chat.message("assistant", "Looking.", tool_calls=calls)
with chat.tool("read_file", call="call_1") as tool:
    tool.result = "a wombat lives here"
with chat.tool("terminal", call="call_2"):
    pass
chat.delta("thinking of quokkas", reasoning=True)
chat.delta("I found a pangolin and was about to")

idle = session("20260101_000001_fedcba", source="cli")
idle.message("user", "an untitled one with a tool")
with idle.tool("terminal", {"command": "sleep"}, call="call_9"):
    ready()
    forever()
"""
MAIN, OTHER = "20260101_000000_abcdef", "20260101_000001_fedcba"

PROBE = """
import json, sys
from hermes_state import SessionDB
db = SessionDB()
request = json.load(sys.stdin)
found = {}
found["search"] = {
    word: sorted({hit["session_id"] for hit in db.search_messages(word, limit=20)})
    for word in request["words"]
}
found["said"] = {id: db.get_messages_as_conversation(id) for id in request["sessions"]}
found["rows"] = {id: db.get_session(id) for id in request["sessions"]}
found["titled"] = db.resolve_session_by_title("Recovered by name")
for index in ("messages_fts", "messages_fts_trigram"):
    db._conn.execute(f"INSERT INTO {index}({index}) VALUES ('integrity-check')")
    rows = db._conn.execute(f"SELECT count(*) FROM {index}").fetchone()[0]
    assert rows == db._conn.execute("SELECT count(*) FROM messages").fetchone()[0], index
assert db._conn.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
assert db._conn.execute("PRAGMA foreign_key_check").fetchall() == []
db.close()
print(json.dumps(found))
"""


class Hermes:
    """One release, in a world of its own."""

    def __init__(self, release: str, world: World) -> None:
        self._folder = _ROOT / f".venv-hermes-{release}" / "bin"
        self._world = world
        if not (self._folder / "hermes").exists():
            pytest.fail(f"Hermes {release} is not there; `make test` installs it", pytrace=False)
        secrets = ("OPENAI", "ANTHROPIC", "OPENROUTER")
        kept = {key: value for key, value in world.env.items() if not key.startswith(secrets)}
        self._env = kept | {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200"}

    def python(self, code: str, given: object = None) -> Any:
        done = self._run([self._folder / "python", "-c", code], json.dumps(given))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout or "null")

    def __call__(self, *arguments: str) -> str:
        done = self._run([self._folder / "hermes", *arguments], "")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _run(self, command: list[str | Path], given: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=self._env, cwd=self._world.folder, input=given,
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip


def recovered(world: World) -> None:
    agent = world.supervise(AGENT)
    agent.wait_for("ready")
    agent.kill_agent()
    assert agent.finish() == -signal.SIGKILL
    assert world.runs() == [], agent.errors


def check_what_hermes_reads(hermes: Hermes) -> None:
    words = ["armadillo", "wombat", "zebra", "pangolin", "大别山项目", "unknown"]
    found = hermes.python(PROBE, {"words": words, "sessions": [MAIN, OTHER]})
    assert found["search"] == {w: [MAIN] for w in words[:5]} | {"unknown": [OTHER]}
    said = found["said"][MAIN]
    assert [(message["role"], message.get("content")) for message in said] == [
        ("user", "please look for the armadillo 大别山项目"),
        ("assistant", "Looking."),
        ("tool", "a wombat lives here"),
        ("tool", "{}"),
        ("assistant", "I found a pangolin and was about to"),
    ]
    assert [call["id"] for call in said[1]["tool_calls"]] == ["call_1", "call_2"]
    assert [message["tool_call_id"] for message in said[2:4]] == ["call_1", "call_2"]
    assert said[4]["reasoning"] == "thinking of quokkas"
    assert [message["role"] for message in found["said"][OTHER]] == ["user", "assistant", "tool"]
    assert found["titled"] == MAIN
    row = found["rows"][MAIN]
    assert (row["end_reason"], row["message_count"], row["tool_call_count"]) == (
        "interrupted",
        5,
        2,
    )


def check_that_hermes_goes_on(hermes: Hermes, world: World, session: str) -> None:
    """A real `--resume`: what reaches the model is what was said, in a form it accepts."""
    model = Model()
    model.script = [say("the kiwi replies")]
    try:
        (world.home / "config.yaml").write_text(model.configuration)
        printed = hermes("chat", "-q", "go on with it", "-Q", "--resume", session)
    finally:
        model.close()
    assert "the kiwi replies" in printed
    sent = model.requests[0]["messages"]
    assert sent[-1]["role"] == "user"
    assert "go on with it" in str(sent[-1]["content"])
    assert_accepted_by_a_strict_provider(sent)
    assert "armadillo" in str(sent[1]["content"])
    assert "I found a pangolin and was about to" in str(sent[-2]["content"])


def assert_accepted_by_a_strict_provider(sent: list[dict[str, Any]]) -> None:
    allowed = {
        "system": {"role", "content", "name"},
        "user": {"role", "content", "name"},
        "assistant": {"role", "content", "name", "tool_calls", "reasoning_content"},
        "tool": {"role", "content", "tool_call_id", "name"},
    }
    waiting: list[str] = []
    for message in sent:
        role = message["role"]
        assert set(message) <= allowed[role], f"{role} with {sorted(set(message) - allowed[role])}"
        if role == "tool":
            waiting.remove(message["tool_call_id"])
        else:
            assert waiting == [], "a call without an answer"
            waiting = [call["id"] for call in message.get("tool_calls") or []]
    assert waiting == []


@pytest.mark.parametrize("release", RELEASES)
def test_hermes_accepts_a_file_that_we_made(world: World, release: str) -> None:
    hermes = Hermes(release, world)
    recovered(world)
    listed = hermes("sessions", "list")
    assert "Recovered by name" in listed
    assert MAIN in listed
    assert OTHER in listed, "an untitled session with tools is not hidden"
    check_what_hermes_reads(hermes)
    check_that_hermes_goes_on(hermes, world, MAIN)
    row = world.session(MAIN)
    assert row is not None
    assert (row["ended_at"], row["message_count"]) == (None, 7), "it went on in the same session"


@pytest.mark.parametrize("release", RELEASES)
def test_what_we_write_into_a_file_that_hermes_made_is_its_own(world: World, release: str) -> None:
    hermes = Hermes(release, world)
    world.home.mkdir()
    hermes.python(
        "from hermes_state import SessionDB\ndb = SessionDB()\n"
        "db.create_session('kept', 'cli', model='m')\n"
        "db.append_message('kept', 'user', 'a word of its own')\ndb.close()\n"
    )
    before = shape(world)
    recovered(world)
    assert shape(world) == before, "no column, table, index or trigger of ours"
    check_what_hermes_reads(hermes)
    [kept] = world.messages("kept")
    assert kept["content"] == "a word of its own"
    row = world.session("kept")
    assert row is not None
    assert row["ended_at"] is None, "not a session of ours to end"


CLAUDE_SAID = """
chat = Chat("0c1a0de0-1111-4222-8333-444444444444")
chat.user("where does the capybara live?")
chat.text("msg_1", "By the water.")
chat.call("msg_1", "toolu_1", "Bash", command="grep wetland")
ready()
forever()
"""


def test_what_another_agent_wrote_itself_is_listed_found_and_exported_by_hermes(
    world: World,
) -> None:
    hermes = Hermes(RELEASES[0], world)
    session = "0c1a0de0-1111-4222-8333-444444444444"
    agent = world.run([install(world, "claude", CLAUDE, CLAUDE_SAID)])
    pid = int(agent.wait_for("pid").split()[1])
    agent.wait_for("ready")
    kill(pid)
    assert agent.finish() == -signal.SIGKILL
    listed = hermes("sessions", "list")
    assert session in listed
    assert "capybara" in listed
    words = {"words": ["capybara", "wetland"], "sessions": [session]}
    found = hermes.python(PROBE, words)
    assert found["search"] == {"capybara": [session], "wetland": [session]}
    assert [message["role"] for message in found["said"][session]] == ["user", "assistant", "tool"]
    assert found["rows"][session]["source"] == "claude-code"
    hermes("sessions", "export", "--session-id", session, str(world.folder / "out.jsonl"))
    exported = json.loads((world.folder / "out.jsonl").read_text())
    assert [message["role"] for message in exported["messages"]] == ["user", "assistant", "tool"]


def shape(world: World) -> list[tuple[Any, ...]]:
    with world.database() as db:
        query = "SELECT type, name, sql FROM sqlite_master ORDER BY name"
        return [tuple(row) for row in db.execute(query)]


def test_a_file_that_we_made_survives_an_upgrade_of_hermes(world: World) -> None:
    recovered(world)
    for release in reversed(RELEASES):
        check_what_hermes_reads(Hermes(release, world))
    listed = Hermes(RELEASES[0], world)("sessions", "list")
    assert MAIN in listed
    assert OTHER in listed


@pytest.mark.parametrize("release", RELEASES)
def test_hermes_lists_finds_and_exports_a_run_in_progress(world: World, release: str) -> None:
    hermes = Hermes(release, world)
    agent = world.supervise(AGENT, "--checkpoint=0.1")
    agent.wait_for("ready")

    def stored() -> bool:
        try:
            row = world.session(OTHER)
        except sqlite3.OperationalError:  # not there, or being made
            return False
        return row is not None and row["message_count"] == 2

    until(stored, "all that is complete")
    listed = hermes("sessions", "list")
    assert "Recovered by name" in listed
    assert OTHER in listed
    exported = json.loads(hermes("sessions", "export", "-", "--session-id", MAIN))
    assert [message["role"] for message in exported["messages"]] == [
        "user",
        "assistant",
        "tool",
        "tool",
    ]
    found = hermes.python(PROBE, {"words": ["wombat", "pangolin"], "sessions": [MAIN]})
    assert found["search"] == {"wombat": [MAIN], "pangolin": []}, "what still grows is not there"
    assert found["rows"][MAIN]["ended_at"] is None
    agent.kill_agent()
    agent.finish()
    check_what_hermes_reads(hermes)
