"""Counters that only grow, and a log of what was done that has no word of what was said."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from pathlib import Path

import pytest
from hermes_supervise.ipc import endpoint
from hermes_supervise.supervisor.run import event_log
from hermes_supervise.supervisor.storage import counters
from hermes_supervise.supervisor.storage import run_folder as runs
from support import World, kill, until

SAID = "a-word-that-nobody-else-says"
SOURCE = f"""
chat = session("chat")
chat.title("{SAID}")
chat.message("user", "{SAID}")
chat.delta("{SAID}")
ready("ready")
forever()
"""


def killed(world: World, *options: str) -> None:
    agent = world.supervise(SOURCE, *options)
    agent.wait_for("ready")
    agent.kill_agent()
    agent.finish()


def metrics(world: World) -> dict[str, int]:
    done = world.call("metrics")
    assert (done.returncode, done.stderr) == (0, "")
    found = {}
    for line in done.stdout.splitlines():
        if not line.startswith("#"):
            assert re.fullmatch(r"hermes_supervise_[a-z_]+ \d+", line), line
            name, value = line.split()
            found[name.removeprefix("hermes_supervise_")] = int(value)
    kinds = dict(re.findall(r"# TYPE hermes_supervise_(\w+) (\w+)", done.stdout))
    assert set(kinds) == set(found)
    assert all((kind == "counter") == name.endswith("_total") for name, kind in kinds.items())
    return found


def test_metrics_count_what_was_recovered(world: World) -> None:
    assert set(metrics(world).values()) == {0}
    killed(world, "--on-session-end", "false", "--hook-retry", "none")
    world.supervise('session("other").message("user", "x")').finish()
    found = metrics(world)
    assert (found["runs_total"], found["sessions_total"]) == (2, 2)
    assert (found["sessions_interrupted_total"], found["messages_recovered_total"]) == (1, 3)
    assert found["characters_recovered_total"] == len(SAID)
    assert (found["hook_failures_total"], found["hooks_abandoned"]) == (1, 1)
    assert (found["runs_running"], found["runs_waiting"], found["journal_bytes"]) == (0, 0, 0)


def test_metrics_tell_of_what_runs_and_of_what_waits(world: World) -> None:
    agent = world.supervise(SOURCE, "--no-adopt")
    agent.wait_for("ready")
    found = until(lambda: (now := metrics(world))["journal_bytes"] and now, "the journal")
    assert (found["runs_running"], found["runs_waiting"]) == (1, 0)
    agent.abandon()
    assert metrics(world)["runs_waiting"] == 1


def test_counters_do_not_fall_when_reports_are_forgotten(world: World) -> None:
    killed(world)
    killed(world)
    before = metrics(world)
    assert before["sessions_interrupted_total"] == 2
    assert world.call("sessions", "forget", "--all").returncode == 0
    assert world.reports() == []
    assert metrics(world) == before
    killed(world)
    assert metrics(world)["sessions_interrupted_total"] == 3


def test_counters_survive_old_reports_and_a_kill_between_count_and_deletion(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in world.env.items():
        if name.startswith(("XDG_", "HOME")):
            monkeypatch.setenv(name, value)
    killed(world)
    folder = Path(runs.reports_folder())
    [path] = folder.iterdir()
    before = metrics(world)
    counters.keep({path.stem: str(path)})
    assert metrics(world) == before, "counted, and not deleted yet"
    counters.keep({path.stem: str(path)})
    assert metrics(world) == before, "cut off there, and begun again"
    path.unlink()
    assert metrics(world) == before
    assert os.stat(os.path.join(endpoint.state_folder(), "metrics.json")).st_mode & 0o77 == 0


def test_more_reports_than_are_kept_are_still_counted(world: World) -> None:
    killed(world)
    [path] = (world.state / "hermes-supervise" / "reports").iterdir()
    for number in range(505):
        path.with_name(f"20200101-000000-{number:08x}.jsonl").write_bytes(path.read_bytes())
    before = metrics(world)
    assert before["runs_total"] == 506
    killed(world)
    assert len(list(path.parent.iterdir())) == 500
    assert metrics(world)["runs_total"] == 507
    assert metrics(world)["messages_recovered_total"] == before["messages_recovered_total"] + 2


def test_a_file_for_a_collector_is_written_in_one_step(world: World) -> None:
    goal = world.folder / "hermes.prom"
    assert world.call("metrics", "-o", str(goal)).stdout == ""
    assert goal.read_text() == world.call("metrics").stdout
    assert [p.name for p in world.folder.glob("hermes.prom*")] == ["hermes.prom"]
    failed = world.call("metrics", "-o", str(world.folder / "missing" / "x"))
    assert failed.returncode == 125


# -- the log -----------------------------------------------------------------------------------


def test_the_log_says_what_was_done_and_not_a_word_of_what_was_said(world: World) -> None:
    log = world.folder / "events.jsonl"
    agent = world.run(
        [sys.executable, world.script(SOURCE), SAID], "--log", str(log), "--on-session-end", "true"
    )
    agent.wait_for("ready")
    agent.kill_agent()
    agent.finish()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["event"] for line in lines] == ["started", "ended", "settled"]
    assert {line["run"] for line in lines} == {lines[0]["run"]}
    assert lines[1]["cause"] == "killed by SIGKILL"
    assert (lines[2]["session"], lines[2]["outcome"]) == ("chat", "interrupted")
    assert (lines[2]["messages"], lines[2]["characters"]) == (2, len(SAID))
    assert SAID not in log.read_text()
    assert log.stat().st_mode & 0o77 == 0


def test_a_successor_goes_on_with_the_log(world: World) -> None:
    log = world.folder / "events.jsonl"
    agent = world.supervise(SOURCE, "--log", str(log))
    agent.wait_for("ready")
    pid = agent.agent
    kill(agent.pid)
    until(lambda: "taken over" in log.read_text(), "the successor")
    kill(pid)
    until(lambda: '"settled"' in log.read_text(), "it is recovered")
    assert SAID not in log.read_text()


def test_a_log_that_cannot_be_written_costs_nothing(world: World) -> None:
    agent = world.supervise('print("fine")', "--log", str(world.folder / "missing" / "log"))
    assert agent.finish() == 0
    assert b"fine" in agent.output


def test_the_journal_of_systemd_gets_the_fields(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = os.path.join("/tmp", f"hs-journal-{os.getpid()}")
    monkeypatch.setattr(event_log, "JOURNAL_SOCKET", address)
    log = event_log.EventLog("journal", "run-1")
    log.write("started", pid=5)  # nobody listens: no error
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(address)
        try:
            log.write("started", pid=5, program="two\nlines")
            fields = dict(line.split("=", 1) for line in journal.recv(4096).decode().splitlines())
        finally:
            os.unlink(address)
    assert fields["MESSAGE"] == "hermes-supervise: started"
    assert fields["HERMES_SUPERVISE_RUN"] == "run-1"
    assert fields["HERMES_SUPERVISE_PROGRAM"] == "two lines"
    assert fields["SYSLOG_IDENTIFIER"] == "hermes-supervise"
