"""Every way in: whatever starts Hermes, and whatever Hermes starts, what is said is kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hermes_launchers import SHAPES, install, store
from hermes_supervise.agent_shim.adapters.hermes_children import runs_hermes
from hermes_world import Hermes, Model, call, say
from support import World, short, until
from test_hermes import ONE_SHOT, VERSIONS, journal, ledger, shown_in_state_db

# Of a shell and of a session: another one each time.
CHANGING = ("_", "OLDPWD", "PWD", "SHLVL", "HERMES_SESSION_ID", "HERMES_SESSION_KEY")
BOTH = ["on_session_end", "on_session_finalize"]


@pytest.fixture(params=VERSIONS)
def hermes(request: pytest.FixtureRequest, world: World, model: Model) -> Hermes:
    return Hermes(request.param, world, model)


def mid_reply(hermes: Hermes) -> None:
    hermes.model.script = [[*say("some words of it"), ("hold", "here")]]


def held(hermes: Hermes) -> None:
    hermes.model.wait_until_held()
    until(lambda: b"words of it " in journal(hermes.world), "the last word is handed over")


def recovered(hermes: Hermes, plugin: Path) -> None:
    session, rows = shown_in_state_db(hermes)
    assert short(rows) == [("user", "hello there"), ("assistant", "some words of it ")]
    assert session["end_reason"] == "interrupted"
    assert [name for name, _ in ledger(plugin)] == BOTH, "run by an interpreter that has Hermes"


@pytest.mark.parametrize("shape", SHAPES)
def test_an_installers_launcher_that_would_keep_the_shim_out_is_bypassed(
    hermes: Hermes, shape: str
) -> None:
    plugin = hermes.plugin()
    command = install(hermes, shape)
    mid_reply(hermes)
    agent = hermes.world.run([command, *ONE_SHOT["quiet"]])
    held(hermes)
    agent.kill_agent()
    assert agent.finish(120) == -signal.SIGKILL
    recovered(hermes, plugin)
    assert b"could not be captured" not in agent.errors


def test_the_command_line_that_a_launcher_prints_is_followed_as_well(hermes: Hermes) -> None:
    plugin = hermes.plugin()
    mid_reply(hermes)
    agent = hermes.world.run(store(hermes).child("hermes_cli.main", *ONE_SHOT["quiet"]))
    held(hermes)
    agent.kill_agent()
    agent.finish(120)
    recovered(hermes, plugin)


def test_the_child_that_goes_on_after_an_update_is_followed(hermes: Hermes) -> None:
    """Hermes runs the same command in its new interpreter, isolated, and waits for it."""
    plugin = hermes.plugin()
    mid_reply(hermes)
    agent = hermes.world.run([store(hermes, relaunch=True).command, *ONE_SHOT["quiet"]])
    held(hermes)
    [child] = Path(f"/proc/{agent.agent}/task/{agent.agent}/children").read_text().split()
    os.kill(int(child), signal.SIGKILL)
    agent.finish(120)
    recovered(hermes, plugin)


STARTS = """
import hermes_cli, run_agent, subprocess
os.environ["PYTHONPATH"] = "/replaced/by/hermes"
words = __import__("json").loads(sys.argv[1])
child = subprocess.Popen(words, env={name: value for name, value in os.environ.items()
                                     if not name.startswith("HERMES_SUPERVISE")})
assert child.args is words
ready(f"child {child.pid}")
child.wait()
"""


@pytest.mark.parametrize("how", ["module", "isolated", "launcher"])
def test_a_hermes_that_hermes_starts_with_another_environment_is_followed(
    hermes: Hermes, how: str
) -> None:
    plugin = hermes.plugin()
    mid_reply(hermes)
    start = {
        "module": lambda: [hermes.python, "-m", "hermes_cli.main"],
        "isolated": lambda: store(hermes).child("hermes_cli.main"),
        "launcher": lambda: [install(hermes, "bash")],
    }[how]()
    words = json.dumps([*start, *ONE_SHOT["quiet"]])
    agent = hermes.world.run([hermes.python, hermes.world.script(STARTS), words])
    child = int(agent.wait_for("child", 120).split()[1])
    held(hermes)
    os.kill(child, signal.SIGKILL)
    agent.finish(120)
    recovered(hermes, plugin)


PYTHON = sys.executable
RUN = "import os, sys, runpy; import hermes_bootstrap; runpy.run_module({!r}, run_name='__main__')"


@pytest.mark.parametrize(
    ("words", "env", "runs"),
    [
        ([PYTHON, "-m", "tui_gateway.compute_host"], {}, True),
        ([PYTHON, "-I", "-m", "hermes_cli.main", "chat"], {}, True),
        ([PYTHON, "-m", "tui_gateway.slash_worker"], {}, False),
        ([PYTHON, "-m", "pip", "install", "hermes_cli.main"], {}, False),
        (["/usr/bin/python3", "-m", "cli"], {}, False),
        (["/store/python3", "-I", "-c", RUN.format("hermes_cli.main"), "serve"], {}, True),
        (["/store/python3", "-I", "-c", RUN.format("agent.tools_server")], {}, False),
        ([PYTHON, "-c", "import hermes_bootstrap; exec('watch a pid')"], {}, False),
        ([PYTHON, "-c", "print('hermes_cli.main')"], {}, False),
        (["/home/me/.local/bin/hermes", "chat", "-q", "x"], {}, True),
        ([PYTHON, "/venv/bin/hermes", "chat"], {}, True),
        ([PYTHON, "/tmp/script.py", "hermes"], {}, False),
        (["node", "--expose-gc", "/x/tui_dist/entry.js"], {"HERMES_PYTHON": PYTHON}, True),
        (["node", "/somebody/elses/entry.js"], {}, False),
        (["/bin/bash", "-c", "hermes chat"], {}, False),
    ],
)
def test_only_hermes_own_processes_are_taken_for_such(
    words: list[str], env: dict[str, str], runs: bool
) -> None:
    assert runs_hermes(words, env) is runs


def test_doctor_asks_an_interpreter_that_has_hermes_only_after_its_bootstrap(
    hermes: Hermes,
) -> None:
    command = store(hermes).command
    before = {path: path.read_bytes() for path in hermes.world.home.rglob("*") if path.is_file()}
    done = hermes.world.call("doctor", "--json", "--", command, deadline=120)
    checks = json.loads(done.stdout)["checks"]
    found = {check["name"]: (check["state"], check["text"]) for check in checks}
    assert found["agent"] == ("ok", f"Hermes {hermes.version}")
    assert found["shim"][0] == "ok"
    assert {check["state"] for check in checks if check["name"] in ("seam", "way in")} == {"ok"}
    after = {path: path.read_bytes() for path in hermes.world.home.rglob("*") if path.is_file()}
    assert after == before, "asking leaves nothing in the user's home"


def test_a_tool_behind_an_isolated_launcher_sees_what_it_would_without_us(hermes: Hermes) -> None:
    world = hermes.world
    out = world.folder / "environment"
    command = [store(hermes).command, *ONE_SHOT["quiet"]]
    world.env |= {"PYTHONPATH": "/mine", "PYTHONUNBUFFERED": "1", "PYTHONSTARTUP": "a % b"}
    seen = []
    for supervised in (False, True):
        hermes.model.script = [[call("terminal", {"command": f"env > {out}"}, "c")], say("Done")]
        if supervised:
            assert world.run(command).finish(120) == 0
        else:
            subprocess.run(command, env=world.env, cwd=world.folder, check=True, timeout=60,
                           capture_output=True)  # fmt: skip
        lines = dict(line.partition("=")[::2] for line in out.read_text().splitlines())
        seen.append({name: value for name, value in lines.items() if name not in CHANGING})
    assert seen[1] == seen[0]
    assert seen[0]["PYTHONUNBUFFERED"] == "1" and "/mine" not in seen[0].get("PYTHONPATH", "")
