"""Hermes' own list of who has which session open, and whether they still live.

Never changes it: Hermes prunes it itself. The lease of a dead process shows that the process did
not close its sessions: closing a session gives the lease back.
"""

from __future__ import annotations

import json
import os
from typing import Any

from ...process.death import exists
from ...process.platform import sees_processes

# Two readings of one process' start agree to far less than this.
_SAME = 0.01


def leases(db: str) -> dict[str, list[tuple[int, bool]]]:
    """By session: the processes that have it open, and whether each lives."""
    path = os.path.join(os.path.dirname(db), "runtime", "active_sessions.json")
    try:
        with open(path, encoding="utf-8") as file:
            ledger = json.load(file)
    except (OSError, ValueError):
        return {}
    entries = ledger.get("entries") if isinstance(ledger, dict) else ledger
    found: dict[str, list[tuple[int, bool]]] = {}
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("pid"), int):
            alive = _lives(entry["pid"], entry.get("process_start_time"))
            found.setdefault(str(entry.get("session_id")), []).append((entry["pid"], alive))
    return found


def _lives(pid: int, start: Any) -> bool:
    """True if it lives or may live: a pid in use without a start time to compare counts as
    alive."""
    if not sees_processes():
        return exists(pid)
    import psutil  # start-up: psutil is heavy

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return not isinstance(start, int | float) or abs(process.create_time() - start) < _SAME
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True
