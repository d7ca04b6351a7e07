"""What every live tap has to do, with each agent that has one; Codex is in test_codex_tap.py."""

from __future__ import annotations

import os
import signal

import pytest
from hermes_supervise.supervisor.cli.proof.scripted_model import ScriptedModel, words
from real_agents import AGENTS, ask_in, kill_all_of, only_session, shown_on
from support import World, children, kill, wait_dead
from tmux import Tmux

# Claude Code and opencode show a reply line by line.
BY_LINE, BY_PIECE = "w049", "w054"
LAST = {
    "claude": BY_LINE, "opencode": BY_LINE, "gemini": BY_PIECE, "pi": BY_PIECE, "qwen": BY_PIECE
}  # fmt: skip


@pytest.mark.parametrize("name", LAST)
def test_everything_that_was_on_the_screen_is_stored(
    world: World, model: ScriptedModel, window: Tmux, name: str
) -> None:
    agent = AGENTS[name](world, model)
    model.hold_after(55)
    run = ask_in(window, agent, "WORDS 80", *world.hook)
    window.wait_for(LAST[name])
    shown = shown_on(window)
    kill_all_of(agent, run.agent)
    window.status()
    rows = world.messages(str(only_session(agent)["id"]))
    assert [row["role"] for row in rows] == ["user", "assistant"]
    assert rows[1]["content"].startswith(shown.strip())
    assert "".join(words(80)).startswith(rows[1]["content"]), "and nothing that was not said"
    assert rows[1]["finish_reason"] == "interrupted"
    [report] = world.reports()
    assert report["unseen_reply"] is False
    assert len(world.events()) == 1


@pytest.mark.parametrize("name", ["claude", "gemini", "opencode"])
def test_what_nobody_read_before_all_were_killed_is_stored_by_recover(
    world: World, model: ScriptedModel, window: Tmux, name: str
) -> None:
    agent = AGENTS[name](world, model)
    model.hold_after(25)
    run = ask_in(window, agent, "WORDS 80", "--no-adopt")
    window.wait_for("w019")
    supervisor, started = run.pid, run.agent
    others = [pid for pid in children(supervisor) if pid != started]
    for pid in (supervisor, *others):  # from here on the tap alone takes down what is shown
        os.kill(pid, signal.SIGSTOP)
    model.go_on_until(55)
    window.wait_for(LAST[name])
    shown = shown_on(window)
    kill_all_of(agent, started)
    for pid in (*others, supervisor):
        kill(pid)
        wait_dead(pid)
    wait_dead(started)
    window.status()
    assert world.call("recover").returncode == 0
    rows = world.messages(str(only_session(agent)["id"]))
    assert [row["role"] for row in rows] == ["user", "assistant"]
    assert rows[-1]["content"].startswith(shown.strip())
