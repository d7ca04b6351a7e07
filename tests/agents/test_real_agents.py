"""What is said of the real agent CLIs is true, and what they write is stored as it was said."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest
from hermes_supervise.supervisor.cli.proof.scripted_model import WORD, ScriptedModel
from real_agents import (
    AGENTS,
    ROOT,
    ask_in,
    conversation,
    kill_all_of,
    only_session,
    reply,
    run_once,
)
from support import World, until
from tmux import Tmux

EVERY = sorted(AGENTS)
# What each shows before a reply is complete; without a terminal only Gemini CLI does.
TUIS = ["claude", "gemini", "opencode"]


@pytest.mark.parametrize("name", EVERY)
def test_a_clean_run_is_stored_as_it_was_said(
    world: World, model: ScriptedModel, name: str
) -> None:
    agent = AGENTS[name](world, model)
    run = run_once(agent, "WORDS 20", *world.hook)
    assert run.finish(90) == 0, run.errors
    assert conversation(agent) == [("user", "WORDS 20"), ("assistant", reply(20))]
    row = only_session(agent)
    assert (row["end_reason"], bool(row["model"])) == ("exited", True)
    assert world.events() == []


@pytest.mark.parametrize("name", TUIS)
def test_a_reply_on_the_screen_that_is_not_known_is_not_called_complete(
    world: World, model: ScriptedModel, window: Tmux, name: str
) -> None:
    agent = AGENTS[name](world, model)
    model.hold_after(55)
    run = ask_in(window, agent, "WORDS 80", *world.hook)
    window.wait_for("w035")
    shown = set(WORD.findall(window.screen))
    kill_all_of(agent, run.agent)
    window.status()
    [report] = world.reports()
    stored = "".join(text for role, text in conversation(agent) if role == "assistant")
    known = shown <= set(WORD.findall(stored))
    assert (report["outcome"], report["unseen_reply"]) == ("interrupted", not known)
    [event] = world.events()
    assert event["session_id"] == report["session"]


@pytest.mark.parametrize("name", AGENTS)
def test_a_call_that_was_running_is_stored_as_unknown(
    world: World, model: ScriptedModel, name: str
) -> None:
    agent = AGENTS[name](world, model)
    begun = world.folder / "begun"
    run = run_once(agent, f"CALL touch {begun}; sleep 300", *world.hook)
    until(begun.exists, "the tool runs")
    kill_all_of(agent, run.agent)
    assert run.finish(60) == -signal.SIGKILL
    rows = world.messages(str(only_session(agent)["id"]))
    assert [row["role"] for row in rows] == ["user", "assistant", "tool"]
    [call] = json.loads(rows[1]["tool_calls"])
    assert rows[2]["tool_call_id"] == call["id"]
    assert str(begun) in call["function"]["arguments"]
    [report] = world.reports()
    assert report["recovered"]["calls_unknown"] == 1


def test_a_gemini_that_was_cancelled_and_quit_is_no_crash(
    world: World, model: ScriptedModel, window: Tmux
) -> None:
    agent = AGENTS["gemini"](world, model)
    model.hold_after(15)
    ask_in(window, agent, "WORDS 40", *world.hook)
    window.wait_for("w005")
    # On its way out it removes the file of a session without a reply.
    until(lambda: b"WORDS 40" in world.said(), "the question is in the journal")
    window.press("Escape")
    window.wait_for("cancelled")
    window.press("C-c")
    window.wait_for("again to exit")
    window.press("C-c")
    assert window.status() == 0
    assert world.events() == []
    assert only_session(agent)["end_reason"] == "exited", world.reports()
    assert all("<session_context>" not in text for _, text in conversation(agent))


def test_claude_resumed_after_a_crash_has_no_row_that_nobody_said(
    world: World, model: ScriptedModel
) -> None:
    agent = AGENTS["claude"](world, model)
    begun = world.folder / "begun"
    run = run_once(agent, f"CALL touch {begun}; sleep 300")
    until(begun.exists, "the tool runs")
    run.kill_agent()
    run.finish(60)
    session = str(only_session(agent)["id"])
    command = [*agent.tui(), "--resume", session, "-p", "WORDS 20"]
    again = world.run(command, cwd=str(agent.work))
    assert again.finish(90) == 0, again.errors
    texts = [row["content"] for row in world.messages(session) if row["role"] == "assistant"]
    assert texts[-1].strip() == reply(20)
    assert "No response requested." not in texts


def test_the_model_is_filled_in_when_it_is_known_later_than_the_session(
    world: World, model: ScriptedModel
) -> None:
    world.env["HERMES_SUPERVISE_CHECKPOINT"] = "0.05"
    agent = AGENTS["claude"](world, model)
    model.hold_after(0)
    run = run_once(agent, "WORDS 5")
    until(agent.sessions, "the question is in state.db")
    assert only_session(agent)["model"] is None
    model.gate.set()
    assert run.finish(60) == 0, run.errors
    assert only_session(agent)["model"]


@pytest.mark.parametrize("name", AGENTS)
def test_the_result_of_a_tool_has_the_name_of_the_tool(
    world: World, model: ScriptedModel, name: str
) -> None:
    hermes = ROOT / ".venv-hermes-0.19.0" / "bin" / "python"
    if not hermes.exists():
        pytest.skip(f"Hermes is not installed ({hermes})")
    # A file that we make may be opened by an old Hermes, which could not resume rows with a name.
    make = "import sys, pathlib, hermes_state; hermes_state.SessionDB(pathlib.Path(sys.argv[1]))"
    world.db.parent.mkdir(parents=True, exist_ok=True)
    subprocess.check_call([hermes, "-c", make, str(world.db)], env=world.env)
    agent = AGENTS[name](world, model)
    run = run_once(agent, "CALL echo it ran")
    assert run.finish(120) == 0, run.errors
    rows = world.messages(str(only_session(agent)["id"]))
    [called] = [json.loads(row["tool_calls"]) for row in rows if row["tool_calls"]]
    [answered] = [row for row in rows if row["role"] == "tool"]
    assert answered["tool_name"] == called[0]["function"]["name"]


@pytest.mark.parametrize(("name", "folder"), [("qwen", ".qwen/projects"), ("pi", ".pi/agent")])
def test_a_transcript_in_another_shape_is_read_as_lines_that_the_user_named(
    world: World, model: ScriptedModel, name: str, folder: str
) -> None:
    agent = AGENTS[name](world, model)
    watched = ("--agent", "none", "--watch", str(world.folder / folder))
    run = world.run(agent.once("CALL echo it ran"), *watched, cwd=str(agent.work))
    assert run.finish(120) == 0, run.errors
    [report] = world.reports()
    rows = world.messages(report["session"])
    assert [row["role"] for row in rows] == ["user", "assistant", "tool", "assistant"]
    assert "it ran" in rows[0]["content"] and "it ran" in rows[2]["content"]
    [called] = json.loads(rows[1]["tool_calls"])
    assert (rows[2]["tool_call_id"], rows[3]["content"]) == (called["id"], "done")
    assert report["problems"] == []


# -- where it works, and where nothing is written ----------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("codex", ["exec", "--skip-git-repo-check", "-C", "{other}", "WORDS 5"]),
        ("opencode", ["run", "--dir", "{other}", "WORDS 5"]),
    ],
)
def test_an_agent_that_is_sent_to_another_folder_is_followed_there(
    world: World, model: ScriptedModel, name: str, words: list[str]
) -> None:
    agent = AGENTS[name](world, model)
    other = world.folder / "other"
    other.mkdir()
    command = [str(agent.program), *(word.replace("{other}", str(other)) for word in words)]
    run = world.run(command, cwd=str(agent.work))
    assert run.finish(90) == 0, run.errors
    assert conversation(agent) == [("user", "WORDS 5"), ("assistant", reply(5))]


def test_claude_in_a_worktree_is_followed_there(world: World, model: ScriptedModel) -> None:
    agent = AGENTS["claude"](world, model)
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@x", "-C", str(agent.work)]
    for step in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.check_call([*git, *step], env=world.env)
    run = world.run([*agent.tui(), "-w", "mine", "-p", "WORDS 5"], cwd=str(agent.work))
    assert run.finish(90) == 0, run.errors
    assert conversation(agent) == [("user", "WORDS 5"), ("assistant", reply(5))]


@pytest.mark.parametrize(
    ("name", "option"), [("claude", "--no-session-persistence"), ("codex", "--ephemeral")]
)
def test_where_nothing_is_written_one_line_before_the_start_and_doctor_say_so(
    world: World, model: ScriptedModel, name: str, option: str
) -> None:
    agent = AGENTS[name](world, model)
    command = agent.once("WORDS 5")
    command.insert(-1 if name == "codex" else 1, option)
    run = world.run(command, cwd=str(agent.work))
    assert run.finish(90) == 0, run.errors
    said = [line for line in run.errors.decode().splitlines() if "hermes-supervise:" in line]
    assert len(said) == 1 and option in said[0]
    assert agent.sessions() == []
    doctor = world.call("doctor", "--json", "--", *command)
    bad = [check for check in json.loads(doctor.stdout)["checks"] if check["state"] == "bad"]
    assert doctor.returncode == 1 and any(option in check["text"] for check in bad)


def test_two_claudes_in_one_folder_each_have_their_own_session(
    world: World, model: ScriptedModel
) -> None:
    agent = AGENTS["claude"](world, model)
    begun = [world.folder / f"begun{n}" for n in range(2)]
    runs = [run_once(agent, f"CALL touch {path}; sleep 300") for path in begun]
    until(lambda: all(path.exists() for path in begun), "both work")
    runs[0].kill_agent()
    runs[0].finish(60)
    [report] = world.reports()
    rows = world.messages(report["session"])
    assert re.search(r"begun\d", rows[0]["content"])[0] == "begun0"  # type: ignore[index]
    runs[1].kill_agent()
    runs[1].finish(60)
    assert len({report["session"] for report in world.reports()}) == 2
    assert all(row["end_reason"] == "interrupted" for row in agent.sessions())
    # The folders stay for as long as the tools that were left running.
    assert not list(Path(world.state).glob("hermes-supervise/runs/*/*.log"))
