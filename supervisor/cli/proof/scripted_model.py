"""A model on loopback that says what the prompt asks for, in the APIs that agents speak.

The last line of the last user message is the script:

    WORDS n           n words, w000 to wNNN, one piece each, in lines of ten
    CALL command      a call of the agent's shell tool, then, with its result, the word "done"
    anything else     "ok": agents also ask for titles and the like

After `held_at` words the stream waits until somebody opens the gate, so that the agent can be
killed at a place that is known, without a clock.
"""

from __future__ import annotations

import http.server
import json
import re
import socketserver
import threading
import time
from collections.abc import Iterator
from typing import Any

WORD = re.compile(r"w\d{3}")
_SHELL_TOOLS = (
    "Bash", "shell", "exec_command", "run_shell_command", "bash", "local_shell", "terminal"
)  # fmt: skip


def words(count: int) -> Iterator[str]:
    for number in range(count):
        yield f"w{number:03d}" + ("\n\n" if number % 10 == 9 else " ")


class ScriptedModel:
    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.held_at = 10**9
        self.pace = 0.02
        self.thought = ""
        """What it thinks before it speaks, in the APIs that show it."""
        self.preface = ""
        """What it says before it calls a tool, in the same."""
        self.delay = 0.0
        """Seconds until the first word of a reply."""
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.only_with_tools = False
        """A request without tools is for a title or the like, and gets "ok"."""
        self.sent = 0
        """Of the reply that spoke last."""
        self.spoken = 0
        """Of all."""
        self._stopped = False
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
                    model._answer(self, body)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            def do_GET(self) -> None:
                model.requests.append((self.path, {}))
                _send_json(self, {"data": [], "models": []})

            do_HEAD = do_GET

            def log_message(self, *_: object) -> None:
                pass

        class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
            daemon_threads = True

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def hold_after(self, count: int) -> None:
        """Stop streaming after so many words until `gate` is set; after -1, before it answers."""
        self.held_at = count
        self.gate.clear()

    def go_on_until(self, count: int) -> None:
        """Let what is held go on, and hold it again after so many words."""
        self.held_at = count
        self.gate.set()
        self.gate.clear()

    def close(self) -> None:
        self._stopped = True
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()

    # -- what to say ---------------------------------------------------------------------------

    def _answer(self, handler: http.server.BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        path = handler.path.partition("?")[0]
        if path.endswith("/messages"):
            _Anthropic(self, handler, body).answer()
        elif path.endswith("/responses"):
            _Responses(self, handler, body).answer()
        elif path.endswith("/chat/completions"):
            _Chat(self, handler, body).answer()
        elif "generateContent" in path.partition(":")[2] or "GenerateContent" in path:
            _Gemini(self, handler, body).answer()
        elif "count_tokens" in path or "countTokens" in path:
            _send_json(handler, {"input_tokens": 1, "totalTokens": 1})
        else:
            _send_json(handler, {})

    def pieces(self, text: str) -> Iterator[str]:
        """A reply, piece by piece, as the script asks."""
        found = re.search(r"WORDS (\d+)", text)
        if found is None:
            yield "ok"
            return
        time.sleep(self.delay)
        for number, word in enumerate(words(int(found[1]))):
            if number == self.held_at:
                self.gate.wait(120)
            if self._stopped:
                return
            time.sleep(self.pace)
            self.sent = number + 1
            self.spoken += 1
            yield word


class _Api:
    """One request."""

    def __init__(
        self,
        model: ScriptedModel,
        handler: http.server.BaseHTTPRequestHandler,
        body: dict[str, Any],
    ) -> None:
        self.model, self.handler, self.body = model, handler, body

    def answer(self) -> None:
        text, has_result = self.asked()
        if self.model.only_with_tools and not self.body.get("tools"):
            text = ""
        if self.model.held_at < 0 and re.search("WORDS|CALL", text):
            self.model.gate.wait(120)
        tool = self.tool()
        command = re.search(r"CALL (.+)", text)
        if command is not None and tool is not None and not has_result:
            self.call(tool, command[1].strip().strip('"'))  # opencode adds quotes
        elif command is not None and has_result:
            self.say(iter(["done"]))
        else:
            self.say(self.model.pieces(text))

    def asked(self) -> tuple[str, bool]:
        """The script, and whether a tool's result came after it."""
        raise NotImplementedError

    def tool(self) -> tuple[str, dict[str, Any]] | None:
        """The agent's shell tool and the schema of its arguments."""
        raise NotImplementedError

    def say(self, pieces: Iterator[str]) -> None:
        raise NotImplementedError

    def call(self, tool: tuple[str, dict[str, Any]], command: str) -> None:
        raise NotImplementedError

    def begin(self) -> None:
        self.handler.send_response(200)
        self.handler.send_header("Content-Type", "text/event-stream")
        self.handler.send_header("Connection", "close")
        self.handler.close_connection = True
        self.handler.end_headers()

    def event(self, data: dict[str, Any], name: str = "") -> None:
        head = f"event: {name}\n" if name else ""
        self.handler.wfile.write(f"{head}data: {json.dumps(data)}\n\n".encode())
        self.handler.wfile.flush()


class _Anthropic(_Api):
    def asked(self) -> tuple[str, bool]:
        text, result = "", False
        for message in self.body.get("messages", []):
            content = message.get("content")
            blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
            for block in blocks or []:
                if message.get("role") != "user":
                    continue
                if block.get("type") == "tool_result":
                    result = True
                elif re.search("WORDS|CALL", said := str(block.get("text", ""))):
                    text, result = said, False
        return text, result

    def tool(self) -> tuple[str, dict[str, Any]] | None:
        for tool in self.body.get("tools") or []:
            if tool.get("name") in _SHELL_TOOLS:
                return tool["name"], tool.get("input_schema") or {}
        return None

    def _start(self) -> None:
        if not self.body.get("stream"):
            return
        self.begin()
        message: dict[str, Any] = {
            "id": f"msg_{id(self)}", "type": "message", "role": "assistant", "content": [],
            "model": self.body.get("model"), "stop_reason": None, "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }  # fmt: skip
        self.event({"type": "message_start", "message": message}, "message_start")

    def _block(self, index: int, block: dict[str, Any], deltas: Iterator[dict[str, Any]]) -> None:
        start = {"type": "content_block_start", "index": index, "content_block": block}
        self.event(start, "content_block_start")
        for delta in deltas:
            one = {"type": "content_block_delta", "index": index, "delta": delta}
            self.event(one, "content_block_delta")
        self.event({"type": "content_block_stop", "index": index}, "content_block_stop")

    def _end(self, reason: str) -> None:
        delta = {"stop_reason": reason, "stop_sequence": None}
        last = {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 9}}
        self.event(last, "message_delta")
        self.event({"type": "message_stop"}, "message_stop")

    def say(self, pieces: Iterator[str]) -> None:
        if not self.body.get("stream"):
            content = [{"type": "text", "text": "".join(pieces)}]
            _send_json(self.handler, {
                "id": "msg_1", "type": "message", "role": "assistant", "content": content,
                "model": self.body.get("model"), "stop_reason": "end_turn",
                "usage": {"input_tokens": 1, "output_tokens": 1},
            })  # fmt: skip
            return
        self._start()
        index = 0
        if self.model.thought:
            thought = [{"type": "thinking_delta", "thinking": self.model.thought},
                       {"type": "signature_delta", "signature": "signed"}]  # fmt: skip
            self._block(0, {"type": "thinking", "thinking": "", "signature": ""}, iter(thought))
            index = 1
        deltas = ({"type": "text_delta", "text": piece} for piece in pieces)
        self._block(index, {"type": "text", "text": ""}, deltas)
        self._end("end_turn")

    def call(self, tool: tuple[str, dict[str, Any]], command: str) -> None:
        self._start()
        index = 0
        if self.model.preface:
            said = {"type": "text_delta", "text": self.model.preface}
            self._block(0, {"type": "text", "text": ""}, iter([said]))
            index = 1
        given = json.dumps({"command": command, "description": "run it"})
        block = {"type": "tool_use", "id": f"toolu_{id(self)}", "name": tool[0], "input": {}}
        self._block(index, block, iter([{"type": "input_json_delta", "partial_json": given}]))
        self._end("tool_use")


class _Responses(_Api):
    def asked(self) -> tuple[str, bool]:
        text, result = "", False
        items = self.body.get("input") or []
        for item in [items] if isinstance(items, str) else items:
            if isinstance(item, str):
                text, result = item, False
            elif str(item.get("type", "")).endswith("_output"):
                result = True
            elif item.get("role") == "user":
                content = item.get("content")
                parts = [{"text": content}] if isinstance(content, str) else content or []
                said = "\n".join(str(part.get("text", "")) for part in parts)
                if re.search("WORDS|CALL", said):
                    text, result = said, False
        return text, result

    def tool(self) -> tuple[str, dict[str, Any]] | None:
        for tool in self.body.get("tools") or []:
            if tool.get("name") in _SHELL_TOOLS:
                return tool["name"], tool.get("parameters") or {}
        return None

    def _response(self, output: list[dict[str, Any]], status: str) -> dict[str, Any]:
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2,
                 "input_tokens_details": {"cached_tokens": 0},
                 "output_tokens_details": {"reasoning_tokens": 0}}  # fmt: skip
        return {"id": f"resp_{id(self)}", "object": "response", "created_at": int(time.time()),
                "model": self.body.get("model"), "output": output, "status": status,
                "usage": usage if status == "completed" else None}  # fmt: skip

    def _emit(self, kind: str, **more: Any) -> None:
        self.event({"type": kind, **more}, kind)

    def say(self, pieces: Iterator[str]) -> None:
        self.begin()
        self._emit("response.created", response=self._response([], "in_progress"))
        if self.model.thought:
            thinks = {"item_id": f"rs_{id(self)}", "output_index": 0, "summary_index": 0}
            kind = "response.reasoning_summary_text.delta"
            self._emit(kind, **thinks, delta=self.model.thought, sequence_number=1)
        item: dict[str, Any] = {"id": f"msg_{id(self)}", "type": "message", "role": "assistant",
                                "status": "in_progress", "content": []}  # fmt: skip
        self._emit("response.output_item.added", output_index=0, item=item)
        part = {"type": "output_text", "text": "", "annotations": []}
        place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
        self._emit("response.content_part.added", **place, part=part)
        said = ""
        for piece in pieces:
            said += piece
            self._emit("response.output_text.delta", **place, delta=piece)
        part = {**part, "text": said}
        self._emit("response.output_text.done", **place, text=said)
        self._emit("response.content_part.done", **place, part=part)
        item = {**item, "status": "completed", "content": [part]}
        self._emit("response.output_item.done", output_index=0, item=item)
        self._emit("response.completed", response=self._response([item], "completed"))

    def call(self, tool: tuple[str, dict[str, Any]], command: str) -> None:
        self.begin()
        self._emit("response.created", response=self._response([], "in_progress"))
        fields = tool[1].get("properties") or {}
        name = "cmd" if "cmd" in fields else "command"
        value: Any = (
            ["sh", "-c", command] if fields.get(name, {}).get("type") == "array" else command
        )
        given = {name: value}
        if "yield_time_ms" in fields:
            given["yield_time_ms"] = 600_000  # or else it goes on while the tool still runs
        item = {
            "id": f"fc_{id(self)}", "type": "function_call", "call_id": f"call_{id(self)}",
            "name": tool[0], "arguments": json.dumps(given), "status": "completed",
        }  # fmt: skip
        output: list[dict[str, Any]] = []
        if self.model.preface:
            part = {"type": "output_text", "text": self.model.preface, "annotations": []}
            said = {"id": f"msg_{id(self)}", "type": "message", "role": "assistant",
                    "status": "completed", "content": [part]}  # fmt: skip
            place = {"item_id": said["id"], "output_index": 0, "content_index": 0}
            self._emit("response.output_item.added", output_index=0, item={**said, "content": []})
            empty = {**part, "text": ""}
            self._emit("response.content_part.added", **place, part=empty)
            self._emit("response.output_text.delta", **place, delta=self.model.preface)
            self._emit("response.output_item.done", output_index=0, item=said)
            output.append(said)
        output.append(item)
        self._emit("response.output_item.added", output_index=len(output) - 1, item=item)
        self._emit("response.output_item.done", output_index=len(output) - 1, item=item)
        self._emit("response.completed", response=self._response(output, "completed"))


class _Chat(_Api):
    def asked(self) -> tuple[str, bool]:
        text, result = "", False
        for message in self.body.get("messages", []):
            if message.get("role") == "tool":
                result = True
            elif message.get("role") == "user":
                content = message.get("content")
                parts = [{"text": content}] if isinstance(content, str) else content or []
                said = "\n".join(str(part.get("text", "")) for part in parts)
                if re.search("WORDS|CALL", said):
                    text, result = said, False
        return text, result

    def tool(self) -> tuple[str, dict[str, Any]] | None:
        for tool in self.body.get("tools") or []:
            function = tool.get("function") or {}
            if function.get("name") in _SHELL_TOOLS:
                return function["name"], function.get("parameters") or {}
        return None

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {"id": f"chat_{id(self)}", "object": "chat.completion.chunk",
                "created": int(time.time()), "model": self.body.get("model"),
                "choices": [choice]}  # fmt: skip

    def say(self, pieces: Iterator[str]) -> None:
        if not self.body.get("stream"):
            choice = {"index": 0, "finish_reason": "stop",
                      "message": {"role": "assistant", "content": "".join(pieces)}}  # fmt: skip
            _send_json(self.handler, {**self._chunk({}), "object": "chat.completion",
                                      "choices": [choice]})  # fmt: skip
            return
        self.begin()
        self.event(self._chunk({"role": "assistant", "content": ""}))
        for piece in pieces:
            self.event(self._chunk({"content": piece}))
        self.event(self._chunk({}, "stop"))
        self.handler.wfile.write(b"data: [DONE]\n\n")

    def call(self, tool: tuple[str, dict[str, Any]], command: str) -> None:
        self.begin()
        given = json.dumps({"command": command, "description": "run it"})
        function = {"name": tool[0], "arguments": given}
        made = [{"index": 0, "id": f"call_{id(self)}", "type": "function", "function": function}]
        self.event(self._chunk({"role": "assistant", "tool_calls": made}))
        self.event(self._chunk({}, "tool_calls"))
        self.handler.wfile.write(b"data: [DONE]\n\n")


class _Gemini(_Api):
    def asked(self) -> tuple[str, bool]:
        text, result = "", False
        for content in self.body.get("contents") or []:
            for part in content.get("parts") or []:
                if "functionResponse" in part:
                    result = True
                    continue
                said = str(part.get("text", ""))
                if content.get("role") == "user" and re.search("WORDS|CALL", said):
                    text, result = said, False
        return text, result

    def tool(self) -> tuple[str, dict[str, Any]] | None:
        for tool in self.body.get("tools") or []:
            for function in tool.get("functionDeclarations") or []:
                if function.get("name") in _SHELL_TOOLS:
                    return function["name"], function.get("parameters") or {}
        return None

    def _chunk(self, parts: list[dict[str, Any]], finish: str | None = None) -> dict[str, Any]:
        candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
        if finish:
            candidate["finishReason"] = finish
        usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
        return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-test"}

    def say(self, pieces: Iterator[str]) -> None:
        if "stream" not in self.handler.path:
            _send_json(self.handler, self._chunk([{"text": "".join(pieces)}], "STOP"))
            return
        self.begin()
        for piece in pieces:
            self.event(self._chunk([{"text": piece}]))
        self.event(self._chunk([], "STOP"))

    def call(self, tool: tuple[str, dict[str, Any]], command: str) -> None:
        made = {"functionCall": {"name": tool[0], "args": {"command": command}}}
        if "stream" not in self.handler.path:
            _send_json(self.handler, self._chunk([made], "STOP"))
            return
        self.begin()
        self.event(self._chunk([made], "STOP"))


def _send_json(handler: http.server.BaseHTTPRequestHandler, value: dict[str, Any]) -> None:
    data = json.dumps(value).encode()
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(data)
