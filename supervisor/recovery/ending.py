"""How a session ended, decided from all processes that had a share in it.

Never asks a database or another run itself: the caller passes their answers. The table in
outcome.py says what the end of one process means; this module applies it to several.

A session ends with the last of its processes, with the worst outcome since its last completed turn.
Each process is recovered when it ends, and the last one perhaps by another supervisor. So each
recovery leaves a note in its marker for the recovery of the last process.
"""

from __future__ import annotations

from ...ipc.lightweight.dataclass import dataclass, field
from ..agents import registry
from ..model.life import life_of
from ..process.cause import Cause, from_record
from .outcome import Crash, Moment, Outcome, crashed, outcome_of, works, worst

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..model.stream import ReplayedStream, Session
    from .reading import Reading

_OF_A_CRASH = ("signal", "code", "at", "mono", "oom", "terminal_closed")


@dataclass
class Member:
    """A stream's share in a session, and what is to become of it."""

    reading: Reading
    session: Session
    path: str
    cause: Cause | None
    """None: its process lives."""
    outcome: str = ""
    end: tuple[float, str] | None = None
    ended_by: Cause | None = None
    """What ended the session, if it was not the end of this process."""
    had_hooks: bool = False
    """The hooks of that end have been queued already."""
    note: dict[str, Any] = field(default_factory=dict)

    @property
    def stream(self) -> str:
        return self.reading.stream

    @property
    def replayed(self) -> ReplayedStream:
        return self.reading.replayed

    @property
    def died(self) -> Cause:
        """How its process ended; unknown for a living process."""
        return self.cause or Cause()

    @property
    def is_open(self) -> bool:
        return self.session.ended is None and not self.session.rotated


def decide(
    dead: list[Member],
    is_open_elsewhere: Callable[[Member], bool],
    notes_of_others: Callable[[list[Member]], list[dict[str, Any]]],
    living: list[Member],
) -> None:
    """Decide what became of the session, from its records and from how its processes ended.

    `living`: the shares of living processes. One of them may have ended the session.
    `is_open_elsewhere` says whether another living process can go on with the session;
    `notes_of_others` has the notes about processes that were recovered before.
    """
    for member in dead:
        session = member.session
        if session.rotated:
            member.outcome = "continued as another"
            member.end = session.ended_at, session.ended or "compression"
        elif session.ended is not None:
            member.outcome, member.end = _end_by_word(session)
        elif (other := _ended_by_another(member, [*dead, *living])) is not None:
            member.outcome, member.end = _end_by_word(other)
    left_open = [member for member in dead if not member.outcome]
    if left_open and is_open_elsewhere(left_open[0]):
        for member in left_open:
            member.outcome = "open elsewhere"
            member.note = _note_for_the_last(member)
    elif left_open:
        _decide_end(left_open, notes_of_others(left_open))
    for member in dead:
        if not registry.of_stream(member.replayed).may_be_ended(member.session):
            member.end = None


def _decide_end(left_open: list[Member], others: list[dict[str, Any]]) -> None:
    """No process can continue the session: it ends now, with the worst outcome."""
    last = max(left_open, key=lambda member: (member.died.mono, member.died.at))
    alone = len(left_open) == 1 and not others
    in_flight = last.session.in_flight if alone else _works(last, left_open, others)
    said_bye = last.replayed.said_bye
    outcome = outcome_of(last.cause, said_bye=said_bye, in_flight=in_flight)
    agent = registry.of_stream(last.replayed)
    if agent.is_between_requests(last.session) or agent.was_quit(last.replayed):
        outcome = Outcome.COMPLETED
    elif in_flight and agent.left_unclosed(last.session):
        outcome = Outcome.INTERRUPTED
    closing = last
    if outcome is Outcome.COMPLETED and not alone:
        closing, outcome = _hidden_crash(left_open, last, others)
    for member in left_open:
        member.note = _note_for_the_last(member)
        if member is closing:
            member.outcome, member.end = outcome.value, (last.died.at, outcome.value)
            if outcome is Outcome.INTERRUPTED:
                member.note["crash"] = _crash_record(member)
        else:
            member.outcome = "open elsewhere"


def _works(last: Member, left_open: list[Member], others: list[dict[str, Any]]) -> bool:
    """True if the last process had work in flight that no other process has completed since. A
    worker that adds a question to a turn has no work left once the turn is answered."""
    notes = [*others, *(_note_for_the_last(member) for member in left_open)]
    turns = [turn for note in notes if (turn := _moment_in(note.get("turn")))]
    said = _last_record_of(last)
    return works(last.session) and not any(turn.is_after(said) for turn in turns)


def _end_by_word(session: Session) -> tuple[str, tuple[float, str]]:
    """The outcome and the end of a session that was ended by word."""
    outcome = "finalised when idle" if session.idle else "ended by the agent"
    return outcome, (session.ended_at, session.ended or "")


def _ended_by_another(member: Member, members: list[Member]) -> Session | None:
    """The session as it is to the process that ended it after all that this process said in it."""
    said = _last_record_of(member)
    for other in members:
        ended = other.session.ended is not None and not other.session.rotated
        if ended and _last_record_of(other).is_after(said):
            return other.session
    return None


def _last_record_of(member: Member) -> Moment:
    session = member.session
    return Moment(life_of(member.replayed, session).boot, session.last_place, session.heard_at)


def _hidden_crash(
    left_open: list[Member], last: Member, others: list[dict[str, Any]]
) -> tuple[Member, Outcome]:
    """The last process exited normally: True if another process had crashed the session before; and
    the process whose end is the end of the session."""
    by_note = [(note, last) for note in others]
    by_note += [(_note_for_the_last(member), member) for member in left_open]
    crashes = [(crash, note, member) for note, member in by_note if (crash := crash_in(note))]
    turns = [turn for note, _ in by_note if (turn := _moment_in(note.get("turn")))]
    hidden = worst([crash for crash, _, member in crashes if member is not last or others], turns)
    for crash, note, member in crashes:
        if crash is hidden:
            member.ended_by = crash.cause
            # The recovery of that process may have ended the session then, and run its hooks.
            member.had_hooks = note.get("outcome") == Outcome.INTERRUPTED.value
            return member, Outcome.INTERRUPTED
    return last, Outcome.COMPLETED


def _note_for_the_last(member: Member) -> dict[str, Any]:
    """What the recovery of the last process in a session has to know about this process."""
    session, cause = member.session, member.died
    note: dict[str, Any] = {}
    if session.takes_turns and (session.completed_at or session.completed_place):
        boot = life_of(member.replayed, session).boot
        note["turn"] = vars(Moment(boot, session.completed_place, session.completed_at))
    if session.ended is None and crashed(cause, session, said_bye=member.replayed.said_bye):
        note["crash"] = _crash_record(member)
    return note


def _crash_record(member: Member) -> dict[str, Any]:
    cause = member.ended_by or member.died
    boot = life_of(member.replayed, member.session).boot
    when = Moment(boot, cause.mono or member.session.last_place, cause.at)
    how = {name: value for name, value in cause.as_record().items() if name in _OF_A_CRASH}
    return {"when": vars(when), "cause": how}


def crash_in(note: dict[str, Any]) -> Crash | None:
    """The crash that a marker's note tells of, if there is one."""
    crash = note.get("crash")
    if not isinstance(crash, dict) or not isinstance(crash.get("cause"), dict):
        return None
    when = _moment_in(crash.get("when"))
    return Crash(when, from_record(crash["cause"])) if when is not None else None


def _moment_in(value: object) -> Moment | None:
    if not isinstance(value, dict):
        return None
    boot, place, at = value.get("boot"), value.get("place"), value.get("at")
    if isinstance(boot, str) and isinstance(place, int) and isinstance(at, int | float):
        return Moment(boot, place, at)
    return None
