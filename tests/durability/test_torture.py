"""Random lives and real deaths, for a few seconds; and broken products, which must be caught."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from installed import release_tree

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from torture import record  # noqa: E402

# (file, what is there, what is put in its place): each breaks a promise, and only that.
MUTANTS = {
    "a row is lost": (
        "supervisor/statedb/reconcile.py", "    return Compared(inserts, ",
        "    return Compared(inserts[:1] + inserts[2:], ",
    ),
    "the counters stay as they were": (
        "supervisor/statedb/tables.py", "UPDATE sessions SET \"\n            f\"message_count = ",
        "UPDATE sessions SET \"\n            f\"message_count = message_count + ",
    ),
    "the marker is forgotten": (
        "supervisor/statedb/writer.py", 'if marker.get("done"):', "if False:"
    ),
    "a clean exit is called an interruption": (
        "supervisor/recovery/outcome.py", "(End.CLEAN, True, False): Outcome.COMPLETED",
        "(End.CLEAN, True, False): Outcome.INTERRUPTED",
    ),
    "the ring is not read": (
        "supervisor/recovery/gather.py", "salvaged = _in_ring(data)", "salvaged = frames.Salvage()",
    ),
    "an attempt is not counted": (
        "supervisor/hooks/runner.py", "        queue.save(claimed, entry)\n        event",
        "        event",
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


@pytest.mark.parametrize("name", MUTANTS)
def test_what_a_mutant_breaks_is_in_the_product(name: str) -> None:
    file, there, _ = MUTANTS[name]
    assert (ROOT / file).read_text().count(there) == 1, "the product has changed: change the mutant"


@pytest.mark.skipif(not os.environ.get("SLOW"), reason="half a minute a mutant; `make test-slow`")
@pytest.mark.parametrize("name", MUTANTS)
def test_a_product_that_breaks_its_promise_is_caught(name: str, tmp_path: Path) -> None:
    file, there, instead = MUTANTS[name]
    product = tmp_path / "hermes_supervise"
    for room in ("ipc", "agent_shim", "supervisor"):
        shutil.copytree(ROOT / room, product / room)
    source = (product / file).read_text()
    (product / file).write_text(source.replace(there, instead))
    done = torture("--seconds", "120", "--seed", name, product=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "-m torture --only" in done.stdout


@pytest.mark.parametrize("seed", ["the same", ""], ids=["fixed", "fresh"])
def test_the_wider_campaign_finds_nothing(seed: str) -> None:
    """Several processes in a session, takeovers, clocks, full disks, limits, nonsense, stops."""
    done = torture(
        "--wide", "1", "--kills", "12", "--seconds", "200", "--jobs", "2", "--seed", seed
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lost 0, duplicated 0, misordered 0, misreported 0" in done.stdout


# What the campaign of the release did not see, by the kind of scenario that sees it.
FOUND_IN_THE_RELEASE = {
    "watched": "LOST",
    "malformed": "LOST",
    "equal words": "LOST",
    "clocks": "LOST",
    "full state folder": "LOST",
    "order": "MISORDERED",
    "hidden crash": "the session ended as exited, must be interrupted",
    "short workers": "the session ended as interrupted, must be exited",
    "late": "LOST",
}


@pytest.mark.skipif(not os.environ.get("SLOW"), reason="up to a minute a kind; `make test-slow`")
@pytest.mark.parametrize("kind", FOUND_IN_THE_RELEASE)
def test_each_kind_of_the_wider_campaign_finds_a_defect_of_the_release(
    kind: str, tmp_path: Path
) -> None:
    release = tmp_path / "hermes_supervise"
    release.mkdir()
    release_tree(release)
    found = ""
    for number in range(12):
        only = ("--kind", kind, "--only", f"s{number}", "--product", str(tmp_path), "--jobs", "1")
        with tempfile.TemporaryDirectory(prefix="hst") as folder:  # a short path, for sockets
            found += torture(*only, "--folder", folder).stdout
        if FOUND_IN_THE_RELEASE[kind] in found:
            return
    pytest.fail(found)


def test_the_page_is_the_recorded_campaign() -> None:
    page = record.PAGE.read_text()
    recorded = json.loads(record.RECORD.read_text())
    assert page.count(record.BEGIN) == page.count(record.END) == 1
    assert record.replaced(page, recorded) == page, "`make torture RECORD=1` makes both"
    assert [recorded[name] for name in record.CATEGORIES] == [0, 0, 0, 0]
