"""JSON, by the C core of the standard library's package and nothing around it.

Never differs from `json` in what it makes of a value or of a text; the tests compare them. That
package also brings regular expressions and enumerations: nine milliseconds and more than a MiB,
which every supervisor would pay for when its agent says hello.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_SPACE = " \t\n\r"


class _Rules:
    """What the scanner is to make of things: what `json.loads` makes of them."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = {
        "NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf"),
    }.__getitem__  # fmt: skip


def _refuse(value: object) -> object:
    raise TypeError(f"{type(value).__name__} has no form in JSON")


quoted: Callable[[str], str]
"""A text as a JSON string, in ASCII."""
dumps: Callable[[Any], str]
"""As `json.dumps`; a cycle ends as RecursionError."""
compact: Callable[[Any], str]
"""Without the spaces, and what has no form of its own as its repr."""
_scan: Callable[[str, int], tuple[Any, int]]

try:
    import _json

    quoted = _json.encode_basestring_ascii
    rules: Any = _Rules
    _scan = _json.make_scanner(rules)

    def _encoder(default: Callable[[object], object], colon: str, comma: str) -> Any:
        pieces = _json.make_encoder(None, default, quoted, None, colon, comma, False, False, True)
        return lambda value: "".join(pieces(value, 0))

    dumps = _encoder(_refuse, ": ", ", ")
    compact = _encoder(repr, ":", ",")
except Exception:  # a Python without that core, or with another
    import json.encoder

    quoted = json.encoder.encode_basestring_ascii
    _scan = json.JSONDecoder().raw_decode
    dumps = json.dumps
    compact = json.JSONEncoder(separators=(",", ":"), default=repr).encode


def loads(text: str) -> Any:
    """As `json.loads`, of a text. Raises ValueError for what is not JSON."""
    text = text.strip(_SPACE)
    try:
        value, end = _scan(text, 0)
    except StopIteration:
        raise ValueError("not JSON") from None
    if end != len(text):
        raise ValueError(f"not JSON: more behind character {end}")
    return value
