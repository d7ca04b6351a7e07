"""G8: only the same user, files and folders that are nobody else's, no text in a log."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hermes_supervise.ipc import endpoint, frames, records
from support import World, until

SECRET = "the password is swordfish"


# Sends a message, and another one on request.
TWO_MESSAGES = """
chat = session("chat")
chat.message("user", "before")
ready()
sys.stdin.readline()
chat.message("assistant", "after")
ready("second")
forever()
"""


def modes(folder: Path) -> dict[str, int]:
    return {str(path): stat.S_IMODE(path.lstat().st_mode) for path in folder.rglob("*")}


def test_folders_are_0700_and_files_0600_while_the_agent_runs(world: World) -> None:
    agent = world.supervise(
        f"""
chat = session("chat")
chat.message("user", {SECRET!r})
ready()
forever()
"""
    )
    agent.wait_for("ready")
    ours = world.state / "hermes-supervise"
    until(lambda: list(ours.rglob("*.log")), "a journal")
    runtime = Path(world.env["XDG_RUNTIME_DIR"]) / "hermes-supervise"
    for folder in (ours, runtime):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        for path, mode in modes(folder).items():
            assert mode == (0o700 if os.path.isdir(path) else 0o600), path
    agent.kill_agent()
    agent.finish()
    assert stat.S_IMODE(world.db.stat().st_mode) == 0o600
    left = b"".join(path.read_bytes() for path in ours.rglob("*") if path.is_file())
    assert SECRET.encode() not in left, "what is kept of a settled run holds no text"
    assert SECRET.encode() not in agent.errors
    assert list(runtime.iterdir()) == [], "no socket is left"


@pytest.mark.skipif(os.getuid() != 0, reason="becoming another user takes root")
def test_another_user_is_turned_away_even_if_the_folder_were_open(world: World) -> None:
    agent = world.supervise(
        "chat = session('mine')\nchat.message('user', 'hi')\nready()\nforever()"
    )
    agent.wait_for("ready")
    runtime = Path(world.env["XDG_RUNTIME_DIR"])
    [path] = (runtime / "hermes-supervise").glob("*.sock")
    runtime.chmod(0o755)
    path.parent.chmod(0o755)
    path.chmod(0o666)
    intruder = f"""
import os, socket
os.setgid(65534); os.setuid(65534)
line = socket.socket(socket.AF_UNIX)
line.settimeout(20)
line.connect({str(path)!r})
try:
    line.sendall(b"x" * 10)
    print("answer", line.recv(100))
except OSError as error:
    print("answer", b"")
"""
    printed = subprocess.check_output([sys.executable, "-I", "-c", intruder], text=True, timeout=30)
    assert printed.strip() == "answer b''", "closed without a word"
    agent.kill_agent()
    agent.finish()
    assert len(world.messages("mine")) == 1


@pytest.mark.parametrize(
    "bytes_sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        frames.HEADER.pack(frames.MAGIC, 0xFFFFFFFF, 0, 0),
        frames.encode(0, b"not a record"),
        frames.encode(0, b"{"),
        frames.encode(0, b'{"kind":"hello"'),
        frames.encode(0, b'{"kind":"hello",}'),
        frames.encode(7, records.pack({"kind": "message"})),
        frames.encode(0, records.pack({"kind": "hello", "stream": "../../etc/passwd"})),
        frames.encode(
            0, records.pack({"kind": "hello", "stream": "a" * 32, "version": 99, "oldest": 99})
        ),
        frames.encode(
            0, records.pack({"kind": "hello", "stream": "a" * 32, "oldest": "x" * 500_000})
        ),
    ],
    ids=[
        "garbage",
        "absurd length",
        "no record",
        "only a brace",
        "half a hello",
        "a comma too many",
        "no handshake",
        "path as stream",
        "future version",
        "endless version",
    ],
)
def test_a_peer_that_makes_no_sense_is_refused_and_others_are_served(
    world: World, bytes_sent: bytes
) -> None:
    agent = world.supervise(TWO_MESSAGES, stdin=subprocess.PIPE)
    agent.wait_for("ready")
    [path] = (Path(world.env["XDG_RUNTIME_DIR"]) / "hermes-supervise").glob("*.sock")
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(20)
        line.connect(str(path))
        line.sendall(bytes_sent)
        answer = b""
        while piece := line.recv(4096):  # until the supervisor hangs up
            answer += piece
    if b"oldest" in bytes_sent:
        assert b'"refused"' in answer
    agent.send_line("go on")
    agent.wait_for("second")
    agent.kill_agent()
    agent.finish()
    assert [row["content"] for row in world.messages("chat")] == ["before", "after"]
    assert b"refused" in agent.errors
    assert len(agent.errors) < 1000, "the terminal is not the peer's"


def test_a_folder_that_others_can_reach_is_refused(tmp_path: Path) -> None:
    open_one = tmp_path / "open"
    open_one.mkdir(mode=0o755)
    open_one.chmod(0o755)
    with pytest.raises(endpoint.NotPrivate, match="chmod 700"):
        endpoint.private_folder(str(open_one))
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    with pytest.raises(endpoint.NotPrivate, match="not a folder"):
        endpoint.private_folder(str(link))


def test_a_name_in_tmp_that_somebody_else_has_taken_does_not_stop_supervision(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """/tmp/hermes-supervise-UID is a name that anybody can take first."""
    state = Path(tempfile.mkdtemp(dir="/tmp"))  # a socket's path must be short
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    taken = tmp_path / "taken"
    taken.write_text("by somebody else")
    real = endpoint.private_folder

    def private_folder(path: str) -> str:
        return real(str(taken) if path.startswith("/tmp/hermes-supervise-") else path)

    monkeypatch.setattr(endpoint, "private_folder", private_folder)
    folder = endpoint.runtime_folder()
    assert folder == str(state / "hermes-supervise" / "sockets")
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    shutil.rmtree(state)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ("x" * 90)))
    with pytest.raises(endpoint.NotPrivate):
        endpoint.runtime_folder()


def test_connections_beyond_the_descriptor_limit_are_refused_and_the_agent_is_served(
    world: World,
) -> None:
    limited = f"ulimit -n 40; exec {' '.join(world.command)} -- {sys.executable} agent.py"
    world.script(TWO_MESSAGES)
    agent = world.shell(limited)
    agent.wait_for("ready")
    [path] = (Path(world.env["XDG_RUNTIME_DIR"]) / "hermes-supervise").glob("*.sock")
    connections = []
    for _ in range(100):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(20)
        connection.connect(str(path))
        connections.append(connection)
    assert connections[0].recv(1) == b"", "the oldest connection without a hello is closed"
    for connection in connections:
        connection.close()
    agent.send_line("go on")
    agent.wait_for("second")
    agent.kill_agent()
    agent.finish()
    assert [row["content"] for row in world.messages("chat")] == ["before", "after"]


def test_a_clients_own_idea_of_its_start_does_not_make_it_dead(world: World) -> None:
    """A count that is not the kernel's, such as seconds since 1970, proves no other process."""
    agent = world.supervise(
        """
import socket
from hermes_supervise.ipc import frames, records
hello = {"kind": "hello", "version": 1, "oldest": 1, "stream": "ab" * 16, "pid": os.getpid(),
         "start": int(time.time())}
line = socket.socket(socket.AF_UNIX)
line.connect(os.environ["HERMES_SUPERVISE_SOCKET"])
line.sendall(frames.encode(0, records.pack(hello)))
line.recv(100)
for number in range(1, 4):
    message = {"role": "user", "content": f"message {number}"}
    record = {"kind": "message", "session": "s", "at": time.time(), "message": message}
    line.sendall(frames.encode(number, records.pack(record)))
    line.recv(100)
ready()
forever()
"""
    )
    agent.wait_for("ready")
    agent.kill_agent()
    agent.finish()
    assert [row["content"] for row in world.messages("s")] == [f"message {n}" for n in (1, 2, 3)]
