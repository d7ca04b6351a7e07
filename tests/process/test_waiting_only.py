"""What fails after the agent has started costs the agent nothing (G1, G5): not its life, not its
signals, not its status, not what it says."""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path

import pytest
from support import Supervised, World, kill, short, until
from window import window

FAILED = "supervision failed"

# From the moment at which the agent is started: imports fail, as if an upgrade had taken our files
# away. `blocked` begins the names of those that do.
_SOURCE = """
import os, sys
if "hermes_supervise.supervisor" in sys.orig_argv:
    blocked = tuple(os.environ["TEST_BLOCKED"].split())
    class Upgrade:
        started = False
        def find_spec(self, name, path=None, target=None):
            if self.started and name.startswith(blocked):
                raise ImportError(f"{name} has been replaced")
    upgrade = Upgrade()
    sys.meta_path.insert(0, upgrade)
    spawn = os.posix_spawnp
    def spawn_and_upgrade(*arguments, **more):
        pid = spawn(*arguments, **more)
        upgrade.started = True
        return pid
    os.posix_spawnp = spawn_and_upgrade
"""

ALL_OF_OURS = "hermes_supervise"
# What a supervisor loads behind the start: at once, with the first connection, at the end.
LATE = ["process.tree", "run.supervision", "run.recoveries", "ingest.connection", "storage.journal"]


def upgraded(world: World, *blocked: str) -> dict[str, str]:
    folder = world.folder / "upgrade"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_SOURCE)
    return {**world.env, "PYTHONPATH": str(folder), "TEST_BLOCKED": " ".join(blocked)}


TALKER = """
signal.signal(signal.SIGTERM, lambda number, frame: (ready("heard TERM"), os._exit(9)))
chat = session("chat")
chat.message("user", "how long?")
chat.delta("a while")
ready("said")
forever()
"""


@pytest.mark.parametrize("module", [*LATE, ""])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_module_that_is_gone_costs_one_line_and_nothing_else(
    world: World, module: str, number: int
) -> None:
    name = f"{ALL_OF_OURS}.supervisor.{module}" if module else ALL_OF_OURS
    agent = world.supervise(TALKER, env=upgraded(world, name))
    agent.wait_for("said")
    if number == signal.SIGTERM:
        kill(agent.pid, number)  # to us alone: it is forwarded
        agent.wait_for("heard TERM")
        assert agent.finish() == 9
    else:
        agent.kill_agent(number)
        assert agent.finish() == -number
    [line] = agent.errors.decode().splitlines()
    assert FAILED in line
    assert "has been replaced" in line
    done = world.call("recover")
    assert done.returncode == 0, done.stderr
    assert short(world.messages("chat")) == [("user", "how long?"), ("assistant", "a while")]


def test_only_what_is_stored_in_between_is_lost_with_checkpoints(world: World) -> None:
    name = f"{ALL_OF_OURS}.supervisor.run.background"
    agent = world.supervise(TALKER, env=upgraded(world, name))
    agent.wait_for("said")
    agent.kill_agent()
    assert agent.finish() == -signal.SIGKILL
    assert FAILED not in agent.errors.decode()
    assert short(world.messages("chat")) == [("user", "how long?"), ("assistant", "a while")]


def test_an_exit_status_is_passed_through_whatever_cannot_be_imported(world: World) -> None:
    agent = world.run(["/bin/sh", "-c", "exit 7"], env=upgraded(world, ALL_OF_OURS))
    assert agent.finish() == 7


@pytest.mark.parametrize("restart", ["never", "on-crash"])
def test_what_is_needed_at_the_end_was_there_at_the_beginning(world: World, restart: str) -> None:
    """Of the standard library, too: a killed agent is followed into death without an import."""
    env = upgraded(world, "hermes_supervise", "resource", "_ctypes", "ctypes", "json", "select")
    agent = world.run(["/bin/sh", "-c", "kill -SEGV $$"], "--restart", restart, env=env)
    assert agent.finish() == -signal.SIGSEGV
    assert "Traceback" not in agent.errors.decode()


def test_a_pipe_still_ends_with_the_agent(world: World) -> None:
    """We hold no end of it, whatever we could not do."""
    env = upgraded(world, ALL_OF_OURS)
    agent = world.run(["/bin/sh", "-c", "exec >&-; exec sleep 300"], env=env)
    assert agent.process.stdout is not None
    assert agent.process.stdout.read() == b""  # returns when the last end is closed
    agent.kill_agent()
    assert agent.finish() == -signal.SIGKILL


def test_ctrl_z_and_fg_work_without_supervision(world: World) -> None:
    source = 'hear("CONT"); tell("ready"); forever()'
    with window(world, source, env=upgraded(world, ALL_OF_OURS)) as shown:
        shown.wait_for(b"ready")
        for _ in range(2):
            shown.type(b"\x1a")
            assert shown.shell_says("stopped") == str(int(signal.SIGTSTP))
            shown.continue_job()
            shown.wait_for(b"heard CONT")
            shown.text = b""
        kill(shown.agent)
        assert shown.shell_says("ended") == str(-signal.SIGKILL)


def test_ctrl_c_is_heard_once_without_supervision(world: World) -> None:
    source = 'hear("INT"); hear("USR1"); tell("ready"); forever()'
    with window(world, source, env=upgraded(world, ALL_OF_OURS)) as shown:
        shown.wait_for(b"ready")
        shown.type(b"\x03")
        shown.wait_for(b"heard INT")
        kill(shown.pid, signal.SIGUSR1)
        shown.wait_for(b"heard USR1")  # forwarded behind a Ctrl-C that was not
        kill(shown.agent)
        assert shown.shell_says("ended") == str(-signal.SIGKILL)
        assert shown.heard.read_text().splitlines().count("heard INT") == 1


# -- descriptors -------------------------------------------------------------------------------


def few_descriptors(world: World, limit: int, script: str) -> Supervised:
    """Of a supervisor; its agent may have as many as it likes."""
    fewer = f"ulimit -S -n {limit}; exec {' '.join(world.command)} -- /bin/sh -c"
    return world.shell(f"{fewer} 'ulimit -S -n 1024; {script}'")


@pytest.mark.parametrize("limit", range(5, 21))
@pytest.mark.parametrize(("script", "status"), [("exit 7", 7), ("kill -KILL $$", -signal.SIGKILL)])
def test_too_few_descriptors_cost_one_line_at_most(
    world: World, limit: int, script: str, status: int
) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard < 1024:
        pytest.skip("the limit cannot be raised again for the agent")
    agent = few_descriptors(world, limit, script)
    assert agent.finish() == status
    assert len(agent.errors.splitlines()) <= 1, agent.errors.decode()
    assert b"Traceback" not in agent.errors


@pytest.mark.parametrize("limit", range(6, 16))
def test_with_too_few_descriptors_what_it_says_is_kept(world: World, limit: int) -> None:
    """By the journal or, if nobody listens any more, by its spool. Where it was said that the agent
    runs without supervision, nothing is promised."""
    script = world.script(TALKER)
    agent = few_descriptors(world, limit, f"exec {sys.executable} {script}")
    agent.wait_for("said")
    agent.kill_agent() if _is_supervised(world) else kill(agent.pid)
    assert agent.finish() == -signal.SIGKILL
    assert world.call("recover").returncode == 0
    if b"without supervision" not in agent.errors:
        assert short(world.messages("chat")) == [("user", "how long?"), ("assistant", "a while")]


def test_a_status_is_kept_where_nothing_more_can_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """`os.wait4` takes the child's status first, and then loads `resource`."""
    from hermes_supervise.supervisor.process.memory import any_child

    monkeypatch.setitem(sys.modules, "resource", None)
    child = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 7"], {})
    until(lambda: Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
    assert any_child(weighed=True) == (child, 7 << 8, None)


def _is_supervised(world: World) -> bool:
    return bool(world.runs())
