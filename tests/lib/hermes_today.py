"""A stand-in of today's Hermes, with the parts that no installed release can be rebuilt to have.

Written from what is known about 0.21, with none of its code: a bare Python behind two launchers, a
bootstrap that replaces PYTHONPATH, every class made of mixins, a turn under a lease, messages
stored in batches of a few rows, a rotation in one transaction in a thread of its own, signals by
`hard_interrupt`, hooks that are awaited. It has no model: it follows a script, and stops where that
says "hold".
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hermes_launchers import Store
from support import World, until

MODULES = {
    "hermes_cli/__init__.py": '__version__ = "0.21.3"\n',
    "hermes_cli/config.py": "def load_config():\n    return {}\n",
    "hermes_cli/env_loader.py": "def load_hermes_dotenv():\n    pass\n",
    "hermes_cli/plugins_dispatch.py": """
import asyncio, inspect

class PluginDispatchMixin:
    def invoke_hook(self, hook_name, **named):
        for callback in self._hooks.get(hook_name, ()):
            result = callback(**named)
            if inspect.isawaitable(result):
                asyncio.run(_await(result))

async def _await(result):
    await result
""",
    "hermes_cli/plugins.py": """
import os, runpy
from hermes_cli.plugins_dispatch import PluginDispatchMixin

class PluginLoaderMixin:
    def load(self):
        self._hooks = {}
        folder = os.path.join(os.environ["HERMES_HOME"], "plugins")
        for name in sorted(os.listdir(folder) if os.path.isdir(folder) else ()):
            runpy.run_path(os.path.join(folder, name, "__init__.py"))["register"](self)

    def register_hook(self, name, callback):
        self._hooks.setdefault(name, []).append(callback)

class PluginManager(PluginLoaderMixin, PluginDispatchMixin):
    pass

_manager = PluginManager()
discover_plugins = _manager.load

def get_plugin_manager():
    return _manager
""",
    "hermes_state_messages.py": """
import json, time

class SessionMessagesMixin:
    def append_messages_batch(self, session_id, messages, turn_lease_holder=None, chunk_rows=None):
        if chunk_rows is not None and len(messages) > chunk_rows:
            return sum(
                self.append_messages_batch(
                    session_id=session_id, messages=messages[at : at + chunk_rows],
                    turn_lease_holder=turn_lease_holder)
                for at in range(0, len(messages), chunk_rows))
        with self.transaction():
            return self._insert_message_rows(self.db, session_id, messages)[0]

    def _insert_message_rows(self, conn, session_id, messages):
        for row in messages:
            calls = row.get("tool_calls")
            row["_row_id"] = conn.execute(
                "INSERT INTO messages (session_id, role, content, tool_calls, tool_call_id, "
                "timestamp) VALUES (?, ?, ?, ?, ?, ?)",
                (session_id, row["role"], row["content"], json.dumps(calls) if calls else None,
                 row.get("tool_call_id"), time.time())).lastrowid
        return len(messages), 0

    def replace_messages(self, session_id, messages):
        with self.transaction():
            self.db.execute("DELETE FROM messages WHERE session_id = ?", (session_id,))
            self._insert_message_rows(self.db, session_id, messages)

    def get_messages_as_conversation(self, session_id):
        rows = self.db.execute("SELECT role, content, tool_calls, tool_call_id FROM messages "
                               "WHERE session_id = ? ORDER BY id", (session_id,))
        names = ("role", "content", "tool_calls", "tool_call_id")
        found = [dict(zip(names, row), _db_persisted=True) for row in rows]
        return [{**row, "tool_calls": json.loads(row["tool_calls"] or "null")} for row in found]
""",
    "hermes_state_sessions.py": """
import time

class SessionSessionsMixin:
    def create_session(self, session_id, source, **named):
        with self.transaction():
            self.db.execute("INSERT OR IGNORE INTO sessions (id, source, started_at, "
                            "parent_session_id) VALUES (?, ?, ?, ?)",
                            (session_id, source, time.time(), named.get("parent_session_id")))

    def end_session(self, session_id, end_reason):
        with self.transaction():
            self.db.execute("UPDATE sessions SET ended_at = ?, end_reason = ? WHERE id = ? AND "
                            "ended_at IS NULL", (time.time(), end_reason, session_id))

    def reopen_session(self, session_id):
        with self.transaction():
            self.db.execute("UPDATE sessions SET ended_at = NULL, end_reason = NULL WHERE id = ?",
                            (session_id,))

    def exists(self, session_id):
        query = "SELECT 1 FROM sessions WHERE id = ?"
        return self.db.execute(query, (session_id,)).fetchone() is not None

    def acquire_session_turn_lease(self, session_id, holder):
        now = time.time()
        with self.transaction():
            self.db.execute("DELETE FROM session_turn_leases WHERE expires_at < ?", (now,))
            self.db.execute("INSERT OR IGNORE INTO session_turn_leases VALUES (?, ?, ?, ?)",
                            (session_id, holder, now, now + 300))
            [[found]] = self.db.execute("SELECT holder FROM session_turn_leases WHERE "
                                        "conversation_id = ?", (session_id,))
        return found == holder

    def release_session_turn_lease(self, session_id, holder):
        with self.transaction():
            self.db.execute("DELETE FROM session_turn_leases WHERE conversation_id = ? AND "
                            "holder = ?", (session_id, holder))
""",
    "hermes_state_compression.py": """
import time
from script import stop

class SessionCompressionMixin:
    def publish_compression_child(self, *, parent_session_id, child_session_id, source, messages):
        stop("before it is published")
        with self.transaction():
            self.db.execute("UPDATE sessions SET ended_at = ?, end_reason = 'compression' "
                            "WHERE id = ?", (time.time(), parent_session_id))
            self.db.execute("INSERT INTO sessions (id, source, started_at, parent_session_id) "
                            "VALUES (?, ?, ?, ?)",
                            (child_session_id, source, time.time(), parent_session_id))
            self._insert_message_rows(self.db, child_session_id, messages)
            stop("inside the transaction")
        stop("after the transaction")
""",
    "hermes_state.py": """
import contextlib, os, sqlite3, threading
from pathlib import Path
from hermes_state_compression import SessionCompressionMixin
from hermes_state_messages import SessionMessagesMixin
from hermes_state_sessions import SessionSessionsMixin

SCHEMA = '''
CREATE TABLE IF NOT EXISTS schema_version (version INTEGER);
CREATE TABLE IF NOT EXISTS state_meta (key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE IF NOT EXISTS sessions (
    id TEXT PRIMARY KEY, source TEXT NOT NULL, started_at REAL NOT NULL, ended_at REAL,
    end_reason TEXT, parent_session_id TEXT REFERENCES sessions(id), model TEXT, title TEXT,
    message_count INTEGER DEFAULT 0, tool_call_count INTEGER DEFAULT 0, profile_name TEXT,
    hidden INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL REFERENCES sessions(id),
    role TEXT NOT NULL, content TEXT, tool_calls TEXT, tool_call_id TEXT, tool_name TEXT,
    timestamp REAL NOT NULL, finish_reason TEXT, reasoning TEXT, effect_disposition TEXT,
    display_kind TEXT, display_identity BLOB, display_order INTEGER,
    active INTEGER NOT NULL DEFAULT 1, _compressed_summary INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS session_turn_leases (
    conversation_id TEXT PRIMARY KEY, holder TEXT, acquired_at REAL, expires_at REAL);
CREATE TRIGGER IF NOT EXISTS messages_display_order AFTER INSERT ON messages
    WHEN new.display_order IS NULL
    BEGIN UPDATE messages SET display_order = new.id WHERE id = new.id; END;
'''

class SessionDB(SessionMessagesMixin, SessionSessionsMixin, SessionCompressionMixin):
    def __init__(self, db_path=None):
        self.db_path = Path(db_path or os.environ["HERMES_HOME"] + "/state.db")
        self.lock = threading.RLock()
        self.db = sqlite3.connect(self.db_path, isolation_level=None, check_same_thread=False)
        self.db.executescript(SCHEMA)
        if not self.db.execute("SELECT 1 FROM schema_version").fetchone():
            self.db.execute("INSERT INTO schema_version VALUES (30)")

    @contextlib.contextmanager
    def transaction(self):
        with self.lock:
            self.db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self.db.execute("ROLLBACK")
                raise
            self.db.execute("COMMIT")

    def close(self):
        self.db.close()
""",
    # What a model would say, and where to stop; "hold" and "tool" stop there.
    "script.py": """
import json, os, time

def stop(name):
    if os.environ.get("STOP") == name:
        hold(name)

def hold(name):
    open(os.path.join(os.environ["FLAGS"], name), "w").close()
    while True:
        time.sleep(0.01)

def answers():
    with open(os.path.join(os.environ["FLAGS"], "script.json")) as file:
        return json.load(file)
""",
    "agent/__init__.py": "",
    "agent/lazy_forward.py": """
import functools, importlib

def forward(module, name):
    def forwarder(self, *args, **named):
        return getattr(importlib.import_module(module), name)(self, *args, **named)
    forwarder.__name__ = name
    return forwarder
""",
    "agent/agent_runtime_helpers.py": """
import script

def invoke_tool(agent, function_name, function_args, effective_task_id, tool_call_id=None):
    if function_args.get("hold"):
        script.hold("tool")
    return f"result of {tool_call_id}"
""",
    "agent/interrupt_control.py": """
class InterruptControlMixin:
    def interrupt(self, message=None, *, hard_cancel=False):
        self._interrupt_message = message
        return True

    def hard_interrupt(self, message=None):
        InterruptControlMixin.interrupt(self, message, hard_cancel=True)
""",
    "agent/stream_delivery.py": """
class StreamDeliveryMixin:
    @property
    def _current_streamed_assistant_text(self):
        return "".join(self.__dict__.get("_parts", ()))

    @_current_streamed_assistant_text.setter
    def _current_streamed_assistant_text(self, value):
        self._parts = [value] if value else []

    def _reset_stream_delivery_tracking(self):
        self._current_streamed_assistant_text = ""

    def _fire_stream_delta(self, text):
        self._parts.append(text)
        print(text, end="", flush=True)

    def _fire_reasoning_delta(self, text):
        pass

    def _stream_writer_superseded(self):
        return False
""",
    "agent/session_persistence.py": """
class SessionPersistenceMixin:
    def _persist_session(self, messages, conversation_history=None):
        self._flush_messages_to_session_db(messages, conversation_history)

    def _flush_messages_to_session_db(self, messages, conversation_history=None):
        new = [message for message in messages if not message.get("_db_persisted")]
        names = ("role", "content", "tool_calls", "tool_call_id")
        rows = [{name: message.get(name) for name in names} for message in new]
        if rows:
            self._session_db.append_messages_batch(
                session_id=self.session_id, messages=rows, turn_lease_holder=self._holder,
                chunk_rows=2)
        for message, row in zip(new, rows):
            message["_db_persisted"], message["_row_id"] = True, row["_row_id"]
""",
    "agent/compression_facade.py": """
import concurrent.futures, copy
from script import stop

class CompressionFacadeMixin:
    def _compress_context(self, messages, system_message, *, approx_tokens=None, force=False):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            return pool.submit(self._compress, copy.deepcopy(messages)).result(), system_message

    def _compress(self, messages):
        stop("while it is summed up")
        shorter = [{"role": "user", "content": "a summary", "_compressed_summary": True},
                   *messages[-2:]]
        names = ("role", "content", "tool_calls", "tool_call_id")
        child = self.session_id + "-child"
        self._session_db.publish_compression_child(
            parent_session_id=self.session_id, child_session_id=child, source=self.platform,
            messages=[{name: message.get(name) for name in names} for message in shorter])
        self.session_id = child
        return [{**message, "_db_persisted": True} for message in shorter]
""",
    "agent/turn_facade.py": """
import os, script, types

class TurnFacadeMixin:
    def run_conversation(self, user_message, system_message=None, conversation_history=None):
        self._holder = f"pid={os.getpid()}:turn={self.session_id}:t:01234567:platform=cli"
        lease = self._session_db.exists(self.session_id)
        held = self.session_id
        if lease and not self._session_db.acquire_session_turn_lease(held, self._holder):
            return {"final_response": "busy", "messages": list(conversation_history or ()),
                    "api_calls": 0, "completed": False, "failed": True,
                    "failure_reason": "session_busy"}
        # Another process has rotated the session meanwhile: the turn goes on in its continuation.
        self.session_id = os.environ.get("CONTINUED_AS", held)
        try:
            return self._run(user_message, list(conversation_history or ()))
        finally:
            if lease:
                self._session_db.release_session_turn_lease(held, self._holder)

    def _run(self, user_message, messages):
        self._session_db.create_session(self.session_id, self.platform)
        messages.append({"role": "user", "content": user_message})
        self._persist_session(messages)
        for answer in script.answers():
            messages, asks = self._answer(answer, messages)
            if asks.tool_calls:
                self._execute_tool_calls(asks, messages, "task")
            self._persist_session(messages)
        return {"final_response": "", "messages": messages, "completed": True, "api_calls": 1}

    def _answer(self, steps, messages):
        self._reset_stream_delivery_tracking()
        calls = []
        for kind, what in steps:
            if kind == "rotate":
                messages, _ = self._compress_context(messages, "prompt", approx_tokens=1)
            elif kind == "hold":
                script.hold(what)
            elif kind == "text":
                self._fire_stream_delta(what)
            elif kind == "reasoning":
                self._fire_reasoning_delta(what)
            else:
                name, id, arguments = what
                calls.append({"id": id, "type": "function",
                              "function": {"name": name, "arguments": arguments}})
        text = self._current_streamed_assistant_text
        if text or calls:
            messages.append({"role": "assistant", "content": text, "tool_calls": calls or None})
        return messages, types.SimpleNamespace(tool_calls=calls)
""",
    "run_agent.py": """
import json, os
import of_the_dependencies
from agent.compression_facade import CompressionFacadeMixin
from agent.interrupt_control import InterruptControlMixin
from agent.lazy_forward import forward
from agent.session_persistence import SessionPersistenceMixin
from agent.stream_delivery import StreamDeliveryMixin
from agent.turn_facade import TurnFacadeMixin

class AIAgent(TurnFacadeMixin, StreamDeliveryMixin, SessionPersistenceMixin,
              CompressionFacadeMixin, InterruptControlMixin):
    model = "scripted"

    def __init__(self, session_id, session_db):
        self.session_id, self._session_db = session_id, session_db
        self.platform = os.environ.get("PLATFORM", "cli")

    _invoke_tool = forward("agent.agent_runtime_helpers", "invoke_tool")

    def _execute_tool_calls(self, assistant_message, messages, effective_task_id, api_call_count=0):
        for call in assistant_message.tool_calls:
            arguments = json.loads(call["function"]["arguments"])
            result = self._invoke_tool(call["function"]["name"], arguments, effective_task_id,
                                       call["id"])
            messages.append({"role": "tool", "content": result, "tool_call_id": call["id"]})
""",
    "hermes_cli/main.py": """
import os, signal, subprocess, sys

class Leaving(BaseException):
    pass

def main():
    words = sys.argv[1:]
    if words[:1] == ["serve"]:
        from hermes_cli.child import started
        raise SystemExit(subprocess.call(started(words[1:])))
    from hermes_cli.plugins import discover_plugins, get_plugin_manager
    from hermes_state import SessionDB
    from run_agent import AIAgent
    discover_plugins()
    manager = get_plugin_manager()
    name, question = words
    db = SessionDB()
    agent = AIAgent(name, db)
    history = db.get_messages_as_conversation(name)
    if history:
        db.reopen_session(name)

    def interrupt(number, frame):
        agent.hard_interrupt(f"received signal {number}")
        raise Leaving

    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGHUP, interrupt)
    result = {}
    try:
        result = agent.run_conversation(question, conversation_history=history)
    except Leaving:
        manager.invoke_hook("on_session_end", session_id=agent.session_id, completed=False,
                            interrupted=True, reason="keyboard_interrupt")
    print("ended", result.get("failure_reason") or result.get("completed"), flush=True)
    if not os.environ.get("LEAVES_OPEN"):  # as `chat -q` did before 0.20.4
        db.end_session(agent.session_id, "cli_close")
    manager.invoke_hook("on_session_finalize", session_id=agent.session_id, reason="shutdown")
    return 0 if result or os.environ.get("LEAVES_OPEN") else 130

if __name__ == "__main__":
    sys.exit(main())
""",
}

LEDGER = """
import json

def register(ctx):
    for name in ("on_session_end", "on_session_finalize"):
        async def called(_name=name, **kw):
            with open({path!r}, "a") as file:
                file.write(json.dumps([_name, kw["session_id"], kw.get("reason")]) + "\\n")
        ctx.register_hook(name, called)
"""


class Today:
    """The stand-in, installed in a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        packages = world.folder / "dependencies"
        packages.mkdir()
        (packages / "hermes_bootstrap.py").touch()
        (packages / "of_the_dependencies.py").touch()
        self.flags = world.folder / "flags"
        self.flags.mkdir()
        world.env["FLAGS"] = str(self.flags)
        self.store = Store(world, packages)
        child = (
            f"def started(words):\n    return [*{self.store.child('hermes_cli.main')!r}, *words]\n"
        )
        for name, text in {**MODULES, "hermes_cli/child.py": child}.items():
            path = self.store.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        world.home.mkdir(exist_ok=True)
        self.command = self.store.command
        self._ledger = world.folder / "plugin.jsonl"
        plugin = world.home / "plugins" / "ledger" / "__init__.py"
        plugin.parent.mkdir(parents=True)
        plugin.write_text(LEDGER.format(path=str(self._ledger)))

    def says(self, *answers: list[tuple[str, Any]]) -> None:
        (self.flags / "script.json").write_text(json.dumps(answers))

    def wait_until_held(self, name: str) -> None:
        until((self.flags / name).exists, f"it has come to {name!r}")
        (self.flags / name).unlink()

    def hooks(self) -> list[list[str]]:
        """Name, session and reason of each that ran."""
        path: Path = self._ledger
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
