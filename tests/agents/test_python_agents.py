"""Python agents of which nothing is known but that they ask a model: what they showed is stored.

The real ones from PyPI, each in an environment of its own: `.agents/aider` and
`.agents/openai-agents` (`make test-agents` installs them).
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hermes_supervise.supervisor.cli.proof.scripted_model import WORD, ScriptedModel
from real_agents import ROOT, reply
from support import World, until

# An agent on the Agents SDK, with a tool, in the way its documentation shows.
AGENT = """
import asyncio, sys
from agents import Agent, Runner, function_tool, set_tracing_disabled

set_tracing_disabled(True)

@function_tool
def look(place: str) -> str:
    return "nothing"

async def main():
    agent = Agent(name="Assistant", instructions="Answer.", tools=[look], model="test")
    result = Runner.run_streamed(agent, sys.argv[1])
    async for event in result.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            print(event.data.delta, end="", flush=True)

asyncio.run(main())
"""


def python_of(name: str) -> Path:
    python = ROOT / ".agents" / name / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{name} is not installed ({python.parent})")
    return python


def command_of(name: str, world: World, question: str) -> list[str]:
    python = python_of(name)
    if name == "aider":
        options = "--no-git --yes-always --no-check-update --no-show-model-warnings --no-analytics"
        return [str(python.parent / "aider"), "--model", "openai/test", *options.split(),
                "--no-show-release-notes", "--no-pretty", "--message", question]  # fmt: skip
    script = world.folder / "assistant.py"
    script.write_text(AGENT)
    return [str(python), str(script), question]


@pytest.fixture(autouse=True)
def reached(world: World, model: ScriptedModel) -> None:
    for name in [name for name in world.env if "proxy" in name.lower()]:
        del world.env[name]
    url = f"{model.url}/v1"
    world.env |= {"OPENAI_API_KEY": "a-secret-key", "OPENAI_BASE_URL": url, "OPENAI_API_BASE": url,
                  "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # fmt: skip


@pytest.mark.parametrize("name", ["aider", "openai-agents"])
def test_what_was_shown_of_a_reply_is_stored(world: World, model: ScriptedModel, name: str) -> None:
    command = command_of(name, world, "WORDS 40")
    model.hold_after(15)
    run = world.run(command, cwd=str(world.folder))
    until(lambda: model.sent == 15, "it streams", 120)
    until(lambda: b"w014" in world.said(), "the last word is handed over")
    assert b"secret" not in world.said()
    run.kill_agent()
    assert run.finish(60) == -signal.SIGKILL
    shown = WORD.findall(run.output.decode())
    with world.database() as db:
        [row] = db.execute("SELECT * FROM sessions").fetchall()
    assert (row["source"], row["end_reason"]) == ("python", "interrupted")
    question, answer = world.messages(row["id"])
    assert question["role"] == "user" and "WORDS 40" in question["content"]
    assert answer["content"].strip() == reply(15)
    assert set(shown) <= set(WORD.findall(answer["content"]))


@pytest.mark.parametrize("name", ["aider", "openai-agents"])
def test_a_reply_that_became_complete_is_stored_once(
    world: World, model: ScriptedModel, name: str
) -> None:
    run = world.run(command_of(name, world, "WORDS 20"), cwd=str(world.folder))
    assert run.finish(180) == 0, run.errors
    with world.database() as db:
        [row] = db.execute("SELECT * FROM sessions").fetchall()
    question, answer = world.messages(row["id"])
    assert "WORDS 20" in question["content"]
    assert answer["content"].strip() == reply(20)
