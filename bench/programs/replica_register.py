"""Lets the journal that journal.py made be shipped: replica_register.py ANSWER CONNINFO."""

import json
import os
import sys

from hermes_supervise.supervisor.replica import places

answer, where = sys.argv[1:3]
above = os.path.join(os.environ["XDG_STATE_HOME"], "hermes-supervise", "runs")
[run] = os.listdir(above)
folder = os.path.join(above, run)
[stream] = {name.partition(".")[0] for name in os.listdir(folder) if name.endswith(".log")}
db = os.path.join(os.environ["HERMES_HOME"], "nothing-before.db")
places.register(where, run, folder, {"folder": folder, "db": db, "command": ["agent"], "boot": "b"})
with open(answer, "w") as file:
    json.dump({"target": places.target_folder(where), "folder": folder, "stream": stream,
               "machine": places.machine()}, file)  # fmt: skip
