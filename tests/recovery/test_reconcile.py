"""Reconciliation: whatever part of a transcript is stored, the plan makes it whole (G1, G6)."""

from __future__ import annotations

from typing import Any

import pytest
from hermes_supervise.supervisor.model.stream import Session
from hermes_supervise.supervisor.recovery.replay import replay
from hermes_supervise.supervisor.statedb.reconcile import (
    NEVER_STARTED,
    RESULT_UNKNOWN,
    Counts,
    Row,
    plan,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import (
    SPEAKING,
    START,
    Agent,
    Move,
    called,
    inserted,
    moves,
    row_of,
    stream,
    transcript,
)

DIED = START + 1_000_000
LIFE = moves(*SPEAKING, "announce", "rewrite", "again", most=50)


def lived(life: list[Move], *, older: bool = False) -> Agent:
    agent = Agent(orderly=True)
    if older:
        # An earlier conversation under the same ids, in the same few words.
        for id in agent.names:
            on = agent._conversation(id)
            for role, word in (("user", "ok"), ("assistant", "yes"), ("user", "ok")):
                message = {"role": role, "content": word}
                on.rows.append(row_of(agent._row(), message, START - 3600))
            on.kept_rows = len(on.rows)
    for move in [("announce", 0, 0, ""), ("announce", 1, 0, ""), *life]:
        agent.play(move)
    return agent


def sessions(agent: Agent) -> list[tuple[Session, list[Row]]]:
    replayed = replay(agent.frames)
    assert not replayed.bad_records and not replayed.gaps
    return [(session, agent.conversations[id].rows) for id, session in replayed.sessions.items()]


# -- the promise -----------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(LIFE, st.booleans())
def test_rows_and_plan_together_are_exactly_the_transcript(life: list[Move], older: bool) -> None:
    agent = lived(life, older=older)
    for session, rows in sessions(agent):
        on = agent.conversations[session.id]
        whole = inserted(rows, plan(session, rows, DIED))
        assert transcript(whole[on.kept_rows :]) == agent.expected(on)
        assert whole[: len(rows)] == rows


@settings(max_examples=120, deadline=None)
@given(LIFE)
def test_a_plan_that_was_applied_leaves_nothing_to_do(life: list[Move]) -> None:
    for session, rows in sessions(lived(life)):
        first = plan(session, rows, DIED)
        assert plan(session, rows, DIED) == first, "the same again"
        assert plan(session, inserted(rows, first), DIED) == []


# -- cases by name ---------------------------------------------------------------------------


def session_of(*records: dict[str, Any]) -> Session:
    """The one session that these records tell of."""
    opened = {"kind": "session", "at": START}
    full = [
        {"session": "s", "at": START + i, **record} for i, record in enumerate((opened, *records))
    ]
    said = replay(stream(*full))
    assert not said.bad_records
    return said.sessions["s"]


def said(
    role: str, content: str | None = None, uid: str | None = None, **more: Any
) -> dict[str, Any]:
    message = {"role": role, "content": content, **more}
    return {"kind": "message", "uid": uid, "message": message}


def rows(*messages: dict[str, Any], at: float = START + 1, first: int = 1) -> list[Row]:
    return [row_of(first + i, m.get("message", m), at) for i, m in enumerate(messages)]


def short(session: Session, there: list[Row]) -> list[tuple[str, Any, str]]:
    found = plan(session, there, DIED)
    return [(insert.message["role"], insert.message["content"], insert.kind) for insert in found]


OK = said("user", "ok")


def test_an_empty_stream_inserts_nothing() -> None:
    assert plan(session_of(), [], DIED) == []


@pytest.mark.parametrize("stored", range(5))
@pytest.mark.parametrize("settled", ["in rows", "somewhere", "not said"])
def test_the_same_word_said_four_times_is_there_four_times(stored: int, settled: str) -> None:
    sent = [said("user", "ok", uid=f"u{i}") for i in range(4)]
    done: dict[str, Any] = {"kind": "settled", "uids": [f"u{i}" for i in range(stored)]}
    if settled == "in rows":
        done["rows"] = list(range(1, stored + 1))
    session = session_of(*sent, *([] if settled == "not said" else [done]))
    assert len(plan(session, rows(*sent[:stored]), DIED)) == 4 - stored


def test_an_older_conversation_in_the_same_words_is_not_this_one() -> None:
    session = session_of(OK, said("assistant", "yes"))
    older = rows(OK, said("assistant", "yes"), at=START - 60)
    assert [w[:2] for w in short(session, older)] == [("user", "ok"), ("assistant", "yes")]
    newer = rows(OK, first=3)
    assert [w[:2] for w in short(session, older + newer)] == [("assistant", "yes")]


def test_a_row_made_a_moment_before_the_announcement_is_this_one() -> None:
    assert plan(session_of(OK), rows(OK, at=START - 0.5), DIED) == []


def test_rows_the_agent_rewrote_are_not_matched_with_later_messages() -> None:
    session = session_of(OK, {"kind": "rewritten"}, OK)
    assert short(session, rows(OK, at=START + 1.5)) == [("user", "ok", "message")]
    assert short(session, rows(OK, at=START + 1.5) + rows(OK, at=START + 4, first=2)) == []


def test_a_partial_reply_holds_exactly_what_was_streamed() -> None:
    pieces = [{"kind": "delta", "text": " Wor"}, {"kind": "delta", "reasoning": "why"}]
    session = session_of(OK, *pieces, {"kind": "delta", "text": "d \n"})
    [_, partial] = plan(session, [], DIED)
    assert partial.message["content"] == " Word \n"
    assert partial.message["reasoning"] == "why"
    assert partial.message["finish_reason"] == "interrupted"
    counts = Counts()
    counts.add(partial)
    assert (counts.messages, counts.partial_characters) == (1, 7)


@pytest.mark.parametrize(
    "stored",
    [
        said("assistant", "Hello wor"),
        said("assistant", "Hello world, and all the rest"),
        said("assistant", "Hello"),
        said("assistant", "Hello world and a call", tool_calls=called("c1")),
    ],
)
def test_a_partial_reply_never_stands_beside_what_the_agent_stored_of_it(
    stored: dict[str, Any],
) -> None:
    session = session_of(OK, {"kind": "delta", "text": "Hello wor"})
    assert plan(session, rows(OK, stored), DIED) == []


def test_another_reply_is_not_the_partial_one() -> None:
    session = session_of(OK, {"kind": "delta", "text": "Hello"})
    found = short(session, rows(OK, said("assistant", "Good bye")))
    assert found == [("assistant", "Hello", "partial")]


def test_a_complete_reply_takes_the_place_of_its_pieces() -> None:
    session = session_of(OK, {"kind": "delta", "text": "Hel"}, said("assistant", "Hello"))
    assert short(session, rows(OK)) == [("assistant", "Hello", "message")]


def test_each_open_call_is_answered_with_what_is_known_of_it() -> None:
    session = session_of(
        said("assistant", None, tool_calls=called("a", "b", "c", "d")),
        {"kind": "tool", "phase": "start", "call": "a"},
        {"kind": "tool", "phase": "start", "call": "b"},
        {"kind": "tool", "phase": "end", "call": "b", "result": "b is done"},
        {"kind": "tool", "phase": "start", "call": "d"},
        said("tool", "d is done", tool_call_id="d"),
    )
    found = plan(session, [], DIED)
    answers = {i.message["tool_call_id"]: (i.message["content"], i.kind) for i in found[1:]}
    assert answers == {
        "a": (RESULT_UNKNOWN, "unknown"),
        "b": ("b is done", "result"),
        "c": (NEVER_STARTED, "never started"),
        "d": ("d is done", "message"),
    }
    effects = {i.message["tool_call_id"]: i.message.get("effect_disposition") for i in found[1:]}
    assert effects == {"a": "unknown", "b": None, "c": "none", "d": None}


def test_a_call_of_an_agent_that_never_announces_them_may_have_run() -> None:
    session = session_of(said("assistant", None, tool_calls=called("a")))
    assert short(session, [])[1] == ("tool", RESULT_UNKNOWN, "unknown")


def test_open_calls_are_answered_in_their_place() -> None:
    session = session_of(
        said("assistant", None, tool_calls=called("a", "b")),
        said("tool", "b", tool_call_id="b"),
        said("user", "never mind"),
        {"kind": "delta", "text": "Fine"},
    )
    found = [(i.message["role"], i.message.get("tool_call_id")) for i in plan(session, [], DIED)]
    assert found == [
        ("assistant", None), ("tool", "b"), ("tool", "a"), ("user", None), ("assistant", None),
    ]  # fmt: skip


def test_a_call_the_agent_went_on_without_is_not_answered_behind_its_back() -> None:
    batch = said("assistant", None, tool_calls=called("a"))
    session = session_of(batch, said("user", "never mind"))
    assert plan(session, rows(batch, said("user", "never mind")), DIED) == []


def test_an_answer_the_agent_stored_and_did_not_tell_is_enough() -> None:
    batch = said("assistant", None, tool_calls=called("a"))
    answer = {"role": "tool", "content": "done", "tool_call_id": "a"}
    assert plan(session_of(batch), rows(batch, answer), DIED) == []


def test_parallel_answers_stored_in_another_order_are_there() -> None:
    batch = said("assistant", None, tool_calls=called("a", "b"))
    a = said("tool", "a", uid="a", tool_call_id="a")
    b = said("tool", "b", uid="b", tool_call_id="b")
    session = session_of(batch, b, a)
    assert plan(session, rows(batch, a, b), DIED) == []
    assert short(session, rows(batch, a)) == [("tool", "b", "message")]


def test_a_parallel_answer_beside_a_settled_one_is_not_forgotten() -> None:
    batch = said("assistant", None, uid="batch", tool_calls=called("a", "b"))
    a = said("tool", "a", uid="a", tool_call_id="a")
    b = said("tool", "b", uid="b", tool_call_id="b")
    done = {"kind": "settled", "uids": ["batch", "a"], "rows": [1, 2]}
    session = session_of(batch, b, a, done)
    assert short(session, rows(batch, a)) == [("tool", "b", "message")]
    assert plan(session, rows(batch, a, b), DIED) == []


def test_a_parallel_answer_stored_without_a_word_before_a_settled_one_is_there() -> None:
    batch = said("assistant", None, uid="batch", tool_calls=called("a", "b"))
    a = said("tool", "a", uid="a", tool_call_id="a")
    b = said("tool", "b", uid="b", tool_call_id="b")
    done = {"kind": "settled", "uids": ["batch", "b"], "rows": [1, 3]}
    session = session_of(batch, a, b, done)
    assert plan(session, rows(batch, a, b), DIED) == []
    assert short(session, rows(batch, OK, b)) == [("tool", "a", "message")]


def test_an_answer_to_an_earlier_call_of_the_same_id_is_not_the_one_beside_a_settled_one() -> None:
    batch = said("assistant", None, uid="batch", tool_calls=called("a", "b"))
    later = said("assistant", None, uid="later", tool_calls=called("a", "b"))
    a = said("tool", "first", uid="a", tool_call_id="a")
    again = said("tool", "second", uid="a2", tool_call_id="a")
    b = said("tool", "b", uid="b2", tool_call_id="b")
    done = {"kind": "settled", "uids": ["batch", "a", "later", "b2"], "rows": [1, 2, 3, 4]}
    session = session_of(batch, a, later, again, b, done)
    assert short(session, rows(batch, a, later, b)) == [("tool", "second", "message")]


def test_a_message_before_a_later_one_that_is_there_is_late() -> None:
    session = session_of(OK, said("assistant", "yes"), said("user", "go on"))
    found = plan(session, rows(OK, said("user", "go on")), DIED)
    assert [(i.message["content"], i.late) for i in found] == [("yes", True)]
    counts = Counts()
    counts.add(found[0])
    assert counts.out_of_order == 1
    assert plan(session, inserted(rows(OK, said("user", "go on")), found), DIED) == []


@pytest.mark.parametrize("named", [[1], []], ids=["in a row", "somewhere"])
def test_what_the_agent_passed_over_when_it_stored_a_later_one_is_its_own_choice(
    named: list[int],
) -> None:
    later = said("assistant", "yes", uid="later")
    done = {"kind": "settled", "uids": ["later"], "rows": named}
    session = session_of(said("user", "only for the model"), later, done)
    assert plan(session, rows(later), DIED) == []


def test_a_settled_message_said_again_unchanged_is_not_stored_again() -> None:
    again = {**said("user", "ok", uid="u"), "message": {"role": "user", "content": "ok", "n": 1}}
    done = {"kind": "settled", "uids": ["u"], "rows": [1]}
    assert plan(session_of(said("user", "ok", uid="u"), done, again), rows(OK), DIED) == []


# -- history ---------------------------------------------------------------------------------

HISTORY = {"kind": "history", "messages": [{"role": "user", "content": "old"},
                                           {"role": "assistant", "content": "times"}]}  # fmt: skip


def test_history_is_inserted_where_the_database_has_nothing() -> None:
    found = [content for _, content, _ in short(session_of(HISTORY, OK), [])]
    assert found == ["old", "times", "ok"]


def test_history_is_not_inserted_where_the_database_has_anything() -> None:
    there = rows({"role": "user", "content": "something"}, at=START - 99)
    assert [content for _, content, _ in short(session_of(HISTORY, OK), there)] == ["ok"]


def test_live_messages_that_repeat_the_end_of_history_are_there_once() -> None:
    repeated = said("assistant", "times")
    found = [content for _, content, _ in short(session_of(HISTORY, repeated, OK), [])]
    assert found == ["old", "times", "ok"]


# -- what the two stores of a text may differ in -----------------------------------------------


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        ("ok\n", "ok"),
        (None, ""),
        ("a \ud800 b", "a \ufffd b"),
        ([{"type": "text", "text": "ok"}, {"type": "image"}], "ok"),
        ("ok", [{"type": "text", "text": "ok"}]),
    ],
)
def test_the_same_text_in_another_form_is_the_same(sent: Any, stored: Any) -> None:
    message = {"role": "user", "content": stored}
    session = session_of({"kind": "message", "message": {"role": "user", "content": sent}})
    assert plan(session, rows(message), DIED) == []


@pytest.mark.parametrize("back", [1, 60, 86_400])
def test_a_clock_that_is_set_back_makes_nothing_be_written_twice(back: int) -> None:
    """The agent writes its rows and does not say so; between its first word and them it is
    earlier again."""
    later = START - back
    said = [{"role": "user", "content": "go on"}, {"role": "assistant", "content": "ok"}]
    sent = [{"kind": "session", "session": "a", "at": START}]
    sent += [
        {"kind": "message", "session": "a", "at": later + n, "uid": str(n), "message": message}
        for n, message in enumerate(said)
    ]
    rows = [row_of(n + 1, message, later + n) for n, message in enumerate(said)]
    session = replay(stream(*sent)).sessions["a"]
    assert plan(session, rows, later + 9) == []
    assert [insert.message for insert in plan(session, rows[:1], later + 9)] == said[1:]
