"""The replica's pure parts: positions, the outbox on disk, rebuilding, and who may finalise."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import pytest
from hermes_supervise.ipc import frames, records
from hermes_supervise.supervisor.recovery.replay import replay
from hermes_supervise.supervisor.replica import claims, conninfo, places, snapshot
from hermes_supervise.supervisor.replica.numbering import Numbering, from_record
from hermes_supervise.supervisor.replica.outbox import Outbox
from hermes_supervise.supervisor.replica.placing import AGAIN
from hermes_supervise.supervisor.replica.rebuild import Here, rebuild

STREAM = "ab" * 16


def frame(seq: int, **record: Any) -> bytes:
    return frames.encode(seq, records.pack(record))


# -- where it is -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://me:secret@host/db", "postgres://me:@host", "postgresql://host/db?password=x",
        "host=db password=secret", "host=db PASSWORD = secret", "password='a b' host=db",
        "sslpassword=x", "   ",
    ],
)  # fmt: skip
def test_a_connection_string_with_a_secret_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"without a password|a connection string"):
        conninfo.checked(text)


@pytest.mark.parametrize(
    "text",
    ["service=agents", "postgresql://me@host:5432/db?sslmode=verify-full", "postgresql:///db",
     "host=db passfile=/home/me/.pgpass", "dbname='password = x'"],
)  # fmt: skip
def test_a_connection_string_without_one_is_taken(text: str) -> None:
    assert conninfo.checked(text) == text


# -- positions -----------------------------------------------------------------------------------


def test_a_frame_gets_one_position_wherever_it_is_read_again() -> None:
    numbers = Numbering()
    hello, note = frame(0, kind="hello"), frame(0, kind="compacted", through=2, sessions={})
    one, two, four = (frame(n, kind="bye") for n in (1, 2, 4))
    assert [numbers.take(0, hello), numbers.take(1, one), numbers.take(4, four)] == [1, 2, 3]
    again = from_record(numbers.as_record())
    assert [again.take(0, hello), again.take(0, note), again.take(1, one)] == [None] * 3
    assert (again.take(4, four), again.take(2, two)) == (None, 4)
    assert (again.upto, again.highest) == (2, 4)
    again.accept_gap()
    assert again.take(9, frame(9, kind="bye")) == 5
    assert again.upto == 9


def test_an_outbox_cut_off_at_any_byte_goes_on_behind_its_last_whole_entry(tmp_path: Path) -> None:
    made = Outbox(str(tmp_path))
    made.make_room(lambda: {"known": 1})
    entries = [(STREAM, n, frame(n, kind="bye", text="x" * n)) for n in range(1, 5)]
    ends = []
    [path] = tmp_path.iterdir()
    header = path.stat().st_size
    for entry in entries:
        made.append([entry])
        made.sync()
        ends.append(path.stat().st_size)
    made.close()
    whole = path.read_bytes()
    for size in range(header, len(whole) + 1):
        path.write_bytes(whole[:size])
        again = Outbox(str(tmp_path))
        kept = sum(end <= size for end in ends)
        assert (again.state, again.rest) == ({"known": 1}, entries[:kept])
        again.append(entries[kept:])
        found, cursor = again.read(again.start(), 1 << 20)
        assert found == entries and again.is_read(cursor)
        again.close()
    path.write_bytes(whole[: header - 1])
    assert Outbox(str(tmp_path)).numbers == []


def test_an_outbox_is_read_on_over_its_segments_and_forgets_what_is_read(tmp_path: Path) -> None:
    made = Outbox(str(tmp_path), segment_bytes=200)
    entries = [(STREAM, n, frame(n, kind="bye", text="x" * 90)) for n in range(1, 10)]
    for entry in entries:
        made.make_room(dict)
        made.append([entry])
    assert len(made.numbers) > 3
    cursor, found = made.start(), []
    while not made.is_read(cursor):
        some, cursor = made.read(cursor, 100)
        found += some
    assert found == entries
    made.drop(cursor, keep=3600)
    assert len(made.numbers) > 3
    made.drop(cursor, keep=-1)
    assert made.numbers == [cursor[0]]
    made.close()


# -- rebuilding ----------------------------------------------------------------------------------


def said(shipped: list[bytes], **here: Any) -> dict[str, list[tuple[str, Any]]]:
    """What recovery would write of each session on a machine that has nothing yet."""
    rebuilt = rebuild({STREAM: shipped}, Here(**here))[STREAM]
    stream = replay(rebuilt)
    assert stream.death is not None and not stream.bad_records
    messages = {}
    for session in stream.sessions.values():
        assert all(item.live and not item.settled for item in session.items)
        messages[session.id] = [
            (i.message["role"], i.message.get("content")) for i in session.items
        ]
        if session.reply is not None:
            messages[session.id].append(("partial", session.reply.text))
    return messages


def message(
    seq: int, text: str, role: str = "user", session: str = "s", at: float = 100.0
) -> bytes:
    about = {"role": role, "content": text}
    return frame(seq, kind="message", session=session, uid=f"u{seq}", at=at, message=about)


def rows(after: int, *texts: tuple[int, str, float], session: str = "s") -> list[bytes]:
    found = [
        {"id": id, "role": "user", "content": text, "timestamp": at, "active": 1}
        for id, text, at in texts
    ]
    return snapshot.as_frames(session, after, found)


HELLO = frame(0, kind="hello", stream=STREAM, pid=1, executable="/there/python")
OPEN = frame(1, kind="session", session="s", at=100.0, db="/there/state.db", source="cli")


def test_rows_from_before_come_first_and_what_the_agent_stored_itself_comes_once() -> None:
    shipped = [
        HELLO, *rows(1, (7, "old", 50.0), (8, "asked", 101.0), (9, "unreported", 102.0)), OPEN,
        message(2, "asked"), frame(3, kind="settled", session="s", uids=["u2"], rows=[8]),
        message(4, "unreported"), frame(5, kind="delta", session="s", text="the an"),
    ]  # fmt: skip
    assert said(shipped) == {
        "s": [("user", "old"), ("user", "asked"), ("user", "unreported"), ("partial", "the an")]
    }


def test_words_that_were_said_before_are_said_again() -> None:
    """The same word in an earlier life, a moment ago, is not the word of this one."""
    shipped = [HELLO, *rows(1, (7, "yes", 99.9)), OPEN, message(2, "yes")]
    assert said(shipped) == {"s": [("user", "yes"), ("user", "yes")]}


def test_rewritten_rows_take_the_place_of_what_was_said() -> None:
    shipped = [
        HELLO, *rows(1), OPEN, message(2, "one"), message(3, "two"),
        frame(4, kind="rewritten", session="s", at=110.0), *rows(4, (20, "both", 109.0)),
        message(5, "three", at=111.0),
    ]  # fmt: skip
    assert said(shipped) == {"s": [("user", "both"), ("user", "three")]}
    # The rows did not get there any more: better what was said than nothing.
    assert said([f for f in shipped if b"both" not in f]) == {
        "s": [("user", "one"), ("user", "two"), ("user", "three")]
    }


def test_a_rotated_session_has_its_own_rows() -> None:
    shipped = [
        HELLO, *rows(1), OPEN, message(2, "long"),
        frame(3, kind="rotated", session="s", new="t", at=105.0),
        *rows(3, (30, "short", 105.0), session="t"),
        frame(4, kind="history", session="t", messages=[{"role": "user", "content": "short"}]),
        message(5, "next", session="t", at=106.0),
    ]  # fmt: skip
    assert said(shipped) == {"s": [("user", "long")], "t": [("user", "short"), ("user", "next")]}


def test_rows_heal_what_was_dropped() -> None:
    texts = [(n, f"m{n}", 100.0 + n) for n in range(2, 8)]
    shipped = [
        HELLO, *rows(1), OPEN, message(2, "m2", at=102.0), message(3, "m3", at=103.0),
        *rows(AGAIN, *texts), message(8, "m8", at=108.0),
    ]  # fmt: skip
    assert said(shipped) == {"s": [("user", f"m{n}") for n in range(2, 9)]}


def test_what_is_here_already_is_not_rebuilt() -> None:
    shipped = [HELLO, *rows(1, (7, "a", 50.0), (8, "b", 51.0)), OPEN, message(2, "c")]
    present = [{"id": 1, "role": "user", "content": "a", "timestamp": 50.0}]
    assert said(shipped, present=lambda session: present) == {"s": [("user", "b"), ("user", "c")]}
    assert said(shipped, without={"s"}) == {}


def test_nothing_of_the_lost_machine_is_taken_for_one_of_this() -> None:
    def hello(found: dict[str, Any]) -> dict[str, Any]:
        return {**found, "executable": "/here/python"}

    rebuilt = rebuild({STREAM: [HELLO, *rows(1), OPEN]}, Here(hello=hello, trouble="it was lost"))
    stream = replay(rebuilt[STREAM])
    assert stream.hello["executable"] == "/here/python"
    session = stream.sessions["s"]
    assert "db" not in session.about and session.problems == ["it was lost"]
    assert str(stream.death) == "exit status unknown: its machine was lost"
    without = replay(rebuild({STREAM: [HELLO, OPEN]}, Here())[STREAM])
    assert "was not replicated" in without.sessions["s"].problems[0]


# -- who may finalise ----------------------------------------------------------------------------


def test_hooks_run_at_home_while_the_lease_holds_and_not_behind_it() -> None:
    lease = {"boot": "b", "until": 100}
    assert places.verdict({"lease": lease}, "r", boot="b", now=99)[0] == places.GO
    assert places.verdict({"lease": lease}, "r", boot="b", now=100)[0] == places.WAIT
    assert places.verdict({"lease": lease}, "r", boot="other", now=1)[0] == places.WAIT
    assert places.verdict({}, "r", boot="b", now=1)[0] == places.WAIT
    taken = {"lease": lease, "taken": {"r": "box"}}
    assert places.verdict(taken, "r", boot="b", now=1)[0] == places.NEVER


# The model: home and two others, one run. Time is only whether home's lease is over, which the
# database and home itself may each learn at another moment, home never later than the database.
# A claim makes a copy; hooks need the loss to be declared. A machine that claimed may be lost, too.
State = tuple[Any, ...]
START = {
    "home_lease": True, "db_lease": True, "lost": False, "claimed": None, "hooks_by": None,
    "recovered": False, "ended": False, "alive": True, "knows_taken": False, "home_hooks": 0,
    "server_knows": True, "others_hooks": 0, "one_lost": False, "one_queued": False,
    "two_queued": False,
}  # fmt: skip
NAMES = tuple(START)


def steps(now: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    found: list[tuple[str, dict[str, Any]]] = []

    def to(name: str, **changes: Any) -> None:
        found.append((name, {**now, **changes}))

    if now["home_lease"]:
        to("home's clock says that the lease is over", home_lease=False)
    elif now["db_lease"]:
        to("the database's clock does", db_lease=False)
    if now["alive"]:
        to("home dies", alive=False)
        # Home reaches the database: it comes back if it was lost, learns, renews.
        taken = now["hooks_by"] is not None
        to("home reports", home_lease=True, db_lease=True, lost=False, knows_taken=taken)
        status = {
            "lease": {"boot": "b", "until": 1 if now["home_lease"] else 0},
            "taken": {"r": "other"} if now["knows_taken"] else {},
        }
        verdict, _ = places.verdict(status, "r", boot="b", now=0)
        if verdict == places.GO and not now["home_hooks"]:
            to("home runs its hooks", home_hooks=1, server_knows=False)
        if now["home_hooks"] and not now["lost"] and now["hooks_by"] is None:
            to("home tells that the run is finished", ended=True, server_knows=True)
    if not now["db_lease"] and not now["lost"]:
        to("the operator declares it lost", lost=True)
    if now["claimed"] == "one" and not now["one_lost"]:
        to("one is lost", one_lost=True, one_queued=False)
    for me in ("one", "two"):
        if me == "one" and now["one_lost"]:
            continue
        answer, _ = claims.claim(
            me, "home", silent=now["lost"] or not now["db_lease"], claimed_by=now["claimed"],
            claimer_lost=now["claimed"] == "one" and now["one_lost"],
        )  # fmt: skip
        known = {"lost": now["lost"], "hooks_by": now["hooks_by"], "ended": now["ended"]}
        if answer != claims.REFUSED:
            hooks, _ = claims.hooks(me, claimed_by=me, recovered=now["recovered"], **known)
            given = me if hooks == claims.GIVEN else now["hooks_by"]
            # Queued once, with the first recovery here; run when they are given.
            queued = hooks != claims.NOT_OURS and not (answer == claims.OURS and now["recovered"])
            queued |= now[f"{me}_queued"]
            to(f"{me} claims it", claimed=me, hooks_by=given, **{f"{me}_queued": queued})
            if answer == claims.OURS:
                to(f"{me} has recovered it", recovered=True)
        hooks, _ = claims.hooks(me, claimed_by=now["claimed"], **known)
        if now[f"{me}_queued"] and now["recovered"] and hooks == claims.GIVEN:
            ran = {f"{me}_queued": False, "others_hooks": now["others_hooks"] + 1}
            to(f"{me} runs the hooks", hooks_by=me, **ran)
        if now[f"{me}_queued"] and hooks == claims.NOT_OURS:
            to(f"{me} puts the hooks away", **{f"{me}_queued": False})
    return found


def test_every_order_of_loss_return_and_claim_finalises_once() -> None:
    seen: dict[State, list[str]] = {tuple(START.values()): []}
    waiting = deque(seen)
    while waiting:
        state = waiting.popleft()
        now = dict(zip(NAMES, state, strict=True))
        way = seen[state]
        assert now["others_hooks"] <= 1, way
        if now["home_hooks"] and now["others_hooks"]:
            # Only if home had run them within its lease, and could not tell before it was lost.
            assert not now["server_knows"], way
            assert way.index("home runs its hooks") < way.index("the operator declares it lost")
        assert not (now["ended"] and now["others_hooks"]), way
        if now["others_hooks"]:
            assert "the operator declares it lost" in way, way
        for name, after in steps(now):
            key = tuple(after.values())
            if key not in seen:
                seen[key] = [*way, name]
                waiting.append(key)
    assert len(seen) > 100
    ends = [dict(zip(NAMES, state, strict=True)) for state in seen]
    assert any(end["recovered"] and end["others_hooks"] for end in ends)
    assert any(end["recovered"] and not end["others_hooks"] and end["ended"] for end in ends)
    # A copy was made of a machine that was only silent, and its own hooks were run at home.
    copied = [end for end in ends if end["claimed"] and end["recovered"] and end["home_hooks"]]
    assert any(end["ended"] and not end["others_hooks"] for end in copied)
