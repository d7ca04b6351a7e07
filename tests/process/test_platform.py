"""Linux and the portable platform answer alike, and a run is recovered through both."""

from __future__ import annotations

import inspect
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hermes_supervise.ipc.endpoint import process_start
from hermes_supervise.supervisor.process import death, linux, linux_proc, platform, portable
from support import World, alive, children, kill, until

# Every way to watch a process that can be had on Linux.
WAYS: dict[str, Callable[[int], Any]] = {
    "pidfd": linux.PidfdWatch,
    "polled": lambda pid: linux.ProcWatch(pid, process_start(pid)),
    "portable": lambda pid: portable.PsutilWatch(pid, process_start(pid)),
}
# Both files of Linux as one.
Platform = ModuleType | SimpleNamespace
LINUX = SimpleNamespace(**vars(linux_proc) | vars(linux))
PLATFORMS = [LINUX, portable]

# Starts a child, prints its pid, and reaps it on request.
PARENT = """
import os, signal, sys
pid = os.fork()
if pid == 0:
    while True:
        signal.pause()
print(pid, flush=True)
sys.stdin.readline()
os.waitpid(pid, 0)
print("reaped", flush=True)
sys.stdin.readline()
"""


class Grandchild:
    """A process that is not our child."""

    def __init__(self) -> None:
        self.parent = subprocess.Popen(
            [sys.executable, "-c", PARENT],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.parent.stdout is not None
        self.pid = int(self.parent.stdout.readline())

    def __enter__(self) -> Grandchild:
        return self

    def reap(self) -> None:
        assert self.parent.stdin is not None
        assert self.parent.stdout is not None
        self.parent.stdin.write("\n")
        self.parent.stdin.flush()
        assert self.parent.stdout.readline() == "reaped\n"

    def __exit__(self, *_: object) -> None:
        if alive(self.pid):
            os.kill(self.pid, signal.SIGKILL)
        self.parent.communicate("\n\n", timeout=30)


@pytest.mark.parametrize("way", WAYS)
def test_the_death_of_a_child_is_seen(way: str) -> None:
    child = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE)
    watched = WAYS[way](child.pid)
    assert not watched.dead()
    assert not watched.wait(0.01)
    assert watched.status() is None, "a living process has no status"
    kill(child.pid)
    assert watched.wait(30)
    assert watched.dead()
    watched.close()
    child.communicate()
    assert child.returncode == -signal.SIGKILL, "its status is left to its parent"


@pytest.mark.parametrize("way", WAYS)
def test_the_death_of_somebody_elses_child_is_seen(way: str) -> None:
    with Grandchild() as other:
        watched = WAYS[way](other.pid)
        assert not watched.dead()
        kill(other.pid, signal.SIGTERM)
        assert watched.wait(30), "a zombie is dead"
        assert watched.dead()
        if way != "portable":  # which cannot know it
            status = watched.status()
            assert status is not None
            assert os.WTERMSIG(status) == signal.SIGTERM
        other.reap()
        assert watched.dead()
        watched.close()


@pytest.mark.parametrize("way", WAYS)
def test_a_wait_ends_when_the_process_does(way: str) -> None:
    with Grandchild() as other:
        watched = WAYS[way](other.pid)
        ended: list[bool] = []
        waiter = threading.Thread(target=lambda: ended.append(watched.wait(30)))
        waiter.start()
        kill(other.pid)
        other.reap()
        waiter.join(30)
        assert ended == [True]
        watched.close()


@pytest.fixture(params=["pidfd", "no pidfd", "pidfd forbidden", "portable"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Platform:
    """The systems there may be: with pidfds, without, with a filter that forbids them, another."""

    def forbidden(pid: int) -> int:
        raise PermissionError(1, "Operation not permitted")

    if request.param == "no pidfd":
        monkeypatch.delattr(os, "pidfd_open")
    elif request.param == "pidfd forbidden":
        monkeypatch.setattr(os, "pidfd_open", forbidden)
    return portable if request.param == "portable" else LINUX


def test_a_pid_that_is_another_process_now_is_not_watched(system: Platform) -> None:
    child = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE)
    start = system.process_start(child.pid)
    assert start is not None
    assert system.watch(child.pid, start - 1) is None, "another process had this pid before"
    watched = system.watch(child.pid, start)
    assert not watched.dead()
    watched.close()
    child.communicate()


def test_a_process_that_is_gone_is_not_watched(system: Platform) -> None:
    child = subprocess.Popen(["/bin/true"])
    start = system.process_start(child.pid)
    child.wait()
    assert system.watch(child.pid, start) is None
    assert system.watch(child.pid, None) is None
    assert system.process_start(child.pid) is None


def test_a_process_whose_start_cannot_be_read_is_not_declared_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    child = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE)
    start = process_start(child.pid)
    assert start is not None
    monkeypatch.setattr(death, "process_start", lambda pid: None)
    assert death.lives(child.pid, start)
    child.communicate()
    assert not death.lives(child.pid, start)


# -- both platforms answer alike ---------------------------------------------------------------


def test_both_platforms_have_the_same_functions() -> None:
    shared = {name: value for name, value in vars(platform).items() if inspect.isfunction(value)}
    assert len(shared) > 20
    for name in shared:
        ours, theirs = getattr(LINUX, name), getattr(portable, name)
        assert inspect.signature(ours) == inspect.signature(theirs), name


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a child, a variable and a file that is open for writing."""
    source = "import os, signal; kept = open('log', 'a'); os.fork(); "
    source += "os.write(1, b'ready'); signal.pause()"
    command = [sys.executable, "-c", source]
    env = os.environ | {"A_MARK": "here"}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.read(10) == b"readyready"
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


# Has its file open all the time, and opens and closes others, as one that talks to a model does.
BUSY = """
import os, sys, threading
log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def open_and_close():
    while True:
        for fd in [os.open("/dev/null", os.O_RDONLY) for _ in range(50)]:
            os.close(fd)
threading.Thread(target=open_and_close, daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_file_is_seen_to_be_open_whatever_else_is_closed_meanwhile(
    platform: Platform, tmp_path: Path
) -> None:
    log, pipe = str(tmp_path / "log"), subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", BUSY, log], stdin=pipe, stdout=pipe) as busy:
        assert busy.stdout is not None and busy.stdout.readline() == b"ready\n"
        seen = [platform.is_open_for_writing(busy.pid, log) for _ in range(300)]
        busy.kill()
    assert all(seen)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_process_is_described(
    platform: Platform, sleeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    assert platform.process_start(sleeper.pid) == process_start(sleeper.pid)
    assert platform.command_line(sleeper.pid)[1] == "-c"
    assert b"A_MARK=here" in platform.environment(sleeper.pid)
    [(child, parent)] = platform.below(sleeper.pid)
    assert parent == sleeper.pid
    [line] = platform.process_table([child])
    assert (line.parent, line.group, line.session) == (sleeper.pid,) * 3
    assert line.alive
    assert sleeper.pid in platform.own_children()
    assert sleeper.pid in {info.pid for info in platform.process_table()}
    log = str(tmp_path / "log")
    assert log in platform.open_files(sleeper.pid)
    assert platform.is_open_for_writing(sleeper.pid, log)
    assert not platform.is_open_for_writing(os.getpid(), log)
    assert platform.resident(sleeper.pid) > 1 << 20
    assert platform.since_boot() > platform.since_boot(line.start) >= 0


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_process_that_is_gone_has_no_description(platform: Platform) -> None:
    child = subprocess.Popen(["/bin/true"])
    child.wait()
    assert platform.command_line(child.pid) == []
    assert platform.environment(child.pid) == []
    assert platform.below(child.pid) == []
    assert platform.open_files(child.pid) == []
    assert platform.process_table([child.pid]) == []
    assert platform.resident(child.pid) is None


@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_peer_of_a_socket_is_known(platform: Platform) -> None:
    near, far = socket.socketpair()
    with near, far:
        assert platform.peer_of(near) == (os.getpid(), os.getuid())


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_boot_has_one_name(platform: Platform) -> None:
    assert platform.boot_id() == platform.boot_id() != ""


# -- the whole path, on another platform than Linux --------------------------------------------

WITHOUT_PIDFD = """
import os
del os.pidfd_open
from hermes_supervise.supervisor.__main__ import main
main()
"""


class WithoutPidfds(World):
    """A world whose supervisor has no pidfds."""

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-c", WITHOUT_PIDFD]


@pytest.fixture(params=["without pidfds", "portable"])
def elsewhere(request: pytest.FixtureRequest, world: World) -> World:
    if request.param == "portable":
        world.env["HERMES_SUPERVISE_PLATFORM"] = "portable"
    else:
        world.__class__ = WithoutPidfds
    return world


SPEAKS = """
with session("chat") as chat:
    chat.message("user", "hello")
    chat.delta("Hel")
    ready()
    forever()
"""


def test_elsewhere_a_killed_child_is_recovered(elsewhere: World) -> None:
    agent = elsewhere.supervise(SPEAKS, *elsewhere.hook)
    agent.wait_for("ready")
    agent.kill_agent()
    assert agent.finish() == -signal.SIGKILL
    assert [row["content"] for row in elsewhere.messages("chat")] == ["hello", "Hel"]
    [event] = elsewhere.events()
    assert event["extra"]["reason"] == "killed by SIGKILL"


def test_elsewhere_a_killed_grandchild_is_recovered_while_its_parent_lives(
    elsewhere: World,
) -> None:
    agent = elsewhere.supervise(
        """
pid = os.fork()
if pid == 0:
    with session("chat") as chat:
        chat.message("user", "hello")
        chat.delta("Hel")
        ready()
        forever()
sys.stdin.readline()
os.waitpid(pid, 0)
""",
        *elsewhere.hook,
        stdin=subprocess.PIPE,
    )
    agent.wait_for("ready")
    [grandchild] = until(lambda: children(agent.agent), "the grandchild")
    kill(grandchild)
    until(elsewhere.events, "the hook runs while the child lives on")
    assert alive(agent.agent)
    agent.process.communicate(b"go on\n", timeout=30)
    assert agent.process.returncode == 0
    assert [row["content"] for row in elsewhere.messages("chat")] == ["hello", "Hel"]


def test_elsewhere_a_signal_reaches_the_agent_once_and_its_status_is_ours(
    elsewhere: World,
) -> None:
    agent = elsewhere.supervise(
        """
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
ready()
while not heard:
    time.sleep(0.01)
ready(f"heard {len(heard)}")
os._exit(7)
"""
    )
    agent.wait_for("ready")
    os.kill(agent.process.pid, signal.SIGTERM)
    agent.wait_for("heard 1")
    assert agent.finish() == 7


def test_elsewhere_a_killed_supervisor_is_replaced(elsewhere: World) -> None:
    agent = elsewhere.supervise(SPEAKS, *elsewhere.hook)
    agent.wait_for("ready")
    pid = agent.agent
    kill(agent.process.pid)
    agent.process.wait()
    until(lambda: elsewhere.successors(), "a successor takes over")
    assert alive(pid)
    kill(pid)
    until(elsewhere.events, "the successor recovers the run")
    assert [row["content"] for row in elsewhere.messages("chat")] == ["hello", "Hel"]
