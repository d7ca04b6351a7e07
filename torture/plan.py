"""A scenario: which agents run, who is killed when, and who recovers.

Never acts: a scenario is data, made from its seed alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from .script import Op, Writer


@dataclass
class Process:
    ops: list[Op]
    lingers: bool
    """It does not exit by itself: it is killed at the latest when nothing else is left to do."""


@dataclass
class Lane:
    """One supervised run."""

    processes: list[Process]
    options: list[str]
    real: bool
    """Started through the command line, with separate interpreters."""

    @property
    def checkpoints(self) -> bool:
        """Whether messages are stored while the agent lives."""
        return self.options[self.options.index("--checkpoint") + 1] != "0"


@dataclass
class Strike:
    """An intervention when a process reaches a certain operation."""

    lane: int
    process: int
    at: int
    what: str
    running: bool
    """The process goes on meanwhile, so that it is hit in the middle of an operation."""
    delay: float


@dataclass
class Chase:
    """A kill once the agent is dead and its recovery has begun."""

    lane: int
    victim: str
    delay: float


@dataclass
class Round:
    """Several recoverers at once; `killed` says which are killed, and after how many seconds."""

    kind: str
    count: int
    killed: dict[int, float] = field(default_factory=dict)


@dataclass
class Chapter:
    """Runs that start together, their deaths, and their recovery."""

    lanes: list[Lane]
    strikes: list[Strike]
    chases: list[Chase]
    rounds: list[Round]
    once_more: bool


@dataclass
class Scenario:
    seed: str
    ready_made: bool
    """The database exists before the first agent starts."""
    chapters: list[Chapter]


STRIKES = {
    "agent": 8.0, "supervisor": 5.0, "standby": 1.5, "both": 3.0, "group": 2.0, "everyone": 1.0,
    "lock": 0.7, "limit": 0.7, "starve": 0.3,
}  # fmt: skip
"""lock: state.db is held by another writer; limit: the supervisor's files may not grow;
starve: neither may the agent's."""
CHASES = {"recoverer": 6.0, "supervisor": 2.0, "pair": 2.0, "hook runner": 2.0, "standby": 0.5}


def scenario(seed: str, real_share: float) -> Scenario:
    rng = Random(seed)
    # A generator of its own: with another share, the same seed still gives the same scenario.
    real = Random("real " + seed).random() < real_share
    self_storing_world = rng.random() < 0.4
    made = Scenario(seed, self_storing_world or rng.random() < 0.3, [])
    resumable: list[str] = []
    chapters = 1 if real else rng.choice((2, 3, 4))
    for number in range(chapters):
        made.chapters.append(_chapter(rng, f"{number}", self_storing_world, resumable, real))
    return made


def _chapter(
    rng: Random, name: str, self_storing_world: bool, resumable: list[str], real: bool
) -> Chapter:
    lanes = []
    for number in range(1 if rng.random() < 0.8 else 2):
        lanes.append(_lane(rng, f"{name}{'ab'[number]}", self_storing_world, resumable, real))
    strikes = sorted(
        (strike for number, lane in enumerate(lanes) for strike in _strikes(rng, number, lane)),
        key=lambda strike: strike.at,
    )
    chases = [
        Chase(rng.randrange(len(lanes)), _pick(rng, CHASES), _delay(rng, 0.012))
        for _ in range(rng.choice((0, 1, 1, 2, 3)))
    ]
    rounds = [_round(rng) for _ in range(rng.choice((0, 1, 2, 3)))]
    for lane in lanes:
        for process in lane.processes:
            resumable += [op.uid for op in process.ops if op.name == "open" and not op.flag]
    rng.shuffle(resumable)
    return Chapter(lanes, strikes, chases, rounds, rng.random() < 0.1)


def _lane(
    rng: Random, name: str, self_storing_world: bool, resumable: list[str], real: bool
) -> Lane:
    count = rng.choice((1, 1, 1, 2, 3))
    checkpoint = rng.choice(("0", "0", "0.01", "15"))
    processes = []
    for number in range(count):
        self_storing = self_storing_world and rng.random() < 0.7
        resume = [resumable.pop()] if resumable and not number and rng.random() < 0.3 else []
        writer = Writer(rng, f"{name}{number}", self_storing, resume, patient=checkpoint != "0")
        length = rng.choice((0, 1, 5, 15, 15, 15, 40, 40, 80))
        if rng.random() < 0.003:
            length = 900  # more messages than go into state.db in one step
        lingers = rng.random() < 0.6
        writer.write(max(length, count), rng.choice((1, 1, 2)), _forks(number, count))
        if not lingers:
            writer.exit()
        processes.append(Process(writer.ops, lingers))
    options = ["--orphans", rng.choice(("leave", "report", "terminate"))]
    options += ["--checkpoint", checkpoint]
    if rng.random() < 0.4:
        options.append("--no-adopt")
    if rng.random() < 0.2:
        options += ["--sync", "always"]
    return Lane(processes, options, real)


def _forks(number: int, count: int) -> list[int]:
    """The processes that this one forks: the first forks all others."""
    return list(range(1, count)) if number == 0 else []


def _strikes(rng: Random, lane: int, of: Lane) -> list[Strike]:
    made = []
    for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4))):
        process = rng.randrange(len(of.processes))
        at = rng.randrange(len(of.processes[process].ops) + 1)
        running = rng.random() < 0.8
        delay = _delay(rng, 0.0008)
        made.append(Strike(lane, process, at, _pick(rng, STRIKES), running, delay))
    return made


def _round(rng: Random) -> Round:
    kind = "recover" if rng.random() < 0.75 else "start"
    count = rng.choice((1, 1, 2, 4)) if kind == "recover" else 1
    killed = {n: _delay(rng, 0.02) for n in range(count) if rng.random() < 0.6}
    return Round(kind, count, killed)


def _pick(rng: Random, odds: dict[str, float]) -> str:
    return rng.choices(list(odds), list(odds.values()))[0]


def _delay(rng: Random, most: float) -> float:
    """Often zero, and short delays more often than long ones."""
    return 0.0 if rng.random() < 0.15 else most * rng.random() ** 1.5
