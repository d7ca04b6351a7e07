"""Works through the queue: runs each due hook once, and retries failed ones later.

Never lets one hook stop another, and never runs a hook again that succeeded.

The start of a hook is recorded before it starts, and its end after it ends. If only the start is
recorded and no runner holds the folder, the hook was cut off: its result is unknown, and it runs
again with an input that says so.

One runner at a time stays to retry failed hooks. The others leave after their first pass.
"""

from __future__ import annotations

import os
import time

from ...ipc import endpoint
from ..agents import registry
from ..recovery import report
from ..storage import run_folder as runs
from ..storage.run_lock import lock_file
from . import process, queue
from .entry import Entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# How often the runner that stays looks for new hooks, and for hooks of dead runners.
_INTERVAL = 5.0
# Longer than anybody holds a lock just to see whether it is held.
_LOCK_CHECK = 0.05


def work(run: str | None, first_pass_over: Callable[[], None]) -> None:
    """Run what is due, of one run or of all (None), and call `first_pass_over`.

    Then stay until nothing is pending, unless another runner stays already.
    """
    try:
        _run_due(run)
    finally:
        first_pass_over()
    while queue.groups() and (lock := _lock_to_stay()) is not None:
        try:
            while (next_due := _run_due(None)) is not None:
                time.sleep(max(0.0, min(next_due - time.time(), _INTERVAL)))
        finally:
            os.close(lock)
        # A runner that left because of this lock may have left a hook to retry.
        if _run_due(None) is None:
            return


def _run_due(run: str | None) -> float | None:
    """One pass over the queue. Returns when to look again; None if nothing is pending."""
    next_due = None
    for folder in queue.groups():
        if run is not None and not os.path.basename(folder).startswith(run + "."):
            continue
        # A runner for one run waits: its hooks may come after older ones of the same process.
        due = _run_group(folder, wait=run is not None)
        if due is not None:
            next_due = due if next_due is None else min(next_due, due)
    return next_due


def _run_group(folder: str, *, wait: bool) -> float | None:
    """Run the due hooks of one folder. Returns when to look at it again; None: never."""
    try:
        claimed = queue.claim(folder, wait=wait)
        if claimed is None and not wait:
            time.sleep(_LOCK_CHECK)
            claimed = queue.claim(folder)
    except OSError:
        return None  # a file system without locks; `hooks list` still shows the hooks
    if claimed is None:
        return time.time() + _INTERVAL if os.path.exists(folder) else None
    due: dict[str, float | None] = {}
    try:
        # Also hooks that are queued meanwhile: their runner may have found this lock and left.
        while new := [entry for entry in queue.entries(folder) if entry.id not in due]:
            for entry in new:
                at: float | None = entry.due_at(now := time.time())
                if at is not None and at <= now and os.path.exists(_replicas()):
                    at = _ask_replica(claimed, entry, now)
                due[entry.id] = at if at is None or at > now else _run_hook(claimed, entry)
        return min((at for at in due.values() if at is not None), default=None)
    finally:
        queue.release(claimed)


def _replicas() -> str:
    return os.path.join(endpoint.state_folder(), "replica")


def _ask_replica(claimed: runs.Run, entry: Entry, now: float) -> float | None:
    """Whether this machine may run it. Returns when it is due; None: another machine has it."""
    from ..replica import places, starter  # only where a run ever had a replica

    answer, why = places.may_run_hooks(entry.run)
    if answer == places.WAIT:
        for target in places.targets():
            names = ("runs", "claims")
            if any(os.path.exists(os.path.join(target, name, entry.run)) for name in names):
                if not starter.is_at_work(target):
                    starter.start(target)
                places.wake(target)
        return now + _INTERVAL
    if answer == places.NEVER:
        entry.leave_to_others(now, why)
        queue.save(claimed, entry)
        report.note_hook(entry.run, entry.stream, entry.session, entry.summary())
        queue.finish(claimed, entry)
        return None
    return now


def _run_hook(claimed: runs.Run, entry: Entry) -> float | None:
    """Run a hook that is due. Returns when to retry it; None if it is done or abandoned."""
    entry.close_cut_off(time.time())
    if entry.state not in ("done", "dead"):
        entry.start_attempt(time.time())
        queue.save(claimed, entry)
        event = entry.standard_input(os.getpid(), queue.ledger(claimed, entry))
        env = _environment(entry)
        outcome, output = process.run(entry.words, event, entry.folder, env, entry.timeout)
        entry.end_attempt(time.time(), outcome, output)
    queue.save(claimed, entry)
    report.note_hook(entry.run, entry.stream, entry.session, entry.summary())
    if entry.state in ("done", "dead"):
        queue.finish(claimed, entry)
        return None
    return entry.due_at(time.time())


def _environment(entry: Entry) -> dict[str, str] | None:
    """For an agent's own hooks, the environment of the dead agent; otherwise the runner's own."""
    if entry.env is None:
        return None
    return registry.named(entry.kind).hook_environment(os.environ, entry.env)


def _lock_to_stay() -> int | None:
    """The lock of the one runner that stays; None if another runner holds it."""
    return lock_file(os.path.join(queue.folder(), "lock"))
