"""The short way into the ring, for what may lie there for a moment.

Never waits, never takes a lock, and never leaves the process in any other way.

A generator, because Python lets nobody into one that somebody is in: a lock that costs nothing,
is never left locked, and has what it guards at hand. At a hundred pieces of a reply a second the
processor's caches have forgotten the way, and most of what a piece costs is to fetch again all
that it touches.

Whoever holds the link's lock shuts the chute before anything else, and says so (`_busy`), so that
a stream without a pause does not keep it waiting. So from its beginning to its end the chute is
the only one that counts.
"""

from __future__ import annotations

import sys
from time import monotonic

from ..ipc import frames
from ..ipc.handlers import is_the_agents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from types import GeneratorType

    from .link import Link
    from .ring import Ring

    Known = tuple[int, int, int, int] | BaseException | None
    Chute = GeneratorType[bool, bytes | None, Known]

# How many bytes may lie in the ring alone.
BATCH = 16 * 1024
# Not so in a Python without the lock of all threads. There, everything takes the long way.
_ONE_AT_A_TIME = getattr(sys, "_is_gil_enabled", lambda: True)()


def begin(link: Link, ring: Ring) -> Chute | None:
    if not _ONE_AT_A_TIME:
        return None
    chute: Chute = _chute(link, ring)  # type: ignore[assignment]
    next(chute)
    return chute


def is_shut(chute: Chute, link: Link, ring: Ring | None) -> bool:
    """Shut it, unless another thread is in it; link and ring then know what it knew."""
    known = None
    try:
        chute.send(None)
    except (StopIteration, ValueError) as error:
        if is_the_agents(error):
            raise
        if not isinstance(error, StopIteration):
            return False
        known = error.value
    if isinstance(known, BaseException):
        raise known
    if known is not None and ring is not None:
        lying, end, left, seq = known
        link._unacked_bytes += lying - link._lying
        link._lying = lying
        ring.filled(end, left, seq - 1)
        link._cut_off = False
    return True


def is_up_the_stack(chute: Chute | None) -> bool:
    """Whether this thread itself is in it: a signal handler is asking."""
    frame = None
    if chute is not None and chute.gi_running:
        frame = sys._getframe()
        while frame is not None and frame is not chute.gi_frame:
            frame = frame.f_back
    return frame is not None


def _chute(link: Link, ring: Ring) -> Generator[bool, bytes | None, Known]:
    """Takes a record each time, and says whether it did. Ends when it is given none, with what it
    knows; or with what a handler of the agent's raised in here, for the caller to raise."""
    generation, unacked, waiting = link.generation, link._unacked, link._waiting
    seq, lying, speak_at = link._next, link._lying, link._speak_at
    memory, end, left = ring.memory, ring.end, ring.left
    taken, known = False, None
    try:
        while (payload := (yield taken)) is not None:
            taken = False
            if monotonic() < speak_at and lying < BATCH and not (link._busy or waiting):
                frame = frames.encode(seq, payload)
                length = len(frame)
                # If a handler has forked, and this is the child, it is the parent's ring.
                if length <= left and link.generation == generation:
                    # What is remembered has its number (`Link._shut_chute`).
                    unacked.append(frame)
                    seq += 1
                    start, end = end, end + length
                    memory[start:end] = frame
                    left -= length
                    lying += length
                    taken = True
        known = lying, end, left, seq
    except BaseException as error:
        reason = error
    # Before anything else can go wrong: until all of it is known, the link is to be mended.
    link._cut_off = link._cut_off or link.generation == generation
    if known is not None:
        return known
    # Python's own handler for Ctrl-C is not to be seen in a trace.
    if is_the_agents(reason) or not isinstance(reason, Exception):
        return reason
    link.faults += link.generation == generation
    return None
