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

    Chute = GeneratorType[bool, bytes, BaseException | None]

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


def is_shut(chute: Chute) -> bool:
    """Shut it, unless another thread is in it."""
    try:
        chute.close()
    except ValueError as error:
        if is_the_agents(error):
            raise
        return False
    return True


def is_up_the_stack(chute: Chute | None) -> bool:
    """Whether this thread itself is in it: a signal handler is asking."""
    frame = None
    if chute is not None and chute.gi_running:
        frame = sys._getframe()
        while frame is not None and frame is not chute.gi_frame:
            frame = frame.f_back
    return frame is not None


def _chute(link: Link, ring: Ring) -> Generator[bool, bytes, BaseException | None]:
    """Takes a record each time, and says whether it did; returns what a handler of the agent's
    raised in here, for the caller to raise."""
    generation, unacked, waiting = link.generation, link._unacked, link._waiting
    seq, lying, speak_at = link._next, link._lying, link._speak_at
    memory, end, left = ring.memory, ring.end, ring.left
    taken = False
    try:
        while True:
            payload = yield taken
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
    except BaseException as error:
        reason = error
    # Before anything else can go wrong: unless told otherwise below, the link is to be mended.
    link._cut_off = link._cut_off or link.generation == generation
    thrown = reason if is_the_agents(reason) else None
    if thrown is None and link.generation == generation:
        if isinstance(reason, GeneratorExit):
            link._unacked_bytes += lying - link._lying
            link._lying = lying
            ring.filled(end, left, seq - 1)
            link._cut_off = False
        else:
            link.faults += 1
    return thrown
