"""A replayed stream: its sessions, their messages, and what was going on in them. Data only.

Never reads a record: replay does, and fills this in.

Everything keeps the numbers of the records that it comes from, so that compaction can tell which
records still matter without knowing what any of them means.

Several processes may send messages of one session, each in a stream of its own. A *place* orders
these messages: the reading of a clock that only goes forward, in nanoseconds, taken when the record
was made. Places are comparable only within one boot of the machine. 0: the record has none (an
older client).
"""

from __future__ import annotations

from ...ipc.lightweight.dataclass import dataclass, field
from ...ipc.records import join_pieces
from ..process.cause import Cause
from .phases import IN_FLIGHT, TABLE, Event, Phase

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Record = dict[str, Any]
    Message = dict[str, Any]
else:
    Record = Message = dict

# The fields of a session that the note of a compaction carries on.
CARRIED = (
    "began", "heard_at", "watermark", "rewritten_at", "announces_tools", "spoke", "settles",
    "first_place", "last_place", "takes_turns", "completed_at", "completed_place", "cut_off",
)  # fmt: skip
# What the note of a stored session repeats of its announcement: recovery asks for these.
ANNOUNCED = ("db", "source", "model", "platform", "parent", "cwd", "resume", "subagent")


@dataclass
class Item:
    """One message of a session, in its place."""

    uid: str
    message: Message
    at: float
    settled: bool = False
    row: int | None = None
    live: bool = True
    """False: it comes from a history that the agent reported when it began."""
    partial: bool = False
    """A reply that was broken off: the agent may have stored more of it, less, or nothing."""
    outdated: bool = False
    """In the database in an earlier form, in a row that we wrote ourselves."""
    rewritten: bool = False
    """The agent rewrote its rows since: the row that holds the message now is an old one."""
    place: int = 0
    records: list[int] = field(default_factory=list)
    """The records that the message comes from."""
    settled_by: list[int] = field(default_factory=list)
    """The records that say it is in the database."""
    tool_records: list[int] = field(default_factory=list)
    """The records about the calls it makes. They mean something else without it."""
    closed_by: list[Item] = field(default_factory=list)
    """The messages without which calls of it would be open."""

    @property
    def anchored(self) -> bool:
        """True if it is in the database and its row is known, or known to be an old one."""
        return self.settled and (self.row is not None or self.rewritten)


@dataclass
class Stored:
    """Where a message of a session is that the supervisor stored itself (stored.py)."""

    row: int
    first: int
    last: int
    ours: bool
    """False: somebody else had written it, and we found it."""


@dataclass
class Reply:
    """The reply being streamed."""

    text_pieces: list[str] = field(default_factory=list)
    reasoning_pieces: list[str] = field(default_factory=list)
    broken: bool = False
    """Records are missing behind this point: later pieces do not belong to these."""
    began: float = 0.0
    """0: not known."""
    place: int = 0
    """The place of its first piece."""
    records: list[int] = field(default_factory=list)

    @property
    def text(self) -> str:
        return join_pieces(self.text_pieces)

    @property
    def reasoning(self) -> str:
        return join_pieces(self.reasoning_pieces)

    def as_message(self) -> Message | None:
        """The message that a reply becomes when it is broken off; None if nothing was streamed."""
        if not self.text and not self.reasoning:
            return None
        message: Message = {"role": "assistant", "content": self.text}
        if self.reasoning:
            message["reasoning"] = self.reasoning
        message["finish_reason"] = "interrupted"
        return message


@dataclass
class Call:
    """A tool call that an assistant message made."""

    id: str
    name: str
    item: Item
    """The message that made it."""
    started: bool = False
    result: str | None = None
    began: float = 0.0
    """When it started, or else when it was made."""


@dataclass
class Session:
    """One session, as one stream describes it."""

    id: str
    about: Record = field(default_factory=dict)
    phase: Phase = Phase.IDLE
    phase_at: float = 0.0
    """When the phase began. Compaction may make it a later moment. 0: not known."""
    stopped: bool = False
    """The user stopped the turn, so no reply is missing."""
    items: list[Item] = field(default_factory=list)
    reply: Reply | None = None
    calls: dict[str, Call] = field(default_factory=dict)
    """The calls without an answer in the transcript, in the order they were made."""
    announces_tools: bool = False
    """The agent reports the start of each tool, so a call without such a report did not start."""
    watermark: int = 0
    """The highest row of state.db that the agent said it wrote."""
    rewritten_at: float = 0.0
    """When the agent rewrote the rows itself. Later messages are in no row older than that."""
    title: str | None = None
    ended: str | None = None
    """The reason, where the agent itself ended it (or rotated away from it)."""
    ended_at: float = 0.0
    cut_off: bool = False
    """The agent ended it in the middle of a turn that the user had not stopped."""
    rotated: bool = False
    ancestors: list[str] = field(default_factory=list)
    """The sessions that it continues, the nearest first."""
    problems: list[str] = field(default_factory=list)
    """Parts that could not be read, as its reader reported."""
    hooks_fired: set[str] = field(default_factory=set)
    hooks_begun: set[str] = field(default_factory=set)
    """The agent began to run these itself. Those that are not in `hooks_fired` were cut off."""
    began: float = 0.0
    heard: int = 0
    """The number of its last record."""
    heard_at: float = 0.0
    first_place: int = 0
    last_place: int = 0
    takes_turns: bool = False
    """Turns begin in this stream: its process talks to the user. A worker that only adds to the
    turns of another process does not."""
    completed_at: float = 0.0
    completed_place: int = 0
    """When a turn was last completed, if it takes turns."""
    idle: bool = False
    """It was ended because it was idle, not by the agent."""
    settles: bool = False
    """The agent has said that it stores its messages itself."""
    stored: dict[str, Stored] = field(default_factory=dict)
    """What we stored of it, by uid."""
    noted: Record = field(default_factory=dict)
    """What was known of it when they were stored (`facts`)."""
    cut_short: bool = False
    """We stored messages of it from records that are lost since: only the supervisor had them, in
    its memory. What it said after these is not known."""
    repeated: dict[str, Item] = field(default_factory=dict)
    """Messages that were stored, left the journal, and were then sent again. They are not stored
    again, but their rows may have to be updated."""
    cut: dict[str, int] = field(default_factory=dict)
    """Messages that were too long for a frame and are not complete, by uid: how many pieces
    complete each; 0: it is longer than any message may be."""
    pieces: dict[str, dict[int, tuple[int, str]]] = field(default_factory=dict)
    """The pieces of these that have come, each with the number of its record."""
    spoke: bool = False
    """Messages came live, so an older history adds nothing."""
    sources: dict[str, int] = field(default_factory=dict)
    """What is known beside the messages, and the last record that says it."""
    announced_by: dict[int, set[str]] = field(default_factory=dict)
    """The records that `about` was made from, and the fields of each that are still valid."""
    phase_records: list[int] = field(default_factory=list)
    _indexes: dict[str, int] = field(default_factory=dict)

    def all_items(self) -> list[Item]:
        return [*self.items, *self.repeated.values()]

    @property
    def was_spoken_in(self) -> bool:
        """True if it was not only announced."""
        return self.spoke or self.takes_turns or bool(self.items)

    @property
    def in_flight(self) -> bool:
        return self.phase in IN_FLIGHT

    @property
    def progressed(self) -> bool:
        """True if the agent has completed a message or a call, and was not only asked."""
        return any(
            item.live and not item.partial and item.message["role"] != "user" for item in self.items
        )

    def facts(self) -> Record:
        """What a note of it says beside the rows, in case that its records are lost."""
        if not self.heard:
            return self.noted  # its records are not among those that were replayed
        known: Record = {name: getattr(self, name) for name in CARRIED}
        known["about"] = {name: self.about[name] for name in ANNOUNCED if name in self.about}
        if self.ended is not None and not self.idle:  # for that there is a note of its own
            known |= {"ended": self.ended, "ended_at": self.ended_at}
        return known

    def move(self, event: Event, seq: int) -> None:
        before, self.phase = self.phase, TABLE[self.phase, event]
        if self.phase is before:
            return
        # Only what opens a session again means something else without the end before it.
        reopens = event is Event.SESSION_OPENED
        self.phase_records = [*self.phase_records, seq] if reopens else [seq]
        if before is Phase.ENDED:
            self.ended, self.ended_at, self.cut_off = None, 0.0, False
            self.sources.pop("ended", None)


@dataclass
class Reset:
    """A new conversation replaced another."""

    old: str
    new: str
    at: float


@dataclass
class ReplayedStream:
    """Everything that a stream contains."""

    hello: Record = field(default_factory=dict)
    peer: Record = field(default_factory=dict)
    death: Cause | None = None
    said_bye: bool = False
    sessions: dict[str, Session] = field(default_factory=dict)
    dropped: dict[str, Session] = field(default_factory=dict)
    """Ended sessions whose records were all dropped by compaction. They matter only if a later
    record names one."""
    resets: dict[int, Reset] = field(default_factory=dict)
    """By the number of the record."""
    gaps: list[tuple[int, int]] = field(default_factory=list)
    bad_records: int = 0
    last: int = 0
    """The number of the last record."""
    place: int = 0
    """The place of the last record that has one."""
    judged: dict[str, bool] = field(default_factory=dict)
    """While what was compacted is replayed: the sessions whose end cut off a turn, or did not."""
    compacted: int = 0
    """Numbers up to here may be missing: compaction found their records settled."""
    lasting: list[int] = field(default_factory=list)
    """Records that hold for all that follow, or that a newer reader may understand."""
    _default_session: str | None = None
    _continuations: dict[str, str] = field(default_factory=dict)

    def session(self, id: str) -> Session:
        """The session of this id, which a record speaks of now."""
        if id not in self.sessions:
            self.sessions[id] = self.dropped.pop(id) if id in self.dropped else Session(id)
        return self.sessions[id]

    def live_id(self, id: str) -> str:
        """The id that a conversation has now, given any id that it ever had."""
        if id not in self._continuations:
            return id
        seen: set[str] = set()
        while id in self._continuations and id not in seen:
            seen.add(id)
            id = self._continuations[id]
        return id

    def continues(self, session: Session) -> bool:
        """True if this is the continuation of a session in which something was said."""
        earlier = {session.id}
        visited: set[str] = set()
        while earlier:
            visited |= earlier
            earlier = {
                old
                for old, new in self._continuations.items()
                if new in earlier and old in self.sessions and old not in visited
            }
            if any(self.sessions[old].items for old in earlier):
                return True
        return False
