"""Recovery: how fast a long tail goes into a state.db with its search index, and in what memory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from . import ground
from .stats import target

_MANY = 500_000
# Fewer for a shorter run; the table says how many it were.
_MESSAGES = int(os.environ.get("BENCH_MESSAGES", 100_000))


def measure(quick: bool) -> dict[str, Any]:
    template = ground.hermes_database()
    sizes = (1_000, 4_000) if quick else (10_000, _MESSAGES)
    rows: list[list[Any]] = []
    targets = []
    peaks = []
    with ground.world() as world:
        for count in sizes:
            speed, peak, raw = _compare(world, template, count)
            rows.append([f"{count:,} into an empty file", speed, raw, speed / raw, peak])
            peaks.append(peak)
        targets.append(target(f"{sizes[-1]:,} messages, against apsw's one transaction",
                              rows[-1][3], 0.9, "x", least=True))  # fmt: skip
        if not quick:
            full = _filled(world, template)
            speed, peak, raw = _compare(world, full, sizes[-1])
            rows.append([f"{sizes[-1]:,} into {_MANY:,}", speed, raw, speed / raw, peak])
            targets.append(target(f"the same into {_MANY:,} messages", rows[-1][3], 0.9, "x",
                                  least=True))  # fmt: skip
    growth = (peaks[-1] - peaks[0]) / (sizes[-1] - sizes[0]) * 1024
    targets.append(target("memory a message more takes (1 KB each)", growth, 0.25, "KiB"))
    return {
        "title": "Recovery throughput",
        "tables": [
            {
                "columns": ["messages of 1 KB", "ours, messages/s", "apsw raw, messages/s",
                            "x raw", "peak memory, MiB"],
                "rows": rows,
            }
        ],
        "targets": targets,
        "left_out": [] if template else ["Hermes' tables: not installed; ours instead"],
        "notes": ["`hermes-supervise recover` from start to end, journal read and removed, against "
                  "one transaction of apsw with the rows in memory; both with the triggers on."],
    }  # fmt: skip


def _compare(world: ground.World, template: Path | None, count: int) -> tuple[float, float, float]:
    _fresh(world, template)
    world.ask(ground.program("journal.py"), count, 1000)
    took, peak = recover(world)
    ours = count / took
    _fresh(world, template)
    [raw] = world.ask(ground.program("raw_insert.py"), world.db, count, 1000)
    return ours, peak, count / (raw / 1e3)


def recover(world: ground.World) -> tuple[float, float]:
    """Seconds, and the peak of resident memory in MiB, of `hermes-supervise recover`."""
    start = time.monotonic()
    process = world.start([*ground.SUPERVISE, "recover"])
    _, status, usage = os.wait4(process.pid, 0)
    took = time.monotonic() - start
    process.returncode = status
    if status:
        raise RuntimeError(f"recover ended with status {status}")
    return took, usage.ru_maxrss / 1024


def _fresh(world: ground.World, template: Path | None) -> None:
    for path in world.home.glob("state.db*"):
        path.unlink()
    if template is not None:
        shutil.copy(template, world.db)


def _filled(world: ground.World, template: Path | None) -> Path:
    """A file with many messages in it. Minutes: kept for the next time."""
    kept = Path(os.environ.get("BENCH_KEEP", "/var/tmp")) / f"hermes-supervise-bench-{_MANY}.db"
    if not kept.exists():
        _fresh(world, template)
        world.ask(ground.program("raw_insert.py"), world.db, _MANY, 1000)
        subprocess.check_call(["mv", world.db, kept])
    return kept


def as_json(path: Path) -> Any:
    return json.loads(path.read_text())
