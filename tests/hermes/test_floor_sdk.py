"""The real OpenAI SDK in an agent that is not Hermes: what it streamed is kept, and only then."""

from __future__ import annotations

import signal

import pytest
from hermes_world import Hermes, Model, say
from support import World, short, until

# Uses no SDK of ours.
AGENT = """
import asyncio, os, sys
from openai import AsyncOpenAI, OpenAI

where = dict(base_url=os.environ["MODEL"], api_key="a-secret-key")
asked = dict(model="scripted", stream=True, tools=[{"type": "function", "function": {"name": "x"}}])

def talk(messages):
    return "".join(chunk.choices[0].delta.content or ""
                   for chunk in OpenAI(**where).chat.completions.create(messages=messages, **asked))

async def talk_async(messages):
    stream = await AsyncOpenAI(**where).chat.completions.create(messages=messages, **asked)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

def run(messages):
    return asyncio.run(talk_async(messages)) if os.environ["ASYNC"] == "1" else talk(messages)

said = [{"role": "user", "content": "first question"}]
said.append({"role": "assistant", "content": run(said)})
said.append({"role": "user", "content": "second question"})
run(said)
"""


def start(world: World, model: Model, is_async: str) -> list[str]:
    hermes = Hermes("0.19.0", world, model)  # for the SDK in its environment
    script = world.folder / "agent.py"
    script.write_text(AGENT)
    world.env |= {"MODEL": f"http://127.0.0.1:{model.port}/v1", "ASYNC": is_async}
    return [str(hermes.python), str(script)]


@pytest.mark.parametrize("is_async", ["0", "1"])
def test_a_command_that_is_killed_in_a_streamed_reply(
    world: World, model: Model, is_async: str
) -> None:
    model.script = [say("First answer"), [*say("And the"), ("hold", "here")]]
    agent = world.run(start(world, model, is_async))
    model.wait_until_held()
    until(lambda: b"the " in world.said(), "the last word is handed over")
    assert b"secret" not in world.said()
    agent.kill_agent()
    assert agent.finish() == -signal.SIGKILL
    with world.database() as db:
        [row] = db.execute("SELECT id, source FROM sessions").fetchall()
    assert row["source"] == "python"
    assert short(world.messages(row["id"])) == [
        ("user", "first question"), ("assistant", "First answer "),
        ("user", "second question"), ("assistant", "And the "),
    ]  # fmt: skip


@pytest.mark.parametrize("how", ["below a shell", "behind a transcript"])
def test_what_a_command_runs_is_not_taken_for_the_command(
    world: World, model: Model, how: str
) -> None:
    model.script = [say("First answer"), say("And the")]
    command, options = start(world, model, "0"), []
    if how == "below a shell":
        command = ["sh", "-c", '"$@"; true', "sh", *command]
    else:
        options = ["--watch", str(world.folder / "chat.jsonl")]
    agent = world.run(command, *options)
    assert agent.finish() == 0, agent.errors
    assert len(model.requests) == 2
    assert not world.db.exists()
