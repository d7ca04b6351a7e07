"""A scenario: whose lives, who is struck down when, and who comes to recover.

Never acts: it is data, made from a seed alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from .script import Op, Writer


@dataclass
class Process:
    ops: list[Op]
    lingers: bool
    """It does not end by itself, and is killed at the latest when nothing else is left to do."""


@dataclass
class Lane:
    """One supervised run."""

    processes: list[Process]
    options: list[str]
    real: bool
    """Through the command line, with interpreters of its own."""

    @property
    def checkpoints(self) -> bool:
        """What is said is stored while it lives."""
        return self.options[self.options.index("--checkpoint") + 1] != "0"


@dataclass
class Strike:
    """What happens when a process has come to a certain operation."""

    lane: int
    process: int
    at: int
    what: str
    running: bool
    """The process goes on meanwhile, and is met in the middle of something."""
    delay: float


@dataclass
class Chase:
    """What happens once the agent is dead and its recovery has begun."""

    lane: int
    victim: str
    delay: float


@dataclass
class Round:
    """Recoverers, all at once; `killed` says which are struck down, and how soon."""

    kind: str
    count: int
    killed: dict[int, float] = field(default_factory=dict)


@dataclass
class Chapter:
    """Lives that begin together, their deaths, and their recovery."""

    lanes: list[Lane]
    strikes: list[Strike]
    chases: list[Chase]
    rounds: list[Round]
    once_more: bool


@dataclass
class Scenario:
    seed: str
    ready_made: bool
    """The database is there before anybody says a word."""
    chapters: list[Chapter]


STRIKES = {
    "agent": 8.0, "supervisor": 5.0, "witness": 1.5, "both": 3.0, "group": 2.0, "everyone": 1.0,
    "lock": 0.7, "limit": 0.7, "starve": 0.3,
}  # fmt: skip
"""lock: state.db is held by another writer; limit: the supervisor's files may not grow;
starve: neither may the agent's."""
CHASES = {"recoverer": 6.0, "supervisor": 2.0, "pair": 2.0, "hook runner": 2.0, "witness": 0.5}


def scenario(seed: str, real_share: float) -> Scenario:
    dice = Random(seed)
    # Decided by the seed, or the same seed would be another scenario with another share.
    real = Random("real " + seed).random() < real_share
    keeper_world = dice.random() < 0.4
    made = Scenario(seed, keeper_world or dice.random() < 0.3, [])
    resumable: list[str] = []
    chapters = 1 if real else dice.choice((2, 3, 4))
    for number in range(chapters):
        made.chapters.append(_chapter(dice, f"{number}", keeper_world, resumable, real))
    return made


def _chapter(
    dice: Random, name: str, keeper_world: bool, resumable: list[str], real: bool
) -> Chapter:
    lanes = []
    for number in range(1 if dice.random() < 0.8 else 2):
        lanes.append(_lane(dice, f"{name}{'ab'[number]}", keeper_world, resumable, real))
    strikes = sorted(
        (strike for number, lane in enumerate(lanes) for strike in _strikes(dice, number, lane)),
        key=lambda strike: strike.at,
    )
    chases = [
        Chase(dice.randrange(len(lanes)), _pick(dice, CHASES), _delay(dice, 0.012))
        for _ in range(dice.choice((0, 1, 1, 2, 3)))
    ]
    rounds = [_round(dice) for _ in range(dice.choice((0, 1, 2, 3)))]
    for lane in lanes:
        for process in lane.processes:
            resumable += [op.uid for op in process.ops if op.name == "open" and not op.flag]
    dice.shuffle(resumable)
    return Chapter(lanes, strikes, chases, rounds, dice.random() < 0.1)


def _lane(dice: Random, name: str, keeper_world: bool, resumable: list[str], real: bool) -> Lane:
    count = dice.choice((1, 1, 1, 2, 3))
    checkpoint = dice.choice(("0", "0", "0.01", "15"))
    processes = []
    for number in range(count):
        keeper = keeper_world and dice.random() < 0.7
        resume = [resumable.pop()] if resumable and not number and dice.random() < 0.3 else []
        writer = Writer(dice, f"{name}{number}", keeper, resume, patient=checkpoint != "0")
        length = dice.choice((0, 1, 5, 15, 15, 15, 40, 40, 80))
        if dice.random() < 0.003:
            length = 900  # more messages than go into state.db in one step
        lingers = dice.random() < 0.6
        writer.write(max(length, count), dice.choice((1, 1, 2)), _forks(number, count))
        if not lingers:
            writer.exit()
        processes.append(Process(writer.ops, lingers))
    options = ["--orphans", dice.choice(("leave", "report", "terminate"))]
    options += ["--checkpoint", checkpoint]
    if dice.random() < 0.4:
        options.append("--no-adopt")
    if dice.random() < 0.2:
        options += ["--sync", "always"]
    return Lane(processes, options, real)


def _forks(number: int, count: int) -> list[int]:
    """The first process forks the others."""
    return list(range(1, count)) if number == 0 else []


def _strikes(dice: Random, lane: int, of: Lane) -> list[Strike]:
    made = []
    for _ in range(dice.choice((0, 1, 1, 2, 2, 3, 4))):
        process = dice.randrange(len(of.processes))
        at = dice.randrange(len(of.processes[process].ops) + 1)
        running = dice.random() < 0.8
        delay = _delay(dice, 0.0008)
        made.append(Strike(lane, process, at, _pick(dice, STRIKES), running, delay))
    return made


def _round(dice: Random) -> Round:
    kind = "recover" if dice.random() < 0.75 else "start"
    count = dice.choice((1, 1, 2, 4)) if kind == "recover" else 1
    killed = {n: _delay(dice, 0.02) for n in range(count) if dice.random() < 0.6}
    return Round(kind, count, killed)


def _pick(dice: Random, odds: dict[str, float]) -> str:
    return dice.choices(list(odds), list(odds.values()))[0]


def _delay(dice: Random, most: float) -> float:
    """Often at once, and more often soon than late."""
    return 0.0 if dice.random() < 0.15 else most * dice.random() ** 1.5
