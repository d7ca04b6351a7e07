"""At the desk: what our commands say to a person at a terminal, and to a program."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hermes_supervise.supervisor.commands import table, words
from hermes_supervise.supervisor.commands.paint import Paint
from hermes_supervise.supervisor.commands.progress import A_MOMENT
from hermes_supervise.supervisor.commands.table import Column, Row
from support import Supervised, World, has_open, kill, until, wait_dead
from terminals import Terminal

EVIL = "\x1b]0;owned\x07\x9b2J\r\u202eevil"
COLOUR = re.compile("\x1b\\[[0-9;]*m")
AT_WORK = """
chat = session("chat", model="m")
chat.title("The <title>")
chat.message("user", "run the tests")
chat.tool("terminal", {"command": "make"}).__enter__()
other = session("other")
other.message("user", "x")
other.delta("hello ")
assert chat.acknowledged(30)
ready()
forever()
"""


def in_terminal(
    world: World,
    columns: int,
    *arguments: str,
    meanwhile: Callable[[int], None] = lambda pid: None,
    **env: str,
) -> tuple[int, str]:
    """One of our commands at a real terminal: its status, and all that it sent there."""
    terminal = Terminal(columns=columns)
    known = {name: value for name, value in world.env.items() if name != "COLUMNS"}
    try:
        process = subprocess.Popen(
            [*world.command, *arguments],
            env={**known, "TERM": "xterm-256color", **env}, cwd=world.folder,
            stdin=terminal.near, stdout=terminal.near, stderr=terminal.near,
        )  # fmt: skip
        meanwhile(process.pid)
        code = process.wait(60)
        mark = b"\r\nall of it\r\n"
        os.write(terminal.near, b"\nall of it\n")
        until(lambda: mark in terminal.raw, "the last of it")
        return code, terminal.raw[: terminal.raw.index(mark)].decode().replace("\r\n", "\n")
    finally:
        terminal.close()


@pytest.fixture
def working(world: World) -> Iterator[Supervised]:
    agent = world.supervise(AT_WORK)
    agent.wait_for("ready")
    yield agent


def killed(world: World, source: str, *options: str) -> None:
    agent = world.supervise(source + "\nready()\nforever()\n", *options)
    agent.wait_for("ready")
    agent.kill_agent()
    agent.finish()


def looked(world: World) -> dict[str, Any]:
    answer = world.call("ps", "--json")
    assert (answer.returncode, answer.stderr) == (0, "")
    found = json.loads(answer.stdout)
    assert isinstance(found, dict)
    return found


# -- ps ----------------------------------------------------------------------------------------


def test_ps_says_what_runs_and_what_each_session_is_doing(
    world: World, working: Supervised
) -> None:
    [run] = looked(world)["runs"]
    assert run["pid"] == working.agent
    assert run["command"][-1].endswith("agent.py")
    assert run["supervisor"] == {"state": "alive", "pid": working.pid}
    assert run["memory"]["rss"] > 1_000_000
    chat, other = run["sessions"]
    assert (chat["session"], chat["doing"], chat["title"]) == ("chat", "calling", "The <title>")
    assert chat["tools"][0]["name"] == "terminal"
    assert chat["words"].startswith("in tool terminal for ")
    assert (other["doing"], other["characters"]) == ("replying", 6)
    shown = world.call("ps").stdout
    assert "in tool terminal for" in shown
    assert run["run"] in shown
    assert "run the tests" not in shown, "no message's text"
    working.kill_agent()
    working.finish()
    assert looked(world) == {"runs": [], "left_behind": []}
    assert world.call("ps").stdout == "nothing is running under supervision\n"


def test_ps_tells_a_run_that_was_adopted(world: World) -> None:
    agent = world.supervise(AT_WORK)
    agent.wait_for("ready")
    pid = agent.agent
    kill(agent.pid)
    agent.process.wait()
    [heir] = until(lambda: world.heirs(), "an heir")

    def state() -> Any:
        [run] = looked(world)["runs"]
        return run["supervisor"]

    until(lambda: state() == {"state": "adopted", "pid": heir}, "it has the run")
    kill(pid)
    wait_dead(heir)
    assert looked(world)["runs"] == []


def test_ps_calls_a_supervisor_lost_that_left_its_agent_alone(world: World) -> None:
    agent = world.supervise(AT_WORK, "--no-adopt")
    agent.wait_for("ready")
    pid = agent.agent
    kill(agent.pid)
    agent.process.wait()
    [run] = looked(world)["runs"]
    assert run["supervisor"] == {"state": "lost", "pid": None}
    assert [one["session"] for one in run["sessions"]] == ["chat", "other"]
    kill(pid)
    wait_dead(pid)
    found = looked(world)
    assert (found["runs"], found["left_behind"]) == ([], [run["run"]])
    assert "`hermes-supervise recover`" in world.call("ps").stdout
    assert len(world.runs()) == 1, "looked at, not touched"


def test_ps_keeps_no_recoverer_out_and_changes_no_file(world: World, working: Supervised) -> None:
    def files() -> dict[str, tuple[int, float]]:
        [run] = world.runs()
        stats = {path.name: path.stat() for path in run.iterdir()}
        return {name: (stat.st_size, stat.st_mtime) for name, stat in stats.items()}

    before = files()
    looked(world)
    assert files() == before
    assert not world.db.exists()


# -- sessions ----------------------------------------------------------------------------------


def test_sessions_lists_what_was_interrupted_newest_first_and_how_to_go_on(world: World) -> None:
    killed(world, 'session("first").message("user", "x")')
    killed(world, 'session("second").delta("half")')
    done = world.supervise('with session("done") as chat: chat.message("user", "x")')
    done.finish()
    lines = world.call("sessions").stdout.splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == [
        "SESSION", "second", "first",
    ]  # fmt: skip
    assert "  hermes-supervise show first" in lines
    found = json.loads(world.call("sessions", "--json").stdout)
    assert [(one["session"], one["state"]) for one in found] == [
        ("second", "interrupted"), ("first", "interrupted"),
    ]  # fmt: skip
    everything = json.loads(world.call("sessions", "--all", "--json").stdout)
    assert [one["session"] for one in everything] == ["done", "second", "first"]


def test_a_session_that_was_taken_up_again_is_said_to_be(world: World) -> None:
    killed(world, 'chat = session("chat")\nchat.message("user", "x")\nchat.title("A title")')
    db = sqlite3.connect(world.db)
    with db:
        db.execute("UPDATE sessions SET ended_at = NULL, end_reason = NULL")
    db.close()
    [one] = json.loads(world.call("sessions", "--json").stdout)
    assert (one["state"], one["title"]) == ("resumed since", "A title")
    assert "hermes-supervise show" not in world.call("sessions").stdout


def test_what_could_not_be_written_is_listed_with_why_and_what_to_type(world: World) -> None:
    bad = world.folder / "bad.db"
    bad.write_text("no database")
    killed(world, 'session("chat").message("user", "x")', "--db", str(bad))
    first, *notes = world.call("sessions").stdout.splitlines()[1:]
    assert first.split()[0] == "chat" and "not written" in first
    assert [note.strip() for note in notes][-1] == "hermes-supervise recover"
    assert str(bad) in notes[-2]
    assert world.call("show", "chat").stdout.count("not a database (") == 1, "said once"


def test_with_no_state_db_the_list_is_still_there(world: World) -> None:
    killed(world, 'session("chat").message("user", "x")')
    world.db.unlink()
    assert "chat" in world.call("sessions").stdout
    assert world.call("show", "chat").returncode == 0


# -- show --------------------------------------------------------------------------------------


DIED_IN_A_TOOL = """
import json
chat = session("chat", model="m")
chat.message("user", "please run the tests")
call = {"name": "terminal", "arguments": json.dumps({"command": "make test"})}
chat.message("assistant", None, tool_calls=[{"id": "c1", "type": "function", "function": call}])
chat.tool("terminal", call="c1").__enter__()
"""


def test_show_tells_the_story_in_order(world: World) -> None:
    killed(world, DIED_IN_A_TOOL, *world.hook)
    shown = world.call("show", "chat").stdout
    story = [
        "interrupted; killed by SIGKILL",
        "in tool terminal for",
        "did work, said nothing: 1 API call, 1 tool call",
        "whether it took effect is unknown",
        "Timeline",
        "launched agent.py",
        "the user's last words",
        "tool terminal",
        "killed by SIGKILL",
        "recovered 3 messages",
        "please run the tests",
        'terminal {"command": "make test"}',
        "Transcript",
    ]
    at = 0
    for part in story:
        at = shown.index(part, at)
    assert re.search(r"memory +[0-9.]+ MiB", shown)
    told = json.loads(world.call("show", "chat", "--json").stdout)
    [timeline] = told["timelines"]
    assert [event["at"] for event in timeline] == sorted(event["at"] for event in timeline)
    assert {"start", "user", "tool", "death", "recovery"} <= {event["kind"] for event in timeline}
    assert told["messages"][0]["content"] == "please run the tests"


def test_of_several_deaths_the_last_is_told_first_each_with_its_own_last_words(
    world: World,
) -> None:
    for said in ("the first question", "the second question"):
        killed(world, f'chat = session("chat")\nchat.message("user", "{said}")')
    shown = world.call("show", "chat").stdout
    stories, _, transcript = shown.partition("\nTranscript\n")
    told = re.findall(r"^The user's last words\n  (.*)$", stories, flags=re.M)
    assert told == ["the second question", "the first question"]
    assert transcript.index("the first question") < transcript.index("the second question")


def test_show_without_a_session_lists_all_there_are(world: World) -> None:
    assert world.call("show").stdout == "no session was interrupted\n"
    killed(world, 'session("chat").message("user", "x")')
    world.supervise('with session("fine") as chat:\n    chat.message("user", "x")').finish()
    shown = world.call("show").stdout
    assert re.search(r"^fine .*\nchat .*interrupted", shown, flags=re.M), shown
    assert "hermes-supervise show chat" in shown


# -- for people, and for programs --------------------------------------------------------------


def test_a_terminal_gets_colours_and_no_line_is_wider_than_it(world: World) -> None:
    killed(world, DIED_IN_A_TOOL, "--on-session-end", "true")
    agent = world.supervise(AT_WORK)
    agent.wait_for("ready")
    for command in (("ps",), ("sessions",), ("show",), ("show", "chat"), ("hooks",), ("config",)):
        for columns in (80, 40):
            code, raw = in_terminal(world, columns, *command)
            assert code == 0
            assert COLOUR.search(raw)
            for line in COLOUR.sub("", raw).split("\nTranscript")[0].splitlines():
                typed = line.strip().startswith(("hermes-supervise", "state.db", str(world.folder)))
                assert typed or table.measure(line) <= columns, line
    agent.kill_agent()
    agent.finish()


@pytest.mark.parametrize("said", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {}])
def test_who_wants_no_colours_gets_none(world: World, said: dict[str, str]) -> None:
    killed(world, DIED_IN_A_TOOL)
    options = () if said else ("--color", "never")
    for command in (("sessions",), ("show", "chat")):
        code, raw = in_terminal(world, 80, *command, *options, **said)
        assert code == 0
        assert "chat" in raw
        assert "\x1b" not in raw


def test_a_pipe_gets_whole_lines_without_colours_unless_it_asks_for_them(world: World) -> None:
    killed(world, 'chat = session("chat")\nchat.message("user", "x")\nchat.title("t" * 100)')
    for command in ("sessions", "show"):
        assert "\x1b" not in world.call(command).stdout
        assert "\x1b[" in world.call(command, "--color", "always").stdout
    assert "t" * 100 in world.call("sessions").stdout
    _, narrow = in_terminal(world, 60, "sessions", NO_COLOR="1")
    assert "ttt\u2026" in narrow


def test_nothing_that_an_agent_names_commands_the_terminal(world: World) -> None:
    source = f"""
chat = session({EVIL!r}, model={EVIL!r})
chat.title({EVIL!r})
chat.message("user", {EVIL!r})
chat.tool({EVIL!r}, {{"a": {EVIL!r}}}).__enter__()
assert chat.acknowledged(30)
"""
    agent = world.supervise(source + "ready()\nforever()")
    agent.wait_for("ready")
    seen = [in_terminal(world, 80, "ps")[1]]
    agent.kill_agent()
    agent.finish()
    for command in (("sessions",), ("show",), ("show", EVIL)):
        seen.append(in_terminal(world, 80, *command)[1])
    for raw in seen:
        assert "evil" in raw
        assert not [c for c in COLOUR.sub("", raw) if c != "\n" and not c.isprintable()]


def test_every_command_that_tells_something_has_the_same_two_options(world: World) -> None:
    for command in ("ps", "sessions", "show", "recover", "hooks", "sweep", "config", "doctor"):
        told = world.call(command, "--help").stdout
        assert "--color {auto,always,never}" in told, command
        assert "--json" in told, command


# -- the progress of a long recovery -----------------------------------------------------------


def abandoned(world: World, messages: int) -> None:
    agent = world.supervise(
        f"""
chat = session("chat of {messages}")
for number in range({messages}):
    chat.message("user", "word " * 100)
assert chat.acknowledged(60)
ready()
forever()
""",
        "--no-adopt",
    )
    agent.wait_for("ready")
    agent.abandon()


@contextmanager
def held_up(world: World) -> Iterator[Callable[[int], None]]:
    """What recovers in here waits for a lock, for longer than what takes but a moment."""
    lock = sqlite3.connect(world.db, isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")

    def let_go(recoverer: int) -> None:
        until(lambda: has_open(recoverer, world.db))
        time.sleep(A_MOMENT)  # that it takes longer is what is tested
        lock.execute("ROLLBACK")

    try:
        yield let_go
    finally:
        lock.close()


def test_a_long_recovery_shows_how_far_it_is_on_a_terminal_only(world: World) -> None:
    killed(world, 'session("earlier").message("user", "so that there is a file")')
    abandoned(world, 1000)
    with held_up(world) as let_go:
        _, raw = in_terminal(world, 80, "recover", meanwhile=let_go)
    bar = "\rrecovering run 1 of 1  [\u2588\u2591]{20}  [0-9,]+ of 1,000 messages"
    assert re.search(bar, raw)
    assert raw.rindex("\x1b[K") < raw.index("recovered 1000 messages"), "it is gone again"
    abandoned(world, 900)
    with held_up(world) as let_go:
        recoverer = subprocess.Popen(
            [*world.command, "recover"], env=world.env, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        let_go(recoverer.pid)
        said, _ = recoverer.communicate(timeout=60)
    assert "recovered 900 messages" in said and "recovering" not in said


def test_a_short_recovery_shows_nothing_of_that(world: World) -> None:
    abandoned(world, 3)
    began = time.monotonic()
    _, raw = in_terminal(world, 80, "recover")
    assert "recovering" not in raw or time.monotonic() - began > A_MOMENT, "it took but a moment"
    assert "recovered 3 messages" in raw


# -- tables ------------------------------------------------------------------------------------


def test_a_table_is_aligned_by_what_characters_take_on_a_terminal() -> None:
    columns = [Column("NAME"), Column("N", right=True), Column("END")]
    rows = [Row(["日本", "1", "x"]), Row(["e\u0301t", "22", "x"]), Row(["plain", "3", "x"])]
    lines = table.render(columns, rows, Paint())
    assert [table.measure(line.partition("x")[0]) for line in lines[1:]] == [11] * 3
    assert lines[0] == "NAME    N  END"


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("short", 5, "short"), ("longer", 5, "long\u2026"), ("日本語", 5, "日本\u2026"),
        ("日本語", 4, "日\u2026"), ("ab", 1, "\u2026"), ("ab", 0, ""), ("x" * 99, None, "x" * 99),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_cut_and_says_so(text: str, width: int | None, expected: str) -> None:
    assert table.cut(text, width) == expected


def test_a_narrow_terminal_gets_one_cell_below_the_other() -> None:
    columns = [Column("SESSION"), Column("STATE"), Column("TITLE", least=8)]
    rows = [Row(["s" * 20, "interrupted", "a title that is long"], notes=[("word " * 9, "")])]
    lines = table.render(columns, rows, Paint(width=30))
    assert lines[:3] == ["s" * 20, "  state  interrupted", "  title  a title that is long"]
    assert all(table.measure(line) <= 30 for line in lines)
    wide = table.render(columns, rows, Paint(width=50))
    assert wide[1] == "s" * 20 + "  interrupted  a title that i\u2026"


@pytest.mark.parametrize(
    ("count", "told"),
    [(None, "unknown"), (0, "0 B"), (1023, "1.0 KiB"), (12247040, "11.7 MiB"),
     (500 << 20, "500 MiB"), (1 << 40, "1024 GiB")],
)  # fmt: skip
def test_a_size_has_three_figures(count: int | None, told: str) -> None:
    assert words.size(count) == told


@pytest.mark.parametrize(
    ("before", "told"),
    [(1, "just now"), (5, "5.0 s ago"), (200, "3 min ago"), (90000, "1 d ago"),
     (-60, "in the future")],
)  # fmt: skip
def test_a_moment_is_told_by_how_long_ago_it_was(before: float, told: str) -> None:
    assert words.ago(1_000_000 - before, 1_000_000) == told
    assert words.ago(None, 1_000_000) == "unknown"
