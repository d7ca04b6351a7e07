"""An agent whose messages are replicated: replica_say.py ANSWER N SIZE.

Says a message, waits until it is journaled, and then until the shipper notes that the database has
it. In turns, the second half: says a message and asks for nothing. The answer: milliseconds from
journaled to replicated, and from handed over to replicated.
"""

import glob
import json
import os
import random
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hermes_supervise.agent_shim import session
from texts import Texts

answer, count, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
above = os.path.join(os.environ["XDG_STATE_HOME"], "hermes-supervise", "replica")
texts = Texts()
chances = random.Random(0)


class Status:
    """How far the replica is, as the shipper notes it; read only when the file is another one."""

    def __init__(self):
        self._path, self._seen, self._last = None, None, 0

    def replicated(self):
        if self._path is None:
            self._path = next(iter(glob.glob(os.path.join(above, "*", "status.json"))), None)
            if self._path is None:
                return 0
        now = os.stat(self._path)
        seen = now.st_ino, now.st_mtime_ns
        if seen != self._seen:
            self._seen = seen
            with open(self._path) as file:
                streams = json.load(file)["streams"].values()
            self._last = max((pair[1] for pair in streams), default=0)
        return self._last

    def wait(self, number):
        end = time.monotonic() + 60
        while self.replicated() < number:
            assert time.monotonic() < end, "not replicated within a minute"
            time.sleep(0.0002)


status = Status()
chat = session("chat", source="cli", model="m", db=answer + ".db")
chat.message("user", "begin")
said = 2  # the session itself is the first record
assert chat.acknowledged(10)
status.wait(said)
found = {"journaled": [], "handed over": []}
for number in range(count):
    for way in found:
        time.sleep(chances.uniform(0, 0.1))  # at any moment of a batch interval
        text = texts(number, size)
        before = time.perf_counter_ns()
        chat.message("assistant", text)
        if way == "journaled":
            assert chat.acknowledged(10)
            before = time.perf_counter_ns()
        said += 1
        status.wait(said)
        found[way].append((time.perf_counter_ns() - before) / 1e6)
chat.end()
with open(answer, "w") as file:
    json.dump(found, file)
