"""Our own client: what it says is stored once, whatever happens to its line."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from hermes_supervise.supervisor.speaker import Speaker, Unheard
from support import World, kill, short, until

# Tells where its supervisor listens, and speaks no word itself.
QUIET = 'ready("at " + os.environ["HERMES_SUPERVISE_SOCKET"])\nforever()\n'

SPEAKER = """
import sys
from hermes_supervise.supervisor.speaker import Speaker
speaker = Speaker(sys.argv[1])
speaker.say({"kind": "session", "session": "said", "source": "test"})
for number in range(3):
    message = {"role": "user", "content": f"word {number}"}
    speaker.say({"kind": "message", "session": "said", "message": message})
    print("said", number, flush=True)
    sys.stdin.readline()
"""


def test_what_was_said_is_in_the_database_when_the_speaker_is_gone(world: World) -> None:
    agent = world.supervise(QUIET)
    address = agent.wait_for("at").split()[1]
    done = subprocess.run(
        [*world.command[:1], "-c", SPEAKER, address], env=world.env, input="\n\n\n", text=True,
        capture_output=True, timeout=30,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    agent.kill_agent()
    agent.finish()
    assert short(world.messages("said")) == [("user", f"word {n}") for n in range(3)]


def test_a_line_that_was_cut_is_begun_anew_and_nothing_is_said_twice(world: World) -> None:
    agent = world.supervise(QUIET)
    address = agent.wait_for("at").split()[1]
    [run] = until(world.runs)
    speaker = Speaker(address)
    speaker.say({"kind": "session", "session": "said"})
    message = {"role": "user", "content": "first"}
    speaker.say({"kind": "message", "session": "said", "message": message})
    kill(agent.pid)
    agent.process.wait()
    with pytest.raises(Unheard):
        for _ in range(1000):
            speaker.say({"kind": "message", "session": "said", "message": {"role": "user"}})
    until(world.heirs, "an heir")

    def heard() -> bool:
        try:
            speaker.say()
        except Unheard:
            return False
        return True

    until(heard, "the heir listens")
    frames = b"".join(path.read_bytes() for path in Path(run).glob(f"{speaker.stream}.*"))
    assert frames.count(b'"first"') == 1
    speaker.close()


def test_what_was_said_while_nobody_listened_goes_with_the_next(world: World) -> None:
    agent = world.supervise(QUIET)
    address = agent.wait_for("at").split()[1]
    speaker = Speaker(address)
    os.rename(address, f"{address}.away")
    first, second = ({"role": "user", "content": word} for word in ("first", "second"))
    with pytest.raises(Unheard, match="nobody listens"):
        speaker.say({"kind": "message", "session": "said", "message": first})
    os.rename(f"{address}.away", address)
    speaker.say({"kind": "message", "session": "said", "message": second})
    speaker.close()
    [run] = world.runs()
    told = b"".join(path.read_bytes() for path in run.glob(f"{speaker.stream}.*"))
    assert 0 < told.index(b'"first"') < told.index(b'"second"')


def test_nobody_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(Unheard, match="nobody listens"):
        Speaker(str(tmp_path / "none.sock")).say({"kind": "bye"})


def test_a_supervisor_that_is_stopped_is_not_waited_for_for_ever(world: World) -> None:
    agent = world.supervise(QUIET)
    address = agent.wait_for("at").split()[1]
    speaker = Speaker(address, patience=0.2)
    speaker.say({"kind": "session", "session": "said"})
    os.kill(agent.pid, signal.SIGSTOP)
    try:
        with pytest.raises(Unheard, match="does not answer"):
            speaker.say({"kind": "message", "session": "said", "message": {"role": "user"}})
    finally:
        os.kill(agent.pid, signal.SIGCONT)
        speaker.close()
