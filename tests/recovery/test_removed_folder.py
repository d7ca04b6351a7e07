"""Somebody removes our folders while an agent runs: what was journalled is still stored."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from support import Supervised, World, kill, short, until, wait_dead

# Says each line of its input, and when that is journalled.
TALKER = """
chat = session("chat")
chat.message("user", "before")
assert chat.acknowledged(60)
ready(f"pid {os.getpid()}")
for line in sys.stdin:
    chat.message("user", line.strip())
    assert line == "last\\n" or chat.acknowledged(60)
    ready("said")
"""


def says(agent: Supervised, text: str) -> None:
    agent.send_line(text)
    agent.wait_for("said")


def removed(world: World, what: str) -> Path:
    """Remove a folder; the run's folder, which is gone then."""
    [run] = world.runs()
    shutil.rmtree({"state": world.state, "runs": run.parent, "run": run}[what])
    return run


@pytest.mark.parametrize("what", ["state", "runs", "run"])
def test_what_was_said_before_and_after_is_stored(world: World, what: str) -> None:
    agent = world.supervise(TALKER, *world.hook, stdin=subprocess.PIPE)
    agent.wait_for("pid")
    removed(world, what)
    says(agent, "after")
    says(agent, "last")
    agent.kill_agent()
    assert agent.finish() == -signal.SIGKILL
    assert [text for _, text in short(world.messages("chat"))] == ["before", "after", "last"]
    [report] = world.reports()
    assert (report["outcome"], report["problems"]) == ("interrupted", [])
    assert len(world.events()) == 1
    assert world.runs() == []


def test_a_successor_finds_the_folder_that_was_made_again(world: World) -> None:
    agent = world.supervise(TALKER, *world.hook, stdin=subprocess.PIPE)
    pid = int(agent.wait_for("pid").split()[1])
    run = removed(world, "state")
    says(agent, "after")
    until(lambda: any(b"after" in log.read_bytes() for log in run.glob("*.log")), "made again")
    kill(agent.pid)
    agent.process.wait()
    [successor] = until(lambda: world.successors(), "a successor")
    says(agent, "to the successor")
    says(agent, "last")
    kill(pid)
    wait_dead(successor)
    assert world.call("recover").returncode == 0
    texts = [text for _, text in short(world.messages("chat"))]
    assert texts == ["before", "after", "to the successor", "last"]
    [report] = world.reports()
    assert (report["outcome"], report["problems"]) == ("interrupted", [])
    assert len(world.events()) == 1
    assert world.runs() == []


def test_sockets_that_are_removed_keep_nobody_from_being_recovered(world: World) -> None:
    """As at a logout, which removes the runtime folder and leaves the agent running."""
    agent = world.supervise(TALKER, *world.hook, stdin=subprocess.PIPE)
    pid = int(agent.wait_for("pid").split()[1])
    shutil.rmtree(Path(world.env["XDG_RUNTIME_DIR"]) / "hermes-supervise")
    says(agent, "after")
    kill(agent.pid)
    agent.process.wait()
    [successor] = until(lambda: world.successors(), "a successor")
    says(agent, "last")
    kill(pid)
    wait_dead(successor)
    assert world.call("recover").returncode == 0
    assert [text for _, text in short(world.messages("chat"))] == ["before", "after", "last"]
    assert len(world.events()) == 1
    assert world.runs() == []
