"""An agent that speaks, and times it: through our SDK, or over the barest line there can be.

    speak.py ANSWER ours|raw|coalesced|nothing hot N ROUNDS
    speak.py ANSWER ours|raw|coalesced|nothing rate PER_SECOND SECONDS
    speak.py ANSWER ours|raw|nothing message|acknowledged N SIZE

`raw` sends one frame a delta to a process that appends it to a file; `coalesced` puts what
comes within 20 ms into one. Neither could be recovered from: they are the floors.
"""

import json
import os
import socket
import struct
import sys
import time
import zlib

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from texts import Texts

WORDS = "some twenty letters "


class Ours:
    def __init__(self):
        from hermes_supervise.agent_shim import session

        self.chat = session("chat", source="cli", model="m", db=sys.argv[1] + ".db")
        self.delta = self.chat.delta
        self.message("begin")
        assert self.acknowledged()

    def message(self, text):
        self.chat.message("assistant", text)

    def acknowledged(self):
        return self.chat.acknowledged(10)

    def receiver(self):
        return os.getppid()


class Raw:
    """Length, number, check and text to a process that appends them and acknowledges."""

    def __init__(self):
        self._line, other = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            self._line.close()
            self._receive(other)
        other.close()
        self._number = 0

    def _receive(self, line):
        file = os.open(sys.argv[1] + ".floor", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        always = os.environ.get("BENCH_SYNC") == "always"
        while data := line.recv(262144):
            os.write(file, data)
            if always:
                os.fdatasync(file)
            try:
                line.send(b"ack", socket.MSG_DONTWAIT)
            except BlockingIOError:
                pass
        os._exit(0)

    def _send(self, data):
        self._number += 1
        check = zlib.crc32(data)
        self._line.sendall(struct.pack("<IQI", len(data), self._number, check) + data)

    def delta(self, text):
        self._send(text.encode())
        if self._number % 16 == 0:
            try:
                self._line.recv(65536, socket.MSG_DONTWAIT)
            except BlockingIOError:
                pass

    def message(self, text):
        self._send(json.dumps({"role": "assistant", "content": text}).encode())

    def acknowledged(self):
        return bool(self._line.recv(65536))

    def receiver(self):
        return self._pid


class Coalesced(Raw):
    def __init__(self):
        super().__init__()
        self._pieces, self._due = [], 0.0

    def delta(self, text):
        self._pieces.append(text)
        now = time.monotonic()
        if now >= self._due:
            self._send("".join(self._pieces).encode())
            self._pieces, self._due = [], now + 0.02


class Nothing:
    def delta(self, text):
        pass

    message = delta

    def acknowledged(self):
        return True

    def receiver(self):
        return os.getpid()


def cpu_of(pid):
    with open(f"/proc/{pid}/schedstat") as file:
        return int(file.read().split()[0]) / 1e9


def hot(speaker, count, rounds):
    delta = speaker.delta
    found = []
    for _ in range(rounds):
        start = time.perf_counter_ns()
        for _ in range(count):
            delta(WORDS)
        found.append((time.perf_counter_ns() - start) / count / 1e3)
        time.sleep(0.05)
    return found


def pace(delta, per_second, seconds):
    """Percent of a core that a loop at this pace takes."""
    step = 1 / per_second
    before = time.process_time()
    start = due = time.monotonic()
    for _ in range(int(per_second * seconds)):
        delta(WORDS)
        due += step
        left = due - time.monotonic()
        if left > 0:
            time.sleep(left)
    return (time.process_time() - before) / (time.monotonic() - start) * 100


def rate(speaker, per_second, seconds):
    """Speaking and silent in turns of a second each, which is as long as a word may lie with us:
    what each turn of speaking takes more than the silence behind it. What the receiver has to do
    after a word is in the silence."""
    receiver = speaker.receiver()
    time.sleep(1.2)  # what the start left to do is done
    agent, loop = [], []
    other = cpu_of(receiver)
    for _ in range(int(seconds)):
        spoke = pace(speaker.delta, per_second, 1)
        loop.append(pace(Nothing().delta, per_second, 1))
        agent.append(spoke - loop[-1])
    return {"agent": agent, "loop": loop, "receiver": [(cpu_of(receiver) - other) / seconds * 100]}


def messages(speaker, count, size, acknowledged):
    texts = Texts()
    found = []
    for number in range(count):
        text = texts(number, size)
        start = time.perf_counter_ns()
        speaker.message(text)
        if acknowledged:
            assert speaker.acknowledged()
        found.append((time.perf_counter_ns() - start) / 1e3)
    return found


def main():
    answer, who, what, first, second = sys.argv[1:6]
    speaker = {"ours": Ours, "raw": Raw, "coalesced": Coalesced, "nothing": Nothing}[who]()
    if what == "hot":
        found = hot(speaker, int(first), int(second))
    elif what == "rate":
        found = rate(speaker, float(first), float(second))
    else:
        found = messages(speaker, int(first), int(second), what == "acknowledged")
    with open(answer, "w") as file:
        json.dump(found, file)


main()
