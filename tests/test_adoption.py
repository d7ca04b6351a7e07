"""The supervisor dies too: its witness takes its place, and nothing is lost (G3, G5)."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support import (
    SlowDisk,
    Supervised,
    World,
    alive,
    children,
    kill,
    let_through,
    short,
    until,
    wait_dead,
    witness_of,
)

# Streams words when told to by a line on standard input, and says what it has streamed.
TALKER = """
chat = session("chat")
chat.message("user", "talk")
ready("pid %d" % os.getpid())
number = 0
for line in sys.stdin:
    for _ in range(int(line)):
        chat.delta(f"w{number} ")
        number += 1
    ready(f"said {number}")
chat.message("assistant", "".join(f"w{n} " for n in range(number)))
"""


def start(world: World, *options: str) -> tuple[Supervised, int]:
    agent = world.supervise(TALKER, *options, stdin=subprocess.PIPE)
    pid = int(agent.wait_for("pid").split()[1])
    until(lambda: list((world.state / "hermes-supervise" / "runs").glob("*/*.log")), "a journal")
    return agent, pid


def talk(agent: Supervised, words: int, total: int) -> None:
    assert agent.process.stdin is not None
    agent.process.stdin.write(b"%d\n" % words)
    agent.process.stdin.flush()
    agent.wait_for(f"said {total}")


def words(total: int) -> str:
    return "".join(f"w{number} " for number in range(total))


def test_a_killed_supervisor_is_replaced_and_the_agents_death_still_recovered(
    world: World,
) -> None:
    agent, pid = start(world, *world.hook)
    talk(agent, 100, 100)
    kill(agent.pid)
    agent.process.wait()
    talk(agent, 100, 200)
    [heir] = until(lambda: world.heirs(), "an heir")
    talk(agent, 100, 300)
    kill(pid)
    wait_dead(heir)
    assert short(world.messages("chat")) == [("user", "talk"), ("assistant", words(300))]
    ended = world.session("chat")
    assert ended is not None
    assert ended["end_reason"] == "interrupted"
    assert len(world.events()) == 1
    assert world.runs() == []
    assert list((Path(world.env["XDG_RUNTIME_DIR"]) / "hermes-supervise").iterdir()) == []


def test_a_supervisor_that_is_killed_before_it_is_wholly_there_is_replaced(world: World) -> None:
    disk = SlowDisk(world)
    agent = world.supervise(TALKER, stdin=subprocess.PIPE, env=disk.env)
    pid = int(agent.wait_for("pid").split()[1])
    witness_of(agent.pid)
    kill(agent.pid)
    agent.process.wait()
    [heir] = until(lambda: world.heirs(), "an heir")
    talk(agent, 100, 100)
    disk.read_on()
    kill(pid)
    wait_dead(heir)
    assert short(world.messages("chat")) == [("user", "talk"), ("assistant", words(100))]
    assert world.runs() == []


def test_an_heir_that_cannot_begin_has_no_heir_that_cannot_either(world: World) -> None:
    agent, pid = start(world)
    witness = witness_of(agent.pid)
    no_room = (0, 0)  # no file of its or its heirs' can grow
    resource.prlimit(witness, resource.RLIMIT_FSIZE, no_room)
    kill(agent.pid)
    agent.process.wait()
    wait_dead(witness)  # which has become the heir
    assert world.heirs() == []
    talk(agent, 100, 100)
    kill(pid)
    world.call("recover")
    assert short(world.messages("chat")) == [("user", "talk"), ("assistant", words(100))]


def test_heirs_have_heirs(world: World) -> None:
    agent, pid = start(world)
    supervisor, total = agent.pid, 0
    for _ in range(4):
        heir = witness_of(supervisor)
        kill(supervisor)
        supervisor = heir
        total += 50
        talk(agent, 50, total)
    kill(pid)
    wait_dead(supervisor)
    assert short(world.messages("chat")) == [("user", "talk"), ("assistant", words(total))]


def test_an_agent_that_ends_in_order_after_its_supervisor_died_is_completed(world: World) -> None:
    agent, pid = start(world, *world.hook)
    talk(agent, 10, 10)
    kill(agent.pid)
    agent.process.wait()
    [heir] = until(lambda: world.heirs(), "an heir")
    talk(agent, 10, 20)
    assert agent.process.stdin is not None
    agent.process.stdin.close()
    wait_dead(pid)
    wait_dead(heir)
    assert short(world.messages("chat")) == [("user", "talk"), ("assistant", words(20))]
    ended = world.session("chat")
    assert ended is not None
    assert ended["end_reason"] == "exited"
    assert world.events() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_an_heir_that_still_waits_for_its_turn_is_not_ended_by_a_signal(
    world: World, number: int
) -> None:
    agent, pid = start(world)
    talk(agent, 10, 10)
    [run] = world.runs()
    with open(run / "lock", "rb") as lock:
        # As a recovery that is under way does, we have the lock when the supervisor is dead.
        first = threading.Thread(target=fcntl.flock, args=(lock, fcntl.LOCK_EX))
        first.start()
        until(lambda: waits_for_a_lock(os.getpid()), "we wait")
        kill(agent.pid)
        agent.process.wait()
        first.join()
        [heir] = until(lambda: world.heirs(), "an heir")
        until(lambda: waits_for_a_lock(heir), "the heir waits")
        kill(heir, number)
        until(lambda: pending(heir) & 1 << number - 1, "the signal has come")
    witness_of(heir)  # so it is at work
    talk(agent, 10, 20)
    kill(pid)
    wait_dead(heir)
    assert short(world.messages("chat")) == [("user", "talk"), ("assistant", words(20))]


def waits_for_a_lock(pid: int) -> bool:
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return any(line[1] == "->" and line[5] == str(pid) for line in lines)


def pending(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("ShdPnd:")[2].split()[0], 16)


# Has nothing to say until it gets a line on standard input.
SILENT = """
ready("pid %d" % os.getpid())
sys.stdin.readline()
chat = session("chat")
chat.message("user", "at last")
chat.delta("half")
ready("said")
forever()
"""


@pytest.mark.parametrize("adopted", [True, False])
def test_an_agent_that_had_said_nothing_yet_is_not_forgotten(world: World, adopted: bool) -> None:
    options = () if adopted else ("--no-adopt",)
    agent = world.supervise(SILENT, *options, stdin=subprocess.PIPE)
    pid = int(agent.wait_for("pid").split()[1])
    witness_of(agent.pid)
    kill(agent.pid)
    agent.process.wait()
    heir = until(lambda: world.heirs(), "an heir")[0] if adopted else None
    if heir is not None:
        witness_of(heir)  # so it has looked around
    # Others who look for what was left behind leave it alone as well.
    assert world.run(["true"]).finish() == 0
    assert world.call("recover").returncode == 0
    assert agent.process.stdin is not None
    agent.process.stdin.write(b"\n")
    agent.process.stdin.flush()
    agent.wait_for("said")
    kill(pid)
    wait_dead(pid)
    if heir is not None:
        wait_dead(heir)
    else:
        assert world.call("recover").returncode == 0
    assert short(world.messages("chat")) == [("user", "at last"), ("assistant", "half")]
    assert world.runs() == []


# Says nothing until it may, and has a launcher that goes when it may.
BEHIND_IT = """
ready("pid %d" % os.getpid())
open("speak").read()
session("chat").message("user", "precious words")
ready("said")
forever()
"""
LAUNCHER = '"$@" & cat go; exit 0'


@pytest.mark.parametrize("gone", ["while its supervisor starts", "when its heir has begun"])
def test_a_silent_agent_whose_launcher_is_gone_is_not_forgotten_by_an_heir(
    world: World, gone: str
) -> None:
    for gate in ("go", "speak"):
        os.mkfifo(world.folder / gate)
    disk = SlowDisk(world)
    inner = [sys.executable, world.script(BEHIND_IT)]
    agent = world.run(["/bin/sh", "-c", LAUNCHER, "sh", *inner], env=disk.env)
    pid = int(agent.wait_for("pid").split()[1])
    [launcher] = until(lambda: [c for c in children(agent.pid) if pid in children(c)], "a launcher")
    witness_of(agent.pid)
    if gone.startswith("while"):
        let_through(world.folder / "go")
        until(lambda: not alive(launcher))
    kill(agent.pid)
    agent.process.wait()
    [heir] = until(lambda: world.heirs(), "an heir")
    disk.read_on()
    if not gone.startswith("while"):
        witness_of(heir)  # so it has looked around
        let_through(world.folder / "go")
        wait_dead(heir)
    let_through(world.folder / "speak")
    agent.wait_for("said")
    kill(pid)
    if gone.startswith("while"):
        wait_dead(heir)
    else:
        world.call("recover")
    assert short(world.messages("chat")) == [("user", "precious words")]
    assert world.runs() == []


def test_with_adoption_off_the_spool_carries_it_to_the_next_start(world: World) -> None:
    agent, pid = start(world, "--no-adopt", *world.hook)
    talk(agent, 50, 50)
    kill(agent.pid)
    agent.process.wait()
    talk(agent, 50, 100)
    assert world.heirs() == []
    kill(pid)
    wait_dead(pid)
    assert world.run(["true"]).finish() == 0
    assert short(world.messages("chat")) == [("user", "talk"), ("assistant", words(100))]
    assert len(world.events()) == 1


def test_a_supervisor_killed_in_the_middle_of_a_recovery_is_finished_for(world: World) -> None:
    """The hook says that it runs; then supervisor and recoverer are killed."""
    flag = world.folder / "hook-runs"
    said = f"cat >> {world.hooked}; echo >> {world.hooked}; echo $PPID $$ > {flag}.new"
    hook = f"sh -c '{said}; mv {flag}.new {flag}; exec sleep 300'"
    agent, pid = start(world, "--hook-timeout", "300", "--on-session-end", hook)
    talk(agent, 10, 10)
    kill(pid)
    until(flag.exists, "the hook runs")
    runner, hook_process = map(int, flag.read_text().split())
    flag.unlink()
    kill(agent.pid)
    kill(runner)
    wait_dead(hook_process)
    until(flag.exists, "the hook is run again")
    first, second = world.events()
    assert (first["extra"]["attempt"], second["extra"]["attempt"]) == (1, 2)
    assert second["extra"]["repeated"] is True
    kill(int(flag.read_text().split()[1]))
    until(lambda: world.runs() == [], "the run is settled")
    assert short(world.messages("chat")) == [("user", "talk"), ("assistant", words(10))]


@pytest.mark.parametrize("together", [True, False])
def test_both_killed_in_one_instant_is_finished_by_recover(world: World, together: bool) -> None:
    agent, pid = start(world, "--no-adopt", *world.hook)
    talk(agent, 50, 50)
    assert alive(agent.pid) and alive(pid)
    if together:
        os.kill(agent.pid, signal.SIGSTOP)  # so that it cannot act on the agent's death
    kill(pid)
    kill(agent.pid)
    agent.process.wait()
    done = world.call("recover")
    assert done.returncode == 0, done.stderr
    assert short(world.messages("chat")) == [("user", "talk"), ("assistant", words(50))]
    assert len(world.events()) == 1
    assert world.call("recover").stdout == "nothing to recover\n"
