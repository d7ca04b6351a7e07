"""The inputs that the fuzzer starts from: small examples of real records, frames and rings."""

from __future__ import annotations

from hermes_supervise.ipc import frames, records, ring

_RECORDS = (
    {"kind": "hello", "version": 1, "oldest": 1, "stream": "0" * 32, "pid": 7, "start": 1},
    {"kind": "session", "session": "chat", "source": "cli", "at": 1.0},
    {
        "kind": "message",
        "session": "chat",
        "uid": "u1",
        "message": {"role": "user", "content": "x"},
    },
    {"kind": "tool", "session": "chat", "phase": "start", "call": "call-1", "name": "look"},
    {"kind": "rotated", "session": "chat", "new": "other", "reason": "compression"},
    {"kind": "ended", "session": "other", "reason": "completed"},
    {"kind": "bye"},
)


def seeds() -> list[bytes]:
    payloads = [records.pack(dict(record)) for record in _RECORDS]
    payloads += [records.pack_delta("chat", "some words"), records.pack(_long())]
    file = b"".join(frames.encode(number, payload) for number, payload in enumerate(payloads))
    hello = frames.encode(frames.HANDSHAKE, payloads[0])
    held = hello.ljust(ring.HEAD, b"\0") + file[len(hello) :].ljust(512, b"\0")
    choices = [bytes((seed * n) % 251 for n in range(1, 400)) for seed in (3, 7, 31, 97)]
    return [*payloads, file, file[:-3], held.ljust(ring.HEAD + 4096, b"\0"), *choices]


def _long() -> dict[str, object]:
    message = {"role": "assistant", "content": "long " * 400}
    return {"kind": "message", "session": "chat", "uid": "u2", "message": message}
