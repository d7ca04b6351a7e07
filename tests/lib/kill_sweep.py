"""The kill-point sweep: every operation of agent, supervisor and recoverer is the last one, once.

A dry run counts the operations of each role. Then, for each of them, one run is killed right
after it, recovered by a process that knows nothing of it, and compared with what the agent's
own ledger says must be there. Then recovery itself is killed at each of its operations, for some
of the states that a first kill left, and a third process finishes.

    python tests/kill_sweep.py                      everything; some minutes
    python tests/kill_sweep.py --every 9 --seed 4   each ninth point, from a place the seed gives
    python tests/kill_sweep.py --mutants            broken copies of the product: each is caught
    python tests/kill_sweep.py --point LEG K        one point again, with its trace
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TextIO

import kill_record
from kill_mutants import MUTANTS, Mutant, made

HERE = Path(__file__).parent
LOADED_LATE = ("hashlib", "importlib.metadata", "psutil", "select", "shlex", "subprocess")
ROLES = ("agent", "supervisor", "helper", "runner", "successor")


class Leg(NamedTuple):
    """One line of the sweep: in this scenario, this role is killed, alone or with its group."""

    scenario: str
    role: str
    victim: str
    before: str = ""
    """Who else is killed in the same run, earlier, as ROLE:share of its operations:VICTIM."""

    @property
    def name(self) -> str:
        more = f"/after-{self.before.replace(':', '-')}" if self.before else ""
        return f"{self.scenario}/{self.role}/{self.victim}{more}"


# First kills. After each, whoever is alive finishes, else `recover` in a fresh process.
LEGS = [
    Leg("small", "agent", "self"),
    Leg("small", "agent", "group"),
    Leg("small", "supervisor", "group"),
    Leg("small", "helper", "self"),
    Leg("small", "runner", "self"),
    Leg("whole", "agent", "self"),
    Leg("whole", "agent", "group"),
    Leg("whole", "supervisor", "self"),
    Leg("whole", "supervisor", "group"),
    Leg("whole", "helper", "self"),
    Leg("whole", "helper", "group"),
    Leg("burst", "agent", "self"),
    Leg("burst", "agent", "group"),
    Leg("burst", "supervisor", "self"),
    Leg("adopted", "supervisor", "self"),
    Leg("adopted", "agent", "self", "supervisor:40:self"),
    Leg("adopted", "successor", "self", "supervisor:40:self"),
    Leg("adopted", "successor", "group", "supervisor:40:self"),
    Leg("whole", "agent", "self", "supervisor:40:self"),
    Leg("adopted", "runner", "self", "supervisor:40:self"),
    Leg("ending", "agent", "self"),
    Leg("ending", "supervisor", "self"),
    Leg("ending", "helper", "self"),
    Leg("always", "supervisor", "group"),
    Leg("segments", "supervisor", "group"),
    Leg("segments", "helper", "group"),
    Leg("segments", "agent", "group"),
    Leg("steps", "helper", "self"),
    Leg("ringless", "agent", "self"),
    Leg("ringless-paced", "supervisor", "self"),
    Leg("ringless-paced", "agent", "group"),
    Leg("reopened", "agent", "self"),
    Leg("reopened", "agent", "group"),
    Leg("reopened", "supervisor", "group"),
    Leg("long", "agent", "self"),
    Leg("long", "agent", "group"),
    Leg("long", "supervisor", "group"),
    Leg("full", "agent", "self"),
    Leg("full", "agent", "group"),
    Leg("full", "supervisor", "self"),
]
BY_NAME = {leg.name: leg for leg in LEGS}

# First kills after which recovery is killed again, at every one of its operations; and how many
# of each are taken, spread over all there are.
PAIRS = [
    (Leg("small", "agent", "group"), 1),
    (Leg("small", "helper", "group"), 2),
    (Leg("whole", "agent", "group"), 2),
    (Leg("whole", "supervisor", "group"), 2),
    (Leg("whole", "helper", "group"), 4),
    (Leg("segments", "helper", "group"), 2),
    (Leg("steps", "agent", "group"), 1),
    (Leg("reopened", "agent", "group"), 1),
    (Leg("long", "agent", "group"), 1),
]


class Job(NamedTuple):
    leg: Leg
    number: int
    again: bool = False
    only: tuple[str, ...] = ()
    """Of the second kills, only these."""


class Result(NamedTuple):
    point: str
    kills: int
    violations: list[tuple[str, str]]


class Sweep:
    """Runs points in one world."""

    def __init__(self, package: Path, dry_runs: int = 1) -> None:
        import kill_world

        self.lib = kill_world
        kill_world.become_the_last_parent()
        self.world = kill_world.KillWorld(package)
        self.dry_runs = dry_runs
        self._counts: dict[tuple[str, str], dict[str, int]] = {}

    def counts(self, leg: Leg) -> dict[str, int]:
        """How many operations each role does in this leg when nobody is killed, or only who is
        killed before."""
        key = leg.scenario, leg.before
        if key not in self._counts:
            self._counts[key] = dict.fromkeys(ROLES, 0)
            # Who meets whom, and so how much is read at once, differs a little: the most counts.
            for _ in range(self.dry_runs):
                self._first(leg, self._before(leg))
                assert self.world.ledger()["finished"], f"nothing ran: {self.world.said()}"
                done = {role: len(self.world.operations(role)) for role in ROLES}
                self._counts[key] = {r: max(n, done[r]) for r, n in self._counts[key].items()}
        return self._counts[key]

    def _before(self, leg: Leg) -> str:
        if not leg.before:
            return ""
        role, share, victim = leg.before.split(":")
        most = self.counts(leg._replace(before=""))[role]
        return f"{role}:{most * int(share) // 100}:{victim}"

    # -- one kill ------------------------------------------------------------------------------

    def kill_once(self, leg: Leg, number: int) -> Result:
        first = f"{self._before(leg)} {leg.role}:{number}:{leg.victim}"
        point = f"{leg.name} {number}"
        try:
            self._first(leg, first)
            found = self._unfinished(leg)
            if self.world.unfinished():
                self.world.recover(self.lib.SCENARIOS[leg.scenario])
            return Result(point, len(self.world.killed()), found + self._judged(leg))
        except self.lib.Stuck as stuck:
            return Result(point, 1, [("T11", str(stuck))])

    def _first(self, leg: Leg, plan: str) -> None:
        scenario = self.lib.SCENARIOS[leg.scenario]
        self.world.start_over(scenario)
        self.world.supervise(scenario, plan)

    def _unfinished(self, leg: Leg) -> list[tuple[str, str]]:
        """Where somebody is left to finish, nobody has to ask for it; to tidy up may wait."""
        unsettled = [path for path in self.world.state.glob("runs/*/*") if len(path.stem) >= 32]
        unsettled += self.world.state.glob("hooks/waiting/*/*.json")
        if leg.victim == "group" or not unsettled:
            return []
        heads = [role for role in self.world.killed() if role in ("supervisor", "successor")]
        # Who was killed before it had a standby has no successor.
        has_standby = ["fork standby" in self.world.operations(role) for role in heads]
        if not heads or (self.lib.SCENARIOS[leg.scenario].adopt and all(has_standby)):
            return [("T11", "there was somebody to finish it, and it was not finished")]
        return []

    def _judged(self, leg: Leg) -> list[tuple[str, str]]:
        scenario = self.lib.SCENARIOS[leg.scenario]
        killed = set(self.world.killed())
        both = bool(killed & {"supervisor", "successor"}) or (
            leg.victim == "group" and bool(killed)
        )
        found = self.lib.judge(self.world, scenario, both_died=both)
        self.world.let_time_pass()
        before = self.world.dump(), self.world.events(), self.world.reports()
        if self.world.recover(scenario, role="once-more") != 0:
            found.append(self.lib.Violation("T2", f"recover failed: {self.world.said()[-500:]}"))
        after = self.world.dump(), self.world.events(), self.world.reports()
        if before != after:
            found.append(self.lib.Violation("T2", "recovering once more changed something"))
        found += self.lib.judge_leftovers(self.world)
        return [tuple(place) for place in found]

    # -- and once more ---------------------------------------------------------------------------

    def kill_again(self, leg: Leg, number: int, only: list[str] | None = None) -> Iterator[Result]:
        """Kill once and take a picture; from it, kill the recovery at each of its operations."""
        self._first(leg, f"{leg.role}:{number}:{leg.victim}")
        self.world.picture("killed")
        scenario = self.lib.SCENARIOS[leg.scenario]
        self.world.recover(scenario)
        done = [f"{role}-{n}" for role in ("recover", "runner")
                for n in range(1, len(self.world.operations(role)) + 1)]  # fmt: skip
        undisturbed = self.world.dump()
        if only and only[0].startswith("some-"):
            only = random.Random(number).sample(done, min(len(done), int(only[0][5:])))
        for second in only or done:
            self.world.put_back("killed")
            point = f"{leg.name} {number} {second}"
            try:
                self.world.recover(scenario, second.replace("-", ":") + ":self")
                self.world.recover(scenario, role="again")
                found = self._judged(leg)
                if self.world.dump() != undisturbed:
                    found.append(("T8", "the same journal gave another result when cut off"))
                yield Result(point, len(self.world.killed()), found)
            except self.lib.Stuck as stuck:
                yield Result(point, 2, [("T11", str(stuck))])

    def do(self, job: Job) -> Iterator[Result]:
        if job.again:
            yield from self.kill_again(job.leg, job.number, list(job.only))
        else:
            yield self.kill_once(job.leg, job.number)


# -- all of them ---------------------------------------------------------------------------------


def jobs_of(sweep: Sweep, legs: list[Leg], every: int, seed: int) -> list[Job]:
    """Each `every`-th point of each leg, beginning where the seed says."""
    chosen = random.Random(seed)
    found = []
    for leg in legs:
        most = sweep.counts(leg)[leg.role]
        found += [Job(leg, n) for n in range(1 + chosen.randrange(every), most + 1, every)]
    return found


def pairs_of(sweep: Sweep) -> list[Job]:
    found = []
    for leg, wanted in PAIRS:
        most = sweep.counts(leg)[leg.role]
        places = {most * (2 * place + 1) // (2 * wanted) for place in range(wanted)}
        found += [Job(leg, number, again=True) for number in sorted(places)]
    return found


# What is swept at every test run: all of the smallest conversation, and some of everything else.
SMALL = ("small/agent/self", "small/runner/self")
SOME_PAIRS = 10


def short_jobs(sweep: Sweep, seed: int) -> list[Job]:
    chosen = random.Random(seed)
    found = jobs_of(sweep, [BY_NAME[name] for name in SMALL], 1, seed)
    for leg in LEGS:
        if leg.name not in SMALL:
            most = sweep.counts(leg)[leg.role]
            found.append(Job(leg, chosen.randrange(1, most + 1)))
    leg, _ = chosen.choice(PAIRS)
    number = chosen.randrange(1, sweep.counts(leg)[leg.role] + 1)
    return [*found, Job(leg, number, again=True, only=(f"some-{SOME_PAIRS}",))]


def work_through(package: Path, jobs: list[Job], hands: int, stop: bool) -> Iterator[Result]:
    """All jobs, by some processes at a time, each with a world of its own."""
    # A job that kills again is long: dealt out in turn, the hands are about as busy.
    pipes = []
    for hand in range(hands):
        reading, tells = os.pipe()
        if os.fork() == 0:
            code = 1
            try:
                os.close(reading)
                with os.fdopen(tells, "w") as pipe:
                    _by_hand(package, jobs[hand::hands], pipe, stop)
                code = 0
            finally:
                os._exit(code)
        os.close(tells)
        pipes.append(os.fdopen(reading))
    import selectors

    with selectors.DefaultSelector() as waiting:
        for pipe in pipes:
            waiting.register(pipe, selectors.EVENT_READ)
        while waiting.get_map():
            for key, _ in waiting.select():
                line = key.fileobj.readline()  # type: ignore[union-attr]
                if not line:
                    waiting.unregister(key.fileobj)
                    continue
                point, kills, violations = json.loads(line)
                yield Result(point, kills, [tuple(violation) for violation in violations])
    for _ in pipes:
        _, status = os.wait()
        if status:
            raise SystemExit("a part of the sweep failed; see above")


def _by_hand(package: Path, jobs: list[Job], pipe: TextIO, stop: bool) -> None:
    sweep = Sweep(package)
    try:
        for job in jobs:
            for result in sweep.do(job):
                pipe.write(json.dumps(result) + "\n")
                pipe.flush()
                if stop and result.violations:
                    return
    finally:
        sweep.world.close()


# -- and the sweep itself ------------------------------------------------------------------------


def catch(root: Path, mutant: Mutant, hands: int) -> str:
    """What the sweep says of a broken copy of the product; empty if it noticed nothing."""
    with tempfile.TemporaryDirectory(prefix="kill-mutant") as folder:
        made(root, mutant, Path(folder))
        words = ["--root", folder, "--stop", "--hands", str(hands), "--legs", *mutant.legs]
        # In an interpreter of its own, which has loaded no other copy.
        done = subprocess.run(
            [sys.executable, __file__, *words], capture_output=True, text=True, timeout=900
        )
        if done.returncode == 0:
            return ""
        said = [line for line in done.stdout.splitlines() if re.match(r"T\d+: ", line)]
        assert said, f"{mutant.name!r} did not even run: {done.stdout}{done.stderr}"
        return said[0]


def _mutants(root: Path, hands: int) -> int:
    missed = 0
    for mutant in MUTANTS:
        began = time.monotonic()
        caught = catch(root, mutant, hands)
        missed += not caught
        seconds = time.monotonic() - began
        print(f"{'caught' if caught else 'MISSED'}  {mutant.name}  ({seconds:.1f} s)", flush=True)
        if caught:
            print(f"        {caught[:160]}")
    print(f"{len(MUTANTS)} mutants, {missed} not caught")
    return 1 if missed else 0


# -- the command ---------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", type=Path, default=HERE.parents[1], help="the tree to test")
    parser.add_argument("--every", type=int, default=1, help="only each N-th point of a leg")
    parser.add_argument("--seed", type=int, default=0, help="which of them")
    parser.add_argument("--legs", nargs="*", help="only these, and no second kills")
    parser.add_argument("--hands", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--short", action="store_true", help="what belongs to every test run")
    parser.add_argument("--stop", action="store_true", help="at the first violation")
    parser.add_argument("--point", nargs="+", help="LEG K [ROLE-K2]: this one, with its trace")
    parser.add_argument("--mutants", action="store_true", help="test the sweep itself")
    parser.add_argument("--json", type=Path, help="write what was found to this file")
    parser.add_argument("--record", action="store_true", help="and into the docs")
    wanted = parser.parse_args()
    if wanted.mutants:
        return _mutants(wanted.root, wanted.hands)
    folder = Path(tempfile.mkdtemp(prefix="kill-sweep"))
    try:
        package = load(wanted.root, folder)
        if wanted.point:
            return _show(package, wanted.point)
        return _sweep(package, wanted)
    finally:
        shutil.rmtree(folder)


def load(root: Path, folder: Path) -> Path:
    """Import the tree under test, whatever else is installed, before anything is forked."""
    sys.path[:0] = [str(HERE), str(folder)]
    import kill_world

    package = kill_world.package_of(root, folder)
    import hermes_supervise

    # What a forked process would load, again and again, is loaded here.
    for path in sorted((root / "supervisor").rglob("*.py")):
        name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        with contextlib.suppress(ImportError):  # what is for another interpreter
            importlib.import_module(f"hermes_supervise.{name}")
    for name in LOADED_LATE:
        importlib.import_module(name)
    gc.freeze()

    found = Path(hermes_supervise.__file__ or "")
    assert folder in found.parents, f"{found} is not the tree under test"
    return package


def _show(package: Path, words: list[str]) -> int:
    leg, number, *second = words
    known = BY_NAME | {leg.name: leg for leg, _ in PAIRS}
    sweep = Sweep(package)
    job = Job(known[leg], int(number), again=bool(second), only=tuple(second))
    try:
        [result] = list(sweep.do(job))
        print("\n".join(sweep.world.trace()), sweep.world.said(), sep="\n")
    finally:
        sweep.world.close()
    for statement, what in result.violations:
        print(f"{statement}: {what}")
    print(f"{result.point}: {len(result.violations)} violations")
    return 1 if result.violations else 0


def _sweep(package: Path, wanted: argparse.Namespace) -> int:
    began = time.monotonic()
    legs = [BY_NAME[name] for name in wanted.legs] if wanted.legs else LEGS
    found = Found(wanted.seed)
    sweep = Sweep(package, dry_runs=1 if wanted.short else 2)
    try:
        counts = {leg.name: sweep.counts(leg) for leg in legs}
        if wanted.short:
            jobs = short_jobs(sweep, wanted.seed)
        else:
            jobs = jobs_of(sweep, legs, wanted.every, wanted.seed)
            jobs += [] if wanted.legs else pairs_of(sweep)
        if not wanted.legs:
            import kill_statements

            for statement, violations in kill_statements.judge_all(sweep).items():
                found.statements += 1
                for what in violations:
                    found.broken.append((statement, what, ""))
    finally:
        sweep.world.close()
    random.Random(wanted.seed).shuffle(jobs)
    for result in work_through(package, jobs, wanted.hands, wanted.stop):
        found.add(result)
    for name, roles in {leg.scenario: counts[leg.name] for leg in reversed(legs)}.items():
        shown = ", ".join(f"{role} {number}" for role, number in roles.items() if number)
        print(f"operations, {name}: {shown}")
    print(found.summary(time.monotonic() - began))
    record = found.as_record(counts)
    if wanted.json:
        wanted.json.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    if wanted.record:
        done = kill_record.of(record, time.monotonic() - began)
        kill_record.write(done, some=bool(wanted.legs))
    return 1 if found.broken else 0


class Found:
    """What a sweep has found."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.statements = 0
        self.points: Counter[str] = Counter()
        self.kills = self.missed = 0
        self.broken: list[tuple[str, str, str]] = []
        """Statement, what is wrong, and the command that shows it again."""

    def add(self, result: Result) -> None:
        leg, _, number = result.point.partition(" ")
        self.points[leg + (" twice" if " " in number else "")] += 1
        self.kills += result.kills
        self.missed += not result.kills
        again = f"python tests/kill_sweep.py --point {result.point}"
        for statement, what in result.violations:
            self.broken.append((statement, what, again))
            print(f"{statement}: {what}\n    {again}", flush=True)

    def summary(self, seconds: float) -> str:
        lines = [f"{number:6}  {leg}" for leg, number in sorted(self.points.items())]
        for statement, what, again in self.broken:
            if not again:
                lines.append(f"{statement}: {what}")
        lines.append(
            f"{sum(self.points.values())} points, {self.kills} kills, {self.missed} not reached, "
            f"{len(self.broken)} violations; seed {self.seed}, {seconds:.0f} s"
        )
        return "\n".join(lines)

    def as_record(self, counts: dict[str, dict[str, int]]) -> dict[str, object]:
        return {
            "seed": self.seed, "points": dict(self.points), "kills": self.kills,
            "not reached": self.missed, "violations": self.broken, "operations": counts,
        }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
