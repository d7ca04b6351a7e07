"""`async-hermes-agent` from PyPI, a relative of Hermes whose turn and whose database are coroutine
functions: it runs as without us, and a killed turn is recovered into its own session.

`make test-drift` installs it; where it is not installed, this is skipped.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import Any

import pytest
from hermes_world import ROOT, Model, call, say
from support import World, short, until

VENV = ROOT / ".venv-async-hermes-agent"
PYTHON = str(VENV / "bin" / "python")
PROGRAM = """
import asyncio, os, sys
os.environ["HERMES_YOLO_MODE"] = "1"
from hermes_state import SessionDB
from run_agent import AIAgent

async def main():
    agent = AIAgent(base_url=sys.argv[1], api_key="none", model="scripted", session_id="embedded",
                    platform="webui", session_db=SessionDB(), quiet_mode=True,
                    skip_context_files=True)
    for question in sys.argv[2:]:
        result = await agent.run_conversation(question)
        print("answer:", result["final_response"], flush=True)
    os._exit(0)  # it would wait for the threads of its database

asyncio.run(main())
"""
pytestmark = pytest.mark.skipif(not VENV.exists(), reason="async-hermes-agent is not installed")


def command(world: World, model: Model, *questions: str) -> list[str]:
    world.home.mkdir(exist_ok=True)
    (world.home / "config.yaml").write_text(model.configuration)
    program = world.folder / "program.py"
    program.write_text(PROGRAM)
    return [PYTHON, str(program), f"http://127.0.0.1:{model.port}/v1", *questions]


def looks(model: Model, *more: Any) -> None:
    """It calls a tool, and answers."""
    asks = [*say("I look first"), call("terminal", {"command": "echo tool-says-hi"}, "call_a")]
    model.script = [asks, [("reasoning", "a thought"), *say("It says hi and"), *more]]


def test_it_runs_and_stores_what_it_does_without_us(world: World, model: Model) -> None:
    seen = []
    for supervised in (False, True):
        looks(model)
        words = command(world, model, "hello there", "and now")
        if supervised:
            agent = world.run(words)
            agent.wait_for("answer: All done")
            assert agent.finish(120) == 0
            assert b"hermes-supervise" not in agent.errors
        else:
            subprocess.run(words, env=world.env, check=True, capture_output=True, timeout=120)
        rows = world.messages("embedded")
        names = ("role", "content", "tool_call_id", "finish_reason", "reasoning")
        seen.append([{name: row[name] for name in names} for row in rows])
        session = world.session("embedded")
        assert session is not None
        for path in world.home.glob("state.db*"):
            path.unlink()
    roles = [row["role"] for row in seen[0]]
    assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant"]
    assert seen[1] == seen[0]


def test_killed_in_a_reply_after_a_tool(world: World, model: Model) -> None:
    looks(model, ("hold", "here"))
    agent = world.run(command(world, model, "hello there"))
    model.wait_until_held()
    until(lambda: b"and " in world.said(), "the last word is handed over", deadline=60)
    agent.kill_agent()
    assert agent.finish(120) == -signal.SIGKILL
    rows = world.messages("embedded")
    assert [row["role"] for row in rows] == ["user", "assistant", "tool", "assistant"]
    assert short(rows[:1]) == [("user", "hello there")]
    assert rows[1]["content"].strip() == "I look first"
    assert [made["id"] for made in json.loads(rows[1]["tool_calls"])] == ["call_a"]
    assert "tool-says-hi" in rows[2]["content"]
    assert rows[3]["content"] == "It says hi and "
    assert rows[3]["finish_reason"] == "interrupted"
    session = world.session("embedded")
    assert session is not None and session["end_reason"] == "interrupted"


def test_killed_in_a_tool(world: World, model: Model) -> None:
    fifo, runs = world.folder / "fifo", world.folder / "runs"
    os.mkfifo(fifo)
    waits = {"command": f"touch {runs}; cat {fifo}"}
    model.script = [[*say("I wait"), call("terminal", waits, "call_w")]]
    agent = world.run(command(world, model, "hello there"))
    until(runs.exists, "the tool runs", deadline=120)
    agent.kill_agent()
    assert agent.finish(120) == -signal.SIGKILL
    rows = world.messages("embedded")
    assert [row["role"] for row in rows] == ["user", "assistant", "tool"]
    assert [made["id"] for made in json.loads(rows[1]["tool_calls"])] == ["call_w"]
    assert rows[2]["tool_call_id"] == "call_w" and "unknown" in rows[2]["content"]
    session = world.session("embedded")
    assert session is not None and session["end_reason"] == "interrupted"
