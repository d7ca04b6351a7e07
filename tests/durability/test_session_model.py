"""Several processes in one session, as a model: every interleaving of what they say, of how and
when they end, of when the supervisor learns of it, and of where a job is killed (G1, G3, G4).

The model is the protocol as the code has it, a step being what nobody sees half done:

    step        in the code                                 what makes it one step
    say         agent_shim                                  a frame in the ring
    notice      run.processes                               the supervisor's loop
    read        recovery.reading, checkpoint                under the run's lock
    write       statedb.writer.SessionWriter._step          one transaction, markers included
    close       SessionWriter._finish                       the same
    remove      recovery.finish._retire                     a tombstone makes it one
    retire      storage.run_folder.retire                   two: who lives, then what is there

All messages have the same text: only the markers tell whose a row is. One process says two
messages, the other one streams a reply. A living process is stored by checkpoints, a dead one is
finished. Either may be silent until the other one has ended: its first words are its first file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

KILLS = 2


class Message(NamedTuple):
    name: str
    place: int
    complete: bool


class Process(NamedTuple):
    """A process, and its stream."""

    said: tuple[Message, ...] = ()
    ended: str = ""
    """How: killed, exited."""
    noticed: bool = False
    files: bool = False
    # In state.db, in the marker of its stream.
    stored: frozenset[str] = frozenset()
    done: bool = False
    crash: bool = False

    @property
    def is_replying(self) -> bool:
        return any(not message.complete for message in self.said)


class Job(NamedTuple):
    """A recovery or a checkpoint under way: what it has read, and what is left to do."""

    at: str
    queue: tuple[tuple[int, str], ...] = ()
    closes: tuple[int, ...] = ()


class State(NamedTuple):
    processes: tuple[Process, Process]
    clock: int = 1
    rows: tuple[tuple[str, int], ...] = ()
    end: str = ""
    job: Job | None = None
    kills: int = KILLS
    folder: bool = True
    retiring: bool = False
    """Nobody was found alive; what is there is looked at next."""


# What each says: a message, or a reply that is streamed first.
SCRIPTS = (("m1", "m2"), ("r1",))
START = State((Process(), Process()))


class Protocol:
    """A mutant overrides a step."""

    # -- the agents --------------------------------------------------------------------------

    def say(self, s: State) -> Iterator[State]:
        for number, process in enumerate(s.processes):
            if process.ended:
                continue
            said = process.said
            if process.is_replying:
                whole = said[-1]._replace(complete=True)
                yield _with(s, number, process._replace(said=(*said[:-1], whole)))
            elif len(said) < len(SCRIPTS[number]):
                name = SCRIPTS[number][len(said)]
                message = Message(name, s.clock, complete=not name.startswith("r"))
                spoken = process._replace(said=(*said, message), files=s.folder, done=False)
                after = _with(s, number, spoken)
                # A session that goes on is open again; the end mark that it has is an old one.
                yield after._replace(clock=s.clock + 1, end="")

    def end(self, s: State) -> Iterator[State]:
        for number, process in enumerate(s.processes):
            if not process.ended:
                yield _with(s, number, process._replace(ended="killed"))
                if not process.is_replying:
                    yield _with(s, number, process._replace(ended="exited"))
            elif not process.noticed:
                yield _with(s, number, process._replace(noticed=True))

    # -- the jobs, one at a time ---------------------------------------------------------------

    def job(self, s: State) -> Iterator[State]:
        if s.job is None:
            if not s.retiring and any(process.files for process in s.processes):
                yield s._replace(job=Job("read"))
        else:
            yield from getattr(self, s.job.at)(s, s.job)

    def read(self, s: State, job: Job) -> Iterator[State]:
        """What is missing, in the order in which it was said, as far as it can go in now."""
        found: list[tuple[int, int, str]] = []
        closes = []
        for number, process in enumerate(s.processes):
            if not process.files or process.done:
                if process.files:
                    closes.append(number)
                continue
            limit = self.limit(s, number)
            missing = [m for m in process.said if m.name not in process.stored]
            if not process.noticed:
                missing = [m for m in missing if m.complete]
            now = [m for m in missing if m.place <= limit]
            found += [(m.place, number, m.name) for m in now]
            if process.noticed and len(now) == len(missing):
                closes.append(number)
        queue = tuple((number, name) for _, number, name in sorted(found))
        yield s._replace(job=Job("write", queue, tuple(closes)))

    def limit(self, s: State, number: int) -> int:
        """A reply of a process that lives, as far as is known, may yet grow."""
        other = s.processes[1 - number]
        open_at = [m.place for m in other.said if not m.complete and not other.noticed]
        return min(open_at, default=1000)

    def write(self, s: State, job: Job) -> Iterator[State]:
        if not job.queue:
            yield s._replace(job=job._replace(at="close"))
            return
        (number, name), *rest = job.queue
        process = s.processes[number]
        place = next(m.place for m in process.said if m.name == name)
        after = _with(s, number, process._replace(stored=process.stored | {name}))
        yield after._replace(rows=(*s.rows, (name, place)), job=job._replace(queue=tuple(rest)))

    def close(self, s: State, job: Job) -> Iterator[State]:
        """With the last row: markers of the dead, and the end mark with the last of them."""
        dead = [n for n in job.closes if not s.processes[n].done]
        for number in dead:
            process = s.processes[number]
            crash = process.ended == "killed" and process.is_replying
            s = _with(s, number, process._replace(done=True, crash=crash))
        if dead and all(process.done or not process.said for process in s.processes):
            s = s._replace(end=self.reason(s, dead[-1]))
        yield s._replace(job=job._replace(at="remove"))

    def reason(self, s: State, last: int) -> str:
        """By the worst that happened."""
        return "interrupted" if any(process.crash for process in s.processes) else "exited"

    def remove(self, s: State, job: Job) -> Iterator[State]:
        left = [n for n in job.closes if s.processes[n].files]
        if not left:
            yield s._replace(job=None)
        else:
            yield _with(s, left[0], s.processes[left[0]]._replace(files=False))

    # -- the run's folder ----------------------------------------------------------------------

    def retire(self, s: State) -> Iterator[State]:
        if not s.folder or s.job is not None:
            return
        if not s.retiring:
            if self.nobody_may_speak(s):
                yield s._replace(retiring=True)
        elif any(process.files for process in s.processes):
            yield s._replace(retiring=False)
        else:
            yield s._replace(retiring=False, folder=False)

    def nobody_may_speak(self, s: State) -> bool:
        return all(process.ended for process in s.processes)

    def moves(self, s: State) -> Iterator[State]:
        yield from self.retire(s)
        yield from self.say(s)
        yield from self.end(s)
        yield from self.job(s)
        if s.kills and s.job is not None:
            yield s._replace(job=None, kills=s.kills - 1)


def _with(s: State, number: int, process: Process) -> State:
    both = list(s.processes)
    both[number] = process
    return s._replace(processes=(both[0], both[1]))


# -- what must hold ----------------------------------------------------------------------------


def check(s: State) -> None:
    names = [name for name, _ in s.rows]
    places = [place for _, place in s.rows]
    assert len(names) == len(set(names)), "stored twice"
    assert places == sorted(places), "stored in another order than it was said"
    for process in s.processes:
        said = {message.name for message in process.said}
        assert process.files or said <= set(names), "removed before it was stored"
        assert process.ended or not process.done, "closed while it lives"
    assert not s.end or all(p.ended or not p.said for p in s.processes), "ended while one lives"


def check_end(s: State) -> None:
    said = {message.name for process in s.processes for message in process.said}
    assert {name for name, _ in s.rows} == said, "not all of it is stored"
    crashed = any(p.ended == "killed" and p.is_replying for p in s.processes)
    if not said:
        assert not s.end, "nobody said anything"
        return
    assert s.end == ("interrupted" if crashed else "exited"), "its end is not the truth"


def explore(protocol: Protocol) -> tuple[int, int]:
    """Every state that can be reached; how many there are, and how many ends."""
    seen, ahead, ends = {START}, [START], 0
    while ahead:
        state = ahead.pop()
        check(state)
        if not state.folder:
            ends += 1
            check_end(state)
        further = list(protocol.moves(state))
        if not further:
            check_end(state)
        for after in further:
            if after not in seen:
                seen.add(after)
                ahead.append(after)
    return len(seen), ends


def test_two_processes_of_a_session_are_stored_once_in_order_and_ended_truthfully() -> None:
    states, ends = explore(Protocol())
    print(f"{states:,} states, {ends:,} of them ends")
    assert states > 5_000 and ends > 50, "not a model of nothing"


# -- and the model can fail ----------------------------------------------------------------------


class OneAfterTheOther(Protocol):
    """Each stream is stored by itself."""

    def read(self, s: State, job: Job) -> Iterator[State]:
        for after in Protocol.read(self, s, job):
            assert after.job is not None
            yield after._replace(job=after.job._replace(queue=tuple(sorted(after.job.queue))))


class NobodyWaits(Protocol):
    """A dead process is finished although a reply of a living one may belong before its words."""

    def limit(self, s: State, number: int) -> int:
        return 1000


class KnownByItsText(Protocol):
    """A row with the same text passes for the other stream's, if there are enough of them."""

    def read(self, s: State, job: Job) -> Iterator[State]:
        for after in Protocol.read(self, s, job):
            assert after.job is not None
            foreign = [0, 0]
            for name, _ in s.rows:
                owner = 0 if name in SCRIPTS[0] else 1
                foreign[1 - owner] += 1
            queue = []
            for number, name in after.job.queue:
                if foreign[number]:
                    foreign[number] -= 1
                else:
                    queue.append((number, name))
            yield after._replace(job=after.job._replace(queue=tuple(queue)))


class MarkedLater(Protocol):
    """The marker is written with the end, and not with the rows."""

    def write(self, s: State, job: Job) -> Iterator[State]:
        for after in Protocol.write(self, s, job):
            yield after._replace(processes=s.processes)


class ByTheLastOne(Protocol):
    """The session ends as the process that is finished last."""

    def reason(self, s: State, last: int) -> str:
        return "interrupted" if s.processes[last].crash else "exited"


class EndedByTheFirst(Protocol):
    """The session is ended as soon as one of its processes is."""

    def close(self, s: State, job: Job) -> Iterator[State]:
        for after in Protocol.close(self, s, job):
            done = any(process.done for process in after.processes)
            yield after._replace(end="exited") if done else after


class SilentOnesAreTools(Protocol):
    """The folder stays for processes that have spoken, and for no other."""

    def nobody_may_speak(self, s: State) -> bool:
        return all(process.ended or not process.said for process in s.processes)


class StreamsFirst(Protocol):
    """First what is there, then who lives: somebody speaks and dies in between."""

    def retire(self, s: State) -> Iterator[State]:
        if not s.folder or s.job is not None:
            return
        if not s.retiring:
            if not any(process.files for process in s.processes):
                yield s._replace(retiring=True)
        elif self.nobody_may_speak(s):
            first, second = (process._replace(files=False) for process in s.processes)
            yield s._replace(retiring=False, folder=False, processes=(first, second))
        else:
            yield s._replace(retiring=False)


@pytest.mark.parametrize("mutant", Protocol.__subclasses__())
def test_a_protocol_with_a_step_left_out_is_caught(mutant: type[Protocol]) -> None:
    with pytest.raises(AssertionError):
        explore(mutant())
