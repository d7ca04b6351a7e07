"""Random lives and real deaths, for a few seconds; and broken products, which must be caught."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from torture import record  # noqa: E402

# (file, what is there, what is put in its place): each breaks a promise, and only that.
MUTANTS = {
    "a row is lost": (
        "supervisor/recovery/reconcile.py", "    return Compared(inserts, ",
        "    return Compared(inserts[:1] + inserts[2:], ",
    ),
    "the counters stay as they were": (
        "supervisor/recovery/statedb.py", "UPDATE sessions SET \"\n            f\"message_count = ",
        "UPDATE sessions SET \"\n            f\"message_count = message_count + ",
    ),
    "the marker is forgotten": (
        "supervisor/recovery/statedb.py", 'if marker.get("done"):', "if False:"
    ),
    "a clean exit is called an interruption": (
        "supervisor/recovery/outcome.py", "(End.CLEAN, True, False): Outcome.COMPLETED",
        "(End.CLEAN, True, False): Outcome.INTERRUPTED",
    ),
    "the ring is not read": (
        "supervisor/recovery/gather.py", 'salvaged = _in_ring(data) if name.endswith(".ring") else',
        "salvaged = frames.Salvage() if name.endswith('.ring') else",
    ),
    "an attempt is not counted": (
        "supervisor/hooks/runner.py", "        queue.save(claimed, entry)\n        told",
        "        told",
    ),
}  # fmt: skip


def torture(*options: str, product: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [product or ROOT, ROOT]))}
    command = [sys.executable, "-P", "-m", "torture", "--real", "0", *options]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("seed", ["always-the-same", ""], ids=["fixed", "fresh"])
def test_nothing_is_lost_duplicated_misordered_or_misreported(seed: str) -> None:
    done = torture("--kills", "60", "--seconds", "200", "--jobs", "2", "--seed", seed)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lost 0, duplicated 0, misordered 0, misreported 0" in done.stdout
    assert " agent\n" in done.stdout, "somebody was killed"


@pytest.mark.skipif(not os.environ.get("SLOW"), reason="half a minute a mutant; `make test-slow`")
@pytest.mark.parametrize("name", MUTANTS)
def test_a_product_that_breaks_its_promise_is_caught(name: str, tmp_path: Path) -> None:
    file, there, instead = MUTANTS[name]
    product = tmp_path / "hermes_supervise"
    for room in ("ipc", "agent_shim", "supervisor"):
        shutil.copytree(ROOT / room, product / room)
    source = (product / file).read_text()
    assert source.count(there) == 1, "the product has changed: change the mutant"
    (product / file).write_text(source.replace(there, instead))
    done = torture("--seconds", "120", "--seed", name, product=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "-m torture --only" in done.stdout


def test_the_page_is_the_recorded_campaign() -> None:
    page = record.PAGE.read_text()
    told = json.loads(record.RECORD.read_text())
    assert page.count(record.BEGIN) == page.count(record.END) == 1
    assert record.replaced(page, told) == page, "`make torture RECORD=1` makes both"
    assert [told[name] for name in record.CATEGORIES] == [0, 0, 0, 0]
