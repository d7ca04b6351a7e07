"""The events of GitHub Copilot CLI, in lines as release 1.0.102 wrote them, shortened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hermes_supervise.supervisor.agents import registry
from hermes_supervise.supervisor.agents.copilot.transcript import CopilotFiles
from hermes_supervise.supervisor.agents.protocol import Place

SESSION = "e4bf3d6a-708e-40e0-9dcf-7704cd41dd7d"
BEGUN = {
    "sessionId": SESSION, "copilotVersion": "1.0.102", "selectedModel": "gpt-4",
    "context": {"cwd": "/home/me/work"},
}  # fmt: skip
ASKED = {"content": "CALL echo hi", "transformedContent": "<current_datetime>…\n\nCALL echo hi",
         "messageId": "28b9ed7d"}  # fmt: skip
CALLED = {
    "messageId": "da1d8876", "model": "gpt-4o", "content": "",
    "toolRequests": [{"toolCallId": "call_1", "name": "bash", "arguments": {"command": "echo hi"},
                      "type": "function"}],
}  # fmt: skip
RESULT = {"toolCallId": "call_1", "success": True,
          "result": {"content": "hi\n<shellId: 0 completed with exit code 0>"}}  # fmt: skip


def files(folder: Path) -> CopilotFiles:
    place = Place(cwd="/home/me/work", env={"COPILOT_HOME": str(folder)})
    [found] = registry.named("copilot").sources(place)
    assert isinstance(found, CopilotFiles)
    return found


def records(*lines: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    fold = files(Path("/x")).fold(f"/x/session-state/{SESSION}/events.jsonl")
    found = []
    for number, (kind, data) in enumerate(lines):
        entry = {"type": kind, "data": data, "id": str(number),
                 "timestamp": "2026-11-18T13:57:46.687Z"}  # fmt: skip
        found += fold.line(json.loads(json.dumps(entry)), str(number))
    return found


def said(found: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [
        (one["session"], one["message"]["role"], one["message"]["content"])
        for one in found
        if one["kind"] == "message"
    ]


def test_a_conversation_with_a_call_is_read() -> None:
    found = records(
        ("session.start", BEGUN),
        ("user.message", ASKED),
        ("system.message", {"role": "system", "content": "You are"}),
        ("assistant.turn_start", {"turnId": "0"}),
        ("assistant.message", CALLED),
        ("tool.execution_start", {"toolCallId": "call_1", "toolName": "bash"}),
        ("tool.execution_complete", RESULT),
        ("assistant.message", {"messageId": "f9de0f6a", "model": "gpt-4o", "content": "done"}),
        ("session.shutdown", {"shutdownType": "routine"}),
    )
    assert said(found) == [
        (SESSION, "user", "CALL echo hi"),
        (SESSION, "assistant", ""),
        (SESSION, "tool", "hi\n<shellId: 0 completed with exit code 0>"),
        (SESSION, "assistant", "done"),
    ]
    messages = [one["message"] for one in found if one["kind"] == "message"]
    [call] = messages[1]["tool_calls"]
    assert (call["id"], json.loads(call["function"]["arguments"])) == (
        "call_1", {"command": "echo hi"}
    )  # fmt: skip
    assert (messages[2]["tool_call_id"], messages[2]["tool_name"]) == ("call_1", "bash")
    models = [one["model"] for one in found if one["kind"] == "session" and "model" in one]
    assert (models[0], models[-1]) == ("gpt-4", "gpt-4o")


def test_a_tool_that_failed_has_its_error_as_the_result() -> None:
    failed = {"toolCallId": "call_1", "success": False, "error": {"message": "no such file"}}
    found = records(("assistant.message", CALLED), ("tool.execution_complete", failed))
    assert said(found)[-1] == (SESSION, "tool", "no such file")


def test_what_the_user_did_not_say_or_stopped_is_marked() -> None:
    found = records(
        ("user.message", {**ASKED, "source": "skill-pdf"}),
        ("user.message", ASKED),
        ("abort", {"reason": "user_initiated"}),
    )
    assert len(said(found)) == 1
    assert (found[-1]["phase"], found[-1]["by"]) == ("broken off", "user")


def test_what_a_subagent_says_is_a_session_of_its_own() -> None:
    inner = {"messageId": "m2", "content": "looked", "parentToolCallId": "call_1"}
    found = records(("user.message", ASKED), ("assistant.message", inner))
    assert said(found)[-1] == (f"{SESSION}-call_1", "assistant", "looked")
    about = [one for one in found if one["kind"] == "session"][-1]
    assert (about["parent"], about["subagent"]) == (SESSION, True)


def test_files_belong_to_the_folder_and_the_processes_that_they_name(tmp_path: Path) -> None:
    source = files(tmp_path)
    folder = tmp_path / "session-state" / SESSION
    folder.mkdir(parents=True)
    for name in ("events.jsonl", "inuse.4711.lock", "inuse.4711.hold", "workspace.yaml"):
        (folder / name).touch()
    assert [path.name for path in folder.iterdir() if source.accepts(str(path))] == ["events.jsonl"]
    assert source.owners(source.fold(str(folder / "events.jsonl"))) == [4711]
    assert source.belongs({"data": BEGUN})
    assert not source.belongs({"data": {"context": {"cwd": "/elsewhere"}}})
