"""Real Hermes, unmodified, killed at the worst moment: nothing lost, twice, or dangling."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hermes_world import Hermes, Model, call, say
from support import Supervised, World, alive, eat_all_memory, little_memory, short, until

VERSIONS = ("0.19.0", "0.13.0")
ONE_SHOT = {
    "quiet": ["chat", "-q", "hello there", "-Q", "--yolo"],
    "streaming": ["chat", "-q", "hello there", "--yolo"],
}


@pytest.fixture(params=VERSIONS)
def hermes(request: pytest.FixtureRequest, world: World, model: Model) -> Hermes:
    return Hermes(request.param, world, model)


def start(hermes: Hermes, *arguments: str, **more: Any) -> Supervised:
    return hermes.world.run([hermes.command, *arguments], **more)


def only_session(world: World) -> dict[str, Any]:
    with world.database() as db:
        [row] = db.execute("SELECT id FROM sessions").fetchall()
    found = world.session(row["id"])
    assert found is not None
    return found


def ledger(path: Path) -> list[tuple[str, dict[str, Any]]]:
    if not path.exists():
        return []
    return [(name, answer) for name, answer in map(json.loads, path.read_text().splitlines())]


def shown_in_state_db(hermes: Hermes) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    session = only_session(hermes.world)
    return session, hermes.world.messages(session["id"])


@pytest.mark.parametrize("front", [*ONE_SHOT, "oneshot"])
def test_killed_in_a_streamed_reply_after_a_tool(hermes: Hermes, front: str) -> None:
    if front == "oneshot" and hermes.version == "0.13.0":
        front = "quiet"  # -z came later
    plugin = hermes.plugin()
    hermes.model.script = [
        [("reasoning", "let me "), ("reasoning", "look"), *say("I look first"),
         call("terminal", {"command": "echo tool-says-hi"}, "call_a")],
        [*say("It says hi and"), ("hold", "here")],
    ]  # fmt: skip
    arguments = ONE_SHOT.get(front, ["-z", "hello there"])
    agent = start(hermes, *arguments)
    hermes.model.wait_until_held()
    shown = "It says hi and "
    until(lambda: shown.encode() in journal(hermes.world), "the last word is handed over")
    agent.kill_agent()
    assert agent.finish() == -signal.SIGKILL

    session, rows = shown_in_state_db(hermes)
    assert [row["role"] for row in rows] == ["user", "assistant", "tool", "assistant"]
    assert rows[0]["content"] == "hello there"
    assert rows[1]["content"].strip() == "I look first"
    assert [made["id"] for made in json.loads(rows[1]["tool_calls"])] == ["call_a"]
    assert rows[2]["tool_call_id"] == "call_a"
    assert "tool-says-hi" in rows[2]["content"]
    assert rows[3]["content"] == shown
    assert rows[3]["finish_reason"] == "interrupted"
    assert session["end_reason"] == "interrupted"
    assert (session["message_count"], session["tool_call_count"]) == (4, 1)
    hooks = ledger(plugin)
    assert [name for name, _ in hooks] == ["on_session_end", "on_session_finalize"]
    end = hooks[0][1]
    assert (end["completed"], end["interrupted"]) == (False, True)
    assert (end["session_id"], end["model"]) == (session["id"], "scripted")
    assert end["reason"] == "killed by SIGKILL"
    assert f"hermes-supervise -- hermes --resume {session['id']}" in agent.errors.decode()
    assert hermes.world.runs() == []


def journal(world: World) -> bytes:
    """Everything that was said up to now: that a word is in there proves it was handed over."""
    text = b""
    for piece in world.said().split(b"\xf5HS\x01"):
        payload = piece[16:]
        if payload[:1] == b"t":
            text += payload[3 + int.from_bytes(payload[1:3], "little") :]
        elif payload[:1] == b"{":
            text += json.loads(payload).get("text", "").encode()
    return text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["TERM", "HUP"])
def test_terminated_in_a_reply_keeps_the_words_and_the_hooks_hermes_fired(
    hermes: Hermes, number: int
) -> None:
    plugin = hermes.plugin()
    hermes.model.script = [[*say("some words of it"), ("hold", "here")]]
    agent = start(hermes, *ONE_SHOT["quiet"])
    hermes.model.wait_until_held()
    until(lambda: b"words of it " in journal(hermes.world), "the last word is handed over")
    agent.kill_agent(number)
    agent.finish()
    session, rows = shown_in_state_db(hermes)
    assert short(rows) == [("user", "hello there"), ("assistant", "some words of it ")]
    assert session["end_reason"] == "interrupted"
    names = [name for name, _ in ledger(plugin)]
    assert sorted(names) == ["on_session_end", "on_session_finalize"], "each once, by whoever"


def test_killed_in_the_second_of_three_tools(hermes: Hermes) -> None:
    world = hermes.world
    flag = world.folder / "second-runs"
    commands = {
        "call_1": "echo first-done",
        "call_2": f"touch {flag}; sleep 300",
        "call_3": "echo third-done",
    }
    hermes.model.script = [
        [call("terminal", {"command": c, "timeout": 600}, id) for id, c in commands.items()]
    ]
    agent = start(hermes, *ONE_SHOT["quiet"])
    until(flag.exists, "the second tool runs", deadline=120)
    if hermes.version == "0.13.0":  # the first result is only in the agent's memory
        until(lambda: b"first-done" in world.said(), "the first result is handed over")
    [tool] = [pid for pid in with_words(str(flag)) if os.getpgid(pid) == pid]
    agent.kill_agent()
    agent.finish()
    assert not alive(tool), "Hermes ends it itself when it can"
    session, rows = shown_in_state_db(hermes)
    report = reported(world, session["id"])
    assert report["agent"] == f"hermes {hermes.version}"
    assert report["doing"] == "calling"
    assert "terminal" in {call["name"] for call in report["open_calls"]}
    assert report["memory"]["peak"] > 10_000_000
    assert (report["turn"]["answers"], report["turn"]["characters"]) == (1, 0)
    assert "1 API call" in agent.errors.decode()
    [left] = [orphan for orphan in report["orphans"] if orphan["pid"] == tool]
    assert left["kind"] == "tool"
    assert [Path(dump).name[:12] for dump in left["dumps"]] == ["hermes-snap-"]
    for dump in left["dumps"]:
        assert dump in agent.errors.decode()
        os.unlink(dump)
    assert [row["role"] for row in rows] == ["user", "assistant", "tool", "tool", "tool"]
    assert [row["tool_call_id"] for row in rows[2:]] == ["call_1", "call_2", "call_3"]
    assert "first-done" in rows[2]["content"]
    for row in rows[3:]:
        assert "unknown" in row["content"]


def with_words(text: str) -> list[int]:
    """Processes whose command line holds this."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text in path.read_text():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def reported(world: World, session: str) -> dict[str, Any]:
    [found] = [report for report in world.reports() if report["session"] == session]
    return found


def test_a_clean_turn_is_completed_and_nothing_is_added(hermes: Hermes) -> None:
    plugin = hermes.plugin()
    hermes.model.script = [say("All is well")]
    agent = start(hermes, *ONE_SHOT["quiet"])
    assert agent.finish(120) == 0
    assert b"All is well" in agent.output
    session, rows = shown_in_state_db(hermes)
    assert [row["content"].strip() for row in rows] == ["hello there", "All is well"]
    assert session["end_reason"] == "exited", "Hermes itself leaves it open for ever"
    hooks = ledger(plugin)
    assert [name for name, _ in hooks] == ["on_session_end", "on_session_finalize"]
    assert not hooks[0][1]["interrupted"], "Hermes' own, at the end of its turn"
    assert b"interrupted" not in agent.errors


def test_the_recovered_session_resumes_and_the_model_is_sent_what_was_there(
    hermes: Hermes,
) -> None:
    ran = hermes.world.folder / "ran"
    hermes.model.script = [
        [call("terminal", {"command": f"echo x >> {ran}"}, "call_a")],
        [*say("It is done and"), ("hold", "here")],
    ]
    agent = start(hermes, *ONE_SHOT["quiet"])
    hermes.model.wait_until_held()
    until(lambda: b"done and " in journal(hermes.world), "the last word is handed over")
    agent.kill_agent()
    agent.finish()
    session, _ = shown_in_state_db(hermes)
    before = len(hermes.model.requests)
    hermes.model.script = [say("Going on")]
    again = start(hermes, "chat", "-q", "go on", "-Q", "--yolo", "--resume", session["id"])
    assert again.finish(120) == 0
    request = hermes.model.requests[before]
    sent = [message for message in request["messages"] if message["role"] != "system"]
    assert [message["role"] for message in sent] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    assert sent[2]["tool_call_id"] == sent[1]["tool_calls"][0]["id"] == "call_a"
    assert sent[3]["content"].strip() == "It is done and"
    assert sent[4]["content"] == "go on"
    assert ran.read_text() == "x\n", "no tool was run again"
    after, rows = shown_in_state_db(hermes)
    assert after["id"] == session["id"]
    assert len(rows) == 6
    assert after["end_reason"] == "exited"


def test_several_agents_in_threads_of_one_server_are_each_recovered(hermes: Hermes) -> None:
    server = hermes.world.script(
        f"""
os.environ["HERMES_YOLO_MODE"] = "1"
from hermes_state import SessionDB
from run_agent import AIAgent

db = SessionDB()
def chat(number):
    agent = AIAgent(base_url="http://127.0.0.1:{hermes.model.port}/v1", api_key="none",
                    model="scripted", session_id=f"web-{{number}}", platform="webui",
                    session_db=db, quiet_mode=True, skip_context_files=True)
    agent.run_conversation(f"question {{number}}")

for number in range(3):
    threading.Thread(target=chat, args=(number,), daemon=True).start()
forever()
"""
    )
    # Three conversations at once; which gets which answer is theirs to race for.
    hermes.model.script = [[*say(f"answer {n} begins"), ("hold", f"h{n}")] for n in range(3)]
    agent = hermes.world.run([hermes.python, server])
    for number in range(3):
        hermes.model.wait_until_held(f"h{number}")
    until(lambda: journal(hermes.world).count(b"begins ") == 3, "every last word is handed over")
    agent.kill_agent()
    agent.finish()
    partials = []
    for number in range(3):
        rows = hermes.world.messages(f"web-{number}")
        assert [row["role"] for row in rows] == ["user", "assistant"]
        assert rows[0]["content"] == f"question {number}"
        partials.append(rows[1]["content"])
        ended = hermes.world.session(f"web-{number}")
        assert ended is not None
        assert ended["end_reason"] == "interrupted"
    assert sorted(partials) == [f"answer {n} begins " for n in range(3)]


def test_tools_see_the_environment_they_would_have_without_us(hermes: Hermes) -> None:
    out = hermes.world.folder / "environment"
    hermes.model.script = [
        [call("terminal", {"command": f"env > {out}"}, "c")],
        say("Done"),
    ]
    agent = start(hermes, *ONE_SHOT["quiet"])
    assert agent.finish(120) == 0
    seen = out.read_text()
    # What the user has set for us, like any variable of theirs, and nothing that we have.
    ours = {line for line in seen.splitlines() if "SUPERVISE" in line}
    assert ours == {f"{k}={v}" for k, v in hermes.world.env.items() if "SUPERVISE" in k}
    assert "inject" not in seen


def test_out_of_memory_in_a_reply_keeps_the_words_and_is_said_to_be_that(
    world: World, model: Model
) -> None:
    hermes = Hermes("0.19.0", world, model)
    server = world.script(
        f"""
from hermes_state import SessionDB
from run_agent import AIAgent

agent = AIAgent(base_url="http://127.0.0.1:{model.port}/v1", api_key="none", model="scripted",
                session_id="hungry", platform="webui", session_db=SessionDB(), quiet_mode=True,
                skip_context_files=True)
threading.Thread(target=agent.run_conversation, args=("hello",), daemon=True).start()
sys.stdin.readline()
with open("/proc/self/oom_score_adj", "w") as file:
    file.write("1000")
data = []
while True:
    data.append(bytearray(b"x" * (1 << 20)))
"""
    )
    model.script = [[*say("words before the end"), ("hold", "here")]]
    with little_memory(600) as group:
        agent = world.run(
            [hermes.python, server],
            stdin=subprocess.PIPE,
            preexec_fn=lambda: (group / "cgroup.procs").write_text(str(os.getpid())),
        )
        model.wait_until_held()
        until(lambda: b"the end " in journal(world), "the last word is handed over")
        eat_all_memory(agent, group)
        assert agent.finish(120) == -signal.SIGKILL
    assert b"out of memory" in agent.errors
    rows = world.messages("hungry")
    assert short(rows) == [("user", "hello"), ("assistant", "words before the end ")]
    ended = world.session("hungry")
    assert ended is not None
    assert ended["end_reason"] == "interrupted"


@pytest.mark.parametrize(
    ("ran_itself", "then", "expected"),
    [
        ((), "forever()", ["on_session_end", "on_session_finalize"]),
        (("on_session_end",), "forever()", ["on_session_finalize"]),
        (("on_session_end", "on_session_finalize"), "forever()", []),
        ((), "sys.exit(0)", []),
    ],
    ids=["killed before any hook", "killed between them", "killed after both", "clean exit"],
)
def test_killed_while_it_shut_down_the_hooks_it_did_not_run_are_run(
    world: World, ran_itself: tuple[str, ...], then: str, expected: list[str]
) -> None:
    """The moment between the row's end and the hooks, which in a real Hermes is met by chance."""
    agent = world.supervise(
        f"""
from hermes_supervise.agent_shim import sdk
sdk.connection().describe(agent="hermes")
chat = session("chat", source="cli")
chat.message("user", "hello")
chat.end("cli_close")
for name in {ran_itself!r}:
    chat.hook(name)
ready()
{then}
"""
    )
    agent.wait_for("ready")
    if then == "forever()":
        agent.kill_agent()
    agent.finish(120)
    [report] = world.reports()
    assert report["end_reason"] == "cli_close", "its own reason stays"
    run = [ran["command"] for ran in report["hooks"]]
    assert run == ([f"hermes: {', '.join(expected)}"] if expected else [])
