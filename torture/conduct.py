"""One chapter, lived: starts the processes, strikes them down, has them recovered.

Never strikes who is not alive: every victim is proved to be at the kill, and counted.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import time
from collections import Counter
from collections.abc import Callable

from . import actors
from .actors import World
from .ledger import OPEN, Ledger, Slot
from .plan import Chapter, Round, Scenario, Strike

PATIENCE = 120.0
TRACE = signal.SIGRTMIN + 5
_TICK, _LONGEST_TICK = 0.0003, 0.005
_ALONG = 0.25
"""How long a strike waits for its moment to come; a process may be dead before it."""


class Stuck(Exception):
    """Something did not end within PATIENCE."""


class Fate:
    """What became of one process, as far as the harness had a hand in it."""

    def __init__(self) -> None:
        self.struck = False
        self.starved = False


class Lived:
    """A chapter under way."""

    def __init__(
        self, world: World, told: Scenario, number: int, ledger: Ledger, share: float
    ) -> None:
        self.world = world
        self.told = told
        self.number = number
        self.chapter: Chapter = told.chapters[number]
        self.ledger = ledger
        self._share = share
        self.kills: Counter[str] = Counter()
        self.fates = [[Fate() for _ in lane.processes] for lane in self.chapter.lanes]
        self.troubled = [False for _ in self.chapter.lanes]
        """Its supervisor was killed, or could not write: how an agent ended may be unknown."""
        self.silenced: list[dict[int, int]] = [{} for _ in self.chapter.lanes]
        """How many operations each agent had begun when its supervisor was struck last."""
        self.limited = [False for _ in self.chapter.lanes]
        self.heads: list[int] = []
        """The supervisor of each lane, as it was started."""
        self._heirs: list[int] = []
        self._fallen: list[int] = []
        self._killed: set[int] = set()
        self._ends: dict[int, int] = {}
        self.began = time.time()

    def live(self) -> None:
        first: dict[tuple[int, int], int] = {}
        for strike in self.chapter.strikes:
            first.setdefault((strike.lane, strike.process), strike.at)
        actors.cleared(self.chapter, self.ledger, first)
        self.heads = [self._start(lane) for lane in range(len(self.chapter.lanes))]
        self._heirs = list(self.heads)
        left = list(self.chapter.strikes)
        while left:
            strike = left.pop(0)
            later = [s.at for s in left if (s.lane, s.process) == (strike.lane, strike.process)]
            self._await_moment(strike)
            self._strike(strike, later[0] if later else OPEN)
        for chase in self.chapter.chases:
            self._release()
            self._chase(chase.lane, chase.victim, chase.delay)
        self._wait_for_the_end()
        for one in self.chapter.rounds:
            self._recover(one)
        if self.world.left_behind() or self.world.hooks("waiting") or not self.chapter.rounds:
            self._recover(Round("recover", 1))

    def story(self) -> str:
        """Who was killed, and how the supervisors ended, for whoever has to understand it."""
        ends = {head: self._ends.get(head) for head in self.heads}
        return f"killed {dict(self.kills)}; supervisors ended {ends}, heirs {self._heirs}"

    def once_more(self) -> None:
        self._recover(Round("recover", 1))

    def _start(self, lane: int) -> int:
        if self.chapter.lanes[lane].real:
            return actors.real_supervisor(
                self.world, self.told, self._share, self.number, lane, self.ledger.path
            )
        return actors.supervisor(self.world, self.told, self.number, lane, self.ledger)

    # -- the agents' deaths --------------------------------------------------------------------

    def _await_moment(self, strike: Strike) -> None:
        slot = self.ledger.slot(strike.lane, strike.process)
        patience = 5.0 if self.chapter.lanes[strike.lane].real else _ALONG

        def come() -> bool:
            if slot.waiting is not None:
                return True
            gone = slot.pid and not alive(slot.pid)
            return bool(gone) or not self._anybody(strike.lane)

        self._until(come, patience)

    def _anybody(self, lane: int) -> bool:
        """Does any process of this lane live that could still come to something?"""
        pids = [self._heirs[lane]] + [slot.pid for slot in self._slots(lane)]
        return any(pid and alive(pid) for pid in pids)

    def _slots(self, lane: int) -> list[Slot]:
        count = len(self.chapter.lanes[lane].processes)
        return [self.ledger.slot(lane, number) for number in range(count)]

    def _strike(self, strike: Strike, next_gate: int) -> None:
        slot = self.ledger.slot(strike.lane, strike.process)
        agents = [n for n, one in enumerate(self._slots(strike.lane)) if one.pid]
        head = self._head(strike.lane)
        witness = self._witness(strike.lane, head) if strike.what in ("witness", "everyone") else 0
        if strike.running:
            slot.open_up_to(next_gate)
            _spin(strike.delay)
        lane, number = strike.lane, strike.process
        match strike.what:
            case "agent":
                self._kill_agent(lane, number)
            case "supervisor":
                self._kill_head(lane)
            case "witness":
                self._kill(witness, "witness", lane)
            case "both":
                if number % 2:
                    self._kill_agent(lane, number)
                self._kill_head(lane)
                self._kill_agent(lane, number)
            case "everyone":
                self._kill(witness, "witness", lane)
                self._kill_head(lane)
                for one in agents:
                    self._kill_agent(lane, one)
            case "group":
                self._kill_group(lane, head)
            case "lock":
                if os.path.exists(self.world.db):
                    actors.locker(self.world, 0.01 + 100 * strike.delay)
            case "limit" | "starve":
                self._limit(lane, head, starve=strike.what == "starve")
        self._mourn()
        slot.open_up_to(next_gate)

    def _kill_agent(self, lane: int, number: int) -> None:
        pid = self.ledger.slot(lane, number).pid
        if self._kill(pid, "agent" if number == 0 else "forked agent", lane):
            self.fates[lane][number].struck = True

    def _kill_head(self, lane: int) -> None:
        head = self._head(lane)
        witness = self._witness(lane, head)
        if self._kill(head, "supervisor" if head == self.heads[lane] else "heir", lane):
            self._fallen.append(lane)
            self._heirs[lane] = witness

    def _mourn(self) -> None:
        """A killed supervisor's sockets are open until it is gone, and those it had forked: only
        then, and only by a call, can an agent find out that nobody listens."""
        if self._fallen:
            self._until(lambda: not any(map(alive, self._killed)), 1.0)
        for lane in self._fallen:
            self.troubled[lane] = True
            for number, slot in enumerate(self._slots(lane)):
                self.silenced[lane][number] = slot.begun
        self._fallen.clear()

    def _kill_group(self, lane: int, head: int) -> None:
        """Whoever is in the group dies in the same instant."""
        if not head or not alive(head):
            return
        group = self.heads[lane]
        members = {n: slot.pid for n, slot in enumerate(self._slots(lane)) if slot.pid}
        living = [n for n, pid in members.items() if alive(pid)]
        witness = self._witness(lane, head)
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            return
        self._fallen.append(lane)
        self._killed.update([head, witness, *members.values()])
        self.kills["supervisor (with its group)"] += 1
        self.kills["witness"] += bool(witness)
        for number in range(len(self.fates[lane])):
            self.fates[lane][number].struck = True
        self.kills["agent"] += sum(1 for n in living if n == 0)
        self.kills["forked agent"] += sum(1 for n in living if n)

    def _kill(self, pid: int, who: str, lane: int | None = None) -> bool:
        """Of those we do not collect ourselves, only who is in the lane's process group: the
        number of a dead process may be another's by now."""
        if pid in self._killed or not alive(pid):
            return False  # it takes its time to die
        if lane is not None and _group(pid) != self.heads[lane]:
            return False
        os.kill(pid, signal.SIGKILL)
        self._killed.add(pid)
        self.kills[who] += 1
        return True

    def _limit(self, lane: int, head: int, *, starve: bool) -> None:
        """No file of theirs may grow any more, until somebody comes to recover."""
        pids = [head] + ([slot.pid for slot in self._slots(lane)] if starve else [])
        self.troubled[lane] = self.limited[lane] = True
        for pid in pids:
            if not alive(pid) or _group(pid) != self.heads[lane]:
                continue
            try:
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            except (ProcessLookupError, ValueError, OverflowError):
                continue
        for fate in self.fates[lane]:
            fate.starved = fate.starved or starve

    # -- who is who ------------------------------------------------------------------------------

    def _head(self, lane: int) -> int:
        """Who supervises: the one that was started, or the last heir; 0 if nobody does."""
        return self._heirs[lane] if alive(self._heirs[lane]) else 0

    def _witness(self, lane: int, head: int) -> int:
        """Of the supervisor's children the one that holds nothing but its two pipes."""
        agents = {slot.pid for slot in self._slots(lane)}
        for pid in children(head) if head else []:
            if pid not in agents and _descriptors(pid) == 2:
                return pid
        return 0

    def _recoverers(self, lane: int, head: int) -> list[int]:
        """Those of its children that hold the run's lock with it, once the agent has let go."""
        agents = {slot.pid for slot in self._slots(lane)}
        if not self.ledger.slot(lane, 0).pid:
            return []
        return [p for p in children(head) if p not in agents and alive(p) and _holds(p, "/runs/")]

    def _hook_runners(self, head: int) -> list[int]:
        """Of its children, or of ours, which it becomes when its supervisor is gone."""
        below = children(head) + children(os.getpid())
        return [pid for pid in below if alive(pid) and _holds(pid, "/hooks/")]

    # -- recovery --------------------------------------------------------------------------------

    def _release(self) -> None:
        for lane in range(len(self.heads)):
            for slot in self._slots(lane):
                if slot.gate != OPEN:
                    slot.open_up_to(OPEN)

    def _chase(self, lane: int, victim: str, delay: float) -> None:
        """Wait for a recovery of the lane's supervisor to begin, and strike into it."""
        self._kill_lingerers(lane)
        head = self._head(lane)
        if not head:
            return
        found: list[int] = []

        def begun() -> bool:
            self._kill_lingerers(lane)
            runner = victim == "hook runner"
            found[:] = self._hook_runners(head) if runner else self._recoverers(lane, head)
            return bool(found) or not alive(head)

        patience = 4 * _ALONG if victim == "hook runner" else _ALONG  # they come last
        if not self._until(begun, patience) or not found:
            return
        _spin(delay)
        if victim == "witness":
            self._kill(self._witness(lane, head), "witness", lane)
        if victim == "hook runner" and _holds(found[0], "/hooks/"):
            self._kill(found[0], "hook runner")
        if victim in ("recoverer", "pair"):
            self._kill(found[0], "recoverer", lane)
        if victim in ("supervisor", "pair"):
            self._kill_head(lane)
            self._mourn()

    def _kill_lingerers(self, lane: int) -> None:
        """Who does not end by itself, and has nothing left to do."""
        for number, process in enumerate(self.chapter.lanes[lane].processes):
            slot = self.ledger.slot(lane, number)
            if process.lingers and slot.waiting == len(process.ops):
                self._kill_agent(lane, number)

    def _wait_for_the_end(self) -> None:
        """Until no process of this chapter is left."""

        def over() -> bool:
            self._release()
            for lane in range(len(self.heads)):
                self._kill_lingerers(lane)
            return reap(self._ends)

        if not self._until(over, PATIENCE):
            raise Stuck(_process_tree())

    def _recover(self, one: Round) -> None:
        start = actors.recoverer if one.kind == "recover" else actors.next_start
        began = time.monotonic()
        pids = [start(self.world) for _ in range(one.count)]
        for index, delay in sorted(one.killed.items(), key=lambda item: item[1]):
            _spin(delay - (time.monotonic() - began))
            if one.kind == "recover":
                self._kill(pids[index], "recoverer (command)")
                continue
            helpers = children(pids[index])
            if helpers:
                self._kill(helpers[0], "recoverer (next start)")
            else:
                self._kill(pids[index], "starting supervisor")
        if not self._until(lambda: reap(self._ends), PATIENCE):
            raise Stuck(_process_tree())

    def _until(self, condition: Callable[[], bool], patience: float) -> bool:
        end = time.monotonic() + patience
        tick = _TICK
        while not condition():
            if time.monotonic() > end:
                return False
            time.sleep(tick)
            tick = min(tick * 1.1, _LONGEST_TICK)  # what takes long may be noticed late
            _reap_some(set(self.heads))
        return True


def alive(pid: int) -> bool:
    """Running, and not a zombie."""
    if not pid:
        return False
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        return not poller.poll(0)
    finally:
        os.close(fd)


def children(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(word) for word in file.read().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1


def _holds(pid: int, where: str) -> bool:
    """Whether it has a lock there open."""
    folder = f"/proc/{pid}/fd"
    try:
        files = [os.readlink(f"{folder}/{fd}") for fd in os.listdir(folder)]
    except OSError:
        return False
    return any(file.endswith("/lock") and where in file for file in files)


def _descriptors(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0


def reap(ends: dict[int, int]) -> bool:
    """Collect who is dead, and how each ended; True when nobody is left."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True
        if pid == 0:
            return False
        ends[pid] = status


def kill_everyone() -> None:
    """Whoever is below us, until nobody is."""
    ends: dict[int, int] = {}
    while not reap(ends):
        waiting = children(os.getpid())
        while waiting:
            pid = waiting.pop()
            waiting += children(pid)
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.005)


def _reap_some(but: set[int]) -> None:
    """Whoever was handed to us and is dead, as init would."""
    for pid in children(os.getpid()):
        if pid not in but:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue


def _spin(seconds: float) -> None:
    """Microseconds matter here, and a sleep has none."""
    if seconds > 0.001:
        time.sleep(seconds - 0.0005)
        return
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def _process_tree() -> str:
    """Who is still there; each writes where it is into the world's `errors`."""
    lines = []
    for pid in children(os.getpid()):
        for one in [pid, *children(pid)]:
            try:
                with open(f"/proc/{one}/wchan") as wchan, open(f"/proc/{one}/stat") as stat:
                    lines.append(f"{one}: {stat.read()[:60]} {wchan.read()}")
                os.kill(one, TRACE)
            except OSError:
                continue
    time.sleep(0.5)  # nothing depends on it but what is written there
    return "; ".join(lines)
