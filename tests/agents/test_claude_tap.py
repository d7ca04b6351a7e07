"""What Claude Code showed of a reply is stored, whoever dies, and the user's own hooks run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hermes_supervise.supervisor.agents import registry
from hermes_supervise.supervisor.agents.claude.tap import ClaudeTap, Complete, command_with, hook
from hermes_supervise.supervisor.agents.claude.transcript import ClaudeFold
from hermes_supervise.supervisor.cli.proof.scripted_model import ScriptedModel
from real_agents import (
    Claude,
    ask_in,
    conversation,
    kill_all_of,
    only_session,
    reply,
    run_once,
)
from support import World, until
from tmux import Tmux


def test_a_reply_that_became_complete_is_stored_once(
    world: World,
    model: ScriptedModel,
    window: Tmux,
) -> None:
    agent = Claude(world, model)
    run = ask_in(window, agent, "WORDS 30")
    window.wait_for("w029")
    until(lambda: b'"w000' in world.said() or b"w000 w001" in world.said(), "it is reported")
    until(lambda: not list(Path(world.state).rglob("tap/line-*")), "the lines are read")
    kill_all_of(agent, run.agent)
    window.status()
    assert conversation(agent) == [("user", "WORDS 30"), ("assistant", reply(30))]


def test_the_users_own_settings_and_hooks_stay_in_force(
    world: World,
    model: ScriptedModel,
    window: Tmux,
) -> None:
    agent = Claude(world, model)
    seen = world.folder / "seen"
    seen.mkdir()
    theirs = {"type": "command", "command": f"cat > {seen}/$$"}
    own = world.folder / "own.json"
    own.write_text(json.dumps({"hooks": {"MessageDisplay": [{"hooks": [theirs]}]}}))
    model.hold_after(25)
    agent.tui = lambda: [str(agent.program), "--dangerously-skip-permissions",  # type: ignore
                         "--settings", str(own)]  # fmt: skip
    run = ask_in(window, agent, "WORDS 40")
    window.wait_for("w019")
    until(lambda: len(list(seen.iterdir())) >= 2, "the user's hook has seen two lines")
    kill_all_of(agent, run.agent)
    window.status()
    assert conversation(agent)[-1][1].startswith("w000 w001")


@pytest.mark.parametrize("where", ["TUI", "once"])
def test_a_call_that_claude_died_of_before_it_wrote_it_down_is_stored(
    world: World, model: ScriptedModel, window: Tmux, where: str
) -> None:
    agent = Claude(world, model)
    model.preface = "I look first"
    # The tool's parent is Claude Code, which writes a call down after the tool has begun.
    prompt = "CALL kill -KILL $PPID; sleep 300"
    if where == "TUI":
        ask_in(window, agent, prompt, *world.hook)
        window.status()
    else:
        assert run_once(agent, prompt, *world.hook).finish(90) == -signal.SIGKILL
    rows = world.messages(str(only_session(agent)["id"]))
    assert [row["role"] for row in rows] == ["user", "assistant", "tool"]
    assert (rows[0]["content"], rows[1]["content"]) == (prompt, "I look first")
    [call] = json.loads(rows[1]["tool_calls"])
    assert json.loads(call["function"]["arguments"])["command"] in prompt
    assert rows[2]["tool_call_id"] == call["id"]
    [report] = world.reports()
    assert report["recovered"]["calls_unknown"] == 1
    assert len(world.events()) == 1


# -- without Claude Code -----------------------------------------------------------------------


def settings_in(command: list[str] | None) -> dict[str, Any]:
    assert command is not None
    path = command[command.index("--settings") + 1]
    found = json.loads(Path(path).read_text())
    assert isinstance(found, dict)
    return found


def test_the_hook_is_merged_with_settings_on_the_command_line(tmp_path: Path) -> None:
    folder = str(tmp_path)
    plain = command_with(["claude", "-c"], 1, folder)
    assert plain is not None and plain[0] == "claude" and plain[3:] == ["-c"]
    theirs = {"model": "x", "hooks": {"Stop": [1], "MessageDisplay": [2]}}
    merged = settings_in(command_with(["claude", "--settings", json.dumps(theirs)], 1, folder))
    assert (merged["model"], merged["hooks"]["Stop"]) == ("x", [1])
    assert merged["hooks"]["MessageDisplay"] == [2, {"hooks": [hook(folder)]}]
    assert merged["hooks"]["PreToolUse"] == [{"hooks": [hook(folder)]}]
    assert command_with(["claude", "--settings", "/not/there.json"], 1, folder) is None


@pytest.mark.parametrize("line", ["claude mcp list", "claude --bare", "vim"])
def test_a_start_without_hooks_is_left_as_it_is(tmp_path: Path, line: str) -> None:
    assert registry.named("claude").tapped(line.split(), {}, str(tmp_path)) is None


def test_a_start_that_shows_no_reply_in_progress_has_the_hooks_for_calls(tmp_path: Path) -> None:
    found = registry.named("claude").tapped(["claude", "-p", "hello"], {}, str(tmp_path))
    assert found is not None
    assert sorted(settings_in(found[0])["hooks"]) == ["PreToolUse", "UserPromptSubmit"]


def test_the_hook_ends_well_whatever_happens_and_no_call_overwrites_another(tmp_path: Path) -> None:
    for folder in (tmp_path / "it's here", tmp_path / "not there"):
        if "here" in folder.name:
            folder.mkdir()
        for n in range(3):
            # One shell, so that all have one pid.
            script = f"({hook(str(folder))['command']})"
            done = subprocess.run(["sh", "-c", f"{script}; {script}"], input=b"x" * n,
                                  capture_output=True)  # fmt: skip
            assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert len(list((tmp_path / "it's here").iterdir())) == 6


def call(folder: Path, index: int, delta: str, id: str = "m1") -> None:
    record = {"hook_event_name": "MessageDisplay", "session_id": "s", "message_id": id,
              "index": index, "delta": delta, "final": False}  # fmt: skip
    (folder / f"line-{id}{index}").write_text(json.dumps(record))


def read(tap: ClaudeTap, *, final: bool = False) -> str:
    return "".join(
        str(record["text"])
        for piece in tap.read(final=final)
        for record, _, _ in piece
        if record["kind"] == "delta"
    )


def test_a_missing_line_ends_what_is_known_of_a_reply(tmp_path: Path) -> None:
    tap = ClaudeTap(str(tmp_path), Complete(), lambda session: True)
    call(tmp_path, 0, "a\n")
    assert read(tap) == "a\n"
    call(tmp_path, 2, "c\n")
    call(tmp_path, 3, "d\n")
    assert read(tap) == ""
    assert list(tmp_path.iterdir()) == []


def test_who_reads_next_begins_with_the_first_line_of_a_reply(tmp_path: Path) -> None:
    for index in range(2):
        call(tmp_path, index, f"{index}\n")
    assert read(ClaudeTap(str(tmp_path), Complete(), lambda session: True)) == "0\n1\n"
    call(tmp_path, 2, "2\n")
    again = ClaudeTap(str(tmp_path), Complete(), lambda session: True)
    assert read(again) == "0\n1\n2\n", "what was reported is known by its mark"
    call(tmp_path, 0, "next\n", id="m2")
    assert read(again) == "next\n"
    assert [path.name for path in tmp_path.iterdir()] == ["line-m20"]


def test_a_line_waits_for_the_question_and_is_dropped_if_the_transcript_has_it(
    tmp_path: Path,
) -> None:
    complete, known = Complete(), set[str]()
    tap = ClaudeTap(str(tmp_path), complete, known.__contains__)
    call(tmp_path, 0, "first line\n\n")
    (tmp_path / "line-torn").write_text('{"session_id": "s", "mess')
    assert read(tap) == ""
    known.add("s")
    assert read(tap) == "first line\n\n"
    complete.note("s", "first line\nsecond line")
    call(tmp_path, 1, "second line\n")
    assert read(tap) == ""
    call(tmp_path, 0, "of another\n", id="m2")
    assert read(tap) == "of another\n"


# As Claude Code 2.1.327 wrote them, with shorter ids and without what is not read.
ASKED = {
    "session_id": "s", "transcript_path": "/p/s.jsonl", "cwd": "/work", "prompt_id": "p-1",
    "permission_mode": "bypassPermissions", "hook_event_name": "UserPromptSubmit",
    "prompt": "CALL echo hi; sleep 1",
}  # fmt: skip
CALLED = {
    "session_id": "s", "transcript_path": "/p/s.jsonl", "cwd": "/work", "prompt_id": "p-1",
    "permission_mode": "bypassPermissions", "effort": {"level": "medium"},
    "hook_event_name": "PreToolUse", "tool_name": "Bash",
    "tool_input": {"command": "echo hi; sleep 1", "description": "run it"}, "tool_use_id": "t-1",
}  # fmt: skip
LINES: list[dict[str, Any]] = [
    {"type": "user", "timestamp": "2026-11-18T17:15:35.733Z", "uuid": "u-1", "promptId": "p-1",
     "message": {"role": "user", "content": "CALL echo hi; sleep 1"}},
    {"type": "assistant", "timestamp": "2026-11-18T17:15:36.600Z", "uuid": "a-1",
     "message": {"id": "m-1", "role": "assistant", "model": "claude-opus-5-5",
                 "content": [{"type": "text", "text": "I look first"}]}},
    {"type": "assistant", "timestamp": "2026-11-18T17:15:36.674Z", "uuid": "a-2",
     "message": {"id": "m-1", "role": "assistant", "model": "claude-opus-5-5",
                 "content": [{"type": "tool_use", "id": "t-1", "name": "Bash",
                              "input": {"command": "echo hi; sleep 1", "description": "run it"}}]}},
]  # fmt: skip


def hooked(folder: Path, given: dict[str, Any], pid: int = 0) -> None:
    (folder / f"line-{pid}.1.{given['hook_event_name']}").write_text(json.dumps(given))


def messages(tap: ClaudeTap, *, final: bool) -> dict[str, tuple[str, str, int]]:
    """By uid: role, text, number of calls."""
    return {
        str(record["uid"]): (
            record["message"]["role"],
            record["message"]["content"],
            len(record["message"].get("tool_calls", ())),
        )
        for piece in tap.read(final=final)
        for record, _, _ in piece
        if record["kind"] == "message"
    }


@pytest.mark.parametrize("written", range(4))
def test_killed_between_tap_and_transcript_everything_is_there_once(
    tmp_path: Path, written: int
) -> None:
    complete = Complete()
    fold = ClaudeFold("/p/s.jsonl", complete)
    found: dict[str, tuple[str, str, int]] = {}
    for line in LINES[:written]:
        for record in fold.line(line, "key"):
            if record["kind"] == "message":
                message = record["message"]
                calls = len(message.get("tool_calls", ()))
                found[str(record["uid"])] = (message["role"], message["content"], calls)
    tap = ClaudeTap(str(tmp_path), complete, lambda session: written > 0)
    for given in (ASKED, CALLED):
        hooked(tmp_path, given)
    if written < 2:
        call(tmp_path, 0, "I look first")
    assert messages(tap, final=False) == {}, "the transcript may still get it"
    found |= messages(tap, final=True)
    assert list(found.values()) == [
        ("user", "CALL echo hi; sleep 1", 0), ("assistant", "I look first", 1)
    ]  # fmt: skip
    again = ClaudeTap(str(tmp_path), complete, lambda session: True)
    assert set(messages(again, final=True)) <= set(found), "who reads next reports the same"


def test_what_a_living_process_may_still_write_or_a_subagent_does_is_not_reported(
    tmp_path: Path,
) -> None:
    tap = ClaudeTap(str(tmp_path), Complete(), lambda session: True)
    hooked(tmp_path, CALLED, pid=os.getpid())
    assert messages(tap, final=True) == {}
    hooked(tmp_path, {**CALLED, "agent_id": "a1"})
    assert messages(tap, final=True) == {}
