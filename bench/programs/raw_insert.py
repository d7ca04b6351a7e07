"""Inserts the same rows with apsw alone, in one transaction: raw_insert.py ANSWER DB N SIZE.

A file without tables gets those of the product.
"""

import json
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import apsw
from hermes_supervise.supervisor.statedb import schema
from texts import Texts

answer, path, count, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
texts = Texts()
name = f"raw-{os.getpid()}"
rows = [
    (name, "user" if n % 2 == 0 else "assistant", texts(n, size), time.time()) for n in range(count)
]
start = time.perf_counter_ns()
db = apsw.Connection(path)
db.execute("PRAGMA synchronous = FULL")
if not db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'messages'").fetchone()[0]:
    db.execute("PRAGMA journal_mode = WAL")
    for statement in schema.statements():
        db.execute(statement)
db.execute("BEGIN IMMEDIATE")
db.execute("INSERT INTO sessions (id, source, started_at) VALUES (?, 'cli', 1)", (name,))
db.executemany(
    "INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, ?, ?, ?)", rows
)
db.execute("COMMIT")
took = (time.perf_counter_ns() - start) / 1e6
db.close()
with open(answer, "w") as file:
    json.dump([took], file)
