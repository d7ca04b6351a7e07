"""Real Hermes, killed at moments that are hard to hit: each proved, and nothing lost in any.

One process of several agents is killed once, each agent at a moment of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hermes_world import Hermes, Model, Step, call, say
from support import World, alive, kill, short, until

VERSIONS = ("0.19.0", "0.13.0")

# Twenty-four such messages are enough to be worth a summary, in the smallest context allowed.
LONG_AGO = ("of long ago " * 150).strip()
SETTINGS = """\
  context_length: 64000
compression:
  threshold: 0.5
  protect_first_n: 1
  protect_last_n: 2
plugins:
  enabled: [waiting]
"""
# Waits before a tool that is asked to; leaves a file that says so.
PLUGIN = """
import json, os, threading, time

def register(ctx):
    def before(**kw):
        if "wait-before" in json.dumps(kw, default=str):
            open(os.environ["FLAGS"] + "/before", "w").close()
            threading.Event().wait()
    ctx.register_hook("pre_tool_call", before)
"""
SERVER = """
import json
os.environ["HERMES_YOLO_MODE"] = "1"
from hermes_state import SessionDB
from run_agent import AIAgent

class Torn(SessionDB):
    "Stops between a continuation's row and what is to be stored in it."
    def update_system_prompt(self, session_id, *args, **named):
        if self.torn and session_id != self.torn:
            open(os.environ["FLAGS"] + "/torn", "w").close()
            threading.Event().wait()
        return super().update_system_prompt(session_id, *args, **named)
    torn = None

def chat(name, history, in_place):
    db = Torn()
    db.torn = name if name == "torn" else None
    if history:
        db.create_session(name, "webui")
        for message in history:
            db.append_message(name, message["role"], message["content"])
    agent = AIAgent(base_url=os.environ["MODEL"], api_key="none", model="scripted",
                    session_id=name, platform="webui", session_db=db, quiet_mode=True,
                    skip_context_files=True)
    if hasattr(agent, "compression_in_place"):
        agent.compression_in_place = in_place
    past = db.get_messages_as_conversation(name) if history else None
    agent.run_conversation(f"question of {name}", conversation_history=past)

SessionDB().close()  # Hermes' own set-up of a new file fails where several threads begin it
for name, history, in_place in json.load(open(sys.argv[1])):
    threading.Thread(target=chat, args=(name, history, in_place), daemon=True).start()
"""


class Talk(Model):
    """Answers each conversation from a script of its own, and summaries from theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts: dict[str, list[list[Step]]] = {}
        self.summaries: dict[str, list[Step]] = {}
        self._answered: dict[str, list[Step]] = {}

    def _steps(self, body: dict[str, Any]) -> list[Step]:
        text = json.dumps(body["messages"])
        [name] = [name for name in self.scripts if f"question of {name}" in text] or [""]
        if not body.get("tools"):
            return self.summaries.get(name) or say("A summary of what was said")
        # A request that is made again, because the first took too long, gets the same answer.
        if text not in self._answered:
            script = self.scripts.get(name)
            self._answered[text] = script.pop(0) if script else say("All done")
        return self._answered[text]


@pytest.fixture
def model() -> Iterator[Talk]:
    made = Talk()
    yield made
    made.close()


@pytest.fixture(params=VERSIONS)
def hermes(request: pytest.FixtureRequest, world: World, model: Talk) -> Hermes:
    return Hermes(request.param, world, model)


def prepare(hermes: Hermes, plugin: str = PLUGIN) -> Path:
    world = hermes.world
    flags = world.folder / "flags"
    flags.mkdir()
    world.env |= {"FLAGS": str(flags), "MODEL": f"http://127.0.0.1:{hermes.model.port}/v1"}
    folder = world.home / "plugins" / "waiting"
    folder.mkdir(parents=True)
    (folder / "plugin.yaml").write_text("name: waiting\nversion: 1\ndescription: waits\n")
    (folder / "__init__.py").write_text(plugin)
    hermes.configure(SETTINGS)
    return flags


# -- one kill, many moments ------------------------------------------------------------------


@pytest.fixture(scope="module", params=VERSIONS)
def killed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Hermes]:
    """Agents in threads of one process, each at its moment when the process was killed."""
    runtime = Path(tempfile.mkdtemp(prefix="hs"))
    world, model = World(tmp_path_factory.mktemp("moments"), runtime), Talk()
    try:
        hermes = Hermes(request.param, world, model)
        run_and_kill(hermes, model)
        yield hermes
    finally:
        model.close()
        world.close()
        shutil.rmtree(runtime, ignore_errors=True)


def run_and_kill(
    hermes: Hermes,
    model: Talk,
    source: str = SERVER,
    start: Callable[[str], list[str]] | None = None,
    *,
    each_result: bool = True,
) -> None:
    """`start` gives the command that runs a program. Where that is a child of its own, the file
    `child` says which. `each_result`: a tool's result is known while another runs beside it."""
    world = hermes.world
    flags = prepare(hermes)
    # Hermes reads a skill's files itself. Its other tools for files share a shell, and one that
    # runs beside another may find that shell without its PATH.
    skill = world.home / "skills" / "reading"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: reading\ndescription: two files\n---\nRead them.\n")
    (skill / "near.txt").write_text("what stands in it\n")
    fifo = skill / "far.txt"
    os.mkfifo(fifo)
    look = [call("terminal", {"command": "echo looked"}, "call_look"), ("usage", 70_000)]
    model.scripts = {
        "accepted": [[("hold", "accepted")]],
        "reasoning": [[("reasoning", "let me "), ("reasoning", "think"), ("hold", "reasoning")]],
        "between": [
            [*say("I run it"), call("terminal", {"command": "echo wait-before"}, "call_b")]
        ],
        "parallel": [
            [call("skill_view", {"name": "reading", "file_path": "near.txt"}, "call_near"),
             call("skill_view", {"name": "reading", "file_path": "far.txt"}, "call_far")]
        ],
        "summing": [[*look]],
        "torn": [[*look]],
        "rotated": [[*look], [*say("And then"), ("hold", "rotated")]],
    }  # fmt: skip
    model.summaries = {"summing": [("hold", "summing")]}
    modes = dict.fromkeys(model.scripts, False)
    if hermes.version == "0.19.0":
        model.scripts |= {"folding": [[*look]],
                          "folded": [[*look], [*say("And then"), ("hold", "folded")]]}  # fmt: skip
        model.summaries["folding"] = [("hold", "folding")]
        modes |= {"folding": True, "folded": True}
    with_history = ("summing", "torn", "rotated", "folding", "folded")
    plan = [(name, history(name) if name in with_history else [], mode)
            for name, mode in modes.items()]  # fmt: skip
    (world.folder / "plan.json").write_text(json.dumps(plan))
    server = world.script(source + "\nforever()\n")
    command = [hermes.python, server] if start is None else start(server)
    agent = world.run([*command, str(world.folder / "plan.json")])
    answers = [answer for script in model.scripts.values() for answer in script]
    for kind, name in [step for answer in (*answers, *model.summaries.values()) for step in answer]:
        if kind == "hold":
            model.wait_until_held(name)
    until((flags / "before").exists, "one agent is about to run its tool")
    until((flags / "torn").exists, "one agent has rotated and stored nothing yet")
    if each_result:
        until(lambda: b"what stands in it" in world.said(), "the first of two tools is done")
    writing = until(lambda: opened(fifo), "and the second runs")
    until(lambda: world.said().count(b"then ") == (2 if "folded" in modes else 1))
    until(lambda: b"think" in world.said(), "the last thought is handed over")
    if "folded" in modes:
        until(lambda: {"summing", "folding"} <= locked(world), "what is compressed is locked")
    if (flags / "child").exists():
        kill(int((flags / "child").read_text()))
        assert agent.finish(120) == 0
    else:
        agent.kill_agent()
        assert agent.finish(120) == -signal.SIGKILL
    os.close(writing)
    assert world.runs() == [], agent.errors.decode()


def history(name: str) -> list[dict[str, str]]:
    return [
        {"role": role, "content": f"{role} {number}, before the question of {name}, {LONG_AGO}"}
        for number in range(12)
        for role in ("user", "assistant")
    ]


def locked(world: World) -> set[str]:
    with world.database() as db:
        return {row["session_id"] for row in db.execute("SELECT * FROM compression_locks")}


def opened(fifo: Path) -> int | None:
    """The fifo's end for writing, if somebody waits at the other. Whoever reads there waits until
    it is closed."""
    try:
        return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


def rows_of(hermes: Hermes, session: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A session's row and its active messages; every call in them answered, none twice."""
    found = hermes.world.session(session)
    assert found is not None
    rows = [row for row in hermes.world.messages(session) if row.get("active", 1)]
    made = [call["id"] for row in rows for call in json.loads(row["tool_calls"] or "[]")]
    assert made == [row["tool_call_id"] for row in rows if row["role"] == "tool"]
    assert found["message_count"] == len(rows)
    return found, rows


def continuation(hermes: Hermes, parent: str) -> str:
    with hermes.world.database() as db:
        query = "SELECT id FROM sessions WHERE parent_session_id = ?"
        [row] = db.execute(query, (parent,)).fetchall()
    return str(row["id"])


def check_the_turn(rows: list[dict[str, Any]], name: str) -> None:
    """The question, the call and its result, once, at the end of `rows`."""
    question, asked, answer = rows[-3:]
    assert short([question]) == [("user", f"question of {name}")]
    assert [call["id"] for call in json.loads(asked["tool_calls"])] == ["call_look"]
    assert "looked" in answer["content"]
    assert [row["content"] for row in rows].count(question["content"]) == 1


def check_history(rows: list[dict[str, Any]], name: str) -> None:
    before = [(message["role"], message["content"]) for message in history(name)]
    assert short(rows[: len(before)]) == before
    assert len(rows) == len(before) + 3
    check_the_turn(rows, name)


def test_killed_before_the_first_word_of_an_answer(killed: Hermes) -> None:
    session, rows = rows_of(killed, "accepted")
    assert short(rows) == [("user", "question of accepted")]
    assert session["end_reason"] == "interrupted"


def test_killed_while_it_thinks(killed: Hermes) -> None:
    session, rows = rows_of(killed, "reasoning")
    assert [row["role"] for row in rows] == ["user", "assistant"]
    assert rows[1]["reasoning"] == "let me think"
    assert (rows[1]["content"] or "") == ""
    assert rows[1]["finish_reason"] == "interrupted"
    assert session["end_reason"] == "interrupted"


def test_killed_between_a_message_and_the_tool_it_calls(killed: Hermes) -> None:
    session, rows = rows_of(killed, "between")
    assert [row["role"] for row in rows] == ["user", "assistant", "tool"]
    assert rows[1]["content"].strip() == "I run it"
    assert "unknown" in rows[2]["content"]
    assert session["end_reason"] == "interrupted"


def test_killed_when_one_of_two_parallel_tools_is_done(killed: Hermes) -> None:
    session, rows = rows_of(killed, "parallel")
    assert [row["role"] for row in rows] == ["user", "assistant", "tool", "tool"]
    assert "what stands in it" in rows[2]["content"]
    assert "unknown" in rows[3]["content"]
    assert session["end_reason"] == "interrupted"


def test_killed_while_a_summary_is_made_for_a_continuation(killed: Hermes) -> None:
    session, rows = rows_of(killed, "summing")
    check_history(rows, "summing")
    assert session["end_reason"] == "interrupted"
    with killed.world.database() as db:
        query = "SELECT id FROM sessions WHERE parent_session_id = 'summing'"
        assert db.execute(query).fetchall() == []


def test_killed_when_the_continuation_has_a_row_and_nothing_in_it(killed: Hermes) -> None:
    parent, rows = rows_of(killed, "torn")
    check_history(rows, "torn")
    assert parent["end_reason"] == "compression"
    child, rows = rows_of(killed, continuation(killed, "torn"))
    check_history(rows, "torn")
    assert child["end_reason"] == "interrupted"


def test_killed_in_the_first_reply_of_a_continuation(killed: Hermes) -> None:
    parent, rows = rows_of(killed, "rotated")
    check_history(rows, "rotated")
    assert parent["end_reason"] == "compression"
    child, rows = rows_of(killed, continuation(killed, "rotated"))
    check_the_turn(rows[:-1], "rotated")
    assert "A summary of what was said" in "".join(row["content"] or "" for row in rows)
    assert short(rows[-1:]) == [("assistant", "And then ")]
    assert len(rows) < len(history("rotated"))
    assert child["end_reason"] == "interrupted"


def test_killed_while_a_summary_is_made_or_used_in_place(killed: Hermes) -> None:
    if killed.version == "0.13.0":
        assert killed.world.session("folding") is None, "0.13.0 always makes a continuation"
        return
    session, rows = rows_of(killed, "folding")
    check_history(rows, "folding")
    assert session["end_reason"] == "interrupted"
    session, rows = rows_of(killed, "folded")
    check_the_turn(rows[:-1], "folded")
    assert short(rows[-1:]) == [("assistant", "And then ")]
    assert session["end_reason"] == "interrupted"
    archived = [row for row in killed.world.messages("folded") if not row["active"]]
    check_history(archived, "folded")


def test_what_a_dead_process_had_locked_can_be_compressed_again(killed: Hermes) -> None:
    if killed.version == "0.13.0":
        return  # it knows no such locks
    assert locked(killed.world) == set()


def test_every_live_session_is_reported_once_and_no_closed_one(killed: Hermes) -> None:
    interrupted = [
        report["session"] for report in killed.world.reports() if report["outcome"] == "interrupted"
    ]
    with killed.world.database() as db:
        open_ones = "SELECT id FROM sessions WHERE end_reason = 'interrupted'"
        assert sorted(interrupted) == sorted(row["id"] for row in db.execute(open_ones))
        assert db.execute("SELECT 1 FROM sessions WHERE ended_at IS NULL").fetchall() == []
    assert not {"torn", "rotated"} & set(interrupted)


def test_an_old_file_is_upgraded_and_no_recovered_session_is_hidden(killed: Hermes) -> None:
    with killed.world.database() as db:
        roots = db.execute("SELECT id, title FROM sessions WHERE parent_session_id IS NULL")
        titles = {row["id"]: row["title"] for row in roots}
    if killed.version == "0.19.0":
        assert set(titles.values()) == {None}, "where nothing is hidden, none is made up"
        return
    assert titles["between"] == "question of between"
    assert all(title and len(title) <= 80 for title in titles.values())
    newest = Hermes("0.19.0", killed.world, killed.model)
    code = (
        "import json; from hermes_state import SessionDB; db = SessionDB(); "
        "print(json.dumps([one['id'] for one in db.list_sessions_rich(limit=100)]))"
    )
    listed = json.loads(
        subprocess.check_output([newest.python, "-c", code], env=killed.world.env, text=True)
    )
    # What went on elsewhere is listed by where it is now.
    alive_as = {name: name for name in titles} | {
        name: continuation(killed, name) for name in ("torn", "rotated")
    }
    assert sorted(listed) == sorted(alive_as.values())


# -- the process that leaves by itself, or half ------------------------------------------------

STAYS = """
import json, os, sys, threading

def register(ctx):
    for name in ("on_session_end", "on_session_finalize"):
        def called(_name=name, **kw):
            with open(os.environ["FLAGS"] + "/hooks", "a") as file:
                file.write(json.dumps([_name, os.getpid()]) + "\\n")
            agent = getattr(sys.modules.get("cli"), "_active_agent_ref", None)
            if agent is not None:  # what Hermes does next, then, takes for ever
                agent.shutdown_memory_provider = lambda *args, **kw: threading.Event().wait()
        ctx.register_hook(name, called)
"""


def test_killed_in_its_own_shutdown_after_it_fired_its_hooks(hermes: Hermes, model: Talk) -> None:
    flags = prepare(hermes, STAYS)
    model.scripts = {"leaving": [[*say("some words finally"), ("hold", "here")]]}
    agent = hermes.world.run([hermes.command, "chat", "-q", "question of leaving", "-Q", "--yolo"])
    model.wait_until_held()
    until(lambda: b"finally " in hermes.world.said(), "the last word is handed over")
    agent.kill_agent(signal.SIGTERM)
    name = b'"name":"on_session_finalize"'
    # Once when it begins, and once when it is done.
    until(lambda: hermes.world.said().replace(b" ", b"").count(name) == 2, "Hermes fired its hook")
    pid = agent.kill_agent()
    assert agent.finish() == -signal.SIGKILL
    with hermes.world.database() as db:
        [row] = db.execute("SELECT id FROM sessions").fetchall()
    session, rows = rows_of(hermes, row["id"])
    assert short(rows) == [("user", "question of leaving"), ("assistant", "some words finally ")]
    assert session["end_reason"] == "interrupted"
    hooks = [json.loads(line) for line in (flags / "hooks").read_text().splitlines()]
    by_hermes = [name for name, who in hooks if who == pid]
    assert "on_session_finalize" in by_hermes
    assert sorted(name for name, _ in hooks) == ["on_session_end", "on_session_finalize"]


RELAUNCH = """
import time
def until_flag(name):
    while not os.path.exists(os.environ["FLAGS"] + "/" + name):
        time.sleep(0.01)

until_flag("go-" + sys.argv[2])
if sys.argv[2] == "before":
    os.execvp(sys.executable, [sys.executable, sys.argv[0], sys.argv[1] + ".after", "after"])
os._exit(0)
"""


def test_a_relaunch_is_followed_and_an_exit_without_goodbye_is_an_interruption(
    hermes: Hermes, model: Talk
) -> None:
    world, flags = hermes.world, prepare(hermes)
    model.scripts = {
        "before": [[*say("in the old image"), ("hold", "before")]],
        "after": [[*say("in the new one"), ("hold", "after")]],
    }
    plan = world.folder / "plan.json"
    plan.write_text(json.dumps([("before", [], False)]))
    Path(f"{plan}.after").write_text(json.dumps([("after", [], False)]))
    agent = world.run([hermes.python, world.script(SERVER + RELAUNCH), str(plan), "before"])
    model.wait_until_held("before")
    until(lambda: b"image " in world.said(), "the last word is handed over")
    pid = agent.agent
    (flags / "go-before").touch()
    model.wait_until_held("after")
    until(lambda: b"one " in world.said(), "the last word is handed over")
    assert alive(pid) and agent.agent == pid, "the same process, another image"
    (flags / "go-after").touch()
    assert agent.finish() == 0
    for name, words in (("before", "in the old image "), ("after", "in the new one ")):
        session, rows = rows_of(hermes, name)
        assert short(rows) == [("user", f"question of {name}"), ("assistant", words)]
        assert session["end_reason"] == "interrupted", "it was in the middle of a turn"
    reports = world.reports()
    assert sorted(report["session"] for report in reports) == ["after", "before"]
    assert {report["cause"] for report in reports} == {"exited with code 0"}
