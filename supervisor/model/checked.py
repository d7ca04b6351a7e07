"""Turns what others wrote into values of known types. The only place that checks types.

Never raises, whatever it is given. A field that does not have the type in its table is left out, as
if nobody had written it; the code behind this relies on the types and does not check again. Fields
that are in no table are kept, and must be checked where they are used.

Bytes become a record in `ipc/records.py`, which also bounds how deeply it is nested. Our own files
(run.json, markers in state.db) are checked as well: a disk may have been full, or lost its power.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Table = dict[str, Callable[[object], bool]]

_LONGEST_NUMBER = 2**53


def is_text(value: object) -> bool:
    return isinstance(value, str)


def is_path(value: object) -> bool:
    """A text that can be the name of a file."""
    try:
        return isinstance(value, str) and "\0" not in value and bool(os.fsencode(value))
    except UnicodeError:
        return False


def is_number(value: object) -> bool:
    """Neither infinite, nor not a number, nor longer than a float can hold."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and -_LONGEST_NUMBER < value < _LONGEST_NUMBER
    )


def is_amount(value: object) -> bool:
    return is_number(value) and value >= 0  # type: ignore[operator]


def is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


def is_start(value: object) -> bool:
    """A start time as `process_start` gives it: negative where it stands for one."""
    return type(value) is int and -(2**63) < value < 2**63


def is_pid(value: object) -> bool:
    return type(value) is int and 0 < value < 2**31


def is_list(value: object) -> bool:
    return isinstance(value, list)


def is_object(value: object) -> bool:
    return isinstance(value, dict)


def is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def is_stream(value: object) -> bool:
    return isinstance(value, str) and len(value) == 32 and not value.strip("0123456789abcdef")


def _is_sizes(value: object) -> bool:
    return isinstance(value, dict) and all(is_count(size) for size in value.values())


def _is_delays(value: object) -> bool:
    """`none`, or numbers with commas between them."""
    if not isinstance(value, str):
        return False
    try:
        return value == "none" or all(0 <= float(word) < 1e9 for word in value.split(","))
    except ValueError:
        return False


RUN: Table = {
    "boot": is_text, "started": is_amount, "command": is_texts, "cwd": is_path,
    "supervisor": is_pid, "supervisor_start": is_start, "terminal": is_text, "db": is_path,
    "on_session_end": is_texts, "on_session_finalize": is_texts, "on_session_reset": is_texts,
    "hook_timeout": is_amount, "hook_retry": _is_delays, "idle_finalize": is_amount,
    "grace": is_amount, "orphans": is_text, "sync": is_text, "checkpoint": is_amount,
    "after": is_text, "watcher": is_stream, "agent": is_text, "watch": is_texts,
    "stood": _is_sizes, "log": is_text, "replica": is_text, "recovered_from": is_text,
    "hooks_run_by": is_text,
}  # fmt: skip

HELLO: Table = {
    "stream": is_stream, "pid": is_pid, "start": is_count, "boot": is_text,
    "executable": is_path, "argv": is_texts, "cwd": is_path, "agent": is_text,
    "agent_version": is_text, "missing": is_list, "speaks_for": is_path, "env": is_object,
}  # fmt: skip

PEER: Table = {"pid": is_pid, "start": is_start, "by": is_pid}

SESSION: Table = {
    "source": is_text, "model": is_text, "platform": is_text, "parent": is_text,
    "started": is_amount, "db": is_path, "cwd": is_path, "resume": is_text, "becoming": is_text,
    "transcript": is_path,
    "captured": is_text, "since": is_amount, "task_id": is_text, "turn_id": is_text,
}  # fmt: skip

MARKER: Table = {
    "rows": is_list, "owns": is_list, "steps": is_list, "counts": _is_sizes, "told": is_count,
    "through": is_text, "title": is_text, "ended": is_list, "end": is_list, "died": is_amount,
    "at": is_amount, "life": is_object, "ended_as": is_text, "title_dropped": is_text,
    "outcome": is_text, "crash": is_object, "turn": is_object, "lost": is_count,
    "known": is_object,
}  # fmt: skip

SILENCE: Table = {"stream": is_text, "session": is_text, "heard": is_count, "at": is_amount}


def checked(value: object, table: Table) -> dict[str, Any]:
    """The fields of an object that have the types in the table, and the fields that are not in
    it."""
    if not isinstance(value, dict):
        return {}
    return {
        name: field
        for name, field in value.items()
        if name not in table or field is None or table[name](field)
    }
