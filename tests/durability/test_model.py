"""Finalised exactly once, as a model: every interleaving of everybody who may finish a run, and
every moment at which any of them may be killed (G3).

The model is the protocol as the code has it, a step being what nobody sees half done:

    step             in the code                       what makes it one step
    claim            run.claim, adoption               flock; the kernel lets go at a death
    gather           recovery.gather                   reads only; under the lock nobody writes
    apply            statedb.writer.SessionWriter      one transaction, marker included
    queue            hooks.queue.add                   a file that is renamed into its place
    mark_settled     recovery.finish._retire           the tombstone's creation
    remove           the same                          one unlink each
    retire           run.retire                        the lock's file goes last
    take             hooks.queue.claim                 flock, as above
    begin, end       hooks.queue.save                  a file that is renamed into its place
    effect           hooks.process.run                 what the hook does, once it has begun
    settle           hooks.queue.finish                a rename

Nothing is assumed of time: whoever can do something may do it next, or never again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

FILES = 2  # of the stream; any number above one shows what a removal cut off half way does
KILLS = 4


class Someone(NamedTuple):
    """A process that finishes runs: what it does next, and what it has learnt."""

    name: str
    at: str


class State(NamedTuple):
    agent_lives: bool
    people: tuple[Someone, ...]
    kills: int
    # On disk.
    folder: bool
    files: int
    tombstone: bool
    # In state.db.
    rows: int
    marker: bool
    # The queue: what its file says, and what the hook did: (attempt, whether `repeated` was set).
    entry: str
    attempt: int
    effects: tuple[tuple[int, bool], ...]
    # Who holds which lock.
    run_lock: str
    hook_lock: str


START = State(
    agent_lives=True,
    people=(
        Someone("supervisor", "watch"),
        Someone("standby", "wait for its death"),
        Someone("recover", "claim"),
        Someone("a start", "claim"),
        Someone("another", "claim"),
    ),
    kills=KILLS,
    folder=True, files=FILES, tombstone=False, rows=0, marker=False,
    entry="none", attempt=0, effects=(), run_lock="supervisor", hook_lock="",
)  # fmt: skip


class Protocol:
    """What each does next. A mutant overrides a step."""

    def claim(self, s: State, me: Someone) -> Iterator[tuple[State, str]]:
        if not s.folder:
            yield s, "take"  # settled; the hooks may still wait
        elif s.run_lock == "":
            yield s._replace(run_lock=me.name), "look"
        elif me.name != "standby":
            yield s, "take"  # somebody is at it: say so, and see to hooks that wait
        # The standby waits for the lock.

    def look(self, s: State, me: Someone) -> Iterator[tuple[State, str]]:
        if s.agent_lives:
            if me.name == "standby":
                yield s, "watch"
            else:
                yield s._replace(run_lock=""), "take"
        else:
            yield s, "gather"

    def watch(self, s: State, me: Someone) -> Iterator[tuple[State, str]]:
        if not s.agent_lives:
            yield s, "gather"

    def gather(self, s: State, me: Someone) -> Iterator[tuple[State, str]]:
        if s.tombstone:
            yield s, "remove"
        elif s.files == 0:
            yield s, "retire"
        else:
            assert s.files == FILES, "half of what was said taken for all of it"
            yield s, "apply"

    def apply(self, s: State, me: Someone) -> Iterator[tuple[State, str]]:
        if not s.marker:
            s = s._replace(rows=s.rows + 1, marker=True)
        yield s, "queue"

    def queue(self, s: State, me: Someone) -> Iterator[tuple[State, str]]:
        if s.entry == "none":
            s = s._replace(entry="waiting")
        yield s, "mark_settled"

    def mark_settled(self, s: State, me: Someone) -> Iterator[tuple[State, str]]:
        yield s._replace(tombstone=True), "remove"

    def remove(self, s: State, me: Someone) -> Iterator[tuple[State, str]]:
        if s.files:
            yield s._replace(files=s.files - 1), "remove"
        else:
            yield s._replace(tombstone=False), "retire"

    def retire(self, s: State, me: Someone) -> Iterator[tuple[State, str]]:
        yield s._replace(folder=False, run_lock=""), "take"

    def take(self, s: State, me: Someone) -> Iterator[tuple[State, str]]:
        if s.entry in ("none", "done"):
            yield s, "gone"
        elif s.hook_lock == "":
            yield s._replace(hook_lock=me.name), "begin"
        else:
            yield s, "gone"  # its runner sees to it

    def begin(self, s: State, me: Someone) -> Iterator[tuple[State, str]]:
        if s.entry == "ended":
            yield s, "settle"
        else:
            yield s._replace(entry="begun", attempt=s.attempt + 1), "effect"

    def effect(self, s: State, me: Someone) -> Iterator[tuple[State, str]]:
        did = (s.attempt, s.attempt > 1)
        yield s._replace(effects=(*s.effects, did)), "end"

    def end(self, s: State, me: Someone) -> Iterator[tuple[State, str]]:
        yield s._replace(entry="ended"), "settle"

    def settle(self, s: State, me: Someone) -> Iterator[tuple[State, str]]:
        yield s._replace(entry="done", hook_lock=""), "gone"

    # -- who may move ----------------------------------------------------------------------

    def moves(self, s: State) -> Iterator[State]:
        if s.agent_lives:
            yield s._replace(agent_lives=False)
        for me in s.people:
            if me.at == "wait for its death":
                if not any(person.name == "supervisor" for person in s.people):
                    yield _now(s, me, "claim")
                continue
            for after, at in getattr(self, me.at)(s, me):
                yield _now(after, me, at)
        if s.kills:
            for me in s.people:
                yield _without(s, me)._replace(kills=s.kills - 1)


def _now(s: State, me: Someone, at: str) -> State:
    if at == "gone":
        return _without(s, me)
    return s._replace(
        people=tuple(person._replace(at=at) if person is me else person for person in s.people)
    )


def _without(s: State, me: Someone) -> State:
    """It is no more, and the kernel has let go of its locks."""
    return s._replace(
        people=tuple(person for person in s.people if person is not me),
        run_lock="" if s.run_lock == me.name else s.run_lock,
        hook_lock="" if s.hook_lock == me.name else s.hook_lock,
    )


# -- what must hold ----------------------------------------------------------------------------


def check(s: State) -> None:
    assert s.rows <= 1, "written twice"
    assert not (s.rows and s.agent_lives), "ended while it lives"
    assert s.files == FILES or s.rows == 1, "the journal is gone and nothing is written"
    for number, (attempt, repeat) in enumerate(s.effects):
        assert number == 0 or repeat, "a hook runs again without `repeated`"
        assert attempt > number, "two runs of a hook have one number"
    assert sum(person.at in ("begin", "effect", "end", "settle") for person in s.people) <= 1


def check_end(s: State) -> None:
    """Everybody has left, or cannot go on: whoever comes last, and lives, finds it finished."""
    assert (s.rows, s.marker, s.folder, s.files, s.tombstone) == (1, True, False, 0, False)
    assert s.entry == "done" and s.effects
    cut_off = s.attempt - 1
    assert len(s.effects) <= 1 + cut_off
    assert cut_off <= KILLS


def explore(protocol: Protocol) -> tuple[int, int]:
    """Every state that can be reached; how many there are, and how many ends."""
    seen, ahead, ends = {START}, [START], 0
    while ahead:
        state = ahead.pop()
        check(state)
        further = list(protocol.moves(state))
        if not state.people and not state.agent_lives:
            ends += 1
            # Nobody is left. Sooner or later there is another start, and nobody kills that one.
            last = state._replace(kills=0, people=(Someone("last", "claim"),))
            while last.people:
                [last] = protocol.moves(last)
                check(last)
            check_end(last)
        for after in further:
            if after not in seen:
                seen.add(after)
                ahead.append(after)
    return len(seen), ends


def test_whoever_is_killed_whenever_it_is_finished_exactly_once() -> None:
    states, ends = explore(Protocol())
    print(f"{states:,} states, {ends:,} of them ends")
    assert states > 10_000 and ends > 100, "not a model of nothing"


# -- and the model can fail ----------------------------------------------------------------------


class NoMarker(Protocol):
    """The rows go in without a word about it."""

    def apply(self, s: State, me: Someone) -> Iterator[tuple[State, str]]:
        yield s._replace(rows=s.rows + 1, marker=True), "queue"


class NoLock(Protocol):
    def claim(self, s: State, me: Someone) -> Iterator[tuple[State, str]]:
        yield s, "look" if s.folder else "take"


class NoTombstone(Protocol):
    def mark_settled(self, s: State, me: Someone) -> Iterator[tuple[State, str]]:
        yield s, "remove"


class FilesFirst(Protocol):
    """What is said is removed before it is written."""

    def gather(self, s: State, me: Someone) -> Iterator[tuple[State, str]]:
        yield s._replace(files=0), "apply"


class HooksLast(Protocol):
    """The files go before the hooks are in the queue."""

    def apply(self, s: State, me: Someone) -> Iterator[tuple[State, str]]:
        for after, _ in Protocol.apply(self, s, me):
            yield after, "mark_settled"

    def remove(self, s: State, me: Someone) -> Iterator[tuple[State, str]]:
        for after, at in Protocol.remove(self, s, me):
            yield after, "queue" if at == "retire" else at

    def queue(self, s: State, me: Someone) -> Iterator[tuple[State, str]]:
        for after, _ in Protocol.queue(self, s, me):
            yield after, "retire"


class BegunNotNoted(Protocol):
    """A hook runs before anybody could know that it did."""

    def begin(self, s: State, me: Someone) -> Iterator[tuple[State, str]]:
        if s.entry == "ended":
            yield s, "settle"
        else:
            yield s, "effect"

    def effect(self, s: State, me: Someone) -> Iterator[tuple[State, str]]:
        attempt = s.attempt + 1
        yield s._replace(effects=(*s.effects, (attempt, attempt > 1))), "end"

    def end(self, s: State, me: Someone) -> Iterator[tuple[State, str]]:
        yield s._replace(entry="ended", attempt=s.attempt + 1), "settle"


class QueueNotLocked(Protocol):
    def take(self, s: State, me: Someone) -> Iterator[tuple[State, str]]:
        yield s, "gone" if s.entry in ("none", "done") else "begin"


class QueuedAgain(Protocol):
    """A recovery that is repeated does not look whether the hook is in the queue."""

    def queue(self, s: State, me: Someone) -> Iterator[tuple[State, str]]:
        yield s._replace(entry="waiting", attempt=0), "mark_settled"


class AliveOrNot(Protocol):
    """Who claims a run does not ask whether its agent lives."""

    def look(self, s: State, me: Someone) -> Iterator[tuple[State, str]]:
        yield s, "gather"


@pytest.mark.parametrize("mutant", Protocol.__subclasses__())
def test_a_protocol_with_a_step_left_out_is_caught(mutant: type[Protocol]) -> None:
    with pytest.raises(AssertionError):
        explore(mutant())
