"""The sums of all reports, for `hermes-supervise metrics`. The numbers only grow.

Never counts a report twice, and never forgets one: before a report is deleted, its numbers go into
a file of their own, with its name, so that a kill in between changes nothing.

    metrics.json    the numbers of reports that are gone; the names of reports that are counted in
                    it and may still be there
"""

from __future__ import annotations

import fcntl
import os

from ...ipc import endpoint
from ...ipc.lightweight import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

RUNS, SESSIONS, INTERRUPTED = "runs", "sessions", "interrupted"
MESSAGES, CHARACTERS, CALLS, FAILED_HOOKS = "messages", "characters", "calls", "failed_hooks"
NAMES = (RUNS, SESSIONS, INTERRUPTED, MESSAGES, CHARACTERS, CALLS, FAILED_HOOKS)

Totals = dict[str, int]


def of_report(lines: Iterable[str]) -> Totals:
    """The numbers of one report. If a session was settled in several tries, the last one counts;
    each failed attempt of a hook counts."""
    sessions: dict[tuple[str, str], dict[str, object]] = {}
    failed: set[tuple[str, int]] = set()
    for line in lines:
        try:
            fields = json.loads(line)
            hook = fields.get("hook")
            for ran in [hook] if hook is not None else fields["hooks"]:
                if ran["outcome"] not in ("ok", "waiting", "running"):
                    failed.add((str(ran["id"]), int(ran["attempt"])))
            if hook is None:
                sessions[str(fields["stream"]), str(fields["session"])] = fields
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue  # torn, or empty
    totals = dict.fromkeys(NAMES, 0)
    totals[RUNS] = int(bool(sessions))
    totals[FAILED_HOOKS] = len(failed)
    for fields in sessions.values():
        counts = fields.get("recovered")
        counts = counts if isinstance(counts, dict) else {}
        interrupted = fields.get("outcome") == "interrupted" and not fields.get("subagent")
        totals[SESSIONS] += 1
        totals[INTERRUPTED] += bool(interrupted and fields.get("complete"))
        for name, key in (
            (MESSAGES, "messages"), (CHARACTERS, "partial_characters"), (CALLS, "calls_unknown"),
        ):  # fmt: skip
            value = counts.get(key)
            totals[name] += value if isinstance(value, int) else 0
    return totals


def add_up(paths: dict[str, str]) -> Totals:
    """Everything: the reports at `paths`, by the name of their run, and those that are gone."""
    archive = _Archive.read()
    totals = dict(archive.totals)
    for name, path in paths.items():
        if name not in archive.counted:
            _add(totals, _read(path))
    return totals


def keep(paths: dict[str, str]) -> None:
    """These reports are about to be deleted, by the name of their run: remember what they count."""
    fd = os.open(_path() + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        archive = _Archive.read()
        # A name stays until its file is gone.
        archive.counted &= {name for name in archive.counted if os.path.exists(_report(name))}
        for name, path in paths.items():
            if name not in archive.counted and os.path.exists(path):
                _add(archive.totals, _read(path))
                archive.counted.add(name)
        archive.write()
    finally:
        os.close(fd)


def keep_lines(lines: list[str]) -> None:
    """Lines of a report that goes on without them."""
    fd = os.open(_path() + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        archive = _Archive.read()
        # The run is still counted by the lines that stay.
        _add(archive.totals, of_report(lines) | {RUNS: 0})
        archive.write()
    finally:
        os.close(fd)


class _Archive:
    def __init__(self, totals: Totals, counted: set[str]) -> None:
        self.totals = totals
        self.counted = counted

    @classmethod
    def read(cls) -> _Archive:
        try:
            with open(_path(), encoding="utf-8") as file:
                known = json.loads(file.read())
            totals = {name: int(known["totals"].get(name, 0)) for name in NAMES}
            return cls(totals, {str(name) for name in known["counted"]})
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return cls(dict.fromkeys(NAMES, 0), set())

    def write(self) -> None:
        draft = f"{_path()}.{os.getpid()}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        with open(os.open(draft, flags, 0o600), "w", encoding="utf-8") as file:
            file.write(json.dumps({"totals": self.totals, "counted": sorted(self.counted)}))
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, _path())
        endpoint.sync_folder(os.path.dirname(_path()))


def _path() -> str:
    return os.path.join(endpoint.state_folder(), "metrics.json")


def _report(name: str) -> str:
    return os.path.join(endpoint.state_folder(), "reports", name + ".jsonl")


def _read(path: str) -> Totals:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return of_report(file)
    except OSError:
        return {}


def _add(totals: Totals, more: Totals) -> None:
    for name, value in more.items():
        totals[name] = totals.get(name, 0) + value
