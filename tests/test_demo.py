"""The demonstration is the first thing a newcomer runs: it has to be true."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

from support import World, kill

README = Path(__file__).parent.parent / "README.md"


def test_the_demo_kills_an_agent_twice_and_shows_what_was_recovered(world: World) -> None:
    done = world.call("demo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("$ kill -9 ") == 2
    assert done.stdout.count("on_session_end(session_id='demo-") == 2
    assert "the agent was interrupted: killed by SIGKILL" in done.stderr
    assert not world.db.exists(), "the user's own state.db is left alone"
    again = [line for line in done.stdout.splitlines() if " show demo-" in line]
    assert len(again) == 2
    for line in again:
        shown = world.call(*line.split()[1:])
        assert shown.returncode == 0
        assert "I read the configuration," in shown.stdout
        assert "end_reason=interrupted" in shown.stdout
    assert '(calls shell) {"command": "mv config.toml config.old"}' in done.stdout


def test_the_agent_in_the_readme_is_recovered_as_the_readme_says(world: World) -> None:
    [source] = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    script = world.folder / "agent.py"
    script.write_text(source)
    agent = world.run([sys.executable, str(script)])
    pid = int(agent.wait_for("I am ").split()[-1])
    kill(pid)
    assert agent.finish() == -signal.SIGKILL
    asked, reply = world.messages("chat-1")
    assert asked["content"] == "Count, then list the folder."
    assert reply["content"].startswith("0 ")
    assert reply["finish_reason"] == "interrupted"
    assert b"  read it: hermes-supervise show chat-1\n" in agent.errors
