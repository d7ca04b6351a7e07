"""What the guest of a Node agent wrote and what its transcript says are one conversation."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hermes_supervise.ipc import frames, records
from hermes_supervise.supervisor.agents.gemini.transcript import GeminiFiles
from hermes_supervise.supervisor.agents.node_tap import NodeTap
from hermes_supervise.supervisor.agents.protocol import Place

STREAM = "5" * 32
CALL = {"id": "call-0", "type": "function", "function": {"name": "sh", "arguments": '{"a": 1}'}}


class Guest:
    """Writes what a guest in a process of the agent would."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"{STREAM}.frames"
        self.number = -1
        self.record({"kind": "hello", "pid": os.getpid(), "stream": STREAM})

    def record(self, record: dict[str, Any]) -> None:
        self.number += 1
        with self.path.open("ab") as file:
            file.write(frames.encode(self.number, records.pack(record)))

    def ask(self, name: str, question: str, at: float, *earlier: str) -> None:
        self.record({"kind": "asked", "session": name, "question": question, "tools": True,
                     "questions": [*earlier, question], "model": "m", "at": at})  # fmt: skip

    def piece(self, name: str, text: str) -> None:
        self.record({"kind": "delta", "session": name, "text": text})


class Follower:
    """Reads transcript and tap as the transcript reader does."""

    def __init__(self, folder: Path) -> None:
        self.tap = NodeTap(str(folder), lambda session: True, "gemini", "gemini-cli")
        place = Place(cwd=str(folder), env={"HOME": str(folder)})
        self.fold = GeminiFiles(place, self.tap).fold(str(folder / "chats/session-1.jsonl"))
        self.lines = 0
        self.line({"sessionId": "s", "startTime": _time(0)})

    def line(self, entry: dict[str, Any]) -> list[dict[str, Any]]:
        self.lines += 1
        found = self.fold.line(json.loads(json.dumps(entry)), str(self.lines))
        return [record for record in found if record["kind"] == "message"]

    def read(self, *, final: bool = False) -> list[tuple[dict[str, Any], str]]:
        self.tap.look_first()
        return [
            (record, key)
            for piece in self.tap.read(final=final)
            for record, key, _ in piece
            if record["kind"] != "session"
        ]

    def text(self, *, final: bool = False) -> str:
        return "".join(str(record.get("text", "")) for record, _ in self.read(final=final))


def _time(seconds: float) -> str:
    return f"2026-11-18T04:00:{seconds:06.3f}Z"


def _at(seconds: float) -> float:
    from datetime import datetime

    return datetime.fromisoformat(_time(seconds)).timestamp()


def user(id: str, text: str, at: float) -> dict[str, Any]:
    return {"id": id, "type": "user", "content": text, "timestamp": _time(at)}


def gemini(id: str, text: str, at: float, **more: Any) -> dict[str, Any]:
    return {"id": id, "type": "gemini", "content": text, "timestamp": _time(at), **more}


@pytest.fixture
def guest(tmp_path: Path) -> Guest:
    return Guest(tmp_path)


@pytest.fixture
def follower(tmp_path: Path) -> Follower:
    return Follower(tmp_path)


def test_pieces_are_reported_until_the_transcript_has_the_reply(
    guest: Guest, follower: Follower
) -> None:
    follower.line(user("u1", "Hello?", 1))
    guest.ask("1", "Hello?", _at(2))
    guest.piece("1", "Hi, ")
    assert [record.get("restart") for record, _ in follower.read()] == [True]
    guest.piece("1", "there")
    follower.line(gemini("g1", "Hi, there", 3))
    assert follower.text() == "", "the transcript has it"


def test_a_reply_waits_for_its_question(guest: Guest, follower: Follower) -> None:
    guest.ask("1", "Hello?", _at(2))
    guest.piece("1", "Hi")
    assert follower.text() == ""
    follower.line(user("u1", "Hello?", 1))
    assert follower.text() == "Hi"


def test_what_the_agent_asks_for_itself_is_not_reported(guest: Guest, follower: Follower) -> None:
    follower.line(user("u1", "Hello?", 1))
    guest.ask("1", "Hello?", _at(2))
    guest.ask("2", "Make a title", _at(2.5), "Hello?")
    guest.piece("2", "A greeting")
    guest.piece("1", "Hi")
    assert follower.text() == "Hi", "one reply at a time"
    follower.line(gemini("g1", "Hi", 3))
    guest.ask("3", "Hello?", _at(4))
    guest.piece("3", "remember: a greeting")
    assert follower.text(final=True) == "", "nobody waits for a reply"


def test_a_call_is_reported_before_it_runs_and_its_form_in_the_transcript_replaces_it(
    guest: Guest, follower: Follower
) -> None:
    follower.line(user("u1", "List it", 1))
    guest.ask("1", "List it", _at(2))
    guest.piece("1", "I will.")
    message = {"role": "assistant", "content": "I will.", "tool_calls": [CALL]}
    guest.record({"kind": "message", "session": "1", "message": message, "at": _at(2.5)})
    [(record, _)] = [read for read in follower.read() if read[0]["kind"] == "message"]
    [call] = record["message"]["tool_calls"]
    [words] = follower.line(gemini("g1", "I will.", 3))
    assert (words["uid"], words["message"]["tool_calls"]) == (record["uid"], [call])
    made = {"id": "sh-17", "name": "sh", "args": {"a": 1}, "status": "success", "result": "x"}
    again, result = follower.line(gemini("g1", "I will.", 3, toolCalls=[made]))
    assert again["uid"] == record["uid"] and again["message"]["content"] == "I will."
    assert result["message"]["tool_call_id"] == call["id"]


def test_who_reads_next_reports_under_the_same_ids(
    guest: Guest, follower: Follower, tmp_path: Path
) -> None:
    question = user("u1", "List it", 1)
    made = {"id": "sh-17", "name": "sh", "args": {"a": 1}, "status": "success", "result": "x"}
    follower.line(question)
    guest.ask("1", "List it", _at(2))
    guest.piece("1", "a")
    first = follower.read()
    message = {"role": "assistant", "content": "a", "tool_calls": [CALL]}
    guest.record({"kind": "message", "session": "1", "message": message, "at": _at(2.5)})
    reported = follower.read()
    whole = follower.line(gemini("g1", "a", 3, toolCalls=[made]))
    successor = Follower(tmp_path)
    successor.line(question)
    after = successor.line(gemini("g1", "a", 3, toolCalls=[made]))
    assert after == whole
    assert {record["uid"] for record, _ in reported} == {after[0]["uid"]}
    assert first[0][1].startswith(STREAM)
    assert successor.read(final=True) == [], "the transcript has all of it"


def test_a_torn_frame_costs_only_itself(guest: Guest, follower: Follower) -> None:
    follower.line(user("u1", "Hello?", 1))
    guest.ask("1", "Hello?", _at(2))
    guest.piece("1", "Hi")
    with guest.path.open("ab") as file:
        file.write(frames.encode(9, b"tail")[:-2])
    assert follower.text(final=True) == "Hi"


def test_a_dead_agent_that_had_written_nothing_has_a_session_all_the_same(
    guest: Guest, follower: Follower
) -> None:
    guest.ask("1", "Hello?", _at(2))
    guest.piece("1", "Hi")
    assert follower.read() == []
    [(asked, _), (piece, _)] = follower.read(final=True)
    assert asked["message"] == {"role": "user", "content": "Hello?"}
    assert (piece["text"], piece["session"]) == ("Hi", asked["session"])
