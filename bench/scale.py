"""Scale: many sessions, processes and records: does the last one cost as much as the first?"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from typing import Any

from . import environment, procfs, recovery
from .stats import target

# Set less for a shorter run; the table names the size.
_MEBIBYTES = int(os.environ.get("BENCH_MEBIBYTES", 1_024))


def measure(quick: bool) -> dict[str, Any]:
    sessions, clients, mebibytes = (200, 40, 48) if quick else (1_000, 200, _MEBIBYTES)
    parts = 2 if quick else 10
    rows: list[list[Any]] = []
    targets = []
    with environment.world() as world:
        command = [*environment.SUPERVISE, "--", *environment.program("many.py")]
        seen = world.ask(command, parts, "sessions", sessions)
        rows.append([f"{sessions:,} sessions in one process", *seen["agent"], *seen["supervisor"]])
        # Every second instead of every fifteen: each part pays for its own checkpoints.
        command[1:1] = ["--checkpoint", "1"]
        seen = world.ask(command, parts, "clients", clients)
        rows.append([f"{clients} processes", *seen["agent"], *seen["supervisor"]])
    with environment.world() as world:
        seen, compacting = _grow(world, parts, mebibytes)
        rows.append([f"a journal of {mebibytes:,} MiB", *seen["agent"], *seen["supervisor"]])
    for row in rows:
        targets.append(target(f"{row[0]}: last against first, agent", row[2] / row[1], 1.5, "x"))
        targets.append(
            target(f"{row[0]}: last against first, supervisor", row[4] / row[3], 1.5, "x")
        )
    targets.append(target("compaction, processor time a MiB written", compacting, 0.2, "s"))
    steps = (16, 64) if quick else (_MEBIBYTES // 16, _MEBIBYTES // 4, _MEBIBYTES)
    replayed = []
    with environment.world() as world:
        for size in steps:
            _without_search(world)
            world.ask(environment.program("journal.py"), size * 32, 32_000)
            took, peak = recovery.recover(world)
            replayed.append([f"{size:,} MiB", took, took / size * 1e3, peak])
    targets.append(target("recovery, a MiB more against a MiB before",
                          replayed[-1][2] / replayed[0][2], 1.2, "x"))  # fmt: skip
    return {
        "title": "Scale",
        "tables": [
            {
                "columns": ["", "agent, first third, us/record", "last third",
                            "supervisor, first third, us/record", "last third"],
                "rows": rows,
            },
            {
                "columns": ["recovery of a journal of", "s", "ms/MiB", "peak memory, MiB"],
                "rows": replayed,
            },
        ],
        "targets": targets,
        "left_out": [],
        "notes": ["First and last: the medians of the first and of the last third of the work, "
                  "which is done in parts. Recovery writes to a file without a search index here,"
                  " because the index would hide our own share of the time. Messages have 32 KB, "
                  "and none of them is settled."],
    }  # fmt: skip


def _grow(world: environment.World, parts: int, mebibytes: int) -> tuple[Any, float]:
    """Let an agent send that much and settle nothing; also measure what compaction used."""
    answer = world.folder / "answer.json"
    command = [*environment.program("many.py"), str(answer), str(parts), "journal", str(mebibytes)]
    # No checkpoints: they would compete for a core that agent and supervisor need.
    process = world.start([*environment.SUPERVISE, "--checkpoint", "0", "--", *command])
    procfs.until(answer.exists, 1800)
    seen = json.loads(answer.read_text())
    time.sleep(1)
    procfs.settled(process.pid)
    with open(f"/proc/{process.pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    burnt = (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")  # of dead children
    shutil.rmtree(world.folder / "state" / "hermes-supervise" / "runs", ignore_errors=True)
    procfs.kill_tree(process.pid)
    process.wait()
    return seen, burnt / mebibytes


def _without_search(world: environment.World) -> None:
    for path in world.home.glob("state.db*"):
        path.unlink()
    source = "SELECT sql FROM sqlite_master WHERE sql NOT NULL AND name IN ({})"
    names = "'sessions', 'messages', 'idx_messages_session', 'state_meta'"
    with environment.world() as other:
        other.ask(environment.program("raw_insert.py"), other.db, 1, 10)
        made = sqlite3.connect(other.db)
        statements = [row[0] for row in made.execute(source.format(names))]
        made.close()
    db = sqlite3.connect(world.db)
    db.execute("PRAGMA journal_mode = WAL")
    for statement in statements:
        db.execute(statement)
    db.commit()
    db.close()
