"""Hermes itself: a streamed delta, a message and a whole turn, supervised and not."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from . import ground
from .stats import Summary, ratio, summary, target

_WORDS = 400


def measure(quick: bool) -> dict[str, Any]:
    if not ground.HERMES.exists():
        return {"title": "Hermes", "tables": [], "targets": [], "notes": [],
                "left_out": ["Hermes: not installed"]}  # fmt: skip
    rounds = 2 if quick else 4
    seen: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        with ground.world() as world:
            for _ in range(rounds):
                for supervised in (False, True):
                    program = ground.program("hermes_turn.py", ground.HERMES)
                    command = [*ground.SUPERVISE, "--", *program] if supervised else program
                    found = world.ask(command, address, 1000, 60, 3 if quick else 6)
                    assert found["supervised"] is supervised, found
                    seen[supervised].append(found)
    finally:
        server.shutdown()

    def of(name: str, supervised: bool) -> list[float]:
        return [value for found in seen[supervised] for value in found[name]]

    names = {"delta": "a streamed delta, us", "append": "append_message of 2 KB, us",
             "turn": f"a turn of {_WORDS} words, ms"}  # fmt: skip
    rows: list[list[Any]] = []
    for name, words in names.items():
        plain, ours = of(name, False), of(name, True)
        rows.append([words, summary(plain), summary(ours), ratio(ours, plain)])

    def added(name: str) -> float:
        return _median(summary(of(name, True))) - _median(summary(of(name, False)))

    append = _median(summary(of("append", False)))
    targets = [
        target("a delta adds, against append_message", added("delta") / append, 1 / 50, "x"),
        target("a message stored adds, against append_message", added("append") / append, 1 / 20,
               "x"),
    ]  # fmt: skip
    return {
        "title": "Hermes",
        "tables": [{"columns": ["", "alone", "supervised", "ratio"], "rows": rows}],
        "targets": targets,
        "left_out": [],
        "notes": ["Hermes 0.19.0, unmodified, one process with and one without a supervisor in "
                  "turns; the model is a server on loopback that streams word by word."],
    }  # fmt: skip


def _median(found: Summary) -> float:
    return found["median"]


class _Model(BaseHTTPRequestHandler):
    """As much of an OpenAI-compatible service as a turn needs."""

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
