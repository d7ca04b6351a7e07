"""Agents that know nothing of us are recovered from what they write themselves (G1, G3, G4)."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support import Supervised, World, kill, short, until, wait_dead
from transcripts import CLAUDE, CODEX, GEMINI, OPENCODE, PLAIN, install, journals, watcher_of

LATE = "[Recovered after a crash"


def start(world: World, agent: str, *options: str, **popen: Any) -> tuple[Supervised, int]:
    run = world.run([agent], *options, stdin=subprocess.PIPE, **popen)
    return run, int(run.wait_for("pid").split()[1])


def killed(world: World, agent: str, *options: str) -> Supervised:
    """Run an agent until it is ready, and kill it then."""
    run, pid = start(world, agent, *options)
    run.wait_for("ready")
    until(lambda: watcher_of(run.pid) or "none" in options, "a watcher")
    kill(pid)
    assert run.finish() == -signal.SIGKILL
    assert world.runs() == [], run.errors
    return run


def tell(run: Supervised, line: str = "") -> None:
    assert run.process.stdin is not None
    run.process.stdin.write(line.encode() + b"\n")
    run.process.stdin.flush()


def roles(rows: list[dict[str, Any]]) -> list[str]:
    return [row["role"] for row in rows]


def ended(world: World, session: str) -> str | None:
    row = world.session(session)
    assert row is not None
    return row["end_reason"]


# -- Claude Code -------------------------------------------------------------------------------


def test_claude_killed_in_a_tool_is_recovered_without_its_help(world: World) -> None:
    agent = install(world, "claude", CLAUDE, """
chat = Chat("aaaa-1")
chat.user("list the files")
chat.block("msg_1", type="thinking", thinking="Easy.")
chat.text("msg_1", "I will.")
chat.call("msg_1", "toolu_1", "Bash", command="ls")
chat.call("msg_1", "toolu_2", "Read", file_path="x")
chat.result("toolu_1", [{"type": "text", "text": "a.txt"}])
chat.other(torn='{"type": "user", "message": {"role": "us')
ready()
forever()
""")  # fmt: skip
    run = killed(world, agent, *world.hook)
    rows = world.messages("aaaa-1")
    assert roles(rows) == ["user", "assistant", "tool", "tool"]
    assert (rows[1]["content"], rows[1]["reasoning"]) == ("I will.", "Easy.")
    calls = json.loads(rows[1]["tool_calls"])
    assert [(c["id"], c["function"]["name"]) for c in calls] == [
        ("toolu_1", "Bash"), ("toolu_2", "Read")
    ]  # fmt: skip
    assert json.loads(calls[0]["function"]["arguments"]) == {"command": "ls"}
    assert (rows[2]["tool_call_id"], rows[2]["content"]) == ("toolu_1", "a.txt")
    assert rows[3]["tool_call_id"] == "toolu_2" and rows[3]["content"].startswith(LATE)
    row = world.session("aaaa-1")
    assert row is not None
    assert (row["source"], row["model"]) == ("claude-code", "claude-opus-4-6")
    assert (row["cwd"], row["end_reason"]) == (str(world.folder), "interrupted")
    [event] = world.events()
    assert event["session_id"] == "aaaa-1"
    assert event["extra"]["reason"] == "killed by SIGKILL"
    assert b"claude --resume aaaa-1" in run.errors
    [report] = world.reports()
    assert report["agent"] == "claude"


def test_claude_that_ends_in_order_is_completed_and_no_hook_runs(world: World) -> None:
    agent = install(world, "claude", CLAUDE, """
chat = Chat("aaaa-1")
chat.user("hello")
chat.text("msg_1", "Hi.")
chat.user("and now?")
chat.user([{"type": "text", "text": "[Request interrupted by user]"}])
chat.user("<command-name>/exit</command-name>")
chat.other(type="summary", summary="Other words", leafUuid="not-here")
chat.other(type="summary", summary="Greetings", leafUuid=chat.above)
""")  # fmt: skip
    run, _ = start(world, agent, *world.hook)
    assert run.finish() == 0
    assert short(world.messages("aaaa-1"))[:2] == [("user", "hello"), ("assistant", "Hi.")]
    row = world.session("aaaa-1")
    assert row is not None
    assert (row["end_reason"], row["title"]) == ("exited", "Greetings")
    assert world.events() == []
    assert world.runs() == []


def test_a_message_that_goes_on_after_results_is_two_and_every_call_is_answered(
    world: World,
) -> None:
    agent = install(world, "claude", CLAUDE, """
chat = Chat("aaaa-1")
chat.user("two things, one after the other")
chat.call("msg_1", "toolu_1", "Read", file_path="x")
chat.result("toolu_1", "text of x")
chat.call("msg_1", "toolu_2", "Edit", file_path="x")
ready()
forever()
""")  # fmt: skip
    killed(world, agent)
    rows = world.messages("aaaa-1")
    assert roles(rows) == ["user", "assistant", "tool", "assistant", "tool"]
    assert [row["tool_call_id"] for row in rows if row["role"] == "tool"] == ["toolu_1", "toolu_2"]
    assert rows[-1]["content"].startswith(LATE)


def test_a_compaction_keeps_what_was_said_before_it(world: World) -> None:
    agent = install(world, "claude", CLAUDE, """
chat = Chat("aaaa-1")
chat.user("first")
chat.text("msg_1", "one")
chat.other(type="system", subtype="compact_boundary", content="Conversation compacted",
           uuid="b", sessionId="aaaa-1", timestamp=now())
chat.user("This session is being continued: they greeted.", isCompactSummary=True)
chat.user("<system>", isMeta=True)
""")  # fmt: skip
    run, _ = start(world, agent)
    assert run.finish() == 0
    assert short(world.messages("aaaa-1")) == [
        ("user", "first"),
        ("assistant", "one"),
        ("user", "This session is being continued: they greeted."),
    ]
    assert ended(world, "aaaa-1") == "exited", "to be compacted is not to be asked"


def test_subagents_are_sessions_of_their_own_below_the_users(world: World) -> None:
    agent = install(world, "claude", CLAUDE, """
chat = Chat("aaaa-1")
chat.user("ask two others")
chat.call("msg_1", "toolu_1", "Task", prompt="a")
one = Chat("aaaa-1", "aaaa-1/subagents/agent-77", isSidechain=True, agentId="77")
one.user("the first task")
one.text("msg_2", "working on it")
chat.line("user", {"role": "user", "content": "the second task"}, isSidechain=True,
          uuid="cccccccc-1", parentUuid=None)
chat.line("assistant", {"id": "msg_3", "role": "assistant", "content": [
          {"type": "text", "text": "inline"}]}, isSidechain=True, parentUuid="cccccccc-1")
Chat("aaaa-1", "agent-acompact-1").user("for itself alone")
ready()
forever()
""")  # fmt: skip
    killed(world, agent, *world.hook)
    assert roles(world.messages("aaaa-1")) == ["user", "assistant", "tool"]
    for id, words in (
        ("aaaa-1-agent-77", "the first task"),
        ("aaaa-1-agent-cccccccc", "the secon"),
    ):
        row = world.session(id)
        assert row is not None
        assert row["parent_session_id"] == "aaaa-1"
        assert world.messages(id)[0]["content"].startswith(words)
    assert [event["session_id"] for event in world.events()] == ["aaaa-1"]
    with world.database() as db:
        assert db.execute("SELECT count(*) FROM sessions").fetchone()[0] == 3


def test_lines_that_are_not_understood_are_named_once_and_cost_nothing_else(world: World) -> None:
    agent = install(world, "claude", CLAUDE, """
chat = Chat("aaaa-1")
chat.user("one")
chat.other(torn="not json\\n[1, 2]\\n\\"text\\"\\n")
chat.other(type="a-kind-of-tomorrow", message={"role": "user", "content": 7})
chat.line("user", {"role": "user", "content": {"odd": []}})
chat.line("assistant", {"content": [7, None, {"type": "tool_use"}]})
chat.user("two")
ready()
forever()
""")  # fmt: skip
    killed(world, agent)
    said = [row["content"] for row in world.messages("aaaa-1") if row["role"] == "user"]
    assert said == ["one", "two"]
    [report] = world.reports()
    assert len(report["problems"]) == 1
    assert "aaaa-1.jsonl has a line at byte" in report["problems"][0]


def test_what_stood_in_a_resumed_transcript_is_stored_once(world: World) -> None:
    agent = install(world, "claude", CLAUDE, """
chat = Chat("aaaa-1")
turn = sys.argv[1] if len(sys.argv) > 1 else wait()
chat.user("question " + turn)
chat.text("msg_" + turn, "the same answer")
chat.user("and again " + turn)
ready()
forever()
""")  # fmt: skip
    alone = subprocess.Popen([agent, "0"], env=world.env, cwd=world.folder, stdout=subprocess.PIPE)
    assert alone.stdout is not None
    while alone.stdout.readline() != b"ready\n":
        pass
    alone.kill()
    alone.communicate()
    for turn in ("1", "2"):
        run, pid = start(world, agent)
        tell(run, turn)
        run.wait_for("ready")
        kill(pid)
        run.finish()
    expected = []
    for turn in ("0", "1", "2"):
        expected += [("user", f"question {turn}"), ("assistant", "the same answer")]
        expected += [("user", f"and again {turn}")]
    assert short(world.messages("aaaa-1")) == expected
    assert ended(world, "aaaa-1") == "interrupted"


def test_a_long_transcript_that_is_resumed_costs_only_what_is_new(world: World) -> None:
    agent = install(world, "claude", CLAUDE, """
chat = Chat("aaaa-1")
wait()
chat.user("after fifty megabytes")
chat.text("msg_1", "still here")
ready()
forever()
""")  # fmt: skip
    slug = "".join(c if c.isalnum() else "-" for c in str(world.folder))
    path = world.folder / ".claude" / "projects" / slug / "aaaa-1.jsonl"
    path.parent.mkdir(parents=True)
    old = {"type": "user", "sessionId": "aaaa-1", "timestamp": "2026-01-01T00:00:00.000Z"}
    with path.open("w") as file:
        for number in range(1000):
            message = {"role": "user", "content": f"{number} " + "x" * 50_000}
            file.write(json.dumps({**old, "uuid": f"u{number}", "message": message}) + "\n")
    run, pid = start(world, agent)
    tell(run)
    run.wait_for("ready")
    kill(pid)
    run.finish()
    assert short(world.messages("aaaa-1")) == [
        ("user", "after fifty megabytes"),
        ("assistant", "still here"),
    ]
    assert b"too long to be taken over" in run.errors


def test_two_agents_in_one_folder_are_told_apart(world: World) -> None:
    agent = install(world, "claude", CLAUDE, """
name = wait()
chat = Chat(name, pid=True)
chat.user("I am " + name)
ready()
wait()
chat.text("msg_1", "and I end in order")
""")  # fmt: skip
    first, doomed = start(world, agent)
    second, _ = start(world, agent)
    alone = subprocess.Popen(
        [agent], env=world.env, cwd=world.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert alone.stdin is not None and alone.stdout is not None
    alone.stdin.write(b"cccc-3\n")
    alone.stdin.flush()
    while alone.stdout.readline() != b"ready\n":
        pass
    for run, name in ((first, "aaaa-1"), (second, "bbbb-2")):
        tell(run, name)
        run.wait_for("ready")
        until(lambda name=name: f"I am {name}".encode() in journals(world), "it is told")
    kill(doomed)
    first.finish()
    assert ended(world, "aaaa-1") == "interrupted"
    row = world.session("bbbb-2")
    assert row is None or row["end_reason"] is None, "it goes on"
    tell(second)
    assert second.finish() == 0
    alone.communicate(b"\n")
    assert ended(world, "bbbb-2") == "exited"
    assert short(world.messages("bbbb-2"))[1:] == [("assistant", "and I end in order")]
    assert world.session("cccc-3") is None, "nobody supervised that one"


# -- who dies ----------------------------------------------------------------------------------

TALKER = """
chat = Chat("aaaa-1")
number = 0
for line in sys.stdin:
    if line.strip() == "end":
        break
    for _ in range(int(line)):
        chat.user("question %d" % number)
        chat.text("msg_%d" % number, "answer %d" % number)
        number += 1
    ready("said %d" % number)
"""


def talk(run: Supervised, turns: int, total: int) -> None:
    tell(run, str(turns))
    run.wait_for(f"said {total}")


def conversation(total: int) -> list[tuple[str, str]]:
    pairs = [[("user", f"question {n}"), ("assistant", f"answer {n}")] for n in range(total)]
    return [one for pair in pairs for one in pair]


def told(world: World, words: str) -> None:
    until(lambda: words.encode() in journals(world), f"{words} is in the journal")


def test_a_watcher_that_is_killed_is_replaced_and_says_nothing_twice(world: World) -> None:
    run, pid = start(world, install(world, "claude", CLAUDE, TALKER))
    total = 0
    for _ in range(2):
        total += 3
        talk(run, 3, total)
        told(world, f"answer {total - 1}")
        [watcher] = watcher_of(run.pid)
        kill(watcher)
        wait_dead(watcher)
    total += 1
    talk(run, 1, total)
    told(world, f"answer {total - 1}")
    assert journals(world).count(b'"answer 0"') == 1, "what was acknowledged is not said again"
    kill(pid)
    assert run.finish() == -signal.SIGKILL
    assert short(world.messages("aaaa-1")) == conversation(total)


def test_a_watcher_that_is_killed_while_the_agent_dies_is_replaced_too(world: World) -> None:
    run, pid = start(world, install(world, "claude", CLAUDE, TALKER))
    [watcher] = until(lambda: watcher_of(run.pid), "a watcher")
    kill(watcher, signal.SIGSTOP)  # so that it has read nothing of what follows
    talk(run, 5, 5)
    kill(pid)
    wait_dead(pid)
    kill(watcher)
    run.finish()
    assert short(world.messages("aaaa-1")) == conversation(5)
    assert ended(world, "aaaa-1") == "interrupted"


@pytest.mark.parametrize("orderly", [False, True])
def test_a_supervisor_that_is_killed_leaves_the_watching_to_its_heir(
    world: World, orderly: bool
) -> None:
    run, pid = start(world, install(world, "claude", CLAUDE, TALKER))
    talk(run, 3, 3)
    told(world, "answer 2")
    [watcher] = watcher_of(run.pid)
    kill(run.pid)
    run.process.wait()
    talk(run, 3, 6)
    [heir] = until(lambda: world.heirs(), "an heir")
    wait_dead(watcher)
    told(world, "answer 5")
    talk(run, 1, 7)
    if orderly:
        tell(run, "end")
    else:
        kill(pid)
    wait_dead(heir)
    assert short(world.messages("aaaa-1")) == conversation(7)
    assert ended(world, "aaaa-1") == ("exited" if orderly else "interrupted")
    assert world.runs() == []


def test_an_agent_that_dies_before_there_is_an_heir_is_read_to_its_end(world: World) -> None:
    run, pid = start(world, install(world, "claude", CLAUDE, TALKER))
    talk(run, 2, 2)
    told(world, "answer 1")
    [watcher] = watcher_of(run.pid)
    kill(watcher, signal.SIGSTOP)
    talk(run, 2, 4)
    kill(run.pid, signal.SIGSTOP)  # so that it does not see the agent's death
    kill(pid)
    wait_dead(pid)
    kill(watcher)
    kill(run.pid)
    run.process.wait()
    until(lambda: world.runs() == [], "the heir has settled it")
    assert short(world.messages("aaaa-1")) == conversation(4)
    assert ended(world, "aaaa-1") == "interrupted"


def test_when_all_are_killed_at_once_recover_reads_what_nobody_had_told(world: World) -> None:
    run, _ = start(world, install(world, "claude", CLAUDE, TALKER), "--no-adopt")
    talk(run, 2, 2)
    told(world, "answer 1")
    [watcher] = watcher_of(run.pid)
    kill(watcher, signal.SIGSTOP)
    talk(run, 2, 4)
    run.abandon()
    assert world.call("recover").returncode == 0
    assert short(world.messages("aaaa-1")) == conversation(4)
    assert ended(world, "aaaa-1") == "interrupted"
    assert world.runs() == []


def test_an_agent_whose_supervisor_is_gone_is_left_alone_until_it_ends(world: World) -> None:
    run, pid = start(world, install(world, "claude", CLAUDE, TALKER), "--no-adopt")
    talk(run, 1, 1)
    told(world, "answer 0")
    kill(run.pid)
    run.process.wait()
    talk(run, 1, 2)
    assert world.call("recover").returncode == 0
    row = world.session("aaaa-1") if world.db.exists() else None
    assert row is None or row["end_reason"] is None, "it still works"
    kill(pid)
    wait_dead(pid)
    assert world.call("recover").returncode == 0
    assert short(world.messages("aaaa-1")) == conversation(2)
    assert ended(world, "aaaa-1") == "interrupted"


def test_a_launcher_that_dies_above_the_agent_is_not_its_death(world: World) -> None:
    agent = install(world, "claude", CLAUDE, TALKER)
    npx = world.folder / "bin" / "npx"
    npx.write_text('#!/bin/sh\nexec 3<&0\n"$@" <&3 &\nwait\n')
    npx.chmod(0o755)
    run = world.run([str(npx), agent], stdin=subprocess.PIPE)
    pid = int(run.wait_for("pid").split()[1])
    talk(run, 1, 1)
    told(world, "answer 0")
    launcher = run.agent
    assert launcher != pid
    kill(launcher)
    wait_dead(launcher)
    talk(run, 1, 2)
    told(world, "answer 1")
    kill(pid)
    run.finish()
    assert short(world.messages("aaaa-1")) == conversation(2)
    [report] = world.reports()
    assert (report["outcome"], report["cause"]) == ("interrupted", "killed by SIGKILL")


def test_a_crashed_agent_that_is_started_again_goes_on_in_its_session(world: World) -> None:
    agent = install(world, "claude", CLAUDE, """
chat = Chat("aaaa-1")
ready("given " + " ".join(sys.argv[1:]))
chat.user("question " + wait())
ready()
chat.text("msg_1", "answer to " + wait())
""")  # fmt: skip
    run, pid = start(world, agent, "--restart", "on-crash")
    tell(run, "one")
    run.wait_for("ready")
    kill(pid)
    assert run.wait_for("given --").endswith("--resume aaaa-1")
    tell(run, "two")
    run.wait_for("ready")
    tell(run, "it")
    assert run.finish() == 0
    assert short(world.messages("aaaa-1")) == [
        ("user", "question one"),
        ("user", "question two"),
        ("assistant", "answer to it"),
    ]
    assert ended(world, "aaaa-1") == "exited"


def test_signals_and_the_terminals_keys_do_not_reach_the_watcher(world: World) -> None:
    run, pid = start(world, install(world, "claude", CLAUDE, TALKER), start_new_session=True)
    talk(run, 1, 1)
    told(world, "answer 0")
    [watcher] = watcher_of(run.pid)
    fields = Path(f"/proc/{watcher}/stat").read_text().rpartition(")")[2].split()
    assert int(fields[3]) == watcher, "it is in no session of ours"
    kill(pid, signal.SIGINT)
    run.finish()
    assert short(world.messages("aaaa-1")) == conversation(1)
    wait_dead(watcher)


def test_without_inotify_the_files_are_looked_at_all_the_same(world: World) -> None:
    agent = install(world, "claude", CLAUDE, TALKER)
    nobody_tells = "echo 0 > /proc/sys/user/max_inotify_instances"
    if subprocess.run(["unshare", "-Ur", "sh", "-c", nobody_tells], capture_output=True).returncode:
        pytest.skip("no user namespaces here, without which inotify cannot be taken away")
    line = shlex.join([*world.command, "--", agent])
    run = world.shell(f"exec unshare -Ur sh -c {shlex.quote(f'{nobody_tells}; exec {line}')}")
    pid = int(run.wait_for("pid").split()[1])
    talk(run, 1, 1)
    told(world, "answer 0")
    talk(run, 1, 2)
    told(world, "answer 1")
    kill(pid)
    run.finish()
    assert short(world.messages("aaaa-1")) == conversation(2)


# -- the others --------------------------------------------------------------------------------


def test_codex_says_everything_twice_and_is_stored_once(world: World) -> None:
    agent = install(world, "codex", CODEX, """
other = Chat("0000-other", cwd=HOME + "/elsewhere")
other.user("not in this folder")
chat = Chat("0199-abcd")
chat.item("message", role="developer", content=[{"type": "input_text", "text": "rules"}])
chat.item("message", role="user", content=[{"type": "input_text",
          "text": "<environment_context>x</environment_context>"}])
chat.line("turn_context", cwd=CWD, model="gpt-5-codex", approval_policy="never")
chat.event("task_started")
chat.user("count the files")
chat.event("agent_reasoning", text="**Counting**")
chat.item("reasoning", summary=[{"type": "summary_text", "text": "**Counting**"}],
          encrypted_content="x")
chat.text("Counting.")
chat.item("function_call", name="shell", arguments='{"command":["ls"]}', call_id="call_1")
chat.item("custom_tool_call", name="apply_patch", input="*** Begin", call_id="call_2")
chat.item("function_call_output", call_id="call_1", output='{"output":"3"}')
chat.event("token_count", info=None)
ready()
forever()
""")  # fmt: skip
    killed(world, agent)
    rows = world.messages("0199-abcd")
    assert roles(rows) == ["user", "assistant", "tool", "tool"]
    assert rows[0]["content"] == "count the files"
    assert (rows[1]["content"], rows[1]["reasoning"]) == ("Counting.", "**Counting**")
    calls = json.loads(rows[1]["tool_calls"])
    assert [call["id"] for call in calls] == ["call_1", "call_2"]
    assert calls[1]["function"]["arguments"] == "*** Begin"
    assert (rows[2]["tool_call_id"], rows[2]["content"]) == ("call_1", '{"output":"3"}')
    assert rows[3]["tool_call_id"] == "call_2" and rows[3]["content"].startswith(LATE)
    row = world.session("0199-abcd")
    assert row is not None
    assert (row["source"], row["model"]) == ("codex", "gpt-5-codex")
    assert row["end_reason"] == "interrupted"
    assert world.session("0000-other") is None


def test_a_codex_turn_that_was_completed_or_given_up_by_the_user_is_no_interruption(
    world: World,
) -> None:
    agent = install(world, "codex", CODEX, """
chat = Chat("0199-abcd")
chat.event("task_started")
chat.user("do it")
chat.line("compacted", message="They want it done.")
chat.event("turn_aborted", reason="interrupted")
child = Chat("0199-child", source={"subagent": {"thread_spawn": {"parent_thread_id":
             "0199-abcd"}}})
child.event("task_started")
child.user("a part of it")
child.text("done")
child.event("task_complete")
""")  # fmt: skip
    run, _ = start(world, agent)
    assert run.finish() == 0
    assert ended(world, "0199-abcd") == ended(world, "0199-child") == "exited"
    row = world.session("0199-child")
    assert row is not None
    assert row["parent_session_id"] == "0199-abcd"
    assert [r["content"] for r in world.messages("0199-abcd")] == ["do it", "They want it done."]


def test_gemini_tells_a_message_again_as_it_grows_and_it_is_stored_once(world: World) -> None:
    agent = install(world, "gemini", GEMINI, """
chat = Chat("abcdef01-session")
chat.message("m1", "user", [{"text": "what is here?"}])
chat.message("m2", "gemini", "", thoughts=[{"subject": "Looking", "description": "around"}],
             model="gemini-3-pro")
call = {"id": "c1", "name": "ls", "args": {"path": "."}, "status": "executing"}
chat.message("m2", "gemini", "I look.", toolCalls=[call], model="gemini-3-pro",
             thoughts=[{"subject": "Looking", "description": "around"}])
done = dict(call, status="success", result=[{"functionResponse": {"id": "c1", "name": "ls",
            "response": {"output": "a.txt"}}}])
chat.message("m2", "gemini", "I look.", toolCalls=[done], model="gemini-3-pro",
             thoughts=[{"subject": "Looking", "description": "around"}])
chat.update(**{"$set": {"lastUpdated": now()}})
chat.message("m3", "gemini", "There is a.txt.")
chat.message("m4", "user", "delete it")
chat.update(**{"$rewindTo": "m4"})
chat.update(**{"$set": {"messages": [{"id": "m2", "type": "gemini", "content": "[masked]"},
            {"id": "s1", "type": "user", "content": "a summary", "timestamp": now()}]}})
chat.message("m5", "user", "keep it")
second = {"id": "c2", "name": "cat", "args": {}, "status": "executing"}
chat.message("m6", "gemini", "", toolCalls=[second])
chat.message("i1", "info", "for the screen")
chat.update(**{"$set": {"summary": "A look around"}})
child = Chat("child-1", path="abcdef01-session/child-1.jsonl", kind="subagent")
child.message("k1", "user", "look deeper")
ready()
forever()
""")  # fmt: skip
    killed(world, agent)
    rows = world.messages("abcdef01-session")
    assert short(rows)[:-1] == [
        ("user", "what is here?"),
        ("assistant", "I look."),
        ("tool", "a.txt"),
        ("assistant", "There is a.txt."),
        ("user", "delete it"),
        ("user", "a summary"),
        ("user", "keep it"),
        ("assistant", ""),
    ]
    assert rows[1]["reasoning"] == "Looking: around"
    assert rows[-1]["tool_call_id"] == "c2" and rows[-1]["content"].startswith(LATE)
    row = world.session("abcdef01-session")
    assert row is not None
    assert (row["source"], row["title"]) == ("gemini-cli", "A look around")
    child = world.session("child-1")
    assert child is not None
    assert child["parent_session_id"] == "abcdef01-session"


def test_opencode_is_read_from_its_database_which_stays_as_it_was(world: World) -> None:
    agent = install(world, "opencode", OPENCODE, """
session("ses_1", title="Files")
message("ses_1", "msg_1", role="user", time={"created": ms()}, model={"modelID": "big"})
part("ses_1", "msg_1", "prt_1", type="text", text="fix it")
part("ses_1", "msg_1", "prt_2", type="text", text="<context>", synthetic=True)
message("ses_1", "msg_2", role="assistant", modelID="big", time={"created": ms()})
part("ses_1", "msg_2", "prt_3", type="step-start")
part("ses_1", "msg_2", "prt_4", type="reasoning", text="hm", time={"start": ms()})
part("ses_1", "msg_2", "prt_5", type="text", text="First I look.")
part("ses_1", "msg_2", "prt_6", type="tool", callID="c1", tool="read",
     state={"status": "running", "input": {"filePath": "x"}})
ready("at work")
wait()
part("ses_1", "msg_2", "prt_6", type="tool", callID="c1", tool="read",
     state={"status": "completed", "input": {"filePath": "x"}, "output": "text of x"})
part("ses_1", "msg_2", "prt_7", type="text", text="Then I mend.")
part("ses_1", "msg_2", "prt_8", type="tool", callID="c2", tool="edit",
     state={"status": "running", "input": {}})
session("ses_2", parent="ses_1", title="Child session - 2026")
message("ses_2", "msg_3", role="user", time={"created": ms()})
part("ses_2", "msg_3", "prt_9", type="text", text="help")
ready()
forever()
""")  # fmt: skip
    run, pid = start(world, agent)
    run.wait_for("at work")
    told(world, "First I look.")
    tell(run)
    run.wait_for("ready")
    database = world.folder / ".local" / "share" / "opencode" / "opencode.db"
    wal = Path(f"{database}-wal")
    before = (wal.stat().st_ino, wal.read_bytes(), database.read_bytes())
    kill(pid)
    run.finish()
    assert (wal.stat().st_ino, wal.read_bytes(), database.read_bytes()) == before
    rows = world.messages("ses_1")
    assert short(rows)[:-1] == [
        ("user", "fix it"),
        ("assistant", "First I look."),
        ("tool", "text of x"),
        ("assistant", "Then I mend."),
    ]
    assert rows[1]["reasoning"] == "hm"
    assert rows[-1]["tool_call_id"] == "c2" and rows[-1]["content"].startswith(LATE)
    row = world.session("ses_1")
    assert row is not None
    assert (row["source"], row["model"], row["title"]) == ("opencode", "big", "Files")
    child = world.session("ses_2")
    assert child is not None
    assert child["parent_session_id"] == "ses_1"


# -- any file ----------------------------------------------------------------------------------


def the_session(world: World, begins: str) -> str:
    with world.database() as db:
        rows = db.execute("SELECT id FROM sessions WHERE id LIKE ?", (begins + "%",)).fetchall()
    [row] = rows
    return str(row["id"])


def test_any_file_of_messages_can_be_watched_even_if_it_is_written_anew(world: World) -> None:
    agent = install(world, "mine", PLAIN, """
LOG = CWD + "/log/chat.jsonl"
say(LOG, "user", "yes")
say(LOG, "assistant", "no")
say(LOG, "user", "yes")
ready("said")
wait()
with open(LOG + ".new", "w") as file:  # forgets what is long ago, and goes on
    for role, content in (("assistant", "no"), ("user", "yes"), ("assistant", "well")):
        file.write(json.dumps({"role": role, "content": content}) + "\\n")
os.replace(LOG + ".new", LOG)
ready("renewed")
wait()
open(LOG, "w").close()  # in place
say(LOG, "user", "yes")
call = {"id": "c1", "type": "function", "function": {"name": "run", "arguments": "{}"}}
say(LOG, "assistant", None, tool_calls=[call])
ready()
forever()
""")  # fmt: skip
    log = world.folder / "log" / "chat.jsonl"
    log.parent.mkdir()
    log.write_text('{"role": "user", "content": "of yesterday"}\n')
    run, pid = start(world, agent, "--watch", "log/chat.jsonl")
    run.wait_for("said")
    until(lambda: journals(world).count(b'"yes"') == 2, "both are told")
    tell(run)
    run.wait_for("renewed")
    told(world, '"well"')
    tell(run)
    run.wait_for("ready")
    kill(pid)
    run.finish()
    rows = world.messages(the_session(world, "chat-"))
    assert short(rows)[:-1] == [
        ("user", "of yesterday"),
        ("user", "yes"),
        ("assistant", "no"),
        ("user", "yes"),
        ("assistant", "well"),
        ("assistant", ""),
    ]
    assert rows[-1]["tool_call_id"] == "c1"


def test_a_folder_can_be_watched_and_a_last_line_without_its_end_counts_if_it_is_whole(
    world: World,
) -> None:
    agent = install(world, "mine", PLAIN, """
say(CWD + "/logs/a.jsonl", "user", "in a", session_id="of-the-agent")
say(CWD + "/logs/deep/b.jsonl", "user", "in b")
append(CWD + "/logs/deep/b.jsonl", torn='{"role": "assistant", "content": "at the very end"}')
append(CWD + "/logs/a.jsonl", torn='{"role": "assistant", "content": "cut o')
ready()
forever()
""")  # fmt: skip
    killed(world, agent, "--watch", "logs", "--watch", "nowhere/at-all.jsonl")
    assert short(world.messages("of-the-agent")) == [("user", "in a")]
    assert short(world.messages(the_session(world, "b-"))) == [
        ("user", "in b"),
        ("assistant", "at the very end"),
    ]


@pytest.mark.parametrize("named", [("--agent", "claude"), ("--agent", "none")])
def test_the_agent_can_be_named_or_left_alone(world: World, named: tuple[str, str]) -> None:
    body = 'Chat("aaaa-1").user("hello")\nready()\nforever()\n'
    agent = install(world, "claude" if named[1] == "none" else "wrapped", CLAUDE, body)
    killed(world, agent, *named)
    if named[1] == "none":
        assert not world.db.exists()
    else:
        assert short(world.messages("aaaa-1")) == [("user", "hello")]


def test_folders_that_the_agent_was_told_to_use_are_looked_in(world: World) -> None:
    world.env["CLAUDE_CONFIG_DIR"] = str(world.folder / "of the shell")
    body = 'Chat("aaaa-1").user("hello")\nready()\nforever()\n'
    agent = install(world, "claude", CLAUDE, body)
    elsewhere = world.folder / "of the command"
    run = world.run(["env", f"CLAUDE_CONFIG_DIR={elsewhere}", agent])
    pid = int(run.wait_for("pid").split()[1])
    run.wait_for("ready")
    kill(pid)
    run.finish()
    assert elsewhere.exists()
    assert short(world.messages("aaaa-1")) == [("user", "hello")]
