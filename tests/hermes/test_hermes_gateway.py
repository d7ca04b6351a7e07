"""Hermes as a server: its gateway, its chats, and an editor's agent, killed in a reply."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hermes_agents import handed_over, program
from hermes_world import Hermes, Model, say
from support import Supervised, World, short, until

KEY = "a-key-of-some-length"


@pytest.fixture
def hermes(world: World, model: Model) -> Hermes:
    return Hermes("0.19.0", world, model)


def hooks(plugin: Path) -> list[tuple[str, dict[str, Any]]]:
    if not plugin.exists():
        return []
    return [(name, answer) for name, answer in map(json.loads, plugin.read_text().splitlines())]


# -- the gateway -------------------------------------------------------------------------------


class Gateway:
    """`hermes gateway run` under supervision, with the platform that serves an HTTP client."""

    def __init__(self, hermes: Hermes) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        world = hermes.world
        world.env |= {
            "API_SERVER_ENABLED": "true", "API_SERVER_KEY": KEY, "API_SERVER_HOST": "127.0.0.1",
            "API_SERVER_PORT": str(self.port),
        }  # fmt: skip
        self.log = open(world.folder / f"gateway-{self.port}.log", "wb")  # noqa: SIM115
        self.agent = world.run([hermes.command, "gateway", "run"], stdout=self.log)
        until(self._answers, "the gateway answers", deadline=90)

    def _answers(self) -> bool:
        assert self.agent.process.poll() is None, Path(self.log.name).read_text()
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def ask(self, text: str) -> http.client.HTTPResponse:
        """Begin a streamed chat completion."""
        self.client = client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=90)
        body = {
            "model": "scripted",
            "stream": True,
            "messages": [{"role": "user", "content": text}],
        }
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        client.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        self.response = response = client.getresponse()
        assert response.status == 200, response.read()
        return response

    def close(self) -> None:
        self.response.close()
        self.client.close()
        self.log.close()


def words(data: bytes) -> str:
    """What a client was shown."""
    found = ""
    for line in data.decode().splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line[6:]).get("choices") or ():
                found += choice.get("delta", {}).get("content") or ""
    return found


def test_a_gateway_killed_in_a_streamed_answer_and_one_terminated_in_the_next(
    hermes: Hermes,
) -> None:
    world, plugin = hermes.world, hermes.plugin()
    hermes.model.script = [[*say("some words of it"), ("hold", "killed")]]
    gateway = Gateway(hermes)
    response = gateway.ask("hello there")
    session = response.headers["X-Hermes-Session-Id"]
    hermes.model.wait_until_held("killed")
    handed_over(hermes, "it ")
    gateway.agent.kill_agent()
    shown = words(_whatever_comes(response))
    assert gateway.agent.finish(120) == -signal.SIGKILL
    gateway.close()

    assert short(world.messages(session)) == [
        ("user", "hello there"),
        ("assistant", "some words of it "),
    ]
    assert "some words of it ".startswith(shown)
    row = world.session(session)
    assert row is not None
    assert (row["source"], row["end_reason"]) == ("api_server", "interrupted")
    assert [(name, event["session_id"]) for name, event in hooks(plugin)] == [
        ("on_session_end", session),
        ("on_session_finalize", session),
    ]
    plugin.unlink()

    # The same home serves again; this time the gateway is asked to go and drains.
    hermes.model.script = [[*say("all of the"), ("hold", "terminated"), *say("other words")]]
    again = Gateway(hermes)
    response = again.ask("something else")
    other = response.headers["X-Hermes-Session-Id"]
    assert other != session
    hermes.model.wait_until_held("terminated")
    again.agent.kill_agent(signal.SIGTERM)
    hermes.model.release("terminated")
    assert words(response.read()).strip() == "all of the other words"
    again.agent.finish(120)
    again.close()
    assert [(role, text.strip()) for role, text in short(world.messages(other)) if text] == [
        ("user", "something else"),
        ("assistant", "all of the other words"),
    ]
    assert len(world.messages(session)) == 2, "nothing was added to the first"
    assert [(name, event["interrupted"]) for name, event in hooks(plugin)] == [
        ("on_session_end", False)
    ], "Hermes' own, at the end of the turn"
    assert b"interrupted" not in again.agent.errors
    drained = world.session(other)
    assert drained is not None
    assert drained["end_reason"] == "exited"
    assert world.runs() == []


def _whatever_comes(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read()
    except http.client.IncompleteRead as cut:
        return cut.partial
    except ConnectionResetError:
        return b""


# -- chats that the gateway owns ---------------------------------------------------------------


def test_a_chat_of_the_gateways_is_recovered_and_left_open_to_be_taken_up_again(
    hermes: Hermes,
) -> None:
    world, plugin = hermes.world, hermes.plugin()
    peer = 'source="telegram", user_id="u1", session_key="agent:main:telegram:dm:c1"'
    chat = program(
        hermes,
        f"""
db.create_session("chat-1", "telegram", user_id="u1")
db.record_gateway_session_peer("chat-1", {peer}, chat_id="c1", chat_type="dm")
agent("chat-1", platform="telegram").run_conversation("hello there")
""",
    )
    hermes.model.script = [[*say("some words of it"), ("hold", "here")]]
    agent = world.run([hermes.python, chat])
    hermes.model.wait_until_held()
    handed_over(hermes, "it ")
    agent.kill_agent()
    agent.finish(120)
    assert short(world.messages("chat-1")) == [
        ("user", "hello there"),
        ("assistant", "some words of it "),
    ]
    row = world.session("chat-1")
    assert row is not None
    assert (row["ended_at"], row["end_reason"]) == (None, None)
    assert [(name, event["platform"]) for name, event in hooks(plugin)] == [
        ("on_session_end", "telegram"),
        ("on_session_finalize", "telegram"),
    ]
    finder = (
        "from hermes_state import SessionDB; db = SessionDB();"
        f" found = db.find_latest_gateway_session_for_peer({peer});"
        " print(found['id'], len(db.get_messages_as_conversation(found['id'])))"
    )
    adopted = subprocess.run(
        [hermes.python, "-c", finder], env=world.env, capture_output=True, text=True, timeout=60
    )
    assert adopted.stdout.strip() == "chat-1 2", adopted.stderr
    assert world.runs() == []


# -- an editor's agent -------------------------------------------------------------------------


class Editor:
    """As much of an ACP client as it takes to ask a question."""

    def __init__(self, agent: Supervised) -> None:
        self._process = agent.process
        self._number = 0

    def ask(self, method: str, **parameters: Any) -> int:
        assert self._process.stdin is not None
        self._number += 1
        request = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": parameters}
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        return self._number

    def answer(self, number: int) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            if answer.get("id") == number and "method" not in answer:
                assert "result" in answer, answer
                result = answer["result"]
                assert isinstance(result, dict)
                return result
        raise AssertionError("the agent ended without an answer")


def test_an_editors_agent_killed_in_an_answer_is_recovered(hermes: Hermes) -> None:
    world = hermes.world
    hermes.model.script = [say("First answer"), [*say("some words of it"), ("hold", "here")]]
    errors = open(world.folder / "acp.log", "wb")  # noqa: SIM115
    agent = world.run([hermes.command, "acp"], stdin=subprocess.PIPE, stderr=errors)
    with errors:
        editor = Editor(agent)
        editor.answer(editor.ask("initialize", protocolVersion=1, clientCapabilities={}))
        new = editor.ask("session/new", cwd=str(world.folder), mcpServers=[])
        session = editor.answer(new)["sessionId"]
        said = [{"type": "text", "text": "first question"}]
        editor.answer(editor.ask("session/prompt", sessionId=session, prompt=said))
        said = [{"type": "text", "text": "second question"}]
        editor.ask("session/prompt", sessionId=session, prompt=said)
        hermes.model.wait_until_held()
        handed_over(hermes, "it ")
        agent.kill_agent()
        agent.finish(120)
    assert [(role, text.strip()) for role, text in short(world.messages(session)) if text] == [
        ("user", "first question"),
        ("assistant", "First answer"),
        ("user", "second question"),
        ("assistant", "some words of it"),
    ]
    row = world.session(session)
    assert row is not None
    assert (row["source"], row["end_reason"]) == ("acp", "interrupted")
