"""Says records on some machines, as their supervisors would: replica_speak.py ANSWER HOMES EVERY
BATCHES RECORDS SIZE.

HOMES is the answer of replica_homes.py. Every EVERY-th machine gets RECORDS records of SIZE letters
in its journal every 50 ms, BATCHES times, and its shipper is woken. The answer: seconds from a
batch's journaling to its note in the shipper's status, for each batch of one machine in ten; and
how long all of it took.
"""

import json
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hermes_supervise.ipc import frames, records
from hermes_supervise.supervisor.storage.journal import segment_name
from texts import Texts

answer, homes = sys.argv[1:3]
every, batches, count, size = map(int, sys.argv[3:7])
texts = Texts()
INTERVAL = 0.05


class Machine:
    def __init__(self, number, home):
        self.session = f"chat-{number}"
        name = segment_name(home["stream"], home["segment"])
        self._journal = os.open(os.path.join(home["folder"], name), os.O_WRONLY | os.O_APPEND)
        self._wake = os.open(os.path.join(home["target"], "wake"), os.O_WRONLY | os.O_NONBLOCK)
        self._status = os.path.join(home["target"], "status.json")
        self._stream = home["stream"]
        self._seen = None
        self.number = home["records"]
        self.replicated = 0
        self.waiting = []
        self.lags = []

    def say(self):
        data = []
        for _ in range(count):
            self.number += 1
            record = records.pack_delta(self.session, texts(self.number, size))
            data.append(frames.encode(self.number, record))
        os.write(self._journal, b"".join(data))
        self.waiting.append((self.number, time.monotonic()))
        try:
            os.write(self._wake, b".")
        except BlockingIOError:
            pass

    def look(self):
        seen = os.stat(self._status)
        if self._seen == (seen.st_ino, seen.st_mtime_ns):
            return
        self._seen = seen.st_ino, seen.st_mtime_ns
        now = time.monotonic()
        with open(self._status) as file:
            self.replicated = json.load(file)["streams"].get(self._stream, [0, 0])[1]
        while self.waiting and self.waiting[0][0] <= self.replicated:
            self.lags.append(now - self.waiting.pop(0)[1])


with open(homes) as file:
    found = json.load(file)
machines = [Machine(n, home) for n, home in enumerate(found) if n % every == 0]
watched = machines[:20]
start = time.monotonic()
due = [start + n * INTERVAL / len(machines) for n in range(len(machines))]
left = [batches] * len(machines)
while any(left):
    now = time.monotonic()
    for place, machine in enumerate(machines):
        if left[place] and now >= due[place]:
            machine.say()
            left[place] -= 1
            due[place] += INTERVAL
    for machine in watched:
        machine.look()
    time.sleep(0.0005)
said = time.monotonic() - start
end = time.monotonic() + 120
while any(machine.replicated < machine.number for machine in machines):
    assert time.monotonic() < end, "not replicated within two minutes"
    for machine in machines:
        machine.look()
    time.sleep(0.001)
took = time.monotonic() - start
with open(answer, "w") as file:
    lags = [lag * 1e3 for machine in watched for lag in machine.lags]
    json.dump({"lags": lags, "said": said, "took": took,
               "records": len(machines) * batches * count}, file)  # fmt: skip
