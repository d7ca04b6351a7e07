"""What a death means for the sessions it leaves: rows, end reasons, hooks, titles, rotations."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import sys
from typing import Any

import pytest
from support import (
    Supervised,
    World,
    alive,
    child_of,
    children,
    kill,
    short,
    until,
)

# For agents that keep state.db themselves, as Hermes does: with the standard library.
KEEPER = """
import sqlite3
from hermes_supervise.supervisor.statedb import schema

home = os.environ["HERMES_HOME"]
os.makedirs(home, exist_ok=True)
db = sqlite3.connect(os.path.join(home, "state.db"), timeout=20, isolation_level=None)
db.execute("PRAGMA journal_mode = WAL")
if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'sessions'").fetchone():
    for statement in schema.statements():
        db.execute(statement)

def insert(table, **values):
    marks = ", ".join("?" * len(values))
    sql = f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})"
    return db.execute(sql, list(values.values())).lastrowid

def keep_session(id, **more):
    insert("sessions", **{"id": id, "source": "cli", "started_at": time.time(), **more})

def keep(session, role, content, **more):
    db.execute("UPDATE sessions SET message_count = message_count + 1 WHERE id = ?", (session,))
    more = {"timestamp": time.time(), **more}
    return insert("messages", session_id=session, role=role, content=content, **more)

def end(session, reason):
    now = time.time()
    sql = "UPDATE sessions SET ended_at = ?, end_reason = ? WHERE id = ?"
    db.execute(sql, (now, reason, session))
"""

# What lies in the socket's buffer dies with the supervisor; so wait for its word first.
STORED = """
from hermes_supervise.agent_shim.sdk import connection

def stored():
    assert connection().acknowledged(20)
    ready()
"""


def killed(world: World, source: str, *options: str) -> Supervised:
    """Run an agent until it says `ready`, and kill it."""
    agent = world.supervise(source, *options)
    agent.wait_for("ready")
    agent.kill_agent()
    assert agent.finish() == -signal.SIGKILL
    return agent


def row_of(world: World, session: str) -> dict[str, Any] | None:
    """The session's row, or None as long as there is none, nor a table, nor a file."""
    try:
        return world.session(session) if world.db.exists() else None
    except sqlite3.OperationalError:
        return None


def reason(world: World, session: str) -> str | None:
    row = world.session(session)
    assert row is not None, f"no row for {session}"
    assert (row["ended_at"] is None) == (row["end_reason"] is None)
    found = row["end_reason"]
    assert found is None or isinstance(found, str)
    return found


# -- what the agent wrote itself -------------------------------------------------------------


@pytest.mark.parametrize("reports", [True, False], ids=["and said so", "and did not say so"])
def test_what_the_agent_wrote_itself_is_neither_repeated_nor_missing(
    world: World, reports: bool
) -> None:
    agent = killed(
        world,
        KEEPER
        + f"""
reports = {reports}
keep_session("chat")
chat = session("chat", source="cli")
for number in range(3):
    for role in ("user", "assistant"):
        uid = chat.message(role, f"{{role}} {{number}}")
        row = keep("chat", role, f"{{role}} {{number}}")
        if reports:
            chat.settled([uid], [row])
chat.message("user", "user 1")          # the same words as before, but new
chat.delta("half an ans")
ready()
forever()
""",
    )
    rows = world.messages("chat")
    pairs = [(role, f"{role} {n}") for n in range(3) for role in ("user", "assistant")]
    assert short(rows) == [*pairs, ("user", "user 1"), ("assistant", "half an ans")]
    row = world.session("chat")
    assert row is not None
    assert row["message_count"] == 8
    assert b"recovered 2 messages" in agent.errors


def test_a_tool_batch_of_which_the_agent_wrote_the_first_half_is_completed(world: World) -> None:
    killed(
        world,
        KEEPER
        + """
import json
calls = [{"id": c, "type": "function", "function": {"name": "t", "arguments": "{}"}} for c in "ab"]
keep_session("chat")
chat = session("chat")
chat.message("user", "both")
chat.message("assistant", None, tool_calls=calls)
with chat.tool("t", call="a") as tool:
    tool.result = "A"
keep("chat", "user", "both")
keep("chat", "assistant", None, tool_calls=json.dumps(calls))
keep("chat", "tool", "A", tool_call_id="a")
with chat.tool("t", call="b") as tool:
    ready()
    forever()
""",
    )
    rows = world.messages("chat")
    assert [row["role"] for row in rows] == ["user", "assistant", "tool", "tool"]
    assert [row["tool_call_id"] for row in rows[2:]] == ["a", "b"]


def test_a_reply_the_agent_stored_whole_is_not_followed_by_our_half_of_it(world: World) -> None:
    killed(
        world,
        KEEPER
        + """
keep_session("chat")
chat = session("chat")
chat.message("user", "what is it")
keep("chat", "user", "what is it")
chat.delta("The answer ")
keep("chat", "assistant", "The answer is 42.")
ready()
forever()
""",
    )
    said = short(world.messages("chat"))
    assert said == [("user", "what is it"), ("assistant", "The answer is 42.")]


def test_the_same_words_in_an_earlier_conversation_do_not_hide_new_ones(world: World) -> None:
    killed(
        world,
        KEEPER
        + """
long_ago = time.time() - 86400
keep_session("chat", started_at=long_ago)
keep("chat", "user", "again", timestamp=long_ago)
keep("chat", "assistant", "done", timestamp=long_ago + 1)
chat = session("chat")
chat.message("user", "again")
chat.message("assistant", "done")
ready()
forever()
""",
    )
    said = short(world.messages("chat"))
    assert said == [("user", "again"), ("assistant", "done")] * 2


def test_live_messages_win_over_a_history_reported_before_and_after_them(world: World) -> None:
    killed(
        world,
        """
old = [{"role": "user", "content": "first"}, {"role": "assistant", "content": "reply"}]
chat = session("chat", history=[*old, {"role": "user", "content": "second"}])
chat.message("user", "second")
chat.message("assistant", "live reply")
chat._say("history", messages=[{"role": "user", "content": "stale"}])
chat.delta("more")
ready()
forever()
""",
    )
    assert short(world.messages("chat")) == [
        ("user", "first"),
        ("assistant", "reply"),
        ("user", "second"),
        ("assistant", "live reply"),
        ("assistant", "more"),
    ]


# -- nothing said ----------------------------------------------------------------------------


def test_a_session_in_which_nothing_was_said_leaves_no_trace(world: World) -> None:
    agent = killed(
        world,
        """
chat = session("empty", title="not even this")
chat.title("ghost")
ready()
forever()
""",
        *world.hook,
    )
    assert world.session("empty") is None
    assert world.events() == []
    assert agent.notices == b""
    assert world.runs() == []


def test_an_empty_row_that_the_agent_made_is_ended_and_stays_empty(world: World) -> None:
    killed(world, KEEPER + 'keep_session("chat")\nsession("chat")\nready()\nforever()\n')
    assert reason(world, "chat") == "interrupted"
    assert world.messages("chat") == []


# -- ended already ---------------------------------------------------------------------------


def test_a_row_the_agent_ended_without_a_word_stays_as_it_is_and_gets_no_hook(
    world: World,
) -> None:
    killed(
        world,
        KEEPER
        + """
keep_session("chat")
chat = session("chat")
chat.message("user", "bye")
keep("chat", "user", "bye")
end("chat", "user_exit")
ready(str(db.execute("SELECT ended_at FROM sessions").fetchone()[0]))
ready()
forever()
""",
        *world.hook,
    )
    assert reason(world, "chat") == "user_exit"
    assert world.events() == []
    [report] = world.reports()
    assert (report["outcome"], report["end_reason"]) == ("ended by the agent", "user_exit")


def test_a_session_ended_by_word_is_completed_with_that_reason_and_gets_no_hook(
    world: World,
) -> None:
    agent = killed(
        world,
        """
chat = session("chat")
chat.message("user", "q")
chat.message("assistant", "a")
chat.end("user_exit")
ready()
forever()
""",
        *world.hook,
    )
    assert short(world.messages("chat")) == [("user", "q"), ("assistant", "a")]
    assert reason(world, "chat") == "user_exit"
    assert world.events() == []
    assert agent.notices == b"", "what the agent had finished was not interrupted"


def test_a_hook_that_the_agent_ran_itself_is_not_run_again(world: World) -> None:
    killed(
        world,
        """
chat = session("chat")
chat.message("user", "q")
chat.hook("on_session_end")
ready()
forever()
""",
        *world.hook,
    )
    assert reason(world, "chat") == "interrupted"
    assert world.events() == []


def test_recovering_the_same_journal_again_changes_nothing(world: World) -> None:
    agent = world.supervise(
        STORED
        + """
chat = session("chat")
chat.title("A title")
chat.message("user", "q")
with chat.tool("look") as tool:
    tool.result = "seen"
chat.delta("half")
other = session("other")
other.message("user", "q")
other.end("user_exit")
stored()
forever()
"""
    )
    agent.wait_for("ready")
    agent.abandon()
    [run] = world.runs()
    copy = world.folder / "copy"
    shutil.copytree(run, copy)

    def everything() -> dict[str, Any]:
        with world.database() as db:
            tables = ("sessions", "messages", "state_meta")
            return {t: [tuple(r) for r in db.execute(f"SELECT * FROM {t}")] for t in tables}

    assert world.call("recover").returncode == 0
    before = everything()
    assert [row["role"] for row in world.messages("chat")] == [
        "user", "assistant", "tool", "assistant"
    ]  # fmt: skip
    first = world.reports()
    shutil.move(copy, run)
    assert world.call("recover").returncode == 0
    assert everything() == before
    assert world.reports() == first
    assert world.runs() == []


# -- hooks -----------------------------------------------------------------------------------


def test_no_hook_whatever_it_does_keeps_the_others_from_running(world: World) -> None:
    order = world.folder / "order"

    def hook(name: str, then: str) -> tuple[str, str]:
        path = world.folder / f"{name}.py"
        note = f"import os, signal, subprocess, sys\nopen({str(order)!r}, 'a').write('{name} ')\n"
        path.write_text(note + then)
        return "--on-session-end", f"{sys.executable} -S {path}"

    pid = world.folder / "pid"
    sleeper = "import signal\nsignal.pause()"
    agent = killed(
        world,
        """
chat = session("chat")
chat.message("user", "q")
ready()
forever()
""",
        *("--hook-timeout", "1", "--hook-retry", "none"),
        *hook("raises", "raise RuntimeError('a hook that fails')\n"),
        *hook("refuses", "sys.exit(7)\n"),
        *hook("hangs", "signal.pause()\n"),
        *("--on-session-end", "/nowhere/to/be found"),
        *("--on-session-end", "/etc/passwd"),
        *hook("dies", "os.kill(os.getpid(), signal.SIGSEGV)\n"),
        *hook("floods", "for _ in range(2000): os.write(1, b'flood ' * 100)\n"),
        *hook("floods_for_ever", "while True: os.write(1, b'flood ' * 100)\n"),
        *hook(
            "leaves",
            f"child = subprocess.Popen([sys.executable, '-c', {sleeper!r}])\n"
            f"open({str(pid)!r}, 'w').write(str(child.pid))\nos._exit(0)\n",
        ),
        *hook("deaf", "sys.stdin.close()\nprint('heard nothing')\n"),
        *world.hook,
    )
    names = "raises refuses hangs dies floods floods_for_ever leaves deaf"
    assert order.read_text().split() == names.split(), "each ran, once, in the order given"
    assert len(world.events()) == 1, "the last one ran in spite of all before it"
    [report] = world.reports()
    outcomes = [ran["outcome"] for ran in report["hooks"]]
    assert outcomes[:3] == ["exit 1", "exit 7", "timed out after 1 s"]
    assert outcomes[3].startswith("could not start: ")
    assert outcomes[4].startswith("could not start: ")
    assert outcomes[5:] == ["killed by SIGSEGV", "ok", "timed out after 1 s", "ok", "ok", "ok"]
    assert all(ran["attempt"] == 1 for ran in report["hooks"])
    assert "a hook that fails" in report["hooks"][0]["output"]
    assert report["hooks"][6]["output"].startswith("flood flood")
    assert max(len(ran["output"]) for ran in report["hooks"]) <= 16 * 1024
    assert not alive(int(pid.read_text())), "what a hook leaves behind goes with it"
    assert reason(world, "chat") == "interrupted"
    assert b"11 hooks" in agent.errors and b"7 failed (exit 1)" in agent.errors


def test_a_hook_finds_signals_as_an_ordinary_program_does(world: World) -> None:
    """The recoverer ignores what might stop it; its hooks must not inherit that."""
    path = world.folder / "signals.txt"
    copy = f"open({str(path)!r}, 'w').write(open('/proc/self/status').read())"
    killed(
        world,
        'session("chat").message("user", "q")\nready()\nforever()\n',
        *("--on-session-end", f'{sys.executable} -I -S -c "{copy}"'),
    )
    [line] = [ln for ln in path.read_text().splitlines() if ln.startswith("SigIgn")]
    ignored = int(line.split()[1], 16)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGTSTP):
        # Python itself ignores only SIGPIPE and SIGXFSZ.
        assert not ignored & 1 << (number - 1), f"{number.name} is ignored"


def test_each_interrupted_session_gets_its_hook_and_only_those(world: World) -> None:
    killed(
        world,
        """
for name in ("one", "two"):
    session(name).message("user", "q")
done = session("three")
done.message("user", "q")
done.end()
ready()
forever()
""",
        *world.hook,
    )
    assert [event["session_id"] for event in world.events()] == ["one", "two"]


# -- rotation --------------------------------------------------------------------------------


def test_after_a_rotation_the_live_id_is_ended_and_the_parent_keeps_its_reason(
    world: World,
) -> None:
    killed(
        world,
        """
chat = session("old", source="cli", model="m")
chat.message("user", "before")
chat.delta("half")                      # goes on under the new id
chat.rotate("new")
chat.delta(" a reply")
ready()
forever()
""",
        *world.hook,
    )
    assert short(world.messages("old")) == [("user", "before")], "what was unsettled stays there"
    assert short(world.messages("new")) == [("assistant", "half a reply")]
    assert (reason(world, "old"), reason(world, "new")) == ("compression", "interrupted")
    new = world.session("new")
    assert new is not None
    assert (new["parent_session_id"], new["model"]) == ("old", "m")
    [event] = world.events()
    assert event["session_id"] == "new"


def test_a_parent_that_the_agent_ended_itself_keeps_its_own_reason(world: World) -> None:
    killed(
        world,
        KEEPER
        + """
keep_session("old")
chat = session("old")
chat.message("user", "before")
keep("old", "user", "before")
end("old", "compression_by_hand")
keep_session("new", parent_session_id="old")
chat.rotate("new")
ready()
forever()
""",
        *world.hook,
    )
    assert (reason(world, "old"), reason(world, "new")) == ("compression_by_hand", "interrupted")
    assert world.messages("new") == []
    assert [event["session_id"] for event in world.events()] == ["new"]


def test_killed_right_after_a_rotation_makes_no_empty_session_and_is_reported(world: World) -> None:
    agent = killed(
        world,
        """
chat = session("old")
chat.message("user", "before")
chat.rotate("new")
ready()
forever()
""",
        *world.hook,
    )
    assert short(world.messages("old")) == [("user", "before")]
    assert reason(world, "old") == "compression"
    assert world.session("new") is None, "nothing was said in it: no row"
    [event] = world.events()
    assert (event["session_id"], event["extra"]["parent_session_id"]) == ("new", "old")
    assert b"SIGKILL" in agent.errors


def test_a_rotation_away_from_a_session_without_a_row_needs_no_parent(world: World) -> None:
    killed(
        world,
        """
chat = session("old")
chat.rotate("new")
chat.message("user", "after")
ready()
forever()
""",
    )
    assert world.session("old") is None
    new = world.session("new")
    assert new is not None
    assert new["parent_session_id"] is None
    assert reason(world, "new") == "interrupted"


def test_a_rotation_through_an_empty_session_keeps_the_last_that_has_a_row_as_parent(
    world: World,
) -> None:
    killed(
        world,
        """
chat = session("first")
chat.message("user", "before")
chat.rotate("empty")
chat.rotate("as empty")
chat.rotate("last")
chat.message("user", "after")
ready()
forever()
""",
    )
    with world.database() as db:
        rows = db.execute("SELECT id, parent_session_id, end_reason FROM sessions ORDER BY id")
        assert [tuple(row) for row in rows] == [
            ("first", None, "compression"), ("last", "first", "interrupted"),
        ]  # fmt: skip


def test_two_rotations_and_late_words_under_old_ids_end_up_in_the_live_one(world: World) -> None:
    killed(
        world,
        """
chat = session("one")
chat.message("user", "first")
chat.rotate("two")
chat.message("user", "second")
chat.rotate("three", reason="branched")
chat._say("message", session="one", uid="x", message={"role": "assistant", "content": "late 1"})
chat._say("message", session="two", uid="y", message={"role": "assistant", "content": "late 2"})
chat._say("message", session=None, uid="z", message={"role": "user", "content": "no id"})
ready()
forever()
""",
        *world.hook,
    )
    assert [reason(world, s) for s in ("one", "two", "three")] == [
        "compression", "branched", "interrupted"
    ]  # fmt: skip
    assert short(world.messages("one")) == [("user", "first")]
    assert short(world.messages("two")) == [("user", "second")]
    assert short(world.messages("three")) == [
        ("assistant", "late 1"),
        ("assistant", "late 2"),
        ("user", "no id"),
    ]
    three = world.session("three")
    assert three is not None
    assert three["parent_session_id"] == "two"
    assert [event["session_id"] for event in world.events()] == ["three"]


def test_a_rotation_survives_the_death_of_supervisor_and_agent(world: World) -> None:
    agent = world.supervise(
        STORED
        + """
chat = session("old")
chat.message("user", "before")
chat.rotate("new")
chat.message("user", "after")
stored()
forever()
"""
    )
    agent.wait_for("ready")
    agent.abandon()
    assert world.call("recover").returncode == 0
    assert (reason(world, "old"), reason(world, "new")) == ("compression", "interrupted")


# -- titles ----------------------------------------------------------------------------------


def test_a_title_that_is_taken_is_dropped_and_nothing_else(world: World) -> None:
    killed(
        world,
        KEEPER
        + """
keep_session("first", title="Taken")
chat = session("chat")
chat.title("Taken")
chat.message("user", "q")
free = session("free")
free.title("Free\\x1b[31m\\x07 \\u202e of\\n  commands\\u200b")
free.message("user", "q")
keep_session("named", title="Named by hand")
named = session("named")
named.title("Another")
named.message("user", "q")
long = session("long")
long.title("x" * 500)
long.message("user", "q")
ready()
forever()
""",
        *world.hook,
    )
    titles = {}
    for name in ("first", "chat", "free", "named", "long"):
        row = world.session(name)
        assert row is not None
        titles[name] = row["title"]
    assert titles == {
        "first": "Taken",
        "chat": None,
        "free": "Free[31m of commands",
        "named": "Named by hand",
        "long": "x" * 100,
    }
    assert short(world.messages("chat")) == [("user", "q")]
    assert reason(world, "chat") == "interrupted"
    assert len(world.events()) == 4
    [report] = [report for report in world.reports() if report["session"] == "chat"]
    assert report["complete"]
    assert "title" in report["problems"][0]


# -- several sessions, several processes -----------------------------------------------------


def test_sessions_of_several_processes_are_kept_apart(world: World) -> None:
    other = world.script(
        'session("child").message("user", "from the child")\nready()\nforever()\n', "other.py"
    )
    agent = world.supervise(
        f"""
import subprocess
session("one").message("user", "1")
session("two").message("user", "2")
subprocess.Popen([sys.executable, {other!r}])
forever()
"""
    )
    agent.wait_for("ready")
    child = child_of(agent.agent)
    agent.kill_agent()
    until(lambda: (row_of(world, "two") or {}).get("end_reason"), "the first process' sessions")
    assert [reason(world, name) for name in ("one", "two")] == ["interrupted"] * 2
    assert world.session("child") is None, "its process lives, so the session is its own"
    assert alive(agent.pid), "the run lasts as long as a process that owns a session"
    kill(child)
    assert agent.finish() == -signal.SIGKILL
    assert short(world.messages("child")) == [("user", "from the child")]
    assert reason(world, "child") == "interrupted"


def test_a_grandchild_that_dies_is_recovered_while_the_child_lives_on(world: World) -> None:
    owner = world.script(
        """
chat = session("inner")
chat.message("user", "q")
chat.delta("half an an")
ready()
forever()
""",
        "owner.py",
    )
    agent = world.supervise(
        f"""
import subprocess
inner = subprocess.Popen([sys.executable, {owner!r}])
inner.wait()
ready(f"inner ended {{inner.returncode}}")
forever()
""",
        *world.hook,
    )
    agent.wait_for("ready")
    kill(child_of(agent.agent))
    agent.wait_for(f"inner ended {-signal.SIGKILL}")
    until(lambda: world.events(), "the hook")
    assert alive(agent.agent)
    assert short(world.messages("inner"))[-1] == ("assistant", "half an an")
    assert reason(world, "inner") == "interrupted"
    [event] = world.events()
    # Its parent collects it: how it died is known only if that left the time to ask.
    assert event["extra"]["signal"] in (signal.SIGKILL, None)
    agent.kill_agent(signal.SIGTERM)
    assert agent.finish() == -signal.SIGTERM


def test_a_launcher_that_exits_above_a_living_agent_is_not_the_agents_death(world: World) -> None:
    owner = world.script(
        """
chat = session("inner")
chat.message("user", "q")
ready(f"agent {os.getpid()}")
os.read(int(sys.argv[1]), 1)            # the launcher's end of the pipe closes with its life
chat.delta("said after the launcher was gone")
ready("orphaned")
forever()
""",
        "owner.py",
    )
    agent = world.supervise(
        f"""
import subprocess
life, mine = os.pipe()
inner = subprocess.Popen([sys.executable, {owner!r}, str(life)], pass_fds=[life])
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
forever()
""",
        *world.hook,
    )
    pid = int(agent.wait_for("agent").split()[1])
    agent.kill_agent(signal.SIGTERM)
    agent.wait_for("orphaned")
    assert alive(agent.pid)
    assert not world.db.exists()
    kill(pid)
    assert agent.finish() == 0, "the launcher's own status"
    assert short(world.messages("inner"))[-1][1] == "said after the launcher was gone"
    assert reason(world, "inner") == "interrupted"
    assert len(world.events()) == 1


def test_a_session_that_another_living_process_holds_is_not_ended(world: World) -> None:
    second = world.script(
        """
chat = session("shared")
chat.message("user", "from the second")
ready("second")
forever()
""",
        "second.py",
    )
    agent = world.supervise(
        f"""
import subprocess
first = os.fork()
if first == 0:
    session("shared").message("user", "from the first")
    ready("first")
    forever()
second = subprocess.Popen([sys.executable, {second!r}])
os.waitpid(first, 0)
forever()
""",
        *world.hook,
    )
    agent.wait_for("second")
    first, other = children(agent.agent)
    until(lambda: _holds(world, "from the first"), "the first one's word in the journal")
    kill(first)
    until(lambda: row_of(world, "shared"), "the first one's rows")
    assert short(world.messages("shared")) == [("user", "from the first")]
    assert reason(world, "shared") is None
    kill(other)
    until(lambda: reason(world, "shared"), "the end, now that nobody holds it")
    assert reason(world, "shared") == "interrupted"
    assert len(world.messages("shared")) == 2
    agent.kill_agent()
    agent.finish()
    assert len(world.events()) == 1


def test_a_session_that_the_agent_of_another_run_has_open_is_not_ended(world: World) -> None:
    source = """
from hermes_supervise.agent_shim import sdk
chat = session("shared")
chat.message("user", sys.argv[1])
assert sdk.connection().acknowledged(20)
ready()
forever()
"""
    script = world.script(source)
    first, second = (world.run([sys.executable, script, name]) for name in ("first", "second"))
    for agent in (first, second):
        agent.wait_for("ready")
    first.kill_agent()
    first.finish()
    row = world.session("shared")
    assert row is not None
    assert row["ended_at"] is None, "the second one goes on with it"
    second.kill_agent()
    second.finish()
    assert reason(world, "shared") == "interrupted"
    assert {content for _, content in short(world.messages("shared"))} == {"first", "second"}


def _holds(world: World, words: str) -> bool:
    return words.encode() in world.said()


# -- ends that are no crash ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ending", "status", "expected"),
    [
        ("", 0, "exited"),
        ("chat.delta('half')", 0, "exited"),
        ("chat.message('assistant', 'a')\nos._exit(0)", 0, "exited"),
        ("chat.delta('half')\nos._exit(0)", 0, "interrupted"),
        ("chat.delta('half')\nsys.exit(3)", 3, "interrupted"),
        ("chat.delta('half')\nraise KeyError", 1, "interrupted"),
        ("chat.message('assistant', 'a')\nsignal.raise_signal(15)", -15, "interrupted"),
    ],
    ids=[
        "left open", "left open in mid-turn, in order", "left without goodbye, idle",
        "left without goodbye in mid-turn", "exit code 3", "exception", "killed while idle",
    ],
)  # fmt: skip
def test_a_session_left_open_is_closed_with_a_truthful_reason(
    world: World, ending: str, status: int, expected: str
) -> None:
    agent = world.supervise(
        f'chat = session("chat")\nchat.message("user", "q")\n{ending}\n', *world.hook
    )
    assert agent.finish() == status
    assert reason(world, "chat") == expected
    assert len(world.events()) == (expected == "interrupted")
    assert (b"chat" in agent.errors) == (expected == "interrupted"), "the notice names it"
    if "half" in ending:
        assert short(world.messages("chat"))[-1] == ("assistant", "half")


def test_a_session_that_the_agent_closed_is_completed(world: World) -> None:
    agent = world.supervise(
        """
with session("good") as chat:
    chat.message("user", "q")
    chat.message("assistant", "a")
try:
    with session("bad") as chat:
        chat.message("user", "q")
        raise KeyError
except KeyError:
    pass
""",
        *world.hook,
    )
    assert agent.finish() == 0
    assert (reason(world, "good"), reason(world, "bad")) == ("completed", "failed: KeyError")
    assert world.events() == []
    assert agent.notices == b""


def test_a_session_resumed_after_an_interruption_is_ended_again_truthfully(world: World) -> None:
    first = """
chat = session("chat")
chat.message("user", "q")
chat.delta("half")
ready()
forever()
"""
    killed(world, first, *world.hook)
    before = world.session("chat")
    assert before is not None
    assert before["end_reason"] == "interrupted"

    agent = world.supervise(
        'with session("chat") as chat:\n    chat.message("user", "go on")\n'
        '    chat.message("assistant", "whole")\n',
        *world.hook,
    )
    assert agent.finish() == 0
    after = world.session("chat")
    assert after is not None
    assert after["end_reason"] == "completed"
    assert after["ended_at"] > before["ended_at"]
    assert after["message_count"] == 4

    killed(world, first, *world.hook)
    assert reason(world, "chat") == "interrupted"
    assert [content for _, content in short(world.messages("chat"))] == [
        "q", "half", "go on", "whole", "q", "half"
    ]  # fmt: skip
    assert len(world.events()) == 2


def test_a_session_resumed_by_name_only_keeps_the_end_it_had(world: World) -> None:
    killed(world, 'chat = session("chat")\nchat.message("user", "q")\nready()\nforever()\n')
    before = world.session("chat")
    killed(world, 'session("chat")\nready()\nforever()\n', *world.hook)
    assert world.session("chat") == before, "nothing happened in it"
    assert world.events() == []


def test_the_report_and_the_notice_never_hold_what_was_said(world: World) -> None:
    agent = killed(
        world,
        """
chat = session("chat")
chat.message("user", "a secret word")
chat.delta("a secret word")
ready()
forever()
""",
    )
    assert b"secret" not in agent.errors
    assert "secret" not in json.dumps(world.reports())
    folder = world.state / "hermes-supervise"
    kept = [path for path in folder.rglob("*") if path.is_file()]
    assert kept
    for path in kept:
        assert b"secret" not in path.read_bytes()
        assert os.stat(path).st_mode & 0o077 == 0
