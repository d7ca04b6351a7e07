"""`doctor` says what is in place; a Hermes that cannot be followed is said to be so."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hermes_supervise.supervisor.agents.hermes.ways_in import OUT_OF_REACH
from hermes_supervise.supervisor.cli.commands import doctor
from support import World, until

ROOT = Path(__file__).parents[2]
PLACES = ["state folder", "socket", "watching processes", "processes", "orphans", "witness",
          "settings", "database", "search index", "leftovers", "out of memory"]  # fmt: skip


def ask(world: World, *command: str) -> tuple[int, dict[str, list[tuple[str, str]]]]:
    """The exit status, and by name the state and text of each check."""
    answer = world.call("doctor", "--json", *(["--", *command] if command else []))
    result = json.loads(answer.stdout)
    assert result["well"] == (answer.returncode == 0)
    found: dict[str, list[tuple[str, str]]] = {}
    for check in result["checks"]:
        found.setdefault(check["name"], []).append((check["state"], check["text"]))
    return answer.returncode, found


def test_a_command_that_cannot_be_run_is_named_with_what_to_do(world: World) -> None:
    plain = world.folder / "plain file"
    plain.write_text("#!/bin/sh\n")
    for command, remedy in (
        ("no-such-agent", "PATH"),
        (str(plain), f"chmod +x '{plain}'"),
        (str(world.folder), "directory"),
        ("./not-here", "no such file"),
    ):
        code, found = ask(world, command)
        [(state, text)] = found["command"]
        assert (code, state) == (1, "bad") and remedy in text


def installed(world: World, python: str, name: str = "hermes", first: str = "") -> str:
    """A script as pip makes it, with a first line of our choice."""
    path = world.folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        (first or f"#!{python}")
        + "\nimport sys\nfrom hermes_cli.main import main\nsys.exit(main())\n"
    )
    path.chmod(0o755)
    return str(path)


# A later release, as far as we look at one: methods of ours, one of them renamed.
LATER = {
    "run_agent.py": """
import os, signal, sys, threading, time

class AIAgent:
    platform, model = "cli", "later"
    def __init__(self, session_db):
        self.session_id, self._session_db = "later-1", session_db
    def run_conversation(self, user_message, **more):
        self._reset_stream_delivery_tracking()
        self._fire_thoughts("a thought")
        for word in ("these ", "words ", "count"):
            self._fire_stream_delta(word)
        print("streamed", flush=True)
        while True:
            signal.pause()
    def _fire_stream_delta(self, text): pass
    def _fire_thoughts(self, text): pass
    def _reset_stream_delivery_tracking(self): pass
    def _execute_tool_calls(self, assistant_message, messages, task_id, count=0): pass
    def _invoke_tool(self, name, args, task_id, tool_call_id=None): pass
    def _persist_session(self, messages, history=None): pass
    def _flush_messages_to_session_db(self, messages, history=None): pass
    def _compress_context(self, messages, system_message): return messages, ""
    def interrupt(self, message=None): pass
""",
    "hermes_state.py": """
import os
from pathlib import Path

class SessionDB:
    def __init__(self):
        self.db_path = Path(os.environ["HERMES_HOME"]) / "state.db"
    def append_message(self, session_id, role, content=None): return 1
    def create_session(self, session_id, source): pass
    def replace_messages(self, session_id, messages): pass
    def clear_messages(self, session_id): pass
    def end_session(self, session_id, reason): pass
    def reopen_session(self, session_id): pass
""",
    "hermes_cli/__init__.py": "",
    "hermes_cli/plugins.py": """
class PluginManager:
    def invoke_hook(self, hook_name, **more): pass
""",
    "hermes_cli/main.py": """
import os

def main():
    from hermes_state import SessionDB
    from run_agent import AIAgent
    AIAgent(SessionDB()).run_conversation("hello")
""",
}


@pytest.fixture
def later(world: World) -> str:
    """The command of a Hermes whose AIAgent has no `_fire_reasoning_delta` any more."""
    folder = world.folder / "later"
    for name, text in LATER.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    world.env["PYTHONPATH"] = str(folder)
    return installed(world, sys.executable)


def test_everything_is_in_place_where_the_tests_run(world: World) -> None:
    code, found = ask(world)
    assert list(found) == PLACES
    assert code == 0, found
    assert found["database"][0][0] != "bad"  # a note where SQLite is of an old release
    for name in ("state folder", "socket", "search index", "orphans", "witness"):
        assert found[name][0][0] == "ok", found[name]
    text = world.call("doctor").stdout
    assert [line.split()[0] for line in text.splitlines() if " socket: " in line] == ["ok"]
    assert "bad" not in text
    runtime = Path(world.env["XDG_RUNTIME_DIR"]) / "hermes-supervise"
    assert list(runtime.iterdir()) == [], "no socket is left"


def test_wrong_settings_are_reported(world: World) -> None:
    assert [state for state, _ in ask(world)[1]["settings"]] == ["ok"]
    file = world.folder / ".config" / "hermes-supervise" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text('grace = "soon"\ngrase = 1\n')
    code, found = ask(world)
    [(state, text)] = found["settings"]
    assert (code, state) == (1, "bad")
    assert text.startswith("2 errors") and f"{file}:1: grace: 'soon'" in text
    world.env["HERMES_SUPERVISE_GRACE"] = "soon"
    code, found = ask(world)
    assert (code, found["settings"][0][0]) == (1, "bad"), "no agent is started with that"


def test_a_state_folder_open_to_others_and_a_run_left_behind_are_reported(world: World) -> None:
    world.env["HERMES_SUPERVISE_NO_ADOPT"] = "1"
    agent = world.supervise("session('chat').message('user', 'hi'); ready(); forever()")
    agent.wait_for("ready")
    pid = agent.agent
    os.kill(agent.pid, signal.SIGKILL)
    agent.process.wait()
    os.kill(pid, signal.SIGKILL)
    code, found = ask(world)
    assert code == 0
    [(state, text)] = found["leftovers"]
    assert state == "note"
    assert text.startswith("1 ") and "`hermes-supervise recover`" in text
    [run] = world.runs()
    assert run.exists(), "looked at, not touched"
    (run / "run.json").write_text("{")
    code, found = ask(world)
    [(state, text)] = found["leftovers"]
    assert (code, state) == (1, "bad")
    assert "1 damaged" in text and str(run) in text
    (world.state / "hermes-supervise").chmod(0o755)
    code, found = ask(world)
    assert code == 1
    [(state, text)] = found["state folder"]
    assert state == "bad"
    assert "chmod 700" in text
    assert found["leftovers"][0][0] == "bad", "nobody knows whether there are any"
    for command in ("show", "recover", "sweep", "demo"):
        world.home.mkdir(exist_ok=True)
        world.db.touch()
        answer = world.call(command)
        assert answer.returncode == 125
        assert answer.stderr.startswith("hermes-supervise: ")
        assert "chmod 700" in answer.stderr
        assert answer.stderr.count("\n") == 1
        assert answer.stdout == ""


def test_our_commands_end_with_whoever_reads_them(world: World) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as output:
        command = [*world.command, "doctor"]
        done = subprocess.run(command, env=world.env, stdout=output, stderr=subprocess.PIPE)
    assert done.returncode == -signal.SIGPIPE
    assert done.stderr == b""


@pytest.mark.parametrize(
    ("version", "state"),
    [("3.51.3", "ok"), ("3.54.1", "ok"), ("3.50.7", "ok"), ("3.44.6", "ok"), ("3.44.7", "ok"),
     ("3.51.2", "note"), ("3.50.6", "note"), ("3.45.1", "note"), ("3.40.1", "note")],
)  # fmt: skip
def test_an_sqlite_with_the_wal_reset_bug_is_noted(version: str, state: str) -> None:
    check = doctor._about_sqlite("database", "SQLite", version, "upgrade")
    assert check.state == state
    assert ("WAL" in check.text) == (state == "note")


@pytest.mark.parametrize("version", ["0.19.0", "0.13.0"])
def test_a_real_hermes_is_recognised_and_every_seam_holds(world: World, version: str) -> None:
    command = ROOT / f".venv-hermes-{version}" / "bin" / "hermes"
    code, found = ask(world, str(command), "-p", "work", "chat")
    assert found["agent"] == [("ok", f"Hermes {version}")]
    assert [state for state, _ in found["shim"]] == ["ok"]
    assert found["state.db"] == [("ok", str(world.home / "profiles" / "work" / "state.db"))]
    seams = dict(text.split(" ", 1) for _, text in found["seam"])
    assert seams["AIAgent._fire_stream_delta"] == "holds"
    assert seams["SessionDB.append_message"] == "holds"
    assert set(seams.values()) <= {"holds", "not in this release"}
    assert {state for state, _ in found["capability"]} == {"ok"}
    assert code == 0
    text = world.call("doctor", "--", str(command)).stdout
    holding = list(seams.values()).count("holds")
    assert re.search(rf"^ok .*\b{holding} methods", text, flags=re.M)
    assert "_fire_stream_delta" not in text, "for people, a number is enough"
    assert not world.home.exists(), "asking leaves nothing in the user's home"


def ways(found: dict[str, list[tuple[str, str]]]) -> list[tuple[str, str, str]]:
    """Each way in: the state of its line, its name, and whether it is taken."""
    return [(state, *text.partition(",")[0].split(": ")) for state, text in found["way in"]]


def test_the_installers_launcher_is_bypassed(world: World, later: str) -> None:
    launcher = world.folder / "local" / "hermes"
    launcher.parent.mkdir()
    launcher.write_text(
        f'#!/usr/bin/env bash\nunset PYTHONPATH\nexec "{sys.executable}" "{later}" "$@"\n'
    )
    launcher.chmod(0o755)
    _, found = ask(world, str(launcher))
    assert ways(found) == [
        ("ok", "PYTHONPATH", "no"), ("ok", "launcher", "yes"), ("ok", "children", "yes")
    ]  # fmt: skip
    assert f"{sys.executable} {later}, with PYTHONPATH" in found["way in"][1][1]
    assert [state for state, _ in found["shim"]] == ["ok"]
    launcher.write_text(f'#!/bin/sh\nunset PYTHONPATH\n. /dev/null; exec {later} "$@"\n')
    code, found = ask(world, str(launcher))
    assert code == 1
    assert ways(found) == [
        ("bad", "PYTHONPATH", "maybe"), ("bad", "launcher", "no"), ("bad", "children", "no")
    ]  # fmt: skip
    assert str(launcher) in found["way in"][0][1]
    launcher.write_text(f'#!/bin/sh\nexec {sys.executable} -I -c "import hermes_bootstrap" "$@"\n')
    _, found = ask(world, str(launcher))
    assert [way[1:] for way in ways(found)[:2]] == [("PYTHONPATH", "no"), ("launcher", "yes")]
    path, script, _ = found["way in"]
    assert "-I" in path[1].split()
    assert f"{sys.executable}, without -I" in script[1]


def test_a_capability_that_no_method_has_any_more_is_named_and_the_others_hold(
    world: World, later: str
) -> None:
    code, found = ask(world, later)
    assert code == 1
    bad = [text for state, text in found["capability"] if state == "bad"]
    assert [text.split(";")[0] for text in bad] == ["not captured: reasoning"]
    good = [text for state, text in found["capability"] if state == "ok"]
    assert "deltas, by AIAgent._fire_stream_delta" in good
    seams = [text for _, text in found["seam"]]
    assert "AIAgent._fire_stream_delta holds" in seams
    assert "AIAgent._fire_reasoning_delta not in this release" in seams
    assert [state for state, _ in found["agent"]] == ["ok"]
    text = world.call("doctor", "--", later).stdout
    assert "capability: not captured: reasoning" in text
    assert "capability: deltas" not in text, "for people, what holds needs no line"


def test_a_class_that_is_gone_costs_its_capabilities_only(world: World, later: str) -> None:
    (world.folder / "later" / "hermes_cli" / "plugins.py").write_text("class Manager: pass\n")
    _, found = ask(world, later)
    bad = [text for state, text in found["capability"] if state == "bad"]
    assert [text.split(";")[0] for text in bad] == [
        "not captured: reasoning", "not captured: hooks fired"
    ]  # fmt: skip


def test_a_renamed_seam_costs_only_what_it_captured_and_never_raises(
    world: World, later: str
) -> None:
    agent = world.run([later])
    agent.wait_for("streamed")
    [run] = json.loads(world.call("ps", "--json").stdout)["runs"]
    assert "reasoning" in run["sessions"][0]["not_captured"][0]
    agent.kill_agent()
    assert agent.finish() == -signal.SIGKILL
    rows = world.messages("later-1")
    assert [(row["role"], row["content"]) for row in rows] == [
        ("user", "hello"),
        ("assistant", "these words count"),
    ]
    assert rows[1]["reasoning"] is None, "that is what it cost"
    [report] = world.reports()
    [lost] = report["not_captured"]
    assert "reasoning" in lost
    assert lost.encode() in agent.errors
    assert lost in world.call("show", "later-1").stdout
    assert b"Traceback" not in agent.errors
    assert OUT_OF_REACH.encode() not in agent.errors


@pytest.mark.parametrize("option", ["-I", "-E", "-sE"])
def test_a_python_that_ignores_the_environment_is_explained(
    world: World, later: str, option: str
) -> None:
    closed = installed(world, "", "hermes", f"#!{sys.executable} {option}")
    code, found = ask(world, closed)
    assert code == 1
    [(state, text)] = found["shim"]
    assert state == "bad"
    assert "PYTHONPATH" in text
    code, found = ask(world, sys.executable, option, later)
    assert code == 1
    assert found["shim"][0][0] == "bad"


def test_a_hand_over_to_a_container_is_explained(world: World, later: str) -> None:
    (world.folder / "later" / "hermes_cli" / "config.py").write_text(
        "import os\n"
        "def get_container_exec_info():\n"
        "    if os.path.exists(os.environ['HERMES_HOME'] + '/.container-mode'):\n"
        "        return {'container_name': 'box'}\n"
    )
    assert "container" not in ask(world, later)[1]
    world.home.mkdir()
    (world.home / ".container-mode").write_text("container_name=box\n")
    code, found = ask(world, later)
    assert code == 1
    [(state, text)] = found["container"]
    assert (state, "container box" in text) == ("bad", True)


def test_a_command_that_is_not_hermes(world: World) -> None:
    code, found = ask(world, sys.executable, world.script("pass"))
    assert code == 0
    assert found["agent"][0][0] == "ok" and "SDK" in found["agent"][0][1]
    code, found = ask(world, "sleep", "3")
    assert code == 0
    assert found["agent"][0][0] == "note" and "docs/protocol.md" in found["agent"][0][1]
    code, found = ask(world, "no-such-agent")
    assert code == 1
    assert "not found" in found["command"][0][1]


@pytest.mark.parametrize(
    ("agent", "place"),
    [
        ("claude", ".claude/projects/"),
        ("codex", ".codex/sessions"),
        ("gemini", ".gemini/tmp"),
        ("opencode", ".local/share/opencode"),
        ("pi", ".pi/agent/sessions"),
        ("qwen", ".qwen/projects"),
    ],
)
def test_of_an_agent_that_knows_nothing_of_us_it_says_where_it_is_read_from(
    world: World, agent: str, place: str
) -> None:
    path = world.folder / agent
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    world.env["HERMES_SUPERVISE_WATCH"] = str(world.folder / "own.jsonl")
    code, found = ask(world, str(path))
    assert code == 0
    assert found["agent"][0][0] == "ok"
    read = [text for _, text in found["transcripts"]]
    assert any(str(world.folder / place) in text for text in read)
    assert any("own.jsonl" in text for text in read)
    states = [state for state, _ in found["in progress"]]
    # A tap shows it of these; of a file that the user named, nothing does.
    # opencode has none in its first start.
    tapped = agent != "opencode"
    assert states == (["ok", "note"] if tapped else ["note"] * len(states))
    world.env["HERMES_SUPERVISE_NO_TAP"] = "1"
    assert {state for state, _ in ask(world, str(path))[1]["in progress"]} == {"note"}
    world.env["HERMES_SUPERVISE_AGENT"] = "none"
    del world.env["HERMES_SUPERVISE_WATCH"]
    _, found = ask(world, str(path))
    [(state, text)] = found["agent"]
    assert (state, "--agent none" in text) == ("note", True)


def test_an_opencode_database_with_unknown_tables_is_reported(world: World) -> None:
    path = world.folder / "opencode"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    folder = world.folder / ".local" / "share" / "opencode"
    folder.mkdir(parents=True)
    sqlite3.connect(folder / "opencode.db").execute("CREATE TABLE other (x)").connection.close()
    code, found = ask(world, str(path))
    assert code == 1
    assert any(state == "bad" and "unknown tables" in text for state, text in found["transcripts"])


# -- after a run -----------------------------------------------------------------------------------


def scripted(world: World, first: str, body: str) -> str:
    """A `hermes` whose main function is `body`."""
    folder = world.folder / "later" / "hermes_cli"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "__init__.py").write_text("")
    (folder / "main.py").write_text(f"import sys\ndef main():\n    {body}\n")
    path = installed(world, sys.executable, first=first)
    text = Path(path).read_text()
    where = str(folder.parent)
    Path(path).write_text(
        text.replace("import sys\n", f"import sys\nsys.path.insert(0, {where!r})\n")
    )
    return path


def finished(world: World, *command: str, **more: Any) -> bytes:
    agent = world.run(list(command), **more)
    agent.finish()
    return agent.errors


def test_a_hermes_that_cannot_be_captured_is_named_before_and_after_the_run(world: World) -> None:
    closed = scripted(world, f"#!{sys.executable} -I", "print('hi', file=sys.stderr)")
    before, its_own, after = finished(world, closed).splitlines()
    assert before.startswith(b"hermes-supervise: ")
    assert closed in before.decode().split() and "-I" in before.decode().split()
    assert its_own == b"hi", "said before it starts, not onto its screen"
    assert OUT_OF_REACH.encode() in after
    assert b"hermes-supervise doctor -- " in after
    world.env["HERMES_SUPERVISE_QUIET"] = "1"
    assert finished(world, closed) == b"hi\n"


def test_a_hermes_that_only_had_nothing_to_say_is_not(world: World) -> None:
    spoke = scripted(world, "", "print('hermes 1.0')")
    assert finished(world, spoke) == b""
    assert finished(world, sys.executable, spoke) == b""


@pytest.mark.parametrize("version", ["0.19.0", "0.13.0"])
def test_so_it_is_with_a_real_hermes(world: World, version: str) -> None:
    folder = ROOT / f".venv-hermes-{version}" / "bin"
    command = [str(folder / "hermes"), "--version"]
    assert OUT_OF_REACH.encode() not in finished(world, *command)
    errors = finished(world, str(folder / "python"), "-I", *command)
    assert errors.count(OUT_OF_REACH.encode()) == 1
    assert b"-I" in errors.split()


def test_what_doctor_found_is_said_before_every_start_until_the_agent_changes(
    world: World, later: str
) -> None:
    def warning() -> bytes:
        agent = world.run([later])
        agent.wait_for("streamed")
        agent.kill_agent()
        agent.finish()
        return agent.errors.partition(b"the agent was interrupted")[0]

    assert b"captured" not in warning(), "nobody has looked yet"
    assert ask(world, later)[0] == 1
    first = warning()
    assert first.startswith(b"hermes-supervise: ") and first.count(b"\n") == 1
    assert b" reasoning;" in first
    module = world.folder / "later" / "run_agent.py"
    os.utime(module, ns=(1, 1))
    assert b"captured" not in warning(), "another release, perhaps"
    module.write_text(LATER["run_agent.py"].replace("_fire_thoughts", "_fire_reasoning_delta"))
    assert ask(world, later)[0] == 0
    assert b"captured" not in warning(), "everything is"


# The same release, with its methods in a mixin of another module.
MIXED = {
    "run_agent.py": "from stream_mixin import StreamMixin\n"
    + LATER["run_agent.py"].replace("class AIAgent:", "class AIAgent(StreamMixin):")
    .replace("    def _fire_stream_delta(self, text): pass\n", ""),
    "stream_mixin.py": "class StreamMixin:\n    def _fire_stream_delta(self, text): pass\n",
}  # fmt: skip


@pytest.mark.parametrize("changed", ["stream_mixin.py", "run_agent.py", "hermes_cli/__init__.py"])
def test_what_doctor_found_is_forgotten_when_any_module_of_a_method_changes(
    world: World, later: str, changed: str
) -> None:
    folder = world.folder / "later"
    for name, text in MIXED.items():
        (folder / name).write_text(text)
    assert ask(world, later)[0] == 1

    def is_known() -> bool:
        agent = world.run([later])
        agent.wait_for("streamed")
        agent.kill_agent()
        agent.finish()
        return b" reasoning;" in agent.errors.splitlines()[0]

    assert is_known()
    os.utime(folder / changed, ns=(1, 1))
    assert not is_known()


def test_a_first_run_has_the_install_looked_at_in_the_background(world: World, later: str) -> None:
    agent = world.run([later])
    agent.wait_for("streamed")
    noted = Path(world.env["XDG_STATE_HOME"]) / "hermes-supervise" / "installs"
    until(lambda: list(noted.glob("?" * 8)), "doctor has been asked")
    agent.kill_agent()
    agent.finish()
    before = agent.errors.partition(b"the agent was interrupted")[0]
    assert b"captured" not in before, "nobody knew it when it started"
    assert b"left processes" not in agent.errors
    again = world.run([later])
    again.wait_for("streamed")
    again.kill_agent()
    again.finish()
    assert b" reasoning;" in again.errors.splitlines()[0]


def test_the_processes_of_a_script_that_cannot_be_read_show_what_it_runs(world: World) -> None:
    """While it runs `ps` says it, afterwards the notice, and before the next start we do."""
    entry = scripted(world, "", "print('up', flush=True); sys.stdin.read()")
    text = f'#!/bin/sh\n. /dev/null; exec {sys.executable} -I {entry} "$@"\n'
    launcher = Path(installed(world, "", "hermes-agent"))
    launcher.write_text(text)
    agent = world.run([str(launcher)], stdin=subprocess.PIPE)
    agent.wait_for("up")
    [run] = json.loads(world.call("ps", "--json").stdout)["runs"]
    why = run["not_captured"]
    assert {"-I", "PYTHONPATH"} <= set(why.split())
    assert why in world.call("ps").stdout
    noted = Path(world.env["XDG_STATE_HOME"]) / "hermes-supervise" / "installs"
    until(lambda: list(noted.glob("?" * 8)), "the supervisor has looked at its processes")
    agent.finish()  # with the end of its input
    assert agent.errors == f"hermes-supervise: {OUT_OF_REACH}: {why}\n".encode()
    before, *_ = finished(world, str(launcher), stdin=subprocess.DEVNULL).decode().splitlines()
    assert before.startswith("hermes-supervise: ") and before.endswith(why)


def test_other_commands_are_none_of_that(world: World) -> None:
    assert finished(world, sys.executable, "-I", "-c", "pass") == b""
    assert finished(world, "true") == b""
    closed = scripted(world, f"#!{sys.executable} -I", "print('hi')")
    world.env["HERMES_SUPERVISE"] = "0"
    assert finished(world, closed) == b"", "the user switched it off"
