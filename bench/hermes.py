"""Hermes itself: a streamed delta, a message and a whole turn, with and without our taps."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from . import environment
from .stats import ratio, summary, target

_WORDS = 400


def measure(quick: bool) -> dict[str, Any]:
    if not environment.HERMES.exists():
        return {"title": "Hermes", "tables": [], "targets": [], "notes": [],
                "left_out": ["Hermes: not installed"]}  # fmt: skip
    rounds = 1 if quick else 3
    seen: list[dict[str, Any]] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/v1"
    command = [
        *environment.SUPERVISE,
        "--",
        *environment.program("hermes_turn.py", environment.HERMES),
    ]
    try:
        with environment.world() as world:
            for _ in range(rounds):
                seen.append(world.ask(command, address, 6_000, 400, 14 if quick else 42))
    finally:
        server.shutdown()

    def compared(name: str, times: float) -> tuple[list[float], list[float]]:
        """The samples without our taps, and those with them."""
        both = [[took * times for sample in seen for took in sample[name][how]]
                for how in ("without", "with")]  # fmt: skip
        return both[0], both[1]

    delta, message = compared("delta", 10), compared("message", 1000)
    rows: list[list[Any]] = []
    for words, (without, tapped) in {
        "a streamed delta, us": delta,
        "a message of 2 KB stored, us": message,
        f"a turn of {_WORDS} words, ms": compared("turn", 1),
    }.items():
        added = _median(tapped) - _median(without)
        rows.append([words, summary(without), summary(tapped), ratio(tapped, without), added])
    share = rows[0][-1] / _median(message[0])
    return {
        "title": "Hermes",
        "tables": [{"columns": ["", "Hermes alone", "tapped", "ratio", "added"], "rows": rows}],
        "targets": [target("a delta adds, against a message stored", share, 1 / 50, "x")],
        "left_out": [],
        "notes": ["Hermes 0.19.0, unmodified and supervised; the model is a server on loopback "
                  "that streams word by word. Measured in one process, in turns with our taps and"
                  " with Hermes' own methods: two processes differ by more than the taps add."],
    }  # fmt: skip


def _median(samples: list[float]) -> float:
    return summary(samples)["median"]


class _Model(BaseHTTPRequestHandler):
    """The part of an OpenAI-compatible service that one turn needs."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(b'{"object":"list","data":[{"id":"scripted","object":"model"}]}', "json")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        chunk = (
            b'data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"scripted",'
            b'"choices":[{"index":0,"delta":{"content":"word "},"finish_reason":null}]}\n\n'
        )
        end = chunk.replace(b'{"content":"word "}', b"{}").replace(b"null", b'"stop"')
        self._answer(chunk * _WORDS + end + b"data: [DONE]\n\n", "event-stream")

    def _answer(self, data: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", f"{'text' if '-' in kind else 'application'}/{kind}")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
