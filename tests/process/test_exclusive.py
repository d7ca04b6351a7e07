"""One owner a session: the second is refused by name of the first, whose death frees it."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

import pytest
from support import Supervised, World, kill, until, wait_dead

EXCLUSIVE = "--exclusive"
OPENS = """
name = sys.argv[sys.argv.index("--resume") + 1] if "--resume" in sys.argv else sys.argv[1]
chat = session(name, source="cli")
ready("open")
sys.stdin.readline()
chat.message("user", "I ask")
ready("asked")
forever()
"""


@pytest.fixture
def claude(world: World) -> str:
    """An agent by the name of one that is known to take `--resume ID`."""
    return agent_named("claude", world, OPENS)


def agent_named(name: str, world: World, source: str) -> str:
    path = Path(world.script(source, name))
    path.write_text(f"#!{sys.executable}\n{path.read_text()}")
    path.chmod(0o755)
    return str(path)


def refused(world: World, *command: str) -> str:
    answer = world.call(EXCLUSIVE, "--", *command)
    assert (answer.returncode, answer.stdout) == (125, ""), answer
    return answer.stderr


def end(agent: Supervised) -> None:
    agent.kill_agent()
    assert agent.finish() == -signal.SIGKILL


def test_a_second_agent_on_the_session_is_refused_and_the_first_is_named(
    world: World, claude: str
) -> None:
    first = world.run([claude, "--resume", "chat"])  # it need not have asked for that
    first.wait_for("open")
    [run] = world.runs()
    said = refused(world, claude, "--resume", "chat")
    assert re.fullmatch(
        rf"hermes-supervise: {re.escape(claude)}: session chat is open in run {run.name} "
        rf"\(process {first.agent}, since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\); "
        r".*--exclusive.*\n",
        said,
    ), said
    assert world.runs() == [run], "and leaves nothing behind"
    other = world.run([claude, "--resume", "another"], EXCLUSIVE)
    other.wait_for("open")
    end(other)
    plain = world.run([claude, "--resume", "chat"])
    plain.wait_for("open")  # who did not ask for it is not kept from anything
    end(plain)
    end(first)


@pytest.mark.parametrize("victim", ["agent", "agent, with all that watched it"])
def test_it_is_free_as_soon_as_its_owner_is_dead(world: World, claude: str, victim: str) -> None:
    first = world.run([claude, "--resume", "chat"], EXCLUSIVE)
    first.wait_for("open")
    if victim == "agent":
        end(first)
    else:
        first.abandon()
    second = world.run([claude, "--resume", "chat"], EXCLUSIVE)
    second.wait_for("open")
    end(second)


def test_it_is_held_as_long_as_its_agent_lives_whoever_supervises_that(
    world: World, claude: str
) -> None:
    first = world.run([claude, "--resume", "chat"], EXCLUSIVE)
    first.wait_for("open")
    pid = first.agent
    kill(first.pid)
    [successor] = until(world.successors, "the successor")
    assert f"(process {pid}, " in refused(world, claude, "--resume", "chat")
    kill(pid)
    wait_dead(successor)
    second = world.run([claude, "--resume", "chat"], EXCLUSIVE)
    second.wait_for("open")
    end(second)


def test_an_agent_that_has_not_opened_one_yet_holds_what_it_was_started_on(world: World) -> None:
    source = """
from hermes_supervise.agent_shim.link import Link
where = [os.environ[f"HERMES_SUPERVISE_{name}"] for name in ("SOCKET", "SPOOL")]
link = Link(*where, {})
link.send(b'{"kind":"of no session","session":null}')
ready("silent")
forever()
"""
    silent = agent_named("claude", world, source)
    first = world.run([silent, "--resume", "chat"], EXCLUSIVE)
    first.wait_for("silent")
    assert f"(process {first.agent}, " in refused(world, silent, "--resume", "chat")
    db = str(world.folder / "other.db")
    second = world.run([silent, "--resume", "chat"], EXCLUSIVE, "--db", db)
    second.wait_for("silent")  # the same name in another file
    end(second)
    end(first)


def test_of_many_starts_at_once_one_is_admitted(world: World, claude: str) -> None:
    all_of_them = [world.run([claude, "--resume", "chat"], EXCLUSIVE) for _ in range(4)]
    ended = until(
        lambda: [agent for agent in all_of_them if agent.process.poll() is not None][2:],
        "all but one",
    )
    assert ended
    [admitted] = [agent for agent in all_of_them if agent.process.poll() is None]
    admitted.wait_for("open")
    end(admitted)
    codes = [agent.finish() for agent in all_of_them if agent is not admitted]
    assert codes == [125, 125, 125]


def test_a_session_that_has_ended_in_the_other_run_is_free(world: World) -> None:
    moves_on = agent_named(
        "claude", world, 'with session("chat"):\n    pass\nsession("next")\nready()\nforever()\n'
    )
    first = world.run([moves_on, "--resume", "chat"], EXCLUSIVE)
    first.wait_for("ready")
    second = world.run([moves_on, "--resume", "chat"], EXCLUSIVE)
    second.wait_for("ready")
    end(second)
    end(first)


def test_the_same_name_in_another_file_is_another_session(world: World, claude: str) -> None:
    first = world.run([claude, "--resume", "chat"], EXCLUSIVE)
    first.wait_for("open")
    db = str(world.folder / "other.db")
    second = world.run([claude, "--resume", "chat"], EXCLUSIVE, "--db", db)
    second.wait_for("open")
    end(second)
    end(first)


def test_opened_later_by_the_agent_itself_it_is_said_once_and_nobody_is_killed(
    world: World,
) -> None:
    path = world.script(OPENS)
    first = world.run([sys.executable, path, "chat"])
    first.wait_for("open")
    second = world.shell(
        f"exec {' '.join(world.command)} {EXCLUSIVE} -- {sys.executable} {path} chat 2>&1"
    )
    said = second.wait_for("hermes-supervise: session chat ")
    assert f"(process {first.agent}, since " in said
    second.send_line()
    second.wait_for("asked")
    second.kill_agent()
    second.finish()
    assert b"is also open" not in second.output, "once"
    end(first)
