"""Compares state.db, reports, hooks and leftovers with what the model expects.

Never guesses in favour of the product. A killed process stopped at some step between its last call
that returned and the call it was in; everything must be as after that one step.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections import Counter
from dataclasses import dataclass
from typing import Any

from hermes_supervise.supervisor.recovery import report as report_file
from hermes_supervise.supervisor.recovery.report import SessionReport
from hermes_supervise.supervisor.statedb.reconcile import NOT_REPORTED, RESULT_UNKNOWN

from .actors import World
from .conduct import Lived
from .model import KILLED, UNKNOWN, Earlier, Expected, Life, Row
from .script import steps
from .violation import CATEGORIES, Violation

__all__ = ["CATEGORIES", "Violation", "judge", "read"]


@dataclass
class Found:
    """Everything that a chapter left, read once."""

    rows: dict[str, list[Row]]
    sessions: dict[str, dict[str, Any]]
    reports: dict[tuple[str, str], SessionReport]
    hooks: dict[tuple[str, str], list[dict[str, Any]]]


def judge(lived: Lived, earlier: dict[str, Earlier]) -> None:
    """Raise the first violation; otherwise note in `earlier` what the next chapter starts from."""
    world = lived.world
    _nothing_left_over(world)
    found = read(world)
    seen: set[str] = set()
    for lane, run in enumerate(lived.chapter.lanes):
        for number in range(len(run.processes)):
            seen |= _judge_process(lived, lane, number, found, earlier)
    strangers = set(found.sessions) - seen - set(earlier)
    if strangers:
        raise Violation("misreported", f"sessions that no agent sent: {sorted(strangers)}")
    for id in seen & set(found.sessions):
        row = found.sessions[id]
        earlier[id] = Earlier(
            found.rows.get(id, []), row["end_reason"], row["title"], row["parent_session_id"]
        )


def _judge_process(
    lived: Lived, lane: int, number: int, found: Found, earlier: dict[str, Earlier]
) -> set[str]:
    slot = lived.ledger.slot(lane, number)
    process = lived.chapter.lanes[lane].processes[number]
    begun = [step for op in process.ops[: slot.begun] for step in steps(op)]
    certain = _certain(lived, lane, number)
    sure = sum(len(steps(op)) for op in process.ops[:certain])
    causes = _causes(lived, lane, number)
    whole = Life()
    for step in begun:
        whole.take(step)
    ids = {session.id for session in whole.every}
    if certain < slot.returned and any(step[0].startswith("db_") for step in begun):
        return ids  # what a starved agent stored is kept; what it sent about it may be lost
    reported = [report.problems for (of, _), report in found.reports.items() if of == slot.stream]
    if certain < slot.returned and any(
        "were lost" in problem for problems in reported for problem in problems
    ):
        return ids  # records of a starved agent are missing, and the report says so
    complaints: list[Violation] = []
    life = Life()
    for step in begun[:sure]:
        life.take(step)
    for at in range(sure, len(begun) + 1):
        if at > sure:
            life.take(begun[at - 1])
        complaint = _compare(lived, lane, life, slot.stream, causes, found, earlier)
        too_much = ids - {session.id for session in life.every} - set(earlier)
        if complaint is None and not too_much & set(found.sessions):
            return ids
        complaint = complaint or Violation("misreported", f"sessions {too_much}, not sent yet")
        complaints.append(complaint)
    # The comparison after the steps that are certain decides the category.
    first, last = complaints[0], complaints[-1]
    where = f"lane {lane} process {number}, {certain} to {slot.begun} operations"
    more = f"; if it got to its last step: {last.text}" if last is not first else ""
    raise Violation(first.category, f"{where}: {first.text}{more}")


def _certain(lived: Lived, lane: int, number: int) -> int:
    """How many operations of a process must have taken effect."""
    slot = lived.ledger.slot(lane, number)
    if lived.fates[lane][number].starved:
        return slot.acked
    return slot.returned


def _causes(lived: Lived, lane: int, number: int) -> list[str]:
    slot = lived.ledger.slot(lane, number)
    ops = lived.chapter.lanes[lane].processes[number].ops
    causes = [KILLED] if lived.fates[lane][number].struck else []
    if slot.begun and ops[slot.begun - 1].name == "exit":
        causes.append(f"exited with code {ops[slot.begun - 1].number}")
    # The parent of a forked agent may reap it before the supervisor sees its status.
    if lived.troubled[lane] or number > 0:
        causes.append(UNKNOWN)
    return causes


def _compare(
    lived: Lived,
    lane: int,
    life: Life,
    stream: str,
    causes: list[str],
    found: Found,
    earlier: dict[str, Earlier],
) -> Violation | None:
    """None if everything is as expected after this life, with one cause of death."""
    reported = {
        report.cause.partition(":")[0] for (of, _), report in found.reports.items() if of == stream
    }
    if len(reported) > 1:
        return Violation("misreported", f"several causes of one death: {reported}")
    if reported and not reported <= set(causes):
        return Violation("misreported", f"cause {reported}, but it was {causes}")
    cause = next(iter(reported), causes[0] if causes else UNKNOWN)
    expected = life.expected(cause, earlier)
    checkpoints = lived.chapter.lanes[lane].checkpoints
    try:
        for session in expected:
            _compare_rows(session, found)
        for session in expected:
            _compare_session(session, found, earlier, {other.id: other for other in expected})
            _compare_report(session, stream, found, checkpoints)
            _compare_hooks(lived, session, stream, found, checkpoints)
        ids = {session.id for session in expected}
        for of, id in [*found.reports, *found.hooks]:
            if of == stream and id not in ids:
                return Violation("misreported", f"report or hook for {id!r}, which was never sent")
    except Violation as violation:
        return violation
    return None


def _compare_rows(session: Expected, found: Found) -> None:
    rows = found.rows.get(session.id, [])
    if rows == session.rows:
        return
    have, want = Counter(rows), Counter(session.rows)
    missing, extra = list((want - have).elements()), list((have - want).elements())
    if not missing and not extra:
        category = "misordered"
    elif missing:
        category = "lost"
    else:
        category = "duplicated" if any(row in want for row in extra) else "misreported"
    place = next(
        (i for i, (a, b) in enumerate(zip(rows, session.rows, strict=False)) if a != b), -1
    )
    raise Violation(
        category,
        f"{session.id}: {len(rows)} rows for {len(session.rows)}, first difference at {place}; "
        f"missing {_short(missing)}; not expected {_short(extra)}",
    )


def _compare_session(
    session: Expected, found: Found, earlier: dict[str, Earlier], expected: dict[str, Expected]
) -> None:
    row = found.sessions.get(session.id)
    if not session.exists:
        if row is not None:
            raise Violation("misreported", f"{session.id}: a row for an empty session")
        return
    if row is None:
        raise Violation("lost", f"{session.id}: no row in sessions")
    parent = session.parent
    # A session in which nothing was said has no row: its own parent takes its place.
    while parent is not None and parent not in earlier and not expected[parent].exists:
        parent = expected[parent].parent
    rows = found.rows.get(session.id, [])
    _equal(session.id, "end_reason", row["end_reason"], session.end_reason)
    _equal(session.id, "title", row["title"], session.title)
    _equal(session.id, "parent", row["parent_session_id"], parent)
    _equal(session.id, "message_count", row["message_count"], len(rows))
    _equal(session.id, "tool_call_count", row["tool_call_count"], sum(len(r.calls) for r in rows))
    _equal(session.id, "ended", row["ended_at"] is not None, session.end_reason is not None)


def _compare_report(session: Expected, stream: str, found: Found, checkpoints: bool) -> None:
    report = found.reports.get((stream, session.id))
    if session.outcome == "empty":
        if report is not None:
            raise Violation("misreported", f"{session.id}: a report about nothing: {report}")
        return
    if report is None:
        raise Violation("misreported", f"{session.id}: no report")
    counts = report.recovered
    exact = _equal if not checkpoints else _at_most
    _equal(session.id, "reported outcome", report.outcome, session.outcome)
    _equal(session.id, "reported problems", report.problems, [])
    _equal(session.id, "reported as complete", report.complete, True)
    _equal(session.id, "reported end", report.end_reason, session.end_reason)
    exact(session.id, "reported messages", counts.messages, session.inserted)
    exact(session.id, "reported unknown calls", counts.calls_unknown, session.unknown)
    exact(
        session.id,
        "reported calls never started",
        counts.calls_never_started,
        session.never_started,
    )
    exact(session.id, "reported characters", counts.partial_characters, session.partial_characters)
    _equal(session.id, "reported out of order", counts.out_of_order, 0)
    _equal(
        session.id,
        "reported hooks",
        [ran["outcome"] for ran in report.hooks],
        ["ok"] * session.hook,
    )


def _compare_hooks(
    lived: Lived, session: Expected, stream: str, found: Found, checkpoints: bool
) -> None:
    """A hook runs once; again only if a run was cut off, and then the event says so."""
    ran = [event["extra"] for event in found.hooks.get((stream, session.id), [])]
    if not session.hook:
        if ran:
            raise Violation("misreported", f"{session.id}: a hook ran that was not due")
        return
    if not ran:
        raise Violation("misreported", f"{session.id}: the hook did not run")
    attempts = [extra["attempt"] for extra in ran]
    if len(set(attempts)) != len(attempts):
        raise Violation("duplicated", f"{session.id}: hook attempts {attempts}")
    who = ("recover", "supervisor", "successor", "start", "runner")
    cuts = sum(n for name, n in lived.kills.items() if any(word in name for word in who))
    if max(attempts) > 1 + cuts:
        raise Violation("misreported", f"{session.id}: hook attempts {attempts} after {cuts} kills")
    # A hook does not wait until the disk has room again.
    exact = _at_most if checkpoints or any(lived.limited) else _equal
    for extra in ran:
        _equal(session.id, "repeated", extra["repeated"], extra["attempt"] > 1)
        exact(
            session.id,
            "recovered, in the event of a hook",
            extra["recovered"]["messages"],
            session.inserted,
        )


def _at_most(id: str, what: str, have: int, want: int) -> None:
    if have > want:
        raise Violation("misreported", f"{id}: {what} is {have!r}, must be at most {want!r}")


def _equal(id: str, what: str, have: object, want: object) -> None:
    if have != want:
        raise Violation("misreported", f"{id}: {what} is {have!r}, must be {want!r}")


def _short(rows: list[Row]) -> str:
    return str([(row.role, (row.content or "")[:40], row.call, row.calls) for row in rows[:3]])


# -- reading -----------------------------------------------------------------------------------


def _nothing_left_over(world: World) -> None:
    runs = world.left_behind()
    sockets = os.path.join(world.runtime, "hermes-supervise")
    left = os.listdir(sockets) if os.path.isdir(sockets) else []
    # There is no folder if every supervisor was killed before it made one.
    state = os.path.join(world.state, "hermes-supervise")
    names = os.listdir(state) if os.path.isdir(state) else []
    unknown = set(names) - {"runs", "reports", "hooks"}
    hooks = world.hooks("waiting") + world.hooks("dead")
    if runs or left or unknown or hooks:
        inside = {run: sorted(os.listdir(os.path.join(world.runs, run))) for run in runs}
        what = f"runs {inside}, sockets {left}, hooks {hooks}, {unknown}"
        raise Violation("misreported", f"left over: {what}")


def read(world: World) -> Found:
    found = Found({}, {}, {}, {})
    if os.path.exists(world.db):
        _read_database(world, found)
    if os.path.isdir(world.reports):
        for name in sorted(os.listdir(world.reports)):
            for report in report_file.read(os.path.join(world.reports, name)):
                found.reports[report.stream, report.session] = report
    if os.path.exists(world.hooked):
        with open(world.hooked) as file:
            text = file.read()
        decoder, at = json.JSONDecoder(), 0
        while at < len(text):
            event, at = decoder.raw_decode(text, at)
            stream = event["extra"]["recovery_id"].partition(":")[2]
            found.hooks.setdefault((stream, event["session_id"]), []).append(event)
    return found


def _read_database(world: World, found: Found) -> None:
    db = sqlite3.connect(f"file:{world.db}?mode=ro", uri=True, timeout=30)
    db.row_factory = sqlite3.Row
    try:
        sound = db.execute("PRAGMA integrity_check").fetchone()[0]
        if sound != "ok" or db.execute("PRAGMA foreign_key_check").fetchall():
            raise Violation("misreported", f"state.db is not sound: {sound}")
        if db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'sessions'").fetchone()[0]:
            for row in db.execute("SELECT * FROM sessions"):
                found.sessions[row["id"]] = dict(row)
            for row in db.execute("SELECT * FROM messages ORDER BY id"):
                found.rows.setdefault(row["session_id"], []).append(_row(row))
    finally:
        db.close()


def _row(row: sqlite3.Row) -> Row:
    calls = tuple(call["id"] for call in json.loads(row["tool_calls"] or "[]"))
    # A checkpoint of a living agent writes the same with another text.
    content = RESULT_UNKNOWN if row["content"] == NOT_REPORTED else row["content"]
    return Row(
        row["role"], content, row["tool_call_id"], calls, row["finish_reason"],
        row["reasoning"], row["effect_disposition"],
    )  # fmt: skip
