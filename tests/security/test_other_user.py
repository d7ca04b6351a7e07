"""An agent that runs as another user is not captured (G8), and that is said."""

from __future__ import annotations

import json
import os
import pwd
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hermes_supervise.supervisor.agents.other_user import becomes
from hermes_supervise.supervisor.ingest.listener import Listener
from hermes_supervise.supervisor.run.start import _CHANGES_USER
from support import World, child_of, kill, until

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="becoming another user takes root")

NOBODY = 65534
SETPRIV = ["setpriv", f"--reuid={NOBODY}", "--clear-groups"]
SLEEPER = ["sh", "-c", "echo ready; exec sleep 1000"]
ME = pwd.getpwuid(os.getuid()).pw_name
OTHER = "nobody" if ME != "nobody" else "root"


@pytest.mark.parametrize(
    "line",
    [
        "sudo -u OTHER hermes",
        "sudo -uOTHER -E hermes",
        "sudo --user=OTHER -- hermes chat",
        "sudo -n -u OTHER hermes",
        "sudo -nu OTHER hermes",
        "sudo -g users -u OTHER hermes",
        "sudo -p prompt --user OTHER hermes",
        "/usr/bin/sudo -u OTHER hermes",
        "env A=b nice -n 5 sudo -u OTHER hermes",
        "su OTHER -c hermes",
        "su - OTHER",
        "su -c hermes OTHER",
        "su -s /bin/sh OTHER -c hermes",
        "runuser -u OTHER -- hermes",
        "runuser -l OTHER -c hermes",
        "doas -u OTHER hermes",
        "pkexec --user OTHER hermes",
        "gosu OTHER hermes",
        "gosu OTHER:users hermes",
        "su-exec OTHER hermes",
        "s6-setuidgid OTHER hermes",
        "setuidgid OTHER hermes",
        "chpst -u OTHER hermes",
        "chpst -n 5 -u OTHER hermes",
        "setpriv --reuid OTHER --clear-groups hermes",
        "setpriv --regid 5 --reuid=OTHER hermes",
    ],
)
def test_a_command_line_tells_that_the_agent_will_be_another_user(line: str) -> None:
    command = line.replace("OTHER", OTHER).split()
    found = becomes(command)
    assert found is not None
    assert found[0] in _CHANGES_USER, "the start looks for it"
    assert found[1] == OTHER
    assert becomes(line.replace("OTHER", ME).split()) is None, "who stays the same user is captured"


@pytest.mark.parametrize(
    "line",
    ["hermes chat", "hermes sudo", "setpriv --no-new-privs hermes", "sudoku -u nobody",
     "su no-such-user-here -c x", "env A=b hermes", "sudo -u", "gosu", ""],
)  # fmt: skip
def test_nothing_is_said_about_other_commands(line: str) -> None:
    found = becomes(line.split())
    assert found is None or (line.startswith("sudo") and found == ("sudo", "root"))


@needs_root
def test_it_is_said_before_during_and_after(world: World) -> None:
    run = world.run([*SETPRIV, *SLEEPER])
    run.wait_for("ready")
    [seen] = json.loads(world.call("ps", "--json").stdout)["runs"]
    assert "runs as user nobody" in seen["not_captured"]
    assert "not captured: it runs as user nobody" in " ".join(world.call("ps").stdout.split())
    run.kill_agent()
    run.finish()
    before, after = run.errors.decode().splitlines()
    assert "nothing that the agent says will be captured: setpriv runs it as user 65534" in before
    assert "what the agent said as user nobody was not captured" in after


@needs_root
def test_an_end_in_order_is_not_talked_about_twice(world: World) -> None:
    run = world.run([*SETPRIV, "true"])
    assert run.finish() == 0
    [only] = run.errors.decode().splitlines()
    assert "setpriv runs it as user" in only


@needs_root
@pytest.mark.parametrize("script", ["exec {}", "{}; exit $?"])
def test_what_the_command_line_does_not_tell_is_seen(world: World, script: str) -> None:
    """The command changes its user itself, or something below it does."""
    line = script.format(" ".join([*SETPRIV, "sh -c 'echo ready; exec sleep 1000'"]))
    run = world.run(["sh", "-c", line])
    run.wait_for("ready")
    [folder] = world.runs()
    note = folder / "other_user"
    until(lambda: note.exists() and note.read_text() == str(NOBODY), "a look at it")
    [seen] = json.loads(world.call("ps", "--json").stdout)["runs"]
    assert "runs as user nobody" in seen["not_captured"]
    kill(run.agent if script.startswith("exec") else child_of(run.agent))
    run.finish()
    last = run.errors.decode().splitlines()[-1]
    assert "what the agent said as user nobody was not captured" in last


CALLER = f"""
import os, socket, sys
os.setgid({NOBODY}); os.setuid({NOBODY})
line = socket.socket(socket.AF_UNIX)
line.connect(sys.argv[1])
line.recv(1) if len(sys.argv) < 3 else print("there", flush=True) or sys.stdin.read()
"""


@needs_root
def test_a_process_that_is_refused_for_its_user_is_mentioned(world: World) -> None:
    go = world.folder / "go"
    os.mkfifo(go)
    line = f'read x <{go}; exec {sys.executable} -I -c "$0" $HERMES_SUPERVISE_SOCKET'
    run = world.run(["sh", "-c", line, CALLER])
    runtime = Path(world.env["XDG_RUNTIME_DIR"])
    [path] = until(lambda: list((runtime / "hermes-supervise").glob("*.sock")), "the socket")
    runtime.chmod(0o755)
    path.parent.chmod(0o755)
    path.chmod(0o666)
    go.write_text("\n")
    run.finish()
    last = run.errors.decode().splitlines()[-1]
    assert "what the agent said as user nobody was not captured" in last


@needs_root
def test_who_waits_behind_a_refused_process_is_served(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = Path(world.env["XDG_RUNTIME_DIR"])
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    listener = Listener("queue")
    runtime.chmod(0o755)
    Path(listener.path).parent.chmod(0o755)
    Path(listener.path).chmod(0o666)
    caller = subprocess.Popen(
        [sys.executable, "-I", "-c", CALLER, listener.path, "wait"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    with caller, socket.socket(socket.AF_UNIX) as ours:
        assert caller.stdout is not None
        assert caller.stdout.readline() == b"there\n"
        ours.connect(listener.path)
        accepted = listener.accept()
        assert accepted is not None
        assert accepted[1] == os.getpid()
        assert listener.refused == NOBODY
        accepted[0].close()
        caller.communicate()
    listener.close()


def test_doctor_says_it(world: World) -> None:
    command = ["env", "A=b", "su", OTHER, "-c", "hermes"]
    done = world.call("doctor", "--json", "--", *command)
    checks = [c for c in json.loads(done.stdout)["checks"] if c["name"] == "user"]
    assert [check["state"] for check in checks] == ["bad"]
    assert f"su runs it as user {OTHER}" in checks[0]["text"]
    assert done.returncode != 0
