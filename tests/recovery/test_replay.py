"""Replay: what a stream of records tells, record by record; and the tables it goes by."""

from __future__ import annotations

from typing import Any

import pytest
from hermes_supervise.ipc import frames, records
from hermes_supervise.supervisor.model import phases
from hermes_supervise.supervisor.model.phases import Event, Phase
from hermes_supervise.supervisor.model.stream import ReplayedStream, Session
from hermes_supervise.supervisor.process.cause import Cause
from hermes_supervise.supervisor.recovery import outcome
from hermes_supervise.supervisor.recovery.outcome import End, Outcome, end_of, outcome_of
from hermes_supervise.supervisor.recovery.replay import replay
from hermes_supervise.supervisor.statedb.reconcile import plan
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import START, called, frame, stream


def replay_of(*said: dict[str, Any]) -> ReplayedStream:
    return replay(stream(*[{"session": "s", "at": START + i, **r} for i, r in enumerate(said)]))


def session_of(*said: dict[str, Any]) -> Session:
    found = replay_of(*said)
    assert not found.bad_records
    return found.sessions["s"]


def message(role: str, content: str | None, uid: str | None = None, **more: Any) -> dict[str, Any]:
    return {"kind": "message", "uid": uid, "message": {"role": role, "content": content, **more}}


def delta(text: str, **more: Any) -> dict[str, Any]:
    return {"kind": "delta", "text": text, **more}


def tool(phase: str, call: str, **more: Any) -> dict[str, Any]:
    return {"kind": "tool", "phase": phase, "call": call, "name": "do", **more}


def contents(session: Session) -> list[Any]:
    return [item.message["content"] for item in session.items]


USER = message("user", "hi")


# -- the tables --------------------------------------------------------------------------------


def test_every_phase_knows_what_every_event_leads_to() -> None:
    assert phases.TABLE.keys() == {(phase, event) for phase in Phase for event in Event}


def test_only_the_user_a_turn_or_an_announcement_opens_an_ended_session_again() -> None:
    leaving = {event for event in Event if phases.TABLE[Phase.ENDED, event] is not Phase.ENDED}
    assert leaving == {Event.USER_SPOKE, Event.TURN_STARTED, Event.SESSION_OPENED}


def documented() -> dict[tuple[End, bool, bool], Outcome]:
    """The table in the module's docstring, each row filling what the rows above it left open."""
    words = {"yes": (True,), "no": (False,), "any": (True, False)}
    results = {"completed": Outcome.COMPLETED, "interrupted": Outcome.INTERRUPTED}
    found: dict[tuple[End, bool, bool], Outcome] = {}
    for line in (outcome.__doc__ or "").splitlines():
        end = next((e for e in End if line.strip().startswith(e.value)), None)
        if end is None:
            continue
        cells = line.strip().removeprefix(end.value).split()
        assert len(cells) in (2, 3), line
        bye, flight = ((True, False), (True, False)) if cells[0] == "otherwise" else (
            words[cells[0]], words[cells[1]]
        )  # fmt: skip
        for key in ((end, b, f) for b in bye for f in flight):
            if cells[0] != "otherwise":
                assert key not in found, f"two rows speak of {key}"
            found.setdefault(key, results[cells[-1]])
    return found


def test_the_outcome_table_is_total_and_the_one_its_module_describes() -> None:
    every = {(end, bye, flight) for end in End for bye in (True, False) for flight in (True, False)}
    assert outcome.TABLE.keys() == every
    assert documented() == outcome.TABLE


@pytest.mark.parametrize(
    ("cause", "end"),
    [
        (None, End.UNKNOWN),
        (Cause(), End.UNKNOWN),
        (Cause(signal=9), End.SIGNALLED),
        (Cause(code=0), End.CLEAN),
        (Cause(code=3), End.FAILED),
    ],
)
def test_a_cause_has_its_row_in_the_table(cause: Cause | None, end: End) -> None:
    assert end_of(cause) is end
    for (row, bye, flight), expected in outcome.TABLE.items():
        if row is end:
            assert outcome_of(cause, said_bye=bye, in_flight=flight) is expected


# -- who a record speaks of ----------------------------------------------------------------------


def test_a_session_nobody_announced_becomes_one_by_being_spoken_of() -> None:
    session = session_of(USER)
    assert (session.id, session.began) == ("s", START)


def test_a_session_that_begins_with_a_piece_begins_at_the_first_known_time() -> None:
    piece = (1, frames.encode(1, records.pack_delta("s", "x")))
    found = replay([piece, frame(2, kind="turn", session="s", at=START, phase="start")])
    assert found.sessions["s"].began == START


def test_a_record_that_names_no_session_goes_to_the_first() -> None:
    found = replay_of({"kind": "session"}, {"session": "other", **USER}, {**USER, "session": None})
    assert len(found.sessions["s"].items) == len(found.sessions["other"].items) == 1


def test_a_record_without_a_session_before_any_is_counted() -> None:
    found = replay_of({**USER, "session": None}, USER)
    assert found.bad_records == 1
    assert len(found.sessions["s"].items) == 1


def test_announcing_again_adds_to_what_is_known() -> None:
    first = {"kind": "session", "model": "a", "cwd": "/"}
    session = session_of(first, {"kind": "session", "model": "b"})
    assert session.about == {"model": "b", "cwd": "/"}


def test_kinds_and_fields_of_a_newer_shim_are_passed_over() -> None:
    found = replay_of({"kind": "session"}, {"kind": "weather"}, {**USER, "mood": "blue"})
    assert found.bad_records == 0
    assert contents(found.sessions["s"]) == ["hi"]


# -- history -----------------------------------------------------------------------------------

HISTORY = {"kind": "history", "messages": [{"role": "user", "content": "old", "uid": "h"}]}


def test_live_messages_win_over_a_history_said_later() -> None:
    session = session_of(HISTORY, USER, {"kind": "history", "messages": []})
    assert contents(session) == ["old", "hi"]


def test_a_newer_history_replaces_an_older_one() -> None:
    older = {"kind": "history", "messages": [{"role": "user"}, {"role": "user"}]}
    assert contents(session_of(older, HISTORY)) == ["old"]


def test_a_message_of_history_said_live_takes_its_place() -> None:
    session = session_of(HISTORY, message("user", "new", uid="h"))
    assert [(item.message["content"], item.live) for item in session.items] == [("new", True)]


# -- messages and replies ------------------------------------------------------------------------


def test_a_message_said_again_replaces_its_earlier_self_in_its_place() -> None:
    session = session_of(
        message("user", "a", uid="1"), message("user", "b", uid="2"), message("user", "A", uid="1")
    )
    assert contents(session) == ["A", "b"]


def test_an_older_message_put_right_does_not_disturb_what_goes_on() -> None:
    batch = message("assistant", "first", uid="a", tool_calls=called("c"))
    session = session_of(
        batch, tool("start", "c"), message("tool", "r", tool_call_id="c"), USER, delta("Hel"), batch
    )
    assert session.reply is not None
    assert session.reply.text == "Hel"
    assert session.calls == {}
    assert session.phase is Phase.REPLYING


def test_a_message_with_open_calls_said_again_keeps_what_is_known_of_them() -> None:
    batch = message("assistant", None, uid="a", tool_calls=called("c"))
    session = session_of(batch, tool("start", "c"), batch)
    assert session.calls["c"].started


def test_a_message_without_a_uid_is_none_of_those_that_have_one() -> None:
    assert contents(session_of(message("user", "a", uid="2"), message("user", "b"))) == ["a", "b"]


def test_pieces_join_and_the_whole_message_takes_their_place() -> None:
    pieces = session_of(USER, delta("Hel"), {"kind": "delta", "reasoning": "hm"}, delta("lo"))
    assert pieces.reply is not None
    assert (pieces.reply.text, pieces.reply.reasoning) == ("Hello", "hm")
    whole = session_of(USER, delta("Hel"), message("assistant", "Hello!"))
    assert whole.reply is None
    assert contents(whole) == ["hi", "Hello!"]


def test_a_message_without_content_takes_over_what_was_streamed() -> None:
    session = session_of(
        delta("Hello"), {"kind": "delta", "reasoning": "hm"}, message("assistant", None)
    )
    assert session.items[0].message["content"] == "Hello"
    assert session.items[0].message["reasoning"] == "hm"


def test_a_restart_forgets_what_was_streamed_before_it() -> None:
    session = session_of(USER, delta("Wrong"), delta("Ri", restart=True), delta("ght"))
    assert session.reply is not None
    assert session.reply.text == "Right"


def test_a_reply_ends_at_a_gap_instead_of_being_glued_together() -> None:
    run = stream(
        *[{"session": "s", "at": START, **r} for r in (USER, delta("one "), delta("two "))]
    )
    run += [frame(6, kind="delta", session="s", text="four")]
    found = replay(run)
    assert found.gaps == [(4, 5)]
    reply = found.sessions["s"].reply
    assert reply is not None
    assert reply.text == "one two "
    # What comes as a whole does not depend on the gap.
    later = replay([*run, frame(7, session="s", **message("assistant", None))])
    assert contents(later.sessions["s"]) == ["hi", None]


def test_a_record_that_cannot_be_read_ends_a_reply_as_well() -> None:
    run = stream(*[{"session": "s", **record} for record in (USER, delta("one "))])
    run += [(3, frames.encode(3, b"garbage")), frame(4, kind="delta", session="s", text="three")]
    found = replay(run)
    reply = found.sessions["s"].reply
    assert reply is not None
    assert reply.text == "one "
    assert (found.bad_records, found.gaps) == (1, []), "it was stored, so it is not lost"


def test_a_stream_that_does_not_begin_with_its_first_record_has_a_gap() -> None:
    assert replay(stream({"kind": "turn", "session": "s"}, first=3)).gaps == [(1, 2)]


# -- tools ---------------------------------------------------------------------------------------


def test_calls_are_open_until_they_are_answered() -> None:
    batch = message("assistant", None, tool_calls=called("a", "b"))
    session = session_of(batch, tool("start", "a"), message("tool", "r", tool_call_id="a"))
    assert list(session.calls) == ["b"]
    assert session.phase is Phase.CALLING
    done = session_of(batch, *[message("tool", "r", tool_call_id=id) for id in "ab"])
    assert (done.calls, done.phase) == ({}, Phase.WORKING)


def test_a_call_nobody_announced_gets_the_message_it_lacks() -> None:
    session = session_of(USER, delta("Let me see."), tool("start", "c"))
    assert contents(session) == ["hi", "Let me see."]
    [call] = session.items[1].message["tool_calls"]
    assert (call["id"], call["function"]["name"]) == ("c", "do")
    assert session.calls["c"].started
    assert session.reply is None


def test_ids_of_calls_that_come_round_again_are_other_calls() -> None:
    answer = message("tool", "r", tool_call_id="c")
    session = session_of(tool("start", "c"), answer, tool("start", "c"), answer)
    assert [item.message["role"] for item in session.items] == ["assistant", "tool"] * 2
    assert session.calls == {}


def test_the_end_of_a_call_that_is_answered_changes_nothing() -> None:
    session = session_of(USER, tool("end", "c", result="late"))
    assert (session.calls, session.phase) == ({}, Phase.WORKING)


# -- stored, rewritten, rotated --------------------------------------------------------------------


def test_settled_messages_know_their_rows_and_the_highest_counts() -> None:
    session = session_of(
        message("user", "a", uid="1"),
        message("user", "b", uid="2"),
        {"kind": "settled", "uids": ["2", "1", "unknown"], "rows": [8, 7, 99]},
        message("user", "c", uid="3"),
        {"kind": "settled", "uids": ["3"]},
    )
    assert [(item.settled, item.row) for item in session.items] == [
        (True, 7), (True, 8), (True, None),
    ]  # fmt: skip
    assert session.watermark == 8


def test_what_was_said_before_a_rewrite_is_not_missing() -> None:
    batch = message("assistant", None, tool_calls=called("c"))
    session = session_of(USER, batch, delta("x"), {"kind": "rewritten"}, message("user", "next"))
    assert [item.settled for item in session.items] == [True, True, False]
    assert (session.reply, session.calls) == (None, {})
    assert session.rewritten_at == START + 3


ROTATED = {"kind": "rotated", "new": "t", "reason": "compression"}


def test_what_is_said_under_an_old_id_goes_to_where_the_conversation_is_now() -> None:
    found = replay_of(
        {"kind": "session", "model": "m", "started": START}, USER, delta("Hel"), ROTATED,
        delta("lo"), {"kind": "rotated", "session": "s", "new": "v"}, message("user", "late"),
    )  # fmt: skip
    assert found.bad_records == 0
    assert list(found.sessions) == ["s", "t", "v"]
    assert contents(found.sessions["s"]) == ["hi"]
    assert contents(found.sessions["t"]) == []
    live = found.sessions["v"]
    assert contents(live) == ["Hello", "late"], "the reply was broken off by what the user said"
    assert live.reply is None
    assert live.about == {"model": "m", "parent": "t"}
    assert live.ended is None
    assert {found.live_id(id) for id in "stv"} == {"v"}


def test_the_parent_keeps_its_own_reason() -> None:
    found = replay_of(USER, {"kind": "ended", "reason": "split"}, ROTATED)
    assert (found.sessions["s"].ended, found.sessions["s"].rotated) == ("split", True)
    assert replay_of(USER, ROTATED).sessions["s"].ended == "compression"


def test_closing_the_old_id_before_going_on_does_not_end_the_new_one() -> None:
    found = replay_of(USER, delta("Hel"), {"kind": "ended", "reason": "compression"}, ROTATED)
    assert (found.sessions["t"].phase, found.sessions["t"].ended) == (Phase.REPLYING, None)


def test_a_session_cannot_go_on_as_itself() -> None:
    again, on = {"kind": "rotated", "new": "s"}, {"kind": "rotated", "new": "t"}
    found = replay_of(USER, ROTATED, again, on)
    assert found.bad_records == 2
    assert found.live_id("s") == "t"


# -- the end ---------------------------------------------------------------------------------------


def test_the_first_reason_of_an_end_stays() -> None:
    session = session_of(USER, {"kind": "ended", "reason": "a"}, {"kind": "ended", "reason": "b"})
    assert (session.ended, session.ended_at, session.phase) == ("a", START + 1, Phase.ENDED)


@pytest.mark.parametrize("again", [USER, {"kind": "session"}, {"kind": "turn", "phase": "start"}])
def test_an_ended_session_that_goes_on_is_open(again: dict[str, Any]) -> None:
    session = session_of(USER, {"kind": "ended"}, again)
    assert session.ended is None
    assert session.phase is not Phase.ENDED


@pytest.mark.parametrize(
    "late",
    [delta("x"), message("assistant", "x"), {"kind": "turn", "phase": "end"}, tool("start", "c")],
)
def test_late_words_do_not_open_an_ended_session(late: dict[str, Any]) -> None:
    session = session_of(USER, {"kind": "ended"}, late)
    assert (session.ended, session.phase) == ("completed", Phase.ENDED)


@pytest.mark.parametrize("again", [USER, {"kind": "turn", "phase": "start"}])
def test_a_hook_that_ran_counts_until_the_next_turn(again: dict[str, Any]) -> None:
    fired = {"kind": "hook", "name": "on_session_end"}
    assert session_of(USER, fired).hooks_fired == {"on_session_end"}
    assert session_of(USER, fired, again).hooks_fired == set()


@pytest.mark.parametrize("again", [USER, {"kind": "turn", "phase": "start"}])
def test_a_hook_that_began_and_did_not_end_is_known_until_the_next_turn(
    again: dict[str, Any],
) -> None:
    begun = {"kind": "hook_begun", "name": "on_session_end"}
    session = session_of(USER, begun)
    assert (session.hooks_begun, session.hooks_fired) == ({"on_session_end"}, set())
    assert session_of(USER, begun, again).hooks_begun == set()


def test_the_last_title_counts() -> None:
    titles = [{"kind": "title", "title": title} for title in "ab"]
    assert session_of(USER, *titles).title == "b"


def test_bye_is_a_last_word_only_if_nothing_follows() -> None:
    assert replay_of(USER, {"kind": "bye"}).said_bye
    assert not replay_of(USER, {"kind": "bye"}, USER).said_bye


@pytest.mark.parametrize(
    ("said", "in_flight"),
    [
        ([], False),
        ([USER], True),
        ([USER, delta("x")], True),
        ([USER, message("assistant", "x")], False),
        ([USER, message("assistant", None, tool_calls=called("c"))], True),
        ([USER, tool("start", "c"), message("tool", "r", tool_call_id="c")], True),
        ([USER, {"kind": "turn", "phase": "end"}], False),
        ([USER, {"kind": "turn", "phase": "broken off"}], True),
        ([USER, {"kind": "ended"}], False),
    ],
)
def test_work_is_in_flight_from_the_question_to_the_answer(
    said: list[dict[str, Any]], in_flight: bool
) -> None:
    assert session_of({"kind": "session"}, *said).in_flight is in_flight


# -- the handshake -----------------------------------------------------------------------------


def test_the_handshake_says_who_spoke_and_how_it_ended() -> None:
    death = Cause(signal=9, at=START, oom=True)
    found = replay(
        [
            frame(0, kind="hello", pid=1),
            frame(0, kind="peer", pid=2),
            frame(0, **death.as_record()),
            frame(1, kind="turn", session="s"),
        ]
    )
    assert (found.hello["pid"], found.peer["pid"]) == (1, 2)
    assert found.death is not None
    assert (found.death.signal, found.death.at, found.death.oom) == (9, START, True)
    assert found.gaps == []


# -- nothing an agent says makes replay fail -------------------------------------------------------

KINDS = [
    "hello", "peer", "death", "compacted", "session", "history", "message", "delta", "tool", "turn",
    "settled", "rewritten", "rotated", "reset", "title", "ended", "hook", "bye", "unheard of",
]  # fmt: skip
FIELDS = [
    "session", "at", "uid", "uids", "rows", "message", "messages", "text", "reasoning", "restart",
    "call", "name", "phase", "result", "new", "reason", "title", "through", "sessions", "key",
    "code", "role", "content", "tool_calls", "tool_call_id", "id", "function", "signal",
]  # fmt: skip
anything = st.recursive(
    st.none() | st.booleans() | st.sampled_from([0, -1, 7, 2**70, 10**400]) | st.floats()
    | st.sampled_from(["", "s", "t", "start", "user", "assistant", "tool", "c", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=5),
    max_leaves=6,
)  # fmt: skip
strange = st.builds(
    lambda kind, fields: {**fields, "kind": kind},
    st.sampled_from(KINDS),
    st.dictionaries(st.sampled_from(FIELDS), anything, max_size=6),
)
numbers = st.sampled_from([0, 1, 1, 1, 1, 1, 1, 3])


@settings(max_examples=250, deadline=None)
@given(st.lists(st.tuples(numbers, strange), max_size=8))
def test_whatever_json_an_agent_sends_replay_and_plan_go_through(
    said: list[tuple[int, dict[str, Any]]],
) -> None:
    run, last = [], 0
    for step, record in said:
        last += step
        run.append((last if step else 0, frames.encode(last if step else 0, records.pack(record))))
    found = replay(run)
    for session in found.sessions.values():
        for insert in plan(session, [], START):
            assert isinstance(insert.message["role"], str)
            assert insert.at == insert.at, "a time, not NaN"


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=6))
def test_whatever_bytes_an_agent_sends_replay_goes_through(payloads: list[bytes]) -> None:
    found = replay([(n, frames.encode(n, p)) for n, p in enumerate(payloads)])
    assert found.bad_records <= len(payloads)


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "message"},
        {"kind": "message", "message": "hi"},
        {"kind": "message", "message": {"content": "no role"}},
        {"kind": "message", "message": {"role": None}},
        {"kind": "history", "messages": None},
        {"kind": "history", "messages": [{"content": "no role"}]},
        {"kind": "tool", "phase": "start"},
        {"kind": "tool", "phase": "start", "call": None},
        {"kind": "settled"},
        {"kind": "rotated"},
        {"kind": "rotated", "new": None},
        {"kind": "title", "title": None},
        {"kind": "hook"},
        {"kind": "turn", "session": 7},
    ],
)
def test_a_malformed_record_is_counted_and_changes_nothing(record: dict[str, Any]) -> None:
    found = replay_of(HISTORY, record, delta("x"))
    assert found.bad_records == 1
    session = found.sessions["s"]
    assert contents(session) == ["old"]
    assert (session.title, session.hooks_fired, session.calls) == (None, set(), {})
    assert session.reply is not None
    assert list(found.sessions) == ["s"]


@pytest.mark.parametrize(
    "calls", [7, "calls", {"id": "c"}, [7, None, "c", {"id": None}, {"function": []}]]
)
def test_malformed_tool_calls_cost_nothing_of_the_message(calls: Any) -> None:
    session = session_of(USER, message("assistant", "text", tool_calls=calls))
    assert contents(session) == ["hi", "text"]
    assert (session.calls, session.phase) == ({}, Phase.IDLE)


@pytest.mark.parametrize("at", [None, "noon", -5, float("nan"), float("inf"), 10**400, True])
def test_a_time_that_is_none_is_no_time(at: Any) -> None:
    assert session_of({**USER, "at": at}).began in (0.0, 1.0)


# -- taken back --------------------------------------------------------------------------------


def withdrawn(uid: str) -> dict[str, Any]:
    return {**message("user", "hi", uid), "withdrawn": True}


def test_a_message_that_is_taken_back_was_never_said() -> None:
    session = session_of(message("user", "before", "a"), message("user", "hi", "b"), withdrawn("b"))
    assert contents(session) == ["before"]
    session = session_of(
        message("user", "hi", "b"), withdrawn("b"), message("user", "then", "c"), settled("c", 5)
    )
    assert contents(session) == ["then"]
    assert session.items[0].row == 5


def test_calls_of_a_message_that_is_taken_back_are_no_calls() -> None:
    calling = message("assistant", None, "b", tool_calls=called("call"))
    assert session_of(USER, calling, withdrawn("b")).calls == {}


def test_what_is_in_the_database_cannot_be_taken_back() -> None:
    session = session_of(message("user", "hi", "b"), settled("b", 5), withdrawn("b"))
    assert contents(session) == ["hi"]


def test_what_was_never_said_cannot_be_taken_back() -> None:
    assert contents(session_of(message("user", "before", "a"), withdrawn("b"))) == ["before"]


def settled(uid: str, row: int) -> dict[str, Any]:
    return {"kind": "settled", "uids": [uid], "rows": [row]}
