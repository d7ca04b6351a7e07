"""`shell-init`: typed in a real shell, an agent is supervised once, and only where it should be."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess

import pytest
from support import World

SHELLS = {
    "bash": ["bash", "--norc", "--noprofile", "-i", "-c"],
    "zsh": ["zsh", "-f", "-i", "-c"],
    "fish": ["fish", "--no-config", "-i", "-c"],
}
NEEDED = [
    pytest.param(
        shell, marks=pytest.mark.skipif(not shutil.which(shell), reason=f"{shell} is not installed")
    )
    for shell in SHELLS
]


@pytest.fixture
def desk(world: World) -> World:
    """A world with an agent that says whether it is supervised."""
    tools = world.folder / "tools"
    tools.mkdir()
    said = 'printf "%s %s\\n" "${HERMES_SUPERVISE_RUN:+supervised}" "$*"; exit 7'
    ours = f'exec {shlex.join(world.command)} "$@"'
    for name, line in (("codex", said), ("hermes-supervise", ours)):
        (tools / name).write_text(f"#!/bin/sh\n{line}\n")
        (tools / name).chmod(0o755)
    world.env |= {"PATH": f"{tools}:/usr/bin:/bin", "TERM": "dumb"}
    world.env.pop("HERMES_SUPERVISE", None)
    return world


def typed(
    world: World, shell: str, line: str, *, interactive: bool = True, **env: str
) -> subprocess.CompletedProcess[str]:
    script = world.call("shell-init", shell)
    assert script.returncode == 0, script.stderr
    start = world.folder / "start"
    start.write_text(script.stdout)
    command = [word for word in SHELLS[shell] if interactive or word != "-i"]
    return subprocess.run(
        [*command, f". {start}\n{line}"], env={**world.env, **env}, cwd=world.folder,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("shell", NEEDED)
def test_an_agent_that_is_typed_is_supervised_and_has_its_arguments_and_status(
    desk: World, shell: str
) -> None:
    done = typed(desk, shell, "codex 'two words' x")
    assert (done.returncode, done.stdout) == (7, "supervised two words x\n"), done.stderr


@pytest.mark.parametrize("shell", NEEDED)
@pytest.mark.parametrize(
    ("line", "env"),
    [
        ("command codex x", {}),
        ("codex x", {"HERMES_SUPERVISE": "0"}),
        ("codex x", {"HERMES_SUPERVISE_RUN": ""}),
    ],
    ids=["command", "switched off", "an empty variable"],
)
def test_the_bare_agent_is_one_word_or_one_variable_away(
    desk: World, shell: str, line: str, env: dict[str, str]
) -> None:
    done = typed(desk, shell, line, **env)
    supervised = "HERMES_SUPERVISE_RUN" in env and shell != "fish"  # fish: set is set
    assert done.stdout == f"{'supervised' if supervised else ''} x\n", done.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_it_has_no_function_in_common_with_the_completions(desk: World, shell: str) -> None:
    """Both are in one start file: a second definition would replace the first."""
    defined = re.compile(r"^\s*(?:function )?(\w+)(?:\(\)| \{|$)", re.M)
    names = [
        {name for name in defined.findall(desk.call(command, shell).stdout) if "_supervise" in name}
        for command in ("shell-init", "completions")
    ]
    assert all(names)
    assert not names[0] & names[1]


def test_with_completions_in_the_same_start_file_agents_are_supervised(desk: World) -> None:
    completions = desk.folder / "completions"
    completions.write_text(desk.call("completions", "bash").stdout)
    done = typed(desk, "bash", f". {completions}\ncodex x")
    assert (done.returncode, done.stdout) == (7, "supervised x\n"), done.stderr


@pytest.mark.parametrize("shell", NEEDED)
def test_inside_of_a_supervised_run_nothing_is_supervised_twice(desk: World, shell: str) -> None:
    nested = "hermes-supervise -- sh -c 'echo $HERMES_SUPERVISE_RUN > outer; exec \"$@\"' sh "
    start = desk.folder / "start"
    inner = shlex.join([*SHELLS[shell], f". {start}; codex; echo $HERMES_SUPERVISE_RUN > inner"])
    typed(desk, shell, nested + inner)
    outer, inside = (desk.folder / "outer").read_text(), (desk.folder / "inner").read_text()
    assert outer == inside != "\n"
    assert len(list((desk.state / "hermes-supervise").glob("runs/*"))) == 0


@pytest.mark.parametrize("shell", NEEDED)
def test_a_script_and_a_program_that_is_not_there_are_left_alone(desk: World, shell: str) -> None:
    assert typed(desk, shell, "codex x", interactive=False).stdout == " x\n"
    missing = typed(desk, shell, "gemini")
    assert missing.returncode == 127
    assert "hermes-supervise" not in missing.stderr.replace("hermes_supervise", "")


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_an_alias_of_the_same_name_does_no_harm(desk: World, shell: str) -> None:
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    done = typed(desk, shell, "codex y")
    start = desk.folder / "start"
    start.write_text("alias codex='codex --flag'\n" + start.read_text())
    again = subprocess.run(
        [*SHELLS[shell], f". {start}\neval 'codex y'"], env=desk.env, cwd=desk.folder,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == "supervised y\n"
    assert again.stdout == "supervised --flag y\n", again.stderr
