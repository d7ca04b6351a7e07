"""Where nothing is captured, one line says so: before the start, after a kill, and in `doctor`."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest
from hermes_supervise.supervisor.agents import registry
from hermes_supervise.supervisor.agents.unknown import title_of
from support import World


def program(world: World, name: str, script: str = "exit 0") -> str:
    path = world.folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def said(errors: bytes) -> list[str]:
    return [line for line in errors.decode().splitlines() if line.startswith("hermes-supervise:")]


def test_an_agent_that_cannot_be_read_is_named_before_it_starts_and_by_doctor(
    world: World,
) -> None:
    goose = program(world, "goose", "echo started >&2")
    run = world.run([goose, "session"])
    assert run.finish() == 0
    lines = run.errors.decode().splitlines()
    assert lines[-1] == "started" and "Goose" in lines[0]
    assert len(said(run.errors)) == 1
    doctor = world.call("doctor", "--json", "--", goose)
    bad = [check for check in json.loads(doctor.stdout)["checks"] if check["state"] == "bad"]
    assert doctor.returncode == 1 and "Goose" in bad[-1]["text"]


def test_an_agent_in_node_that_cannot_be_read_is_said_to_be_captured_in_part(world: World) -> None:
    auggie = Path(program(world, "auggie"))
    auggie.write_text("#!/usr/bin/env node\n")
    for command, state in (([str(auggie)], "note"), ([program(world, "agy")], "bad")):
        run = world.run(command)
        run.finish()
        assert len(said(run.errors)) == 1
        doctor = world.call("doctor", "--json", "--", *command)
        checks = [one for one in json.loads(doctor.stdout)["checks"] if one["name"] == "agent"]
        assert checks[-1]["state"] == state


def test_nothing_is_said_of_it_if_its_transcript_is_named(world: World) -> None:
    run = world.run([program(world, "goose"), "session"], "--watch", str(world.folder / "x.jsonl"))
    assert (run.finish(), said(run.errors)) == (0, [])


@pytest.mark.parametrize(
    ("line", "title"),
    [
        ("goose", "Goose"),
        ("goose run -t hello", "Goose"),
        ("goose up", None),  # another program of that name
        ("npx @charmland/crush", "Crush"),
        ("crush logs", None),
        ("make cline", None),
        ("vim droid.txt", None),
        ("claude", None),
    ],
)
def test_only_what_is_recognisably_an_agent_is_named(line: str, title: str | None) -> None:
    assert title_of(line.split()) == title


def test_another_program_that_is_called_copilot_is_no_agent() -> None:
    for line, name in (
        ("npx @github/copilot", "copilot"),
        ("copilot -p hello", "copilot"),
        ("copilot svc deploy", ""),
        ("copilot init", ""),
    ):
        assert registry.recognised(line.split()).name == name


def test_pieces_that_claude_prints_without_a_hook_are_named(world: World) -> None:
    run = world.run([program(world, "claude"), "-p", "--include-partial-messages", "hello"])
    assert run.finish() == 0
    [line] = said(run.errors)
    assert "reply in progress" in line
    assert registry.named("claude").shown_unseen(["-p", "hello"]) is None


def test_a_killed_command_that_was_never_captured_gets_one_line(world: World) -> None:
    run = world.run([program(world, "own-agent", "kill -9 $$")])
    assert run.finish() == -signal.SIGKILL
    [line] = said(run.errors)
    assert "hermes-supervise doctor" in line


@pytest.mark.parametrize("script", ["exit 3", "kill -TERM $$", "kill -INT $$", "kill -PIPE $$"])
def test_a_command_that_ends_as_commands_do_gets_none(world: World, script: str) -> None:
    run = world.run([program(world, "make", script)])
    run.finish()
    assert said(run.errors) == []


def test_a_killed_command_that_speaks_to_us_gets_no_such_line(world: World) -> None:
    script = Path(world.folder / "agent.py")
    script.write_text(
        "import os\nfrom hermes_supervise.agent_shim import session\n"
        "with session('s', source='cli') as chat:\n"
        "    chat.message('user', 'hello')\n    os.kill(os.getpid(), 9)\n"
    )
    run = world.run([sys.executable, str(script)])
    assert run.finish() == -signal.SIGKILL
    assert not any("hermes-supervise doctor" in line for line in said(run.errors))
