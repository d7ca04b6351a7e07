"""The server is killed after every statement of the shipper and of the claimant, and comes back.

The suite takes every fourth statement; `make test-slow` takes each of them twice: once the answer
is lost, once the client has got it.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time

import pytest
from fleet import Fleet, Machine
from support import until

COUNTING = """
with session("chat-1") as chat:
    chat.message("user", "count")
    for number in range(50):
        chat.delta(f"{number} ")
    ready()
    forever()
"""
COUNTED = "".join(f"{number} " for number in range(50))
SEQS = "SELECT seq FROM hermes_supervise.frame WHERE seq > 0 ORDER BY position"

# Runs a command. Where the server is to be killed, it says "k", waits until that has been done, and
# goes on, with the answer of the statement or without it. A shipper connects again by itself: its
# next connection gets a step further. Any other command is run again. At the end it says "d".
VICTIM = """
import os, sys
from hermes_supervise.supervisor.replica import sender, server
from hermes_supervise.supervisor.__main__ import main
say, go, stride = map(int, sys.argv[1:4])
sys.argv[1:] = sys.argv[4:]
for fd in (say, go):
    os.set_inheritable(fd, False)
sender._RETRY = (0.05,)
attempt, left, is_answered = 0, 0, True
def next_attempt():
    global attempt, left, is_answered
    attempt += 1
    if stride == 1:
        left, is_answered = (attempt + 1) // 2, attempt % 2 == 0
    else:
        left, is_answered = attempt * stride, attempt % 2 == 0
def counted(f):
    def call(*a, **k):
        global left
        answer = f(*a, **k)
        left -= 1
        if left == 0:
            os.write(say, b"k")
            os.read(go, 1)
            if not is_answered:
                raise server.Unreachable("the answer is lost")
        return answer
    return call
for name in ("_run", "_change", "ship", "frames"):
    setattr(server.Server, name, counted(getattr(server.Server, name)))
server._Transaction.__exit__ = counted(server._Transaction.__exit__)
def run():
    try:
        return main() or 0
    except SystemExit as end:
        return end.code or 0
if sys.argv[1] == "ship":
    connect = server.Server.__init__
    def connected(*a, **k):
        next_attempt()
        connect(*a, **k)
    server.Server.__init__ = connected
    status = run()
else:
    status = 77
    while status == 77:
        next_attempt()
        pid = os.fork()
        if pid == 0:
            status = run()
            os._exit(77 if left <= 0 else status)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
os.write(say, b"d")
os._exit(status)
"""


def killed_under(fleet: Fleet, machine: Machine, stride: int, *words: str) -> int:
    """Run a command, and kill the server after every `stride`-th statement of it, until it gets
    through; how often the server was killed."""
    spoken, say = os.pipe()
    hear, go = os.pipe()
    victim = subprocess.Popen(
        [sys.executable, "-c", VICTIM, str(say), str(hear), str(stride), *words],
        env=machine.env, cwd=machine.folder, pass_fds=(say, hear),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    kills, time_limit = 0, time.monotonic() + (1200 if stride == 1 else 300)
    try:
        while True:
            assert time.monotonic() < time_limit, f"not through after {kills} kills"
            if not select.select([spoken], [], [], 0.2)[0]:
                assert victim.poll() is None, victim.communicate()
                continue
            if os.read(spoken, 1) == b"d":
                break
            fleet.postgres.kill()
            fleet.postgres.start()
            kills += 1
            os.write(go, b"g")
        assert victim.wait(60) == 0, victim.communicate()
    finally:
        victim.kill()
        victim.wait()
        assert victim.stdout is not None
        victim.stdout.close()
        for fd in (spoken, say, hear, go):
            os.close(fd)
    return kills


SLOW = pytest.mark.skipif(not os.environ.get("SLOW"), reason="`make test-slow`")


@pytest.mark.parametrize("stride", [4, pytest.param(1, marks=SLOW)])
def test_the_server_is_killed_after_every_statement(fleet: Fleet, stride: int) -> None:
    if fleet.postgres.external:
        pytest.skip("the server is not ours to kill")
    here, there = fleet.machine(), fleet.machine()
    here.env["HERMES_SUPERVISE_REPLICA"] = "host=/nowhere/at/all dbname=x connect_timeout=2"
    here.supervise(COUNTING).wait_for("ready")
    until(lambda: (here.replica / "machine").exists(), "the machine has an id")
    here.kill_all()
    assert here.call("recover").returncode == 0
    here.kill_all()
    (here.target / "conninfo").write_text(fleet.url)
    shipped = killed_under(fleet, here, stride, "ship", str(here.target))
    assert [row[0] for row in fleet.query(SEQS)] == list(range(1, 53))
    assert shipped >= 8 // stride
    assert fleet.query("SELECT ended_at IS NOT NULL FROM hermes_supervise.run") == [(True,)]

    # As if the machine had been lost before it could finish the run itself.
    fleet.query("UPDATE hermes_supervise.run SET ended_at = NULL")
    lost = here.id
    here.lose()
    fleet.declare_lost(lost, there)
    there.env["HERMES_SUPERVISE_ON_SESSION_END"] = there.hook[1]
    claimed = killed_under(fleet, there, stride, "fleet", "recover", "--all-lost")
    assert claimed >= 8 // stride
    rows = [(row["role"], row["content"]) for row in there.messages("chat-1")]
    assert rows == [("user", "count"), ("assistant", COUNTED)]
    until(lambda: there.events(), "its hook")
    assert len(there.events()) == 1
    [run] = there.fleet()["runs"]
    assert (run["state"], run["claimed_by"]) == ("recovered", there.id)
