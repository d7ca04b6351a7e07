"""What opencode showed of a reply is stored, whoever dies, and the user's own plugins run."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hermes_supervise.supervisor.agents import registry
from hermes_supervise.supervisor.agents.live import Live
from hermes_supervise.supervisor.agents.opencode.tap import Tap
from hermes_supervise.supervisor.agents.opencode.transcript import records_of
from hermes_supervise.supervisor.cli.proof.scripted_model import ScriptedModel
from real_agents import Opencode, ask_in, conversation, kill_all_of, only_session, reply, run_once
from support import World, until
from tmux import Tmux


def test_a_reply_that_became_complete_is_stored_once(
    world: World, model: ScriptedModel, window: Tmux
) -> None:
    agent = Opencode(world, model)
    model.hold_after(25)
    run = ask_in(window, agent, "WORDS 30")
    window.wait_for("w019")
    until(lambda: b"w019" in world.said(), "what is on the screen is reported")
    model.gate.set()
    window.wait_for("w029")
    until(lambda: not list(Path(world.state).rglob("tap/msg_*")), "the whole reply is reported")
    kill_all_of(agent, run.agent)
    window.status()
    assert conversation(agent) == [("user", "WORDS 30"), ("assistant", reply(30))]
    assert only_session(agent)["end_reason"] == "interrupted"


def test_a_terminal_closed_in_a_tool_leaves_the_answer_that_opencode_gives_itself(
    world: World, model: ScriptedModel, window: Tmux
) -> None:
    agent = Opencode(world, model)
    begun = world.folder / "begun-tool"
    ask_in(window, agent, "CALL touch ../begun-tool; sleep 300", *world.hook)
    until(begun.exists, "the tool runs")
    window.close()
    until(world.events, "the hook has run")
    rows = world.messages(str(only_session(agent)["id"]))
    assert [row["role"] for row in rows] == ["user", "assistant", "tool"]
    [call] = json.loads(rows[1]["tool_calls"])
    assert rows[2]["tool_call_id"] == call["id"]
    assert "aborted" in rows[2]["content"]
    [report] = world.reports()
    assert (report["outcome"], report["recovered"]["calls_unknown"]) == ("interrupted", 0)


def test_the_users_own_plugins_and_configuration_stay_in_force(
    world: World, model: ScriptedModel
) -> None:
    agent = Opencode(world, model)
    for name in ("first", "second"):
        (world.folder / f"{name}.js").write_text(
            'import { appendFileSync } from "node:fs"\n'
            f'export const Own = async () => {{ appendFileSync("{world.folder}/{name}", "x"); '
            "return {} }\n"
        )
    config = world.folder / ".config/opencode/opencode.json"
    settings = json.loads(config.read_text())
    config.write_text(json.dumps({**settings, "plugin": [f"file://{world.folder}/first.js"]}))
    content = {"plugin": [f"file://{world.folder}/second.js"], "username": "somebody"}
    world.env["OPENCODE_CONFIG_CONTENT"] = json.dumps(content)
    run = run_once(agent, "WORDS 5")
    assert run.finish(90) == 0, run.errors
    assert (world.folder / "first").exists() and (world.folder / "second").exists()
    assert conversation(agent) == [("user", "WORDS 5"), ("assistant", reply(5))]


@pytest.mark.parametrize("beside", [(), ("--no-tap",)])
def test_two_in_one_folder_each_have_their_own_session(
    world: World, model: ScriptedModel, beside: tuple[str, ...]
) -> None:
    agent = Opencode(world, model)
    begun = [world.folder / f"begun{n}" for n in range(2)]
    runs = []
    for path, options in zip(begun, ((), beside), strict=True):
        runs.append(run_once(agent, f"CALL touch {path}; sleep 300", *options))
        until(path.exists, "it works")
    kill_all_of(agent, runs[1].agent)
    runs[1].finish(60)
    [report] = world.reports()
    assert "begun1" in world.messages(report["session"])[0]["content"]
    ended = [row["id"] for row in agent.sessions() if row["ended_at"] is not None]
    assert ended == [report["session"]], "the other one lives on"
    kill_all_of(agent, runs[0].agent)
    runs[0].finish(60)
    for row, name in zip(agent.sessions(), ("begun0", "begun1"), strict=True):
        assert row["end_reason"] == "interrupted"
        texts = [str(message["content"]) for message in world.messages(str(row["id"]))]
        assert name in texts[0] and len(texts) == 3


def test_one_that_is_not_supervised_is_not_taken_for_ours(
    world: World, model: ScriptedModel
) -> None:
    agent = Opencode(world, model)
    begun = [world.folder / f"begun{n}" for n in range(2)]
    run = run_once(agent, f"CALL touch {begun[0]}; sleep 300")
    until(begun[0].exists, "ours works")
    command = agent.once(f"CALL touch {begun[1]}; sleep 300")
    nothing = subprocess.DEVNULL
    other = subprocess.Popen(command, env=world.env, cwd=agent.work, stdin=nothing, stdout=nothing)
    until(begun[1].exists, "the other works")
    kill_all_of(agent, run.agent)
    run.finish(60)
    other.kill()
    other.wait()
    rows = world.messages(str(only_session(agent)["id"]))
    assert "begun0" in rows[0]["content"]


# -- without opencode --------------------------------------------------------------------------


def append(tmp_path: Path, text: str) -> None:
    with open(tmp_path / "m1.jsonl", "a") as file:
        file.write(text)


def line(tmp_path: Path, n: int, text: str, part: str = "p1", kind: str = "text") -> None:
    first = '{"session": "s"}\n' if n == 0 else ""
    entry = {"n": n, "part": part, "type": kind, "text": text}
    append(tmp_path, f"{first}{json.dumps(entry)}\n")


def pending(live: Live, *reported: str) -> dict[str, Any]:
    live.look()
    found = live.pending(set(reported))
    return {} if found is None else found[0]


def test_pieces_are_reported_as_they_come_and_not_beyond_a_gap(tmp_path: Path) -> None:
    live = Live(str(tmp_path / "m1.jsonl"))
    line(tmp_path, 0, "a ")
    assert pending(live) == {"kind": "delta", "session": "s", "text": "a ", "restart": True}
    line(tmp_path, 1, "b ")
    append(tmp_path, '{"n": 2, "par')
    assert pending(live) == {"kind": "delta", "session": "s", "text": "b "}
    assert pending(live) == {}
    again = Live(str(tmp_path / "m1.jsonl"))
    assert pending(again)["text"] == "a b ", "who reads next begins with the first piece"
    append(tmp_path, "\n")
    line(tmp_path, 3, "d ")
    assert pending(live) == {}


def test_what_the_database_has_is_no_longer_in_progress(tmp_path: Path) -> None:
    live = Live(str(tmp_path / "m1.jsonl"))
    line(tmp_path, 0, "one", "p1")
    line(tmp_path, 1, "two", "p2")
    assert pending(live)["text"] == "one\n\ntwo"
    # The first is complete: its message took the place of both. The second begins again.
    line(tmp_path, 2, "!", "p2")
    assert pending(live, "p1") == {
        "kind": "delta", "session": "s", "text": "two!", "restart": True
    }  # fmt: skip
    assert pending(live, "p1", "p2") == {}


def test_a_thought_waits_for_the_text_that_it_belongs_to(tmp_path: Path) -> None:
    live = Live(str(tmp_path / "m1.jsonl"))
    line(tmp_path, 0, "hm", "p1", "reasoning")
    line(tmp_path, 1, "Yes", "p2")
    live.look()
    parts = [{"id": "p1", "type": "reasoning", "text": "hm"}, {"id": "p2", "type": "text"}]
    info: dict[str, Any] = {"role": "assistant", "time": {"created": 1}}
    records, _, reported = records_of("s", "m1", info, parts, None, live)
    assert (records, reported) == ([], set())
    record = pending(live, *reported)
    assert (record["reasoning"], record["text"]) == ("hm", "Yes")
    info["time"]["completed"] = 2
    [said, _], over, reported = records_of("s", "m1", info, parts, None, live)
    assert said["message"]["reasoning"] == "hm"
    assert over and reported == {"p1"}


def test_a_call_has_its_arguments_before_the_database_has_them(tmp_path: Path) -> None:
    (tmp_path / "m1.jsonl").write_text('{"n": 0, "call": "c", "arguments": {"command": "ls"}}\n')
    live = Live(str(tmp_path / "m1.jsonl"))
    live.look()
    part = {"id": "p", "type": "tool", "callID": "c", "tool": "bash",
            "state": {"status": "pending", "input": {}}}  # fmt: skip
    [said], _, _ = records_of("s", "m1", {"role": "assistant"}, [part], None, live)
    [call] = said["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"command": "ls"}


def test_the_plugins_notes_tell_which_sessions_are_of_this_run(tmp_path: Path) -> None:
    tap = Tap(str(tmp_path))
    tap.look()
    assert not tap.loaded
    (tmp_path / "sessions.jsonl").write_text('{"pid": 1}\n{"session": "s1"}\n{"sess')
    tap.look()
    assert tap.loaded and tap.sessions == {"s1"}


HOME_WITH_PLUGINS = {"packages": {"": {"dependencies": {"@opencode-ai/plugin": "1"}}}}


def tapped(home: Path, *command: str, **env: str) -> tuple[list[str], dict[str, str]] | None:
    folder = home / "a tap"
    folder.mkdir(exist_ok=True)
    env = {"HOME": str(home), **env}
    return registry.named("opencode").tapped(list(command), env, str(folder))


def test_the_plugin_is_added_to_what_the_user_has_configured(tmp_path: Path) -> None:
    config = tmp_path / ".config" / "opencode"
    config.mkdir(parents=True)
    assert tapped(tmp_path, "opencode") is None, "it would wait for a download"
    (config / "node_modules").mkdir()
    (config / "package-lock.json").write_text(json.dumps(HOME_WITH_PLUGINS))
    ours = f"file://{tmp_path}/a%20tap/plugin.js"
    found = tapped(tmp_path, "opencode")
    assert found is not None
    assert json.loads(found[1]["OPENCODE_CONFIG_CONTENT"]) == {"plugin": [ours]}
    theirs = json.dumps({"model": "x", "plugin": ["theirs"]})
    merged = {"model": "x", "plugin": ["theirs", ours]}
    found = tapped(tmp_path, "opencode", "run", "hi", OPENCODE_CONFIG_CONTENT=theirs)
    assert found is not None
    assert json.loads(found[1]["OPENCODE_CONFIG_CONTENT"]) == merged
    found = tapped(tmp_path, "env", f"OPENCODE_CONFIG_CONTENT={theirs}", "opencode")
    assert found is not None
    assert json.loads(found[0][1].partition("=")[2]) == merged
    assert tapped(tmp_path, "opencode", OPENCODE_CONFIG_CONTENT="{// a comment\n}") is None
    assert tapped(tmp_path, "opencode", "--pure") is None
    assert tapped(tmp_path, "opencode", OPENCODE_PURE="1") is None
    assert tapped(tmp_path, "opencode", "models") is None
