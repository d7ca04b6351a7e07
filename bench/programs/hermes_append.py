"""Hermes' own append_message, timed: hermes_append.py ANSWER DB N SIZE."""

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hermes_state import SessionDB
from texts import Texts

answer, path, count, size = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
texts = Texts()
db = SessionDB(db_path=path)
db.create_session(f"bench-{os.getpid()}", "cli")
found = []
for number in range(count):
    text = texts(number, size)
    start = time.perf_counter_ns()
    db.append_message(f"bench-{os.getpid()}", "assistant", content=text)
    found.append((time.perf_counter_ns() - start) / 1e3)
db.close()
with open(answer, "w") as file:
    json.dump(found, file)
