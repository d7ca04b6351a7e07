"""Death: the time from SIGKILL to the commit in state.db, and what the insert alone takes."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import time
from typing import Any

from . import environment, procfs
from .stats import summary, target


def measure(quick: bool) -> dict[str, Any]:
    template = environment.hermes_database()
    rounds = 6 if quick else 25
    rows: list[list[Any]] = []
    targets = []
    for count, bound in ((1, 30), (100, 60)):
        death: list[float] = []
        over: list[float] = []
        raw: list[float] = []
        with environment.world() as world:
            for _ in range(rounds):
                _fresh(world, template)
                death.append(_kill(world, count))
                _fresh(world, template)
                raw += world.ask(environment.program("raw_insert.py"), world.db, count, 1000)
                over.append(death[-1] - raw[-1])
        rows.append([f"{count} messages of 1 KB", summary(death), summary(raw), summary(over)])
        targets.append(
            target(f"over the raw insert, {count} unsettled", summary(over)["median"], bound, "ms")
        )
    return {
        "title": "Death to durable",
        "tables": [
            {
                "columns": ["unsettled", "SIGKILL to commit, ms", "raw insert, ms", "over it, ms"],
                "rows": rows,
            }
        ],
        "targets": targets,
        "left_out": [] if template else ["Hermes' tables: not installed; ours instead"],
        "notes": ["The raw insert: apsw, already imported, opens the file, inserts the same rows "
                  "in one transaction (FULL) and commits. The commit is seen by a reader that "
                  "asks without pause."],
    }  # fmt: skip


def _fresh(world: environment.World, template: Any) -> None:
    for path in world.home.glob("state.db*"):
        path.unlink()
    if template is not None:
        shutil.copy(template, world.db)


def _kill(world: environment.World, count: int) -> float:
    ready = world.folder / "ready"
    ready.unlink(missing_ok=True)
    agent = [*environment.program("unsettled.py"), str(ready), str(count), "1000"]
    process = world.start([*environment.SUPERVISE, "--", *agent])
    procfs.until(lambda: ready.exists() and ready.read_text())
    victim = int(ready.read_text())
    time.sleep(0.05)
    reader = sqlite3.connect(world.db, isolation_level=None) if world.db.exists() else None
    start = time.monotonic_ns()
    os.kill(victim, signal.SIGKILL)
    while True:
        if reader is None and world.db.exists():
            reader = sqlite3.connect(world.db, isolation_level=None)
        try:
            query = "SELECT ended_at FROM sessions WHERE id = 'chat'"
            row = reader.execute(query).fetchone() if reader else None
        except sqlite3.OperationalError:
            row = None
        now = time.monotonic_ns()
        if row is not None and row[0] is not None:
            break
        if now - start > 60e9:
            raise TimeoutError("the session was not recovered")
        time.sleep(0.0001)
    if reader is not None:
        reader.close()
    process.wait()
    return (now - start) / 1e6
