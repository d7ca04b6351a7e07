"""`doctor --prove` starts the real agent, kills it twice and says what is kept."""

from __future__ import annotations

import json
import os

import pytest
from real_agents import ROOT, folder
from support import World


@pytest.mark.parametrize("name", ["claude", "codex", "gemini", "hermes", "opencode", "pi", "qwen"])
def test_what_is_kept_is_tried_out(world: World, name: str) -> None:
    program = folder() / name
    if name == "hermes":
        program = ROOT / ".venv-hermes-0.19.0" / "bin" / name
    if not program.exists():
        pytest.skip(f"{name} is not installed ({program})")
    before = sorted(os.listdir(world.folder))
    done = world.call("doctor", "--json", "--prove", "--", str(program), deadline=600)
    checks = json.loads(done.stdout)["checks"]
    proofs = [(check["state"], check["text"]) for check in checks if check["name"] == "proof"]
    assert [state for state, _ in proofs] == ["ok", "ok"], proofs
    assert "40 words were on the screen, 40 are stored" in proofs[0][1]
    assert "closed as unknown" in proofs[1][1]
    assert not world.db.exists(), "nothing of the user's is touched"
    assert set(before) <= set(os.listdir(world.folder))


def test_a_program_that_is_named_from_this_folder_is_found(world: World) -> None:
    program = folder() / "claude"
    if not program.exists():
        pytest.skip(f"claude is not installed ({program})")
    (world.folder / "node_modules").symlink_to(program.parents[1])
    named = "node_modules/.bin/claude"
    done = world.call("doctor", "--json", "--prove", "--", named, deadline=600)
    checks = json.loads(done.stdout)["checks"]
    proofs = [(check["state"], check["text"]) for check in checks if check["name"] == "proof"]
    assert [state for state, _ in proofs] == ["ok", "ok"], proofs


def test_without_an_agent_it_says_what_it_needs(world: World) -> None:
    done = world.call("doctor", "--prove")
    assert done.returncode == 2
    assert "doctor --prove -- COMMAND" in done.stderr
