"""The order of recovery's steps: cut off in the last of them, it neither repeats nor misreads."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from hermes_supervise.supervisor.model.stream import ReplayedStream
from hermes_supervise.supervisor.recovery import finish, reading, report
from hermes_supervise.supervisor.recovery.gather import Gathered, gather
from hermes_supervise.supervisor.run.recover import finish_closed, finish_left_behind
from hermes_supervise.supervisor.storage import run_folder as runs
from support import Supervised, World, kill, short, wait_dead


def test_removal_cut_off_half_way_is_only_finished(world: World) -> None:
    agent = world.supervise(
        """
from hermes_supervise.agent_shim import sdk
chat = session("chat")
for number in range(20):
    chat.message("user" if number % 2 == 0 else "assistant", f"message {number}")
assert sdk.connection().acknowledged(20)
ready()
forever()
""",
        *world.hook,
    )
    agent.wait_for("ready")
    [run] = world.runs()
    journal = next(run.glob("*.log"))
    whole = journal.read_bytes()
    shutil.copytree(run, world.folder / "copy")
    agent.kill_agent()
    agent.finish()
    rows = short(world.messages("chat"))
    assert len(rows) == 20

    # Back to the moment when the first half of the files had gone.
    shutil.copytree(world.folder / "copy", run)
    (run / journal.name).write_bytes(whole[len(whole) // 2 :])
    (run / f"{journal.name.partition('.')[0]}.settled").touch()
    done = world.call("recover")
    assert done.returncode == 0, done.stdout + done.stderr
    assert world.runs() == []
    assert short(world.messages("chat")) == rows
    assert len(world.events()) == 1, "the hook has run already"


def test_how_it_ended_is_known_though_only_state_db_could_be_written(world: World) -> None:
    """The disk of the state folder was read-only by then: it has no word of the death."""
    agent = world.supervise(
        'chat = session("chat")\nchat.message("user", "hello")\nchat.delta("Hel")\n'
        "assert chat.acknowledged(20)\nready()\nforever()\n"
    )
    agent.wait_for("ready")
    [run] = world.runs()
    shutil.copytree(run, world.folder / "copy")
    agent.kill_agent()
    agent.finish()
    shutil.rmtree(world.state)
    run.parent.mkdir(mode=0o700, parents=True)
    run.parent.parent.chmod(0o700)
    shutil.copytree(world.folder / "copy", run)
    assert world.call("recover").returncode == 0
    [found] = world.reports()
    assert (found["outcome"], found["reason"]["signal"]) == ("interrupted", signal.SIGKILL)
    assert short(world.messages("chat")) == [("user", "hello"), ("assistant", "Hel")]


def unsupervised(world: World, monkeypatch: pytest.MonkeyPatch) -> tuple[Supervised, int]:
    """An agent whose supervisor is dead, and that we may finish for: it, and its pid."""
    agent = world.supervise(
        """
chat = session("chat")
chat.message("user", "before")
signal.signal(signal.SIGUSR1, lambda *_: (chat.message("user", "behind"), ready("said")))
ready()
forever()
""",
        "--no-adopt",
    )
    agent.wait_for("ready")
    pid = agent.agent
    kill(agent.pid)
    os.waitpid(agent.pid, 0)
    for name, value in world.env.items():
        monkeypatch.setenv(name, value)
    return agent, pid


def speaks_on_and_dies(agent: Supervised, pid: int) -> None:
    kill(pid, signal.SIGUSR1)
    agent.wait_for("said")
    kill(pid)
    wait_dead(pid)


def test_who_went_on_while_its_files_were_read_and_died_before_it_was_asked_for_loses_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, pid = unsupervised(world, monkeypatch)
    looks = []

    def read_and_meanwhile(folder: str, stream: str, **_: object) -> Gathered:
        """The first look ends when the agent has said more and is dead."""
        found = gather(folder, stream)
        if not looks:
            speaks_on_and_dies(agent, pid)
        looks.append(stream)
        return found

    monkeypatch.setattr(reading, "gather", read_and_meanwhile)
    [folder] = world.runs()
    run = runs.claim(str(folder))
    assert run is not None
    finish_left_behind(run)
    runs.retire(run)
    assert len(looks) > 1
    assert short(world.messages("chat")) == [("user", "before"), ("user", "behind")]


@pytest.mark.parametrize("by", ["the next start", "a successor"])
def test_who_died_right_after_it_was_found_alive_is_left_for_the_next_look(
    world: World, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """What it said in that moment is not in what was read."""
    agent, pid = unsupervised(world, monkeypatch)
    real, asked = reading.is_alive, []

    def alive_and_dead_at_once(replayed: ReplayedStream) -> bool:
        lives = real(replayed)
        if not asked:
            speaks_on_and_dies(agent, pid)
        asked.append(lives)
        return lives

    with monkeypatch.context() as at_first:
        at_first.setattr(reading, "is_alive", alive_and_dead_at_once)
        [folder] = world.runs()
        run = runs.claim(str(folder))
        assert run is not None
        if by == "a successor":
            finish_closed(run, finish.Supervised(run.streams(), set(), {}, os.getpid()))
        else:
            finish_left_behind(run)
        assert asked[0], "it lived when it was asked for"
        runs.retire(run)
    assert world.call("recover").returncode == 0
    assert short(world.messages("chat")) == [("user", "before"), ("user", "behind")]


@pytest.mark.parametrize(
    ("sent", "known"),
    [
        ([(1, None, "running"), (1, 5.0, "ok")], "ok"),
        ([(1, 5.0, "ok"), (1, None, "running")], "ok"),
        ([(1, 5.0, "failed"), (2, None, "running")], "running"),
        ([(2, None, "running"), (1, 5.0, "failed")], "running"),
        ([(1, 5.0, "failed"), (2, 9.0, "ok"), (2, None, "running")], "ok"),
        ([(1, 5.0, "ok"), ("odd", None, "running")], "ok"),
    ],
)
def test_of_two_who_tell_of_a_hook_the_one_who_knows_more_is_believed(
    tmp_path: Path, sent: list[tuple[object, float | None, str]], known: str
) -> None:
    """A runner that is done with it, and a recoverer that saw it at work just before."""
    path = tmp_path / "report.jsonl"
    queued = [{"id": "h", "outcome": "waiting", "attempt": 0, "ended": None}]
    session = report.SessionReport(
        "s", "run", "stream", "db", "interrupted", "killed", 1.0, hooks=queued
    )
    report.append(str(path), [session])
    with open(path, "a") as file:
        for attempt, ended, outcome in sent:
            hook = {"id": "h", "outcome": outcome, "attempt": attempt, "ended": ended}
            file.write(json.dumps({"stream": "stream", "session": "s", "hook": hook}) + "\n")
    [found] = report.read(str(path))
    assert [hook["outcome"] for hook in found.hooks] == [known]


def test_runs_of_the_same_second_are_recovered_in_the_order_in_which_they_began(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session may have gone on in the second of them."""
    monkeypatch.setenv("XDG_STATE_HOME", str(world.state))
    monkeypatch.setattr(time, "strftime", lambda form: "20260101-000000-")
    names = iter([b"\xff" * 4, b"\x00" * 4])
    monkeypatch.setattr(os, "urandom", lambda size: next(names))
    began = [runs.create({"db": str(world.db)}) for _ in range(2)]
    assert list(runs.left_behind()) == [run.folder for run in began]
    for run in began:
        runs.retire(run)
