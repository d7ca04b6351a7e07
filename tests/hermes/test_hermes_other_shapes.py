"""The stand-in of 0.21 in other shapes than what is known of it: where a name or a kind of object
was taken for granted, it is another one here. Killed in a reply after a tool: nothing lost, nothing
twice, in the session that Hermes had."""

from __future__ import annotations

import json
import signal

import pytest
from hermes_today import Today
from support import World, short

BOTH = ["on_session_end", "on_session_finalize"]
PERSISTS = "agent/session_persistence.py"
TURN = "agent/turn_facade.py"
COMPRESSES = "agent/compression_facade.py"

# By shape: in each file, what is replaced and by what. An empty first text: it is put in front.
SHAPES: dict[str, dict[str, list[tuple[str, str]]]] = {
    "the class is in another module": {
        "run_agent.py": [("", "")],
        "hermes_cli/main.py": [
            ("from run_agent import AIAgent", "from agent.ai_agent import AIAgent")
        ],
    },
    "the stores are in another module": {
        "hermes_state.py": [("", "")],
        "hermes_cli/main.py": [
            ("from hermes_state import SessionDB", "from hermes_storage.sessions import SessionDB")
        ],
    },
    "the agent keeps its database under another name": {
        "run_agent.py": [("self._session_db = session_id, session_db",
                          "self._store = session_id, session_db")],
        PERSISTS: [("self._session_db", "self._store")],
        TURN: [("self._session_db", "self._store")],
        COMPRESSES: [("self._session_db", "self._store")],
    },
    "the agent has a handle of a shared database": {
        "hermes_state.py": [("    def close(self):\n        self.db.close()\n", """
    def close(self):
        self.db.close()

class Handle:
    def __init__(self, shared):
        self._shared = shared

    def __getattr__(self, name):
        if name == "db_path":
            raise AttributeError(name)
        return getattr(self._shared, name)
""")],
        "run_agent.py": [("session_id, session_db\n", "session_id, Handle(session_db)\n"),
                         ("import json, os", "import json, os\nfrom hermes_state import Handle")],
    },
    "the path of the database is asked for, not looked up": {
        "hermes_state.py": [
            ("self.db_path = Path", "self._path = Path"),
            ("connect(self.db_path", "connect(self._path"),
            ("    def close(self)", "    def db_path(self):\n        return self._path\n\n"
                                    "    def close(self)"),
        ],
    },
    "every request has copies of the messages": {
        TURN: [("    def _answer(self, steps, messages):\n",
                "    def _answer(self, steps, messages):\n"
                "        messages = [dict(message) for message in messages]\n")],
    },
    "copies, and rows known by their ids": {
        TURN: [("    def _answer(self, steps, messages):\n",
                "    def _answer(self, steps, messages):\n"
                "        messages = [dict(message) for message in messages]\n")],
        PERSISTS: [('message["_db_persisted"], message["_row_id"] = True, row["_row_id"]',
                    'message["_row_id"] = row["_row_id"]'),
                   ('message.get("_db_persisted")', 'message.get("_row_id")')],
        "hermes_state_messages.py": [
            ("SELECT role, content", "SELECT id, role, content"),
            ('("role", "content", "tool_calls", "tool_call_id")\n        found',
             '("_row_id", "role", "content", "tool_calls", "tool_call_id")\n        found'),
            (", _db_persisted=True", ""),
        ],
    },
    "a property says whether the writer was replaced": {
        "agent/stream_delivery.py": [
            ("    def _stream_writer_superseded",
             "    @property\n    def _stream_writer_superseded"),
        ],
    },
    "the turn runs in a thread of its own": {
        TURN: [("return self._run(user_message, list(conversation_history or ()))",
                "pool = futures.ThreadPoolExecutor(1)\n            history = "
                "list(conversation_history or ())\n"
                "            return pool.submit(self._run, user_message, history).result()"),
               ("import os, script, types", "import os, script, types\n"
                                            "from concurrent import futures")],
    },
    "the path of modules is made anew": {
        "hermes_bootstrap.py": [
            ("site.addsitedir(packages)",
             "sys.path[:] = [folder for folder in sys.path if 'site-packages' not in folder]\n"
             "sys.path_importer_cache.clear()\n"
             "sys.path.insert(0, root)\nsite.addsitedir(packages)"),
        ],
    },
}  # fmt: skip
MOVED = {"run_agent.py": "agent/ai_agent.py", "hermes_state.py": "hermes_storage/sessions.py"}


def take(today: Today, shape: str) -> None:
    root = today.store.root
    for name, changes in SHAPES[shape].items():
        path = root / name
        text = path.read_text()
        for old, new in changes:
            assert old in text, f"{name} has no {old!r}"
            text = text.replace(old, new)
        if changes == [("", "")]:
            path.unlink()
            path = root / MOVED[name]
            path.parent.mkdir(exist_ok=True)
            (path.parent / "__init__.py").touch()
        path.write_text(text)


@pytest.fixture
def today(world: World) -> Today:
    return Today(world)


@pytest.mark.parametrize("shape", SHAPES)
def test_killed_in_a_reply_after_a_tool(today: Today, shape: str) -> None:
    take(today, shape)
    # Two turns: the second has a history.
    today.says([("text", "well ")])
    assert today.world.run([today.command, "chat", "hello"]).finish() == 0
    before = len(today.hooks())
    today.says(
        [("text", "I look "), ("call", ("look", "call_a", "{}"))],
        [("reasoning", "a thought"), ("text", "it is "), ("text", "there "), ("hold", "here")],
    )
    agent = today.world.run([today.command, "chat", "and now"])
    today.wait_until_held("here")
    agent.kill_agent()
    assert agent.finish() == -signal.SIGKILL
    assert b"captured" not in agent.errors
    rows = today.world.messages("chat")
    assert short(rows) == [
        ("user", "hello"), ("assistant", "well "), ("user", "and now"), ("assistant", "I look "),
        ("tool", "result of call_a"), ("assistant", "it is there "),
    ]  # fmt: skip
    assert rows[-1]["finish_reason"] == "interrupted"
    assert [call["id"] for call in json.loads(rows[3]["tool_calls"])] == ["call_a"]
    with today.world.database() as db:
        assert [(row["id"], row["end_reason"]) for row in db.execute("SELECT * FROM sessions")] == [
            ("chat", "interrupted")
        ]
        assert db.execute("SELECT * FROM session_turn_leases").fetchall() == []
    assert [hook[:2] for hook in today.hooks()[before:]] == [[name, "chat"] for name in BOTH]


BUSY = """
                    "api_calls": 0, "completed": False, "failed": True,
                    "failure_reason": "session_busy"}"""


def test_a_refused_question_is_known_without_a_count_of_requests(today: Today) -> None:
    turn = today.store.root / TURN
    text = turn.read_text()
    assert BUSY in text
    turn.write_text(text.replace(BUSY, '"completed": False, "failure_reason": "session_busy"}'))
    today.says([("text", "well ")])
    assert today.world.run([today.command, "chat", "hello"]).finish() == 0
    today.says([("text", "again "), ("hold", "here")])
    other = today.world.run([today.command, "chat", "and now"])
    today.wait_until_held("here")
    refused = today.world.run([today.command, "chat", "me too"])
    refused.wait_for("ended session_busy")
    refused.finish()
    other.kill_agent()
    other.finish()
    contents = [content for _, content in short(today.world.messages("chat"))]
    assert contents == ["hello", "well ", "and now", "again "]


RESULT = '{"final_response": "", "messages": messages, "completed": True, "api_calls": 1}'


def test_a_turn_that_returns_an_object_has_ended(today: Today) -> None:
    turn, main = today.store.root / TURN, today.store.root / "hermes_cli" / "main.py"
    text = turn.read_text()
    assert RESULT in text
    turn.write_text(
        text.replace(RESULT, "types.SimpleNamespace(completed=True, interrupted=False)")
    )
    text = main.read_text().replace('result.get("failure_reason") or result.get("completed")', "1")
    main.write_text(text)
    today.world.env["LEAVES_OPEN"] = "1"
    today.says([("text", "well ")])
    assert today.world.run([today.command, "chat", "hello"]).finish() == 0
    row = today.world.session("chat")
    assert row is not None and row["end_reason"] != "interrupted"


@pytest.mark.parametrize("said", ["'terminated'", "None"])
def test_a_signal_is_known_whatever_the_handler_tells_the_agent(today: Today, said: str) -> None:
    main = today.store.root / "hermes_cli" / "main.py"
    text = main.read_text()
    assert 'f"received signal {number}"' in text
    main.write_text(text.replace('f"received signal {number}"', said))
    today.world.env["LEAVES_OPEN"] = "1"
    today.says([("text", "well "), ("hold", "here")])
    agent = today.world.run([today.command, "chat", "hello"])
    today.wait_until_held("here")
    agent.kill_agent(signal.SIGTERM)
    assert agent.finish() == 0
    assert short(today.world.messages("chat")) == [("user", "hello"), ("assistant", "well ")]
    row = today.world.session("chat")
    assert row is not None and row["end_reason"] == "interrupted"
    assert [name for name, _, _ in today.hooks()] == BOTH


INSISTS = """
if not sys.flags.isolated:
    with open(os.environ["FLAGS"] + "/starts", "a") as file:
        file.write("again ")
    code = sys.orig_argv[sys.orig_argv.index("-c") + 1]
    words = [sys.executable, "-I", "-c", code, *sys.argv[1:]]
    raise SystemExit(subprocess.call(words))
site.addsitedir(packages)
"""


def test_a_hermes_that_insists_on_its_isolation_gets_it(today: Today) -> None:
    """It starts itself again until it is isolated. That it is not captured is said."""
    bootstrap = today.store.root / "hermes_bootstrap.py"
    text = bootstrap.read_text()
    bootstrap.write_text(text.replace("site.addsitedir(packages)\n", INSISTS))
    today.says([("text", "well ")])
    agent = today.world.run([today.command, "chat", "hello"])
    agent.wait_for("well ended True")
    assert agent.finish() == 0
    assert len((today.flags / "starts").read_text().split()) < 10
    assert short(today.world.messages("chat")) == [("user", "hello"), ("assistant", "well ")]
    assert b"could not be captured" in agent.errors


@pytest.mark.parametrize("shape", list(SHAPES)[:2])
def test_doctor_finds_a_class_that_has_moved(today: Today, shape: str) -> None:
    take(today, shape)
    done = today.world.call("doctor", "--json", "--", today.command)
    checks = json.loads(done.stdout)["checks"]
    found = [check for check in checks if check["name"] in ("agent", "capability")]
    assert {check["state"] for check in found} == {"ok"}, found
