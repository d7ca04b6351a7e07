"""Records: what a frame's payload means, to and from bytes.

Never touches a socket, a file or a clock.

A record is a JSON object with a `kind`. A delta, a few characters of the reply being
streamed, has a compact form that needs no JSON:

    byte 0      "t" text, "r" reasoning
    byte 1, 2   length of the session id in bytes, little endian
    then        the session id, then the text, both UTF-8 (lone surrogates let through)

A `message` with a long text has it after the JSON, in which `content` is null then:

    byte 0      "m"
    byte 1 - 4  length of the JSON in bytes, little endian
    then        the JSON, then the text, UTF-8 (lone surrogates let through)

A message that is too long for a frame is cut, and completed by records of kind `piece` (`fit_all`).

A lone surrogate is half of a character: an agent that counts in UTF-16 may have split it
between two deltas. `join_pieces` makes it one character again.

Unknown kinds and unknown fields are kept and ignored, so that an older supervisor serves
a newer shim and the other way round. `VERSION` changes only when that does not suffice.
"""

from __future__ import annotations

from . import frames
from .lightweight import json

VERSION = 1
OLDEST = 1

_DELTAS = {b"t": "text", b"r": "reasoning"}

# These identify a record. They are never cut, however long.
_NAMES = {"kind", "session", "uid"}
# A text of this many bytes may be cut; this many stay; this many are for the marker.
_LONG, _KEPT, _MARKER = 1024, 256, 96
# Nobody reads a value that is nested more deeply, and Python cannot follow it without end.
DEEPEST = 64
# A message whose JSON is longer than this many bytes stays cut.
LONGEST = 256 * 1024 * 1024
# From this many characters on, escaping a text takes longer than everything else.
_AFTER_JSON = 256


class BadRecord(ValueError):
    """A payload that is not a record, or one without what its kind needs."""


def pack(record: dict[str, object]) -> bytes:
    message = record.get("message")
    if isinstance(message, dict):
        text = message.get("content")
        if isinstance(text, str) and len(text) >= _AFTER_JSON:
            return _pack_long({**record, "message": {**message, "content": None}}, text)
    return _as_json(record)


def _pack_long(record: dict[str, object], text: str) -> bytes:
    """A message whose text follows the JSON, as it is."""
    head = _as_json(record)
    return b"m" + len(head).to_bytes(4, "little") + head + text.encode("utf-8", "surrogatepass")


def _as_json(record: dict[str, object]) -> bytes:
    # ASCII escapes carry lone surrogates, which strict UTF-8 refuses.
    return json.compact(record).encode("ascii")


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
        record = json.loads(payload.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"the payload is not JSON: {type(error).__name__}") from error
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        raise BadRecord("the record has no kind")
    if payload.count(b"[") + payload.count(b"{") > DEEPEST:
        record = {name: bounded(value) for name, value in record.items()}
    return record


def bounded(value: object, depth: int = DEEPEST) -> object:
    """A value of JSON in which everything nested deeper than `depth` is its JSON, as a text."""
    if not isinstance(value, (list, dict)):
        return value
    if not depth:
        try:
            return json.compact(value)
        except RecursionError:
            return "[nested too deeply]"
    if isinstance(value, list):
        return [bounded(item, depth - 1) for item in value]
    return {name: bounded(item, depth - 1) for name, item in value.items()}


def _unpack_long(payload: bytes) -> dict[str, object]:
    stop = 5 + int.from_bytes(payload[1:5], "little")
    if len(payload) < stop or payload[5:6] != b"{":
        raise BadRecord("a long message shorter than its beginning")
    record = unpack(payload[5:stop])
    message = record.get("message")
    if not isinstance(message, dict):
        raise BadRecord("a long message without a message")
    try:
        message["content"] = join_pieces([payload[stop:].decode("utf-8", "surrogatepass")])
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


def join_pieces(pieces: list[str]) -> str:
    """The text that deltas add up to, with split characters made whole."""
    text = "".join(pieces)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return text


def fit(record: dict[str, object], limit: int = frames.LIMIT) -> bytes:
    """`pack`, with the longest texts cut, each with a marker, until it is within `limit`."""
    payload = pack(record)
    if len(payload) <= limit or (payload := _fit_long(payload, limit)):
        return payload
    # As the other end will read it: values that JSON has no form for are texts there.
    payload = _as_json(record)
    as_read = json.loads(payload.decode("ascii"))
    excess = len(payload) - limit
    longest: int | None = _LONG
    while longest is not None and longest > _KEPT:
        longest = _longest_that_fits(as_read, excess)
        if longest is not None:
            cut = {k: v if k in _NAMES else _cut(v, longest) for k, v in as_read.items()}
            payload = _as_json(cut)
            if len(payload) <= limit:
                return payload
            excess += len(payload) - limit + excess // 8
    return pack({"kind": record.get("kind"), "session": record.get("session"), "cut": True})


def fit_all(record: dict[str, object], limit: int = frames.LIMIT) -> list[bytes]:
    """`fit`, and for a message with a uid that was cut the pieces that complete it, up to LONGEST.

    The pieces are the JSON of the whole record. A supervisor that does not know pieces has what
    `fit` kept.
    """
    payload = pack(record)
    if len(payload) <= limit:
        return [payload]
    is_message = record.get("kind") == "message" and isinstance(record.get("message"), dict)
    if not is_message or not record.get("uid"):
        return [fit(record, limit)]
    whole = _as_json(record).decode("ascii")
    piece: dict[str, object] = {"kind": "piece", "message": {"content": None}}
    for name in ("session", "uid", "at", "mono"):
        if name in record:
            piece[name] = record[name]
    room = limit - len(_pack_long(piece, "")) - _MARKER
    parts = -(-len(whole) // room) if len(whole) <= LONGEST and room > limit // 2 else 0
    return [fit({**record, "parts": parts}, limit)] + [
        _pack_long({**piece, "part": part, "parts": parts}, whole[part * room : (part + 1) * room])
        for part in range(parts)
    ]


def joined(pieces: list[str]) -> dict[str, object]:
    """The message that pieces add up to. Raises BadRecord if it is none."""
    record = unpack("".join(pieces).encode("utf-8", "surrogatepass"))
    if record["kind"] != "message" or "parts" in record:
        raise BadRecord("the pieces are not those of a message")
    return record


def _fit_long(payload: bytes, limit: int) -> bytes:
    """A long message with as much of its text as fits; empty if none does."""
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
    # At most four bytes a character, and the session id in each.
    step = max(1, (limit - 3 - 4 * len(session)) // 4)
    if len(text) <= step:
        return [pack_delta(session, text, reasoning=reasoning)]
    pieces = (text[start : start + step] for start in range(0, len(text), step))
    return [pack_delta(session, piece, reasoning=reasoning) for piece in pieces]


def _longest_that_fits(record: dict[str, object], excess: int) -> int | None:
    """The size to cut every longer text to, so as to save `excess` bytes. None: none is long."""
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
        return [len(json.quoted(value))]
    if isinstance(value, dict):
        value = list(value.values())
    return [size for item in value for size in _sizes(item)] if isinstance(value, list) else []


def _cut(value: object, longest: int) -> object:
    if isinstance(value, dict):
        return {key: _cut(item, longest) for key, item in value.items()}
    if isinstance(value, list):
        return [_cut(item, longest) for item in value]
    size = len(json.quoted(value)) if isinstance(value, str) else 0
    if not isinstance(value, str) or size < _LONG or size <= longest:
        return value
    # Escapes take up to twelve bytes. Where they are not spread evenly, more has to go.
    kept = len(value) * longest // size
    cut = len(value) - kept
    return value[:kept] + _marker(cut)


def _marker(cut: int) -> str:
    return f"\n[{cut} characters cut here: the record was over the frame limit]"


def negotiate(oldest: object, newest: object) -> int | None:
    """The version that two ends will speak: the newest that both know, or None."""
    if not isinstance(oldest, int) or not isinstance(newest, int):
        return None
    version = min(VERSION, newest)
    return version if version >= max(OLDEST, oldest) else None
