"""A crashed agent is started again on its session: truthfully, on its terminal, not for ever."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from typing import Any

import pytest
from hermes_supervise.supervisor.agents import registry
from hermes_supervise.supervisor.agents.command_line import CannotResume
from hermes_supervise.supervisor.process.cause import Cause
from hermes_supervise.supervisor.recovery.report import SessionReport
from hermes_supervise.supervisor.run.restart import Life, NoRestart, RestartPolicy
from support import (
    DEADLINE,
    PRELUDE,
    Supervised,
    World,
    alive,
    kill,
    short,
    standby_of,
    until,
    wait_dead,
)
from terminals import Terminal

RESTART = ("--restart", "on-crash")

# Prints which life it is in and HERMES_SUPERVISE_RESUMED, then does what the test has planned.
AGENT = """
import json
resumed = json.loads(os.environ.get("HERMES_SUPERVISE_RESUMED", "null"))
life = resumed["restart"] if resumed else 0
ready(f"life {life} {' '.join(sys.argv[1:])}")
if resumed:
    ready("resumed " + json.dumps(resumed))
"""
DIES = """
os.kill(os.getpid(), signal.SIGSEGV)
"""
WORKS = """
chat = session("chat", source="cli")
chat.message("user", f"question {life}")
chat.delta(f"half of answer {life}")
ready("working")
forever()
"""


def resumed_by(agent: Supervised) -> dict[str, Any]:
    found = json.loads(agent.wait_for("resumed ").removeprefix("resumed "))
    assert isinstance(found, dict)
    return found


def lines(agent: Supervised) -> list[str]:
    text = agent.errors.decode()
    return [line.removeprefix("hermes-supervise: ") for line in text.splitlines()]


def restarts(agent: Supervised) -> list[str]:
    """The restarts that were announced, as in "2 of 5"."""
    return re.findall(r"\((\d+ of \d+)\)", agent.errors.decode())


def test_a_killed_agent_is_restarted_and_gets_the_session_it_was_in(world: World) -> None:
    agent = world.supervise(AGENT + WORKS, *RESTART)
    agent.wait_for("life 0")
    agent.wait_for("working")
    first = agent.kill_agent()
    agent.wait_for("life 1")
    wait_dead(first)
    resumed = resumed_by(agent)
    assert (resumed["session"], resumed["reason"], resumed["restart"]) == (
        "chat",
        "killed by SIGKILL",
        1,
    )
    # It was recovered before it was started: what it resumes is there.
    assert short(world.messages("chat")) == [
        ("user", "question 0"), ("assistant", "half of answer 0")
    ]  # fmt: skip
    agent.wait_for("working")
    [run] = world.runs()
    assert json.loads((run / "run.json").read_text())["after"] == resumed["after"] != run.name
    agent.kill_agent(signal.SIGTERM)
    assert agent.finish() == -signal.SIGTERM, "the status of the last"
    assert short(world.messages("chat")) == [
        ("user", "question 0"), ("assistant", "half of answer 0"),
        ("user", "question 1"), ("assistant", "half of answer 1"),
    ]  # fmt: skip
    after = {report["run"]: report["after"] for report in world.reports()}
    assert after == {resumed["after"]: None, run.name: resumed["after"]}
    assert restarts(agent) == ["1 of 5"]
    assert world.runs() == []


@pytest.mark.parametrize(
    "end", ["chat.end()", "pass", "chat.message('assistant', 'more'); chat.end()"]
)
def test_a_next_life_that_says_nothing_leaves_the_way_back_in_the_list(
    world: World, end: str
) -> None:
    source = f"""
chat = session("chat", source="cli", resume="agent --back chat")
if os.environ.get("HERMES_SUPERVISE_RESUMED"):
    {end}
    os._exit(0)
chat.message("user", "question")
chat.delta("half of an ")
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert world.supervise(source, *RESTART).finish() == 0
    row = world.session("chat")
    assert row is not None and row["ended_at"] is not None, "not left open"
    listed = world.call("sessions").stdout
    assert ("agent --back chat" in listed) == ("more" not in end)
    assert "chat" not in world.call("sweep", "--dry-run").stdout


def test_the_next_life_has_the_same_input_and_output(world: World) -> None:
    source = AGENT + (
        "assert os.get_inheritable(9)\n"
        "line = sys.stdin.readline()\nos.write(9, line.encode())\nready(f'read {line}')\n"
        "if life == 0:\n    os.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    path = world.script(source)
    proof = world.folder / "proof"
    words = shlex.join([*world.command, *RESTART, "--", sys.executable, path])
    agent = world.shell(f"exec {words} 9>{proof}")
    agent.wait_for("life 0")
    agent.send_line("one")
    agent.wait_for("read one")
    agent.wait_for("life 1")
    agent.send_line("two")
    agent.wait_for("read two")
    assert agent.finish() == 0, agent.errors
    assert proof.read_text() == "one\ntwo\n", "and whatever else it inherited"


ENDS = {
    "a clean exit": "sys.exit(0)",
    "a failure with nothing in flight": "sys.exit(3)",
    "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM)",
    "SIGINT": "signal.signal(signal.SIGINT, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGINT)",
    "what a shell says of SIGINT": "sys.exit(130)",
    "SIGPIPE": "signal.signal(signal.SIGPIPE, signal.SIG_DFL); os.kill(os.getpid(), 13)",
}


@pytest.mark.parametrize("end", ENDS)
def test_an_end_that_is_no_crash_is_the_end(world: World, end: str) -> None:
    agent = world.supervise(AGENT + ENDS[end], *RESTART)
    agent.wait_for("life 0")
    agent.finish()
    assert agent.output == b""
    assert restarts(agent) == []


CRASHES = {
    "an exception in the middle of a turn": WORKS.replace("forever()", "raise KeyError('oops')"),
    "what a shell says of SIGSEGV": "sys.exit(139)",
    "SIGABRT": "os.abort()",
}


@pytest.mark.parametrize("end", CRASHES)
def test_a_crash_is_recognised_whoever_reports_it(world: World, end: str) -> None:
    source = AGENT + "if life:\n    sys.exit(7)\n" + CRASHES[end]
    agent = world.supervise(source, *RESTART)
    agent.wait_for("life 0")
    agent.wait_for("life 1")
    assert agent.finish() == 7


def test_ended_by_a_signal_that_we_passed_on_it_stays_ended(world: World) -> None:
    source = AGENT + "signal.signal(signal.SIGTERM, lambda *_: ready('deaf'))\nready()\nforever()\n"
    agent = world.supervise(source, *RESTART, "--grace", "0.2")
    agent.wait_for("ready")
    kill(agent.pid, signal.SIGTERM)
    assert agent.finish() == -signal.SIGKILL, "by us, after the grace"
    assert restarts(agent) == []


def test_a_ctrl_c_that_ends_in_a_crash_is_still_a_ctrl_c(world: World) -> None:
    source = AGENT + "signal.signal(signal.SIGINT, lambda *_: os.abort())\nready()\nforever()\n"
    agent = world.supervise(source, *RESTART, start_new_session=True)
    agent.wait_for("ready")
    os.killpg(agent.pid, signal.SIGINT)
    assert agent.finish() == -signal.SIGABRT
    assert restarts(agent) == []


def test_the_same_crash_three_times_in_a_row_is_a_loop(world: World) -> None:
    agent = world.supervise(AGENT + DIES, *RESTART)
    for life in range(3):
        agent.wait_for(f"life {life}")
    assert agent.finish(60) == -signal.SIGSEGV
    assert restarts(agent) == ["1 of 5", "2 of 5"]
    assert "3 times" in lines(agent)[-1] and "killed by SIGSEGV" in lines(agent)[-1]


def test_who_gets_on_is_no_loop_but_is_not_started_for_ever(world: World) -> None:
    gets_on = (
        'chat = session("chat")\nchat.message("user", "x")\n'
        'chat.message("assistant", f"done {life}")\n'
    )
    agent = world.supervise(AGENT + gets_on + DIES, *RESTART, "--max-restarts", "2")
    for life in range(3):
        agent.wait_for(f"life {life}")
    assert agent.finish(60) == -signal.SIGSEGV
    assert restarts(agent) == ["1 of 2", "2 of 2"]
    assert "--max-restarts" in lines(agent)[-1]
    assert [row["content"] for row in world.messages("chat")][1::2] == [
        "done 0",
        "done 1",
        "done 2",
    ]


def waiting_for_the_next_life(world: World) -> Supervised:
    """A supervisor between the second life and the third."""
    agent = world.supervise(AGENT + DIES, *RESTART, stderr=subprocess.STDOUT)
    while "(2 of 5)" not in agent.wait_for("hermes-supervise: "):
        pass
    return agent


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["INT", "TERM"])
def test_a_signal_between_two_lives_ends_it_at_once(world: World, number: int) -> None:
    agent = waiting_for_the_next_life(world)
    kill(agent.pid, number)
    assert agent.finish() == -number
    assert b"life 2" not in agent.output
    assert signal.Signals(number).name.encode() in agent.output


def test_killed_between_two_lives_it_leaves_nothing_and_nobody(world: World) -> None:
    agent = waiting_for_the_next_life(world)
    kill(agent.pid)
    assert agent.finish() == -signal.SIGKILL
    assert b"life 2" not in agent.output
    assert (world.runs(), world.successors()) == ([], [])


def test_a_supervisor_killed_in_a_later_life_is_replaced_and_restarts_nothing(
    world: World,
) -> None:
    agent = world.supervise(AGENT + WORKS, *RESTART)
    agent.wait_for("working")
    agent.kill_agent()
    agent.wait_for("life 1")
    agent.wait_for("working")
    pid = agent.agent
    standby_of(agent.pid)  # it is forked behind the agent
    kill(agent.pid)
    [successor] = until(world.successors, "the successor")
    kill(pid)
    wait_dead(successor)
    assert short(world.messages("chat"))[-1] == ("assistant", "half of answer 1")
    assert not alive(pid)
    assert world.runs() == []


def test_a_template_says_how_another_agent_takes_its_session_up(world: World) -> None:
    path = world.script(AGENT + WORKS)
    template = f"{sys.executable} {path} --session={{session}} 'two words'"
    agent = world.run([sys.executable, path, "first"], *RESTART, "--resume-with", template)
    agent.wait_for("life 0 first")
    agent.wait_for("working")
    agent.kill_agent()
    agent.wait_for("life 1 --session=chat two words")
    agent.kill_agent(signal.SIGTERM)
    agent.finish()


def test_what_could_not_be_written_is_not_built_upon(world: World) -> None:
    world.home.mkdir()
    world.db.mkdir()  # no database can be there
    agent = world.supervise(AGENT + WORKS, *RESTART)
    agent.wait_for("working")
    agent.kill_agent()
    assert agent.finish() == -signal.SIGKILL
    assert restarts(agent) == []


def test_a_session_named_like_an_option_is_not_made_one(world: World) -> None:
    source = AGENT + WORKS.replace('"chat"', '"--yolo"')
    template = f"{sys.executable} {world.script(source)} {{session}}"
    agent = world.supervise(source, *RESTART, "--resume-with", template)
    agent.wait_for("working")
    agent.kill_agent()
    assert agent.finish() == -signal.SIGKILL
    assert restarts(agent) == []
    refused = world.call("--resume-with", "it's", "--", "true")
    assert refused.returncode == 125
    assert '--resume-with: "it\'s" is not a command' in refused.stderr


def test_a_closed_standard_stream_is_closed_in_every_life(world: World) -> None:
    closed = "try:\n    os.fstat(0)\n    ready('open')\nexcept OSError:\n    ready('closed')\n"
    path = world.script(AGENT + closed + "if not life:" + DIES.replace("\n", "", 1))
    agent = world.shell(
        f"exec {shlex.join([*world.command, *RESTART])} -- {sys.executable} {path} <&-"
    )
    agent.wait_for("life 0")
    agent.wait_for("closed")
    agent.wait_for("life 1")
    agent.wait_for("closed")
    assert agent.finish() == 0


def test_a_known_agent_gets_a_notice_instead_of_its_question(world: World) -> None:
    source = (
        AGENT
        + """
call = {"id": "c1", "type": "function", "function": {"name": "pay", "arguments": "{}"}}
chat = session("chat")
if life:
    chat.message("assistant", "I look first")
    sys.exit(0)
chat.message("user", sys.argv[2])
chat.message("assistant", None, tool_calls=[call])
with chat.tool("pay", call="c1"):
    ready("paying")
    forever()
"""
    )
    path = world.folder / "gemini"
    path.write_text(f"#!{sys.executable}\n{PRELUDE}{source}")
    path.chmod(0o755)
    agent = world.run([str(path), "-p", "pay the bill", "-m", "pro"], *RESTART)
    agent.wait_for("paying")
    agent.kill_agent()
    line = agent.wait_for("life 1")
    assert line.startswith("life 1 -m pro --resume chat -p [hermes-supervise] ")
    assert "killed by SIGKILL" in line
    assert "unknown" in line
    assert "pay the bill" not in line
    assert agent.finish() == 0


@pytest.mark.parametrize(
    ("command", "following"),
    [
        ("pi --model m", ["pi", "--model", "m"]),
        ("pi -p question", None),
        ("pi question", None),
    ],
)
def test_a_session_that_the_agent_had_not_stored_yet_is_not_named_to_it(
    command: str, following: list[str] | None
) -> None:
    cause = Cause(signal.SIGKILL, at=100.0)
    report = SessionReport(
        "pi-0123456789ab", "run", "s", "db", "interrupted", str(cause), 100.0, agent="pi"
    )
    report.working = report.progress = report.complete = True
    policy = RestartPolicy(shlex.split(command), None, 5)
    life = Life("run", 0.0, cause, {}, [report])
    if following is None:
        with pytest.raises(NoRestart, match="not stored its session"):
            policy.after(life)
    else:
        assert policy.after(life)[:2] == (following, None)
    report.session, report.resume = "01a1", "pi --session 01a1"
    assert "--session 01a1" in " ".join(policy.after(life)[0])


def test_on_a_terminal_every_life_finds_it_as_the_first_did_and_ctrl_c_ends_the_wait(
    world: World,
) -> None:
    source = AGENT + (
        "import termios, tty\n"
        "lines = bool(termios.tcgetattr(0)[3] & termios.ICANON)\n"
        "ready(f'tty {os.isatty(0)} {os.isatty(1)} {lines} {os.tcgetpgrp(0) == os.getpgrp()}')\n"
        "tty.setraw(0)\n" + DIES
    )
    terminal = Terminal()
    try:
        agent = terminal.run(world, [sys.executable, world.script(source)], *RESTART)
        terminal.wait_for("(2 of 5)")
        terminal.type("\x03")
        assert agent.process.wait(DEADLINE) == -signal.SIGINT
        assert terminal.text.count("tty True True True True") == 2
        assert "life 2" not in terminal.text
        assert terminal.settings == terminal.before
    finally:
        terminal.close()


SAID = {
    "hermes": "hermes --resume ID",
    "hermes chat --yolo -m big": "hermes chat --yolo -m big --resume ID",
    "hermes chat -q 'do it' -Q": "hermes chat -Q --resume ID -q TEXT",
    "hermes -p work chat --query='do it' --image x.png": "hermes -p work chat --resume ID -q TEXT",
    "hermes -c my old talk --tui": "hermes --tui --resume ID",
    "hermes chat --resume OLD -w": "hermes chat --resume ID",
    "hermes gateway run": "hermes gateway run",
    "python -m hermes_cli.main chat": "python -m hermes_cli.main chat --resume ID",
    "claude 'fix it'": "claude --resume ID",
    "claude -p 'fix it' --model opus --allowedTools Bash Read":
        "claude -p --model opus --allowedTools Bash Read --resume ID TEXT",
    "claude --continue --dangerously-skip-permissions":
        "claude --dangerously-skip-permissions --resume ID",
    "claude -r OLD 'and this' --fork-session": "claude --resume ID",
    "npx @anthropic-ai/claude-code@latest": "npx @anthropic-ai/claude-code@latest --resume ID",
    "codex -m gpt 'do it'": "codex -m gpt resume ID",
    "codex exec -s read-only 'do it'": "codex exec -s read-only resume ID TEXT",
    "codex resume OLD 'do it'": "codex resume ID",
    "gemini -m pro -p 'do it'": "gemini -m pro --resume ID -p TEXT",
    "opencode folder --model x/y": "opencode folder --model x/y --session ID",
    "opencode run do it": "opencode run --session ID TEXT",
}  # fmt: skip


@pytest.mark.parametrize("command", SAID)
def test_known_agents_are_resumed_with_their_options_and_never_asked_again(command: str) -> None:
    parsed = registry.parsed(shlex.split(command))
    assert parsed is not None
    assert parsed.resumed("ID", "TEXT") == shlex.split(SAID[command])


def test_what_is_not_known_or_cannot_be_resumed_is_said_so() -> None:
    assert registry.parsed(["my-agent", "--resume"]) is None
    parsed = registry.parsed(["hermes", "-z", "do it"])
    assert parsed is not None
    with pytest.raises(CannotResume):
        parsed.resumed("ID", "TEXT")
    parsed = registry.parsed(["claude", "--resume", "OLD"])
    assert parsed is not None
    assert parsed.session == "OLD"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("hermes", None),
        ("hermes chat", None),
        ("hermes chat --yolo -m fast", "hermes chat --yolo -m fast --resume ID"),
        ("/opt/h/bin/hermes --resume OLD -p work", "/opt/h/bin/hermes -p work --resume ID"),
        ("hermes chat -q 'what now' --yolo", None),
        ("hermes --api-key=hunter2", None),
        ("hermes gateway run", None),
        ("hermes -s 'a text of the user'", None),
        ("claude --model opus", None),
    ],
)
def test_the_way_back_has_the_options_that_are_safe_to_repeat(
    command: str, expected: str | None
) -> None:
    hermes = registry.named("hermes")
    words = shlex.split(command)
    assert registry.resumed_with_options(words, hermes, "hermes --resume ID") == expected
    assert registry.resumed_with_options(words, hermes, None) is None
