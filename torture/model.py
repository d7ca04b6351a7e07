"""The model: what state.db, reports and hooks must contain after a death.

Never looks at frames, journals or the code that replays them. To the model a process is a list of
steps, of which a dead process has completed the first few.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hermes_supervise.supervisor.process.cause import Cause
from hermes_supervise.supervisor.statedb.reconcile import NEVER_STARTED, RESULT_UNKNOWN

Step = tuple[Any, ...]
"""Kind, handle of the conversation, and whatever the kind needs."""

INTERRUPTED, EXITED = "interrupted", "exited"
KILLED, UNKNOWN = str(Cause(signal=9)), str(Cause())


@dataclass(frozen=True)
class Row:
    """A message as it is compared: every column that recovery or the agent writes."""

    role: str
    content: str | None
    call: str | None = None
    calls: tuple[str, ...] = ()
    finish: str | None = None
    reasoning: str | None = None
    effect: str | None = None


@dataclass
class Call:
    id: str
    item: str
    """The uid of the message that contains the call."""
    started: bool = False
    result: str | None = None


@dataclass
class Earlier:
    """What an earlier life left of a session."""

    rows: list[Row]
    ended: str | None
    title: str | None
    parent: str | None


@dataclass
class Conversation:
    id: str
    self_storing: bool = False
    """The agent stores its messages itself, sooner or later."""
    items: list[tuple[str, Row]] = field(default_factory=list)
    partial: set[str] = field(default_factory=set)
    streamed: str = ""
    thought: str = ""
    calls: dict[str, Call] = field(default_factory=dict)
    announces: bool = False
    busy: bool = False
    title: str | None = None
    ended: str | None = None
    rotated: bool = False
    fired: bool = False
    parent: str | None = None
    continues: bool = False
    """It continues a session that had messages."""
    takes_turns: bool = False
    """A turn was begun in it: it was used, also if no message came of it."""
    announced: bool = False
    """The agent sent it. A session that the agent only stored is not ours to finish."""
    # What the agent itself has put into state.db.
    row: bool = False
    row_ended: str | None = None
    row_parent: str | None = None
    kept: list[Row] = field(default_factory=list)
    """Rows of a rewritten transcript, which match no message that was sent."""
    stored: int = 0
    silent: bool = False
    """It stored messages without a `settled` record."""


@dataclass
class Expected:
    """What a death at a certain moment must have led to, for one session."""

    id: str
    rows: list[Row]
    outcome: str
    end_reason: str | None
    exists: bool
    title: str | None
    parent: str | None
    hook: bool
    inserted: int
    unknown: int
    never_started: int
    partial_characters: int


class Life:
    """One process and its conversations by handle, advanced step by step."""

    def __init__(self) -> None:
        self.live: dict[int, Conversation] = {}
        self.every: list[Conversation] = []
        self.said_bye = False
        self.spoke = False

    def take(self, step: Step) -> None:
        kind, on, *rest = step
        if kind == "bye":
            self.said_bye = self.spoke
            return
        if not kind.startswith("db_"):
            self.said_bye, self.spoke = False, True
        getattr(self, "_" + kind)(self.live.get(on) or Conversation(""), on, *rest)

    # -- sent by the agent -----------------------------------------------------------------

    def _session(self, at: Conversation, on: int, id: str, self_storing: bool, parent: str) -> None:
        if on not in self.live:
            self._begin(on, Conversation(id, self_storing))
        self.live[on].parent, self.live[on].announced = parent or None, True

    def _user(self, at: Conversation, on: int, uid: str, text: str) -> None:
        self._break_off(at, uid)
        at.items.append((uid, Row("user", text)))
        at.fired, at.busy, at.ended = False, True, None

    def _aside(self, at: Conversation, on: int, uid: str, text: str) -> None:
        self._break_off(at, uid)
        at.items.append((uid, Row("assistant", text)))
        at.busy = False

    def _break_off(self, at: Conversation, uid: str) -> None:
        if at.streamed or at.thought:
            at.items.append((f"broken {uid}", self._reply(at)))
            at.partial.add(f"broken {uid}")
        at.streamed = at.thought = ""

    def _reply(self, at: Conversation) -> Row:
        return Row("assistant", at.streamed, finish=INTERRUPTED, reasoning=at.thought or None)

    def _assistant(
        self, at: Conversation, on: int, uid: str, text: str | None, calls: tuple[str, ...]
    ) -> None:
        content = text if text is not None else at.streamed or None
        row = Row("assistant", content, calls=calls, reasoning=at.thought or None)
        at.streamed = at.thought = ""
        at.items.append((uid, row))
        for id in calls:
            at.calls[id] = Call(id, uid)
        at.busy = bool(calls)

    def _again(self, at: Conversation, on: int, uid: str, text: str) -> None:
        """Correct a message without calls, in its place."""
        for index, (known, row) in enumerate(at.items):
            if known == uid:
                at.items[index] = uid, Row(row.role, text)

    def _delta(self, at: Conversation, on: int, text: str, thought: bool, restart: bool) -> None:
        if restart:
            at.streamed = at.thought = ""
        if thought:
            at.thought += text
        else:
            at.streamed += text
        at.busy = True

    def _tool_start(self, at: Conversation, on: int, id: str) -> None:
        at.calls[id].started = at.announces = at.busy = True

    def _tool_end(self, at: Conversation, on: int, id: str, result: str) -> None:
        at.calls[id].result = result
        at.busy = True

    def _tool_message(self, at: Conversation, on: int, id: str, result: str) -> None:
        at.items.append((f"answer {id}", Row("tool", result, call=id)))
        del at.calls[id]
        at.busy = True

    def _turn(self, at: Conversation, on: int, phase: str) -> None:
        at.busy = phase == "start"
        if phase == "start":
            at.fired, at.ended, at.takes_turns = False, None, True

    def _title(self, at: Conversation, on: int, title: str) -> None:
        at.title = title

    def _hook(self, at: Conversation, on: int) -> None:
        at.fired = True

    def _ended(self, at: Conversation, on: int, reason: str) -> None:
        at.ended, at.busy = at.ended or reason, False

    def _rotated(self, at: Conversation, on: int, new: str) -> None:
        after = Conversation(
            new, at.self_storing, parent=at.id, busy=at.busy, announces=at.announces,
            takes_turns=at.takes_turns,
        )  # fmt: skip
        after.announced = True
        after.continues = bool(at.items) or at.continues or bool(at.kept)
        after.streamed, after.thought, at.streamed, at.thought = at.streamed, at.thought, "", ""
        at.ended, at.rotated = at.ended or "compression", True
        self._begin(on, after)

    def _settled(self, at: Conversation, on: int) -> None:
        pass

    def _rewritten(self, at: Conversation, on: int) -> None:
        at.busy = False

    # -- done by the agent to state.db -------------------------------------------------------

    def _db_session(
        self, at: Conversation, on: int, id: str, self_storing: bool, parent: str
    ) -> None:
        if on not in self.live:
            self._begin(on, Conversation(id, self_storing))
        self.live[on].row, self.live[on].row_parent = True, parent or None

    def _db_rotated(self, at: Conversation, on: int, old: str) -> None:
        before = next(session for session in self.every if session.id == old)
        before.row_ended = before.row_ended or "compression"
        at.row, at.row_parent = True, old

    def _db_rows(self, at: Conversation, on: int, uids: tuple[str, ...], silent: bool) -> None:
        at.stored += len(uids)
        at.silent = at.silent or silent

    def _db_rewritten(self, at: Conversation, on: int, kept: tuple[str, ...]) -> None:
        at.kept = [Row("assistant", text) for text in kept]
        at.items, at.stored, at.silent = [], 0, False

    def _db_ended(self, at: Conversation, on: int, reason: str) -> None:
        at.row_ended = at.row_ended or reason

    def _begin(self, on: int, conversation: Conversation) -> None:
        self.live[on] = conversation
        self.every.append(conversation)

    # -- what must follow ----------------------------------------------------------------------

    def expected(self, cause: str, earlier: dict[str, Earlier]) -> list[Expected]:
        return [
            self._after(session, cause, earlier.get(session.id))
            for session in self.every
            if session.announced
        ]

    def _after(self, at: Conversation, cause: str, earlier: Earlier | None) -> Expected:
        rows, unknown, never, characters = transcript(at)
        before = (earlier.rows if earlier else []) + at.kept
        inserted = len(rows) - at.stored
        if at.rotated:
            outcome, reason = "continued as another", "compression"
        elif at.ended is not None:
            outcome, reason = "ended by the agent", at.ended
        else:
            outcome = reason = decided(cause, said_bye=self.said_bye, busy=at.busy)
        exists = bool(earlier or at.row or inserted)
        ended_before = at.row_ended or (earlier.ended if earlier else None)
        reopened = bool(earlier and (inserted or at.takes_turns) and not at.row_ended)
        we_end_it = exists and (ended_before is None or reopened)
        if not exists:
            if outcome != INTERRUPTED or not at.continues:
                outcome = "empty"
        elif not we_end_it and outcome in (INTERRUPTED, EXITED):
            outcome = "ended by the agent"
        title = earlier.title if earlier and earlier.title else at.title
        parent = earlier.parent if earlier else at.row_parent if at.row else at.parent
        return Expected(
            at.id, before + rows, outcome, reason if we_end_it else ended_before, exists,
            title if exists else None, parent, outcome == INTERRUPTED and not at.fired,
            inserted, unknown, never, characters,
        )  # fmt: skip


def decided(cause: str, *, said_bye: bool, busy: bool) -> str:
    """The outcome of a death for an open session."""
    if cause == "exited with code 0":
        return INTERRUPTED if busy and not said_bye else EXITED
    if cause in (KILLED, UNKNOWN):
        return EXITED if said_bye and not busy else INTERRUPTED
    return INTERRUPTED


def transcript(at: Conversation) -> tuple[list[Row], int, int, int]:
    """All messages with every call answered, and the reply in progress; also how many calls have an
    unknown effect, how many never started, and how many characters belong to partial replies."""
    rows: list[Row] = []
    waiting: list[Call] = []
    unknown = never = characters = 0

    def answer_all() -> None:
        nonlocal unknown, never
        for call in waiting:
            if call.result is not None:
                rows.append(Row("tool", call.result, call=call.id))
            elif at.announces and not call.started:
                never += 1
                rows.append(Row("tool", NEVER_STARTED, call=call.id, effect="none"))
            else:
                unknown += 1
                rows.append(Row("tool", RESULT_UNKNOWN, call=call.id, effect="unknown"))
        waiting.clear()

    for uid, row in at.items:
        if row.role != "tool":
            answer_all()
        rows.append(row)
        if uid in at.partial:
            characters += len(row.content or "")
        waiting += [call for call in at.calls.values() if call.item == uid]
    answer_all()
    if at.streamed or at.thought:
        characters += len(at.streamed)
        rows.append(Row("assistant", at.streamed, finish=INTERRUPTED, reasoning=at.thought or None))
    return rows, unknown, never, characters
