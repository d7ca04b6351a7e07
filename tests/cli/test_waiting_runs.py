"""Runs that wait to be recovered are named as long as they wait."""

from __future__ import annotations

import subprocess
import sys

from support import World

# A supervisor that is killed while a job that it forked is at work: the job has the lock.
KILLED = """
import os, signal, socket, sys
from hermes_supervise.ipc import endpoint
from hermes_supervise.supervisor.storage import run_folder as runs

run = runs.create({})
name = "7" * 32
open(run.path(name + ".000001.log"), "wb").close()
with socket.socket(socket.AF_UNIX) as left:
    left.bind(endpoint.socket_path(run.name))
    left.listen()
print(run.name, flush=True)
if os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_run_that_a_dead_supervisors_job_holds_is_named_and_recovered(world: World) -> None:
    script = [sys.executable, "-P", "-c", KILLED]
    supervisor = subprocess.Popen(
        script, env=world.env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert supervisor.stdin and supervisor.stdout
    with supervisor.stdin as job, supervisor.stdout:
        name = supervisor.stdout.readline().strip()
        supervisor.wait(60)
        waiting = world.call("sessions").stdout
        assert waiting.startswith("1 run waits") and "hermes-supervise recover" in waiting
        job.close()
    assert world.call("recover", name).returncode == 0
    assert world.call("sessions").stdout == "no interrupted sessions\n"
