"""Starts a command in turns with and without our variables: starts.py ANSWER TURNS COMMAND…"""

import json
import os
import subprocess
import sys
import tempfile
import time

answer, turns, command = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
ours = ("PYTHONPATH", "HERMES_SUPERVISE_SOCKET", "HERMES_SUPERVISE_SPOOL", "HERMES_SUPERVISE_RUN")
assert all(name in os.environ for name in ours)
plain = {name: value for name, value in os.environ.items() if name not in ours}
folder = tempfile.mkdtemp()
open(os.path.join(folder, "sitecustomize.py"), "w").close()
kinds = {"without": plain, "with": dict(os.environ), "empty": {**plain, "PYTHONPATH": folder}}
found = {name: [] for name in kinds}
for turn in range(turns + 1):
    order = list(kinds.items())
    for name, env in order[turn % 3 :] + order[: turn % 3]:
        start = time.perf_counter_ns()
        subprocess.run(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if turn:  # the first one writes bytecode
            found[name].append((time.perf_counter_ns() - start) / 1e6)
with open(answer, "w") as file:
    json.dump(found, file)
