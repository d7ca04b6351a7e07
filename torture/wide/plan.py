"""The scenarios of the wider campaign: which processes speak in which order, and what befalls them.

Never acts: a scenario is data, made from its kind and seed alone, so that the agents and the
harness can each generate it for themselves. Standard library only.

All steps of a life are in one order. A process performs a step when its turn has come, and then it
is the next one's turn; so what was said in which order is known exactly, however many processes
speak. Steps of the actor HARNESS are what the harness does to them. The steps of a process that is
dead by then are passed over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

HARNESS = -1

# Equal words are the difficult case: only who said them, and when, tells them apart.
FEW_WORDS = ("ok", "yes", "go on", "ok then", "Grüße")
WAYS = ("fork", "spawn", "forkserver", "command")
LONG = 3000


@dataclass(frozen=True)
class Step:
    actor: int
    do: str
    """Of a process: user, assistant, delta, line, turn, begin, become, exit, leave.
    Of the harness: kill, strike, kill supervisor, kill everyone, stop, continue, fill, free,
    stranger, limit, wait for the supervisor, wait for the successor, pause."""
    text: str = ""
    number: int = 0
    """Which process; for `exit`, the status; for `strike`, its delay in microseconds; for `pause`,
    milliseconds."""


@dataclass
class Life:
    """One supervised run, from its start to the death of its last process."""

    steps: list[Step]
    options: list[str] = field(default_factory=list)
    clock: float = 0.0
    """How many seconds everybody's wall clock is ahead."""
    at_once: bool = False
    """It starts as soon as the life before is dead, which nobody has recovered yet."""
    watched: bool = False
    """Its agent does not know the SDK: it writes a transcript."""
    end: str | None = None
    """The end of the session; None where several are right."""


@dataclass
class Scenario:
    kind: str
    seed: str
    lives: list[Life]
    small_disk: bool = False
    """The state folder is on a disk of its own."""
    outlives: bool = False
    """Its processes outlive their supervisor in peace: the rest is for `recover`."""


class Writer:
    """Writes the steps of one life."""

    def __init__(self, rng: Random, equal: bool = False) -> None:
        self.rng = rng
        self.steps: list[Step] = []
        self._equal = equal
        self._count = 0
        self._mark = f"{rng.randrange(1 << 20):x}"

    def words(self) -> str:
        if self._equal:
            return self.rng.choice(FEW_WORDS)
        self._count += 1
        return f"{self._mark} {self._count}"

    def say(self, actor: int, role: str = "") -> None:
        self.add(actor, role or self.rng.choice(("user", "assistant")), self.words())

    def talk(self, actors: list[int], count: int) -> None:
        for _ in range(count):
            self.say(self.rng.choice(actors))

    def reply(self, actor: int, count: int = 3) -> None:
        """A reply that nobody completes: its process dies in it."""
        for _ in range(count):
            self.add(actor, "delta", self.words() + " ")

    def add(self, actor: int, do: str, text: str = "", number: int = 0) -> None:
        self.steps.append(Step(actor, do, text, number))

    def harness(self, do: str, number: int = 0, text: str = "") -> None:
        self.add(HARNESS, do, text, number)

    def strike(self, actor: int) -> None:
        """Kill a process in the middle of its next step, or right before or behind it."""
        self.add(HARNESS, "strike", str(actor), self.rng.randrange(300))

    def kill_all(self, actors: list[int]) -> None:
        self.rng.shuffle(actors)
        for actor in actors:
            self.harness("kill", actor)


def scenario(kind: str, seed: str) -> Scenario:
    rng = Random(f"{kind} {seed}")
    return KINDS[kind](rng, seed)


def any_kind(seed: str) -> str:
    return Random(f"kind {seed}").choice(list(KINDS))


def _options(rng: Random, *more: str) -> list[str]:
    return ["--checkpoint", rng.choice(("0", "0", "0.05", "15")), *more]


# -- the kinds -----------------------------------------------------------------------------------


def _equal_words(rng: Random, seed: str) -> Scenario:
    """The same words from several processes of one session, in one run or one after the other."""
    lives = []
    for number in range(rng.choice((1, 2))):
        write = Writer(rng, equal=True)
        if rng.random() < 0.5:
            write.say(0)
            for child in range(1, rng.choice((2, 3, 4))):  # a process for each turn
                write.add(0, "begin", rng.choice(("command", "fork")), child)
                write.talk([child], rng.choice((1, 2)))
                write.add(child, "exit")
            if rng.random() < 0.5:
                write.harness("kill supervisor")
            write.talk([0], 2)
            write.harness("kill", 0)
        else:
            write.say(0)
            write.add(0, "begin", "fork", 1)
            write.talk([0, 1], rng.choice((4, 8)))
            if rng.random() < 0.3:
                write.harness("kill everyone")
            write.kill_all([0, 1])
        no_adopt = ["--no-adopt"] if rng.random() < 0.3 else []
        lives.append(Life(write.steps, _options(rng, *no_adopt), at_once=number > 0))
    return Scenario("equal words", seed, lives)


def _order(rng: Random, seed: str) -> Scenario:
    """Several processes take turns in one session, and die in any order."""
    write = Writer(rng)
    write.say(0)
    actors = [0]
    for child in range(1, rng.choice((2, 3))):
        write.add(0, "begin", rng.choice(WAYS), child)
        actors.append(child)
        write.talk(actors, rng.choice((3, 8)))
    if rng.random() < 0.4:
        write.add(0, "become", number=7)
        actors[0] = 7
        write.talk(actors, 4)
    if rng.random() < 0.3:
        write.harness("kill supervisor")
        write.talk(actors, 4)
    if rng.random() < 0.5:
        victim = rng.choice(actors)
        write.strike(victim)
        write.say(victim)
        actors.remove(victim)
        write.talk(actors, 4)
    if rng.random() < 0.3:
        write.reply(actors[-1])
    if rng.random() < 0.3:
        write.harness("kill everyone")
    write.kill_all(actors)
    return Scenario("order", seed, [Life(write.steps, _options(rng), end="interrupted")])


def _new_life(rng: Random, seed: str) -> Scenario:
    """Supervisor and agent are killed, and the agent is started again at once."""
    lives = []
    for number in range(2):
        write = Writer(rng)
        write.talk([0], rng.choice((5, 40)) if number else rng.choice((40, 400)))
        write.reply(0)
        if number == 0 or rng.random() < 0.3:
            write.harness("kill everyone")
        write.harness("kill", 0)
        options = _options(rng, "--no-adopt") if number == 0 else _options(rng)
        lives.append(Life(write.steps, options, at_once=number > 0, end="interrupted"))
    return Scenario("new life", seed, lives)


def _clocks(rng: Random, seed: str) -> Scenario:
    """The wall clock is ahead in one life and put right in the next; equal words in both."""
    ahead = rng.choice((5.0, 3600.0, 86400.0 * 400))
    lives = []
    for clock in (ahead, 0.0, -ahead if rng.random() < 0.3 else 0.0):
        write = Writer(rng, equal=True)
        write.talk([0], rng.choice((3, 6)))
        if rng.random() < 0.5:
            write.reply(0)
        write.harness("kill", 0)
        lives.append(Life(write.steps, _options(rng), clock=clock, end="interrupted"))
    return Scenario("clocks", seed, lives)


def _hidden_crash(rng: Random, seed: str) -> Scenario:
    """The process that replies is killed; another one of the session exits in order, later."""
    write = Writer(rng)
    write.say(0, "user")
    write.add(0, "begin", rng.choice(WAYS), 1)
    write.say(1, "assistant")
    write.say(0, "user")
    write.reply(0)
    write.harness("kill", 0)
    write.add(1, "exit")
    return Scenario("hidden crash", seed, [Life(write.steps, _options(rng), end="interrupted")])


def _short_workers(rng: Random, seed: str) -> Scenario:
    """Workers that live for milliseconds and exit in order are no crash."""
    write = Writer(rng)
    write.say(0, "user")
    for worker in range(1, rng.choice((3, 6))):
        write.add(0, "begin", rng.choice(WAYS), worker)
        write.say(worker, "user")
        write.add(worker, "exit")
    write.say(0, "assistant")
    write.add(0, "leave")
    return Scenario("short workers", seed, [Life(write.steps, _options(rng), end="exited")])


def _late(rng: Random, seed: str) -> Scenario:
    """Processes that speak for the first time when the agent is dead and nobody supervises."""
    write = Writer(rng)
    write.say(0)
    write.add(0, "begin", rng.choice(("fork", "command")), 1)
    write.talk([0], rng.choice((0, 3)))
    if rng.random() < 0.6:
        write.harness("kill", 0)
    else:
        write.add(0, "exit")
    if rng.random() < 0.7:
        write.harness("wait for the supervisor")
    write.talk([1], rng.choice((1, 5)))
    if rng.random() < 0.3:
        write.add(1, "begin", "fork", 2)
        write.harness("kill", 1)
        write.talk([2], 2)
        write.harness("kill", 2)
    else:
        write.reply(1, 2)
        write.harness("kill", 1)
    return Scenario("late", seed, [Life(write.steps, _options(rng))], outlives=True)


def _watched(rng: Random, seed: str) -> Scenario:
    """An agent that is tracked through its transcript, and supervisors that die."""
    write = Writer(rng, equal=rng.random() < 0.3)
    for _ in range(rng.choice((1, 2, 3))):
        for _ in range(rng.choice((1, 5, 20))):
            write.add(0, "line", write.words())
        write.harness("kill supervisor")
        if rng.random() < 0.7:
            write.harness("wait for the successor")
            write.harness("pause", rng.choice((0, 300, 1000)))
            write.add(0, "line", write.words())
            write.harness("pause", rng.choice((0, 300)))
    for _ in range(rng.choice((1, 5, 50))):
        write.add(0, "line", write.words())
    write.harness("kill", 0)
    life = Life(write.steps, _options(rng), watched=True, end="interrupted")
    return Scenario("watched", seed, [life])


def _malformed(rng: Random, seed: str) -> Scenario:
    """Somebody sends nonsense to the socket: in the hello, in records, between frames."""
    write = Writer(rng)
    write.talk([0], 3)
    for _ in range(rng.choice((1, 3, 6))):
        write.harness("stranger", rng.randrange(1 << 30))
        write.talk([0], 2)
    write.reply(0)
    write.harness("kill", 0)
    return Scenario("malformed", seed, [Life(write.steps, _options(rng), end="interrupted")])


def _full(rng: Random, seed: str) -> Scenario:
    """The disk of the state folder is full for a while; that of state.db is not."""
    write = Writer(rng)
    write.talk([0], rng.choice((1, 10)))
    write.harness("fill")
    for _ in range(rng.choice((20, 300))):
        size = rng.choice((10, LONG))
        write.add(0, rng.choice(("user", "assistant")), f"{write.words()} {'x' * size}")
    if rng.random() < 0.3:
        write.harness("free")
        write.talk([0], 3)
    write.harness("kill", 0)
    life = Life(write.steps, _options(rng), end="interrupted")
    return Scenario("full state folder", seed, [life], small_disk=True)


def _stopped(rng: Random, seed: str) -> Scenario:
    """Everybody is stopped and continued, and some are killed while they are stopped."""
    write = Writer(rng)
    write.say(0)
    write.add(0, "begin", "fork", 1)
    actors = [0, 1]
    for _ in range(rng.choice((1, 3))):
        write.talk(actors, 3)
        write.harness("stop")
        if rng.random() < 0.4 and len(actors) == 2:
            write.harness("kill", actors.pop(rng.randrange(2)))
        if rng.random() < 0.3:
            write.harness("kill supervisor")
        write.harness("continue")
    write.talk(actors, 2)
    write.kill_all(actors)
    return Scenario("stopped", seed, [Life(write.steps, _options(rng), end="interrupted")])


def _limits(rng: Random, seed: str) -> Scenario:
    """The supervisor has no descriptors left, or its files cannot grow."""
    write = Writer(rng)
    write.talk([0], 3)
    write.harness(
        "limit", rng.randrange(4), rng.choice(("descriptors", "descriptors", "file size"))
    )
    write.add(0, "begin", "fork", 1)
    write.talk([0, 1], 6)
    write.kill_all([0, 1])
    return Scenario("limits", seed, [Life(write.steps, _options(rng))])


KINDS: dict[str, Callable[[Random, str], Scenario]] = {
    "equal words": _equal_words,
    "order": _order,
    "new life": _new_life,
    "clocks": _clocks,
    "hidden crash": _hidden_crash,
    "short workers": _short_workers,
    "late": _late,
    "watched": _watched,
    "malformed": _malformed,
    "full state folder": _full,
    "stopped": _stopped,
    "limits": _limits,
}
