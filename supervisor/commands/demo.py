"""`hermes-supervise demo`: a small agent is killed with SIGKILL, twice, and recovered.

Never touches the user's own state.db: the demonstration has one of its own.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

from ...ipc import endpoint
from ..recovery.statedb import StateDb
from . import demo_agent, paint, show

_USAGE = """\
usage: hermes-supervise demo

See it work: a small agent is killed with SIGKILL in the middle of a reply, and
again in the middle of a tool call; what it had said is read back from a
state.db of the demonstration's own. It takes a few seconds."""

_ACTS = {
    "reply": "in the middle of a streamed reply",
    "tool": "in the middle of a tool call",
}


def main(arguments: list[str]) -> int:
    if arguments:
        print(_USAGE)
        return 0 if arguments[0] in ("-h", "--help") else 2
    folder = endpoint.private_folder(os.path.join(endpoint.state_folder(), "demo"))
    db = os.path.join(folder, "state.db")
    hooked = os.path.join(folder, f"hooked.{os.getpid()}.txt")
    names = {}
    try:
        for act, moment in _ACTS.items():
            names[act] = f"demo-{act}-{time.strftime('%H%M%S')}-{os.getpid()}"
            _heading(f"An agent is killed with SIGKILL {moment}")
            shown = _run_and_kill(act, names[act], db, hooked)
            if not _recovered(db, names[act], act, shown):
                print("\nThis is not what was shown. Please report it.")
                return 1
        _heading("The plugin that ran in its place was called with")
        with open(hooked, encoding="utf-8") as file:
            print(file.read(), end="")
    finally:
        if os.path.exists(hooked):
            os.unlink(hooked)
    _heading("Read it again")
    for name in names.values():
        print(f"{_our_name()} show {name}")
    print(f"sqlite3 {shlex.quote(db)} 'SELECT * FROM messages'")
    return 0


def _run_and_kill(act: str, name: str, db: str, hooked: str) -> str:
    """Run the agent under supervision, kill it when it says so; what it had shown by then."""
    here = os.path.dirname(__file__)
    hook = shlex.join([sys.executable, os.path.join(here, "demo_hook.py"), hooked])
    agent = [sys.executable, os.path.join(here, "demo_agent.py"), act, name]
    options = ["--db", db, "--on-session-end", hook]
    command = [sys.executable, "-m", "hermes_supervise.supervisor", *options, "--", *agent]
    print("$ hermes-supervise --on-session-end plugin -- agent\n", flush=True)
    supervisor = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert supervisor.stdout is not None
    shown = b""
    while not shown.endswith(b"(now)\n"):
        piece = os.read(supervisor.stdout.fileno(), 4096)
        if not piece:
            break
        before = len(shown.partition(b"\n(now)")[0])
        shown += piece
        os.write(1, shown.partition(b"\n(now)")[0][before:])
    victim = _agent_below(supervisor.pid, agent)
    print(f"\n$ kill -9 {victim}\n", flush=True)
    os.kill(victim, signal.SIGKILL)
    code = supervisor.wait()
    supervisor.stdout.close()
    print(f"\nThe shell sees status {128 - code if code < 0 else code}, as without us.")
    return shown.decode().partition("\n")[0]


def _our_name() -> str:
    """What to type: the environment we run in need not be the one that the shell looks in."""
    beside = os.path.join(os.path.dirname(sys.executable), "hermes-supervise")
    if shutil.which("hermes-supervise") is not None or not os.path.exists(beside):
        return "hermes-supervise"
    return shlex.quote(os.path.relpath(beside))


def _agent_below(pid: int, command: list[str]) -> int:
    import psutil

    below = psutil.Process(pid).children(recursive=True)
    return next(int(process.pid) for process in below if process.cmdline()[-3:] == command[-3:])


def _recovered(db: str, name: str, act: str, shown: str) -> bool:
    """Show what is in state.db, and check it against what was on the screen."""
    database = StateDb(db, read_only=True)
    session, messages = database.transcript(name)
    database.close()
    print("\nIn state.db now:")
    show.transcript(session, messages, paint.paint_for(sys.stdout))
    if session is None or session["end_reason"] != "interrupted":
        return False
    roles = [message["role"] for message in messages]
    if act == "reply":
        return roles == ["user", "assistant"] and messages[1]["content"] == shown
    whole = demo_agent.REPLY + " "
    return roles == ["user", "assistant", "tool"] and messages[1]["content"] == whole


def _heading(text: str) -> None:
    print(f"\n=== {text}\n", flush=True)
