"""Hermes' own hooks in the dead process' place: which run, with what, and what they can spoil."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hermes_agents import handed_over
from hermes_drift import Drifted
from hermes_world import Hermes, Model, say
from support import World, alive, kill, until, wait_dead

VERSIONS = ("0.19.0", "0.13.0")
KILLED = ["chat", "-q", "hello there", "-Q", "--yolo"]


def plugin(home: Path, name: str, source: str) -> None:
    folder = home / "plugins" / name
    folder.mkdir(parents=True)
    (folder / "plugin.yaml").write_text(f"name: {name}\nversion: 1\ndescription: for a test\n")
    (folder / "__init__.py").write_text("import json, os, signal, sys, time\n" + source)


def on_session_end(body: str) -> str:
    registered = "def register(ctx):\n    ctx.register_hook('on_session_end', end)\n"
    return f"def end(**event):\n    {body}\n{registered}"


def ledger(path: Path, *hooks: str) -> str:
    """The source of a plugin that writes down the event, and where it runs."""
    return f"""
def note(name, event):
    line = [name, event, os.getcwd(), sys.executable, os.environ.get("HERMES_HOME")]
    with open({str(path)!r}, "a") as file:
        file.write(json.dumps(line, default=str) + "\\n")

def register(ctx):
    for name in {hooks or ("on_session_end", "on_session_finalize")!r}:
        ctx.register_hook(name, lambda _name=name, **event: note(_name, event))
"""


def read(path: Path) -> list[list[Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def killed_in_a_reply(hermes: Hermes, *options: str, arguments: tuple[str, ...] = ()) -> str:
    """Run Hermes, kill it while it answers; what the supervisor said."""
    hermes.model.script = [[*say("some words of it"), ("hold", "here")]]
    agent = hermes.world.run([hermes.command, *arguments, *KILLED], *options)
    hermes.model.wait_until_held()
    handed_over(hermes, "it ")
    agent.kill_agent()
    assert agent.finish(120) == -signal.SIGKILL
    return agent.errors.decode()


# -- bad company -------------------------------------------------------------------------------


@dataclass
class Aftermath:
    hermes: Hermes
    folder: Path
    notice: str
    noted: list[list[Any]]
    report: dict[str, Any]

    @property
    def outcomes(self) -> str:
        [ran] = self.report["hooks"]
        return str(ran["output"])


BAD = {
    "a_raises": "raise ValueError('a plugin is broken')",
    "b_hangs": "time.sleep(600)",
    "c_exits": "os._exit(7)",
    "d_floods": "[print('x' * 1000) for _ in range(5000)]",
    "e_kills_its_group": "os.killpg(0, signal.SIGKILL)",
}


@pytest.fixture(scope="module", params=VERSIONS)
def after(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Aftermath]:
    runtime = Path(tempfile.mkdtemp(prefix="hs"))
    world = World(tmp_path_factory.mktemp("hooks"), runtime)
    model = Model()
    try:
        yield _in_bad_company(Hermes(request.param, world, model))
    finally:
        model.close()
        world.close()
        shutil.rmtree(runtime, ignore_errors=True)


def _in_bad_company(hermes: Hermes) -> Aftermath:
    world, folder = hermes.world, hermes.world.folder
    noted = folder / "noted.jsonl"
    for name, body in BAD.items():
        plugin(world.home, name, on_session_end(body))
    plugin(world.home, "f_forks", on_session_end(
        "child = os.fork()\n"
        "    while child == 0: time.sleep(600)\n"
        f"    open({str(folder / 'left')!r}, 'w').write(str(child))"
    ))  # fmt: skip
    plugin(world.home, "g_disabled", ledger(folder / "disabled.jsonl"))
    plugin(world.home, "h_strict", f"""
def end(session_id, completed, interrupted, model, platform):
    open({str(folder / 'strict')!r}, "w").write(session_id)

def register(ctx):
    ctx.register_hook("on_session_end", end)
""")  # fmt: skip
    plugin(world.home, "i_awaits", f"""
import asyncio

async def end(**event):
    await asyncio.sleep(0)
    open({str(folder / 'awaited')!r}, "w").write(event["session_id"])

def register(ctx):
    ctx.register_hook("on_session_end", end)
""")  # fmt: skip
    plugin(world.home, "z_ledger", ledger(noted))
    approved = _command(folder, "approved")
    _command(folder, "unapproved")
    approval = {"event": "on_session_end", "command": approved}
    (world.home / "shell-hooks-allowlist.json").write_text(json.dumps({"approvals": [approval]}))
    enabled = ", ".join([*BAD, "f_forks", "h_strict", "i_awaits", "z_ledger"])
    hermes.configure(
        f"plugins:\n  enabled: [{enabled}]\nhooks:\n  on_session_end:\n"
        f"    - command: {approved}\n    - command: {folder}/unapproved.sh\n"
    )
    notice = killed_in_a_reply(hermes, "--hook-timeout", "3")
    [report] = world.reports()
    return Aftermath(hermes, folder, notice, read(noted), report)


def _command(folder: Path, name: str) -> str:
    path = folder / f"{name}.sh"
    path.write_text(f"#!/bin/sh\ncat > {folder}/{name}.json\n")
    path.chmod(0o755)
    return str(path)


def test_each_hook_runs_once_with_the_keywords_hermes_passes_and_ours(after: Aftermath) -> None:
    assert [name for name, *_ in after.noted] == ["on_session_end", "on_session_finalize"]
    end, finalize = after.noted[0][1], after.noted[1][1]
    session = after.report["session"]
    common = {
        "session_id": session, "platform": "cli", "reason": "killed by SIGKILL", "attempt": 1,
        "recovery_id": f"{after.report['run']}:{after.report['stream']}",
    }  # fmt: skip
    if after.hermes.version == "0.19.0":
        common["telemetry_schema_version"] = "hermes.observer.v1"
        # Of the turn it died in, as Hermes names it.
        assert end.pop("turn_id").startswith(f"{session}:{end.pop('task_id')}:")
    assert finalize == common
    assert end == {**common, "completed": False, "interrupted": True, "model": "scripted"}


def test_hooks_run_in_the_dead_process_interpreter_home_and_folder(after: Aftermath) -> None:
    for _, _, folder, interpreter, home in after.noted:
        assert folder == str(after.folder)
        assert interpreter == after.hermes.python
        assert home == str(after.hermes.world.home)


def test_a_plugin_that_fails_in_whatever_way_costs_only_itself(after: Aftermath) -> None:
    for name, outcome in (
        ("a_raises", "raised"),
        ("b_hangs", "timed out after 3 s"),
        ("c_exits", "exit 7"),
        ("d_floods", "ok"),
        ("e_kills_its_group", "killed by signal 9"),
        ("f_forks", "ok"),
        ("z_ledger", "ok"),
    ):
        [line] = [
            line
            for line in after.outcomes.splitlines()
            if line.startswith("on_session_end of") and f"{name}." in line
        ]
        assert line.endswith(f": {outcome}")
    assert "a plugin is broken" in after.outcomes
    assert "1 failed" in after.notice


def test_what_a_plugin_leaves_running_goes_with_it(after: Aftermath) -> None:
    left = int((after.folder / "left").read_text())
    until(lambda: not alive(left), "the plugin's child is gone")


def test_a_plugin_that_is_not_enabled_does_not_run(after: Aftermath) -> None:
    assert not (after.folder / "disabled.jsonl").exists()


def test_a_callback_with_a_strict_signature_is_given_what_it_knows(after: Aftermath) -> None:
    assert (after.folder / "strict").read_text() == after.report["session"]


def test_a_callback_that_is_a_coroutine_function_is_awaited(after: Aftermath) -> None:
    assert (after.folder / "awaited").read_text() == after.report["session"]


def test_an_approved_shell_hook_gets_hermes_payload_and_an_unapproved_one_never_runs(
    after: Aftermath,
) -> None:
    answer = json.loads((after.folder / "approved.json").read_text())
    assert answer["hook_event_name"] == "on_session_end"
    assert (answer["session_id"], answer["cwd"]) == (after.report["session"], str(after.folder))
    assert answer["extra"]["interrupted"] is True
    assert answer["extra"]["reason"] == "killed by SIGKILL"
    assert not (after.folder / "unapproved.json").exists()


def test_bad_company_does_not_keep_the_session_from_being_settled(after: Aftermath) -> None:
    rows = after.hermes.world.messages(after.report["session"])
    assert [row["content"] for row in rows] == ["hello there", "some words of it "]
    assert after.hermes.world.runs() == []


# -- memory, context, and a recovery that is cut off -------------------------------------------


MEMORY = """
from agent.memory_provider import MemoryProvider

class Tiny(MemoryProvider):
    name = "tinymemory"
    def is_available(self):
        return True
    def initialize(self, session_id, **about):
        pass
    def get_tool_schemas(self):
        return []
    def on_session_end(self, messages):
        note("memory", [[one["role"], one["content"]] for one in messages])

def register(ctx):
    ctx.register_memory_provider(Tiny())
"""
ENGINE = """
from agent.context_engine import ContextEngine

class Tiny(ContextEngine):
    name = "tinyengine"
    context_length = threshold_tokens = 100000
    def update_from_response(self, usage):
        pass
    def should_compress(self, prompt_tokens=None):
        return False
    def compress(self, messages, *args, **named):
        return messages
    def on_session_end(self, session_id, messages):
        note("engine", [session_id, len(messages)])

def register(ctx):
    ctx.register_context_engine(Tiny())
"""
PAUSES = """
if event["attempt"] == 1:
        open({flag!r} + ".new", "w").write(str(os.getppid()))
        os.rename({flag!r} + ".new", {flag!r})
        time.sleep(600)
    note("pauses", event)
"""


def parent_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("PPid:")[2].split()[0])


@pytest.mark.parametrize("version", VERSIONS)
def test_memory_and_context_come_between_the_hooks_and_a_cut_off_one_is_repeated(
    version: str, world: World, model: Model
) -> None:
    hermes = Hermes(version, world, model)
    noted, flag = world.folder / "noted.jsonl", world.folder / "in-the-hook"
    noting = ledger(noted).partition("def register")[0]
    plugin(world.home, "a_ledger", ledger(noted))
    plugin(world.home, "b_pauses", noting + on_session_end(PAUSES.strip().format(flag=str(flag))))
    plugin(world.home, "tinymemory", noting + MEMORY)
    plugin(world.home, "tinyengine", noting + ENGINE)
    hermes.configure(
        "plugins:\n  enabled: [a_ledger, b_pauses, tinyengine]\n"
        "memory:\n  provider: tinymemory\ncontext:\n  engine: tinyengine\n"
    )
    model.script = [[*say("some words of it"), ("hold", "here")]]
    agent = world.run([hermes.command, *KILLED])
    model.wait_until_held()
    handed_over(hermes, "it ")
    agent.kill_agent()
    until(flag.exists, "the recovery is in the hook", deadline=120)
    runner = int(flag.read_text())
    recoverer = parent_of(runner)
    kill(agent.pid)
    kill(recoverer)
    wait_dead(recoverer)
    wait_dead(runner)
    # Whoever comes first finishes it: this, or another supervisor that took the run over.
    answer = world.call("recover", deadline=120)
    assert answer.returncode == 0, answer.stderr
    until(lambda: world.runs() == [], "the run is settled", deadline=120)
    # On a busy machine hooks go on behind the command that started them.
    until(lambda: [name for name, *_ in read(noted)][-1:] == ["on_session_finalize"], "all hooks")
    noted_calls = read(noted)
    assert [name for name, *_ in noted_calls] == [
        "on_session_end", "pauses", "memory", "engine", "on_session_finalize"
    ], "nothing that had ended was repeated"  # fmt: skip
    session = noted_calls[0][1]["session_id"]
    assert [
        noted_calls[0][1]["attempt"],
        noted_calls[1][1]["attempt"],
        noted_calls[4][1]["attempt"],
    ] == [1, 2, 1]
    spoken = [["user", "hello there"], ["assistant", "some words of it"]]
    assert [[role, text.strip()] for role, text in noted_calls[2][1]] == spoken
    assert noted_calls[3][1] == [session, 2]


# As later releases have it: sent by a thread, which ends with its process.
WEBHOOKS = """
import queue, threading, urllib.request
_registered, waiting = set(), queue.Queue()

def register_from_config(config):
    from hermes_cli.plugins import get_plugin_manager
    for target in config["hooks"]["outbound"]:
        for event in target["events"]:
            _registered.add((event, target["url"]))
            get_plugin_manager()._hooks.setdefault(event, []).append(callback(event, target["url"]))

def callback(event, url):
    def webhook(**about):
        threading.Thread(target=send, daemon=True).start()
        waiting.put((url, (event + " " + about["session_id"]).encode()))
    webhook.__qualname__ = f"outbound_webhook[{event}:{url}]"
    return webhook

def send():
    url, body = waiting.get()
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, body)
    waiting.task_done()

def flush(timeout=5.0):
    waiting.join()
    return True
"""


def test_webhooks_that_hermes_would_have_called_are_called_and_their_address_is_kept_secret(
    world: World, model: Model
) -> None:
    hermes = Drifted("0.19.0", world, model)
    hermes.take()
    (world.folder / "drift" / "agent" / "outbound_webhooks.py").write_text(WEBHOOKS)
    starting = world.folder / "drift" / "run_agent.py"
    text = starting.read_text()
    starting.unlink()
    starting.write_text(
        text + "\nfrom agent.outbound_webhooks import register_from_config as _register\n"
        "from hermes_cli.config import load_config as _load\n_register(_load())\n"
    )
    sent: list[bytes] = []

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}/?key=a-secret"
        hermes.configure(
            "hooks:\n  outbound:\n    - url: " + url + "\n      events: [on_session_end]\n"
        )
        notice = killed_in_a_reply(hermes)
    finally:
        server.shutdown()
        server.server_close()
    [report] = world.reports()
    assert sent == [f"on_session_end {report['session']}".encode()]
    assert "outbound_webhook: ok" in json.dumps(report["hooks"])
    assert "a-secret" not in json.dumps(report) + notice


def test_the_home_that_a_profile_moved_to_is_the_one_that_counts(
    world: World, model: Model
) -> None:
    hermes = Hermes("0.19.0", world, model)
    root, profile = world.home, world.home / "profiles" / "coder"
    profile.mkdir(parents=True)
    noted, roots = world.folder / "noted.jsonl", world.folder / "roots.jsonl"
    plugin(root, "ledger", ledger(roots))
    plugin(profile, "ledger", ledger(noted))
    command = _command(world.folder, "accepted")
    # Accepted by the environment of the process that died, and by nothing else.
    world.env["HERMES_ACCEPT_HOOKS"] = "1"
    hermes.configure(
        f"plugins:\n  enabled: [ledger]\nhooks:\n  on_session_end:\n    - command: {command}\n"
    )
    os.rename(root / "config.yaml", profile / "config.yaml")
    hermes.configure("plugins:\n  enabled: [ledger]\n")
    killed_in_a_reply(hermes, arguments=("-p", "coder"))
    assert [name for name, *_ in read(noted)] == ["on_session_end", "on_session_finalize"]
    assert {home for *_, home in read(noted)} == {str(profile)}
    assert not roots.exists()
    session = read(noted)[0][1]["session_id"]
    assert json.loads((world.folder / "accepted.json").read_text())["session_id"] == session
    world.db = profile / "state.db"
    rows = world.messages(session)
    assert [row["content"] for row in rows] == ["hello there", "some words of it "]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_hook_that_a_signal_cut_off_in_hermes_is_run_again_and_knows_it(
    version: str, world: World, model: Model
) -> None:
    """Its handler raises wherever Hermes is: here, in the hook that tells of the end."""
    hermes = Hermes(version, world, model)
    noted = world.folder / "noted"
    plugin(world.home, "a_ledger", ledger(noted))
    plugin(world.home, "b_hangup", """
def finalize(**event):
    if "recovery_id" not in event:
        os.kill(os.getpid(), signal.SIGHUP)
        time.sleep(60)

def register(ctx):
    ctx.register_hook("on_session_finalize", finalize)
""")  # fmt: skip
    hermes.configure("plugins:\n  enabled: [a_ledger, b_hangup]\n")
    model.script = [[*say("some words of it"), ("hold", "here")]]
    agent = world.run([hermes.command, *KILLED])
    model.wait_until_held()
    handed_over(hermes, "it ")
    agent.kill_agent(signal.SIGTERM)
    agent.finish(120)

    def finalized() -> list[Any]:
        events = [event for name, event, *_ in read(noted) if name.endswith("finalize")]
        return [event.get("attempt") for event in events]

    until(lambda: len(finalized()) > 1, "the hook has run again")
    assert finalized() == [None, 2], "Hermes', and ours"
    ended = [event.get("attempt") for name, event, *_ in read(noted) if name == "on_session_end"]
    assert len(ended) == 1, "whoever ran it"
