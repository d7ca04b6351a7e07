"""The cause of death is reported as far as it can be proved, and no further (G4)."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hermes_supervise.supervisor.process import cause
from hermes_supervise.supervisor.process.cause import Cause
from hermes_supervise.supervisor.process.signals import signal_name
from support import World, kill, little_memory


def status_of(*command: str) -> int:
    """The wait status of a real process."""
    return os.waitpid(os.posix_spawn(command[0], command, os.environ), 0)[1]


@pytest.mark.parametrize(
    ("how", "closed", "text"),
    [
        ("exit 0", False, "exited with code 0"),
        ("exit 3", False, "exited with code 3"),
        ("exit 0", True, "exited with code 0 after the terminal was closed"),
        ("kill -TERM $$", False, "killed by SIGTERM"),
        ("kill -SEGV $$", False, "killed by SIGSEGV"),
        ("kill -KILL $$", False, "killed by SIGKILL"),
        ("kill -HUP $$", False, "killed by SIGHUP"),
        ("kill -HUP $$", True, "killed by SIGHUP: the terminal was closed"),
        ("kill -KILL $$", True, "killed by SIGKILL after the terminal was closed"),
        ("kill -34 $$", False, "killed by SIGRTMIN"),
        ("kill -40 $$", False, "killed by signal 40"),
    ],
)
def test_a_status_has_a_text(how: str, closed: bool, text: str) -> None:
    status = status_of("/bin/bash", "-c", how)
    found = cause.of_status(status, oom_before=cause.oom_kills(), terminal_closed=closed)
    assert str(found) == text
    assert (found.signal is None) != (found.code is None)
    assert not found.oom


def test_what_is_not_known_is_said_to_be_unknown() -> None:
    found = cause.of_status(None, oom_before=0, terminal_closed=False)
    assert (found.signal, found.code, found.oom) == (None, None, False)
    assert (found.kind, str(found)) == ("unknown", str(Cause()))


@pytest.mark.parametrize(
    "how",
    [
        Cause(signal=9, at=12.5, oom=True),
        Cause(code=0, at=1.0, terminal_closed=True),
        Cause(signal=1, at=3.0, terminal_closed=True),
        Cause(at=2.0),
    ],
)
def test_a_cause_survives_being_written_down(how: Cause) -> None:
    again = cause.from_record(how.as_record())
    assert again.as_record() == how.as_record()
    assert str(again) == str(how)


def test_a_record_that_makes_no_sense_is_an_unknown_cause() -> None:
    found = cause.from_record({"kind": "death", "signal": "nine", "code": None, "oom": "yes"})
    assert (found.kind, str(found)) == ("unknown", str(Cause()))
    assert not found.oom


# -- out of memory -----------------------------------------------------------------------------


@pytest.fixture
def small() -> Iterator[Path]:
    with little_memory(96) as group:
        yield group


HOG = "data = []\nwhile True: data.append(bytearray(b'x' * (1 << 20)))\n"


def test_an_agent_killed_for_want_of_memory_is_said_to_be_that(world: World, small: Path) -> None:
    agent = world.supervise(
        f"""
with session("chat") as chat:
    chat.message("user", "hello")
    chat.delta("Hel")
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
{indented(HOG)}
""",
        *world.hook,
        preexec_fn=lambda: (small / "cgroup.procs").write_text(str(os.getpid())),
    )
    assert agent.finish(60) == -signal.SIGKILL
    [event] = world.events()
    assert event["extra"]["reason"] == "killed by SIGKILL: out of memory"
    assert event["extra"]["out_of_memory"] is True
    assert b"out of memory" in agent.errors
    assert [row["content"] for row in world.messages("chat")] == ["hello", "Hel"]


def test_sigkill_is_not_called_out_of_memory_because_a_tool_was_before(
    world: World, small: Path
) -> None:
    """The kernel counts by group, and the agent's tools are in it."""
    agent = world.supervise(
        f"""
import subprocess
with open("/proc/self/oom_score_adj", "w") as file:
    file.write("0")
hog = "open('/proc/self/oom_score_adj', 'w').write('1000')\\n" + {HOG!r}
with session("chat") as chat:
    with chat.tool("hog", call="c1") as tool:
        tool.result = str(subprocess.run([sys.executable, "-c", hog]).returncode)
    ready("tool " + tool.result)
    # It goes on talking, so it was not the one that was killed.
    for _ in range(30):
        chat.delta("more ")
        time.sleep(0.1)
    ready("goes on")
    forever()
""",
        *world.hook,
        preexec_fn=lambda: (small / "cgroup.procs").write_text(str(os.getpid())),
    )
    assert agent.wait_for("tool") == f"tool {-signal.SIGKILL}"
    agent.wait_for("goes on")
    kill(agent.agent)
    assert agent.finish() == -signal.SIGKILL
    [event] = world.events()
    assert event["extra"]["reason"] == "killed by SIGKILL"
    assert event["extra"]["out_of_memory"] is False


def indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


def test_how_a_process_ended_that_nobody_waits_for_is_known(world: World) -> None:
    agent = world.supervise(
        """
for number in range(30):
    if os.fork() == 0:
        if os.fork() == 0:
            session(f"chat-{number}").message("user", "quick")
            os._exit(3)
        os._exit(0)
    os.wait()
"""
    )
    assert agent.finish() == 0
    causes = {report["session"]: report["cause"] for report in world.reports()}
    assert len(causes) == 30
    assert set(causes.values()) == {"exited with code 3"}


def test_every_signal_has_the_name_that_python_gives_it() -> None:
    known = {member.value: member.name for member in signal.Signals}
    for number in range(-1, 200):
        assert signal_name(number) == known.get(number, f"signal {number}")
