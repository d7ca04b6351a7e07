"""Completion, as real shells do it: lines are typed at a real terminal, and the key is pressed.

zsh and fish are tried where they are installed; bash completes the agent's own arguments by the
help of the package bash-completion.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hermes_supervise.supervisor.cli.completions import schema
from hermes_supervise.supervisor.cli.options import TABLE
from hermes_supervise.supervisor.cli.usage import COMMANDS
from support import World, until
from terminals import Terminal

BASH_COMPLETION = Path("/usr/share/bash-completion/bash_completion")
Press = Callable[[str], str]

# What is typed, and what stands there once the key was pressed.
LINES = {
    "--orph": "--orphans",
    "--orphans term": "--orphans terminate",
    "--orphans=term": "--orphans=terminate",
    "--grace 5 --stri": "--grace 5 --strict",
    "--watch trans": "--watch transcript.jsonl",
    "completio": "completions",
    "completions fi": "completions fish",
    "hooks ret": "hooks retry",
    "hooks retry --al": "hooks retry --all",
    "sweep --dry": "sweep --dry-run",
    "recover --color nev": "recover --color never",
    "desktop install --autost": "desktop install --autostart-recover",
    "frobn": "frobnicator",
    "-- frobn": "-- frobnicator",
    "--db x frobn": "--db x frobnicator",
    "desktop systemd -- frobn": "desktop systemd -- frobnicator",
    "sessions for": "sessions forget",
    "sessions cha": "sessions chat-1",
    "sessions forget cha": "sessions forget chat-1",
    "show cha": "show chat-1",
    "report cha": "report chat-1",
}
# The same behind an agent: what it takes is for its own completion to say.
AGENTS = {
    "frobnicator --lou": "frobnicator --loudly",
    "-- frobnicator --lou": "-- frobnicator --loudly",
    "--db x --quiet -- frobnicator a --lou": "--db x --quiet -- frobnicator a --loudly",
    "doctor -- frobnicator --lou": "doctor -- frobnicator --loudly",
    "desktop install --name x -- frobnicator --lou": (
        "desktop install --name x -- frobnicator --loudly"
    ),
    "-- frobnicator --orph": "-- frobnicator --orph",
    "-- hooks ret": "-- hooks ret",
}
COMPLETED = {
    "bash": "complete -W '--loudly' frobnicator",
    "zsh": "_frob() { _arguments '--loudly[x]' '*:thing:_files' }; compdef _frob frobnicator",
    "fish": "complete -c frobnicator -f -l loudly",
}


@pytest.fixture
def desk(world: World) -> World:
    tools = world.folder / "tools"
    tools.mkdir()
    for name, line in (
        ("hermes-supervise", f'exec {shlex.join(world.command)} "$@"'),
        ("frobnicator", "exit 0"),
    ):
        (tools / name).write_text(f"#!/bin/sh\n{line}\n")
        (tools / name).chmod(0o755)
    (world.folder / "transcript.jsonl").touch()
    world.env |= {"PATH": f"{tools}:/usr/bin:/bin", "TERM": "dumb", "LC_ALL": "C.UTF-8"}
    # Two sessions that came to a report, one of them by an agent that means no good.
    both = "for name in ('chat-1', '$(touch owned)'):\n    session(name).message('user', 'x')\n"
    world.supervise(both + "os.kill(os.getpid(), 9)").finish()
    for shell in COMPLETED:
        script = world.call("completions", shell)
        assert script.returncode == 0, script.stderr
        (world.folder / f"script.{shell}").write_text(script.stdout + COMPLETED[shell] + "\n")
    return world


@contextmanager
def at_the_prompt(world: World, command: list[str], setup: str) -> Iterator[Press]:
    terminal = Terminal(columns=200)
    process = subprocess.Popen(
        command, env=world.env, cwd=world.folder, stdin=terminal.near, stdout=terminal.near,
        stderr=terminal.near, start_new_session=True,
    )  # fmt: skip
    done = world.folder / "done"

    def enter(line: str) -> str:
        """A line, typed; what its output file holds."""
        terminal.type(line + "\r")
        until(done.exists, f"{line!r} at {terminal.raw[-2000:]!r}")
        done.unlink()
        out = world.folder / "out"
        return out.read_text() if out.exists() else ""

    def press(line: str) -> str:
        """What a line becomes by pressing the key: the shell prints its words."""
        typed = enter(f"hermes-supervise {line}\t\x01printf '%s ' \x05 >out; touch done")
        return typed.removeprefix("hermes-supervise ").strip()

    try:
        enter(f"{setup}; touch done")
        yield press
    finally:
        process.kill()
        process.wait()
        terminal.close()


@pytest.mark.parametrize("helped", [False, True])
def test_bash_completes_our_command_lines(desk: World, helped: bool) -> None:
    if helped and not BASH_COMPLETION.exists():
        pytest.skip("bash-completion is not installed here")
    setup = f". {BASH_COMPLETION}; . ./script.bash" if helped else ". ./script.bash"
    shutil.copy(desk.folder / "tools" / "frobnicator", desk.folder / "tools" / "sessionist")
    with at_the_prompt(desk, ["bash", "--norc", "--noprofile", "-i"], setup) as press:
        lines = LINES | (AGENTS if helped else {})
        assert {line: press(line) for line in lines} == lines
        assert press("sessi") == "sessions", "ours is not buried under programs"
        assert press("-- sessi") == "-- sessionist"
        press("show ")
    assert not (desk.folder / "owned").exists(), "an id is not a command"


@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not installed here")
def test_zsh_completes_our_command_lines_and_the_agents(desk: World) -> None:
    shutil.copy(desk.folder / "tools" / "frobnicator", desk.folder / "tools" / "sessionist")
    setup = "autoload -U compinit; compinit -u -D; setopt no_beep; . ./script.zsh"
    with at_the_prompt(desk, ["zsh", "-f", "-i"], setup) as press:
        lines = LINES | AGENTS
        assert {line: press(line) for line in lines} == lines
        assert press("sessi") == "sessions", "ours is not buried under programs"
        press("show ")
    assert not (desk.folder / "owned").exists(), "an id is not a command"


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed here")
def test_fish_completes_our_command_lines_and_the_agents(desk: World) -> None:
    lines = LINES | AGENTS
    asked = "\n".join(
        f"complete -C {shlex.quote('hermes-supervise ' + line)}; echo ." for line in lines
    )
    generated = desk.folder / "generated"
    generated.mkdir()
    (generated / "hermes-supervise.fish").write_text("complete -c hermes-supervise -l scrap")
    script = (
        f"set -p fish_complete_path {generated}\nsource script.fish\n{asked}\n"
        "complete -C 'hermes-supervise '; echo .\ncomplete -C 'hermes-supervise --scr'; echo .\n"
        "complete -C 'hermes-supervise show '"
    )
    done = subprocess.run(
        ["fish", "--no-config", "-c", script],
        env=desk.env, cwd=desk.folder, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stderr == ""
    *answers, first, scraps, sessions = done.stdout.split(".\n")
    offered = [line.partition("\t")[0] for line in first.splitlines()]
    assert sorted(offered) == sorted(COMMANDS), "not every program there is"
    assert scraps == "", "nor what fish once read from the man page"
    for (line, wanted), answer in zip(lines.items(), answers, strict=True):
        offered = [line.partition("\t")[0] for line in answer.splitlines()]
        last = wanted.split()[-1]
        assert offered == ([] if line == wanted else [last]), line
    assert sessions.splitlines() == ["$(touch owned)", "chat-1"]
    assert not (desk.folder / "owned").exists(), "an id is not a command"


def test_all_that_is_understood_is_completed(world: World) -> None:
    flags = {name for flag in schema.run_flags() for name in flag.names}
    assert flags == {option.flag for option in TABLE} | {"-h", "--help", "-V", "--version"}
    commands = {command.name: command for command in schema.commands()}
    assert list(commands) == list(COMMANDS)
    assert all(command.flags for command in commands.values() if command.name != "demo")
    assert {b.name for b in commands["hooks"].below} == {"list", "retry", "forget"}
    assert {b.name for b in commands["sessions"].below} == {"forget"}


def test_a_shell_that_is_not_known_is_refused(world: World) -> None:
    refused = world.call("completions", "tcsh")
    assert refused.returncode == 2 and "bash" in refused.stderr
