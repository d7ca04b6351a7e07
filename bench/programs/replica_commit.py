"""What a commit takes on a server: replica_commit.py ANSWER CONNINFO N SIZE, in milliseconds."""

import json
import os
import sys
import time

import psycopg

answer, where, count, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
found = []
with psycopg.connect(where, autocommit=True) as db:
    db.execute("SET synchronous_commit = on")
    db.execute("CREATE TABLE IF NOT EXISTS said (id bigserial PRIMARY KEY, body bytea)")
    for _ in range(count):
        body = os.urandom(size)
        start = time.perf_counter_ns()
        db.execute("INSERT INTO said (body) VALUES (%s)", (body,))
        found.append((time.perf_counter_ns() - start) / 1e6)
with open(answer, "w") as file:
    json.dump(found, file)
