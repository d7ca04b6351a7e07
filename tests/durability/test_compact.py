"""Compaction: a journal of what still matters leads to the same recovery as the whole (G6, G7)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hermes_supervise.ipc import frames, records
from hermes_supervise.supervisor.model.stream import ReplayedStream, Session
from hermes_supervise.supervisor.recovery.checkpoint import stores_itself
from hermes_supervise.supervisor.recovery.compact import compact, essential
from hermes_supervise.supervisor.recovery.gather import gather
from hermes_supervise.supervisor.recovery.replay import replay
from hermes_supervise.supervisor.statedb.reconcile import plan
from hermes_supervise.supervisor.storage.journal import Journal, segment_name
from hypothesis import example, given, settings
from hypothesis import strategies as st
from streams import ALL, START, Agent, Frames, Move, called, moves, stream

STREAM = "5" * 32
KNOWN = (
    "phase", "title", "ended", "ended_at", "rotated", "hooks_fired", "hooks_begun", "watermark",
    "rewritten_at", "about", "began", "announces_tools", "spoke", "stopped", "heard_at",
)  # fmt: skip


def picture(replayed: ReplayedStream, agent: Agent) -> dict[str, Any]:
    """All that recovery makes of a stream, against the rows that the agent left."""
    sessions = {}
    for id, session in replayed.sessions.items():
        rows = agent.conversations[id].rows if id in agent.conversations else []
        reply = session.reply
        sessions[id] = {
            "continues": replayed.continues(session),
            "plan": plan(session, rows, agent.clock),
            "reply": None if reply is None else (reply.text, reply.reasoning, reply.began),
            "calls": [(c.id, c.started, c.result, c.began) for c in session.calls.values()],
            **{name: getattr(session, name) for name in KNOWN},
        }
    return {
        "sessions": sessions, "gaps": replayed.gaps, "bad": replayed.bad_records,
        "bye": replayed.said_bye, "first": replayed._default_session,
        "went on as": replayed._continuations, "last": replayed.last, "resets": replayed.resets,
    }  # fmt: skip


def lived(life: list[Move]) -> Agent:
    agent = Agent()
    for move in life:
        agent.play(move)
    return agent


@settings(max_examples=500, deadline=None)
@given(moves(*ALL, most=60), st.data())
def test_whatever_is_said_before_and_after_compaction_recovery_is_the_same(
    life: list[Move], data: st.DataObject
) -> None:
    agent = lived(life)
    cuts = st.integers(0, len(agent.frames))
    first, second = sorted((data.draw(cuts), data.draw(cuts)))
    once = essential(agent.frames[:first])
    twice = essential(once + agent.frames[first:second]) + agent.frames[second:]
    assert picture(replay(twice), agent) == picture(replay(agent.frames), agent)


@settings(max_examples=100, deadline=None)
@example([("user", 0, 0, "ok"), ("turn", 0, 0, "ok"), ("end", 0, 0, "ok")])
@example([("user", 0, 0, "ok"), ("rotate", 0, 0, "ok"), ("end", 0, 0, "ok")])
@given(moves(*ALL))
def test_compacting_again_adds_nothing(life: list[Move]) -> None:
    once = essential(lived(life).frames)
    again = essential(once)
    assert set(again) <= set(once)
    assert again[0] == once[0], "there is one note, and it says the same"


# -- what goes and what stays ------------------------------------------------------------------


def kinds(kept: Frames) -> list[Any]:
    return [records.unpack(frames.payload_of(frame))["kind"] for seq, frame in kept if seq]


def at(**record: Any) -> dict[str, Any]:
    return {"session": "s", "at": START, **record}


def message(uid: str, role: str, content: str | None, **more: Any) -> dict[str, Any]:
    return at(kind="message", uid=uid, message={"role": role, "content": content, **more})


def test_what_is_in_the_database_goes() -> None:
    sent = [at(kind="session")]
    for number in range(1, 101):
        sent.append(message(f"u{number}", "user", f"question {number}"))
        sent += [at(kind="delta", text="a piece "), at(kind="delta", text="and another")]
        sent.append(message(f"a{number}", "assistant", f"answer {number}"))
        uids, rows = [f"u{number}", f"a{number}"], [2 * number - 1, 2 * number]
        sent.append(at(kind="settled", uids=uids, rows=rows))
    kept = essential(stream(*sent))
    assert kinds(kept) == ["session", "message", "settled"]
    assert replay(kept).sessions["s"].watermark == 200


OVER = [
    at(kind="session"),
    message("u", "user", "q"),
    at(kind="settled", uids=["u"], rows=[1]),
    at(kind="ended", reason="done"),
]


def test_of_a_session_that_is_over_nothing_is_left() -> None:
    asked = []

    def is_over(replayed: ReplayedStream, session: Session) -> bool:
        asked.append(session.id)
        return True

    assert kinds(essential(stream(*OVER), is_over)) == []
    assert asked == ["s"]
    assert kinds(essential(stream(*OVER), lambda replayed, session: False)) != []
    again = essential(stream(*OVER), is_over) + stream(message("v", "user", "on"), first=5)
    [later] = replay(again).sessions["s"].items
    assert later.uid == "v" and not later.settled, "it may go on all the same"


def test_that_its_agent_stores_what_it_says_is_known_when_the_session_that_said_it_is_over() -> (
    None
):
    left = essential(stream(*OVER), lambda replayed, session: True)
    again = essential(left + stream(at(kind="session", session="t"), first=5))
    assert not stores_itself(replay(stream(at(kind="session", session="t"))))
    assert stores_itself(replay(again))
    announced = [at(kind="session", settles=True), *OVER[1:]]
    assert not stores_itself(replay(essential(stream(*announced), lambda replayed, session: True)))


@pytest.mark.parametrize(
    "more",
    [
        [message("v", "user", "not in the database")],
        [at(kind="delta", text="still being said")],
        [at(kind="settled", uids=["u"]), message("u", "user", "said again")],
        [at(kind="rotated", session="other", new="s")],
        [at(kind="session", session="s")],
    ],
)
def test_of_a_session_that_may_still_matter_all_stays(more: list[dict[str, Any]]) -> None:
    sent = [*OVER[:3], *more, OVER[3]] if more[0]["kind"] != "session" else [*OVER, *more]
    run = stream(*sent)
    assert kinds(essential(run, lambda replayed, session: True)) == kinds(essential(run))


def test_what_is_said_of_a_session_again_and_again_is_kept_as_it_was_said_last() -> None:
    sent = [at(kind="session", source="chat", model="m")]
    for number in range(100):
        sent.append(at(kind="session", turn_id=f"turn {number}", started=number))
    kept = essential(stream(*sent))
    assert kinds(kept) == ["session", "session"]
    assert replay(kept).sessions["s"].about == replay(stream(*sent)).sessions["s"].about


def test_what_is_not_in_the_database_stays() -> None:
    sent = [at(kind="session"), message("u", "user", "q"), message("a", "assistant", "a")]
    assert essential(stream(*sent))[1:] == stream(*sent)


def test_the_highest_row_is_remembered_when_a_later_record_names_a_lower_one() -> None:
    sent = [
        message("a", "user", "ok"),
        message("b", "user", "ok"),
        at(kind="settled", uids=["b"], rows=[9]),
        at(kind="settled", uids=["a"], rows=[8]),
        message("c", "user", "ok"),
        at(kind="settled", uids=["c"]),
    ]
    assert replay(essential(stream(*sent))).sessions["s"].watermark == 9


def test_pieces_that_a_message_without_content_took_over_stay_with_it() -> None:
    sent = [
        at(kind="delta", text="Let me "),
        at(kind="delta", text="look."),
        message("a", "assistant", None, tool_calls=called("c")),
        message("t", "tool", "done", tool_call_id="c"),
    ]
    [said, _] = replay(essential(stream(*sent))).sessions["s"].items
    assert said.message["content"] == "Let me look."


def test_what_the_agent_passed_over_is_passed_over_afterwards() -> None:
    sent = [
        message("u", "user", "what?"),
        message("a", "assistant", "only shown"),
        message("b", "assistant", "stored"),
        at(kind="settled", uids=["b"], rows=[1]),
    ]
    for run in (stream(*sent), essential(stream(*sent))):
        assert plan(replay(run).sessions["s"], [], START) == []


def test_a_message_that_stays_for_an_open_call_does_not_open_the_others_again() -> None:
    sent = [message("a", "assistant", None, tool_calls=called("x", "y", "z"))]
    sent += [message(id, "tool", "done", tool_call_id=id) for id in "xy"]
    sent.append(at(kind="settled", uids=["a", "x", "y"], rows=[1, 2, 3]))
    assert list(replay(essential(stream(*sent))).sessions["s"].calls) == ["z"]


def test_a_word_about_a_call_stays_only_with_the_message_that_made_it() -> None:
    sent = [
        message("a", "assistant", None, tool_calls=called("x")),
        message("b", "assistant", None, tool_calls=called("y")),
        message("u", "user", "and?"),
        at(kind="tool", phase="start", call="y"),
        message("y", "tool", "done", tool_call_id="y"),
        at(kind="settled", uids=["a", "b", "u", "y"], rows=[1, 2, 3, 4]),
    ]
    session = replay(essential(stream(*sent))).sessions["s"]
    assert {item.uid for item in session.items} <= {"a", "b", "u", "y"}
    assert (list(session.calls), session.phase.value) == (["x"], "calling")


def test_pieces_of_a_reply_that_is_there_as_a_whole_go() -> None:
    sent = [at(kind="delta", text="Hel"), message("a", "assistant", "Hello")]
    assert kinds(essential(stream(*sent))) == ["message"]


def test_a_last_word_stays_the_last() -> None:
    bye = {"kind": "bye"}
    assert replay(essential(stream(at(kind="session"), bye))).said_bye
    assert not replay(essential(stream(at(kind="session"), bye, at(kind="turn")))).said_bye


def test_what_a_newer_shim_says_is_kept_for_a_newer_reader() -> None:
    sent = [at(kind="session"), at(kind="weather", of="tomorrow")]
    assert kinds(essential(stream(*sent))) == ["session", "weather"]


def test_announcing_the_same_session_every_turn_does_not_add_up() -> None:
    sent = [at(kind="session", model="m", at=START + n) for n in range(100)]
    assert len(kinds(essential(stream(*sent)))) == 1


def test_a_stream_with_a_gap_or_a_bad_record_is_left_alone() -> None:
    sent = stream(message("a", "user", "ok"), at(kind="settled", uids=["a"], rows=[1]))
    broken = [*sent, *stream(message("b", "user", "ok"), first=4)]
    assert essential(broken) is broken
    bad = [*sent, (3, frames.encode(3, b"garbage"))]
    assert essential(bad) is bad


def test_numbers_missing_below_the_note_are_no_gap_and_above_it_are() -> None:
    sent = stream(*[message(f"u{n}", "user", "ok") for n in range(5)],
                  at(kind="settled", uids=["u3"], rows=[4]))  # fmt: skip
    kept = essential(sent)
    assert len(kept) < len(sent)
    assert replay(kept).gaps == []
    assert replay(kept + stream(at(kind="turn"), first=7)).gaps == []
    assert replay(kept + stream(at(kind="turn"), first=9)).gaps == [(7, 8)]


# -- on disk -----------------------------------------------------------------------------------


def written(folder: Path, run: Frames, each: int) -> int:
    """Segments of `each` records, as the supervisor leaves them; how many are closed."""
    hello = frames.encode(0, records.pack({"kind": "hello", "pid": 1}))
    journal = Journal(str(folder), STREAM, hello)
    numbered = [frame for seq, frame in run if seq]
    for start in range(0, len(numbered), each):
        journal.append(b"".join(numbered[start : start + each]))
        journal.begin_next_segment()
    journal.close()
    return journal.number - 1


def busy() -> Agent:
    agent = lived([("announce", 0, 0, "")])
    for number in range(30):
        for name in ("user", "piece", "piece", "reply"):
            agent.play((name, 0, 1, "ok"))
        for _ in range(number % 2 + 1):
            agent.play(("store", 0, 1, "ok"))
    agent.play(("piece", 0, 1, "yes"))
    return agent


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_closed_segments_become_one_that_says_the_same(tmp_path: Path) -> None:
    agent = busy()
    closed = written(tmp_path, agent.frames, 10)
    before = sum(len(data) for data in files(tmp_path).values())
    compact(str(tmp_path), STREAM, closed)
    names = [segment_name(STREAM, closed), segment_name(STREAM, closed + 1)]
    assert sorted(files(tmp_path)) == names
    assert sum(len(data) for data in files(tmp_path).values()) < before / 3
    assert os.stat(tmp_path / names[0]).st_mode & 0o777 == 0o600
    replayed = replay(gather(str(tmp_path), STREAM).frames)
    assert picture(replayed, agent) == picture(replay(agent.frames), agent)
    assert replayed.hello["pid"] == 1


@pytest.mark.parametrize("left", range(4))
def test_cut_off_before_the_old_segments_are_gone_it_says_the_same(
    tmp_path: Path, left: int
) -> None:
    agent = busy()
    closed = written(tmp_path, agent.frames, 40)
    assert closed >= 4
    old = files(tmp_path)
    compact(str(tmp_path), STREAM, closed)
    for number in range(closed - left, closed):
        (tmp_path / segment_name(STREAM, number)).write_bytes(old[segment_name(STREAM, number)])
    expected = picture(replay(agent.frames), agent)
    assert picture(replay(gather(str(tmp_path), STREAM).frames), agent) == expected
    compact(str(tmp_path), STREAM, closed)
    assert len(files(tmp_path)) == 2, "the next compaction finishes what this one did not"
    assert picture(replay(gather(str(tmp_path), STREAM).frames), agent) == expected


@pytest.mark.parametrize("twice", [True, False], ids=["there too", "only there"])
@pytest.mark.parametrize("first", range(2, 12))
def test_what_went_into_the_spool_is_dropped_with_the_rest_and_comes_to_life_nowhere(
    tmp_path: Path, first: int, twice: bool
) -> None:
    """A slow supervisor has it in its socket as well, and gets to it later; a dead one has not."""
    agent = busy()
    spooled = agent.frames[first : first + 3]
    closed = written(tmp_path, agent.frames if twice else [
        frame for frame in agent.frames if frame not in spooled
    ], 40)  # fmt: skip
    hello = frames.encode(0, records.pack({"kind": "hello", "pid": 1}))
    spool = tmp_path / f"{STREAM}.spool"
    spool.write_bytes(hello + b"".join(frame for _, frame in spooled))
    expected = picture(replay(agent.frames), agent)
    assert picture(replay(gather(str(tmp_path), STREAM).frames), agent) == expected
    for _ in range(2):
        compact(str(tmp_path), STREAM, closed)
        assert len(files(tmp_path)) == 3
        assert picture(replay(gather(str(tmp_path), STREAM).frames), agent) == expected


def test_cut_off_before_the_rename_it_says_the_same(tmp_path: Path) -> None:
    agent = busy()
    closed = written(tmp_path, agent.frames, 40)
    (tmp_path / f"{STREAM}.compacting").write_bytes(b"half a file")
    expected = picture(replay(agent.frames), agent)
    assert picture(replay(gather(str(tmp_path), STREAM).frames), agent) == expected
    compact(str(tmp_path), STREAM, closed)
    assert picture(replay(gather(str(tmp_path), STREAM).frames), agent) == expected
    assert not (tmp_path / f"{STREAM}.compacting").exists()


@pytest.mark.parametrize("where", ["first", "last"])
def test_damaged_segments_are_left_alone(tmp_path: Path, where: str) -> None:
    closed = written(tmp_path, busy().frames, 40)
    path = tmp_path / segment_name(STREAM, 1 if where == "first" else closed)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x01
    path.write_bytes(data)
    before = files(tmp_path)
    assert gather(str(tmp_path), STREAM).damaged.keys() == {path.name}, "the damage took"
    compact(str(tmp_path), STREAM, closed)
    assert files(tmp_path) == before


def test_with_nothing_there_nothing_happens(tmp_path: Path) -> None:
    compact(str(tmp_path), STREAM, 3)
    assert files(tmp_path) == {}


def test_a_day_of_settled_messages_stays_small_on_disk(tmp_path: Path) -> None:
    agent = lived([("announce", 0, 0, "")])
    hello = agent.frames[0][1]
    journal = Journal(str(tmp_path), STREAM, hello, segment_bytes=8192)
    done, largest, total = 1, 0, 0
    for number in range(400):
        for name in ("user", "piece", "piece", "reply", "store", "store"):
            agent.play((name, 0, 1, ("ok", "go on")[number % 2]))
        for _, frame in agent.frames[done:]:
            journal.append(frame)
            total += len(frame)
        done = len(agent.frames)
        if journal.full:
            compact(str(tmp_path), STREAM, journal.begin_next_segment())
        largest = max(largest, sum(len(data) for data in files(tmp_path).values()))
    journal.close()
    assert total > 20 * 8192
    assert largest < 3 * 8192
    replayed = replay(gather(str(tmp_path), STREAM).frames)
    assert picture(replayed, agent) == picture(replay(agent.frames), agent)


def test_that_the_user_broke_a_turn_off_survives_compaction() -> None:
    sent = [
        {"kind": "message", "session": "s", "uid": "u", "message": {"role": "user"}, "at": 1.0},
        {"kind": "settled", "session": "s", "uids": ["u"], "rows": [1], "at": 2.0},
        {"kind": "turn", "session": "s", "phase": "broken off", "by": "user", "at": 3.0},
    ]
    assert replay(essential(stream(*sent))).sessions["s"].stopped
    again = {"kind": "turn", "session": "s", "phase": "start", "at": 4.0}
    assert not replay(essential(stream(*sent, again))).sessions["s"].stopped
