"""A process of Hermes dies, and another one has the session open or goes on in it."""

from __future__ import annotations

import json
import signal
from typing import Any

import psutil
import pytest
from hermes_agents import handed_over, program
from hermes_world import Hermes, Model, say
from support import Supervised, World, short, until

VERSIONS = ("0.19.0", "0.13.0")
TALK = "go(lambda: agent('s-1', platform='tui').run_conversation({question!r}))\n"


def asked(hermes: Hermes, question: str, words: str) -> Supervised:
    """A Hermes process that is in the middle of its answer."""
    hermes.model.script = [[*say(words), ("hold", words)]]
    agent = hermes.world.run([hermes.python, program(hermes, TALK.format(question=question))])
    hermes.model.wait_until_held(words)
    handed_over(hermes, words.split()[-1] + " ")
    return agent


def killed(agent: Supervised) -> None:
    agent.kill_agent()
    assert agent.finish() == -signal.SIGKILL


def row(world: World) -> dict[str, Any]:
    found = world.session("s-1")
    assert found is not None
    return dict(found)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("living", [True, False], ids=["its host lives", "nobody has it"])
def test_a_session_that_a_living_process_has_open_is_not_ended(
    world: World, model: Model, version: str, living: bool
) -> None:
    hermes = Hermes(version, world, model)
    here = psutil.Process()
    entry = {"lease_id": "1", "session_id": "s-1", "surface": "tui", "pid": here.pid,
             "process_start_time": here.create_time() - (0 if living else 1000)}  # fmt: skip
    ledger = world.home / "runtime" / "active_sessions.json"
    ledger.parent.mkdir()
    ledger.write_text(json.dumps({"entries": [entry]}))
    killed(asked(hermes, "hello there", "some words"))
    assert short(world.messages("s-1")) == [("user", "hello there"), ("assistant", "some words ")]
    assert row(world)["end_reason"] == (None if living else "interrupted")


@pytest.mark.parametrize("version", VERSIONS)
def test_our_end_is_taken_back_when_another_process_goes_on_in_the_session(
    world: World, model: Model, version: str
) -> None:
    hermes = Hermes(version, world, model)
    killed(asked(hermes, "hello there", "some words"))
    assert row(world)["end_reason"] == "interrupted"
    world.env["HERMES_SUPERVISE_CHECKPOINT"] = "0.2"
    agent = asked(hermes, "and now", "other words")
    until(lambda: row(world)["ended_at"] is None, "the end is taken back while it lives")
    killed(agent)
    said = short(world.messages("s-1"))
    assert said == [
        ("user", "hello there"), ("assistant", "some words "),
        ("user", "and now"), ("assistant", "other words "),
    ]  # fmt: skip
    assert row(world)["end_reason"] == "interrupted"
