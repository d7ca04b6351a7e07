"""Times, sizes and texts for people. Pure.

Never shows more than is known: a time that nobody recorded is "unknown".
"""

from __future__ import annotations

import time

from ...run.notice import duration

_JUST_NOW = 2.0


def package_version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # start-up: only for a page

    try:
        return version("hermes-supervise")
    except PackageNotFoundError:
        return "(version unknown)"


def ago(at: float | None, now: float) -> str:
    if not at:
        return "unknown"
    since = now - at
    if since < -_JUST_NOW:
        return "in the future"  # the clock was set back
    if since < _JUST_NOW:
        return "just now"
    return " ".join(duration(since).split()[:2]) + " ago"


def date_and_time(at: float | None) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) if at else "unknown"


def time_of_day(at: float) -> str:
    """With milliseconds. Rounding must carry over: 0.9996 s belongs to the next second."""
    seconds, milliseconds = divmod(round(at * 1000), 1000)
    return f"{time.strftime('%H:%M:%S', time.localtime(seconds))}.{milliseconds:03d}"


def size(count: object) -> str:
    """An amount of memory, with three digits."""
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


def number(count: int, noun: str) -> str:
    """A count with its noun: 1 session, 2 sessions."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
