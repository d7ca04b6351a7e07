"""Where /proc is missing, or of another pid namespace, nobody is declared dead for that, and no
stranger is taken for a process of the agent's (G4, G5)."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import (
    Supervised,
    World,
    alive,
    children,
    kill,
    short,
    standby_of,
    until,
    wait_dead,
)

HIDE = "mount -t tmpfs none /proc"
SHOW = "umount /proc"
# Both run a shell command line. In the second, pids are counted anew, and /proc has other
# processes by the same numbers.
HIDDEN = ["unshare", "-m", "sh", "-c"]
OUTER = ["unshare", "--pid", "--fork", "--kill-child", "sh", "-c"]

TALKER = """
ready("begun")
chat = session("chat") if "silent" not in sys.argv else None
if chat:
    chat.message("user", "talk")
    ready("asked")
for number, line in enumerate(sys.stdin):
    chat = chat or session("chat")
    chat.delta(f"w{number} ")
    ready(f"said {number}")
"""


def inside(place: list[str], line: str) -> str:
    """The command line that runs a shell line where /proc is of no use."""
    if subprocess.run(
        [*place, HIDE if place is HIDDEN else "true"], capture_output=True
    ).returncode:
        pytest.skip(f"{place[0]} is not permitted here")
    return shlex.join([*place, f"{HIDE}; {line}" if place is HIDDEN else line])


def start(world: World, place: list[str], *words: str, after: str = "exit $?") -> Supervised:
    """An agent under a supervisor that has no /proc of its own. `after`: a shell above both does
    that when the supervisor has ended."""
    agent = [sys.executable, world.script(TALKER), *words]
    run = world.shell(
        "exec " + inside(place, f"{shlex.join([*world.command, '--', *agent])}; {after}")
    )
    run.wait_for("begun")
    return run


def say(run: Supervised, number: int) -> None:
    assert run.process.stdin is not None
    run.process.stdin.write(b"\n")
    run.process.stdin.flush()
    run.wait_for(f"said {number}")


def pids(world: World, *words: str) -> list[int]:
    """The processes of this world whose command line begins with these words, as we see them."""
    found = []
    for pid in world.inhabitants():
        try:
            line = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        except OSError:
            continue
        if line[1 : 1 + len(words)] == list(words) and alive(pid):
            found.append(pid)
    return sorted(found)


def agent_of(world: World) -> int:
    [pid] = until(lambda: pids(world, str(world.folder / "agent.py")), "the agent")
    return int(pid)


def supervisors(world: World) -> list[int]:
    """The supervisor and its standby, once both are there."""

    def both() -> list[int]:
        found = pids(world, "-m", "hermes_supervise.supervisor", "--")
        return sorted(found, key=lambda pid: not children(pid)) if len(found) == 2 else []

    found = until(both, "supervisor and standby")
    return [found[0], standby_of(found[0])]


def journaled(world: World, words: bytes) -> None:
    until(lambda: words in world.said(), f"{words!r} is journaled")


@pytest.mark.parametrize("place", [HIDDEN, OUTER])
def test_an_agent_that_talks_is_alive_and_no_stranger_is_its_orphan(
    world: World, place: list[str]
) -> None:
    run = start(world, place)
    for number in range(3):
        say(run, number)
    journaled(world, b"w2")
    kill(agent_of(world))
    assert run.finish() == 128 + signal.SIGKILL
    assert short(world.messages("chat")) == [("user", "talk"), ("assistant", "w0 w1 w2 ")]
    [report] = world.reports()
    assert report["outcome"] == "interrupted"
    assert report["orphans"] == []
    assert b"left running" not in run.errors
    assert b"cannot list the processes left behind" in run.errors
    assert world.runs() == []


def test_a_supervisor_as_process_1_names_no_stranger(world: World) -> None:
    run = world.shell(
        "exec " + inside(OUTER, shlex.join(
            ["exec", *world.command, "--", sys.executable, world.script(TALKER)]))
    )  # fmt: skip
    run.wait_for("asked")
    journaled(world, b"talk")
    kill(agent_of(world))
    assert run.finish() == 128 + signal.SIGKILL
    assert b"left running" not in run.errors
    assert [report["orphans"] for report in world.reports()] == [[]]


@pytest.mark.parametrize("shown", ["unshare -m sh -c", "unshare --pid --fork sh -c"])
def test_an_agent_that_has_another_proc_than_its_supervisor_is_alive(
    world: World, shown: str
) -> None:
    """What it says about itself cannot be compared with what the supervisor sees."""
    python = shlex.join([sys.executable, world.script(TALKER)])
    if "-m" in shown.split():
        agent = f"{shown} {shlex.quote(f'{SHOW}; exec {python}')}"
        line = inside(HIDDEN, f"exec {shlex.join(world.command)} -- {agent}")
    else:
        inside(OUTER, "true")
        line = f"{shlex.join(world.command)} -- {shown} {shlex.quote(f'exec {python}')}"
    run = world.shell(f"exec {line}")
    for number in range(3):
        say(run, number)
    journaled(world, b"w2")
    assert world.reports() == []
    kill(agent_of(world))
    run.finish()
    assert short(world.messages("chat")) == [("user", "talk"), ("assistant", "w0 w1 w2 ")]
    assert [report["outcome"] for report in world.reports()] == ["interrupted"]


@pytest.mark.parametrize("words", [(), ("silent",)])
@pytest.mark.parametrize("place", [HIDDEN, OUTER])
def test_a_successor_finds_the_agent_alive(
    world: World, place: list[str], words: tuple[str, ...]
) -> None:
    run = start(world, place, *words, after="exec tail -f /dev/null")
    if not words:
        run.wait_for("asked")
        journaled(world, b"talk")
    kill(supervisors(world)[0])
    [successor] = until(world.successors, "a successor")
    until(lambda: list(Path(world.env["XDG_RUNTIME_DIR"]).glob("*/*.sock")), "its socket")
    say(run, 0)
    say(run, 1)
    journaled(world, b"w1")
    agent = agent_of(world)
    kill(agent)
    wait_dead(successor)
    assert short(world.messages("chat"))[-1] == ("assistant", "w0 w1 ")
    assert [report["outcome"] for report in world.reports()] == ["interrupted"]


@pytest.mark.parametrize("place", [HIDDEN, OUTER])
def test_a_later_recovery_does_not_end_the_session_of_a_living_agent(
    world: World, place: list[str]
) -> None:
    recover = shlex.join([*world.command, "recover"])
    after = f"{recover} >recovered; {shlex.join([*world.command, 'ps', '--json'])} >seen"
    run = start(world, place, after=f"{after}; echo looked; exec tail -f /dev/null")
    run.wait_for("asked")
    journaled(world, b"talk")
    for pid in reversed(supervisors(world)):
        kill(pid)
    run.wait_for("looked")
    [seen] = json.loads(Path(world.folder / "seen").read_bytes())["runs"]
    assert seen["supervisor"]["state"] == "lost"
    assert [session["session"] for session in seen["sessions"]] == ["chat"]
    say(run, 0)
    journaled(world, b"w0")
    assert not world.db.exists()
    kill(agent_of(world))
    # We do have a /proc.
    assert world.call("recover").returncode == 0
    assert short(world.messages("chat")) == [("user", "talk"), ("assistant", "w0 ")]
    assert world.runs() == []


@pytest.mark.parametrize("place", [HIDDEN, OUTER])
def test_what_an_agent_says_behind_a_launcher_that_has_exited_is_kept(
    world: World, place: list[str]
) -> None:
    """Without /proc it is not known to be there. The next start leaves its folder alone."""
    agent = shlex.join([sys.executable, world.script(TALKER), "silent"])
    launcher = shlex.join([*world.command, "--", "sh", "-c", f"exec 3<&0; {agent} <&3 &"])
    other = shlex.join([*world.command, "--", "true"])
    run = world.shell(
        "exec " + inside(place, f"{launcher}; {other}; echo over; exec tail -f /dev/null")
    )
    run.wait_for("over")
    say(run, 0)
    agent_pid = agent_of(world)
    assert run.process.stdin is not None
    run.process.stdin.close()
    wait_dead(agent_pid)
    assert world.call("recover").returncode == 0
    assert short(world.messages("chat"))[-1] == ("assistant", "w0 ")
    assert world.runs() == []


@pytest.mark.parametrize("place", [HIDDEN, OUTER])
def test_a_script_is_recorded_by_emit(world: World, place: list[str]) -> None:
    """It cannot be seen whose call it is, so that each speaks for itself."""
    emit = shlex.join([*world.command, "emit", "--session", "chat"])
    lines = f"{emit} message --role user hello && echo an answer | {emit} delta --tee -"
    supervised = shlex.join([*world.command, "--", "sh", "-c", lines])
    run = world.shell("exec " + inside(place, f"{supervised}; exit $?"))
    run.wait_for("an answer")
    assert run.finish() == 0, run.errors
    assert short(world.messages("chat")) == [("user", "hello"), ("assistant", "an answer\n")]


def test_doctor_says_what_is_missing(world: World) -> None:
    done = subprocess.run(
        ["sh", "-c", "exec " + inside(HIDDEN, shlex.join([*world.command, "doctor", "--json"]))],
        env=world.env, cwd=world.folder, capture_output=True, text=True,
    )  # fmt: skip
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["processes"]["state"] == "note"
    assert "/proc" in checks["processes"]["text"]
    here = json.loads(world.call("doctor", "--json").stdout)
    assert [c["state"] for c in here["checks"] if c["name"] == "processes"] == ["ok"]
