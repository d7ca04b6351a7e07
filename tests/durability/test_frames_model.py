"""The frames of one long message, as a model: every interleaving of what is handed over, read,
kept in memory because no journal takes it, written, acknowledged, spooled and recovered, with the
agent, the supervisor and a recovery killed anywhere (G1, G3, G5).

The model is the protocol as the code has it, a step being what nobody sees half done:

    step        in the code                             what makes it one step
    say         agent_shim.stream                       a frame in the socket's buffer, and the ring
    read        ingest.streams, connection.Stream       the supervisor's loop
    write       Stream.write_again                      one append
    ack         Connection.acknowledge                  one frame
    fill        -                                       the disk of the journals fills, or has room
    spool       agent_shim.spool                        what is not acknowledged, when nobody reads
    take over   run.takeover, Streams.resume            it goes on behind the journal's last frame
    gather      recovery.gather                         journal, memory, spool and ring by number
    store       statedb.writer                          one transaction, marker included
    remove      recovery.finish                         a tombstone makes it one

A message of three frames: the first one is its shortened form, the other two complete it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

FRAMES = 3
KILLS = 3
CUT, WHOLE = "cut", "whole"


class State(NamedTuple):
    ring: bool
    said: int = 0
    """Handed over by the agent."""
    agent: bool = True
    supervisor: bool = True
    full: bool = False
    read: int = 0
    """What the supervisor has, in the journal or in memory."""
    journal: int = 0
    acked: int = 0
    spool: int = 0
    job: str = ""
    """What the recovery under way does next."""
    has: int = 0
    """How many frames it has gathered."""
    row: str = ""
    says_cut: bool = False
    rows: int = 0
    files: bool = True
    unread_died: bool = False
    """Agent and supervisor died while frames were only between them, or in memory."""
    kills: int = KILLS


def content(frames: int) -> str:
    return "" if not frames else CUT if frames < FRAMES else WHOLE


class Protocol:
    """A mutant overrides a step."""

    def steps(self, s: State) -> Iterator[State]:
        for step in (self.talk, self.serve, self.recover, self.kill):
            yield from step(s)

    def talk(self, s: State) -> Iterator[State]:
        if not s.agent:
            return
        if s.said < FRAMES:
            yield s._replace(said=s.said + 1)
        # Nobody reads: the agent notices with its next call, or never.
        if not s.supervisor and s.spool < s.said:
            yield s._replace(spool=s.said)

    def serve(self, s: State) -> Iterator[State]:
        if s.supervisor:
            if s.read < s.said:
                yield self.read(s)
            if s.journal < s.read and not s.full:
                yield s._replace(journal=s.read)
            if s.agent and s.acked < self.to_acknowledge(s):
                yield s._replace(acked=self.to_acknowledge(s))
            if s.files:
                yield s._replace(full=not s.full)
        elif s.agent:
            # What is not acknowledged is sent again.
            yield s._replace(supervisor=True, read=s.journal)

    def read(self, s: State) -> State:
        written = s.journal == s.read and not s.full
        return s._replace(read=s.read + 1, journal=s.journal + written)

    def to_acknowledge(self, s: State) -> int:
        return s.journal

    def recover(self, s: State) -> Iterator[State]:
        """By the supervisor, which first reads what a dead agent sent, or by a later process."""
        if s.agent or not s.files:
            return
        if not s.job:
            if s.supervisor and s.read < s.said:
                return
            yield s._replace(job="store", has=self.gathered(s))
        elif s.job == "store":
            stored = s
            if not s.rows and s.has:
                row = self.put_together(s.has)
                stored = s._replace(row=row, says_cut=row == CUT, rows=s.rows + 1)
            yield stored._replace(job="remove")
        else:
            yield s._replace(job="", files=False)

    def gathered(self, s: State) -> int:
        memory = s.read if s.supervisor else 0
        return max(s.journal, memory, s.spool, s.said if s.ring else 0)

    def put_together(self, frames: int) -> str:
        return content(frames)

    def kill(self, s: State) -> Iterator[State]:
        if not s.kills:
            return
        less = s._replace(kills=s.kills - 1)
        if s.agent:
            unread = not s.supervisor and max(s.journal, s.spool) < s.said
            yield less._replace(agent=False, unread_died=s.unread_died or unread)
        if s.supervisor and s.files:
            unread = not s.agent and max(s.journal, s.spool) < s.said and not s.rows
            dead = less._replace(supervisor=False, read=0, job="")
            yield dead._replace(unread_died=s.unread_died or unread)
        if s.job:
            yield less._replace(job="")


def problem(s: State) -> str:
    """What is wrong when everything is over."""
    at_least = "" if s.unread_died and not s.ring else content(s.said)
    if s.rows > 1:
        return "stored twice"
    if s.row != content(s.said) and (at_least or s.row not in ("", CUT)):
        return f"said {s.said} of {FRAMES} frames, stored {s.row or 'nothing'}"
    if (s.acked == FRAMES and s.row != WHOLE) or (s.acked and not s.row):
        return f"{s.acked} frames were acknowledged, stored {s.row or 'nothing'}"
    if s.says_cut != (s.row == CUT):
        return "the report does not say that the message is cut"
    return ""


def explore(protocol: Protocol, ring: bool) -> tuple[int, set[str]]:
    """Every state that can come about; the problems of those in which all is over."""
    seen = {State(ring)}
    waiting = list(seen)
    problems = set()
    while waiting:
        s = waiting.pop()
        fresh = [after for after in protocol.steps(s) if after not in seen]
        seen.update(fresh)
        waiting += fresh
        if not s.files and (found := problem(s)):
            problems.add(found)
        stuck = not s.agent and s.files and not list(protocol.recover(s)) and s.read == s.said
        if stuck:
            problems.add("nobody can finish it")
    return len(seen), problems


@pytest.mark.parametrize("ring", [True, False])
def test_a_message_in_several_frames_is_stored_as_far_as_it_was_handed_over(ring: bool) -> None:
    states, problems = explore(Protocol(), ring)
    assert problems == set()
    assert states > 1000


class AcknowledgesMemory(Protocol):
    def to_acknowledge(self, s: State) -> int:
        return s.read


class ForgetsMemory(Protocol):
    def gathered(self, s: State) -> int:
        return super().gathered(s._replace(read=0))


class CompletesTooEarly(Protocol):
    def put_together(self, frames: int) -> str:
        return content(min(FRAMES, frames + 1)) if frames > 1 else content(frames)


class IgnoresPieces(Protocol):
    def put_together(self, frames: int) -> str:
        return content(min(frames, 1))


class KnowsNoMarker(Protocol):
    def recover(self, s: State) -> Iterator[State]:
        if s.job == "store":
            yield s._replace(job="remove", row=self.put_together(s.has), rows=s.rows + 1,
                             says_cut=self.put_together(s.has) == CUT)  # fmt: skip
        else:
            yield from super().recover(s)


@pytest.mark.parametrize(
    "mutant",
    [AcknowledgesMemory, ForgetsMemory, CompletesTooEarly, IgnoresPieces, KnowsNoMarker],
)
def test_the_model_notices_what_would_lose_or_repeat_it(mutant: type[Protocol]) -> None:
    assert any(explore(mutant(), ring)[1] for ring in (True, False))
