"""Compares what is there with what must be: state.db, reports, hooks, and what is left over.

Never guesses in favour of the product: a process has got as far as one of the steps between its
last call that returned and the one it was in, and everything must be as after that one step.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections import Counter
from dataclasses import dataclass
from typing import Any

from hermes_supervise.supervisor.recovery import report as report_file
from hermes_supervise.supervisor.recovery.reconcile import NOT_REPORTED, RESULT_UNKNOWN
from hermes_supervise.supervisor.recovery.report import Settled

from .actors import World
from .conduct import Lived
from .model import KILLED, UNKNOWN, Earlier, Expected, Life, Row
from .script import steps

CATEGORIES = ("lost", "duplicated", "misordered", "misreported")


@dataclass
class Violation(Exception):
    category: str
    text: str


@dataclass
class Found:
    """Everything that a chapter left, read once."""

    rows: dict[str, list[Row]]
    sessions: dict[str, dict[str, Any]]
    reports: dict[tuple[str, str], Settled]
    hooks: dict[tuple[str, str], list[dict[str, Any]]]


def judge(lived: Lived, earlier: dict[str, Earlier]) -> None:
    """Raise the first violation; else note in `earlier` what the next chapter begins with."""
    world = lived.world
    _nothing_left_over(world)
    found = read(world)
    seen: set[str] = set()
    for lane, run in enumerate(lived.chapter.lanes):
        for number in range(len(run.processes)):
            seen |= _judge_process(lived, lane, number, found, earlier)
    strangers = set(found.sessions) - seen - set(earlier)
    if strangers:
        raise Violation("misreported", f"sessions that nobody told of: {sorted(strangers)}")
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
    ids = {one.id for one in whole.every}
    if certain < slot.returned and any(step[0].startswith("db_") for step in begun):
        return ids  # what a starved agent stored lasts, and what it said of it need not
    told_of = [report.problems for (of, _), report in found.reports.items() if of == slot.stream]
    if certain < slot.returned and any("were lost" in one for told in told_of for one in told):
        return ids  # there is a hole in what a starved agent said, and the report says so
    complaints: list[Violation] = []
    life = Life()
    for step in begun[:sure]:
        life.take(step)
    for at in range(sure, len(begun) + 1):
        if at > sure:
            life.take(begun[at - 1])
        complaint = _compare(lived, lane, life, slot.stream, causes, found, earlier)
        too_much = ids - {one.id for one in life.every} - set(earlier)
        if complaint is None and not too_much & set(found.sessions):
            return ids
        complaint = complaint or Violation("misreported", f"sessions {too_much}, not told of yet")
        complaints.append(complaint)
    # What it was sure to have said decides what kind of complaint it is.
    first, last = complaints[0], complaints[-1]
    where = f"lane {lane} process {number}, {certain} to {slot.begun} operations"
    more = f"; if it got to its last step: {last.text}" if last is not first else ""
    raise Violation(first.category, f"{where}: {first.text}{more}")


def _certain(lived: Lived, lane: int, number: int) -> int:
    """How many operations of a process must have left their mark."""
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
    # A fork's own parent may collect it before anybody else has looked.
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
    """None: everything is as after this life, of one and the same cause of death."""
    reported = {
        report.cause.partition(":")[0] for (of, _), report in found.reports.items() if of == stream
    }
    if len(reported) > 1:
        return Violation("misreported", f"several causes of one death: {reported}")
    if reported and not reported <= set(causes):
        return Violation("misreported", f"cause {reported}, but it was {causes}")
    cause = next(iter(reported), causes[0] if causes else UNKNOWN)
    told = life.expected(cause, earlier)
    checkpoints = lived.chapter.lanes[lane].checkpoints
    try:
        for one in told:
            _compare_rows(one, found)
        for one in told:
            _compare_session(one, found, earlier, {other.id: other for other in told})
            _compare_report(one, stream, found, checkpoints)
            _compare_hooks(lived, one, stream, found, checkpoints)
        ids = {one.id for one in told}
        for of, id in [*found.reports, *found.hooks]:
            if of == stream and id not in ids:
                return Violation("misreported", f"report or hook for {id!r}, never told of")
    except Violation as violation:
        return violation
    return None


def _compare_rows(one: Expected, found: Found) -> None:
    rows = found.rows.get(one.id, [])
    if rows == one.rows:
        return
    have, want = Counter(rows), Counter(one.rows)
    missing, extra = list((want - have).elements()), list((have - want).elements())
    if not missing and not extra:
        category = "misordered"
    elif missing:
        category = "lost"
    else:
        category = "duplicated" if any(row in want for row in extra) else "misreported"
    place = next((i for i, (a, b) in enumerate(zip(rows, one.rows, strict=False)) if a != b), -1)
    raise Violation(
        category,
        f"{one.id}: {len(rows)} rows for {len(one.rows)}, first difference at {place}; "
        f"missing {_short(missing)}; not expected {_short(extra)}",
    )


def _compare_session(
    one: Expected, found: Found, earlier: dict[str, Earlier], told: dict[str, Expected]
) -> None:
    row = found.sessions.get(one.id)
    if not one.exists:
        if row is not None:
            raise Violation("misreported", f"{one.id}: a row for a session without a word")
        return
    if row is None:
        raise Violation("lost", f"{one.id}: no row in sessions")
    parent = one.parent
    if parent is not None and parent not in earlier and not told[parent].exists:
        parent = None
    rows = found.rows.get(one.id, [])
    _equal(one.id, "end_reason", row["end_reason"], one.end_reason)
    _equal(one.id, "title", row["title"], one.title)
    _equal(one.id, "parent", row["parent_session_id"], parent)
    _equal(one.id, "message_count", row["message_count"], len(rows))
    _equal(one.id, "tool_call_count", row["tool_call_count"], sum(len(r.calls) for r in rows))
    _equal(one.id, "ended", row["ended_at"] is not None, one.end_reason is not None)


def _compare_report(one: Expected, stream: str, found: Found, checkpoints: bool) -> None:
    report = found.reports.get((stream, one.id))
    if one.outcome == "empty":
        if report is not None:
            raise Violation("misreported", f"{one.id}: a report about nothing: {report}")
        return
    if report is None:
        raise Violation("misreported", f"{one.id}: no report")
    counts = report.recovered
    exact = _equal if not checkpoints else _at_most
    _equal(one.id, "reported outcome", report.outcome, one.outcome)
    _equal(one.id, "reported problems", report.problems, [])
    _equal(one.id, "reported as complete", report.complete, True)
    _equal(one.id, "reported end", report.end_reason, one.end_reason)
    exact(one.id, "reported messages", counts.messages, one.inserted)
    exact(one.id, "reported unknown calls", counts.calls_unknown, one.unknown)
    exact(one.id, "reported calls never started", counts.calls_never_started, one.never_started)
    exact(one.id, "reported characters", counts.partial_characters, one.partial_characters)
    _equal(one.id, "reported out of order", counts.out_of_order, 0)
    _equal(one.id, "reported hooks", [ran["outcome"] for ran in report.hooks], ["ok"] * one.hook)


def _compare_hooks(
    lived: Lived, one: Expected, stream: str, found: Found, checkpoints: bool
) -> None:
    """Run once; again only if a run was cut off, and then told so."""
    ran = [event["extra"] for event in found.hooks.get((stream, one.id), [])]
    if not one.hook:
        if ran:
            raise Violation("misreported", f"{one.id}: a hook ran that was not owed")
        return
    if not ran:
        raise Violation("misreported", f"{one.id}: the hook did not run")
    attempts = [extra["attempt"] for extra in ran]
    if len(set(attempts)) != len(attempts):
        raise Violation("duplicated", f"{one.id}: hook attempts {attempts}")
    who = ("recover", "supervisor", "heir", "start", "runner")
    cuts = sum(n for name, n in lived.kills.items() if any(word in name for word in who))
    if max(attempts) > 1 + cuts:
        raise Violation("misreported", f"{one.id}: hook attempts {attempts} after {cuts} kills")
    # A hook does not wait until a disk has room again.
    exact = _at_most if checkpoints or any(lived.limited) else _equal
    for extra in ran:
        _equal(one.id, "repeated", extra["repeated"], extra["attempt"] > 1)
        exact(one.id, "recovered, said to a hook", extra["recovered"]["messages"], one.inserted)


def _at_most(id: str, what: str, have: int, want: int) -> None:
    if have > want:
        raise Violation("misreported", f"{id}: {what} is {have!r}, must be {want!r} at the most")


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
    # Where every supervisor was killed before it made anything, there is no folder.
    state = os.path.join(world.state, "hermes-supervise")
    names = os.listdir(state) if os.path.isdir(state) else []
    ours = set(names) - {"runs", "reports", "hooks"}
    hooks = world.hooks("waiting") + world.hooks("dead")
    if runs or left or ours or hooks:
        inside = {run: sorted(os.listdir(os.path.join(world.runs, run))) for run in runs}
        what = f"runs {inside}, sockets {left}, hooks {hooks}, {ours}"
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
    # Said while the agent lived, it means the same, in words that do not speak of a death.
    content = RESULT_UNKNOWN if row["content"] == NOT_REPORTED else row["content"]
    return Row(
        row["role"], content, row["tool_call_id"], calls, row["finish_reason"],
        row["reasoning"], row["effect_disposition"],
    )  # fmt: skip
