"""The tables of state.db, for agents that have no code of their own to make them, and the form
that values have in them.

Never touches a file whose tables Hermes made. The columns are the oldest set that every Hermes
release accepts; a newer one adds its own when it opens the file. The search index is created here
as well: some releases index only what is written after they made it. Version 16 is written because
Hermes, upgrading anything older, hides untitled sessions with tools.
"""

from __future__ import annotations

from ...ipc.lightweight import json
from ...ipc.records import DEEPEST, bounded
from ..model import text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VERSION = 16

_CONTENT_AS_JSON = "\x00json:"

_SESSIONS = """
CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    source TEXT NOT NULL,
    user_id TEXT,
    model TEXT,
    model_config TEXT,
    system_prompt TEXT,
    parent_session_id TEXT REFERENCES sessions(id),
    started_at REAL NOT NULL,
    ended_at REAL,
    end_reason TEXT,
    message_count INTEGER DEFAULT 0,
    tool_call_count INTEGER DEFAULT 0,
    input_tokens INTEGER DEFAULT 0,
    output_tokens INTEGER DEFAULT 0,
    cache_read_tokens INTEGER DEFAULT 0,
    cache_write_tokens INTEGER DEFAULT 0,
    reasoning_tokens INTEGER DEFAULT 0,
    billing_provider TEXT,
    billing_base_url TEXT,
    billing_mode TEXT,
    estimated_cost_usd REAL,
    actual_cost_usd REAL,
    cost_status TEXT,
    cost_source TEXT,
    pricing_version TEXT,
    title TEXT,
    api_call_count INTEGER DEFAULT 0,
    handoff_state TEXT,
    handoff_platform TEXT,
    handoff_error TEXT,
    cwd TEXT
)
"""

_MESSAGES = """
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL REFERENCES sessions(id),
    role TEXT NOT NULL,
    content TEXT,
    tool_call_id TEXT,
    tool_calls TEXT,
    tool_name TEXT,
    timestamp REAL NOT NULL,
    token_count INTEGER,
    finish_reason TEXT,
    reasoning TEXT,
    reasoning_content TEXT,
    reasoning_details TEXT,
    codex_reasoning_items TEXT,
    codex_message_items TEXT,
    active INTEGER NOT NULL DEFAULT 1,
    effect_disposition TEXT
)
"""

META = "CREATE TABLE IF NOT EXISTS state_meta (key TEXT PRIMARY KEY, value TEXT)"


def statements() -> list[str]:
    """Everything to run, in order, on a file without a sessions table."""
    sql = [
        _SESSIONS,
        _MESSAGES,
        "CREATE INDEX idx_messages_session ON messages(session_id, timestamp)",
        "CREATE UNIQUE INDEX idx_sessions_title_unique ON sessions(title) WHERE title IS NOT NULL",
        META,
    ]
    sql += _search_index("messages_fts", "")
    sql += _search_index("messages_fts_trigram", ", tokenize='trigram'")
    sql += [
        "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)",
        f"INSERT INTO schema_version SELECT {VERSION} "
        "WHERE NOT EXISTS (SELECT 1 FROM schema_version)",
        f"UPDATE schema_version SET version = {VERSION} WHERE version < {VERSION}",
    ]
    return sql


def _search_index(table: str, tokenizer: str) -> list[str]:
    text = " || ' ' || ".join(
        f"coalesce(new.{column}, '')" for column in ("content", "tool_name", "tool_calls")
    )
    add = f"INSERT INTO {table}(rowid, content) VALUES (new.id, {text});"
    drop = f"DELETE FROM {table} WHERE rowid = old.id;"
    return [
        f"CREATE VIRTUAL TABLE IF NOT EXISTS {table} USING fts5(content{tokenizer})",
        f"CREATE TRIGGER IF NOT EXISTS {table}_insert AFTER INSERT ON messages BEGIN {add} END",
        f"CREATE TRIGGER IF NOT EXISTS {table}_delete AFTER DELETE ON messages BEGIN {drop} END",
        f"CREATE TRIGGER IF NOT EXISTS {table}_update AFTER UPDATE ON messages "
        f"BEGIN {drop} {add} END",
    ]


def encoded(name: str, value: Any) -> Any:
    """A value in the form Hermes stores it in."""
    if isinstance(value, str):
        return text.storable(value)
    if isinstance(value, list | dict | tuple):
        if name == "tool_calls" and not value:
            return None
        as_json = json.dumps(value)
        return _CONTENT_AS_JSON + as_json if name == "content" else as_json
    if isinstance(value, bool):
        return int(value)
    if value is None or isinstance(value, float) or (isinstance(value, int) and _fits(value)):
        return value
    return text.storable(str(value))


def _fits(number: int) -> bool:
    return -(2**63) <= number < 2**63


def is_time(value: Any) -> bool:
    """True if the column can hold it: NaN would be stored as NULL."""
    return isinstance(value, int | float) and 0 <= value < 2**53


def decoded(content: Any) -> Any:
    if isinstance(content, str) and content.startswith(_CONTENT_AS_JSON):
        return from_json(content[len(_CONTENT_AS_JSON) :])
    return content


def from_json(value: Any) -> Any:
    """JSON that somebody put into the file; None if it is none. Its depth is bounded."""
    if not isinstance(value, str):
        return None
    try:
        parsed = json.loads(value)
    except ValueError:
        return None
    return bounded(parsed) if value.count("[") + value.count("{") > DEEPEST else parsed
