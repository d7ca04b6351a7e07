"""What Codex' TUI showed of a reply is stored, with the daemon that it is a client of."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hermes_supervise.ipc.endpoint import RUN_VARIABLE
from hermes_supervise.supervisor.agents.codex.daemon import Daemon, Refused
from hermes_supervise.supervisor.agents.codex.tap import CodexTap, Complete, Listener, notes
from hermes_supervise.supervisor.cli.proof.scripted_model import ScriptedModel, words
from hermes_supervise.supervisor.storage import run_lock
from real_agents import (
    Codex,
    again_and_again,
    ask_in,
    conversation,
    kill_all_of,
    only_session,
    reply,
    shown_on,
)
from support import Supervised, World, kill, standby_of, until
from tmux import Tmux


@pytest.fixture
def agent(world: World, model: ScriptedModel) -> Iterator[Codex]:
    made = Codex(world, model)
    yield made
    for name in ("daemon-updater.pid", "daemon.pid"):
        for pid in pids_in(made, name):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def pids_in(agent: Codex, name: str) -> list[int]:
    path = agent.world.folder / ".codex" / "app-server-daemon" / name
    try:
        return [int(json.loads(path.read_text())["pid"])]
    except (OSError, ValueError, KeyError):
        return []


def daemon_of(agent: Codex) -> int:
    [pid] = pids_in(agent, "daemon.pid")
    return pid


def is_joined(world: World) -> bool:
    files = Path(world.state).glob("hermes-supervise/runs/*/tap/threads.jsonl")
    return any('"running": true' in file.read_text() for file in files)


def in_a_reply(window: Tmux, agent: Codex) -> Supervised:
    """A TUI in the middle of a reply that was listened to from its beginning."""
    agent.model.hold_after(-1)
    run = ask_in(window, agent, "WORDS 80", *agent.world.hook)
    until(lambda: is_joined(agent.world), "the daemon is listened to")
    agent.model.go_on_until(55)
    window.wait_for("w049")
    return run


def test_everything_that_was_on_the_screen_is_stored(
    world: World, model: ScriptedModel, window: Tmux, agent: Codex
) -> None:
    run = in_a_reply(window, agent)
    shown = shown_on(window)
    # Until here the daemon may have sent it to the TUI alone.
    until(lambda: shown.split()[-1].encode() in world.said(), "we have got it as well")
    daemon = daemon_of(agent)
    kill(daemon, signal.SIGSTOP)
    kill_all_of(agent, run.agent)
    kill(daemon)
    window.status()
    until(world.events, "the hook has run")
    rows = world.messages(str(only_session(agent)["id"]))
    assert [row["role"] for row in rows] == ["user", "assistant"]
    assert rows[1]["content"].startswith(shown.strip())
    assert "".join(words(80)).startswith(rows[1]["content"]), "and nothing that was not said"
    assert rows[1]["finish_reason"] == "interrupted"
    [report] = world.reports()
    assert (report["outcome"], report["unseen_reply"]) == ("interrupted", True)
    assert len(world.events()) == 1


def test_the_turn_of_a_killed_tui_is_recorded_whoever_is_killed_next(
    world: World, model: ScriptedModel, window: Tmux, agent: Codex
) -> None:
    run = in_a_reply(window, agent)
    kill_all_of(agent, run.agent)
    window.status()
    [folder] = Path(world.state).glob("hermes-supervise/runs/*")
    follower = until(lambda: _supervisor_of(folder), "it is followed in the background")
    standby_of(follower)
    kill(follower)
    until(lambda: _supervisor_of(folder) not in (0, follower), "by somebody else now")
    model.gate.set()
    until(lambda: [row["ended_at"] for row in agent.sessions() if row["ended_at"]], "it ends")
    assert conversation(agent) == [("user", "WORDS 80"), ("assistant", reply(80))]


def _supervisor_of(folder: Path) -> int:
    return run_lock.holder_of(str(folder)) or 0


def until_ended(agent: Codex, count: int) -> None:
    """The daemon may have something to do for a turn that the TUI has shown to its end."""
    until(lambda: len([row for row in agent.sessions() if row["ended_at"]]) == count, "ended")


def quit(window: Tmux) -> None:
    again_and_again(lambda: window.type("/quit"), lambda: "/quit" in window.screen)
    window.press("Enter")
    assert window.status() == 0


def test_a_daemon_that_was_there_before_is_no_reason_to_record_nothing(
    world: World, model: ScriptedModel, window: Tmux, agent: Codex
) -> None:
    window.start(agent.tui(), agent.work)
    window.wait_for(agent.ready)
    until(lambda: pids_in(agent, "daemon.pid"), "a daemon runs")
    window.close()
    ask_in(window, agent, "WORDS 20", *world.hook)
    window.wait_for("w019")
    quit(window)
    until_ended(agent, 1)
    assert conversation(agent) == [("user", "WORDS 20"), ("assistant", reply(20))]
    assert only_session(agent)["end_reason"] == "exited"
    assert world.events() == []


def test_two_behind_one_daemon_each_have_their_own_session(
    world: World, model: ScriptedModel, agent: Codex
) -> None:
    windows = [Tmux(world, name=f"tmux{n}") for n in range(2)]
    try:
        for number, window in enumerate(windows):
            ask_in(window, agent, f"WORDS {10 + number}", *([] if number else world.hook))
            window.wait_for("w009")
        for window in windows:
            quit(window)
        until_ended(agent, 2)
    finally:
        for window in windows:
            window.close()
    texts = [
        [row["content"].strip() for row in world.messages(str(row["id"]))]
        for row in agent.sessions()
    ]
    assert sorted(texts) == [["WORDS 10", reply(10)], ["WORDS 11", reply(11)]]
    assert {report["outcome"] for report in world.reports()} == {"exited"}


def test_a_killed_tui_whose_daemon_goes_on_is_not_a_dead_agent(
    world: World, model: ScriptedModel, window: Tmux, agent: Codex
) -> None:
    run = in_a_reply(window, agent)
    kill_all_of(agent, run.agent)
    assert window.status() == 128 + signal.SIGKILL, "at once, with the status of the TUI"
    assert "goes on" in window.screen and str(daemon_of(agent)) in window.screen
    assert world.events() == [] and world.reports() == []
    model.gate.set()
    until(lambda: [row["ended_at"] for row in agent.sessions() if row["ended_at"]], "it ends")
    assert conversation(agent) == [("user", "WORDS 80"), ("assistant", reply(80))]
    assert only_session(agent)["end_reason"] == "exited"
    assert world.events() == []
    # The folder stays while the daemon lives, which was started in this run.
    until(lambda: not list(Path(world.state).glob("hermes-supervise/runs/*/*.log")), "all is done")


def test_a_daemon_that_dies_after_its_tui_is_a_death(
    world: World, model: ScriptedModel, window: Tmux, agent: Codex
) -> None:
    run = in_a_reply(window, agent)
    shown = shown_on(window)
    kill_all_of(agent, run.agent)
    window.status()
    kill(daemon_of(agent))
    until(world.events, "the hook has run")
    rows = world.messages(str(only_session(agent)["id"]))
    assert rows[1]["content"].startswith(shown.strip())
    assert only_session(agent)["end_reason"] == "interrupted"


# -- without Codex -----------------------------------------------------------------------------


def frame(text: str, kind: int = 1, *, last: bool = True) -> bytes:
    data = text.encode()
    size = len(data)
    if size < 126:
        length = bytes([size])
    elif size < 65536:
        length = bytes([126]) + size.to_bytes(2, "big")
    else:
        length = bytes([127]) + size.to_bytes(8, "big")
    return bytes([kind | (0x80 if last else 0)]) + length + data


def read_frame(connection: socket.socket) -> dict[str, Any]:
    head = connection.recv(2, socket.MSG_WAITALL)
    size = head[1] & 127
    if size == 126:
        size = int.from_bytes(connection.recv(2, socket.MSG_WAITALL), "big")
    mask = connection.recv(4, socket.MSG_WAITALL)
    data = connection.recv(size, socket.MSG_WAITALL)
    found = json.loads(bytes(byte ^ mask[at % 4] for at, byte in enumerate(data)))
    assert isinstance(found, dict)
    return found


class FakeDaemon(threading.Thread):
    """Serves one connection. `answers`: by method, what to answer to the params of a request, and
    what to tell right behind it."""

    def __init__(self, home: Path, answers: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        (home / "app-server-control").mkdir()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(home / "app-server-control" / "app-server-control.sock"))
        self._listener.listen()
        self._answers = answers
        self.asked: list[tuple[str, str]] = []
        self.ends_after = ""
        """The method whose answer is the last thing that it sends."""
        self.start()

    def run(self) -> None:
        connection, _ = self._listener.accept()
        with connection, self._listener:
            request = b""
            while not request.endswith(b"\r\n\r\n"):
                request += connection.recv(4096)
            connection.sendall(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
            try:
                while not self.asked or self.asked[-1][0] != self.ends_after:
                    self._serve(connection, read_frame(connection))
            except (IndexError, ValueError, OSError):
                return  # closed

    def _serve(self, connection: socket.socket, request: dict[str, Any]) -> None:
        if "id" not in request:
            return
        thread = str(request["params"].get("threadId", ""))
        self.asked.append((request["method"], thread))
        found = self._answers.get(request["method"])
        result, notices = ({}, []) if found is None else found(thread)
        out = frame(json.dumps({"id": request["id"], "result": result}))
        connection.sendall(out + b"".join(frame(json.dumps(notice)) for notice in notices))


@pytest.fixture
def tui_of_run() -> Iterator[Callable[[str], int]]:
    """Starts a process of a run that listens on a port, as a TUI does; returns the port."""
    started = []

    def start(run: str) -> int:
        code = "import socket; s = socket.create_server(('127.0.0.1', 0)); "
        code += "print(s.getsockname()[1], flush=True); input()"
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", code]
        env = {**os.environ, RUN_VARIABLE: run}
        tui = subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe)
        started.append(tui)
        assert tui.stdout is not None
        return int(tui.stdout.readline())

    yield start
    for tui in started:
        tui.communicate(b"\n")


def notice(method: str, thread: str, **more: Any) -> dict[str, Any]:
    return {"method": method, "params": {"threadId": thread, **more}}


def test_a_thread_is_joined_before_it_is_asked_whose_it_is(
    world: World, tui_of_run: Callable[[str], int]
) -> None:
    folder = world.folder / "run-1" / "tap"
    folder.mkdir(parents=True)
    ports = {"ours": tui_of_run("run-1"), "other": tui_of_run("run-2")}
    ports["late"] = ports["over"] = ports["ours"]
    active, idle = {"status": {"type": "active"}}, {"status": {"type": "idle"}}

    def reply(thread: str) -> list[dict[str, Any]]:
        item = {"type": "agentMessage", "id": f"m-{thread}"}
        return [
            notice("item/started", thread, item=item),
            notice("item/agentMessage/delta", thread, itemId=item["id"], delta=f"in {thread}"),
        ]

    def status(thread: str) -> tuple[object, list[object]]:
        origin = f"http://127.0.0.1:{ports[thread]}"
        return {"data": [{"name": "codex_tui", "httpOrigin": origin}]}, []

    become = [notice("thread/status/changed", name, **active) for name in ("other", "ours", "over")]
    home = Path(world.env["XDG_RUNTIME_DIR"])
    daemon = FakeDaemon(home, {
        "thread/loaded/list": lambda _: ({"data": ["late"]}, become),
        "thread/resume": lambda thread: ({"thread": active}, reply(thread)),
        "thread/read": lambda thread: ({"thread": idle if thread == "over" else active}, []),
        "mcpServerStatus/list": status,
    })  # fmt: skip
    Listener(str(home), str(folder)).start()
    until(lambda: len(list(folder.glob("msg_*"))) == 3, "all of ours are listened to")
    until(lambda: ("thread/unsubscribe", "other") in daemon.asked, "the other's is left", 10)
    texts = [file.read_text() for file in sorted(folder.glob("msg_*"))]
    assert "in late" in texts[0] and "in ours" in texts[1]
    until(lambda: notes(str(folder))["late"]["whole"], "its reply is heard from its beginning")
    assert notes(str(folder))["ours"] == {"whole": True, "running": True}
    asked = [what for what, thread in daemon.asked if thread == "ours"]
    assert asked == ["thread/resume", "mcpServerStatus/list", "thread/read"]
    asked = [what for what, thread in daemon.asked if thread == "other"]
    assert asked[:3] == ["thread/resume", "mcpServerStatus/list", "thread/unsubscribe"]
    asked = [what for what, thread in daemon.asked if thread == "late"]
    assert asked == ["mcpServerStatus/list", "thread/resume", "thread/read"]
    assert notes(str(folder))["over"]["running"] is False, "its turn ended while it was joined"
    shutil.rmtree(folder)


def test_what_a_dead_daemon_has_sent_is_read_to_its_end(
    world: World, tui_of_run: Callable[[str], int]
) -> None:
    folder = world.folder / "run-1" / "tap"
    folder.mkdir(parents=True)
    origin = f"http://127.0.0.1:{tui_of_run('run-1')}"
    active = {"status": {"type": "active"}}
    item = {"type": "agentMessage", "id": "m"}
    pieces = [f"{number} " for number in range(5000)]
    said = [notice("item/started", "t", item=item)] + [
        notice("item/agentMessage/delta", "t", itemId="m", delta=piece) for piece in pieces
    ]
    home = Path(world.env["XDG_RUNTIME_DIR"])
    daemon = FakeDaemon(home, {
        "thread/loaded/list": lambda _: (
            {"data": []}, [notice("thread/status/changed", "t", **active)]
        ),
        "mcpServerStatus/list": lambda _: (
            {"data": [{"name": "codex_tui", "httpOrigin": origin}]}, []
        ),
        "thread/read": lambda _: ({"thread": active}, said),
    })  # fmt: skip
    daemon.ends_after = "thread/read"
    tap = CodexTap(str(home), str(folder), Complete(), lambda session: True)
    list(tap.read(final=False))
    daemon.join(60)  # it has sent everything, and is gone
    found = [record for piece in tap.read(final=True) for record, _, _ in piece]
    texts = [str(record["text"]) for record in found if record["kind"] == "delta"]
    assert "".join(texts) == "".join(pieces)
    assert [record["tapped"] for record in found if record["kind"] == "session"] == [True]
    shutil.rmtree(folder)


def test_the_daemon_is_understood_however_its_frames_are_cut_and_never_answered(
    world: World,
) -> None:
    home = Path(world.env["XDG_RUNTIME_DIR"])  # its path is short
    (home / "app-server-control").mkdir()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(home / "app-server-control" / "app-server-control.sock"))
    listener.listen()
    long = json.dumps({"method": "long", "params": {"text": 70_000 * "x"}})
    asked: list[dict[str, Any]] = []

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            request = b""
            while not request.endswith(b"\r\n\r\n"):
                request += connection.recv(4096)
            connection.sendall(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
            asked.append(read_frame(connection))
            connection.sendall(frame('{"id": 1, "result": {}}'))
            asked.append(read_frame(connection))
            asked.append(read_frame(connection))
            out = frame("", 9) + frame(long[:60_000], last=False) + frame(long[60_000:], 0)
            out += frame('{"id": 9, "method": "item/requestApproval", "params": {}}')
            out += frame("no JSON") + frame('{"id": 2, "result": {"data": ["t1"]}}')
            for at in range(0, len(out), 5000):
                connection.sendall(out[at : at + 5000])
            asked.append(read_frame(connection))
            connection.sendall(frame('{"id": 3, "error": {"code": 1}}') + frame("", 8))
            asked.append({"rest": connection.recv(100)})

    server = threading.Thread(target=serve)
    server.start()
    daemon = Daemon(str(home))
    assert daemon.threads() == ["t1"]
    first = daemon.next(5)
    assert first is not None and len(first["params"]["text"]) == 70_000
    assert (daemon.next(5) or {})["method"] == "item/requestApproval"
    with pytest.raises(Refused):
        daemon.call("thread/resume", {})
    with pytest.raises(OSError, match="closed"):
        daemon.next(5)
    daemon.close()
    server.join()
    listener.close()
    methods = [request.get("method") for request in asked]
    assert methods == ["initialize", "initialized", "thread/loaded/list", "thread/resume", None]
    assert asked[-1] == {"rest": b""}, "no request of the daemon's is answered"
