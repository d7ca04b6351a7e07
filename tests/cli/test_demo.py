"""The demonstration is the first thing a newcomer runs: it has to be true."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path

from support import World, kill

README = Path(__file__).parents[2] / "README.md"


def test_the_demo_kills_an_agent_twice_and_shows_what_was_recovered(world: World) -> None:
    done = world.call("demo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("$ kill -9 ") == 2
    assert done.stdout.count("on_session_end(session_id='demo-") == 2
    assert done.stderr.count("killed by SIGKILL") == 2
    assert not world.db.exists(), "the user's own state.db is left alone"
    again = [line for line in done.stdout.splitlines() if " show demo-" in line]
    assert len(again) == 2
    for line in again:
        shown = world.call(*line.split()[1:])
        assert shown.returncode == 0
        assert "I read the configuration," in shown.stdout
        assert "end_reason=interrupted" in shown.stdout
    for line in (line for line in done.stderr.splitlines() if "read it: " in line):
        words = line.partition("hermes-supervise ")[2].split()
        assert words[0] == "show"
        shown = world.call(*words)
        assert "I read the configuration," in shown.stdout, "as the notice says"
    assert '(calls shell) {"command": "mv config.toml config.old"}' in done.stdout
    assert json.loads(world.call("sessions", "--all", "--json").stdout) == [], "not the user's"
    assert json.loads(world.call("hooks", "--json").stdout)["hooks"] == []


def test_the_agent_in_the_readme_is_recovered_as_the_readme_says(world: World) -> None:
    [source] = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    script = world.folder / "agent.py"
    script.write_text(source)
    agent = world.run([sys.executable, str(script)])
    pid = int(agent.wait_for("My PID is ").split()[-1])
    kill(pid)
    assert agent.finish() == -signal.SIGKILL
    asked, reply = world.messages("chat-1")
    assert asked["content"] == "Count, then list the folder."
    assert reply["content"].startswith("0 ")
    assert reply["finish_reason"] == "interrupted"

    def numberless(text: str) -> list[str]:
        plain = re.sub(r"\b\d+ (message|character)s?\b", r"N \1s", text)
        return [line.strip() for line in plain.splitlines() if line.strip()]

    written = README.read_text().partition("hermes-supervise then prints:\n")[2]
    notice = written.partition("\nRun that command")[0]
    assert numberless(agent.errors.decode()) == numberless(notice), "as it really prints"
