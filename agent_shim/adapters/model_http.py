"""Taps below the model SDKs: httpx, which `openai`, `anthropic` and others use.

Keeps only the messages of a request: no header, no key, no address. Never looks at a request that
is not for a model; such a request is recognised by its path and its body. If nobody wants the
result, nothing is looked at.

    Client.send, AsyncClient.send               a request, before it is sent
    Response.iter_bytes, Response.aiter_bytes   what comes back, before the SDK has it
"""

from __future__ import annotations

import functools
import weakref

from ...ipc import jsontext
from . import floor
from .model_messages import Answer, asked, continued
from .taps import argument, quietly, replace, with_before

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from types import ModuleType
    from typing import Any

    from .taps import Arguments, Named

_PATHS = ("/chat/completions", "/messages", "/responses")
# Bytes of an answer that comes in one piece; a longer answer is not parsed.
_LONGEST = 16 * 1024 * 1024

_exchanges: weakref.WeakKeyDictionary[Any, _Exchange] = weakref.WeakKeyDictionary()


class _Exchange:
    """A request to a model, and its answer."""

    def __init__(self, reply: floor.Reply) -> None:
        self._reply = reply
        self._answer = Answer()
        self._rest = b""
        self._streams: bool | None = None

    def came(self, response: Any, data: bytes) -> None:
        if self._streams is None:
            self._streams = "event-stream" in response.headers.get("content-type", "")
        if response.status_code != 200 or len(self._rest) > _LONGEST:
            return
        self._rest += data
        if self._streams:
            *lines, self._rest = self._rest.split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    self._event(line[5:].strip())

    def _event(self, data: bytes) -> None:
        if data != b"[DONE]":
            # An event that is not understood must not lose the next one.
            quietly(self._understand, data)
        self._tell()
        if self._answer.complete:
            self._reply.complete(self._answer.message)

    def _understand(self, data: bytes) -> None:
        self._answer.event(jsontext.loads(data.decode()))

    def over(self) -> None:
        if self._streams is False and self._rest:
            self._answer.whole(jsontext.loads(self._rest.decode()))
        self._rest = b""
        self._tell()
        self._reply.over(self._answer.message if self._answer.complete else None)

    def _tell(self) -> None:
        if self._answer.id is not None:
            id, self._answer.id = self._answer.id, None
            self._reply.named(id)
        pieces, self._answer.pieces = self._answer.pieces, []
        for reasoning, text in pieces:
            self._reply.piece(text, reasoning=reasoning)


def loaded(module: ModuleType) -> None:
    """httpx has been imported."""
    floor.begin()
    for name in ("Client", "AsyncClient"):
        replace(getattr(module, name), "send", functools.partial(with_before, _is_sent))
    replace(module.Response, "iter_bytes", _watched)
    replace(module.Response, "aiter_bytes", _watched_async)


def _is_sent(client: Any, args: Arguments, named: Named) -> None:
    if not floor.is_wanted():
        return
    request = argument(args, named, 0, "request")
    if request.method != "POST" or not request.url.path.rstrip("/").endswith(_PATHS):
        return
    body = jsontext.loads(request.content.decode())
    if not isinstance(body, dict):
        return
    messages = asked(body)
    after, kept_as = continued(body)
    if messages or floor.is_known(after):
        lasting = bool(body.get("stream") or body.get("tools"))
        reply = floor.asked(messages, lasting=lasting, after=after, kept_as=kept_as)
        if reply is not None:
            _exchanges[request] = _Exchange(reply)


def _exchange_of(response: Any) -> _Exchange | None:
    return _exchanges.get(response.request)


def _watched(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def iter_bytes(self: Any, /, *args: Any, **named: Any) -> Iterator[bytes]:
        exchange = quietly(_exchange_of, self) if _exchanges else None
        source: Iterator[bytes] = original(self, *args, **named)
        return source if exchange is None else relayed(self, exchange, source)

    def relayed(self: Any, exchange: _Exchange, source: Any) -> Iterator[bytes]:
        try:
            for data in source:
                quietly(exchange.came, self, data)
                yield data
        finally:
            quietly(exchange.over)
            source.close()

    return iter_bytes


def _watched_async(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def aiter_bytes(self: Any, /, *args: Any, **named: Any) -> AsyncIterator[bytes]:
        exchange = quietly(_exchange_of, self) if _exchanges else None
        source: AsyncIterator[bytes] = original(self, *args, **named)
        return source if exchange is None else relayed(self, exchange, source)

    async def relayed(self: Any, exchange: _Exchange, source: Any) -> AsyncIterator[bytes]:
        try:
            async for data in source:
                quietly(exchange.came, self, data)
                yield data
        finally:
            quietly(exchange.over)
            await source.aclose()

    return aiter_bytes
