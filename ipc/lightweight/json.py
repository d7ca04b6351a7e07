"""JSON on the C core of the standard library's `json`, without the package around it.

Writes and reads what `json` does; the tests compare them. The package brings regular expressions
and enumerations: nine milliseconds and more than a MiB, which every supervisor would pay for when
its agent says hello.

Differs from `json` in its errors alone. The core leaves it to the package to make them: where the
package was never imported, Python before 3.12 raises SystemError, and later ones import it then.
So `loads` lets none of the core's errors through: any text that it cannot read is `NotJson`.
"""

from __future__ import annotations

from ..handlers import raised_by_signal_handler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_SPACE = " \t\n\r"


class NotJson(ValueError):
    """The text is not JSON, or is nested deeper than Python can follow."""


class _Rules:
    """What the scanner makes of each kind of value: what `json.loads` does."""

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
"""As `json.dumps`. A cycle raises RecursionError."""
compact: Callable[[Any], str]
"""As `dumps`, without spaces, and with the `repr` of what has no form in JSON."""
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
except Exception:  # a Python without that core, or with another one
    import json.encoder

    quoted = json.encoder.encode_basestring_ascii
    _scan = json.JSONDecoder().raw_decode
    dumps = json.dumps
    compact = json.JSONEncoder(separators=(",", ":"), default=repr).encode


def loads(text: str) -> Any:
    """As `json.loads`, of a text. Raises NotJson, a ValueError, for every text it cannot read."""
    text = text.strip(_SPACE)
    try:
        value, end = _scan(text, 0)
    except Exception as error:
        if isinstance(error, MemoryError) or raised_by_signal_handler(error):
            raise
        raise NotJson(f"the text is not JSON ({type(error).__name__})") from None
    if end != len(text):
        raise NotJson(f"the text goes on after its JSON value, at character {end}")
    return value
