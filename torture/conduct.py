"""Runs one chapter: starts the processes, kills them, and has them recovered.

Never kills a process that is not alive: every victim is proved to be, and every kill is counted.
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
"""How long a strike waits for its moment; the process may die before."""


class Stuck(Exception):
    """Something did not end within PATIENCE."""


class Fate:
    """What the harness did to one process."""

    def __init__(self) -> None:
        self.struck = False
        self.starved = False


class Lived:
    """A chapter that is running."""

    def __init__(
        self, world: World, scenario: Scenario, number: int, ledger: Ledger, share: float
    ) -> None:
        self.world = world
        self.scenario = scenario
        self.number = number
        self.chapter: Chapter = scenario.chapters[number]
        self.ledger = ledger
        self._share = share
        self.kills: Counter[str] = Counter()
        self.fates = [[Fate() for _ in lane.processes] for lane in self.chapter.lanes]
        self.troubled = [False for _ in self.chapter.lanes]
        """Its supervisor was killed or could not write, so the end of an agent may be unknown."""
        self.silenced: list[dict[int, int]] = [{} for _ in self.chapter.lanes]
        """How many operations each agent had begun when its supervisor was last killed."""
        self.limited = [False for _ in self.chapter.lanes]
        self.heads: list[int] = []
        """The first supervisor of each lane."""
        self._successors: list[int] = []
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
        self._successors = list(self.heads)
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
        for turn in self.chapter.rounds:
            self._recover(turn)
        if self.world.left_behind() or self.world.hooks("waiting") or not self.chapter.rounds:
            self._recover(Round("recover", 1))

    def story(self) -> str:
        """Who was killed and how the supervisors ended, to help understand a violation."""
        ends = {head: self._ends.get(head) for head in self.heads}
        return f"killed {dict(self.kills)}; supervisors ended {ends}, successors {self._successors}"

    def once_more(self) -> None:
        self._recover(Round("recover", 1))

    def _start(self, lane: int) -> int:
        if self.chapter.lanes[lane].real:
            return actors.real_supervisor(
                self.world, self.scenario, self._share, self.number, lane, self.ledger.path
            )
        return actors.supervisor(self.world, self.scenario, self.number, lane, self.ledger)

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
        """Whether any process of this lane is alive and could still reach the moment."""
        pids = [self._successors[lane]] + [slot.pid for slot in self._slots(lane)]
        return any(pid and alive(pid) for pid in pids)

    def _slots(self, lane: int) -> list[Slot]:
        count = len(self.chapter.lanes[lane].processes)
        return [self.ledger.slot(lane, number) for number in range(count)]

    def _strike(self, strike: Strike, next_gate: int) -> None:
        slot = self.ledger.slot(strike.lane, strike.process)
        agents = [n for n, slot in enumerate(self._slots(strike.lane)) if slot.pid]
        head = self._head(strike.lane)
        standby = self._standby(strike.lane, head) if strike.what in ("standby", "everyone") else 0
        if strike.running:
            slot.open_up_to(next_gate)
            _spin(strike.delay)
        lane, number = strike.lane, strike.process
        match strike.what:
            case "agent":
                self._kill_agent(lane, number)
            case "supervisor":
                self._kill_head(lane)
            case "standby":
                self._kill(standby, "standby", lane)
            case "both":
                if number % 2:
                    self._kill_agent(lane, number)
                self._kill_head(lane)
                self._kill_agent(lane, number)
            case "everyone":
                self._kill(standby, "standby", lane)
                self._kill_head(lane)
                for number in agents:
                    self._kill_agent(lane, number)
            case "group":
                self._kill_group(lane, head)
            case "lock":
                if os.path.exists(self.world.db):
                    actors.locker(self.world, 0.01 + 100 * strike.delay)
            case "limit" | "starve":
                self._limit(lane, head, starve=strike.what == "starve")
        self._wait_for_fallen()
        slot.open_up_to(next_gate)

    def _kill_agent(self, lane: int, number: int) -> None:
        pid = self.ledger.slot(lane, number).pid
        if self._kill(pid, "agent" if number == 0 else "forked agent", lane):
            self.fates[lane][number].struck = True

    def _kill_head(self, lane: int) -> None:
        head = self._head(lane)
        standby = self._standby(lane, head)
        if self._kill(head, "supervisor" if head == self.heads[lane] else "successor", lane):
            self._fallen.append(lane)
            self._successors[lane] = standby

    def _wait_for_fallen(self) -> None:
        """Wait until killed supervisors and their forks are gone. Their sockets stay open until
        then, and an agent only notices with its next call that nobody listens."""
        if self._fallen:
            self._until(lambda: not any(map(alive, self._killed)), 1.0)
        for lane in self._fallen:
            self.troubled[lane] = True
            for number, slot in enumerate(self._slots(lane)):
                self.silenced[lane][number] = slot.begun
        self._fallen.clear()

    def _kill_group(self, lane: int, head: int) -> None:
        """Kill all members of the process group at once."""
        if not head or not alive(head):
            return
        group = self.heads[lane]
        members = {n: slot.pid for n, slot in enumerate(self._slots(lane)) if slot.pid}
        living = [n for n, pid in members.items() if alive(pid)]
        standby = self._standby(lane, head)
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            return
        self._fallen.append(lane)
        self._killed.update([head, standby, *members.values()])
        self.kills["supervisor (with its group)"] += 1
        self.kills["standby"] += bool(standby)
        for number in range(len(self.fates[lane])):
            self.fates[lane][number].struck = True
        self.kills["agent"] += sum(1 for n in living if n == 0)
        self.kills["forked agent"] += sum(1 for n in living if n)

    def _kill(self, pid: int, who: str, lane: int | None = None) -> bool:
        """Kill a process. If it is not our child it must be in the lane's process group, because
        the pid of a dead process may have been reused."""
        if pid in self._killed or not alive(pid):
            return False  # already killed, and still dying
        if lane is not None and _group(pid) != self.heads[lane]:
            return False
        os.kill(pid, signal.SIGKILL)
        self._killed.add(pid)
        self.kills[who] += 1
        return True

    def _limit(self, lane: int, head: int, *, starve: bool) -> None:
        """Set a file size limit of zero, so that no file of these processes can grow."""
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
        """The pid of the supervisor: the first one or its last successor; 0 if there is none."""
        return self._successors[lane] if alive(self._successors[lane]) else 0

    def _standby(self, lane: int, head: int) -> int:
        """The child of the supervisor that has only its two pipes open; 0 if there is none."""
        agents = {slot.pid for slot in self._slots(lane)}
        for pid in children(head) if head else []:
            if pid not in agents and descriptors(pid) == 2:
                return pid
        return 0

    def _recoverers(self, lane: int, head: int) -> list[int]:
        """The children of the supervisor that hold the run's lock, without agents."""
        agents = {slot.pid for slot in self._slots(lane)}
        if not self.ledger.slot(lane, 0).pid:
            return []
        return [p for p in children(head) if p not in agents and alive(p) and _holds(p, "/runs/")]

    def _hook_runners(self, head: int) -> list[int]:
        """Children of the supervisor, or ours: when the supervisor dies, we inherit its runner."""
        below = children(head) + children(os.getpid())
        return [pid for pid in below if alive(pid) and _holds(pid, "/hooks/")]

    # -- recovery --------------------------------------------------------------------------------

    def _release(self) -> None:
        for lane in range(len(self.heads)):
            for slot in self._slots(lane):
                if slot.gate != OPEN:
                    slot.open_up_to(OPEN)

    def _chase(self, lane: int, victim: str, delay: float) -> None:
        """Wait until the lane's supervisor recovers, and kill in the middle of that."""
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

        patience = 4 * _ALONG if victim == "hook runner" else _ALONG  # hooks run last
        if not self._until(begun, patience) or not found:
            return
        _spin(delay)
        if victim == "standby":
            self._kill(self._standby(lane, head), "standby", lane)
        if victim == "hook runner" and _holds(found[0], "/hooks/"):
            self._kill(found[0], "hook runner")
        if victim in ("recoverer", "pair"):
            self._kill(found[0], "recoverer", lane)
        if victim in ("supervisor", "pair"):
            self._kill_head(lane)
            self._wait_for_fallen()

    def _kill_lingerers(self, lane: int) -> None:
        """Kill the agents that do not exit by themselves and have nothing left to do."""
        for number, process in enumerate(self.chapter.lanes[lane].processes):
            slot = self.ledger.slot(lane, number)
            if process.lingers and slot.waiting == len(process.ops):
                self._kill_agent(lane, number)

    def _wait_for_the_end(self) -> None:
        """Wait until no process of this chapter is left."""

        def over() -> bool:
            self._release()
            for lane in range(len(self.heads)):
                self._kill_lingerers(lane)
            return reap(self._ends)

        if not self._until(over, PATIENCE):
            raise Stuck(_process_tree())

    def _recover(self, turn: Round) -> None:
        start = actors.recoverer if turn.kind == "recover" else actors.next_start
        began = time.monotonic()
        pids = [start(self.world) for _ in range(turn.count)]
        for index, delay in sorted(turn.killed.items(), key=lambda item: item[1]):
            _spin(delay - (time.monotonic() - began))
            if turn.kind == "recover":
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
            tick = min(tick * 1.1, _LONGEST_TICK)  # a long wait may end a little late
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
    """Whether the process has a lock file open in that folder."""
    folder = f"/proc/{pid}/fd"
    try:
        files = [os.readlink(f"{folder}/{fd}") for fd in os.listdir(folder)]
    except OSError:
        return False
    return any(file.endswith("/lock") and where in file for file in files)


def descriptors(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0


def reap(ends: dict[int, int]) -> bool:
    """Reap dead children and note their status; True when no child is left."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True
        if pid == 0:
            return False
        ends[pid] = status


def kill_everyone() -> None:
    """Kill all descendants until none is left."""
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
    """Reap orphans that were handed to us, as init does."""
    for pid in children(os.getpid()):
        if pid not in but:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue


def _spin(seconds: float) -> None:
    """Wait precisely: a sleep is too coarse for microseconds."""
    if seconds > 0.001:
        time.sleep(seconds - 0.0005)
        return
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def _process_tree() -> str:
    """The processes that are left. Each writes its stack to the `errors` file of the world."""
    lines = []
    for pid in children(os.getpid()):
        for process in [pid, *children(pid)]:
            try:
                with open(f"/proc/{process}/wchan") as wchan, open(f"/proc/{process}/stat") as stat:
                    lines.append(f"{process}: {stat.read()[:60]} {wchan.read()}")
                os.kill(process, TRACE)
            except OSError:
                continue
    time.sleep(0.5)  # so that the stacks are written; nothing else depends on it
    return "; ".join(lines)
