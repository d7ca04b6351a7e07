"""What a stream told: its sessions, their messages, and what was going on in them. Data only.

Never reads a record: replay does, and fills this in.

Everything remembers the numbers of the records it was made from, so that compaction can
tell which of them still matter without knowing what any of them means.
"""

from __future__ import annotations

from ..cause import Cause
from ..plain import dataclass, field
from .phases import IN_FLIGHT, TABLE, Event, Phase
from .stored import Stored

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Record = dict[str, Any]
    Message = dict[str, Any]
else:
    Record = Message = dict

# Of a session, what a compacted stream says of it in so many words.
CARRIED = ("began", "heard_at", "watermark", "rewritten_at", "announces_tools", "spoke", "settles")


@dataclass
class Item:
    """One message of a session, in its place."""

    uid: str
    message: Message
    at: float
    settled: bool = False
    row: int | None = None
    live: bool = True
    """False: from a history the agent reported, which it held before it spoke to us."""
    partial: bool = False
    """A reply that was broken off: the agent may have stored more or less of it, or none."""
    outdated: bool = False
    """In the database in an earlier form, in a row that we wrote ourselves."""
    rewritten: bool = False
    """The agent rewrote its rows since: whatever row holds it now is an old one."""
    made_of: list[int] = field(default_factory=list)
    """The records that say it."""
    marks: list[int] = field(default_factory=list)
    """The records that say it is in the database."""
    tools: list[int] = field(default_factory=list)
    """The records about the calls it makes: they mean something else without it."""
    closers: list[Item] = field(default_factory=list)
    """The messages without which calls of it would be open."""

    @property
    def anchored(self) -> bool:
        """In the database, and it is known where: among the rows nobody has to look at."""
        return self.settled and (self.row is not None or self.rewritten)


@dataclass
class Reply:
    """The reply being streamed."""

    text_pieces: list[str] = field(default_factory=list)
    reasoning_pieces: list[str] = field(default_factory=list)
    broken: bool = False
    """A gap lies behind this point: later pieces do not belong to what is here."""
    began: float = 0.0
    """0: nobody said when."""
    made_of: list[int] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.text_pieces)

    @property
    def reasoning(self) -> str:
        return "".join(self.reasoning_pieces)

    def as_message(self) -> Message | None:
        """What was streamed, as the message that it became by being broken off."""
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
    id: str
    about: Record = field(default_factory=dict)
    phase: Phase = Phase.IDLE
    phase_at: float = 0.0
    """Since when, for whoever looks on: compaction may make it a later moment. 0: nobody said."""
    stopped: bool = False
    """The user broke off the turn: that there is no reply to it is as it should be."""
    items: list[Item] = field(default_factory=list)
    reply: Reply | None = None
    calls: dict[str, Call] = field(default_factory=dict)
    """Those still without an answer in the transcript, in the order they were made."""
    announces_tools: bool = False
    """The agent says when a tool begins, so a call of which it did not say so has not begun."""
    watermark: int = 0
    """The highest row of state.db that the agent said it wrote."""
    rewritten_at: float = 0.0
    """When the agent rewrote the rows itself: what it told later is in none older than that."""
    title: str | None = None
    ended: str | None = None
    """The reason, where the agent itself ended it (or rotated away from it)."""
    ended_at: float = 0.0
    rotated: bool = False
    troubles: list[str] = field(default_factory=list)
    """What could not be read of it, as whoever read it told."""
    hooks_fired: set[str] = field(default_factory=set)
    began: float = 0.0
    heard: int = 0
    """The number of the last record that spoke of it."""
    heard_at: float = 0.0
    idle: bool = False
    """It was not the agent that ended it, but a long silence."""
    settles: bool = False
    """The agent has said that it stores its messages itself."""
    stored: dict[str, Stored] = field(default_factory=dict)
    """What we stored of it while the agent ran, by uid."""
    again: dict[str, Item] = field(default_factory=dict)
    """What was stored, is in the journal no more, and was then said again: no part of what
    is to be stored, but for the row that it has."""
    spoke: bool = False
    """Messages came live, so that an older picture of them tells nothing new."""
    made_of: dict[str, int] = field(default_factory=dict)
    """What is known beside the messages, and the last record that says it."""
    announced: dict[int, set[str]] = field(default_factory=dict)
    """The records that `about` was put together from, and what still holds of each."""
    phase_from: list[int] = field(default_factory=list)
    _places: dict[str, int] = field(default_factory=dict)

    def said_items(self) -> list[Item]:
        return [*self.items, *self.again.values()]

    @property
    def in_flight(self) -> bool:
        return self.phase in IN_FLIGHT

    @property
    def progressed(self) -> bool:
        """Whether the agent has said or done something whole, and not only been asked."""
        return any(
            item.live and not item.partial and item.message["role"] != "user" for item in self.items
        )

    def move(self, event: Event, seq: int) -> None:
        before, self.phase = self.phase, TABLE[self.phase, event]
        if self.phase is before:
            return
        # Only what opens a session again means something else without the end before it.
        self.phase_from = [*self.phase_from, seq] if event is Event.SESSION_OPENED else [seq]
        if before is Phase.ENDED:
            self.ended, self.ended_at = None, 0.0
            self.made_of.pop("ended", None)


@dataclass
class Reset:
    """A new conversation took the place of another."""

    old: str
    new: str
    at: float


@dataclass
class Told:
    """Everything a stream told."""

    hello: Record = field(default_factory=dict)
    peer: Record = field(default_factory=dict)
    death: Cause | None = None
    said_bye: bool = False
    sessions: dict[str, Session] = field(default_factory=dict)
    over: dict[str, Session] = field(default_factory=dict)
    """Those of which no record is left, for compaction has dropped them: they ended, and what is
    known of them matters only if one is spoken of again."""
    resets: dict[int, Reset] = field(default_factory=dict)
    """By the number of the record that tells of it."""
    gaps: list[tuple[int, int]] = field(default_factory=list)
    bad_records: int = 0
    last: int = 0
    compacted: int = 0
    """Numbers up to here may be missing because compaction found them settled."""
    lasting: list[int] = field(default_factory=list)
    """Records that hold for all that follow, or that a newer reader may understand."""
    _key: str | None = None
    _went_on_as: dict[str, str] = field(default_factory=dict)

    def session(self, id: str) -> Session:
        """The session of this id, which is spoken of now."""
        if id not in self.sessions:
            self.sessions[id] = self.over.pop(id) if id in self.over else Session(id)
        return self.sessions[id]

    def live_id(self, id: str) -> str:
        """Where a conversation is now, given any id it ever had."""
        if id not in self._went_on_as:
            return id
        seen = set()
        while id in self._went_on_as and id not in seen:
            seen.add(id)
            id = self._went_on_as[id]
        return id

    def continues(self, session: Session) -> bool:
        """Whether this is the continuation of a session in which something was said."""
        earlier = {session.id}
        looked_at: set[str] = set()
        while earlier:
            looked_at |= earlier
            earlier = {
                old
                for old, new in self._went_on_as.items()
                if new in earlier and old in self.sessions and old not in looked_at
            }
            if any(self.sessions[old].items for old in earlier):
                return True
        return False
