"""Describes what became of a session, for the report: data, and never any of its text.

Never reads a database: `complete` is given what was written.
"""

from __future__ import annotations

import time

from ..agents import registry
from .outcome import Outcome
from .reading import agent_of, not_captured, open_calls
from .report import SessionReport

CUT_SHORT = "the journal ends before the last message that was stored: what followed may be lost"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..model.stream import Session
    from ..process.cause import Cause
    from ..statedb.writer import Applied
    from .ending import Member
    from .reading import Reading


def describe(run: str, settings: dict[str, Any], member: Member) -> SessionReport:
    """What is known of a session before its rows are written."""
    session, agent = member.session, registry.of_stream(member.replayed)
    cause = member.died
    described = SessionReport(
        session=session.id, run=run, stream=member.stream, db=member.path,
        outcome=member.outcome, cause=str(member.ended_by or cause), died_at=cause.at,
        **_circumstances(member, cause), launched=_moment(settings.get("started")),
        model=_text(session, "model"),
        platform=_text(session, "platform") or _text(session, "source"),
        subagent=not agent.is_the_users(session), orphans=cause.orphans,
        working=session.in_flight, progress=session.progressed,
        after=settings.get("after"), not_captured=not_captured(member.replayed),
        unseen_reply=agent.may_have_shown_more(session, member.replayed),
    )  # fmt: skip
    described.resume = agent.resume_hint(session)
    described.resume_full = registry.resumed_with_options(
        settings.get("command"), agent, described.resume
    )
    described.problems += session.problems
    too_long = sum(not parts for parts in session.cut.values())
    cut_off = len({uid for uid, parts in session.cut.items() if parts} | session.pieces.keys())
    if too_long:
        described.problems.append(f"cut messages, longer than 256 MiB: {too_long}")
    if cut_off:
        described.problems.append(f"messages cut off by the agent's death: {cut_off}")
    return described


def complete(described: SessionReport, member: Member, applied: Applied | None) -> None:
    """Add what was written. `applied` is None if there was nothing to write."""
    if applied is not None:
        _add_rows(described, applied, member.end)
        return
    # A session that goes on from one that was cut off is reported, though it has no row.
    interrupted = member.outcome == Outcome.INTERRUPTED.value
    if not interrupted or not member.replayed.continues(member.session):
        described.outcome = "empty"
    described.settled_at = time.time()


def _add_rows(described: SessionReport, applied: Applied, end: tuple[float, str] | None) -> None:
    described.recovered = applied.counts
    described.end_reason = applied.ended_as
    described.settled_at = applied.at
    noted = applied.note.get("outcome")
    if isinstance(noted, str) and noted:
        described.outcome = noted  # an earlier recovery may have known more about the others
    if applied.title_dropped is not None:
        described.problems.append("another session already has the pending title; it was dropped")
    if applied.counts.out_of_order:
        described.problems.append(
            f"{applied.counts.out_of_order} messages are stored after later messages of the agent"
        )
    ours = (Outcome.INTERRUPTED.value, Outcome.COMPLETED.value)
    has_end = applied.ended_as is not None or end is not None
    if described.outcome in ours and has_end and not applied.ended_by_us:
        described.outcome = "ended by the agent"  # it had ended the row, and never said so


def lost_of(reading: Reading) -> int:
    """How many records are missing from a stream."""
    return sum(last - first + 1 for first, last in reading.replayed.gaps)


def cut_short(reading: Reading) -> bool:
    """True if records are lost that were in no file, so that nobody knows which was the last."""
    return any(session.cut_short for session in reading.replayed.sessions.values())


def problems_of(reading: Reading, lost: int, *, ends_early: bool) -> list[str]:
    """What is wrong with a stream's files, and concerns all of its sessions."""
    damaged, replayed = reading.gathered.damaged, reading.replayed
    problems = [f"{name} is damaged ({what}); copy kept" for name, what in damaged.items()]
    if lost:
        problems.append(f"{lost} records were lost before they could be stored")
    if ends_early:
        problems.append(CUT_SHORT)
    if replayed.bad_records:
        problems.append(f"{replayed.bad_records} records were not valid")
    return problems


def _circumstances(member: Member, cause: Cause) -> dict[str, Any]:
    """What was going on when it happened, without any of the text."""
    session, replayed = member.session, member.replayed
    pid = (replayed.peer or replayed.hello).get("pid")
    ended_by = member.ended_by or cause
    return {
        "reason": {"kind": ended_by.kind, "signal": ended_by.signal, "exit_code": ended_by.code},
        "agent": agent_of(replayed),
        "pid": pid if isinstance(pid, int) else None,
        "began": session.began or None,
        "doing": session.phase.value,
        "doing_since": session.phase_at or None,
        "open_calls": open_calls(session),
        "memory": cause.memory,
    }


def _moment(at: object) -> float | None:
    return float(at) if isinstance(at, int | float) and 0 < at < 1e12 else None


def _text(session: Session, field: str) -> str | None:
    """A field of a session as text; the agent may have sent any type."""
    value = session.about.get(field)
    return value if isinstance(value, str) else None
