"""What our commands say to a person at a terminal, and to a program."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import pytest
from hermes_supervise.supervisor.cli.output import formatting, live, table
from hermes_supervise.supervisor.cli.output.progress import A_MOMENT
from hermes_supervise.supervisor.cli.output.style import Style
from hermes_supervise.supervisor.cli.output.table import Column, Row
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
            env={**known, "TERM": "xterm-256color", "PAGER": "cat", **env}, cwd=world.folder,
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
    assert run["run"] not in world.call("ps").stdout


def test_ps_shows_that_a_successor_took_over(world: World) -> None:
    agent = world.supervise(AT_WORK)
    agent.wait_for("ready")
    pid = agent.agent
    kill(agent.pid)
    agent.process.wait()
    [successor] = until(lambda: world.successors(), "a successor")

    def state() -> Any:
        [run] = looked(world)["runs"]
        return run["supervisor"]

    until(lambda: state() == {"state": "adopted", "pid": successor}, "it has the run")
    kill(pid)
    wait_dead(successor)
    assert looked(world)["runs"] == []


def test_ps_calls_a_supervisor_lost_that_left_its_agent_alone(world: World) -> None:
    agent = world.supervise(AT_WORK, "--no-adopt")
    agent.wait_for("ready")
    pid = agent.agent
    kill(agent.pid)
    agent.process.wait()
    [run] = looked(world)["runs"]
    assert run["supervisor"] == {"state": "lost", "pid": None}
    assert [session["session"] for session in run["sessions"]] == ["chat", "other"]
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
    assert [(session["session"], session["state"]) for session in found] == [
        ("second", "interrupted"), ("first", "interrupted"),
    ]  # fmt: skip
    everything = json.loads(world.call("sessions", "--all", "--json").stdout)
    assert [session["session"] for session in everything] == ["done", "second", "first"]


def test_a_session_that_was_taken_up_again_is_said_to_be(world: World) -> None:
    killed(world, 'chat = session("chat")\nchat.message("user", "x")\nchat.title("A title")')
    db = sqlite3.connect(world.db)
    with db:
        db.execute("UPDATE sessions SET ended_at = NULL, end_reason = NULL")
    [session] = json.loads(world.call("sessions", "--json").stdout)
    assert (session["state"], session["title"]) == ("resumed since", "A title")
    assert "hermes-supervise show" in world.call("sessions").stdout  # nothing was said since
    with db:
        db.execute(
            "INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, ?, ?, ?)",
            ("chat", "user", "going on", time.time()),
        )
    db.close()
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


TITLED = """
for id, title in (("20261118_100000_aa", "Fix the login page"),
                  ("20261118_110000_ab", "Fix the build")):
    chat = session(id)
    chat.message("user", "x")
    chat.title(title)
"""


@pytest.mark.parametrize(
    ("word", "session"),
    [
        ("20261118_100000_aa", "20261118_100000_aa"),
        ("20261118_11", "20261118_110000_ab"),
        ("Fix the build", "20261118_110000_ab"),
        ("LOGIN", "20261118_100000_aa"),
        ("last", "third"),
    ],
)
def test_a_session_is_found_by_id_start_title_or_as_the_last(
    world: World, word: str, session: str
) -> None:
    killed(world, TITLED)
    killed(world, 'session("third").message("user", "x")')
    [shown] = json.loads(world.call("show", word, "--json").stdout)["reports"]
    assert shown["session"] == session
    [listed] = json.loads(world.call("sessions", word, "--json").stdout)
    assert listed["session"] == session
    assert session in world.call("report", word).stdout


def test_before_the_first_session_there_is_none_to_show(world: World) -> None:
    assert json.loads(world.call("sessions", "--all", "--json").stdout) == []
    for command in (("show", "last"), ("sessions", "last"), ("report", "last")):
        answer = world.call(*command)
        assert (answer.returncode, answer.stdout) == (2, "")
        assert len(answer.stderr.splitlines()) == 1, "one line says why"


def test_an_error_is_broken_at_words_on_a_terminal(world: World) -> None:
    killed(world, TITLED)
    for command in (("show", "nothing-like-it"), ("--granc", "5", "--", "true")):
        whole = world.call(*command).stderr
        _, raw = in_terminal(world, 50, *command)
        assert raw.split() == whole.split()
        assert max(map(table.measure, raw.splitlines())) <= 50
        assert len(raw.splitlines()) > 1


def test_what_was_recovered_is_broken_at_words_on_a_terminal(world: World) -> None:
    abandoned(world, 3)
    code, raw = in_terminal(world, 50, "recover")
    assert code == 0
    lines = COLOUR.sub("", raw).splitlines()
    assert len(lines) > 1 and max(map(table.measure, lines)) <= 50
    assert "recovered 3 messages" in " ".join(" ".join(lines).split())


def test_a_mistyped_name_is_answered_with_the_command_that_was_meant(world: World) -> None:
    for words, meant in ((("help", "sesions"), "sessions"), (("sesions",), "sessions")):
        answer = world.call(*words)
        assert answer.returncode in (2, 127) and f"{meant}?" in answer.stderr


def test_a_subcommand_has_the_options_that_were_given_before_it() -> None:
    for name in ("fleet", "hooks"):
        module = import_module(f"hermes_supervise.supervisor.cli.commands.{name}")
        assert module.parser().parse_args(["--json", "--color", "always", "list"]).json
        assert module.parser().parse_args(["--color", "always", "list"]).color == "always"


def test_a_word_that_names_several_sessions_is_answered_with_them(world: World) -> None:
    killed(world, TITLED)
    for command in ("show", "report"):
        answer = world.call(command, "Fix")
        assert (answer.returncode, answer.stdout) == (2, "")
        assert "20261118_100000_aa" in answer.stderr and "Fix the build" in answer.stderr
    listed = json.loads(world.call("sessions", "Fix", "--json").stdout)
    assert len(listed) == 2, "a list may hold several"


def test_a_session_that_is_forgotten_is_not_listed_and_its_rows_stay(world: World) -> None:
    killed(world, TITLED)
    killed(world, 'session("third").message("user", "x")')
    assert world.call("sessions", "forget", "login").returncode == 0
    left = json.loads(world.call("sessions", "--json").stdout)
    assert [session["session"] for session in left] == ["third", "20261118_110000_ab"]
    assert world.call("show", "20261118_100000_aa").returncode == 2
    assert world.messages("20261118_100000_aa"), "state.db is not changed"
    forgotten = world.call("sessions", "forget", "--all", "--json")
    assert json.loads(forgotten.stdout)["forgotten"] == ["20261118_110000_ab", "third"]
    assert json.loads(world.call("sessions", "--all", "--json").stdout) == []
    assert not any((world.state / "hermes-supervise" / "reports").iterdir())


def test_a_session_that_is_not_recovered_yet_cannot_be_forgotten(world: World) -> None:
    bad = world.folder / "bad.db"
    bad.write_text("no database")
    killed(world, 'session("chat").message("user", "x")', "--db", str(bad))
    answer = world.call("sessions", "forget", "chat", "--json")
    assert answer.returncode == 1
    assert json.loads(answer.stdout) == {"forgotten": [], "kept": ["chat"]}
    assert "chat" in world.call("sessions").stdout


def test_a_run_that_waits_to_be_recovered_is_named_instead_of_an_empty_list(
    world: World,
) -> None:
    abandoned(world, 3)
    shown = world.call("sessions").stdout
    assert shown.startswith("1 run ") and "hermes-supervise recover" in shown
    assert world.call("recover").returncode == 0
    assert "hermes-supervise recover" not in world.call("sessions").stdout


# -- show --------------------------------------------------------------------------------------


DIED_IN_A_TOOL = """
import json
chat = session("chat", model="m")
chat.message("user", "please run the tests")
call = {"name": "terminal", "arguments": json.dumps({"command": "make test"})}
chat.message("assistant", None, tool_calls=[{"id": "c1", "type": "function", "function": call}])
chat.tool("terminal", call="c1").__enter__()
"""


def test_show_prints_the_timeline_in_order(world: World) -> None:
    killed(world, DIED_IN_A_TOOL, *world.hook)
    shown = world.call("show", "chat").stdout
    story = [
        "interrupted; killed by SIGKILL",
        "in tool terminal for",
        "1 API call, 1 tool call",
        "Timeline",
        "launched agent.py",
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
    assert re.search(r"memory +.*[0-9.]+ MiB", shown)
    result = json.loads(world.call("show", "chat", "--json").stdout)
    [timeline] = result["timelines"]
    assert [event["at"] for event in timeline] == sorted(event["at"] for event in timeline)
    assert {"start", "user", "tool", "death", "recovery"} <= {event["kind"] for event in timeline}
    assert result["messages"][0]["content"] == "please run the tests"


def test_of_several_deaths_the_last_is_shown_first_each_with_its_own_last_messages(
    world: World,
) -> None:
    for said in ("the first question", "the second question"):
        killed(world, f'chat = session("chat")\nchat.message("user", "{said}")')
    shown = world.call("show", "chat").stdout
    stories, _, transcript = shown.partition("\nTranscript\n")
    questions = re.findall(r"^  (the \w+ question)$", stories, flags=re.M)
    assert questions == ["the second question", "the first question"]
    assert transcript.index("the first question") < transcript.index("the second question")


def test_show_without_a_session_lists_all_there_are(world: World) -> None:
    assert json.loads(world.call("show", "--json").stdout) == []
    killed(world, 'session("chat").message("user", "x")')
    world.supervise('with session("fine") as chat:\n    chat.message("user", "x")').finish()
    shown = world.call("show").stdout
    assert re.search(r"^fine .*\nchat .*interrupted", shown, flags=re.M), shown
    assert "hermes-supervise show chat" in shown


def test_show_without_a_transcript_ends_with_what_happened(world: World) -> None:
    killed(world, DIED_IN_A_TOOL)
    shown = world.call("show", "last", "--no-transcript").stdout
    assert "Timeline" in shown and "Transcript" not in shown
    result = json.loads(world.call("show", "chat", "--no-transcript", "--json").stdout)
    assert result["messages"] == [] and result["timelines"]


def test_last_messages_are_folded_at_spaces(world: World) -> None:
    words = [f"word{number}" for number in range(50)]
    killed(world, f'session("chat").message("user", {" ".join(words)!r})')
    _, raw = in_terminal(world, 50, "show", "chat", "--no-transcript", NO_COLOR="1")
    quoted = raw.partition("Last user message")[2].split()
    assert quoted == words, "no word is cut"


@pytest.mark.parametrize("at", [10.0, 10.9994, 10.9996, 10.9999])
def test_a_time_of_day_is_never_later_than_the_next(at: float) -> None:
    assert formatting.time_of_day(at) < formatting.time_of_day(at + 0.001)


LONG = "\n".join(f"line {number}" for number in range(200))


def test_what_is_longer_than_the_screen_goes_through_the_pager(world: World) -> None:
    killed(world, f'session("chat").message("user", {LONG!r})')
    noted = world.folder / "noted"
    pager = f"sed -n '1p;$p' >{noted}"
    code, raw = in_terminal(world, 80, "show", "chat", PAGER=pager, NO_COLOR="1")
    assert (code, raw) == (0, "")
    assert noted.read_text().splitlines()[0] == "chat"
    noted.unlink()
    for options, env in ((["--no-pager"], {"PAGER": pager}), ([], {"PAGER": ""})):
        _, raw = in_terminal(world, 80, "show", "chat", *options, **env)
        assert "line 199" in raw and not noted.exists()
    _, raw = in_terminal(world, 80, "sessions", PAGER=pager)
    assert "chat" in raw and not noted.exists(), "a short list needs none"


# -- ps --watch --------------------------------------------------------------------------------


def test_ps_watch_shows_what_changes_on_one_screen_until_q(world: World) -> None:
    agent = world.supervise(
        """
chat = session("chat", model="m")
chat.message("user", "x")
ready()
sys.stdin.readline()
chat.delta("hello ")
assert chat.acknowledged(30)
ready("said")
forever()
""",
        stdin=subprocess.PIPE,
    )
    agent.wait_for("ready")
    terminal = Terminal(columns=100, lines=12)
    try:
        env = {name: value for name, value in world.env.items() if name != "COLUMNS"}
        process = subprocess.Popen(
            [*world.command, "ps", "--watch"], env={**env, "TERM": "xterm"}, cwd=world.folder,
            stdin=terminal.near, stdout=terminal.near, stderr=terminal.near,
        )  # fmt: skip
        terminal.wait_to_see("thinking for")
        assert agent.process.stdin is not None
        agent.process.stdin.write(b"go\n")
        agent.process.stdin.flush()
        agent.wait_for("said")
        terminal.wait_to_see("6 characters so far")
        assert terminal.raw.count(b"\x1b[2J") == 0, "it does not flicker"
        assert "in state.db" in terminal.screen or "in the journal" in terminal.screen
        terminal.type("q")
        assert process.wait(30) == 0
        until(lambda: terminal.raw.endswith(b"\x1b[?25h\x1b[?1049l"), "the screen is back")
    finally:
        terminal.close()
    agent.kill_agent()
    agent.finish()


@pytest.mark.parametrize("columns", [80, 60])
def test_ps_on_a_narrow_terminal_shows_what_is_safe_on_a_line_of_its_own(
    world: World, working: Supervised, columns: int
) -> None:
    _, raw = in_terminal(world, columns, "ps", NO_COLOR="1")
    for part in ("in tool terminal for", "6 characters so far", r"messages? in [a-z. ]+"):
        assert re.search(part, raw), raw
    assert "\u2026" not in raw.partition("\u2514")[2], "nothing about a session is cut"
    working.kill_agent()
    working.finish()


def test_parts_fill_lines_and_are_never_broken() -> None:
    parts = ["an-id", "two words", "last"]
    assert table.fill("-", parts, None) == ["- an-id  two words  last"]
    assert table.fill("-", parts, 18) == ["- an-id  two words", "  last"]
    assert table.fill("-", parts, 10) == ["- an-id", "  two wor\u2026", "  last"]


def test_ps_watch_without_a_terminal_is_refused(world: World) -> None:
    assert world.call("ps", "--watch").returncode == 2


def test_a_live_view_of_more_lines_than_the_screen_says_so() -> None:
    drawn = live.frame([str(number) for number in range(20)], 5)
    assert drawn.count("\r\n") == 4 and "16 more" in drawn


# -- for people, and for programs --------------------------------------------------------------


def test_a_terminal_gets_colours_and_no_line_is_wider_than_it(world: World) -> None:
    killed(world, DIED_IN_A_TOOL, "--on-session-end", "true")
    agent = world.supervise(AT_WORK)
    agent.wait_for("ready")
    for command in (("ps",), ("sessions",), ("show",), ("show", "chat"), ("hooks",)):
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


def test_every_command_with_output_has_the_same_two_options(world: World) -> None:
    for command in ("ps", "sessions", "show", "recover", "hooks", "sweep", "config", "doctor"):
        result = world.call(command, "--help").stdout
        assert "--color {auto,always,never}" in result, command
        assert "--json" in result, command


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

    def release(recoverer: int) -> None:
        until(lambda: has_open(recoverer, world.db))
        time.sleep(A_MOMENT)  # that it takes longer is what is tested
        lock.execute("ROLLBACK")

    try:
        yield release
    finally:
        lock.close()


def test_a_long_recovery_shows_how_far_it_is_on_a_terminal_only(world: World) -> None:
    killed(world, 'session("earlier").message("user", "so that there is a file")')
    abandoned(world, 1000)
    with held_up(world) as release:
        _, raw = in_terminal(world, 80, "recover", meanwhile=release)
    bar = "\rrecovering run 1 of 1  [\u2588\u2591]{20}  [0-9,]+ of 1,000 messages"
    assert re.search(bar, raw)
    assert raw.rindex("\x1b[K") < raw.index("recovered 1,000 messages"), "it is gone again"
    abandoned(world, 900)
    with held_up(world) as release:
        recoverer = subprocess.Popen(
            [*world.command, "recover"], env=world.env, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        release(recoverer.pid)
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
    lines = table.render(columns, rows, Style())
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
    lines = table.render(columns, rows, Style(width=30))
    assert lines[:3] == ["s" * 20, "  state  interrupted", "  title  a title that is long"]
    assert all(table.measure(line) <= 30 for line in lines)
    wide = table.render(columns, rows, Style(width=50))
    assert wide[1] == "s" * 20 + "  interrupted  a title that i\u2026"


@pytest.mark.parametrize(
    ("count", "shown"),
    [(None, "unknown"), (0, "0 B"), (1023, "1.0 KiB"), (12247040, "11.7 MiB"),
     (500 << 20, "500 MiB"), (1 << 40, "1024 GiB")],
)  # fmt: skip
def test_a_size_has_three_figures(count: int | None, shown: str) -> None:
    assert formatting.size(count) == shown


@pytest.mark.parametrize(
    ("before", "shown"),
    [(1, "just now"), (5, "5.0 s ago"), (200, "3 min ago"), (90000, "1 d ago"),
     (-60, "in the future")],
)  # fmt: skip
def test_a_time_is_shown_as_how_long_ago_it_was(before: float, shown: str) -> None:
    assert formatting.ago(1_000_000 - before, 1_000_000) == shown
    assert formatting.ago(None, 1_000_000) == "unknown"


@pytest.mark.parametrize("command", ["report chat -o", "metrics -o"])
def test_a_file_that_cannot_be_written_is_named_with_the_reason(world: World, command: str) -> None:
    world.supervise('session("chat").message("user", "x")').finish()
    done = world.call(*command.split(), str(world.folder / "nowhere" / "file"))
    assert done.returncode == 125
    assert str(world.folder / "nowhere") in done.stderr and "Errno" not in done.stderr
