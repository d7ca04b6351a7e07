"""Moments, sizes and texts as people read them. Pure.

Never says more than is known: a moment that nobody noted is unknown.
"""

from __future__ import annotations

import time

from ..notice import duration

_JUST_NOW = 2.0


def ago(at: float | None, now: float) -> str:
    if not at:
        return "unknown"
    since = now - at
    if since < -_JUST_NOW:
        return "in the future"  # a clock was set back
    if since < _JUST_NOW:
        return "just now"
    return " ".join(duration(since).split()[:2]) + " ago"


def clock(at: float | None) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) if at else "unknown"


def size(count: object) -> str:
    """Of memory; three figures are enough."""
    if not isinstance(count, int | float):
        return "unknown"
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1000 or unit == "GiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"


def one_line(text: str) -> str:
    return " ".join(text.split())
