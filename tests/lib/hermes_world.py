"""A scripted model on loopback, and real Hermes releases that talk to it.

The model stops where its script says "hold", so that a test can kill at exactly that word;
it goes on when the test releases it. Where it says "passed", the test is told, and it goes on. It
keeps what Hermes sent.
"""

from __future__ import annotations

import http.server
import json
import os
import socketserver
import threading
import time
from pathlib import Path
from typing import Any

from support import DEADLINE, World

ROOT = Path(__file__).parents[2]

Step = tuple[str, Any]


def say(text: str) -> list[Step]:
    """A streamed text, word by word."""
    return [("text", word + " ") for word in text.split(" ")]


def call(name: str, arguments: dict[str, Any], id: str) -> Step:
    return "call", (id, name, json.dumps(arguments))


class Model:
    """An OpenAI-compatible server that follows a script: one list of steps an answer."""

    def __init__(self) -> None:
        self.script: list[list[Step]] = []
        self.requests: list[dict[str, Any]] = []
        self._held: dict[str, threading.Event] = {}
        self._go: dict[str, threading.Event] = {}
        model = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None:
                pass

            def do_GET(self) -> None:
                self._json({"object": "list", "data": [{"id": "scripted", "object": "model"}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
                try:
                    model._answer(self, body)
                except (BrokenPipeError, ConnectionResetError):
                    pass  # the agent was killed in the middle: that is what we are here for

            def _json(self, value: object) -> None:
                data = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def configuration(self) -> str:
        """What Hermes' config.yaml says of it."""
        return (
            "model:\n  default: scripted\n  provider: custom\n"
            f"  base_url: http://127.0.0.1:{self.port}/v1\n  api_key: none\n"
        )

    def close(self) -> None:
        for event in self._go.values():
            event.set()
        self._server.shutdown()
        self._server.server_close()

    def wait_until_held(self, name: str = "here") -> None:
        """Wait until everything before this hold has been sent."""
        assert self._event(self._held, name).wait(DEADLINE * 5), f"never came to hold {name!r}"

    def release(self, name: str = "here") -> None:
        self._event(self._go, name).set()

    @staticmethod
    def _event(events: dict[str, threading.Event], name: str) -> threading.Event:
        return events.setdefault(name, threading.Event())

    def _steps(self, body: dict[str, Any]) -> list[Step]:
        # Titles and the like are asked for without tools: not a part of the script.
        if not body.get("tools"):
            return say("An aside")
        self.requests.append(body)
        return self.script.pop(0) if self.script else say("All done")

    def _hold(self, name: str) -> None:
        self._event(self._held, name).set()
        self._event(self._go, name).wait(300)

    def _answer(self, handler: Any, body: dict[str, Any]) -> None:
        steps = self._steps(body)
        if not body.get("stream"):
            for kind, what in steps:
                if kind == "hold":
                    self._hold(what)
            text = "".join(str(what) for kind, what in steps if kind == "text")
            message = {"role": "assistant", "content": text}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            handler._json({"id": "1", "object": "chat.completion", "model": "scripted",
                           "choices": [choice],
                           "usage": {"prompt_tokens": 1, "completion_tokens": 1,
                                     "total_tokens": 2}})  # fmt: skip
            return
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Connection", "close")
        handler.end_headers()
        calls = 0
        for kind, what in steps:
            if kind == "hold":
                self._hold(what)
            elif kind == "text":
                self._chunk(handler, {"content": what})
            elif kind == "pause":
                time.sleep(what)
            elif kind == "passed":
                self._event(self._held, what).set()
            elif kind == "reasoning":
                self._chunk(handler, {"reasoning_content": what})
            elif kind == "call":
                id, name, arguments = what
                function = {"name": name, "arguments": arguments}
                made = {"index": calls, "id": id, "type": "function", "function": function}
                self._chunk(handler, {"tool_calls": [made]})
                calls += 1
        used = next((what for kind, what in steps if kind == "usage"), None)
        self._chunk(handler, {}, "tool_calls" if calls else "stop", used)
        handler.wfile.write(b"data: [DONE]\n\n")
        handler.close_connection = True

    @staticmethod
    def _chunk(
        handler: Any, delta: dict[str, Any], finish: str | None = None, used: int | None = None
    ) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "scripted",
                 "choices": [choice]}  # fmt: skip
        if used is not None:
            chunk["usage"] = {"prompt_tokens": used, "completion_tokens": 1, "total_tokens": used}
        handler.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        handler.wfile.flush()


class Hermes:
    """A Hermes set up for a test: a release in a virtual environment of its own, or the one that
    a path names."""

    def __init__(self, version: str, world: World, model: Model) -> None:
        self.version = version
        self.world = world
        self.model = model
        if "/" in version:
            self.command = os.path.abspath(version)
            self.folder = Path(self.command).parents[1].resolve()
        else:
            # The interpreter's own idea of where it is, also where a checkout only links to it.
            self.folder = (ROOT / f".venv-hermes-{version}").resolve()
            self.command = str(self.folder / "bin" / "hermes")
        self.python = str(self.folder / "bin" / "python")
        assert Path(self.command).exists(), f"{self.command} is missing; `make test` installs it"
        world.home.mkdir(exist_ok=True)
        self.configure("")
        for name in list(world.env):
            if name.startswith(("OPENAI", "ANTHROPIC", "OPENROUTER")):
                del world.env[name]
        world.env["PATH"] = f"{self.folder / 'bin'}:{world.env['PATH']}"

    def configure(self, more: str) -> None:
        """Write config.yaml: the scripted model, and `more`."""
        (self.world.home / "config.yaml").write_text(self.model.configuration + more)

    def plugin(self) -> Path:
        """Install a plugin that writes down which session hooks were called; its ledger."""
        ledger = self.world.folder / "plugin.jsonl"
        folder = self.world.home / "plugins" / "ledger"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "plugin.yaml").write_text("name: ledger\nversion: 1\ndescription: a ledger\n")
        (folder / "__init__.py").write_text(
            f"""
import json

def register(ctx):
    for name in ("on_session_end", "on_session_finalize"):
        def called(_name=name, **kw):
            with open({str(ledger)!r}, "a") as file:
                file.write(json.dumps([_name, kw], default=str) + "\\n")
        ctx.register_hook(name, called)
"""
        )
        self.configure("plugins:\n  enabled: [ledger]\n")
        return ledger
