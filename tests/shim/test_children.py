"""Processes that an agent starts: its own get the shim, tools the environment without us."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hermes_supervise import agent_shim
from support import DEADLINE, World

INJECTED = str(Path(agent_shim.__file__).parent / "inject")
# What the agent is, as far as the shim looks at it here.
AGENT = {"run_agent.py": "class AIAgent: pass\n", "hermes_cli/__init__.py": ""}
SHOW = "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv, sys.orig_argv]))"
OURS = ("HERMES_SUPERVISE_SOCKET", "HERMES_SUPERVISE_SPOOL", "HERMES_SUPERVISE_RUN")


@pytest.fixture
def agent(world: World) -> Path:
    folder = world.folder / "agent"
    for name, text in AGENT.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "hermes_cli" / "main.py").write_text(SHOW)
    return folder


def shown(world: World, agent: Path, program: str) -> tuple[dict[str, str], list[str], list[str]]:
    """What the process sees that a program in the agent's place starts."""
    env = world.env | {
        "PYTHONPATH": INJECTED + os.pathsep + str(agent),
        "HERMES_SUPERVISE_SOCKET": str(world.folder / "nobody.sock"),
        "HERMES_SUPERVISE_SPOOL": str(world.folder),
        "HERMES_SUPERVISE_RUN": "run",
    }
    ran = subprocess.run(
        [sys.executable, "-c", "import os, subprocess, sys\n" + program],
        env=env, cwd=world.folder, capture_output=True, text=True, timeout=DEADLINE,
    )  # fmt: skip
    assert ran.stderr == "", ran.stderr
    seen, argv, words = json.loads(ran.stdout)
    return seen, argv, words


@pytest.mark.parametrize("before", ["import hermes_cli", "import run_agent"])
@pytest.mark.parametrize(
    "start",
    [
        "subprocess.call(words, env={'PATH': ''})",
        "subprocess.Popen(args=words, env={'PATH': ''}).wait()",
        "subprocess.Popen(tuple(words), -1, None, None, None, None, None, True, False, None,"
        " {'PATH': ''}).wait()",
        "__import__('asyncio').run(started())",
        "os.execve(words[0], words, {'PATH': ''})",
        "os.environ.pop('PYTHONPATH', None); os.execv(words[0], words)",
        "os.environ.pop('PYTHONPATH', None); os.execvp(words[0], words)",
    ],
)
def test_the_agents_own_process_gets_the_shim_whatever_it_is_started_with(
    world: World, agent: Path, before: str, start: str
) -> None:
    program = f"""{before}
async def started():
    import asyncio
    child = await asyncio.create_subprocess_exec(*words, env={{'PATH': ''}})
    await child.wait()
words = [sys.executable, '-I', '-c', "import sys, runpy; sys.path.insert(0, {str(agent)!r}); "
         "runpy.run_module('hermes_cli.main', run_name='__main__')", 'an argument']
{start}
"""
    seen, argv, words = shown(world, agent, program)
    assert argv[1:] == ["an argument"]
    assert words[1] == "-c", "without the switch that keeps the shim out"
    assert all(name in seen for name in OURS)
    assert "HERMES_SUPERVISE_PYTHON" not in seen
    assert seen.get("PYTHONSAFEPATH") in (None, world.env.get("PYTHONSAFEPATH"))


@pytest.mark.parametrize(
    "start",
    [
        "subprocess.call(words)",
        "subprocess.call(words, env=dict(os.environ))",
        "os.fork() or os.execv(words[0], words); os.wait()",
        "os.fork() or os.execve(words[0], words, dict(os.environ)); os.wait()",
        "subprocess.call(f\"'{words[0]}' -c '{words[2]}'\", shell=True)",
    ],
)
def test_a_tool_is_started_as_without_us(world: World, agent: Path, start: str) -> None:
    program = f"import run_agent\nwords = [sys.executable, '-c', {SHOW!r}]\n{start}\n"
    seen, _, _ = shown(world, agent, program)
    assert not [name for name in seen if name in OURS]
    assert seen["PYTHONPATH"] == str(agent)


def test_what_the_agent_becomes_in_its_own_place_is_still_followed(
    world: World, agent: Path
) -> None:
    program = f"import run_agent\nos.execv(sys.executable, [sys.executable, '-c', {SHOW!r}])\n"
    seen, _, _ = shown(world, agent, program)
    assert all(name in seen for name in OURS)
    assert seen["PYTHONPATH"] == INJECTED + os.pathsep + str(agent)


def test_an_error_of_the_agents_start_is_the_agents_own(world: World, agent: Path) -> None:
    program = """import run_agent, json
found = []
for words, named in ((['/nonexistent/hermes'], {}), ([], {}), (['/bin/true'], {'no_such': 1}),
                     ([sys.executable, '-m', 'hermes_cli.main'], {'cwd': '/nonexistent'})):
    try:
        subprocess.Popen(words, **named)
    except Exception as error:
        found.append(type(error).__name__)
try:
    os.execv('/nonexistent/hermes', ['hermes'])
except OSError as error:
    found.append(type(error).__name__)
print(json.dumps([{}, found, []]))
"""
    _, found, _ = shown(world, agent, program)
    assert found == ["FileNotFoundError", "IndexError", "TypeError", "FileNotFoundError",
                     "FileNotFoundError"]  # fmt: skip
