"""Compaction: closed segments of a living stream are replaced by what still matters in them.

Never drops a frame that recovery could need: replaying what is kept, and whatever is said
later, gives the same plans.

What can be dropped is what is in the database for certain, whoever put it there, every piece of
a reply that is there as a whole, and every word about what is over; of a session that is over
itself, all of it. A message that the agent settled without saying in which row stays: its row must
not be taken for a later message with the same words.

The new file takes the name of the last closed segment, then the older ones are removed.
Cut off in between, old and new lie side by side, and the new one's word counts (`gather`).
"""

from __future__ import annotations

import os

from ...ipc import frames, records
from ...ipc.endpoint import sync_folder
from ..journal import segment_name
from .gather import Gathered, gather, stored_name
from .reconcile import first_open
from .replay import replay
from .told import CARRIED, Item, Session, Told

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# Sessions that are over and may yet be spoken of: by a straggling thread, or because they go on.
_OVER = 200


def essential(
    stream: list[tuple[int, bytes]],
    is_over: Callable[[Told, Session], bool] | None = None,
    told: Told | None = None,
) -> list[tuple[int, bytes]]:
    """The frames that still matter, with a note on what the others had told. Pure.

    Of a session that the agent has ended, and whose messages are all in the database, no frame
    matters any more once `is_over` says that its end is there, too. That it ended is noted of
    the last ones: a late word must not look like one in a session that is open.

    Who has replayed the stream already gives what it `told`, with what is stored by now marked.
    """
    told = told or replay(stream)
    if told.gaps or told.bad_records:
        return stream  # something is wrong already: leave the evidence alone
    if is_over is not None:
        linked = _linked(told)
        for session in list(told.sessions.values()):
            if session.id not in linked and _is_whole(session) and is_over(told, session):
                told.over[session.id] = told.sessions.pop(session.id)
    needed = _needed(told)
    kept = [(0, frame) for seq, frame in stream if seq == frames.HANDSHAKE and not _is_note(frame)]
    kept += [(seq, frame) for seq, frame in stream if seq in needed]
    sessions = {session.id: _in_words(session) for session in told.sessions.values()}
    note: dict[str, object] = {"kind": "compacted", "through": told.last, "key": told._key}
    note["sessions"] = sessions
    ended = [one for one in told.over.values() if one.ended is not None]
    if ended:
        note["over"] = {one.id: _in_words(one, over=True) for one in ended[-_OVER:]}
    if told.resets:
        note["resets"] = [[seq, one.old, one.new, one.at] for seq, one in told.resets.items()]
    return [(0, frames.encode(frames.HANDSHAKE, records.pack(note))), *kept]


def _in_words(session: Session, *, over: bool = False) -> dict[str, object]:
    """What no record says of a session any more."""
    known = {name: getattr(session, name) for name in CARRIED}
    if over and session.about.get("settles") is True:
        known["settles"] = False  # which it was announced as: it speaks for no other session
    if session.ended is not None and (over or "ended" not in session.made_of):
        known |= {"ended": session.ended, "ended_at": session.ended_at}
        known |= {"db": session.about["db"]} if "db" in session.about else {}
    return known


def _linked(told: Told) -> set[str]:
    """The sessions that went on as another, or are what another went on as."""
    linked = {*told._went_on_as, *told._went_on_as.values()}
    return linked | {name for reset in told.resets.values() for name in (reset.old, reset.new)}


def _is_whole(session: Session) -> bool:
    """Ended by the agent, and nothing of it missing from the database."""
    return (
        session.ended is not None
        and session.reply is None
        and not (session.calls or session.again or session.troubles)
        and all(item.settled and item.row is not None for item in session.items if item.live)
    )


def _is_note(frame: bytes) -> bool:
    """Ours, and made anew each time: what was dropped, and what we stored (its own file)."""
    return records.unpack(frames.payload_of(frame))["kind"] in ("compacted", "stored")


def _needed(told: Told) -> set[int]:
    """The numbers of the records that what is known now was made from."""
    makers: dict[int, list[Item]] = {}
    for session in told.sessions.values():
        for item in session.items:
            for seq in (*item.made_of, *item.tools):
                makers.setdefault(seq, []).append(item)
    wanted = list(told.lasting)
    if told.said_bye:
        wanted.append(told.last)
    for session in told.sessions.values():
        wanted += _state_of(session)
    needed: set[int] = set()
    while wanted:
        seq = wanted.pop()
        if seq in needed:
            continue
        needed.add(seq)
        # A record that makes a message makes all of it: settled if it was, its calls closed.
        for item in makers.get(seq, ()):
            wanted += item.made_of + item.marks
            wanted += [seq for closer in item.closers for seq in closer.made_of]
    return needed


def _state_of(session: Session) -> list[int]:
    found = [*session.announced, *session.phase_from]
    # With the last one that is in the database for certain: what is before it is, too.
    for item in session.items[max(0, first_open(session.items) - 1) :]:
        found += item.made_of
    found += [seq for item in session.said_items() if item.outdated for seq in item.made_of]
    for call in session.calls.values():
        found += call.item.made_of + call.item.tools
    if session.reply is not None:
        found += session.reply.made_of
    for name, seq in session.made_of.items():
        if name.startswith("hook ") and name[5:] not in session.hooks_fired:
            continue
        found.append(seq)
    return found


def closed_part(folder: str, stream: str, upto: int) -> tuple[list[str], Gathered]:
    """The closed segments up to number `upto`, those that there are, and what they tell."""
    names = [segment_name(stream, number) for number in range(1, upto + 1)]
    names = [name for name in names if os.path.exists(os.path.join(folder, name))]
    beside = [name for name in (stored_name(stream),) if os.path.exists(os.path.join(folder, name))]
    found = gather(folder, stream, names + beside)
    spool = f"{stream}.spool"
    if found.frames and os.path.exists(os.path.join(folder, spool)):
        # What is missing in the segments is there, if it is anywhere.
        last = found.frames[-1][0]
        found = gather(folder, stream, [*names, spool, *beside])
        found.frames = [(seq, frame) for seq, frame in found.frames if seq <= last]
    return names, found


def compact(
    folder: str,
    stream: str,
    upto: int,
    is_over: Callable[[Told, Session], bool] | None = None,
) -> None:
    """Replace the closed segments up to number `upto` by one."""
    names, found = closed_part(folder, stream, upto)
    put_in_place(folder, stream, names, found, essential(found.frames, is_over))


def put_in_place(
    folder: str, stream: str, names: list[str], found: Gathered, kept: list[tuple[int, bytes]]
) -> None:
    """Of the files `names`, what was `found` in them gives way to what is `kept` of it."""
    if not names or found.damaged or kept is found.frames:
        return
    new = os.path.join(folder, f"{stream}.compacting")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(fd, "wb") as file:
        file.writelines(frame for _, frame in kept)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, os.path.join(folder, names[-1]))
    sync_folder(folder)
    for name in names[:-1]:
        os.unlink(os.path.join(folder, name))
