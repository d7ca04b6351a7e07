"""Hermes' interactive front ends, in real terminals, killed, hung up and closed on."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hermes_launchers import install
from hermes_world import Hermes, Model, say
from support import Supervised, World, alive, children, kill, until, wait_dead
from terminals import Terminal, belonging_to
from test_hermes import journal, ledger, only_session, shown_in_state_db

NEW, OLD = "0.19.0", "0.13.0"
BOTH = ("on_session_end", "on_session_finalize")


@pytest.fixture
def terminal(world: World) -> Iterator[Terminal]:
    made = Terminal()
    yield made
    made.close()
    # A front end that was killed leaves parts of itself behind.
    for pid in belonging_to(world):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


@pytest.fixture
def hermes(request: pytest.FixtureRequest, world: World, model: Model) -> Hermes:
    return Hermes(getattr(request, "param", NEW), world, model)


on_both = pytest.mark.parametrize("hermes", [NEW, OLD], indirect=True)


def classic(hermes: Hermes, *more: str) -> list[str]:
    """The classic front end; it is the default only in old releases."""
    front = ["--cli"] if hermes.version == NEW else []
    return [hermes.command, "chat", *front, "--yolo", *more]


def ask(terminal: Terminal, text: str, since: int = 0) -> None:
    """Type a line, once the classic front end waits for one. The key comes when the text is
    there: both at once would be taken for a paste."""
    terminal.wait_for("❯", since)
    before = len(terminal.text)
    terminal.type(text)
    terminal.wait_for(text, before)
    terminal.type("\r")


def ask_tui(terminal: Terminal, text: str) -> None:
    terminal.wait_to_see("ready │")
    terminal.type(text)
    terminal.wait_to_see(f"❯ {text}")
    terminal.type("\r")


def mid_stream(
    hermes: Hermes, terminal: Terminal, ask: Callable[[Terminal, str], None] = ask
) -> None:
    """Ask something, and return in the middle of the answer."""
    phantom: list[list[Any]] = [[*say("phantom words"), ("hold", "there")] for _ in range(4)]
    hermes.model.script = [[*say("some words of it"), ("hold", "here")], *phantom]
    ask(terminal, "hello there")
    hermes.model.wait_until_held()
    until(lambda: b"words of it " in journal(hermes.world), "the last word is handed over")


def words(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """The transcript, without the turn that Hermes itself makes of a signal; and of that
    nothing is from us."""
    phantom = [row for row in rows if row["content"].startswith(("received signal", "phantom"))]
    assert all(row["finish_reason"] != "interrupted" for row in phantom)
    return [(row["role"], row["content"].strip()) for row in rows if row not in phantom]


def end_hooks(path: Path) -> list[str]:
    """The hooks that tell of the session's end; those of ordinary turns do not."""
    return [n for n, event in ledger(path) if n != "on_session_end" or event["interrupted"]]


def assert_usable(terminal: Terminal) -> None:
    assert terminal.settings == terminal.before
    until(lambda: not any(map(terminal.mode, (2004, 1049, 1000, 1002, 1003, 1004, 1006))))


# -- the classic front end ---------------------------------------------------------------------


@on_both
def test_killed_in_a_reply_and_resumed_and_killed_at_the_prompt(
    hermes: Hermes, terminal: Terminal
) -> None:
    plugin = hermes.plugin()
    agent = terminal.run(hermes.world, classic(hermes))
    mid_stream(hermes, terminal)
    agent.kill_agent()
    assert agent.process.wait(120) == -signal.SIGKILL
    session, rows = shown_in_state_db(hermes)
    assert words(rows) == [("user", "hello there"), ("assistant", "some words of it")]
    assert (session["end_reason"], rows[-1]["finish_reason"]) == ("interrupted", "interrupted")
    assert tuple(end_hooks(plugin)) == BOTH
    assert_usable(terminal)
    words_of_it = [*classic(hermes), "--resume", session["id"]]
    terminal.wait_for(f"hermes-supervise -- {' '.join(words_of_it)}")

    plugin.unlink()
    second = Terminal()
    try:
        hermes.model.script = [say("Going on")]
        agent = second.run(hermes.world, classic(hermes, "--resume", session["id"]))
        ask(second, "go on")
        until(lambda: len(hermes.world.messages(session["id"])) == 4, "the turn is over")
        until(lambda: plugin.exists(), "the turn's own hook has run")
        sent = [m for m in hermes.model.requests[-1]["messages"] if m["role"] != "system"]
        assert [m["role"] for m in sent] == ["user", "assistant", "user"]
        assert sent[1]["content"].strip() == "some words of it"
        agent.kill_agent()
        agent.process.wait(120)
        assert_usable(second)
    finally:
        second.close()
    session, rows = shown_in_state_db(hermes)
    assert words(rows)[2:] == [("user", "go on"), ("assistant", "Going on")]
    assert session["end_reason"] == "interrupted"
    assert tuple(end_hooks(plugin)) == BOTH
    assert hermes.world.runs() == []


def close_terminal(terminal: Terminal, agent: Supervised) -> None:
    terminal.close()


def interrupt_twice(terminal: Terminal, agent: Supervised) -> None:
    """As a user would: while Hermes prints, a key may go unheard. Then its prompt is away, too,
    but comes back; behind the second key that is heard it does not."""

    def press(heard: Callable[[], bool]) -> bool:
        if terminal.mode(2004):
            terminal.type("\x03")
        try:
            until(heard, "", 1)
        except AssertionError:
            return False
        return True

    until(lambda: press(lambda: "pressCtrl+Cagain" in terminal.text.replace(" ", "")), "the first")
    until(lambda: press(lambda: agent.process.poll() is not None), "the second", 60)


def signal_until_ended(agent: Supervised, number: int) -> None:
    """Hermes' handlers raise KeyboardInterrupt wherever its event loop happens to be. Now and then
    the loop then waits for a task that never ends, and takes another signal to leave."""
    pid = agent.agent
    kill(pid, number)
    for _ in range(5):
        try:
            wait_dead(pid, 10)
            break
        except AssertionError:
            os.kill(pid, number)
    wait_dead(pid, 10)


def terminate(terminal: Terminal, agent: Supervised) -> None:
    signal_until_ended(agent, signal.SIGTERM)


def send_hangup(terminal: Terminal, agent: Supervised) -> None:
    signal_until_ended(agent, signal.SIGHUP)


@pytest.mark.parametrize(
    ("hermes", "end"),
    [(NEW, terminate), (OLD, send_hangup), (NEW, close_terminal), (OLD, close_terminal),
     (NEW, interrupt_twice), (OLD, interrupt_twice)],
    indirect=["hermes"],
)  # fmt: skip
def test_ended_in_a_reply_keeps_the_words_once_and_what_hermes_did_itself(
    hermes: Hermes, terminal: Terminal, end: Callable[[Terminal, Supervised], None]
) -> None:
    plugin = hermes.plugin()
    agent = terminal.run(hermes.world, classic(hermes))
    mid_stream(hermes, terminal)
    end(terminal, agent)
    agent.process.wait(120)
    assert hermes.world.runs() == []
    session, rows = shown_in_state_db(hermes)
    assert words(rows) == [("user", "hello there"), ("assistant", "some words of it")]
    assert session["end_reason"] in ("cli_close", "interrupted")
    fired = end_hooks(plugin)
    assert set(fired) == set(BOTH)
    ours = [(name, event["attempt"]) for name, event in ledger(plugin) if "recovery_id" in event]
    if end is close_terminal:
        # Hermes may leave at the end of its input, before the signal comes; then its handler may
        # raise in a hook, before or after this plugin's part in it. It is run again, with the next
        # `attempt`.
        for name in [name for name, attempt in ours if attempt == 2]:
            if fired.count(name) > 1:
                fired.remove(name)
    assert fired.count("on_session_finalize") == 1, ledger(plugin)
    by_us = [name for name, attempt in ours if attempt == 1]
    by_hermes = {name for name in fired if fired.count(name) > by_us.count(name)}
    assert not by_hermes & set(by_us), "each is owed once, and Hermes' own counts"
    if end is not close_terminal:
        assert_usable(terminal)
    # Whoever wrote the end reason: a turn that was cut off is listed, with the way back.
    listed = hermes.world.call("sessions").stdout
    if end is interrupt_twice:
        assert session["id"] not in listed
    else:
        assert f"chat {'--cli ' if hermes.version == NEW else ''}--yolo --resume" in listed
        [line] = [line for line in listed.splitlines() if line.startswith(session["id"])]
        assert "  interrupted  " in line
        shown = hermes.world.call("show", session["id"], "--no-transcript").stdout
        assert "Last user message\n  hello there\n" in shown


def hold_a_turn_that_is_broken_off(hermes: Hermes) -> None:
    """As a busy machine does: the turn's own thread does not come to store it, and to end it."""
    folder = hermes.world.home / "plugins" / "holder"
    folder.mkdir(parents=True)
    (folder / "plugin.yaml").write_text("name: holder\nversion: 1\ndescription: holds\n")
    (folder / "__init__.py").write_text(
        """
import threading

def register(ctx):
    def begun(**kw):
        from run_agent import AIAgent
        stores = AIAgent._persist_session

        def held(self, *args, **kw):
            by_the_turn = threading.current_thread() is not threading.main_thread()
            if by_the_turn and self._interrupt_requested:
                threading.Event().wait()
            return stores(self, *args, **kw)

        AIAgent._persist_session = held
    ctx.register_hook("on_session_start", begun)
"""
    )
    hermes.configure("plugins:\n  enabled: [ledger, holder]\n")


@pytest.mark.parametrize("hermes", [OLD], indirect=True)
def test_a_second_ctrl_c_before_the_turn_has_ended_is_the_users_own_exit(
    hermes: Hermes, terminal: Terminal
) -> None:
    """Hermes closes the session while the thread of the turn is still about to end it."""
    hermes.plugin()
    hold_a_turn_that_is_broken_off(hermes)
    agent = terminal.run(hermes.world, classic(hermes))
    mid_stream(hermes, terminal)
    interrupt_twice(terminal, agent)
    assert agent.process.wait(120) == 0
    session, rows = shown_in_state_db(hermes)
    assert words(rows) == [("user", "hello there"), ("assistant", "some words of it")]
    assert session["end_reason"] == "cli_close"
    assert session["id"] not in hermes.world.call("sessions").stdout
    [report] = hermes.world.reports()
    assert report["outcome"] == "ended by the agent"


@pytest.mark.parametrize(
    ("hermes", "hold"),
    [(OLD, hold_a_turn_that_is_broken_off), (NEW, lambda hermes: None)],
    indirect=["hermes"], ids=["the turn has not ended", "it has"],
)  # fmt: skip
def test_a_terminal_that_is_gone_before_the_signal_comes_cuts_the_turn_off(
    hermes: Hermes, terminal: Terminal, hold: Callable[[Hermes], None]
) -> None:
    """Hermes leaves at the end of its input, and breaks the turn off as it does for its user."""
    hermes.plugin()
    hold(hermes)
    agent = terminal.run(hermes.world, ["env", "--block-signal=HUP", *classic(hermes)])
    mid_stream(hermes, terminal)
    terminal.close()
    agent.process.wait(120)
    session, rows = shown_in_state_db(hermes)
    assert words(rows) == [("user", "hello there"), ("assistant", "some words of it")]
    [report] = hermes.world.reports()
    assert report["outcome"] == "interrupted"
    assert session["id"] in hermes.world.call("sessions").stdout


def test_a_terminal_closed_under_a_shell_loses_no_message(
    hermes: Hermes, terminal: Terminal
) -> None:
    plugin = hermes.plugin()
    shell, supervisor = terminal.run_in_shell(hermes.world, classic(hermes))
    mid_stream(hermes, terminal)
    assert alive(supervisor)
    terminal.close()
    wait_dead(supervisor, 120)
    shell.process.wait(120)
    session, rows = shown_in_state_db(hermes)
    assert words(rows) == [("user", "hello there"), ("assistant", "some words of it")]
    assert session["end_reason"] in ("cli_close", "interrupted")
    assert set(end_hooks(plugin)) == set(BOTH)
    assert end_hooks(plugin).count("on_session_finalize") == 1


def test_a_title_given_before_the_first_message_survives(
    hermes: Hermes, terminal: Terminal
) -> None:
    """Hermes puts it in the session's row when it makes that. Here it cannot make it."""
    agent = terminal.run(hermes.world, classic(hermes))
    ask(terminal, "/title My careful work")
    terminal.wait_for("Session title queued")
    with sqlite3.connect(hermes.world.db) as db:
        db.execute(
            "CREATE TRIGGER trouble BEFORE INSERT ON sessions "
            "BEGIN SELECT RAISE(ABORT, 'not now'); END"
        )
    mid_stream(hermes, terminal)
    with sqlite3.connect(hermes.world.db) as db:
        db.execute("DROP TRIGGER trouble")
    agent.kill_agent()
    agent.process.wait(120)
    session, rows = shown_in_state_db(hermes)
    assert session["title"] == "My careful work"
    assert words(rows) == [("user", "hello there"), ("assistant", "some words of it")]


# -- the TUI -----------------------------------------------------------------------------------


def tui(
    hermes: Hermes, terminal: Terminal, command: str | None = None
) -> tuple[Supervised, int, int, int]:
    """A TUI in the middle of an answer: its supervisor, launcher, node and gateway."""
    agent = terminal.run(hermes.world, [command or hermes.command, "--tui"])
    mid_stream(hermes, terminal, ask_tui)
    launcher = agent.agent
    [node] = children(launcher)
    return agent, launcher, node, gateway_of(node)


def gateway_of(node: int) -> int:
    def found() -> list[int]:
        return [pid for pid in children(node) if b"tui_gateway.entry" in command_line(pid)]

    return int(until(found, "the TUI's gateway")[0])


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def shell_hook(hermes: Hermes) -> Path:
    """An approved shell hook, and the file it would write."""
    out = hermes.world.folder / "shell-hook-ran"
    command = f"touch {out}"
    hermes.configure(
        "plugins:\n  enabled: [ledger]\nhooks_auto_accept: true\n"
        f"hooks:\n  on_session_end:\n    - command: {command}\n"
    )
    return out


def assert_recovered(hermes: Hermes, plugin: Path) -> None:
    session, rows = shown_in_state_db(hermes)
    assert words(rows) == [("user", "hello there"), ("assistant", "some words of it")]
    assert session["source"] == "tui"
    fired: list[str] = []
    for name, event in ledger(plugin):
        # A signal may cut Hermes off in a hook that this plugin has had its part in.
        again = name in fired and event.get("attempt") == 2
        if not again and (name != "on_session_end" or event["interrupted"]):
            fired.append(name)
    assert tuple(fired) == BOTH


def test_the_tuis_gateway_killed_below_it_is_recovered_while_the_tui_goes_on(
    hermes: Hermes, terminal: Terminal
) -> None:
    plugin = hermes.plugin()
    shell = shell_hook(hermes)
    agent, launcher, node, gateway = tui(hermes, terminal)
    kill(gateway)
    killed = time.monotonic()
    until(lambda: len(hermes.world.messages(only_session(hermes.world)["id"])) == 2)
    print(f"in state.db {time.monotonic() - killed:.2f} s after the kill")
    assert alive(launcher)
    assert alive(node)
    assert gateway_of(node) != gateway, "the TUI has started a new one"
    until(lambda: len(end_hooks(plugin)) == 2, "the hooks have run")
    assert_recovered(hermes, plugin)
    assert only_session(hermes.world)["end_reason"] == "interrupted"
    assert agent.process.poll() is None, "the run goes on"
    assert not shell.exists(), "the TUI runs no shell hooks"
    [report] = hermes.world.reports()
    assert report["cause"] == "killed by SIGKILL"


def test_the_tuis_node_killed_leaves_the_words_and_a_usable_terminal(
    hermes: Hermes, terminal: Terminal
) -> None:
    plugin = hermes.plugin()
    agent, launcher, node, gateway = tui(hermes, terminal)
    kill(node)
    agent.process.wait(120)
    assert not alive(launcher)
    assert not alive(gateway)
    assert_recovered(hermes, plugin)
    assert_usable(terminal)


def test_a_run_outlives_the_tuis_launcher_and_its_gateway_and_ends_with_the_tui(
    hermes: Hermes, terminal: Terminal
) -> None:
    plugin = hermes.plugin()
    agent, launcher, node, gateway = tui(hermes, terminal)
    kill(launcher)
    wait_dead(launcher)
    hermes.model.script = [[*say("and these words"), ("hold", "there")]]
    hermes.model.release()
    until(lambda: len(hermes.world.messages(only_session(hermes.world)["id"])) == 2)
    assert alive(node)
    assert alive(gateway)
    assert agent.process.poll() is None, "the agent lives, so the run does"
    ask_tui(terminal, "and now")
    hermes.model.wait_until_held("there")
    until(lambda: b"these words " in journal(hermes.world), "the last word is handed over")
    kill(gateway)
    until(lambda: only_session(hermes.world)["end_reason"] == "interrupted", deadline=120)
    until(lambda: tuple(end_hooks(plugin)) == BOTH, deadline=120)
    assert gateway_of(node) != gateway, "the TUI is on the screen, and has started a new one"
    assert agent.process.poll() is None, "so the run goes on"
    kill(node)
    agent.process.wait(120)
    _, rows = shown_in_state_db(hermes)
    assert words(rows)[2:] == [("user", "and now"), ("assistant", "and these words")]
    assert tuple(end_hooks(plugin)) == BOTH
    assert_usable(terminal)


def test_a_tui_whose_launcher_replaces_pythonpath_for_its_children_loses_no_message(
    hermes: Hermes, terminal: Terminal
) -> None:
    """As 0.21 does: isolated, and every child gets a PYTHONPATH of Hermes' own."""
    plugin = hermes.plugin()
    agent, _, _, gateway = tui(hermes, terminal, install(hermes, "isolated"))
    assert b"PYTHONPATH=" in Path(f"/proc/{gateway}/environ").read_bytes()
    kill(gateway)
    wait_dead(gateway)
    until(lambda: len(end_hooks(plugin)) == 2, "the hooks have run", deadline=120)
    assert_recovered(hermes, plugin)
    terminal.close()
    agent.process.wait(120)


def test_a_terminal_closed_on_the_tui_loses_no_message(hermes: Hermes, terminal: Terminal) -> None:
    plugin = hermes.plugin()
    agent, _, _, gateway = tui(hermes, terminal)
    terminal.close()
    wait_dead(gateway, 120)
    agent.process.wait(120)
    assert_recovered(hermes, plugin)


def signal_it_again_while_it_closes(hermes: Hermes) -> None:
    """As node does on a busy machine: the gateway is told to leave while it does so already."""
    folder = hermes.world.home / "plugins" / "again"
    folder.mkdir(parents=True)
    (folder / "plugin.yaml").write_text("name: again\nversion: 1\ndescription: signals\n")
    (folder / "__init__.py").write_text(
        """
import os, signal, threading

def register(ctx):
    def begun(**kw):
        from run_agent import AIAgent
        stores = AIAgent._persist_session

        def stored(self, *args, **kw):
            stores(self, *args, **kw)
            if threading.current_thread() is threading.main_thread():
                os.kill(os.getpid(), signal.SIGTERM)

        AIAgent._persist_session = stored
    ctx.register_hook("on_session_start", begun)
"""
    )
    hermes.configure("plugins:\n  enabled: [ledger, again]\n")


def test_a_second_signal_that_cuts_the_tuis_shutdown_off_leaves_an_interrupted_session(
    hermes: Hermes, terminal: Terminal
) -> None:
    """The gateway then exits with 0, in the middle of a reply, and has run no hook."""
    plugin = hermes.plugin()
    signal_it_again_while_it_closes(hermes)
    agent, _, _, gateway = tui(hermes, terminal)
    kill(gateway, signal.SIGHUP)
    wait_dead(gateway, 120)
    until(lambda: len(end_hooks(plugin)) == 2, "the hooks have run", deadline=120)
    assert_recovered(hermes, plugin)
    assert only_session(hermes.world)["end_reason"] == "interrupted"
    [report] = hermes.world.reports()
    assert (report["outcome"], report["cause"]) == ("interrupted", "exited with code 0")
    terminal.close()
    agent.process.wait(120)


def test_a_process_that_a_gateway_starts_to_own_the_agent_is_reached_and_a_tool_is_not(
    hermes: Hermes,
) -> None:
    server = hermes.world.script(
        """
import run_agent
from tui_gateway.host_supervisor import HostSupervisor

host = HostSupervisor()
host.start()
ready(f"host {host._proc.pid}")
tool = __import__("subprocess").Popen(["sleep", "300"])
ready(f"tool {tool.pid}")
forever()
"""
    )
    agent = hermes.world.run([hermes.python, server], stderr=None)
    host, tool = (int(agent.wait_for(who, 120).split()[1]) for who in ("host", "tool"))
    try:
        assert b"HERMES_SUPERVISE_SOCKET=" in Path(f"/proc/{host}/environ").read_bytes()
        assert b"agent_shim/inject" in Path(f"/proc/{host}/environ").read_bytes()
        assert b"HERMES_SUPERVISE_SOCKET=" not in Path(f"/proc/{tool}/environ").read_bytes()
    finally:
        kill(tool)
        agent.kill_agent()
        agent.finish()
        wait_dead(host)


@pytest.mark.parametrize("hermes", [OLD], indirect=True)
def test_a_title_that_the_tui_keeps_until_the_turn_is_over_survives(hermes: Hermes) -> None:
    """Spoken to as node does: a line of JSON a request."""
    hermes.model.script = [[*say("some words of it"), ("hold", "here")]]
    agent = hermes.world.run(
        [hermes.python, "-m", "tui_gateway.entry"], stdin=subprocess.PIPE, stderr=None
    )

    def request(number: int, method: str, **params: Any) -> dict[str, Any]:
        assert agent.process.stdin is not None
        line = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        agent.process.stdin.write(json.dumps(line).encode() + b"\n")
        agent.process.stdin.flush()
        while True:
            answer = json.loads(agent.wait_for("{"))
            if answer.get("id") == number:
                return dict(answer["result"])

    session = request(1, "session.create", cols=80)["session_id"]
    assert request(2, "session.title", session_id=session, title="My careful work")["pending"]
    request(3, "prompt.submit", session_id=session, text="hello there")
    hermes.model.wait_until_held()
    until(lambda: b"words of it " in journal(hermes.world), "the last word is handed over")
    assert only_session(hermes.world)["title"] is None, "so far only the gateway knows it"
    agent.kill_agent()
    agent.finish()
    assert only_session(hermes.world)["title"] == "My careful work"


def test_an_agent_whose_supervisor_was_killed_is_named_with_what_ends_and_resumes_it(
    hermes: Hermes, terminal: Terminal
) -> None:
    """The shell waited for the supervisor, and has the terminal now."""
    world = hermes.world
    _, supervisor = terminal.run_in_shell(world, classic(hermes))
    mid_stream(hermes, terminal)
    assert world.call("sessions").stdout == "no interrupted sessions\n"
    [run] = json.loads(world.call("ps", "--json").stdout)["runs"]
    assert run["out_of_reach"] is None, "the user is in it"
    kill(supervisor)
    until(lambda: world.successors(), "the standby takes over")
    session = only_session(world)
    ending = f"kill {run['pid']}; hermes-supervise -- "
    command = f"{ending}{' '.join(classic(hermes))} --resume {session['id']}"
    listed = until(lambda: (s := world.call("sessions").stdout) and command in s and s, "sessions")
    assert f"process {run['pid']} is out of reach" in listed
    assert f"\n  {command}\n" in listed, "on a line of its own, to be copied"
    assert f"  {command}\n" in world.call("ps").stdout
    second = Terminal()
    try:
        other = second.run(world, ["true"])
        second.wait_for(f"process {run['pid']} is out of reach")
        second.wait_for(command)
        # It says so while it starts: hung up then, it would leave a run of its own behind.
        assert other.process.wait(120) == 0
    finally:
        second.close()
    os.kill(run["pid"], signal.SIGTERM)
    wait_dead(run["pid"], 60)
    until(lambda: world.runs() == [], "the successor has finished it", 60)
    assert f"--resume {session['id']}" in world.call("sessions").stdout
    assert words(shown_in_state_db(hermes)[1])[0] == ("user", "hello there")
