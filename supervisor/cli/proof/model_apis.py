"""The APIs that agents speak with a model, as far as the scripted model needs them.

Never decides what is said: the script does (model_script.py).
"""

from __future__ import annotations

import http.server
import json
import re
import time
from collections.abc import Iterator
from typing import Any

from .model_script import Script

_SHELL_TOOLS = (
    "Bash", "shell", "exec_command", "run_shell_command", "bash", "local_shell", "terminal"
)  # fmt: skip


def answer(
    script: Script, handler: http.server.BaseHTTPRequestHandler, body: dict[str, Any]
) -> None:
    """Answer a request in the API that its path is of."""
    path = handler.path.partition("?")[0]
    if path.endswith("/messages"):
        Anthropic(script, handler, body).answer()
    elif path.endswith("/responses"):
        Responses(script, handler, body).answer()
    elif path.endswith("/chat/completions"):
        Chat(script, handler, body).answer()
    elif "generateContent" in path.partition(":")[2] or "GenerateContent" in path:
        Gemini(script, handler, body).answer()
    elif "count_tokens" in path or "countTokens" in path:
        send_json(handler, {"input_tokens": 1, "totalTokens": 1})
    else:
        send_json(handler, {})


class Api:
    """One request."""

    def __init__(
        self,
        script: Script,
        handler: http.server.BaseHTTPRequestHandler,
        body: dict[str, Any],
    ) -> None:
        self.script, self.handler, self.body = script, handler, body

    def answer(self) -> None:
        text, has_result = self.asked()
        if self.script.only_with_tools and not self.body.get("tools"):
            text = ""
        if self.script.held_at < 0 and re.search("WORDS|CALL", text):
            self.script.gate.wait(120)
        tool = self.tool()
        command = re.search(r"CALL (.+)", text)
        if command is not None and tool is not None and not has_result:
            self.call(tool, command[1].strip().strip('"'))  # opencode adds quotes
        elif command is not None and has_result:
            self.say(iter(["done"]))
        else:
            self.say(self.script.pieces(text))

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


class Anthropic(Api):
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
            event = {"type": "content_block_delta", "index": index, "delta": delta}
            self.event(event, "content_block_delta")
        self.event({"type": "content_block_stop", "index": index}, "content_block_stop")

    def _end(self, reason: str) -> None:
        delta = {"stop_reason": reason, "stop_sequence": None}
        last = {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 9}}
        self.event(last, "message_delta")
        self.event({"type": "message_stop"}, "message_stop")

    def say(self, pieces: Iterator[str]) -> None:
        if not self.body.get("stream"):
            content = [{"type": "text", "text": "".join(pieces)}]
            send_json(self.handler, {
                "id": "msg_1", "type": "message", "role": "assistant", "content": content,
                "model": self.body.get("model"), "stop_reason": "end_turn",
                "usage": {"input_tokens": 1, "output_tokens": 1},
            })  # fmt: skip
            return
        self._start()
        index = 0
        if self.script.thought:
            thought = [{"type": "thinking_delta", "thinking": self.script.thought},
                       {"type": "signature_delta", "signature": "signed"}]  # fmt: skip
            self._block(0, {"type": "thinking", "thinking": "", "signature": ""}, iter(thought))
            index = 1
        deltas = ({"type": "text_delta", "text": piece} for piece in pieces)
        self._block(index, {"type": "text", "text": ""}, deltas)
        self._end("end_turn")

    def call(self, tool: tuple[str, dict[str, Any]], command: str) -> None:
        self._start()
        index = 0
        if self.script.preface:
            said = {"type": "text_delta", "text": self.script.preface}
            self._block(0, {"type": "text", "text": ""}, iter([said]))
            index = 1
        given = json.dumps({"command": command, "description": "run it"})
        block = {"type": "tool_use", "id": f"toolu_{id(self)}", "name": tool[0], "input": {}}
        self._block(index, block, iter([{"type": "input_json_delta", "partial_json": given}]))
        self._end("tool_use")


class Responses(Api):
    def asked(self) -> tuple[str, bool]:
        text, result = "", False
        items = self.body.get("input") or []
        for item in [items] if isinstance(items, str) else items:
            if isinstance(item, str):
                text, result = item, False
            elif str(item.get("type", "")).endswith("_output"):
                result = True
            elif item.get("role") == "user":
                said = _text_of(item.get("content"))
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
        if self.script.thought:
            thinks = {"item_id": f"rs_{id(self)}", "output_index": 0, "summary_index": 0}
            kind = "response.reasoning_summary_text.delta"
            self._emit(kind, **thinks, delta=self.script.thought, sequence_number=1)
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
        if self.script.preface:
            part = {"type": "output_text", "text": self.script.preface, "annotations": []}
            said = {"id": f"msg_{id(self)}", "type": "message", "role": "assistant",
                    "status": "completed", "content": [part]}  # fmt: skip
            place = {"item_id": said["id"], "output_index": 0, "content_index": 0}
            self._emit("response.output_item.added", output_index=0, item={**said, "content": []})
            empty = {**part, "text": ""}
            self._emit("response.content_part.added", **place, part=empty)
            self._emit("response.output_text.delta", **place, delta=self.script.preface)
            self._emit("response.output_item.done", output_index=0, item=said)
            output.append(said)
        output.append(item)
        self._emit("response.output_item.added", output_index=len(output) - 1, item=item)
        self._emit("response.output_item.done", output_index=len(output) - 1, item=item)
        self._emit("response.completed", response=self._response(output, "completed"))


class Chat(Api):
    def asked(self) -> tuple[str, bool]:
        text, result = "", False
        for message in self.body.get("messages", []):
            if message.get("role") == "tool":
                result = True
            elif message.get("role") == "user":
                said = _text_of(message.get("content"))
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
            send_json(self.handler, {**self._chunk({}), "object": "chat.completion",
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


class Gemini(Api):
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
            send_json(self.handler, self._chunk([{"text": "".join(pieces)}], "STOP"))
            return
        self.begin()
        for piece in pieces:
            self.event(self._chunk([{"text": piece}]))
        self.event(self._chunk([], "STOP"))

    def call(self, tool: tuple[str, dict[str, Any]], command: str) -> None:
        made = {"functionCall": {"name": tool[0], "args": {"command": command}}}
        if "stream" not in self.handler.path:
            send_json(self.handler, self._chunk([made], "STOP"))
            return
        self.begin()
        self.event(self._chunk([made], "STOP"))


def _text_of(content: object) -> str:
    """The text of a message, which is a string or a list of parts."""
    parts = content if isinstance(content, list) else []
    return content if isinstance(content, str) else "\n".join(str(p.get("text", "")) for p in parts)


def send_json(handler: http.server.BaseHTTPRequestHandler, value: dict[str, Any]) -> None:
    data = json.dumps(value).encode()
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(data)
