"""What the sweep alone cannot show: many recoverers at once, onlookers, and trouble on the way.

Each function begins with the state that a kill of agent and supervisor in one instant leaves, and
returns what is not as promised.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import resource
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

from kill_sweep import BY_NAME, Sweep
from kill_world import SCENARIOS, _main

LEG = BY_NAME["whole/agent/group"]
SCENARIO = SCENARIOS[LEG.scenario]


class Stage:
    """The state to begin with, and what comes of it when nobody interferes."""

    def __init__(self, sweep: Sweep) -> None:
        self.world = sweep.world
        self._judged = lambda: sweep._judged(LEG)
        most = sweep.counts(LEG)["agent"]
        sweep._first(LEG, f"agent:{most - 1}:group")
        assert self.world.killed(), "the agent got away"
        self.world.picture("stage")
        self.world.recover(SCENARIO)
        self.undisturbed = self.world.dump()
        assert self.undisturbed["messages"]

    def again(self) -> None:
        self.world.put_back("stage")

    def recovered(self) -> list[str]:
        """Finish, and compare."""
        self.world.recover(SCENARIO)
        found = [f"{statement}: {what}" for statement, what in self._judged()]
        if self.world.dump() != self.undisturbed:
            found.append("the result is another one")
        return found


def t7_many_recoverers(stage: Stage, numbers: tuple[int, ...] = (2, 8)) -> list[str]:
    found = []
    for number in numbers:
        stage.again()
        gate, opener = os.pipe()
        world = stage.world

        def recover(answer: Path) -> Callable[[], int]:
            def work() -> int:
                os.read(7, 1)  # returns when the gate is opened for all at once
                said = io.StringIO()
                with contextlib.redirect_stdout(said):
                    code = _main(["recover", "--json"])
                answer.write_text(said.getvalue())
                return code

            return work

        os.dup2(gate, 7)
        answers = [world.outside / f"answer-{n}" for n in range(number)]
        children = [world.fork(recover(answer), "one-of-many", keep=7) for answer in answers]
        os.close(7)
        os.close(gate)
        os.close(opener)
        statuses = world.wait()
        if any(statuses[child] for child in children):
            found.append(f"of {number} recoverers some failed: {world.said()[-500:]}")
        results = [json.loads(path.read_text()) for path in answers]
        winners = [result for result in results if result["settled"]]
        if len(winners) != 1:
            found.append(f"of {number} recoverers {len(winners)} say that they have done it")
        found += stage.recovered()
    return found


def t9_onlookers(stage: Stage) -> list[str]:
    stage.again()
    world = stage.world
    before: dict[str, str] = _digest(stage)
    for words in (["show", "--json"], ["show"], ["sweep", "--dry-run", "--db", str(world.db)]):
        world._call("onlooker", words, "", {})
    after = _digest(stage)
    changed = sorted(path for path in before | after if before.get(path) != after.get(path))
    return [f"looking at it changed {path}" for path in changed] + stage.recovered()


def _digest(stage: Stage) -> dict[str, str]:
    """All files, but for what any reader of a database makes: its index, and an empty log."""
    files = [path for path in stage.world.ours.rglob("*") if path.is_file()]
    files = [path for path in files if path.stat().st_size or not path.name.endswith("-wal")]
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if not path.name.endswith("-shm")
    }


def t11_trouble(stage: Stage) -> list[str]:
    """A database that is locked, and a disk without room: it ends, and nothing is lost."""
    found = []
    stage.again()
    world = stage.world
    holder = sqlite3.connect(world.db, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    try:
        world.fork(_finish_impatiently, "impatient")
        world.wait()
    finally:
        holder.execute("ROLLBACK")
        holder.close()
    found += _kept(stage, "locked")
    stage.again()
    world.fork(_recover_without_room, "without-room")
    world.wait()
    found += _kept(stage, "without room")
    return found


def _finish_impatiently() -> int:
    from hermes_supervise.supervisor.run.recover import finish_left_behind
    from hermes_supervise.supervisor.storage import run_folder as runs

    [folder] = runs.left_behind()
    run = runs.claim(folder)
    assert run is not None
    finished = finish_left_behind(run, patience=0.2)
    assert not any(report.complete for report in finished.reports)
    return 0


def _recover_without_room() -> int:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))
    return _main(["recover", "--json"])


def _kept(stage: Stage, trouble: str) -> list[str]:
    journals = list(stage.world.state.glob("runs/*/*.log"))
    if not journals:
        return [f"{trouble}: the journal is gone"]
    return [f"{trouble}: {what}" for what in stage.recovered()]


STATEMENTS = {"T7": t7_many_recoverers, "T9": t9_onlookers, "T11": t11_trouble}


def judge_all(sweep: Sweep) -> dict[str, list[str]]:
    stage = Stage(sweep)
    return {name: check(stage) for name, check in STATEMENTS.items()}
