"""An agent made of dice: what it says, what it stores, and what its transcript then has to be.

The properties of replay, reconciliation and compaction are stated over these. The words come
from a handful, so that the same message is said again and again: that is where matching a
transcript with a database goes wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hermes_supervise.ipc import frames, records
from hermes_supervise.supervisor.model.stream import Session
from hermes_supervise.supervisor.statedb.reconcile import (
    NEVER_STARTED,
    RESULT_UNKNOWN,
    Insert,
    Row,
    call_ids,
    plain,
)
from hermes_supervise.supervisor.statedb.writer import Applied, Part, StateDb
from hypothesis import strategies as st

Frames = list[tuple[int, bytes]]
Transcript = list[tuple[str, str, str]]
Move = tuple[str, int, int, str]
START = 1_000_000.0

words = st.sampled_from(["ok", "yes", "go on", "ok then", "", "\ud800 ü"])
small = st.integers(0, 3)
BROKEN_OFF = "broken off"


def frame(seq: int, **record: Any) -> tuple[int, bytes]:
    return seq, frames.encode(seq, records.pack(record))


def stream(*records: dict[str, Any], first: int = 1) -> Frames:
    """Records as frames, numbered."""
    return [frame(first + index, **record) for index, record in enumerate(records)]


def recover(
    db: StateDb,
    session: Session,
    died_at: float = 9.0,
    end: tuple[float, str] | None = (9.0, "interrupted"),
    name: str = "0" * 32,
) -> Applied | None:
    """Store all of a session whose process is dead, and end it."""
    return db.write([Part(name, session, died_at, end=end)]).run()[name]


def called(*ids: str) -> list[dict[str, Any]]:
    return [
        {"id": id, "type": "function", "function": {"name": "do", "arguments": "{}"}} for id in ids
    ]


def row_of(id: int, message: dict[str, Any], at: float) -> Row:
    calls = call_ids(message.get("tool_calls"))
    content, call = message.get("content"), message.get("tool_call_id")
    return Row(id, message["role"], content, call, calls, at)


def inserted(rows: list[Row], inserts: list[Insert]) -> list[Row]:
    """The rows once a plan is applied. Ids only ever grow: rows that are gone leave a gap."""
    first = max([row.id for row in rows] + [1_000_000]) + 1
    return rows + [row_of(first + i, insert.message, insert.at) for i, insert in enumerate(inserts)]


@dataclass
class Conversation:
    """One session as the agent and its database hold it."""

    id: str
    rows: list[Row] = field(default_factory=list)
    said_so_far: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """What was said since the rows were last rewritten: uid and message."""
    kept_rows: int = 0
    """Rows that were there before that."""
    stored: int = 0
    anchored: int = 0
    open: dict[str, bool] = field(default_factory=dict)
    """Calls without an answer, and whether they were started."""
    results: dict[str, str] = field(default_factory=dict)
    announces: bool = False
    streamed: str = ""
    thought: str = ""


class Agent:
    """Plays moves. Each makes sense in any state, so that any list of them is a life."""

    def __init__(self, *, orderly: bool = False) -> None:
        self.frames: Frames = [(0, frames.encode(0, records.pack({"kind": "hello", "pid": 1})))]
        self.clock = START
        self.pace = 10.0
        """Seconds from one record to the next."""
        self.orderly = orderly
        """No user speaks and no reply comes while calls are open, and no id changes."""
        self.conversations: dict[str, Conversation] = {}
        self.names = ["a", "b"]
        """The live id of each of the two conversations it can lead."""
        self._last_row = 0
        self._count = 0

    def play(self, move: Move) -> None:
        name, which, number, word = move
        getattr(self, name)(self._conversation(self.names[which % 2]), number, word)

    # -- moves ---------------------------------------------------------------------------------

    def announce(self, on: Conversation, number: int, word: str) -> None:
        self._say(on, "session", source="cli", model=f"m{number % 2}")

    def user(self, on: Conversation, number: int, word: str) -> None:
        if self.orderly and on.open:
            return
        if on.streamed or on.thought:  # what was streamed was broken off, and is nobody's to store
            on.said_so_far.append((BROKEN_OFF, {"role": "assistant", "content": on.streamed}))
            on.streamed = on.thought = ""
        self._tell(on, {"role": "user", "content": word})

    def piece(self, on: Conversation, number: int, word: str) -> None:
        if number == 3:
            self._say(on, "delta", restart=True, text=word)
            on.streamed = on.thought = ""
        if number == 2:
            self._say(on, "delta", reasoning=word)
            on.thought += word
        else:
            if number != 3:
                self._send(records.pack_delta(on.id, word))
            on.streamed += word

    def reply(self, on: Conversation, number: int, word: str) -> None:
        """The whole reply; or one without content, which then is what was streamed."""
        if self.orderly and on.open:
            return
        content = None if number == 0 else on.streamed + word
        self._tell(on, {"role": "assistant", "content": content}, content or on.streamed)

    def call(self, on: Conversation, number: int, word: str) -> None:
        """One to three calls; their ids may come round again, as some providers' do."""
        if on.open:
            return
        ids = [f"c{index}" for index in range(number % 3 + 1)]
        message = {"role": "assistant", "content": None, "tool_calls": called(*ids)}
        self._tell(on, message, on.streamed)
        on.open, on.results = dict.fromkeys(ids, False), {}

    def start(self, on: Conversation, number: int, word: str) -> None:
        if on.open:
            id = list(on.open)[number % len(on.open)]
            self._say(on, "tool", phase="start", call=id, name="do")
            on.open[id] = on.announces = True

    def finish(self, on: Conversation, number: int, word: str) -> None:
        """A call ends: with its message, or, number 3, only with word of its result."""
        if on.open:
            id = list(on.open)[number % len(on.open)]
            result = on.results[id] = f"{word} {id}"
            self._say(on, "tool", phase="end", call=id, name="do", result=result)
            if number != 3:
                self._tell(on, {"role": "tool", "content": result, "tool_call_id": id})
                del on.open[id]

    def turn(self, on: Conversation, number: int, word: str) -> None:
        self._say(on, "turn", phase="start" if number % 2 else "end")

    def store(self, on: Conversation, number: int, word: str) -> None:
        """Write what comes next into the database, and say so in one of three ways."""
        taken = on.said_so_far[on.stored : on.stored + number % 2 * 2 + 1]
        on.stored += len(taken)
        fresh = [(uid, message) for uid, message in taken if uid != BROKEN_OFF]
        rows = [self._row() for _ in fresh]
        for row, (_, message) in zip(rows, fresh, strict=True):
            on.rows.append(row_of(row, message, self.clock))
        uids = [uid for uid, _ in fresh]
        if word in ("ok", "go on"):
            self._say(on, "settled", uids=uids, rows=rows)
            on.anchored = on.stored if rows else on.anchored
        elif word in ("yes", ""):
            self._say(on, "settled", uids=uids)

    def rewrite(self, on: Conversation, number: int, word: str) -> None:
        """The agent compresses in place: everything is in new rows, some with the old words."""
        again = [message for _, message in on.said_so_far[-number:]]
        on.rows = [row_of(self._row(), message, self.clock) for message in again]
        on.said_so_far, on.stored, on.anchored, on.kept_rows = [], 0, 0, len(on.rows)
        on.open, on.streamed, on.thought = {}, "", ""
        self._say(on, "rewritten")

    def again(self, on: Conversation, number: int, word: str) -> None:
        """A message that is not in the database for certain is said again, unchanged."""
        if len(on.said_so_far) > on.anchored:
            uid, message = on.said_so_far[
                on.anchored + number % (len(on.said_so_far) - on.anchored)
            ]
            if message is not on.said_so_far[-1][1] and uid != BROKEN_OFF:
                self._say(on, "message", uid=uid, message=message)

    def rotate(self, on: Conversation, number: int, word: str) -> None:
        if self.orderly:
            return
        self._count += 1
        new = self._conversation(f"{on.id[0]}{self._count}")
        self._say(on, "rotated", new=new.id, reason="compression")
        self.names = [new.id if name == on.id else name for name in self.names]

    def reset(self, on: Conversation, number: int, word: str) -> None:
        """Another conversation takes its place; the old one may yet be gone on with."""
        if self.orderly:
            return
        self._count += 1
        new = self._conversation(f"{on.id[0]}{self._count}")
        self._say(on, "reset", new=new.id)
        if number % 2:
            self.names = [new.id if name == on.id else name for name in self.names]

    def title(self, on: Conversation, number: int, word: str) -> None:
        self._say(on, "title", title=f"about {word}")

    def hook(self, on: Conversation, number: int, word: str) -> None:
        name = ("on_session_end", "on_session_finalize")[number % 2]
        self._say(on, "hook_begun", name=name)
        if number % 3:
            self._say(on, "hook", name=name)

    def end(self, on: Conversation, number: int, word: str) -> None:
        self._say(on, "ended", reason=("completed", "reset")[number % 2])

    def foreign(self, on: Conversation, number: int, word: str) -> None:
        self._say(on, "weather", of="tomorrow")

    def goodbye(self, on: Conversation, number: int, word: str) -> None:
        self._send(records.pack({"kind": "bye"}))

    # -- what follows --------------------------------------------------------------------------

    def expected(self, on: Conversation) -> Transcript:
        """The transcript behind what was rewritten, if it died now. Only of an orderly life."""
        # A broken off reply that others were stored behind has no place any more.
        kept = on.said_so_far[: on.stored]
        while kept and kept[-1][0] == BROKEN_OFF:
            kept.pop()
        behind = on.said_so_far[len(kept) :]
        sent = [message for uid, message in kept if uid != BROKEN_OFF]
        sent += [message for _, message in behind]
        for id, started in on.open.items():
            unknown = RESULT_UNKNOWN if started or not on.announces else NEVER_STARTED
            content = on.results.get(id, unknown)
            sent.append({"role": "tool", "tool_call_id": id, "content": content})
        if on.streamed or on.thought:
            sent.append({"role": "assistant", "content": on.streamed})
        return transcript([row_of(0, message, 0.0) for message in sent])

    def _conversation(self, id: str) -> Conversation:
        return self.conversations.setdefault(id, Conversation(id))

    def _tell(self, on: Conversation, said: dict[str, Any], content: str | None = None) -> None:
        self._count += 1
        uid = f"u{self._count}"
        self._say(on, "message", uid=uid, message=said)
        if said["role"] == "assistant":
            said = {**said, "content": content}
            on.streamed = on.thought = ""
        on.said_so_far.append((uid, said))

    def _say(self, on: Conversation, kind: str, **fields: Any) -> None:
        self._send(records.pack({"kind": kind, "session": on.id, "at": self.clock, **fields}))

    def _send(self, payload: bytes) -> None:
        self.clock += self.pace
        seq = self.frames[-1][0] + 1
        self.frames.append((seq, frames.encode(seq, payload)))

    def _row(self) -> int:
        self._last_row += 1
        return self._last_row


def transcript(rows: list[Row]) -> Transcript:
    """Rows as they are compared: answers to parallel calls in any order among themselves."""
    found: Transcript = []
    answers: Transcript = []
    for row in rows:
        if row.role == "tool":
            answers.append((row.role, plain(row.content), str(row.tool_call_id)))
        else:
            found += sorted(answers)
            answers = []
            found.append((row.role, plain(row.content), ",".join(row.call_ids)))
    return found + sorted(answers)


def moves(*names: str, most: int = 40) -> st.SearchStrategy[list[Move]]:
    return st.lists(
        st.tuples(st.sampled_from(names), small, small, words), min_size=1, max_size=most
    )


SPEAKING = ("user", "piece", "reply", "call", "start", "finish", "store", "turn")
ALL = (
    *SPEAKING, "announce", "rewrite", "again", "rotate", "reset", "title", "hook", "end", "foreign",
    "goodbye",
)  # fmt: skip
