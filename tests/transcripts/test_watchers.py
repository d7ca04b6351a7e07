"""Agents that know nothing of us are recovered from what they write themselves (G1, G3, G4)."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hermes_supervise.ipc import frames
from hermes_supervise.supervisor.process.platform import lock_holder
from hermes_supervise.supervisor.transcripts.deduplicator import KEY
from support import DEADLINE, Supervised, World, kill, short, standby_of, until, wait_dead
from tmux import Tmux
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
    assert "aaaa-1.jsonl" in report["problems"][0]


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
        run, pid = start(world, agent, "--no-tap")  # it looks at its arguments
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
    [report] = world.reports()
    assert len(report["problems"]) == 1, "that the history is missing"


def test_two_agents_in_one_folder_are_kept_apart(world: World) -> None:
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
        until(lambda name=name: f"I am {name}".encode() in journals(world), "it is reported")
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
    return [item for pair in pairs for item in pair]


def wait_for_words(world: World, words: str) -> None:
    until(lambda: words.encode() in journals(world), f"{words} is in the journal")


def is_marked(world: World) -> bool:
    """Whether the watcher has noted everything that is in the journal."""
    [marks] = world.runs()[0].glob("watched")
    numbers = {seq for seq, _ in frames.salvage(journals(world)).frames} - {frames.HANDSHAKE}
    return marks.stat().st_size == 2 * KEY * len(numbers)


def test_a_watcher_that_is_killed_is_replaced_and_says_nothing_twice(world: World) -> None:
    run, pid = start(world, install(world, "claude", CLAUDE, TALKER))
    total = 0
    for _ in range(2):
        total += 3
        talk(run, 3, total)
        wait_for_words(world, f"answer {total - 1}")
        until(lambda: is_marked(world), "the watcher has noted what was acknowledged")
        [watcher] = watcher_of(run.pid)
        kill(watcher)
        wait_dead(watcher)
    total += 1
    talk(run, 1, total)
    wait_for_words(world, f"answer {total - 1}")
    assert journals(world).count(b'"answer 0"') == 1, "what was acknowledged is not said again"
    kill(pid)
    assert run.finish() == -signal.SIGKILL
    assert short(world.messages("aaaa-1")) == conversation(total)


def test_a_transcript_reader_killed_while_the_agent_dies_is_replaced(world: World) -> None:
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
def test_a_supervisor_that_is_killed_leaves_the_watching_to_its_successor(
    world: World, orderly: bool
) -> None:
    run, pid = start(world, install(world, "claude", CLAUDE, TALKER))
    talk(run, 3, 3)
    wait_for_words(world, "answer 2")
    [watcher] = watcher_of(run.pid)
    kill(run.pid)
    run.process.wait()
    talk(run, 3, 6)
    [successor] = until(lambda: world.successors(), "a successor")
    wait_dead(watcher)
    wait_for_words(world, "answer 5")
    talk(run, 1, 7)
    if orderly:
        tell(run, "end")
    else:
        kill(pid)
    wait_dead(successor)
    assert short(world.messages("aaaa-1")) == conversation(7)
    assert ended(world, "aaaa-1") == ("exited" if orderly else "interrupted")
    assert world.runs() == []


def test_the_exit_of_a_dead_supervisors_watcher_is_not_the_agents_death(world: World) -> None:
    run, pid = start(world, install(world, "claude", CLAUDE, TALKER))
    [marks] = until(lambda: [p for r in world.runs() for p in r.glob("watched")], "marks")
    [watcher] = until(lambda: watcher_of(run.pid), "a watcher")
    until(lambda: lock_holder(marks.stat().st_ino) == watcher, "the next one has to wait for it")
    kill(watcher, signal.SIGSTOP)  # it reports to the successor for the first time
    kill(run.pid)
    run.process.wait()
    [successor] = until(lambda: world.successors(), "a successor")
    until(lambda: watcher_of(successor), "the successor listens, and has a watcher of its own")
    talk(run, 3, 3)
    kill(watcher, signal.SIGCONT)
    wait_dead(watcher)
    talk(run, 2, 5)
    kill(pid)
    wait_dead(successor)
    assert short(world.messages("aaaa-1")) == conversation(5)
    assert ended(world, "aaaa-1") == "interrupted"
    assert world.runs() == []


@pytest.mark.parametrize("launcher", ["", '"$@" <&3 &\nwait $!\n'], ids=["alone", "launcher"])
def test_a_file_that_is_kept_open_is_still_the_runs_after_a_takeover(
    world: World, launcher: str
) -> None:
    world.env["KEEP_OPEN"] = "1"
    agent = install(world, "claude", CLAUDE, TALKER)
    npx = world.folder / "bin" / "npx"
    npx.write_text(f"#!/bin/sh\nexec 3<&0\n{launcher}")
    npx.chmod(0o755)
    command = [str(npx), agent] if launcher else [agent]
    run = world.run(command, stdin=subprocess.PIPE)
    pid = int(run.wait_for("pid").split()[1])
    talk(run, 3, 3)
    wait_for_words(world, "answer 2")
    kill(run.pid)
    run.process.wait()
    [successor] = until(lambda: world.successors(), "a successor")
    talk(run, 3, 6)
    wait_for_words(world, "answer 5")
    talk(run, 1, 7)
    kill(pid)
    wait_dead(successor)
    assert short(world.messages("aaaa-1")) == conversation(7)
    assert ended(world, "aaaa-1") == "interrupted"
    assert world.runs() == []


def test_an_agent_that_dies_before_there_is_a_successor_is_read_to_its_end(world: World) -> None:
    run, pid = start(world, install(world, "claude", CLAUDE, TALKER))
    talk(run, 2, 2)
    wait_for_words(world, "answer 1")
    [watcher] = watcher_of(run.pid)
    kill(watcher, signal.SIGSTOP)
    talk(run, 2, 4)
    kill(run.pid, signal.SIGSTOP)  # so that it does not see the agent's death
    kill(pid)
    wait_dead(pid)
    kill(watcher)
    kill(run.pid)
    run.process.wait()
    until(lambda: world.runs() == [], "the successor has settled it")
    assert short(world.messages("aaaa-1")) == conversation(4)
    assert ended(world, "aaaa-1") == "interrupted"


def test_when_all_are_killed_at_once_recover_reads_what_nobody_had_reported(world: World) -> None:
    run, _ = start(world, install(world, "claude", CLAUDE, TALKER), "--no-adopt")
    talk(run, 2, 2)
    wait_for_words(world, "answer 1")
    [watcher] = watcher_of(run.pid)
    kill(watcher, signal.SIGSTOP)
    talk(run, 2, 4)
    run.abandon()
    assert world.call("recover").returncode == 0
    assert short(world.messages("aaaa-1")) == conversation(4)
    assert ended(world, "aaaa-1") == "interrupted"
    assert world.runs() == []


def has_open(pid: int, file: Path) -> bool:
    try:
        return any(fd.readlink() == file for fd in Path(f"/proc/{pid}/fd").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_recover_waits_for_a_watcher_that_outlives_everybody_else(world: World) -> None:
    run, pid = start(world, install(world, "claude", CLAUDE, TALKER), "--no-adopt")
    talk(run, 2, 2)
    wait_for_words(world, "answer 1")
    [watcher] = watcher_of(run.pid)
    kill(watcher, signal.SIGSTOP)
    talk(run, 2, 4)
    kill(run.pid)
    run.process.wait()
    kill(pid)
    wait_dead(pid)
    [folder] = world.runs()
    nothing = subprocess.DEVNULL
    recover = subprocess.Popen(
        [*world.command, "recover"], env=world.env, cwd=world.folder, stdout=nothing
    )
    until(lambda: has_open(recover.pid, folder / "watched"), "recover has come to the transcripts")
    kill(watcher)
    assert recover.wait(DEADLINE) == 0
    assert short(world.messages("aaaa-1")) == conversation(4)
    assert ended(world, "aaaa-1") == "interrupted"
    assert world.runs() == []


def test_who_does_not_wait_for_the_transcripts_to_be_read_loses_nothing(world: World) -> None:
    run, pid = start(world, install(world, "claude", CLAUDE, TALKER))
    [watcher] = until(lambda: watcher_of(run.pid), "a watcher")
    kill(watcher, signal.SIGSTOP)  # it has reported nothing yet: the run has no journal
    talk(run, 2, 2)
    kill(pid)
    until(lambda: not Path(f"/proc/{pid}").exists(), "the supervisor has reaped the agent")
    kill(run.pid, signal.SIGINT)
    run.finish()
    kill(watcher)
    assert world.call("recover").returncode == 0
    assert short(world.messages("aaaa-1")) == conversation(2)
    assert ended(world, "aaaa-1") == "interrupted"
    assert world.runs() == []


def no_watcher_works(world: World) -> None:
    folder = world.folder / "broken"
    folder.mkdir()
    code = "import os, sys\nif 'read-transcripts' in sys.orig_argv:\n    os._exit(1)\n"
    (folder / "sitecustomize.py").write_text(code)
    world.env["PYTHONPATH"] = str(folder)


@pytest.mark.parametrize("taken_over", [False, True])
def test_if_no_watcher_works_recovery_reads_the_transcripts(world: World, taken_over: bool) -> None:
    no_watcher_works(world)
    run, pid = start(world, install(world, "claude", CLAUDE, TALKER))
    talk(run, 2, 2)
    successor = run.pid
    if taken_over:
        standby_of(run.pid)
        kill(run.pid)
        run.process.wait()
        [successor] = until(lambda: world.successors(), "a successor")
    talk(run, 2, 4)
    kill(pid)
    if taken_over:
        wait_dead(successor)
    else:
        run.finish()
    assert short(world.messages("aaaa-1")) == conversation(4)
    assert ended(world, "aaaa-1") == "interrupted"
    assert world.runs() == []


# A name that leads to itself cannot be opened by anybody, not even by root.
UNREADABLE = """
LOG = CWD + "/chat.jsonl"
if wait():
    say(LOG, "user", "hello")
    ready("said")
    wait()
    os.unlink(LOG)
os.symlink(LOG, LOG)
ready()
forever()
"""


def test_a_transcript_that_cannot_be_read_to_its_end_is_named(world: World) -> None:
    run, pid = start(world, install(world, "mine", PLAIN, UNREADABLE), "--watch", "chat.jsonl")
    tell(run, "speak")
    run.wait_for("said")
    wait_for_words(world, "hello")
    tell(run)
    run.wait_for("ready")
    kill(pid)
    run.finish()
    [report] = world.reports()
    [problem] = report["problems"]
    assert problem.startswith("chat.jsonl could not be read to its end: Too many levels")
    assert short(world.messages(report["session"])) == [("user", "hello")]
    assert world.runs() == []


def test_a_run_whose_only_transcript_cannot_be_read_stays_until_it_can_be(world: World) -> None:
    run, pid = start(world, install(world, "mine", PLAIN, UNREADABLE), "--watch", "chat.jsonl")
    tell(run)
    run.wait_for("ready")
    kill(pid)
    run.finish()
    assert len(world.runs()) == 1
    answer = world.call("recover")
    assert answer.returncode != 0
    assert "chat.jsonl could not be read to its end" in answer.stdout
    log = world.folder / "chat.jsonl"
    log.unlink()
    log.write_text('{"role": "user", "content": "hello"}\n')
    assert world.call("recover").returncode == 0
    assert short(world.messages(the_session(world, "chat-"))) == [("user", "hello")]
    assert world.runs() == []


def test_an_agent_whose_supervisor_is_gone_is_left_alone_until_it_ends(world: World) -> None:
    run, pid = start(world, install(world, "claude", CLAUDE, TALKER), "--no-adopt")
    talk(run, 1, 1)
    wait_for_words(world, "answer 0")
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
    wait_for_words(world, "answer 0")
    launcher = run.agent
    assert launcher != pid
    kill(launcher)
    wait_dead(launcher)
    talk(run, 1, 2)
    wait_for_words(world, "answer 1")
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
    wait_for_words(world, "answer 0")
    [watcher] = watcher_of(run.pid)
    fields = Path(f"/proc/{watcher}/stat").read_text().rpartition(")")[2].split()
    assert int(fields[3]) == watcher, "it is in no session of ours"
    kill(pid, signal.SIGINT)
    run.finish()
    assert short(world.messages("aaaa-1")) == conversation(1)
    wait_dead(watcher)


def test_an_agent_that_exits_in_order_as_its_terminal_is_closed_was_interrupted(
    world: World,
) -> None:
    agent = install(world, "claude", CLAUDE, """
signal.signal(signal.SIGHUP, lambda *_: os._exit(0))
chat = Chat("aaaa-1")
chat.user("list the files")
chat.call("m1", "toolu_1", "Bash", command="ls")
ready()
forever()
""")  # fmt: skip
    window = Tmux(world)
    try:
        window.start([*world.command, *world.hook, "--", agent], world.folder)
        window.wait_for("ready")
        wait_for_words(world, "toolu_1")
    finally:
        window.close()
    until(world.events, "the hook has run", 60)
    assert ended(world, "aaaa-1") == "interrupted"
    [report] = world.reports()
    assert (report["reason"]["exit_code"], report["recovered"]["calls_unknown"]) == (0, 1)


def test_without_inotify_the_files_are_looked_at_all_the_same(world: World) -> None:
    agent = install(world, "claude", CLAUDE, TALKER)
    nobody_tells = "echo 0 > /proc/sys/user/max_inotify_instances"
    if subprocess.run(["unshare", "-Ur", "sh", "-c", nobody_tells], capture_output=True).returncode:
        pytest.skip("no user namespaces here, without which inotify cannot be taken away")
    line = shlex.join([*world.command, "--", agent])
    run = world.shell(f"exec unshare -Ur sh -c {shlex.quote(f'{nobody_tells}; exec {line}')}")
    pid = int(run.wait_for("pid").split()[1])
    talk(run, 1, 1)
    wait_for_words(world, "answer 0")
    talk(run, 1, 2)
    wait_for_words(world, "answer 1")
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


def test_a_message_that_gemini_writes_again_as_it_grows_is_stored_once(world: World) -> None:
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
    wait_for_words(world, "First I look.")
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
    until(lambda: journals(world).count(b'"yes"') == 2, "both are reported")
    tell(run)
    run.wait_for("renewed")
    wait_for_words(world, '"well"')
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


def test_a_file_that_the_user_named_may_be_written_by_anybody(world: World) -> None:
    log = world.folder / "log" / "chat.jsonl"
    log.parent.mkdir()
    run = world.run(["/bin/sh", "-c", "echo ready; read line"], "--watch", "log/chat.jsonl",
                    stdin=subprocess.PIPE)  # fmt: skip
    run.wait_for("ready")
    with log.open("a") as elsewhere:  # a container, a daemon, ssh: not below the supervisor
        elsewhere.write('{"role": "user", "content": "hello"}\n')
        elsewhere.flush()
        wait_for_words(world, '"hello"')
        elsewhere.write('{"role": "assistant", "content": "there"}\n')
        elsewhere.flush()
        tell(run)
        assert run.finish() == 0
    rows = world.messages(the_session(world, "chat-"))
    assert short(rows) == [("user", "hello"), ("assistant", "there")]


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


def test_folders_that_the_agents_variables_name_are_read(world: World) -> None:
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
