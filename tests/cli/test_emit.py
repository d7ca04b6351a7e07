"""A shell script that says what it says with `emit` is an agent like any other."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from pathlib import Path

import pytest
from support import Supervised, World, kill, short, until, wait_dead

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
    [report] = world.reports()
    assert report["outcome"] == "ended by the agent"
    assert short(world.messages(report["session"])) == [
        ("user", "one"),
        ("assistant", "two\nlines"),
    ]
    assert world.session(report["session"])["title"] == "A small talk"  # type: ignore[index]
    assert report["session"] == report["run"], "without a name it is the run's"


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


def test_a_piece_is_printed_once_it_is_recorded(world: World) -> None:
    agent = script(world, f"{EMIT} message --role user hello\n{EMIT} delta --tee -\n")
    for word in WORDS:
        agent.send_line(word)
        agent.wait_for(word)
        assert b"".join(path.read_bytes() for run in world.runs() for path in run.glob("*.log")
                        ).count(word.encode() + b"\\n") == 1  # fmt: skip
    agent.kill_agent()
    agent.process.stdin.close()
    agent.process.stdin = None
    agent.finish()
    asked, reply = world.messages("chat")
    assert (asked["content"], reply["content"].split()) == ("hello", WORDS)


@pytest.mark.parametrize("where", ["not supervised", "switched off", "the run is over"])
def test_what_cannot_be_recorded_is_printed_all_the_same(world: World, where: str) -> None:
    if where == "switched off":
        world.env["HERMES_SUPERVISE"] = "0"
    if where == "the run is over":
        gone = {"SOCKET": "/nowhere.sock", "SPOOL": str(world.folder / "gone"), "RUN": "gone"}
        world.env |= {f"HERMES_SUPERVISE_{name}": value for name, value in gone.items()}
    text = "".join(f"{word}\n" for word in WORDS) * 5_000
    done = subprocess.run(
        [*world.command, "emit", "delta", "--tee", "-"], env=world.env, cwd=world.folder,
        input=text, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == text
    assert done.returncode == (125 if where == "the run is over" else 0)


def test_a_reply_is_printed_to_its_end_although_the_supervisor_is_killed(world: World) -> None:
    lines = f"{EMIT} delta --tee -\necho ended $?\n"
    agent = script(world, lines, "--no-adopt")
    agent.send_line("before")
    agent.wait_for("before")
    kill(agent.pid)
    for word in ("after", "that"):
        agent.send_line(word)
        agent.wait_for(word)
    agent.process.stdin.close()
    assert agent.wait_for("ended") == "ended 125"
    agent.process.stdin = None
    agent.finish()
    assert world.call("recover").returncode == 0
    assert short(world.messages("chat")) == [("assistant", "before\n")]


def test_a_pipe_that_nobody_reads_ends_it_as_it_ends_tee(world: World) -> None:
    line = f"yes | {shlex.join([*world.command, 'emit', 'delta', '--tee', '-'])} | head -1; "
    done = subprocess.run(
        ["bash", "-c", line + 'echo "${PIPESTATUS[1]}"'], env=world.env, cwd=world.folder,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.split() == ["y", str(128 + signal.SIGPIPE)]


def test_what_outlives_its_parent_still_speaks_for_the_script(world: World) -> None:
    """`model | tee >(emit delta -)`: the tee of a quick model has ended before emit has begun."""
    slow = world.folder / "slow"
    slow.write_text(
        f"#!/bin/sh\ncat > {world.folder}/held\n"
        f"until test -e {world.folder}/go; do sleep 0.01; done\n"
        f'< {world.folder}/held {shlex.join(world.command)} "$@"\ntouch {world.folder}/said\n'
    )
    slow.chmod(0o755)
    agent = world.run(
        ["bash", "-c", f"""
{shlex.join(world.command)} emit --session chat message --role user hello
echo all of it | tee >({slow} emit --session chat delta -)
touch {world.folder}/go
until test -e {world.folder}/said; do sleep 0.01; done
kill -9 $$
"""]
    )  # fmt: skip
    agent.finish()
    until(lambda: world.runs() == [], "the run is recovered")
    assert short(world.messages("chat")) == [("user", "hello"), ("assistant", "all of it\n")]
    [report] = world.reports()
    assert report["reason"]["signal"] == signal.SIGKILL


def test_two_scripts_whose_launcher_has_ended_do_not_speak_for_each_other(world: World) -> None:
    """The run is then for the older one, and the younger one is no part of that."""
    emit = f"{shlex.join(world.command)} emit --session $1 message --role"
    said = world.folder / "script.sh"
    said.write_text(
        f"""set -e
until test -e {world.folder}/start; do sleep 0.01; done
{emit} user hello
until test -e {world.folder}/$1; do sleep 0.01; done
{emit} assistant bye
touch {world.folder}/$1.said
until test -e {world.folder}/end; do sleep 0.01; done
"""
    )
    agent = world.run(["sh", "-c", f"sh {said} older & sh {said} younger & echo launcher $$"])
    wait_dead(int(agent.wait_for("launcher").split()[1]))
    (world.folder / "start").touch()
    for name in ("older", "younger"):
        (world.folder / name).touch()
        until((world.folder / f"{name}.said").exists, f"what the {name} one said is recorded")
    (world.folder / "end").touch()
    assert (agent.finish(), agent.errors) == (0, b"")
    for name in ("older", "younger"):
        assert short(world.messages(name)) == [("user", "hello"), ("assistant", "bye")]


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
    assert f"process {os.getpid()}".encode() in agent.errors, "it says whose part it is not"
    assert not world.db.exists()
    assert Path(f"/proc/{os.getpid()}").exists()
