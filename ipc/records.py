"""Records: what a frame's payload says. To and from bytes, and nothing else.

Never touches a socket, a file or a clock.

A record is a JSON object with a `kind`. A delta, a few characters of the reply being
streamed, has a compact form that needs no JSON:

    byte 0      "t" text, "r" reasoning
    byte 1, 2   length of the session id in bytes, little endian
    then        the session id, then the text, both UTF-8 (lone surrogates let through)

And a `message` with a long text has it behind the JSON, in which `content` is null then:

    byte 0      "m"
    byte 1 - 4  length of the JSON in bytes, little endian
    then        the JSON, then the text, UTF-8 (lone surrogates let through)

Unknown kinds and unknown fields are kept and ignored, so that an older supervisor serves
a newer shim and the other way round. `VERSION` moves only when that no longer suffices.
"""

from __future__ import annotations

from . import frames, jsontext

VERSION = 1
OLDEST = 1

_DELTAS = {b"t": "text", b"r": "reasoning"}

# By these a record is told from others: they are never cut, however long.
_NAMES = {"kind", "session", "uid"}
_LONG, _KEPT, _MARKER = 1024, 256, 96
# From so many characters on, to look for what has to be escaped takes longer than all the rest.
_BEHIND = 256


class BadRecord(ValueError):
    """A payload that is not a record, or one without what its kind needs."""


def pack(record: dict[str, object]) -> bytes:
    message = record.get("message")
    if isinstance(message, dict):
        text = message.get("content")
        if isinstance(text, str) and len(text) >= _BEHIND:
            return _pack_long({**record, "message": {**message, "content": None}}, text)
    return _as_json(record)


def _pack_long(record: dict[str, object], text: str) -> bytes:
    """A message whose text stands behind the JSON, as it is."""
    head = _as_json(record)
    return b"m" + len(head).to_bytes(4, "little") + head + text.encode("utf-8", "surrogatepass")


def _as_json(record: dict[str, object]) -> bytes:
    # ASCII escapes carry lone surrogates, which UTF-8 refuses.
    return jsontext.compact(record).encode("ascii")


def pack_delta(session: str, text: str, *, reasoning: bool = False) -> bytes:
    name = session.encode("utf-8", "surrogatepass")
    head = b"r" if reasoning else b"t"
    return head + len(name).to_bytes(2, "little") + name + text.encode("utf-8", "surrogatepass")


def unpack(payload: bytes) -> dict[str, object]:
    first = payload[:1]
    if first in _DELTAS:
        return _unpack_delta(payload, _DELTAS[first])
    if first == b"m":
        return _unpack_long(payload)
    if first != b"{":
        raise BadRecord("the payload is neither a JSON object nor a delta")
    try:
        record = jsontext.loads(payload.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"the payload is not JSON: {type(error).__name__}") from error
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        raise BadRecord("the record has no kind")
    return record


def _unpack_long(payload: bytes) -> dict[str, object]:
    stop = 5 + int.from_bytes(payload[1:5], "little")
    if len(payload) < stop or payload[5:6] != b"{":
        raise BadRecord("a long message shorter than its beginning")
    record = unpack(payload[5:stop])
    message = record.get("message")
    if not isinstance(message, dict):
        raise BadRecord("a long message that is none")
    try:
        message["content"] = payload[stop:].decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise BadRecord("a long message that is not UTF-8") from error
    return record


def _unpack_delta(payload: bytes, field: str) -> dict[str, object]:
    size = int.from_bytes(payload[1:3], "little")
    if len(payload) < 3 + size:
        raise BadRecord("a delta shorter than its session id")
    try:
        session = payload[3 : 3 + size].decode("utf-8", "surrogatepass")
        text = payload[3 + size :].decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise BadRecord("a delta that is not UTF-8") from error
    return {"kind": "delta", "session": session, field: text}


def fit(record: dict[str, object], limit: int = frames.LIMIT) -> bytes:
    """`pack`, with the longest texts cut, each with a marker, until it is within `limit`."""
    payload = pack(record)
    if len(payload) <= limit or (payload := _fit_long(payload, limit)):
        return payload
    # As the other end will read it: what is no text by itself has become one.
    payload = _as_json(record)
    told = jsontext.loads(payload.decode("ascii"))
    excess = len(payload) - limit
    longest: int | None = _LONG
    while longest is not None and longest > _KEPT:
        longest = _longest_that_fits(told, excess)
        if longest is not None:
            cut = {k: v if k in _NAMES else _cut(v, longest) for k, v in told.items()}
            payload = _as_json(cut)
            if len(payload) <= limit:
                return payload
            excess += len(payload) - limit + excess // 8
    return pack({"kind": record.get("kind"), "session": record.get("session"), "cut": True})


def _fit_long(payload: bytes, limit: int) -> bytes:
    """A long message with as much of its text as there is room for; nothing if there is none."""
    start = 5 + int.from_bytes(payload[1:5], "little")
    stop = limit - _MARKER
    if payload[:1] != b"m" or stop - start < _KEPT:
        return b""
    while payload[stop] & 0xC0 == 0x80:
        stop -= 1  # not in the middle of a character
    cut = len(payload[stop:].decode("utf-8", "surrogatepass"))
    return payload[:stop] + _marker(cut).encode()


def fit_deltas(
    session: str, text: str, *, reasoning: bool = False, limit: int = frames.LIMIT
) -> list[bytes]:
    """`pack_delta`, split into as many payloads as `limit` asks for."""
    # Four bytes a character at the most, and the session id in each.
    step = max(1, (limit - 3 - 4 * len(session)) // 4)
    if len(text) <= step:
        return [pack_delta(session, text, reasoning=reasoning)]
    pieces = (text[start : start + step] for start in range(0, len(text), step))
    return [pack_delta(session, piece, reasoning=reasoning) for piece in pieces]


def _longest_that_fits(record: dict[str, object], excess: int) -> int | None:
    """The size to cut every longer text to, to save `excess` bytes; None if none is long."""
    sizes = sorted(_sizes([v for k, v in record.items() if k not in _NAMES]), reverse=True)
    sizes = [size for size in sizes if size >= _LONG]
    total, longest = 0, None
    for count, size in enumerate(sizes, 1):
        total += size
        longest = max(_KEPT, (total - excess) // count - _MARKER)
        if count < len(sizes) and longest >= sizes[count]:
            break
    return longest


def _sizes(value: object) -> list[int]:
    """How many bytes each text in `value` takes."""
    if isinstance(value, str):
        return [len(jsontext.quoted(value))]
    if isinstance(value, dict):
        value = list(value.values())
    return [size for item in value for size in _sizes(item)] if isinstance(value, list) else []


def _cut(value: object, longest: int) -> object:
    if isinstance(value, dict):
        return {key: _cut(item, longest) for key, item in value.items()}
    if isinstance(value, list):
        return [_cut(item, longest) for item in value]
    size = len(jsontext.quoted(value)) if isinstance(value, str) else 0
    if not isinstance(value, str) or size < _LONG or size <= longest:
        return value
    # Escapes are up to twelve bytes long. Where they are not spread evenly, more has to go.
    kept = len(value) * longest // size
    cut = len(value) - kept
    return value[:kept] + _marker(cut)


def _marker(cut: int) -> str:
    return f"\n[{cut} characters cut here: the record was over the frame limit]"


def negotiate(oldest: object, newest: object) -> int | None:
    """The version two ends will speak: the newest both know, or None."""
    if not isinstance(oldest, int) or not isinstance(newest, int):
        return None
    version = min(VERSION, newest)
    return version if version >= max(OLDEST, oldest) else None
