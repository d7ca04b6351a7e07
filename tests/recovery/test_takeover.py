"""The supervisor dies too: its standby takes its place, and nothing is lost (G3, G5)."""

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
    standby_of,
    until,
    wait_dead,
)

pytestmark = pytest.mark.both_platforms

# Streams words on request, a line on standard input, and prints what it has streamed.
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
    agent.send_line(str(words))
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
    [successor] = until(lambda: world.successors(), "a successor")
    talk(agent, 100, 300)
    kill(pid)
    wait_dead(successor)
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
    standby_of(agent.pid)
    kill(agent.pid)
    agent.process.wait()
    [successor] = until(lambda: world.successors(), "a successor")
    talk(agent, 100, 100)
    disk.read_on()
    kill(pid)
    wait_dead(successor)
    assert short(world.messages("chat")) == [("user", "talk"), ("assistant", words(100))]
    assert world.runs() == []


# An agent of another language: it speaks the protocol, and has no ring.
WITHOUT_RING = """
import socket, time
from hermes_supervise.ipc import frames, records

def connect():
    while True:
        peer = socket.socket(socket.AF_UNIX)
        try:
            peer.connect(os.environ["HERMES_SUPERVISE_SOCKET"])
        except OSError:
            time.sleep(0.01)
            continue
        hello = {"kind": "hello", "version": records.VERSION, "oldest": records.OLDEST,
                 "stream": "ab" * 16, "pid": os.getpid()}
        peer.sendall(frames.encode(0, records.pack(hello)))
        return peer

def message(role, content):
    said = {"role": role, "content": content}
    return records.pack({"kind": "message", "session": "chat", "uid": content, "message": said})

first = connect()
first.sendall(frames.encode(1, records.pack({"kind": "session", "session": "chat"})))
first.sendall(frames.encode(2, message("user", "talk")))
answers, acknowledged = frames.Decoder(), 0
while acknowledged < 2:
    acknowledged = max(seq for seq, _ in answers.feed(first.recv(4096)) or [(0, b"")])
ready("pid %d" % os.getpid())
sys.stdin.readline()
second = connect()
second.sendall(frames.encode(3, message("assistant", "said to the successor")))
ready("sent")
forever()
"""


def test_what_a_successor_was_sent_before_it_could_read_is_not_lost(world: World) -> None:
    disk = SlowDisk(world)
    agent = world.supervise(WITHOUT_RING, stdin=subprocess.PIPE, env=disk.env)
    disk.read_on()
    pid = int(agent.wait_for("pid").split()[1])
    standby_of(agent.pid)
    kill(agent.pid)
    agent.process.wait()
    [successor] = until(lambda: world.successors(), "a successor")
    assert agent.process.stdin is not None
    agent.process.stdin.write(b"\n")
    agent.process.stdin.flush()
    agent.wait_for("sent")  # the successor listens, and is still being loaded
    kill(pid)
    wait_dead(pid)
    disk.read_on()
    wait_dead(successor)
    rows = [("user", "talk"), ("assistant", "said to the successor")]
    assert short(world.messages("chat")) == rows
    assert world.runs() == []


@pytest.mark.needs_linux("elsewhere a watch takes no descriptor, and more of them can begin")
@pytest.mark.parametrize("descriptors", [6, 8, 10])
def test_a_successor_that_cannot_begin_has_no_successor_that_cannot_either(
    world: World, descriptors: int
) -> None:
    agent, pid = start(world)
    standby = standby_of(agent.pid)
    resource.prlimit(standby, resource.RLIMIT_NOFILE, (descriptors, descriptors))
    kill(agent.pid)
    agent.process.wait()
    wait_dead(standby)  # which has become the successor
    assert world.successors() == []
    talk(agent, 100, 100)
    kill(pid)
    world.call("recover")
    assert short(world.messages("chat")) == [("user", "talk"), ("assistant", words(100))]


def test_a_successor_that_can_write_no_file_goes_on_all_the_same(world: World) -> None:
    agent, pid = start(world)
    standby = standby_of(agent.pid)
    no_room = (0, 0)  # no file of its or its children's can grow
    resource.prlimit(standby, resource.RLIMIT_FSIZE, no_room)
    kill(agent.pid)
    agent.process.wait()
    [successor] = until(lambda: world.successors(), "a successor")
    talk(agent, 100, 100)
    kill(pid)
    wait_dead(successor)
    world.call("recover")
    assert short(world.messages("chat")) == [("user", "talk"), ("assistant", words(100))]


def test_successors_have_successors(world: World) -> None:
    agent, pid = start(world)
    supervisor, total = agent.pid, 0
    for _ in range(4):
        successor = standby_of(supervisor)
        kill(supervisor)
        supervisor = successor
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
    [successor] = until(lambda: world.successors(), "a successor")
    talk(agent, 10, 20)
    assert agent.process.stdin is not None
    agent.process.stdin.close()
    wait_dead(pid)
    wait_dead(successor)
    assert short(world.messages("chat")) == [("user", "talk"), ("assistant", words(20))]
    ended = world.session("chat")
    assert ended is not None
    assert ended["end_reason"] == "exited"
    assert world.events() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_successor_that_still_waits_for_its_turn_is_not_ended_by_a_signal(
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
        [successor] = until(lambda: world.successors(), "a successor")
        until(lambda: waits_for_a_lock(successor), "the successor waits")
        kill(successor, number)
        until(lambda: pending(successor) & 1 << number - 1, "the signal has come")
    standby_of(successor)  # so it is at work
    talk(agent, 10, 20)
    kill(pid)
    wait_dead(successor)
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
    standby_of(agent.pid)
    kill(agent.pid)
    agent.process.wait()
    successor = until(lambda: world.successors(), "a successor")[0] if adopted else None
    if successor is not None:
        standby_of(successor)  # so it has looked around
    # Others who look for what was left behind leave it alone as well.
    assert world.run(["true"]).finish() == 0
    assert world.call("recover").returncode == 0
    agent.send_line()
    agent.wait_for("said")
    kill(pid)
    wait_dead(pid)
    if successor is not None:
        wait_dead(successor)
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


@pytest.mark.parametrize("gone", ["while its supervisor starts", "when its successor has begun"])
def test_a_silent_agent_whose_launcher_is_gone_is_not_forgotten_by_a_successor(
    world: World, gone: str
) -> None:
    for gate in ("go", "speak"):
        os.mkfifo(world.folder / gate)
    disk = SlowDisk(world)
    inner = [sys.executable, world.script(BEHIND_IT)]
    agent = world.run(["/bin/sh", "-c", LAUNCHER, "sh", *inner], env=disk.env)
    pid = int(agent.wait_for("pid").split()[1])
    [launcher] = until(lambda: [c for c in children(agent.pid) if pid in children(c)], "a launcher")
    standby_of(agent.pid)
    if gone.startswith("while"):
        let_through(world.folder / "go")
        until(lambda: not alive(launcher))
    kill(agent.pid)
    agent.process.wait()
    [successor] = until(lambda: world.successors(), "a successor")
    disk.read_on()
    if not gone.startswith("while"):
        standby_of(successor)  # so it has looked around
        let_through(world.folder / "go")
        wait_dead(successor)
    let_through(world.folder / "speak")
    agent.wait_for("said")
    kill(pid)
    if gone.startswith("while"):
        wait_dead(successor)
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
    assert world.successors() == []
    kill(pid)
    wait_dead(pid)
    assert world.run(["true"]).finish() == 0
    until(world.events, "its hook has run; a start does not wait for that on a busy machine")
    assert short(world.messages("chat")) == [("user", "talk"), ("assistant", words(100))]
    assert len(world.events()) == 1


@pytest.mark.needs_linux("elsewhere a hook does not die with its runner")
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
