"""What the Hermes adapter tells of classes that are shaped like those of 0.20 and 0.21."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hermes_supervise.agent_shim import sdk
from hermes_supervise.agent_shim.adapters import hermes, hermes_lookup
from hermes_supervise.agent_shim.adapters import hermes_conversation as conversations
from hermes_supervise.agent_shim.adapters.hermes_messages import is_scaffolding

Records = list[tuple[str, dict[str, Any]]]

databases: list[sqlite3.Connection] = []
"""Those that a test has open: it closes them when it ends, because Python 3.13 warns otherwise."""


@pytest.fixture(autouse=True)
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Records]:
    """Every record that a session says, instead of a line to a supervisor."""
    found: Records = []

    def tell(self: Any, kind: str, fields: dict[str, Any], *, soon: bool = False) -> None:
        found.append((kind, {"session": self.id, **fields}))

    monkeypatch.setattr(sdk.Session, "_send", tell)
    monkeypatch.setattr(sdk.Session, "_announce", lambda self: None)
    yield found
    conversations.leaving.clear()
    conversations.sources.clear()
    while databases:
        databases.pop().close()


class RowIds:
    """How a release tells the ids of the rows that it stored."""

    IN_THE_ROWS = "in the rows"
    IN_A_LIST = "in a list"
    NOWHERE = "nowhere"


def store(ids: str = RowIds.IN_THE_ROWS) -> Any:
    """A SessionDB as 0.20 has it, on a real database."""

    class SessionDB:
        db_path = "state.db"

        def __init__(self) -> None:
            self.db = sqlite3.connect(":memory:")
            databases.append(self.db)
            self.db.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY AUTOINCREMENT, content)")
            self.fails = False

        def append_messages_batch(
            self, session_id: str, messages: list[Any], chunk_rows: Any = None,
            row_ids_out: Any = None,
        ) -> int:  # fmt: skip
            if chunk_rows is not None and len(messages) > chunk_rows:
                parts = range(0, len(messages), chunk_rows)
                return sum(
                    self.append_messages_batch(session_id, messages[at : at + chunk_rows])
                    for at in parts
                )
            inserted, _ = self._insert_message_rows(self.db, session_id, messages)
            if ids == RowIds.IN_A_LIST and row_ids_out is not None:
                [[last]] = self.db.execute("SELECT max(id) FROM messages")
                row_ids_out += range(last - inserted + 1, last + 1)
            if self.fails:
                self.db.rollback()
                raise RuntimeError("locked")
            return inserted

        def _insert_message_rows(
            self, conn: Any, session_id: str, messages: list[Any]
        ) -> tuple[int, int]:
            inserted = 0
            for row in messages:
                if "_row_id" not in row:
                    cursor = conn.execute(
                        "INSERT INTO messages (content) VALUES (?)", (row["content"],)
                    )
                    inserted += 1
                    if ids == RowIds.IN_THE_ROWS:
                        row["_row_id"] = cursor.lastrowid
            return inserted, 0

        def publish_compression_child(self, *, messages: list[Any], **named: Any) -> None:
            if self.fails:
                raise RuntimeError("busy")

    return SessionDB


class Mixin:
    session_id = "chat"
    platform = "cli"
    result: Any = None
    during: Any = None

    def run_conversation(self, user_message: str, *args: Any, **named: Any) -> Any:
        if self.during is not None:
            self.during(self)
        return self.result

    def _persist_session(self, messages: list[Any], history: Any = None) -> None:
        pass

    def _create_request_openai_client(self, *, reason: str) -> None:
        pass

    def _compress_context(self, messages: list[Any]) -> Any:
        return messages, "a prompt"

    def hard_interrupt(self, message: str | None = None) -> None:
        pass


def agent(database: Any = None) -> Any:
    """An AIAgent whose methods are inherited, with a database, tapped."""
    module = ModuleType("agent.core")
    module.__dict__["AIAgent"] = type("AIAgent", (Mixin,), {})
    module.__dict__["SessionDB"] = database or store()
    hermes.loaded(module)
    made = module.__dict__["AIAgent"]()
    made._session_db = module.__dict__["SessionDB"]()
    return made


def messages(recorded: Records) -> list[tuple[str, object]]:
    return [
        (f["message"]["role"], f["message"]["content"]) for kind, f in recorded if kind == "message"
    ]


def settled(recorded: Records) -> list[tuple[list[str], list[Any]]]:
    return [(fields["uids"], fields["rows"]) for kind, fields in recorded if kind == "settled"]


def uids(recorded: Records) -> list[str]:
    return [fields["uid"] for kind, fields in recorded if kind == "message"]


def rows(*said: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in said]


TURN = (("user", "hello"), ("assistant", "yes"), ("assistant", "no"))


def speaks(ai_agent: Any) -> None:
    ai_agent._persist_session([{"role": role, "content": content} for role, content in TURN])


@pytest.mark.parametrize("ids", [RowIds.IN_THE_ROWS, RowIds.IN_A_LIST, RowIds.NOWHERE])
def test_a_batch_settles_its_messages_in_their_rows(recorded: Records, ids: str) -> None:
    ai_agent = agent(store(ids))

    def turn(ai_agent: Any) -> None:
        speaks(ai_agent)
        more = {"row_ids_out": []} if ids == RowIds.IN_A_LIST else {}
        ai_agent._session_db.append_messages_batch(session_id="chat", messages=rows(*TURN), **more)

    ai_agent.during = turn
    ai_agent.run_conversation("hello")
    assert messages(recorded) == list(TURN)
    assert settled(recorded) == [(uids(recorded), [1, 2, 3])]


def test_a_batch_in_parts_settles_each_message_once(recorded: Records) -> None:
    ai_agent = agent()

    def turn(ai_agent: Any) -> None:
        speaks(ai_agent)
        ai_agent._persist_session([*rows(*TURN), {"role": "user", "content": "not stored yet"}])
        ai_agent._session_db.append_messages_batch("chat", rows(*TURN), chunk_rows=2)

    ai_agent.during = turn
    ai_agent.run_conversation("hello")
    done = settled(recorded)
    assert [ids for _, ids in done] == [[1, 2], [3]]
    assert [uid for some, _ in done for uid in some] == uids(recorded)[:3]


def test_a_batch_that_fails_settles_nothing(recorded: Records) -> None:
    ai_agent = agent()

    def turn(ai_agent: Any) -> None:
        speaks(ai_agent)
        ai_agent._session_db.fails = True
        with pytest.raises(RuntimeError):
            ai_agent._session_db.append_messages_batch("chat", rows(*TURN))

    ai_agent.during = turn
    ai_agent.run_conversation("hello")
    assert settled(recorded) == []


def test_a_row_that_is_only_changed_settles_nothing_else(recorded: Records) -> None:
    ai_agent = agent()

    def turn(ai_agent: Any) -> None:
        speaks(ai_agent)
        changed = {"role": "assistant", "content": "an older answer", "_row_id": 77}
        assert ai_agent._session_db.append_messages_batch(
            "chat", [changed, *rows(("user", "hello"))]
        )

    ai_agent.during = turn
    ai_agent.run_conversation("hello")
    assert settled(recorded) == [(uids(recorded)[:1], [1])]


def test_rows_settle_the_message_with_the_same_text(recorded: Records) -> None:
    ai_agent = agent()

    def turn(ai_agent: Any) -> None:
        speaks(ai_agent)
        ai_agent._session_db.append_messages_batch("chat", rows(("assistant", "no")))

    ai_agent.during = turn
    ai_agent.run_conversation("hello")
    assert settled(recorded) == [([uids(recorded)[2]], [1])]


def test_a_message_that_was_stored_before_it_was_seen_is_reported_with_its_row(
    recorded: Records,
) -> None:
    ai_agent = agent()
    calls = [{"id": "call_a", "function": {"name": "terminal", "arguments": "{}"}}]
    earlier = {"role": "assistant", "content": "of an earlier turn", "_db_persisted": True}
    asks = {"role": "assistant", "content": "I look", "tool_calls": calls}
    answer = {"role": "tool", "content": "seen", "tool_call_id": "call_a"}

    def turn(ai_agent: Any) -> None:
        ai_agent._session_db.append_messages_batch("chat", [*rows(("user", "hello")), dict(asks)])
        stored = [*rows(("user", "hello")), earlier, {**asks, "_db_persisted": True}]
        ai_agent._persist_session(stored)
        ai_agent._persist_session(stored)
        stored.append(answer)
        ai_agent._persist_session(stored)

    ai_agent.during = turn
    ai_agent.run_conversation("hello")
    said = [("user", "hello"), ("assistant", "I look"), ("tool", "seen")]
    assert messages(recorded) == said
    question, asking, _ = uids(recorded)
    assert settled(recorded) == [([question], [1]), ([asking], [2])]


# -- turns -------------------------------------------------------------------------------------

BUSY = {"final_response": "busy", "messages": [], "api_calls": 0, "completed": False}


@pytest.mark.parametrize("how", [{"failed": True}, {"interrupted": True}])
def test_a_question_that_never_got_its_turn_is_taken_back(recorded: Records, how: Any) -> None:
    ai_agent = agent()
    ai_agent.result = {**BUSY, **how}
    assert ai_agent.run_conversation("hello") == ai_agent.result
    first, again = [fields for kind, fields in recorded if kind == "message"]
    assert "withdrawn" not in first
    assert (again["uid"], again["withdrawn"]) == (first["uid"], True)


def test_a_question_that_the_next_turn_is_given_is_kept_and_reported_once(
    recorded: Records,
) -> None:
    """A second message of the user's broke the wait for the session off. Hermes keeps the first in
    memory, and stores both in the next turn."""
    ai_agent = agent()
    kept = {"role": "user", "content": "hello", "_persist_after_admission_interrupt": True}
    ai_agent.result = {**BUSY, "interrupted": True, "messages": [kept]}
    ai_agent.run_conversation("hello")
    said = [kept, {"role": "user", "content": "and this"}]

    def turn(ai_agent: Any) -> None:
        ai_agent._persist_session(said)
        ai_agent._session_db.append_messages_batch("chat", [dict(message) for message in said])

    ai_agent.during, ai_agent.result = turn, {"completed": True}
    ai_agent.run_conversation("and this", conversation_history=[kept])
    assert messages(recorded) == [("user", "hello"), ("user", "and this")]
    assert settled(recorded) == [(uids(recorded), [1, 2])]


def test_a_question_that_hermes_worked_on_is_kept(recorded: Records) -> None:
    ai_agent = agent()
    ai_agent.result = {**BUSY, "failed": True}
    ai_agent.during = speaks
    ai_agent.run_conversation("hello")
    assert not any("withdrawn" in fields for _, fields in recorded)


def test_a_turn_that_moves_to_another_session_is_reported_there(recorded: Records) -> None:
    ai_agent = agent()

    def turn(ai_agent: Any) -> None:
        ai_agent.session_id = "the child"
        speaks(ai_agent)

    ai_agent.during = turn
    ai_agent.run_conversation("hello")
    kinds = [(kind, fields["session"], bool(fields.get("withdrawn"))) for kind, fields in recorded]
    assert kinds[:5] == [
        ("turn", "chat", False), ("message", "chat", False), ("message", "chat", True),
        ("rotated", "chat", False), ("message", "the child", False),
    ]  # fmt: skip
    contents = [content for _, content in messages(recorded)]
    assert contents == ["hello", "hello", "hello", "yes", "no"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_child_is_announced_before_it_is_published(recorded: Records, fails: bool) -> None:
    ai_agent = agent()

    def turn(ai_agent: Any) -> None:
        ai_agent._session_db.fails = fails
        try:
            ai_agent._session_db.publish_compression_child(
                parent_session_id="chat", child_session_id="child", source="cli",
                messages=rows(("user", "a summary")),
            )  # fmt: skip
        except RuntimeError:
            pass

    ai_agent.during = turn
    ai_agent.run_conversation("hello")
    about = [fields["becoming"] for kind, fields in recorded if kind == "session"]
    turned = [fields["new"] for kind, fields in recorded if kind == "rotated"]
    assert (about, turned) == (["child", None], []) if fails else (["child"], ["child"])


def test_a_signal_that_comes_by_a_hard_interrupt_is_known(recorded: Records) -> None:
    ai_agent = agent()
    ai_agent.during = lambda ai_agent: ai_agent.hard_interrupt("received signal 15")
    ai_agent.run_conversation("hello")
    assert recorded[-1] == ("turn", {"session": "chat", "phase": "broken off", "by": "signal"})
    before = list(recorded)
    ai_agent.run_conversation("received signal 15")
    assert recorded == before, "nobody said that"


def test_what_the_user_said_keeps_how_it_is_shown(recorded: Records) -> None:
    ai_agent = agent()
    ai_agent.run_conversation(
        "done", persist_user_display_kind="hidden", persist_user_display_metadata={"a": 1}
    )
    [fields] = [fields for kind, fields in recorded if kind == "message"]
    assert fields["message"] == {
        "role": "user", "content": "done", "display_kind": "hidden", "display_metadata": {"a": 1}
    }  # fmt: skip


def test_a_summary_is_known_as_one_in_its_row(recorded: Records) -> None:
    ai_agent = agent()
    said = {"role": "assistant", "content": "what was said", "_compressed_summary": True}
    ai_agent.during = lambda ai_agent: ai_agent._persist_session(
        [{"role": "user", "content": "hello"}, said]
    )
    ai_agent.run_conversation("hello")
    assert [f["message"] for kind, f in recorded if kind == "message"][1:] == [said]


@pytest.mark.parametrize(
    ("message", "made_up"),
    [
        ({"role": "user", "_dropped_toolcall_nudge": True}, True),
        ({"role": "user", "_empty_recovery_synthetic": True}, True),
        ({"role": "user", "_some_later_trick": True}, True),
        ({"role": "assistant", "_thinking_prefill": True}, True),
        ({"role": "assistant", "_length_continuation_fragment": True}, False),
        ({"role": "assistant", "_some_later_mark": True}, False),
        ({"role": "user", "_db_persisted": True, "_row_id": 4}, False),
        ({"role": "user", "_persist_after_admission_marker": True}, False),
        ({"role": "user", "_compressed_summary": True}, False),
        ({"role": "user", "_some_later_trick": False}, False),
        ({"role": "user", "_score": 3}, False),
        ({"role": "tool", "_tool_output_risk": {"high": 1}}, False),
        ({"role": "user", "content": "hello"}, False),
    ],
)
def test_messages_that_hermes_makes_up_are_recognised(message: Any, made_up: bool) -> None:
    assert is_scaffolding(message) is made_up


def test_where_hermes_has_a_rule_of_its_own_that_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = SimpleNamespace(_is_ephemeral_scaffolding=lambda message: "_its_own" in message)
    monkeypatch.setitem(__import__("sys").modules, "run_agent", rule)
    assert is_scaffolding({"role": "user", "_its_own": True})
    assert not is_scaffolding({"role": "user", "_some_later_trick": True})


# -- some methods are gone, and the requests to the model tell what is missing ------------------


CALL = {"id": "call_a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
WITH_A_TOOL: list[dict[str, Any]] = [
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "I look", "tool_calls": [CALL]},
    {"role": "tool", "content": "seen", "tool_call_id": "call_a"},
]


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "lacks", [lambda capability: True])


@pytest.mark.parametrize("tapped", [True, False])
def test_a_request_is_of_the_agent_whose_thread_sends_it(lacking: None, tapped: bool) -> None:
    def asks(name: str) -> Any:
        ai_agent = agent()
        ai_agent.session_id = name
        conversation = hermes_lookup.of(ai_agent)
        assert conversation is not None
        conversation.model_asked(WITH_A_TOOL[:1])
        return ai_agent

    agents = [asks("one"), asks("two"), asks("review")]
    agents[2]._persist_disabled = True

    def sends(ai_agent: Any) -> Any:
        with ThreadPoolExecutor(1) as thread:
            if ai_agent is not None:
                thread.submit(ai_agent._create_request_openai_client, reason="a request").result()
            question = WITH_A_TOOL[:1]
            return thread.submit(hermes_lookup.asked, question, turns_are_tapped=tapped).result()

    assert [sends(ai_agent).session.id for ai_agent in agents[:2]] == ["one", "two"]
    assert isinstance(sends(agents[2]), hermes_lookup.Unfollowed)
    assert sends(None) is None, "each of them may have asked it"


def test_a_question_that_a_request_reported_is_not_reported_again(
    lacking: None, recorded: Records
) -> None:
    conversation = hermes_lookup.of(agent())
    assert conversation is not None
    conversation.model_asked(WITH_A_TOOL[:1])
    conversation.follow(WITH_A_TOOL[:2])
    assert messages(recorded) == [("user", "hello"), ("assistant", "I look")]


def test_a_request_after_a_rotation_tells_nothing_again(lacking: None, recorded: Records) -> None:
    conversation = hermes_lookup.of(agent())
    assert conversation is not None
    conversation.model_asked(WITH_A_TOOL[:1])
    conversation.follow(WITH_A_TOOL)
    conversation.rotate("next", [{"role": "assistant", "content": "a summary"}, *WITH_A_TOOL])
    before = messages(recorded)
    conversation.model_asked([{"role": "assistant", "content": "a summary"}, *WITH_A_TOOL])
    assert messages(recorded) == before


def test_what_is_new_is_reported_before_it_is_compressed(lacking: None, recorded: Records) -> None:
    ai_agent = agent()
    ai_agent.during = lambda ai_agent: ai_agent._compress_context(list(WITH_A_TOOL))
    ai_agent.run_conversation("hello")
    assert messages(recorded) == [("user", "hello"), ("assistant", "I look"), ("tool", "seen")]


def test_capabilities_hold_by_the_first_way_that_is_there() -> None:
    ways = {"words": [("A.best",), ("A.second", "A.third")], "ends": [("A.end",)]}
    held = hermes.Capabilities(ways)  # type: ignore[arg-type]
    assert held.missing() == ["words", "ends"]
    held.tapped("A.second")
    assert not held.at_its_best("words")
    held.tapped("A.third")
    assert held.held() == {"words": "A.second, A.third", "ends": None}
    held.tapped("A.best")
    held.otherwise("ends", lambda: "somebody else")
    assert held.held() == {"words": "A.best", "ends": "somebody else"}
    assert not held.at_its_best("ends")
