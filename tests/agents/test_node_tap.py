"""What a Node agent showed of a reply and which tool it was running is stored, whoever dies."""

from __future__ import annotations

import json

import pytest
from hermes_supervise.supervisor.cli.proof.scripted_model import WORD, ScriptedModel
from real_agents import (
    AGENTS,
    Gemini,
    Pi,
    ask_in,
    conversation,
    kill_all_of,
    only_session,
    reply,
    run_once,
)
from support import World, until
from tmux import Tmux

NODE_AGENTS = ["gemini", "pi", "qwen"]


def test_a_pi_that_had_not_stored_its_session_is_restarted_without_it(
    world: World, model: ScriptedModel, window: Tmux
) -> None:
    agent = Pi(world, model)
    model.hold_after(25)
    run = ask_in(window, agent, "WORDS 80", *world.hook, "--restart", "on-crash")
    window.wait_for("w019")
    kill_all_of(agent, run.agent)
    window.clear()
    window.wait_for(agent.ready)
    assert "No session found" not in window.screen
    [row] = agent.sessions()
    assert row["end_reason"] == "interrupted"


@pytest.mark.parametrize("name", NODE_AGENTS)
def test_a_call_that_ended_is_stored_once(world: World, model: ScriptedModel, name: str) -> None:
    agent = AGENTS[name](world, model)
    world.env["HERMES_SUPERVISE_CHECKPOINT"] = "0.05"
    run = run_once(agent, "CALL sleep 1; echo it ran")
    assert run.finish(90) == 0, run.errors
    rows = world.messages(str(only_session(agent)["id"]))
    assert [row["role"] for row in rows] == ["user", "assistant", "tool", "assistant"]
    [call] = json.loads(rows[1]["tool_calls"])
    assert rows[2]["tool_call_id"] == call["id"]
    assert "it ran" in rows[2]["content"]
    assert rows[3]["content"] == "done"


@pytest.mark.parametrize("name", NODE_AGENTS)
def test_a_reply_that_became_complete_is_stored_once(
    world: World, model: ScriptedModel, name: str
) -> None:
    agent = AGENTS[name](world, model)
    run = run_once(agent, "WORDS 30")
    assert run.finish(90) == 0, run.errors
    assert conversation(agent) == [("user", "WORDS 30"), ("assistant", reply(30))]


def test_a_question_that_pi_has_not_written_down_is_stored(
    world: World, model: ScriptedModel
) -> None:
    agent = Pi(world, model)
    model.hold_after(5)
    run = run_once(agent, "WORDS 30")
    until(lambda: model.sent == 5, "it streams")
    until(lambda: b"w004" in tapped(world), "the guest has it")
    run.kill_agent()
    run.finish(60)
    assert conversation(agent) == [("user", "WORDS 30"), ("assistant", reply(5))]


def tapped(world: World) -> bytes:
    """What the guests have written."""
    return b"".join(path.read_bytes() for path in world.state.rglob("tap/*.frames"))


def test_two_geminis_in_one_folder_are_kept_apart(world: World, model: ScriptedModel) -> None:
    agent = Gemini(world, model)
    model.hold_after(3)
    runs = [run_once(agent, f"WORDS {count}") for count in (5, 6)]
    until(lambda: len(set(WORD.findall(tapped(world).decode("latin1")))) == 3, "both stream")
    until(lambda: tapped(world).count(b"w002") == 2, "both stream")
    model.gate.set()
    for run in runs:
        assert run.finish(90) == 0, run.errors
    stored = sorted(
        [(row["role"], row["content"].strip()) for row in world.messages(str(session["id"]))]
        for session in agent.sessions()
    )
    assert stored == [[("user", f"WORDS {count}"), ("assistant", reply(count))] for count in (5, 6)]
