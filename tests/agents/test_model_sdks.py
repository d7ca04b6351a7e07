"""The real SDKs of Anthropic and OpenAI in a Python agent, killed in a streamed reply after a tool:
Messages and Responses are stored as chat completions are, also where the provider keeps the
conversation and a request carries only what is new.

`.agents/model-sdks` has both SDKs (`make test-agents` installs them); OpenAI's is in Hermes' own
environment, too.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from hermes_supervise.supervisor.cli.proof.scripted_model import ScriptedModel, words
from real_agents import ROOT
from support import World, until

# Uses no SDK of ours. A tool that the model calls is answered; then a long reply is asked for.
AGENT = """
import asyncio, json, os, sys
sys.path.insert(0, os.path.dirname(__file__))
import aider  # by that it is known as an agent
FORM, ASYNC = os.environ["FORM"], os.environ["ASYNC"] == "1"
PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}}
said, last = [], []

def anthropic_kwargs():
    return dict(model="m", max_tokens=99, messages=said, system="a system prompt",
                tools=[{"name": "bash", "description": "runs", "input_schema": PARAMETERS}])

def responses_kwargs():
    kept = {"previous_response_id": last[-1].id} if FORM == "only what is new" and last else {}
    return dict(model="m", input=said, instructions="a system prompt", stream=True, **kept,
                tools=[{"type": "function", "name": "bash", "parameters": PARAMETERS}])

async def ask_async():
    if FORM == "messages":
        from anthropic import AsyncAnthropic
        client = AsyncAnthropic(api_key="a-secret-key")
        async with client.messages.stream(**anthropic_kwargs()) as s:
            async for _ in s: pass
            return await s.get_final_message()
    from openai import AsyncOpenAI
    client = AsyncOpenAI(api_key="a-secret-key")
    async for event in await client.responses.create(**responses_kwargs()):
        if event.type == "response.completed":
            return event.response

def ask():
    if FORM == "messages":
        from anthropic import Anthropic
        with Anthropic(api_key="a-secret-key").messages.stream(**anthropic_kwargs()) as s:
            for _ in s: pass
            return s.get_final_message()
    from openai import OpenAI
    for event in OpenAI(api_key="a-secret-key").responses.create(**responses_kwargs()):
        if event.type == "response.completed":
            return event.response

def turn(question):
    said.append({"role": "user", "content": question})
    while True:
        answer = asyncio.run(ask_async()) if ASYNC else ask()
        if FORM == "messages":
            said.append({"role": "assistant", "content": [b.model_dump() for b in answer.content]})
            calls = [b for b in answer.content if b.type == "tool_use"]
            said.extend({"role": "user", "content": [{"type": "tool_result", "tool_use_id": c.id,
                         "content": "tool-says-hi"}]} for c in calls)
        else:
            last.append(answer)
            if FORM == "responses":
                said.extend(item.model_dump(exclude_none=True) for item in answer.output)
            else:
                said.clear()
            calls = [item for item in answer.output if item.type == "function_call"]
            said.extend({"type": "function_call_output", "call_id": c.call_id,
                         "output": "tool-says-hi"} for c in calls)
        if not calls:
            return

turn("CALL echo hi")
turn("WORDS 40")
"""


def python_for(form: str) -> Path:
    python = ROOT / ".agents" / "model-sdks" / "bin" / "python"
    if not python.exists() and form != "messages":
        python = ROOT / ".venv-hermes-0.19.0" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"the SDKs are not installed ({python.parent})")
    return python


@pytest.mark.parametrize("is_async", ["0", "1"], ids=["sync", "async"])
@pytest.mark.parametrize("form", ["messages", "responses", "only what is new"])
def test_killed_in_a_streamed_reply_after_a_tool(
    world: World, model: ScriptedModel, form: str, is_async: str
) -> None:
    python = python_for(form)
    (world.folder / "aider.py").touch()
    script = world.folder / "agent.py"
    script.write_text(AGENT)
    for name in [name for name in world.env if "proxy" in name.lower()]:
        del world.env[name]
    world.env |= {"FORM": form, "ASYNC": is_async, "ANTHROPIC_BASE_URL": model.url,
                  "OPENAI_BASE_URL": f"{model.url}/v1", "PYTHONWARNINGS": "ignore"}  # fmt: skip
    model.thought, model.preface = "a thought", "I look first"
    model.hold_after(15)
    agent = world.run([str(python), str(script)])
    until(lambda: model.sent == 15, "it streams", 120)
    until(lambda: b"w014" in world.said(), "the last word is handed over")
    for secret in (b"a-secret", b"system prompt", b"input_schema"):
        assert secret not in world.said()
    agent.kill_agent()
    assert agent.finish(60) == -signal.SIGKILL
    with world.database() as db:
        [session] = db.execute("SELECT * FROM sessions").fetchall()
    rows = world.messages(session["id"])
    assert [row["role"] for row in rows] == [
        "user", "assistant", "tool", "assistant", "user", "assistant"
    ]  # fmt: skip
    asked, called, answered, done, again, partial = rows
    assert (asked["content"], again["content"]) == ("CALL echo hi", "WORDS 40")
    assert called["content"] == "I look first"
    [made] = json.loads(called["tool_calls"])
    assert made["function"]["name"] == "bash"
    assert json.loads(made["function"]["arguments"])["command"] == "echo hi"
    assert (answered["tool_call_id"], answered["content"]) == (made["id"], "tool-says-hi")
    # A model that is sent a tool's result alone does not see what it was asked.
    assert done["content"] == ("ok" if form == "only what is new" else "done")
    assert partial["content"] == "".join(words(40))[: len("".join(list(words(40))[:15]))]
    assert (partial["reasoning"], partial["finish_reason"]) == ("a thought", "interrupted")
    assert session["end_reason"] == "interrupted"
