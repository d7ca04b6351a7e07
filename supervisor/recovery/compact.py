"""Compaction: the closed segments of a stream are replaced by what still matters in them.

Never drops a frame that recovery could need: replaying the frames that are kept, followed by any
later ones, gives the same plans.

These can be dropped: messages that are certainly in the database, whoever wrote them; the pieces of
a reply that is stored as a whole; records about what is over; and everything of a session that has
ended. A message that the agent settled without naming its row is kept: its row must not be taken
for a later message with the same text.

The new file takes the name of the last closed segment, then the older segments are removed. After a
kill in between, old and new are side by side, and the note in the new one counts (`gather`).
"""

from __future__ import annotations

import os

from ...ipc import frames, records
from ...ipc.endpoint import sync_folder
from ..model.stream import CARRIED, Item, ReplayedStream, Session
from ..statedb.reconcile import first_open
from ..storage.journal import segment_name
from ..storage.run_notes import replica_of
from .gather import Gathered, gather, stored_name
from .replay import replay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# Ended sessions that are still remembered: a late thread may name one, or it may continue.
_ENDED_KEPT = 200


def essential(
    numbered: list[tuple[int, bytes]],
    is_over: Callable[[ReplayedStream, Session], bool] | None = None,
    stream: ReplayedStream | None = None,
) -> list[tuple[int, bytes]]:
    """The frames that still matter, after a note of the facts that only the others contained. Pure.

    If the agent has ended a session, all its messages are in the database, and `is_over` says that
    its end is there as well, none of its frames matter. The note lists the last such sessions as
    ended: a late record must not seem to belong to an open session.

    A caller that has replayed the frames passes the `stream`, with what is stored marked in it.
    """
    stream = stream or replay(numbered)
    if stream.gaps or stream.bad_records:
        return numbered  # something is wrong already: leave the evidence alone
    if is_over is not None:
        linked = _linked(stream)
        for session in list(stream.sessions.values()):
            if session.id not in linked and _is_complete(session) and is_over(stream, session):
                stream.dropped[session.id] = stream.sessions.pop(session.id)
    needed = _needed(stream)
    kept = [
        (0, frame) for seq, frame in numbered if seq == frames.HANDSHAKE and not _is_note(frame)
    ]
    kept += [(seq, frame) for seq, frame in numbered if seq in needed]
    note: dict[str, object] = {
        "kind": "compacted",
        "through": stream.last,
        "key": stream._default_session,
        "sessions": {session.id: _carry(session) for session in stream.sessions.values()},
    }
    ended = [session for session in stream.dropped.values() if session.ended is not None]
    if ended:
        note["over"] = {s.id: _carry(s, dropped=True) for s in ended[-_ENDED_KEPT:]}
    if stream.resets:
        note["resets"] = [[seq, r.old, r.new, r.at] for seq, r in stream.resets.items()]
    return [(0, frames.encode(frames.HANDSHAKE, records.pack(note))), *kept]


def _carry(session: Session, *, dropped: bool = False) -> dict[str, object]:
    """The facts about a session that no record contains any more."""
    known = {name: getattr(session, name) for name in CARRIED}
    if dropped and session.about.get("settles") is True:
        known["settles"] = False  # announced for this session only: it says nothing of others
    if session.ended is not None and (dropped or "ended" not in session.sources):
        known |= {"ended": session.ended, "ended_at": session.ended_at}
        known |= {"db": session.about["db"]} if "db" in session.about else {}
    return known


def _linked(stream: ReplayedStream) -> set[str]:
    """The sessions that continue another one or are continued by one."""
    linked = {*stream._continuations, *stream._continuations.values()}
    return linked | {id for reset in stream.resets.values() for id in (reset.old, reset.new)}


def _is_complete(session: Session) -> bool:
    """True if the agent ended it and nothing of it is missing from the database."""
    return (
        session.ended is not None
        and session.reply is None
        and not (session.calls or session.repeated or session.problems)
        and not (session.cut or session.pieces)
        and all(item.settled and item.row is not None for item in session.items if item.live)
    )


def _is_note(frame: bytes) -> bool:
    """True for our own records, which are made anew each time: `compacted` and `stored`."""
    return records.unpack(frames.payload_of(frame))["kind"] in ("compacted", "stored")


def _needed(stream: ReplayedStream) -> set[int]:
    """The numbers of the records that the current state comes from."""
    items_of: dict[int, list[Item]] = {}
    for session in stream.sessions.values():
        for item in session.items:
            for seq in (*item.records, *item.tool_records):
                items_of.setdefault(seq, []).append(item)
    wanted = list(stream.lasting)
    if stream.said_bye:
        wanted.append(stream.last)
    for session in stream.sessions.values():
        wanted += _state_of(session)
    needed: set[int] = set()
    while wanted:
        seq = wanted.pop()
        if seq in needed:
            continue
        needed.add(seq)
        # With one record of a message come all of them, the records that settle it, and the
        # messages that close its calls.
        for item in items_of.get(seq, ()):
            wanted += item.records + item.settled_by
            wanted += [seq for closing in item.closed_by for seq in closing.records]
    return needed


def _state_of(session: Session) -> list[int]:
    seqs = [*session.announced_by, *session.phase_records]
    # With the last one that is in the database for certain: everything before it is as well.
    for item in session.items[max(0, first_open(session.items) - 1) :]:
        seqs += item.records
    seqs += [seq for item in session.all_items() if item.outdated for seq in item.records]
    for call in session.calls.values():
        seqs += call.item.records + call.item.tool_records
    if session.reply is not None:
        seqs += session.reply.records
    seqs += [seq for pieces in session.pieces.values() for seq, _ in pieces.values()]
    for name, seq in session.sources.items():
        kind, _, hook = name.partition(" ")
        if (kind == "hook" and hook not in session.hooks_fired) or (
            kind == "begun" and hook not in session.hooks_begun
        ):
            continue  # a turn has begun since
        seqs.append(seq)
    return seqs


def closed_part(folder: str, stream: str, upto: int) -> tuple[list[str], Gathered]:
    """The names of the closed segments up to number `upto`, and the frames in them."""
    names = [segment_name(stream, number) for number in range(1, upto + 1)]
    names = [name for name in names if os.path.exists(os.path.join(folder, name))]
    beside = [name for name in (stored_name(stream),) if os.path.exists(os.path.join(folder, name))]
    gathered = gather(folder, stream, names + beside)
    spool = f"{stream}.spool"
    if gathered.frames and os.path.exists(os.path.join(folder, spool)):
        # What is missing in the segments is there, if it is anywhere.
        last = gathered.frames[-1][0]
        gathered = gather(folder, stream, [*names, spool, *beside])
        gathered.frames = [(seq, frame) for seq, frame in gathered.frames if seq <= last]
    return names, gathered


def compact(
    folder: str,
    stream: str,
    upto: int,
    is_over: Callable[[ReplayedStream, Session], bool] | None = None,
) -> None:
    """Replace the closed segments up to number `upto` by one."""
    names, gathered = closed_part(folder, stream, upto)
    put_in_place(folder, stream, names, gathered, essential(gathered.frames, is_over))


def put_in_place(
    folder: str, stream: str, names: list[str], gathered: Gathered, kept: list[tuple[int, bytes]]
) -> None:
    """Replace the files `names`, which hold what was `gathered`, by one that holds `kept`."""
    if not names or gathered.damaged or kept is gathered.frames:
        return
    new = os.path.join(folder, f"{stream}.compacting")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(fd, "wb") as file:
        file.writelines(frame for _, frame in kept)
        file.flush()
        os.fsync(file.fileno())
    if replica_of(folder) is not None:
        from ..replica.places import keep  # only with --replica

        keep(folder, names)
    os.replace(new, os.path.join(folder, names[-1]))
    sync_folder(folder)
    for name in names[:-1]:
        os.unlink(os.path.join(folder, name))
