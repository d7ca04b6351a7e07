"""A shell script that says what it says with `emit` is an agent like any other."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from pathlib import Path

import pytest
from support import Supervised, World, kill, short, until

EMIT = "hs emit --session chat"


def script(world: World, lines: str, *options: str) -> Supervised:
    """A supervised `sh` that knows `hs`, which is us."""
    path = world.folder / "script.sh"
    path.write_text(f'hs() {{ {shlex.join(world.command)} "$@"; }}\n{lines}')
    return world.run(["sh", str(path)], *options, stdin=subprocess.PIPE)


def test_what_a_script_said_is_there_when_it_is_killed(world: World) -> None:
    agent = script(
        world,
        f"""
{EMIT} session --source cli --model tiny
{EMIT} message --role user "what is the time?"
echo 'it is half' | ( {EMIT} delta - )
{EMIT} delta ' past'
echo ready
read forever
""",
        *world.hook,
    )
    agent.wait_for("ready")
    assert not world.db.exists(), "no call of emit was taken for the agent's death"
    agent.kill_agent()
    assert agent.finish() == -signal.SIGKILL
    assert short(world.messages("chat")) == [
        ("user", "what is the time?"),
        ("assistant", "it is half\n past"),
    ]
    row = world.session("chat")
    assert row is not None
    assert (row["end_reason"], row["source"], row["model"]) == ("interrupted", "cli", "tiny")
    [event] = world.events()
    assert event["extra"]["reason"] == "killed by SIGKILL"
    assert world.runs() == []


def test_a_script_that_ends_in_order_is_completed(world: World) -> None:
    agent = script(
        world,
        """
hs emit message --role user "one"
printf 'two\\nlines' | hs emit message --role assistant -
hs emit title "A small talk"
hs emit end
exit 7
""",
    )
    assert agent.finish() == 7
    [one] = world.reports()
    assert one["outcome"] == "ended by the agent"
    assert short(world.messages(one["session"])) == [("user", "one"), ("assistant", "two\nlines")]
    assert world.session(one["session"])["title"] == "A small talk"  # type: ignore[index]
    assert one["session"] == one["run"], "without a name it is the run's"


def test_calls_at_the_same_time_lose_nothing_to_each_other(world: World) -> None:
    agent = script(
        world,
        f"""
for n in 1 2 3 4; do
    {EMIT} message --role user "said $n" &
done
wait
echo ready
read forever
""",
    )
    agent.wait_for("ready")
    agent.kill_agent()
    agent.finish()
    said = sorted(str(content) for _, content in short(world.messages("chat")))
    assert said == [f"said {n}" for n in range(1, 5)]


def test_a_piece_is_stored_before_the_next_one_comes(world: World) -> None:
    agent = script(
        world, f"{EMIT} message --role user hello\necho ready\n{EMIT} delta -\nread forever\n"
    )
    agent.wait_for("ready")
    assert agent.process.stdin is not None
    said = "halb fertig, ü".encode()
    agent.process.stdin.write(said[:-1])  # within a character
    agent.process.stdin.flush()
    [run] = world.runs()

    def journal() -> bytes:
        return b"".join(path.read_bytes() for path in run.glob("*.log"))

    until(lambda: b"halb fertig" in journal(), "the piece is in the journal")
    agent.process.stdin.write(said[-1:])
    agent.process.stdin.flush()
    until(lambda: rb"\u00fc" in journal(), "the rest of the character, too")
    kill(agent.agent)
    agent.process.stdin.close()
    agent.process.stdin = None
    agent.finish()
    assert short(world.messages("chat"))[-1][1] == "halb fertig, ü"


def test_the_successor_of_a_killed_supervisor_hears_the_rest(world: World) -> None:
    agent = script(
        world,
        f"""
{EMIT} message --role user before
echo ready
read go
{EMIT} message --role user after
echo said
read forever
""",
    )
    agent.wait_for("ready")
    pid = agent.agent
    kill(agent.pid)
    until(world.successors, "a successor")
    agent.send_line("go")
    agent.wait_for("said")
    kill(pid)
    until(lambda: world.runs() == [], "the run is settled")
    assert short(world.messages("chat")) == [("user", "before"), ("user", "after")]


# -- where it does not work --------------------------------------------------------------------


def test_outside_of_a_supervised_run_it_does_nothing(world: World) -> None:
    answer = world.call("emit", "message", "--role", "user", "hello")
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")
    assert world.runs() == []


WORDS = [f"word{number}" for number in range(40)]
PIPELINE = """
for word in {words}; do echo "$word"; sleep 0.01; done | tee >({emit} delta -)
"""


@pytest.mark.parametrize("where", ["not supervised", "switched off", "the run is over"])
def test_the_documented_pipeline_loses_no_output_where_nothing_is_recorded(
    world: World, where: str
) -> None:
    """tee dies when its other reader does, and with it the script's own output."""
    if where == "switched off":
        world.env["HERMES_SUPERVISE"] = "0"
    if where == "the run is over":
        gone = {"SOCKET": "/nowhere.sock", "SPOOL": str(world.folder / "gone"), "RUN": "gone"}
        world.env |= {f"HERMES_SUPERVISE_{name}": value for name, value in gone.items()}
    script = PIPELINE.format(
        words=" ".join(WORDS), emit=shlex.join([*world.command, "emit", "--session", "chat"])
    )
    done = subprocess.run(
        ["bash", "-c", script], env=world.env, cwd=world.folder, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert done.stdout.split() == WORDS
    assert done.returncode == 0


def test_the_documented_pipeline_is_recorded_where_it_is_supervised(world: World) -> None:
    script = PIPELINE.format(
        words=" ".join(WORDS), emit=shlex.join([*world.command, "emit", "--session", "chat"])
    )
    agent = world.run(["bash", "-c", f"{script}; wait; kill -9 $$"])
    agent.finish()
    assert agent.output.decode().split() == WORDS
    until(lambda: world.runs() == [], "the run is recovered")
    [reply] = world.messages("chat")
    assert reply["content"].split() == WORDS


def test_switched_off_it_does_nothing(world: World) -> None:
    world.env["HERMES_SUPERVISE"] = "0"
    answer = world.call("emit", "message", "--role", "user", "hello")
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")


@pytest.mark.parametrize("words", [[], ["message", "hello"], ["message", "--role", "me", "x"]])
def test_a_wrong_command_line_is_reported(world: World, words: list[str]) -> None:
    answer = world.call("emit", *words)
    assert answer.returncode == 2
    assert "usage: hermes-supervise emit" in answer.stderr


def test_nobody_speaks_for_a_process_that_it_is_no_part_of(world: World) -> None:
    agent = world.supervise(
        f"""
from hermes_supervise.supervisor.ingest.blocking_client import BlockingClient, NotDelivered
for other in ({os.getpid()}, 1, -1, "x"):
    client = BlockingClient(os.environ["HERMES_SUPERVISE_SOCKET"], about={{"for": other}})
    try:
        client.send({{"kind": "session", "session": "stolen"}})
        ready("heard")
    except NotDelivered:
        ready("refused")
"""
    )
    for _ in range(4):
        agent.wait_for("refused")
    assert agent.finish() == 0
    assert b"is no part of process" in agent.errors
    assert not world.db.exists()
    assert Path(f"/proc/{os.getpid()}").exists()
