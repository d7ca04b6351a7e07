"""An agent that sends and measures it: through our SDK, or over a minimal socket.

    speak.py ANSWER product|raw|coalesced|nothing hot N ROUNDS
    speak.py ANSWER product|raw|coalesced|nothing rate PER_SECOND SECONDS
    speak.py ANSWER product|raw|nothing message|acknowledged N SIZE

`raw` sends one frame for each delta to a process that appends it to a file; `coalesced` joins the
deltas of 20 ms into one frame. Nothing could be recovered from either: they are the lower bounds.
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


class Product:
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
    """Sends length, number, checksum and text to a process that appends and acknowledges them."""

    def __init__(self):
        self._socket, other = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            self._socket.close()
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
        self._socket.sendall(struct.pack("<IQI", len(data), self._number, check) + data)

    def delta(self, text):
        self._send(text.encode())
        if self._number % 16 == 0:
            try:
                self._socket.recv(65536, socket.MSG_DONTWAIT)
            except BlockingIOError:
                pass

    def message(self, text):
        self._send(json.dumps({"role": "assistant", "content": text}).encode())

    def acknowledged(self):
        return bool(self._socket.recv(65536))

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


def hot(sender, count, rounds):
    delta = sender.delta
    found = []
    for _ in range(rounds):
        start = time.perf_counter_ns()
        for _ in range(count):
            delta(WORDS)
        found.append((time.perf_counter_ns() - start) / count / 1e3)
        time.sleep(0.05)
    return found


def pace(delta, per_second, seconds):
    """The share of a core, in percent, that a loop at this rate uses."""
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


def rate(sender, per_second, seconds):
    """Sends for a second, then pauses for a second, in turns. The result is how much more a second
    of sending uses than the pause after it. A record is read within a second, so what the
    receiver still has to do falls into the pause."""
    receiver = sender.receiver()
    time.sleep(1.2)  # let the work of the start finish
    agent, loop = [], []
    other = cpu_of(receiver)
    for _ in range(int(seconds)):
        sending = pace(sender.delta, per_second, 1)
        loop.append(pace(Nothing().delta, per_second, 1))
        agent.append(sending - loop[-1])
    return {"agent": agent, "loop": loop, "receiver": [(cpu_of(receiver) - other) / seconds * 100]}


def messages(sender, count, size, acknowledged):
    texts = Texts()
    found = []
    for number in range(count):
        text = texts(number, size)
        start = time.perf_counter_ns()
        sender.message(text)
        if acknowledged:
            assert sender.acknowledged()
        found.append((time.perf_counter_ns() - start) / 1e3)
    return found


def main():
    answer, who, what, first, second = sys.argv[1:6]
    sender = {"product": Product, "raw": Raw, "coalesced": Coalesced, "nothing": Nothing}[who]()
    if what == "hot":
        found = hot(sender, int(first), int(second))
    elif what == "rate":
        found = rate(sender, float(first), float(second))
    else:
        found = messages(sender, int(first), int(second), what == "acknowledged")
    with open(answer, "w") as file:
        json.dump(found, file)


main()
