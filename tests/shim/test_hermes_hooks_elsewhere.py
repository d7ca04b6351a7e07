"""Hermes' hooks run where there are no pidfds and no prctl: other systems, old kernels, filters."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "agent_shim" / "adapters" / "hermes_hooks.py"

# Runs callbacks as the script does, on a system that lacks something.
PROGRAM = """
import ctypes, importlib.util, json, os, sys, time

def refuse(*arguments):
    raise PermissionError(1, "Operation not permitted")

class NoPrctl:
    def __init__(self, name):
        pass

lacking = sys.argv[2]
if lacking == "pidfds are forbidden":
    os.pidfd_open = refuse
elif lacking != "nothing":
    del os.pidfd_open
if lacking == "prctl":
    ctypes.CDLL = NoPrctl
if lacking == "waitid":
    del os.waitid
spec = importlib.util.spec_from_file_location("hermes_hooks", sys.argv[1])
hooks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(hooks)

def prints():
    print("printed")

def raises():
    raise ValueError("broken")

def leaves_a_child():
    if os.fork() == 0:
        time.sleep(600)  # it has the pipe open, and does not keep us

def hangs():
    time.sleep(600)

outcomes = {}
for work, timeout in ((prints, 60), (raises, 60), (leaves_a_child, 60), (hangs, 0.2)):
    outcome, output = hooks._isolated(timeout, work)
    outcomes[work.__name__] = outcome, output.decode()
print(json.dumps(outcomes))
"""


@pytest.mark.parametrize(
    "lacking", ["nothing", "pidfds", "pidfds are forbidden", "prctl", "waitid"]
)
def test_callbacks_come_to_the_same_ends_on_every_system(lacking: str) -> None:
    command = [sys.executable, "-c", PROGRAM, str(SCRIPT), lacking]
    outcomes = json.loads(subprocess.check_output(command, text=True, timeout=120))
    assert outcomes["prints"] == ["ok", "printed"]
    assert outcomes["raises"] == ["raised", "ValueError: broken"]
    assert outcomes["leaves_a_child"] == ["ok", ""]
    assert outcomes["hangs"] == ["timed out after 0.2 s", ""]
