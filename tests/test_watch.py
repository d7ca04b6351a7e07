"""A process' death is seen, however it may be watched, and a pid alone is nobody."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
from hermes_supervise.ipc.endpoint import process_start
from hermes_supervise.supervisor.watch import PidfdWatch, PsutilWatch, Watch, watch
from support import World, alive, children, kill, until

KINDS = [PidfdWatch, PsutilWatch]

# Starts a child, tells its pid, and reaps it when told to.
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


@pytest.mark.parametrize("kind", KINDS)
def test_the_death_of_a_child_is_seen(kind: Callable[[int], Watch]) -> None:
    child = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE)
    watched = kind(child.pid)
    assert not watched.dead()
    assert not watched.wait(0.01)
    assert watched.status() is None, "a living process has no status"
    kill(child.pid)
    assert watched.wait(30)
    assert watched.dead()
    watched.close()
    child.communicate()
    assert child.returncode == -signal.SIGKILL, "its status is left to its parent"


@pytest.mark.parametrize("kind", KINDS)
def test_the_death_of_somebody_elses_child_is_seen_with_its_status(
    kind: Callable[[int], Watch],
) -> None:
    with Grandchild() as other:
        watched = kind(other.pid)
        assert not watched.dead()
        kill(other.pid, signal.SIGTERM)
        assert watched.wait(30), "a zombie is dead"
        assert watched.dead()
        status = watched.status()
        assert status is not None
        assert os.WTERMSIG(status) == signal.SIGTERM
        other.reap()
        assert watched.dead()
        watched.close()


def test_a_wait_ends_when_the_process_does() -> None:
    for kind in KINDS:
        with Grandchild() as other:
            watched = kind(other.pid)
            ended: list[bool] = []
            waiter = threading.Thread(target=lambda w=watched, e=ended: e.append(w.wait(30)))
            waiter.start()
            kill(other.pid)
            other.reap()
            waiter.join(30)
            assert ended == [True]
            watched.close()


@pytest.fixture(params=["pidfd", "no pidfd", "pidfd forbidden"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The ways a system may have: with pidfds, without, and with a filter that forbids them."""

    def forbidden(pid: int) -> int:
        raise PermissionError(1, "Operation not permitted")

    if request.param == "no pidfd":
        monkeypatch.delattr(os, "pidfd_open")
    elif request.param == "pidfd forbidden":
        monkeypatch.setattr(os, "pidfd_open", forbidden)
    return str(request.param)


def test_a_pid_that_is_another_process_now_is_not_watched(way: str) -> None:
    child = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE)
    start = process_start(child.pid)
    assert start is not None
    assert watch(child.pid, start - 1) is None, "began earlier: it is dead, and this is another"
    watched = watch(child.pid, start)
    assert isinstance(watched, PidfdWatch if way == "pidfd" else PsutilWatch)
    watched.close()
    child.communicate()


def test_a_process_that_is_gone_is_not_watched(way: str) -> None:
    child = subprocess.Popen(["/bin/true"])
    start = process_start(child.pid)
    child.wait()
    assert watch(child.pid, start) is None
    assert watch(child.pid, None) is None


# -- the whole way, on a system without pidfds -------------------------------------------------

WITHOUT = """
import os
del os.pidfd_open
from hermes_supervise.supervisor.__main__ import main
main()
"""


class Bare(World):
    """A world whose supervisor has no pidfds."""

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-c", WITHOUT]


def test_without_pidfds_a_killed_child_is_recovered(world: World) -> None:
    world.__class__ = Bare
    agent = world.supervise(
        """
with session("chat") as chat:
    chat.message("user", "hello")
    chat.delta("Hel")
    ready()
    forever()
""",
        *world.hook,
    )
    agent.wait_for("ready")
    agent.kill_agent()
    assert agent.finish() == -signal.SIGKILL
    assert [row["content"] for row in world.messages("chat")] == ["hello", "Hel"]
    [event] = world.events()
    assert event["extra"]["reason"] == "killed by SIGKILL"


def test_without_pidfds_a_killed_grandchild_is_recovered_while_its_parent_lives(
    world: World,
) -> None:
    world.__class__ = Bare
    agent = world.supervise(
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
        *world.hook,
        stdin=subprocess.PIPE,
    )
    agent.wait_for("ready")
    [grandchild] = until(lambda: children(agent.agent), "the grandchild")
    kill(grandchild)
    [event] = until(world.events, "the hook runs while the child lives on")
    assert alive(agent.agent)
    assert event["extra"]["reason"] == "killed by SIGKILL", "read off the zombie"
    agent.process.communicate(b"go on\n", timeout=30)
    assert agent.process.returncode == 0
    assert [row["content"] for row in world.messages("chat")] == ["hello", "Hel"]
