"""`hermes-supervise demo`: kills a small agent with SIGKILL, twice, and recovers it.

Never touches the user's state.db, sessions or hooks: the demo has a state folder of its own.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time

from ....ipc import endpoint
from ...statedb.writer import StateDb
from ..errors import USAGE, CommandError
from ..output import style
from ..session_lookup import use_demo_sessions
from . import demo_agent, show

_USAGE = """\
usage: hermes-supervise demo
       hermes-supervise demo show SESSION

See it work: a small agent is killed with SIGKILL in the middle of a reply, and
then in the middle of a tool call. Its messages are read back from the demo's
own state.db. This takes a few seconds. `demo show` shows a session of the demo;
your own sessions and hooks are not affected."""

_ACTS = {
    "reply": "in the middle of a streamed reply",
    "tool": "in the middle of a tool call",
}


def main(argv: list[str]) -> int:
    if argv[:1] == ["show"]:
        use_demo_sessions()
        return show.main(argv[1:])
    if argv and argv[0] in ("-h", "--help"):
        print(_USAGE)
        return 0
    if argv:
        raise CommandError("demo takes no arguments, except `show SESSION`", USAGE)
    folder = endpoint.private_folder(os.path.join(endpoint.state_folder(), "demo"))
    db = os.path.join(folder, "state.db")
    hook_output = os.path.join(folder, f"hooked.{os.getpid()}.txt")
    sessions = {}
    try:
        for act, moment in _ACTS.items():
            sessions[act] = f"demo-{act}-{time.strftime('%H%M%S')}-{os.getpid()}"
            _heading(f"Killing an agent with SIGKILL {moment}")
            shown = _run_and_kill(act, sessions[act], db, hook_output)
            if not _check_recovered(db, sessions[act], act, shown):
                print("\nThis differs from what was on the screen. Please report it.")
                return 1
        _heading("The hook that ran in place of the agent was called with")
        with open(hook_output, encoding="utf-8") as file:
            print(file.read(), end="")
    finally:
        if os.path.exists(hook_output):
            os.unlink(hook_output)
    _heading("See more")
    for session in sessions.values():
        print(f"{_our_name()} demo show {session}")
    print(f"sqlite3 {shlex.quote(db)} 'SELECT * FROM messages'")
    return 0


def _state_home() -> str:
    """Where the demo keeps its runs, reports and hooks: apart from the user's."""
    return endpoint.private_folder(os.path.join(endpoint.state_folder(), "demo"))


def _run_and_kill(act: str, session: str, db: str, hook_output: str) -> str:
    """Run the agent under supervision and kill it when it says so. Returns what it had shown."""
    here = os.path.dirname(__file__)
    hook = shlex.join([sys.executable, os.path.join(here, "demo_hook.py"), hook_output])
    agent = [sys.executable, os.path.join(here, "demo_agent.py"), act, session]
    options = ["--db", db, "--on-session-end", hook]
    command = [sys.executable, "-m", "hermes_supervise.supervisor", *options, "--", *agent]
    print("$ hermes-supervise --on-session-end plugin -- agent\n", flush=True)
    env = {**os.environ, "XDG_STATE_HOME": _state_home()}
    supervisor = subprocess.Popen(command, stdout=subprocess.PIPE, env=env)
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
    status = 128 - code if code < 0 else code
    print(f"\nThe exit status is {status}, the same as without supervision.")
    return shown.decode().partition("\n")[0]


def _our_name() -> str:
    """What to type: this environment need not be on the shell's PATH."""
    beside = os.path.join(os.path.dirname(sys.executable), "hermes-supervise")
    if shutil.which("hermes-supervise") is not None or not os.path.exists(beside):
        return "hermes-supervise"
    return shlex.quote(os.path.relpath(beside))


def _agent_below(pid: int, command: list[str]) -> int:
    import psutil  # start-up: psutil is heavy

    below = psutil.Process(pid).children(recursive=True)
    return next(int(process.pid) for process in below if process.cmdline()[-3:] == command[-3:])


def _check_recovered(db: str, session_id: str, act: str, shown: str) -> bool:
    """Show what is in state.db, and compare it with what was on the screen."""
    database = StateDb(db, read_only=True)
    session, messages = database.reader.transcript(session_id)
    database.close()
    print("\nNow in state.db:")
    print("\n".join(show.transcript(session, messages, style.for_stream(sys.stdout))))
    if session is None or session["end_reason"] != "interrupted":
        return False
    roles = [message["role"] for message in messages]
    if act == "reply":
        return roles == ["user", "assistant"] and messages[1]["content"] == shown
    whole = demo_agent.REPLY + " "
    return roles == ["user", "assistant", "tool"] and messages[1]["content"] == whole


def _heading(text: str) -> None:
    print(f"\n=== {text}\n", flush=True)
