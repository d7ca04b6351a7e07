"""Killed after any of its operations, whoever it is: the statements T1 to T11, and the sweep that
shows them (G1, G3, G6).

The sweep runs once, in a process of its own; each test here is one statement about what it found.
At every test run it covers all of the smallest conversation and a part of everything else, which
the seed chooses; `make sweep-kills` covers all of it, and the mutants.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import kill_mutants
import kill_points
import kill_record
import pytest
from support import World, kill, short, wait_dead

ROOT = Path(__file__).parents[2]
HERE = ROOT / "tests" / "lib"
# Each broken in another part; all of them take a few minutes (`make sweep-kills`).
MUTANTS_TRIED = 2


@pytest.fixture(scope="module")
def seed() -> int:
    return random.randrange(10**6)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, seed: int) -> dict[str, Any]:
    result = tmp_path_factory.mktemp("sweep") / "result.json"
    words = ["--short", "--seed", str(seed), "--json", str(result)]
    done = subprocess.run(
        [sys.executable, str(HERE / "kill_sweep.py"), *words],
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert result.exists(), f"seed {seed}: {done.stdout}{done.stderr}"
    found = json.loads(result.read_text())
    assert isinstance(found, dict)
    assert found["kills"] > 50
    return found


def held(swept: dict[str, Any], statement: str) -> None:
    broken = [
        f"{what}\n    {again}" for name, what, again in swept["violations"] if name == statement
    ]
    assert not broken, f"seed {swept['seed']}:\n" + "\n".join(broken)


def test_t1_what_was_handed_over_is_there_once_and_in_order(swept: dict[str, Any]) -> None:
    """T1: a call that returned in the agent is a row after recovery, whoever was killed when."""
    held(swept, "T1")


def test_t2_recovering_once_more_changes_nothing(swept: dict[str, Any]) -> None:
    """T2: no row, no hook and no line of a report comes of recovering what is recovered."""
    held(swept, "T2")


def test_t3_a_hook_runs_once_and_after_the_rows(swept: dict[str, Any]) -> None:
    """T3: each session that was cut off gets its hook, once, when its rows are in."""
    held(swept, "T3")


def test_t4_a_hook_that_was_cut_off_is_repeated_and_its_input_says_so(
    swept: dict[str, Any],
) -> None:
    """T4: a hook whose end nobody saw runs again as attempt 2, `repeated`; never silently."""
    held(swept, "T4")
    assert swept["points"]["small/runner/self"] > 10


def test_t5_rows_land_in_the_session_that_said_them(swept: dict[str, Any]) -> None:
    """T5: after a rotation each session has its own words, and the agent's rows are untouched."""
    held(swept, "T5")


def test_t6_only_sound_transcripts_are_written(swept: dict[str, Any]) -> None:
    """T6: the file passes SQLite's checks, each call has its answer, counters match the rows."""
    held(swept, "T6")


def test_t7_of_many_recoverers_one_does_it(swept: dict[str, Any]) -> None:
    """T7: released together on one journal, one settles it; the others say so and exit with 0."""
    held(swept, "T7")


def test_t8_the_same_journal_gives_the_same_rows(swept: dict[str, Any]) -> None:
    """T8: cut off anywhere and finished by another, recovery writes what it would have written."""
    held(swept, "T8")


def test_t9_looking_at_it_changes_nothing(swept: dict[str, Any]) -> None:
    """T9: `show` and `sweep --dry-run` on what a crash left change no file and no decision."""
    held(swept, "T9")


# Speaks the wire itself, says everything three times over, and forks.
INSISTENT = """
import json, socket
from hermes_supervise.ipc import frames

def frame(number, **record):
    return frames.encode(number, json.dumps(record).encode())

hello = frame(0, kind="hello", version=1, oldest=1, stream="ab" * 16, pid=os.getpid())
said = frame(1, kind="session", session="chat", source="cli")
said += frame(2, kind="message", session="chat", message={"role": "user", "content": "Hello?"})
said += frame(3, kind="delta", session="chat", text="Hi, ")

def tell(data, last):
    line = socket.socket(socket.AF_UNIX)
    line.connect(os.environ["HERMES_SUPERVISE_SOCKET"])
    line.sendall(hello + data)
    answers, seen = frames.Decoder(), 0
    while seen < last:
        seen = max([seen, *(number for number, _ in answers.feed(line.recv(4096)))])
    line.close()

for _ in range(3):
    tell(said, 3)
tell(said + frame(4, kind="delta", session="chat", text="there"), 4)
child = os.fork()
if child == 0:
    own = session("another")
    own.message("user", "Hello?")
    own.delta("Hi, ")
    ready("forked %d" % os.getpid())
forever()
"""


def test_t10_said_again_is_once_and_a_fork_is_another(world: World) -> None:
    """T10: a record is known by its stream and number; a forked process begins a stream."""
    agent = world.supervise(INSISTENT)
    forked = int(agent.wait_for("forked").split()[1])
    kill(forked)
    agent.kill_agent()
    wait_dead(forked)
    assert agent.finish() == -signal.SIGKILL
    assert short(world.messages("chat")) == [("user", "Hello?"), ("assistant", "Hi, there")]
    assert short(world.messages("another")) == [("user", "Hello?"), ("assistant", "Hi, ")]


def test_t11_recovery_comes_to_an_end_and_leaves_nothing(swept: dict[str, Any]) -> None:
    """T11: it ends, whoever was killed, also with a locked database or no room on the disk; what
    could not be written stays and is written later; then no file of ours is left."""
    held(swept, "T11")


# -- the sweep itself ----------------------------------------------------------------------------


@pytest.mark.parametrize("mutant", kill_mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_fits_the_source(mutant: kill_mutants.Mutant) -> None:
    assert kill_mutants.applies(ROOT, mutant), f"bring it up to date with {mutant.file}"


def test_mutants_are_caught(seed: int) -> None:
    import kill_sweep

    for mutant in random.Random(seed).sample(QUICK, MUTANTS_TRIED):
        assert kill_sweep.catch(ROOT, mutant, hands=1), f"seed {seed}: {mutant.name!r} is missed"


# Those that most of the points of a short leg can tell.
QUICK = [
    mutant
    for mutant in kill_mutants.MUTANTS
    if set(mutant.legs) & {"small/agent/self", "small/supervisor/group"}
]

# What `os` has that another process could find afterwards.
CHANGES = {
    *("write", "pwrite", "writev", "pwritev", "pwritev2", "sendfile", "copy_file_range", "splice"),
    *("truncate", "ftruncate", "posix_fallocate", "fsync", "fdatasync", "sync"),
    *("rename", "renames", "replace", "unlink", "remove", "rmdir", "removedirs", "mkdir"),
    *("link", "symlink", "mknod", "mkfifo", "chmod", "chown", "utime", "setxattr"),
    *("fork", "forkpty", "posix_spawn", "posix_spawnp", "spawnv", "system", "lockf"),
}


def test_every_operation_of_the_product_is_counted() -> None:
    counted = {"write", "open", *kill_points.FILE_CALLS, *kill_points.PROCESS_CALLS}
    for room in kill_mutants.ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            used = set(re.findall(r"\bos\.(\w+)\(", path.read_text()))
            assert used & CHANGES <= counted, f"{path.name} does what no kill point follows"
    assert all(hasattr(os, name) for name in counted)


def test_the_page_is_the_recorded_sweep() -> None:
    import kill_sweep

    page = kill_record.PAGE.read_text()
    answer = json.loads(kill_record.RECORD.read_text())
    assert page.count(kill_record.BEGIN) == page.count(kill_record.END) == 1
    assert kill_record.replaced(page, answer) == page, "`make sweep-kills` makes both"
    assert answer["violations"] == []
    once = {leg for leg in answer["points"] if not leg.endswith(" twice")}
    assert once == set(kill_sweep.BY_NAME), "all of it, as it is now"
