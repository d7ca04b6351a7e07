"""Requests to a model and its answers: the three forms of the providers become one form.

Never does I/O, and keeps only the messages of a request.

    chat completions    `messages`; chunks with `choices[0].delta`
    Anthropic messages  `messages` of content blocks; events `content_block_delta` and others
    OpenAI responses    `input`; events `response.output_text.delta` and others

The one form is a chat completion's message: role, content, tool_calls, tool_call_id.
"""

from __future__ import annotations

from ...ipc import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Message = dict[str, Any]

_TEXT = ("text", "input_text", "output_text")
_PICTURE = ("image", "image_url", "input_image")
_REASONING = ("response.reasoning_text.delta", "response.reasoning_summary_text.delta")


def asked(body: dict[str, Any]) -> list[Message]:
    """The messages of a request, without system messages."""
    given = body.get("messages")
    if given is None:
        given = body.get("input")
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    found: list[Message] = []
    for item in given if isinstance(given, list) else ():
        if isinstance(item, dict):
            found += _from_item(item)
    found = [message for message in found if message["role"] in ("user", "assistant", "tool")]
    return found if "messages" in body else _joined(found)


def continued(body: dict[str, Any]) -> tuple[str | None, str | None]:
    """What a request of the Responses API continues, if it carries only what is new: the id of an
    earlier response, or of a conversation. And the id of the conversation that the provider adds
    both request and answer to."""
    previous, conversation = body.get("previous_response_id"), body.get("conversation")
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
    kept_as = conversation if isinstance(conversation, str) else None
    return (previous if isinstance(previous, str) else kept_as), kept_as


def _joined(items: list[Message]) -> list[Message]:
    """In the Responses API, one answer is several items: the text, and each call."""
    found: list[Message] = []
    for item in items:
        if found and item["role"] == found[-1]["role"] == "assistant":
            before = found.pop()
            parts = [str(part["content"]) for part in (before, item) if part["content"]]
            calls = [*before.get("tool_calls", ()), *item.get("tool_calls", ())]
            item = {"role": "assistant", "content": "".join(parts) or None}
            if calls:
                item["tool_calls"] = calls
        found.append(item)
    return found


def _from_item(item: dict[str, Any]) -> list[Message]:
    kind, content = item.get("type"), item.get("content")
    if kind == "function_call":
        call = _call(item.get("call_id"), item.get("name"), item.get("arguments"))
        return [{"role": "assistant", "content": None, "tool_calls": [call]}]
    if kind == "function_call_output":
        return [_answer(item.get("call_id"), item.get("output"))]
    if not isinstance(item.get("role"), str):
        return []
    parts = content if isinstance(content, list) else []
    blocks = [part for part in parts if isinstance(part, dict)]
    answers = [
        _answer(block.get("tool_use_id"), _text(block.get("content")))
        for block in blocks
        if block.get("type") == "tool_result"
    ]
    message: Message = {"role": item["role"], "content": _text(content)}
    calls = item.get("tool_calls") or [
        _call(block.get("id"), block.get("name"), jsontext.dumps(block.get("input") or {}))
        for block in blocks
        if block.get("type") == "tool_use"
    ]
    if calls:
        message["tool_calls"] = calls
    if item["role"] == "tool":
        message["tool_call_id"] = item.get("tool_call_id")
    if answers and not message["content"]:
        return answers
    return [*answers, message]


def _text(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    parts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in _TEXT:
            parts.append(str(part.get("text", "")))
        elif kind in _PICTURE:
            parts.append("[screenshot]")
    return "\n".join(parts) if parts else None


def _call(id: object, name: object, arguments: object) -> dict[str, Any]:
    function = {"name": str(name or "tool"), "arguments": str(arguments or "{}")}
    return {"id": str(id), "type": "function", "function": function}


def _answer(id: object, content: object) -> Message:
    return {"role": "tool", "content": content, "tool_call_id": str(id)}


def call_ids(message: Message) -> tuple[str, ...]:
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return ()
    return tuple(str(call.get("id")) for call in calls if isinstance(call, dict))


class Answer:
    """A reply, put together from its pieces."""

    def __init__(self) -> None:
        self.pieces: list[tuple[bool, str]] = []
        """What is new since somebody took it: whether it is reasoning, and the text."""
        self.text = ""
        self.complete = False
        self.id: str | None = None
        """By which a later request may refer to it (Responses), until somebody took it."""
        self._calls: dict[object, dict[str, Any]] = {}

    @property
    def message(self) -> Message:
        made: Message = {"role": "assistant", "content": self.text or None}
        calls = [
            _call(call["id"], call["name"], call["arguments"]) for call in self._calls.values()
        ]
        if calls:
            made["tool_calls"] = calls
        return made

    def event(self, event: Any) -> None:
        """An event of a stream."""
        if not isinstance(event, dict):
            return
        kind = event.get("type")
        if isinstance(event.get("choices"), list):
            for choice in event["choices"][:1]:
                self._delta(choice.get("delta") or {})
                self.complete |= choice.get("finish_reason") is not None
        elif kind == "content_block_start":
            self._block(event.get("index"), event.get("content_block") or {})
        elif kind == "content_block_delta":
            self._block_delta(event.get("index"), event.get("delta") or {})
        elif kind == "response.output_text.delta":
            self._piece(event.get("delta"))
        elif kind in _REASONING:
            self._piece(event.get("delta"), reasoning=True)
        elif kind == "response.output_item.done":
            self._item(event.get("item") or {})
        elif kind == "response.created":
            self._named(event.get("response"))
        elif kind in ("message_stop", "response.completed", "response.incomplete"):
            self.complete = True

    def whole(self, body: Any) -> None:
        """A reply that came in one piece."""
        if not isinstance(body, dict):
            return
        if isinstance(body.get("choices"), list):
            for choice in body["choices"][:1]:
                self._delta(choice.get("message") or {})
                self.complete = True
        elif isinstance(body.get("content"), list):
            for index, block in enumerate(body["content"]):
                self._block(index, block)
                if block.get("type") == "tool_use":
                    self._calls[index]["arguments"] = jsontext.dumps(block.get("input") or {})
            self.complete = True
        elif isinstance(body.get("output"), list):
            self._named(body)
            for item in body["output"]:
                self._item(item)
                for part in item.get("content") or () if item.get("type") == "message" else ():
                    self._piece(part.get("text"))
            self.complete = True

    def _named(self, response: object) -> None:
        id = response.get("id") if isinstance(response, dict) else None
        self.id = id if isinstance(id, str) else None

    def _delta(self, delta: dict[str, Any]) -> None:
        self._piece(delta.get("reasoning_content") or delta.get("reasoning"), reasoning=True)
        self._piece(delta.get("content"))
        for place, call in enumerate(delta.get("tool_calls") or ()):
            function = call.get("function") or {}
            known = self._begin(call.get("index", place), call.get("id"), function.get("name"))
            known["arguments"] += function.get("arguments") or ""

    def _block(self, index: object, block: dict[str, Any]) -> None:
        if block.get("type") == "tool_use":
            self._begin(index, block.get("id"), block.get("name"))
        self._piece(block.get("text"))
        self._piece(block.get("thinking"), reasoning=True)

    def _block_delta(self, index: object, delta: dict[str, Any]) -> None:
        self._piece(delta.get("text"))
        self._piece(delta.get("thinking"), reasoning=True)
        if index in self._calls:
            self._calls[index]["arguments"] += delta.get("partial_json") or ""

    def _item(self, item: dict[str, Any]) -> None:
        if item.get("type") == "function_call":
            known = self._begin(item.get("call_id"), item.get("call_id"), item.get("name"))
            known["arguments"] = item.get("arguments") or ""

    def _begin(self, index: object, id: object, name: object) -> dict[str, Any]:
        known = self._calls.setdefault(index, {"id": None, "name": None, "arguments": ""})
        known["id"] = id or known["id"]
        known["name"] = name or known["name"]
        return known

    def _piece(self, text: object, *, reasoning: bool = False) -> None:
        if isinstance(text, str) and text:
            self.pieces.append((reasoning, text))
            if not reasoning:
                self.text += text
