"""config.toml, variables and flags: which wins, what is wrong where, and the agent runs anyway."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
import settings_page
from support import Supervised, World, until


def write(world: World, text: str, *, age: float = 3600.0) -> Path:
    """A config.toml that was written some time ago."""
    path = world.folder / ".config" / "hermes-supervise" / "config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o600)
    os.utime(path, (time.time() - age,) * 2)
    return path


def settings(world: World) -> dict[str, Any]:
    answer = world.call("config", "--json")
    assert not answer.stderr
    result = json.loads(answer.stdout)
    assert isinstance(result, dict)
    assert (answer.returncode == 0) == (result["problems"] == [])
    return result


def in_force(agent: Supervised, world: World) -> dict[str, Any]:
    """What a run has written down, while it lasts."""
    [run] = until(world.runs, "the run's folder")
    text = until(lambda: (run / "run.json").read_text(), "the run is written down")
    found = json.loads(text)
    assert isinstance(found, dict)
    return found


WAITS = "ready()\nforever()\n"


def test_a_flag_wins_over_a_variable_and_that_over_the_file_and_that_over_the_default(
    world: World,
) -> None:
    file = write(world, "grace = 1\nhook_timeout = 2.5\n\norphans = 'leave'\n")
    world.env["HERMES_SUPERVISE_HOOK_TIMEOUT"] = "3"
    world.env["HERMES_SUPERVISE_ORPHANS"] = "report"
    agent = world.supervise(WAITS, "--orphans", "terminate")
    agent.wait_for("ready")
    found = in_force(agent, world)
    chosen = [found[name] for name in ("grace", "hook_timeout", "orphans", "sync")]
    assert chosen == [1, 3, "terminate", "interval"]
    answer = settings(world)
    assert (answer["file"], answer["exists"], answer["problems"]) == (str(file), True, [])
    assert answer["settings"]["grace"] == {"value": 1.0, "from": f"{file}:1"}
    assert answer["settings"]["hook_timeout"] == {
        "value": 3.0, "from": "HERMES_SUPERVISE_HOOK_TIMEOUT"
    }  # fmt: skip
    assert answer["settings"]["sync"] == {"value": "interval", "from": "default"}
    agent.kill_agent()
    agent.finish()


def test_hooks_in_the_file_run_and_hooks_of_a_flag_replace_them(world: World) -> None:
    _, command = world.hook
    write(world, f"on_session_end = [{json.dumps(command)}, 'true']\n")
    source = 'with session("chat") as chat:\n    chat.message("user", "x")\n    ' + (
        "ready()\n    forever()\n"
    )
    agent = world.supervise(source)
    agent.wait_for("ready")
    agent.kill_agent()
    agent.finish()
    until(lambda: [event["session_id"] for event in world.events()] == ["chat"], "the hook has run")
    [report] = world.reports()
    assert [ran["command"] for ran in report["hooks"]] == [command, "true"]
    agent = world.supervise(source, "--on-session-end", "true flag")
    agent.wait_for("ready")
    agent.kill_agent()
    agent.finish()
    [other] = [found for found in world.reports() if found["run"] != report["run"]]
    assert [ran["command"] for ran in other["hooks"]] == ["true flag"]


# The line, then what else the message names: the key, its value, and what would be right.
WRONG = {
    "grase = 5": (1, "'grase'", "grace?"),
    "hook-timeout = 5": (1, "'hook-timeout'", "hook_timeout?"),
    "# one\n\n'grace' = 'soon'": (3, "grace:", "'soon'", "number"),
    "grace = '5'": (1, "grace:", "'5'", "number"),
    "grace = -1": (1, "grace:", "'-1'", "number"),
    "grace = true": (1, "grace:", "True", "number"),
    "strict = 1": (1, "strict:", "1", "true", "false"),
    "db = 5": (1, "db:", "5", "string"),
    "orphans = 'eat'": (1, "orphans:", "'eat'", "terminate", "report", "leave"),
    "on_session_end = 'true'": (1, "on_session_end:", "'true'", "list", '["CMD"]'),
    "on_session_end = ['a', 1]": (1, "on_session_end:", "['a', 1]", "list"),
    "[agents.hermes]\ngrace = 1": (1, "'agents'"),
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_named_by_file_line_and_key_and_the_rest_holds(
    world: World, text: str
) -> None:
    file = write(world, f"{text}\n" if text.startswith("[") else f"{text}\nsync = 'always'\n")
    answer = world.call("--", "echo", "ran")
    assert (answer.returncode, answer.stdout) == (0, "ran\n")
    errors = answer.stderr.splitlines()
    assert len(errors) == 1
    line, *named = WRONG[text]
    assert errors[0].startswith(f"hermes-supervise: {file}:{line}: ")
    assert [word for word in named if word not in errors[0].split(f":{line}: ")[1]] == []
    result = settings(world)
    [problem] = result["problems"]
    assert errors[0] == f"hermes-supervise: {problem}"
    if not text.startswith("["):
        assert result["settings"]["sync"]["value"] == "always"


def test_what_is_wrong_stops_the_agent_only_if_that_is_asked_for(world: World) -> None:
    file = write(world, "grase = 5\n")
    refused = world.call("--strict", "--", "echo", "ran")
    assert (refused.returncode, refused.stdout) == (125, "")
    assert str(file) in refused.stderr
    quiet = world.call("--quiet", "--", "echo", "ran")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "ran\n", "")


@pytest.mark.parametrize("text", ["grace = 1\nsync = \n", "grace = 1\ngrace = 2\n", "x = [1,\n"])
def test_a_file_that_is_no_toml_is_not_used_at_all_and_the_agent_runs(
    world: World, text: str
) -> None:
    file = write(world, text)
    answer = world.call("--", "echo", "ran")
    assert (answer.returncode, answer.stdout) == (0, "ran\n")
    assert re.fullmatch(
        rf"hermes-supervise: {re.escape(str(file))}:2: not TOML: .*\n",
        answer.stderr,
    ), answer.stderr
    assert settings(world)["settings"]["grace"]["value"] == 10


def test_a_file_that_others_can_write_is_not_believed(world: World) -> None:
    proof = world.folder / "proof"
    file = write(world, f"on_session_end = ['touch {proof}']\n")
    for mode, owner, word in (
        (0o602, os.getuid(), "mode 602"),
        (0o600, 12345, "user 12345"),
    ):
        if os.getuid() == 0:
            os.chown(file, owner, -1)
        elif owner != os.getuid():
            continue  # only root can give a file away
        file.chmod(mode)
        agent = world.supervise(
            'with session("chat") as chat:\n    chat.message("user", "x")\n    '
            "ready()\n    forever()\n"
        )
        agent.wait_for("ready")
        agent.kill_agent()
        assert agent.finish() == -signal.SIGKILL
        [line] = [line for line in agent.errors.decode().splitlines() if str(file) in line]
        assert word in line
        assert not proof.exists()


def test_a_file_of_a_group_of_ones_own_is_believed_and_that_of_another_group_is_not(
    world: World,
) -> None:
    file = write(world, "grace = 1\n")
    if os.getuid() == 0:
        os.chown(file, 0, 12345)
        file.chmod(0o660)
        assert "mode 660" in settings(world)["problems"][0]
    os.chown(file, -1, os.getuid())
    file.chmod(0o660)
    assert settings(world)["settings"]["grace"]["value"] == 1


def test_a_link_to_a_file_is_as_good_as_the_file_and_a_pipe_is_none(world: World) -> None:
    file = write(world, "")
    file.unlink()
    real = world.folder / "dotfiles.toml"
    real.write_text("grace = 4\n")
    real.chmod(0o600)
    file.symlink_to(real)
    assert settings(world)["settings"]["grace"]["value"] == 4
    file.unlink()
    os.mkfifo(file, 0o600)
    [problem] = settings(world)["problems"]
    assert problem.startswith(f"{file}: not a file")


def loaded(world: World, *modules: str) -> list[str]:
    """Which of these a launch has imported when it comes to set up supervision."""
    probe = (
        "import sys; from hermes_supervise.supervisor.cli import arguments; "
        "chosen, _ = arguments.parse(['true']); "
        f"print(*[m for m in {modules!r} if m in sys.modules], chosen.grace, chosen.on_session_end)"
    )
    import subprocess

    command = [sys.executable, "-I", "-c", probe]
    return subprocess.check_output(command, env=world.env, text=True).split(" ", 2)


def test_a_file_is_parsed_once_until_it_changes(world: World) -> None:
    assert "tomllib" not in loaded(world, "tomllib"), "there is no file"
    file = write(world, "grace = 7\non_session_end = ['a  b', 'ü']\n")
    changed = os.stat(file).st_ctime
    until(lambda: time.time() - changed > 2.0, "the file is older than a tick of its clock")
    assert loaded(world, "tomllib") == ["tomllib", "7.0", "['a  b', 'ü']\n"]
    assert loaded(world, "tomllib") == ["7.0", "['a", " b', 'ü']\n"]
    assert settings(world)["settings"]["on_session_end"]["from"] == f"{file}:2"
    memory = world.state / "hermes-supervise" / "settings"
    assert memory.stat().st_mode & 0o777 == 0o600
    write(world, "grace = 8\non_session_end = ['a  b', 'ü']\n")
    assert loaded(world, "tomllib")[:2] == ["tomllib", "8.0"], "as long, as old, and another"
    memory.write_bytes(memory.read_bytes()[:-1])
    assert loaded(world, "tomllib")[:2] == ["tomllib", "8.0"]


def test_a_run_is_finished_as_it_was_begun_whatever_the_file_says_today(world: World) -> None:
    _, command = world.hook
    write(world, f"on_session_end = [{json.dumps(command)}]\ndb = '{world.db}'\n")
    agent = world.supervise(
        'with session("chat") as chat:\n    chat.message("user", "x")\n    ready()\n    forever()\n'
    )
    agent.wait_for("ready")
    write(world, f"on_session_end = ['false']\ndb = '{world.folder / 'other.db'}'\n")
    agent.abandon()
    result = world.call("recover")
    assert result.returncode == 0, result.stderr
    assert [row["content"] for row in world.messages("chat")] == ["x"]
    until(lambda: [event["session_id"] for event in world.events()] == ["chat"], "the hook has run")


def test_config_shows_a_person_the_same_and_names_unknown_variables(
    world: World,
) -> None:
    answer = world.call("config")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.startswith(f"# {world.folder}/.config/hermes-supervise/config.toml ")
    assert f'"{world.db}"' in answer.stdout
    world.env["HERMES_SUPERVISE_GRASE"] = "1"
    world.env["HERMES_SUPERVISE_RESUMED"] = world.env["HERMES_SUPERVISE_RUN"] = "not settings"
    world.env["HERMES_SUPERVISE_SYNC"] = "never"
    unknown, wrong = settings(world)["problems"]
    assert unknown.startswith("HERMES_SUPERVISE_GRASE: ") and "HERMES_SUPERVISE_GRACE" in unknown
    assert wrong.startswith("HERMES_SUPERVISE_SYNC: 'never'")


def test_config_prints_toml_with_the_values_in_force(world: World) -> None:
    hooks = ["notify-send 'it is \"over\"'", "a\tb \x1b[2J \u00fc"]
    write(world, f"on_session_end = {json.dumps(hooks)}\ngrace = 2.5\n")
    world.env["HERMES_SUPERVISE_STRICT"] = "1"
    answer = world.call("config")
    assert (answer.returncode, answer.stderr) == (0, "")
    printed = tomllib.loads(answer.stdout)
    result = {name: setting["value"] for name, setting in settings(world)["settings"].items()}
    assert printed == {name: value for name, value in result.items() if value is not None}
    assert "\x1b" not in answer.stdout


def test_the_page_lists_every_setting_and_no_other() -> None:
    page = settings_page.PAGE.read_text()
    assert page == settings_page.written(page), "`python tests/lib/settings_page.py` writes it anew"
