"""A machine is lost whole, and another one has the session: real processes, a real PostgreSQL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psycopg
import pytest
from fleet import Fleet, Machine
from hermes_supervise.supervisor.replica import claims
from hermes_supervise.supervisor.replica.server import Differs, Server
from support import kill, until, wait_dead

COUNTING = """
with session("chat-1", source="cli", model="some-model") as chat:
    chat.title("A long count")
    chat.message("user", "count")
    for number in range(50):
        chat.delta(f"{number} ")
    ready()
    forever()
"""
COUNTED = "".join(f"{number} " for number in range(50))


def said(machine: Machine, session: str = "chat-1") -> list[tuple[str, str]]:
    return [(row["role"], row["content"]) for row in machine.messages(session)]


def test_a_reply_in_progress_is_whole_on_another_machine(fleet: Fleet) -> None:
    here, there = fleet.machine(), fleet.machine()
    here.supervise(COUNTING).wait_for("ready")
    fleet.until_there("49 ")
    lost = here.id
    here.lose()
    there.env["HERMES_SUPERVISE_ON_SESSION_END"] = there.hook[1]

    early = there.call("fleet", "lost", lost)
    assert early.returncode == 1 and "lease" in early.stderr
    refused = there.call("fleet", "recover", "chat-1")
    assert refused.returncode == 1 and "is alive" in refused.stderr
    assert not there.db.exists()

    fleet.declare_lost(lost, there)
    done = there.call("fleet", "recover", "chat-1")
    assert done.returncode == 0, done.stderr
    assert said(there) == [("user", "count"), ("assistant", COUNTED)]
    row = there.session("chat-1")
    assert row is not None
    assert (row["title"], row["model"], row["end_reason"]) == (
        "A long count", "some-model", "interrupted",
    )  # fmt: skip
    [event] = there.events()
    assert (event["session_id"], event["extra"]["interrupted"]) == ("chat-1", True)
    assert "its machine was lost" in event["extra"]["reason"]
    shown = there.call("show", "chat-1").stdout
    assert "was declared lost" in shown and "not replicated, is lost" in " ".join(shown.split())

    again = there.call("fleet", "recover", "chat-1")
    assert again.returncode == 1 and "recovered here already" in again.stderr
    assert len(there.events()) == 1
    [run] = there.fleet()["runs"]
    assert (run["state"], run["claimed_by"]) == ("recovered", there.id)


def test_a_tool_in_progress_has_an_answer_that_says_so(fleet: Fleet) -> None:
    here, there = fleet.machine(), fleet.machine()
    here.supervise(
        """
with session("chat-1") as chat:
    chat.message("user", "list it")
    with chat.tool("shell", {"command": "ls"}) as tool:
        ready()
        forever()
"""
    ).wait_for("ready")
    fleet.until_there('"start"')
    lost = here.id
    here.lose()
    fleet.declare_lost(lost, there)
    assert there.call("fleet", "recover", "--all-lost").returncode == 0
    user, call, answer = there.messages("chat-1")
    assert user["content"] == "list it" and "shell" in call["tool_calls"]
    assert (answer["role"], answer["effect_disposition"]) == ("tool", "unknown")


def test_what_was_said_before_the_run_comes_with_it_once_and_in_order(fleet: Fleet) -> None:
    """A first life without a replica, a second one with it, which is checkpointed as it runs."""
    here, there = fleet.machine(), fleet.machine()
    del here.env["HERMES_SUPERVISE_REPLICA"]
    first = here.supervise(
        """
with session("chat-1", source="cli") as chat:
    for number in range(3):
        chat.message("user", f"question {number}")
        chat.message("assistant", "yes")
"""
    )
    assert first.finish() == 0
    before = said(here)
    assert len(before) == 6
    here.env |= {"HERMES_SUPERVISE_REPLICA": fleet.url, "HERMES_SUPERVISE_CHECKPOINT": "0.2"}
    second = here.supervise(
        """
with session("chat-1", source="cli") as chat:
    chat.message("user", "question 3")
    chat.message("assistant", "yes")
    ready()
    sys.stdin.readline()
    chat.message("user", "question 4")
    chat.delta("yes, but")
    ready("said")
    forever()
""",
        stdin=subprocess.PIPE,
    )
    second.wait_for("ready")
    until(lambda: len(said(here)) == 8, "it is checkpointed")
    assert second.process.stdin is not None
    second.process.stdin.write(b"\n")
    second.process.stdin.flush()
    second.wait_for("said")
    fleet.until_there("yes, but")
    lost = here.id
    here.lose()
    fleet.declare_lost(lost, there)
    assert there.call("fleet", "recover", "chat-1").returncode == 0
    assert said(there) == [
        *before, ("user", "question 3"), ("assistant", "yes"), ("user", "question 4"),
        ("assistant", "yes, but"),
    ]  # fmt: skip


def test_the_session_goes_from_machine_to_machine_and_back(fleet: Fleet) -> None:
    """Recovered and continued elsewhere, lost there too, recovered where an older part of it is."""
    one, two = fleet.machine(), fleet.machine()

    def speak(machine: Machine, number: int) -> None:
        machine.supervise(
            f"""
with session("chat-1", source="cli") as chat:
    chat.message("user", "question {number}")
    chat.delta("answer {number}")
    ready()
    forever()
"""
        ).wait_for("ready")
        fleet.until_there(f"answer {number}")

    speak(one, 1)
    older = one.id
    one.kill_all()  # its disk is only out of reach
    fleet.declare_lost(older, two)
    assert two.call("fleet", "recover", "chat-1").returncode == 0
    speak(two, 2)
    newer = two.id
    two.lose()
    assert one.call("recover").returncode == 0
    assert said(one) == [("user", "question 1"), ("assistant", "answer 1")]
    fleet.declare_lost(newer, one)
    done = one.call("fleet", "recover", "chat-1")
    assert done.returncode == 0, done.stderr
    assert said(one) == [
        ("user", "question 1"), ("assistant", "answer 1"),
        ("user", "question 2"), ("assistant", "answer 2"),
    ]  # fmt: skip


def test_what_compaction_drops_here_stays_there(fleet: Fleet) -> None:
    here, there = fleet.machine(), fleet.machine()
    here.env["HERMES_SUPERVISE_CHECKPOINT"] = "0.2"
    run = here.supervise(
        """
with session("chat-1") as chat:
    for number in range(48):
        chat.message("user" if number % 2 == 0 else "assistant", f"{number}:" + "x" * 500_000)
    ready()
    forever()
"""
    )
    run.wait_for("ready")
    journals = here.state / "hermes-supervise" / "runs"

    def is_compacted() -> bool:
        try:
            sizes = [path.stat().st_size for path in journals.glob("*/*.log")]
        except FileNotFoundError:
            return False
        return 0 < sum(sizes) < 20_000_000

    until(is_compacted, "the journal is compacted", 120)
    # A record that went into the spool arrives after later ones. The text follows the JSON.
    for number in range(48):
        fleet.until_there(f"}}{number}:x")
    lost = here.id
    here.lose()
    fleet.declare_lost(lost, there)
    assert there.call("fleet", "recover", "chat-1").returncode == 0
    rows = [content for _, content in said(there)]
    assert [row.split(":")[0] for row in rows] == [str(n) for n in range(48)]
    assert {len(row.split(":")[1]) for row in rows} == {500_000}


# -- the database fails ------------------------------------------------------------------------


TALKATIVE = """
with session("chat-1") as chat:
    chat.message("user", "go on")
    ready()
    for number in range(int(sys.argv[1]) if len(sys.argv) > 1 else 400):
        chat.delta(f"{number} ")
        time.sleep(0.005)
    ready("done")
    forever()
"""


def everything(fleet: Fleet) -> list[int]:
    """The numbers of all records that were shipped, in the order of their positions."""
    select = "SELECT seq FROM hermes_supervise.frame WHERE seq > 0 ORDER BY position"
    return [row[0] for row in fleet.query(select)]


def test_the_server_dies_under_load_and_nothing_is_missing_or_double(fleet: Fleet) -> None:
    if fleet.postgres.external:
        pytest.skip("the server is not ours to kill")
    here = fleet.machine()
    run = here.supervise(TALKATIVE)
    run.wait_for("ready")
    until(lambda: everything(fleet), "the first records")
    fleet.postgres.kill()
    run.wait_for("done")
    until(lambda: here.status().get("connected") is False, "the shipper knows")
    shown = here.call("ps").stdout
    assert "of 402 records replicated" in " ".join(shown.split()), shown
    fleet.postgres.start()
    until(lambda: len(everything(fleet)) >= 402, "the rest", 90)
    assert everything(fleet) == list(range(1, 403))
    assert "all replicated" in here.call("ps").stdout


def test_a_promoted_standby_gets_the_commits_that_it_lacks(fleet: Fleet) -> None:
    here = fleet.machine()
    run = here.supervise(
        COUNTING.replace(
            "    forever()", "    sys.stdin.readline()\n    chat.delta('more')\n    forever()"
        ),
        stdin=subprocess.PIPE,
    )
    run.wait_for("ready")
    fleet.until_there("49 ")
    whole = everything(fleet)
    # As a standby that the last commits did not reach: they are gone, and so is the connection.
    fleet.query("DELETE FROM hermes_supervise.frame WHERE position > 10")
    fleet.query(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE pid <> pg_backend_pid() AND datname = current_database()"
    )
    assert run.process.stdin is not None
    run.process.stdin.write(b"\n")
    run.process.stdin.flush()
    until(lambda: everything(fleet) == [*whole, whole[-1] + 1], "they are sent again", 60)


def test_the_shipper_is_killed_again_and_again(fleet: Fleet) -> None:
    here = fleet.machine()
    run = here.supervise(TALKATIVE)
    run.wait_for("ready")
    for _ in range(3):
        pid = here.shipper
        kill(pid)
        wait_dead(pid)
    run.wait_for("done")
    until(lambda: len(everything(fleet)) >= 402, "all of it", 90)
    assert everything(fleet) == list(range(1, 403))


def test_without_its_database_the_agent_runs_as_ever_and_a_later_start_ships_it(
    fleet: Fleet,
) -> None:
    here = fleet.machine()
    here.env["HERMES_SUPERVISE_REPLICA"] = "host=/nowhere/at/all dbname=x connect_timeout=2"
    done = here.supervise('with session("chat-1") as chat:\n    chat.message("user", "hello")\n')
    assert done.finish() == 0
    assert done.errors == b""
    assert said(here) == [("user", "hello")]
    assert until(lambda: here.status().get("problem"), "the shipper says why")
    kept = list((here.target / "runs").iterdir())
    assert len(kept) == 1
    # The same target, reachable now.
    (here.target / "conninfo").write_text(fleet.url)
    pid = here.shipper
    kill(pid)
    wait_dead(pid)
    subprocess.run([*here.command, "ship", str(here.target)], env=here.env, check=True, timeout=60)
    assert b"hello" in fleet.bodies()
    assert fleet.query("SELECT ended_at IS NOT NULL FROM hermes_supervise.run") == [(True,)]


def test_a_full_share_of_the_disk_drops_records_warns_once_and_is_healed_by_rows(
    fleet: Fleet,
) -> None:
    here, there = fleet.machine(), fleet.machine()
    here.env |= {
        "HERMES_SUPERVISE_REPLICA_DISK": "1",
        "HERMES_SUPERVISE_REPLICA_KEEP": "0",
        "HERMES_SUPERVISE_CHECKPOINT": "0.2",
        "HERMES_SUPERVISE_REPLICA": "service=ours",
        "PGSERVICEFILE": str(here.folder / "services"),
    }
    services = here.folder / "services"
    services.write_text("[ours]\nhost=/nowhere/at/all\n")
    run = here.supervise(
        """
with session("chat-1") as chat:
    for number in range(20):
        chat.message("user" if number % 2 == 0 else "assistant", f"{number}:" + "x" * 200_000)
        time.sleep(0.1)
    ready()
    sys.stdin.readline()
    chat.message("user", "the last question")
    chat.delta("the last answer")
    ready("said")
    forever()
""",
        stdin=subprocess.PIPE,
    )
    run.wait_for("ready")
    until(lambda: here.status().get("warning"), "it drops records")
    until(lambda: here.db.exists() and len(said(here)) == 20, "they are in state.db")
    settings = psycopg.conninfo.conninfo_to_dict(fleet.url)
    services.write_text("[ours]\n" + "".join(f"{k}={v}\n" for k, v in settings.items()))
    until(lambda: here.status().get("warning") is None, "there is room again", 90)
    assert run.process.stdin is not None
    run.process.stdin.write(b"\n")
    run.process.stdin.flush()
    run.wait_for("said")
    fleet.until_there("the last answer")
    lost = here.id
    here.kill_all()
    assert run.process.stderr is not None
    assert run.process.stderr.read().count(b"records are dropped") == 1
    here.lose()
    fleet.declare_lost(lost, there)
    done = there.call("fleet", "recover", "chat-1")
    assert done.returncode == 0, done.stderr
    contents = [content for _, content in said(there)]
    assert [c.split(":")[0] for c in contents[:20]] == [str(n) for n in range(20)]
    assert contents[20:] == ["the last question", "the last answer"]
    assert "lost before they could be stored" in done.stdout


# -- killed after every statement ----------------------------------------------------------------


# Runs a command in forked processes, each of which kills itself after one statement, or operation
# on files, more than the last, until one gets through; prints how many were killed.
VICTIM = """
import os, signal, sys
from hermes_supervise.supervisor.replica import server, shipper
from hermes_supervise.supervisor.run import lost_machine
from hermes_supervise.supervisor.__main__ import main
left = 0
def counted(f):
    def call(*a, **k):
        global left
        answer = f(*a, **k)
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer
    return call
server.Server._run = counted(server.Server._run)
server.Server._change = counted(server.Server._change)
server.Server.ship = counted(server.Server.ship)
server._Transaction.__exit__ = counted(server._Transaction.__exit__)
if sys.argv[1] == "ship":
    os.fdatasync, os.unlink, os.pwrite = map(counted, (os.fdatasync, os.unlink, os.pwrite))
else:
    os.rename, os.replace = map(counted, (os.rename, os.replace))
sys.argv[0] = "hermes-supervise"
for count in range(1, 200):
    left = count
    pid = os.fork()
    if pid == 0:
        try:
            main()
        except SystemExit as end:
            os._exit(end.code or 0)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    if not os.WIFSIGNALED(status):
        break
print("killed", count - 1, "status", os.WEXITSTATUS(status))
"""


def killed_everywhere(machine: Machine, *words: str) -> int:
    """Run a command, killed after its first statement, its second, and so on, until it gets
    through; how often it was killed."""
    done = subprocess.run(
        [sys.executable, "-c", VICTIM, *words],
        env=machine.env, cwd=machine.folder, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    *_, number, _, status = done.stdout.split()
    assert status == "0", (done.stdout, done.stderr)
    return int(number)


def test_shipper_and_claimant_killed_after_every_statement(fleet: Fleet) -> None:
    here, there = fleet.machine(), fleet.machine()
    here.env["HERMES_SUPERVISE_REPLICA"] = "host=/nowhere/at/all dbname=x connect_timeout=2"
    run = here.supervise(COUNTING)
    run.wait_for("ready")
    until(lambda: (here.replica / "machine").exists(), "the machine has an id")
    here.kill_all()
    assert here.call("recover").returncode == 0
    here.kill_all()
    (here.target / "conninfo").write_text(fleet.url)
    assert killed_everywhere(here, "ship", str(here.target)) > 8
    assert everything(fleet) == list(range(1, 54))

    # As if the machine had been lost before it could finish the run itself.
    fleet.query("UPDATE hermes_supervise.run SET ended_at = NULL")
    lost = here.id
    here.lose()
    fleet.declare_lost(lost, there)
    there.env["HERMES_SUPERVISE_ON_SESSION_END"] = there.hook[1]
    assert killed_everywhere(there, "fleet", "recover", "--all-lost") > 5
    assert said(there) == [("user", "count"), ("assistant", COUNTED)]
    until(lambda: there.events(), "its hook")
    assert len(there.events()) == 1
    [run_there] = there.fleet()["runs"]
    assert run_there["state"] == "recovered"


# -- who may finalise ----------------------------------------------------------------------------


def test_of_two_claimants_at_once_one_gets_the_run(fleet: Fleet) -> None:
    servers = [Server(fleet.url) for _ in range(2)]
    servers[0].register("home", "home")
    for name in ("one", "two"):
        servers[0].register(name, name)
    fleet.lease_is_over("home")
    assert servers[0].lose("home", "")
    for number in range(40):
        servers[0].add_run("home", f"run-{number}", b"{}")
        together = threading.Barrier(2)
        answers: dict[str, int | None] = {}

        def claim(server: Server, me: str, run: str = f"run-{number}") -> None:
            together.wait()  # noqa: B023
            answers[me] = server.claim(me, "home", run)[0]  # noqa: B023

        threads = [
            threading.Thread(target=claim, args=(server, me))
            for server, me in zip(servers, ("one", "two"), strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        given = [me for me, epoch in answers.items() if epoch is not None]
        assert len(given) == 1, answers
        # The other one's word changes nothing, at any epoch.
        [other] = {"one", "two"} - set(given)
        for epoch in range(5):
            assert not servers[0].recovered(other, "home", f"run-{number}", epoch)
        assert servers[0].ask_for_hooks(other, "home", f"run-{number}")[0] == claims.NOT_OURS
        assert servers[0].ask_for_hooks(given[0], "home", f"run-{number}")[0] == claims.GIVEN
    for server in servers:
        server.close()


def test_a_position_holds_one_thing(fleet: Fleet) -> None:
    server = Server(fleet.url)
    stream = "0" * 32
    server.ship("m", [(stream, 1, 1, b"one"), (stream, 2, 2, b"two")], {stream: "r"}, [], [])
    server.ship("m", [(stream, 2, 2, b"two"), (stream, 3, 3, b"three")], {}, [], [])
    with pytest.raises(Differs):
        server.ship("m", [(stream, 3, 3, b"other"), (stream, 4, 4, b"four")], {}, [], [])
    found = {name: at for name, (at, _) in server.have([stream, "f" * 32]).items()}
    assert found == {stream: 3, "f" * 32: 0}
    server.close()


def test_a_machine_that_was_only_cut_off_keeps_its_own_and_finalises_nothing_twice(
    fleet: Fleet,
) -> None:
    here, there = fleet.machine(), fleet.machine()
    for machine in (here, there):
        machine.env["HERMES_SUPERVISE_ON_SESSION_END"] = machine.hook[1]
    run = here.supervise(
        """
with session("chat-1") as chat:
    chat.message("user", "before the cut")
    ready()
    sys.stdin.readline()
    chat.message("assistant", "behind the cut")
    ready("said")
    forever()
""",
        stdin=subprocess.PIPE,
    )
    run.wait_for("ready")
    fleet.until_there("before the cut")
    shipper = fleet.cut_off(here)
    fleet.declare_lost(here.id, there)
    assert there.call("fleet", "recover", "chat-1").returncode == 0
    assert said(there) == [("user", "before the cut")]
    until(lambda: there.events(), "the hook is run there")

    assert run.process.stdin is not None
    run.process.stdin.write(b"\n")
    run.process.stdin.flush()
    run.wait_for("said")
    kill(shipper, signal.SIGCONT)
    fleet.until_there("behind the cut")
    until(lambda: here.status().get("taken"), "it knows")
    run.kill_agent()
    run.finish(60)
    assert said(here) == [("user", "before the cut"), ("assistant", "behind the cut")]
    listed = until(lambda: hook_states(here), "the hook is put away")
    [(state, outcome)] = listed
    assert state == "dead" and "recovered this session" in outcome
    assert here.events() == []
    assert len(there.events()) == 1
    [machine] = [found for found in here.fleet()["machines"] if found["machine"] == here.id]
    assert machine["state"] != "lost"


def hook_states(machine: Machine) -> list[tuple[str, str]]:
    found = json.loads(machine.call("hooks", "--json").stdout)
    entries = found["hooks"] if isinstance(found, dict) else found
    return [
        (hook["state"], str(hook.get("outcome")))
        for hook in entries
        if hook["state"] in ("dead", "abandoned", "done")
    ]


def test_behind_the_lease_hooks_wait_until_the_database_confirms(fleet: Fleet) -> None:
    if fleet.postgres.external:
        pytest.skip("the server is not ours to stop")
    here = fleet.machine()
    here.env["HERMES_SUPERVISE_ON_SESSION_END"] = here.hook[1]
    here.env["HERMES_SUPERVISE_HOOK_WAIT"] = "0"
    run = here.supervise(COUNTING)
    run.wait_for("ready")
    fleet.until_there("49 ")
    fleet.postgres.kill()
    try:
        until(lambda: here.status().get("connected") is False, "the shipper knows")
        shipper = here.shipper
        kill(shipper, signal.SIGSTOP)
        status = here.status()
        status["lease"]["until"] = 1  # a minute has passed
        (here.target / "status.json").write_text(json.dumps(status))
        run.kill_agent()
        run.finish(60)
        shown = " ".join(here.call("hooks").stdout.split())
        assert "no other machine runs them" in shown, shown
        assert here.events() == []
    finally:
        fleet.postgres.start()
    kill(shipper, signal.SIGCONT)
    assert until(lambda: here.events(), "the hook is run", 90)
    assert len(here.events()) == 1


# -- nothing for those who do not ask --------------------------------------------------------------


def test_without_the_option_nothing_is_loaded_made_or_started(fleet: Fleet) -> None:
    here = fleet.machine()
    del here.env["HERMES_SUPERVISE_REPLICA"]
    script = here.script('with session("chat-1") as chat:\n    chat.message("user", "hello")\n')
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "hermes_supervise.supervisor", "--",
         sys.executable, script],
        env=here.env, cwd=here.folder, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0
    loaded = [line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()]
    assert "hermes_supervise.supervisor.run.supervision" in loaded
    assert not [name for name in loaded if "replica" in name or "psycopg" in name]
    assert not here.replica.exists()
    assert not here.processes()


def test_a_password_in_the_option_is_refused_with_the_better_way(fleet: Fleet) -> None:
    here = fleet.machine()
    for text in ("postgresql://me:secret@db/agents", "host=db password = 'secret'"):
        done = here.call("--replica", text, "--", "true")
        assert done.returncode == 125
        assert "service=NAME" in done.stderr and ".pgpass" in done.stderr


def test_without_psycopg_the_agent_runs_and_one_line_says_so(fleet: Fleet, tmp_path: Path) -> None:
    here = fleet.machine()
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'psycopg': raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Hide())\n"
    )
    here.env["PYTHONPATH"] = str(tmp_path)
    done = here.call("--", "sh", "-c", "exit 3")
    assert done.returncode == 3
    assert "hermes-supervise[postgres]" in done.stderr
    assert here.call("--strict", "--", "true").returncode == 125


def test_doctor_names_what_the_server_promises(fleet: Fleet) -> None:
    here = fleet.machine()
    found = {finding["about"]: finding for finding in here.fleet("doctor")}
    assert found["connection"]["verdict"] == found["rights"]["verdict"] == "ok"
    assert found["durability"]["verdict"] in ("ok", "note")
    here.env["HERMES_SUPERVISE_REPLICA"] = "host=/nowhere/at/all dbname=x"
    [only] = here.fleet("doctor")
    assert (only["about"], only["verdict"]) == ("connection", "bad")
    assert os.path.exists(here.folder)
