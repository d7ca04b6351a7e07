"""Starts a command alternately with and without our variables: starts.py ANSWER TURNS COMMAND…

With 0 turns it counts the instructions of one start each instead of measuring time.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time

answer, turns, command = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
names = (
    "PYTHONPATH",
    "HERMES_SUPERVISE_SOCKET",
    "HERMES_SUPERVISE_SPOOL",
    "HERMES_SUPERVISE_RUN",
)
assert all(name in os.environ for name in names)
plain = {name: value for name, value in os.environ.items() if name not in names}
folder = tempfile.mkdtemp()
open(os.path.join(folder, "sitecustomize.py"), "w").close()
kinds = {"without": plain, "with": dict(os.environ), "empty": {**plain, "PYTHONPATH": folder}}
found = {name: [] for name in kinds}


def run(words, env):
    done = subprocess.run(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    return done.stderr.decode()


def counted(env):
    valgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={os.devnull}"]
    output = run([*valgrind, *command], env)
    return int(re.search(r"refs: +([\d,]+)", output)[1].replace(",", ""))


for env in kinds.values():
    run(command, env)  # the first one writes bytecode
for turn in range(turns):
    order = list(kinds.items())
    for name, env in order[turn % 3 :] + order[: turn % 3]:
        start = time.perf_counter_ns()
        run(command, env)
        found[name].append((time.perf_counter_ns() - start) / 1e6)
if not turns:
    found = {name: counted(kinds[name]) for name in ("without", "with")}
with open(answer, "w") as file:
    json.dump(found, file)
