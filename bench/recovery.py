"""Recovery: how fast many messages go into a state.db with a search index, and the memory used."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from . import environment
from .stats import Summary, ratio, summary, target

_MANY = 500_000
# Set fewer for a shorter run; the table names the number.
_MESSAGES = int(os.environ.get("BENCH_MESSAGES", 100_000))


def measure(quick: bool) -> dict[str, Any]:
    template = environment.hermes_database()
    sizes = (1_000, 4_000) if quick else (10_000, _MESSAGES)
    rounds = 1 if quick else 3
    rows: list[list[Any]] = []
    targets = []
    peaks = []
    with environment.world() as world:
        for count in sizes:
            row, peak = _compared(world, template, count, rounds)
            rows.append([f"{count:,} into an empty file", *row, peak])
            peaks.append(peak)
        targets.append(target(f"{sizes[-1]:,} messages, against apsw's one transaction",
                              rows[-1][3]["median"], 0.9, "x", least=True))  # fmt: skip
        if not quick:
            full = _filled(world, template)
            row, peak = _compared(world, full, sizes[-1], rounds)
            rows.append([f"{sizes[-1]:,} into {_MANY:,}", *row, peak])
            targets.append(target(f"the same into {_MANY:,} messages", row[2]["median"], 0.9, "x",
                                  least=True))  # fmt: skip
    left_out = [] if template else ["Hermes' tables: not installed; ours instead"]
    if quick:
        left_out.append("how memory grows: it is flat from sizes on that take longer")
    else:
        growth = (peaks[-1] - peaks[0]) / (sizes[-1] - sizes[0]) * 1024
        targets.append(target("memory a message more takes (1 KB each)", growth, 0.25, "KiB"))
    return {
        "title": "Recovery throughput",
        "tables": [
            {
                "columns": ["messages of 1 KB", "ours, us/message", "apsw raw, us/message",
                            "raw to ours", "peak memory, MiB"],
                "rows": rows,
            }
        ],
        "targets": targets,
        "left_out": left_out,
        "notes": ["`hermes-supervise recover` from start to end, with the journal read and "
                  "removed, against one transaction of apsw with the rows in memory; both with "
                  "triggers, in turns. Raw to ours: 1 is as fast, less is slower."],
    }  # fmt: skip


def _compared(
    world: environment.World, template: Path | None, count: int, rounds: int
) -> tuple[list[Summary], float]:
    """Summaries of the product, of raw inserts and of their ratio; the product's peak memory."""
    product, raws, peaks = [], [], []
    for _ in range(rounds):
        _fresh(world, template)
        world.ask(environment.program("journal.py"), count, 1000)
        took, peak = recover(world)
        product.append(took / count * 1e6)
        peaks.append(peak)
        _fresh(world, template)
        [raw] = world.ask(environment.program("raw_insert.py"), world.db, count, 1000)
        raws.append(raw / count * 1e3)
    return [summary(product), summary(raws), ratio(raws, product)], max(peaks)


def recover(world: environment.World) -> tuple[float, float]:
    """Seconds, and the peak of resident memory in MiB, of `hermes-supervise recover`."""
    start = time.monotonic()
    process = world.start([*environment.SUPERVISE, "recover"])
    _, status, usage = os.wait4(process.pid, 0)
    took = time.monotonic() - start
    process.returncode = status
    if status:
        raise RuntimeError(f"recover ended with status {status}")
    return took, usage.ru_maxrss / 1024


def _fresh(world: environment.World, template: Path | None) -> None:
    for path in world.home.glob("state.db*"):
        path.unlink()
    if template is not None:
        shutil.copy(template, world.db)


def _filled(world: environment.World, template: Path | None) -> Path:
    """A file with many messages. Making it takes minutes, so it is kept for the next run."""
    kept = Path(os.environ.get("BENCH_KEEP", "/var/tmp")) / f"hermes-supervise-bench-{_MANY}.db"
    if not kept.exists():
        _fresh(world, template)
        world.ask(environment.program("raw_insert.py"), world.db, _MANY, 1000)
        subprocess.check_call(["mv", world.db, kept])
    return kept


def as_json(path: Path) -> Any:
    return json.loads(path.read_text())
