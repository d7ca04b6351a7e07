"""A model on loopback that says what the prompt asks for, in the APIs that agents speak.

model_script.py has what a prompt may ask for, model_apis.py the APIs.
"""

from __future__ import annotations

import http.server
import json
import socketserver
import threading
from typing import Any

from . import model_apis
from .model_script import WORD, Script, words

__all__ = ["WORD", "ScriptedModel", "words"]


class ScriptedModel(Script):
    def __init__(self) -> None:
        super().__init__()
        self.requests: list[tuple[str, dict[str, Any]]] = []
        model = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                try:
                    body = json.loads(self.rfile.read(size) or b"{}")
                except ValueError:
                    body = {}
                model.requests.append((self.path, body))
                try:
                    model_apis.answer(model, self, body)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            def do_GET(self) -> None:
                model.requests.append((self.path, {}))
                model_apis.send_json(self, {"data": [], "models": []})

            do_HEAD = do_GET

            def log_message(self, *_: object) -> None:
                pass

        class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
            daemon_threads = True

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.stop()
        self._server.shutdown()
        self._server.server_close()
