"""Works through the queue: each hook that is due, once; what failed again, later.

Never lets one hook stop another, and never runs one that ended well a second time.

A hook is noted as begun before it starts and as ended after it did. Begun and not ended, and
nobody at it: it was cut off, its outcome is unknown, and it runs again and is told so.

Of all runners one stays for what has to wait; the others go when their first pass is over.
"""

from __future__ import annotations

import fcntl
import os
import time

from .. import run as runs
from ..recovery import report
from . import process, queue
from .entry import Entry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# How often the one that stays looks whether a hook has come, or been left by a dead runner.
_LOOK = 5.0
# Longer than anybody holds a lock who only wants to know whether it is held.
_GLANCE = 0.05


def work(own: str | None, over: Callable[[], None]) -> None:
    """Run what is due, of the run `own` or of all; `over` is called when that has been done
    once. Then stay until nothing waits any more, unless another does so."""
    try:
        _pass(own)
    finally:
        over()
    while queue.groups() and (lock := _stay()) is not None:
        try:
            while (soonest := _pass(None)) is not None:
                time.sleep(max(0.0, min(soonest - time.time(), _LOOK)))
        finally:
            os.close(lock)
        # Who went because this lock was held may have left something to wait for since.
        if _pass(None) is None:
            return


def _pass(own: str | None) -> float | None:
    """Run what is due; when to look again, None if nothing waits any more."""
    soonest = None
    for folder in queue.groups():
        if own is not None and not os.path.basename(folder).startswith(own + "."):
            continue
        # What is waited for may have to wait for an older one of the same process itself.
        again = _attend(folder, wait=own is not None)
        if again is not None:
            soonest = again if soonest is None else min(soonest, again)
    return soonest


def _attend(folder: str, *, wait: bool) -> float | None:
    try:
        claimed = queue.claim(folder, wait=wait)
        if claimed is None and not wait:
            time.sleep(_GLANCE)
            claimed = queue.claim(folder)
    except OSError:
        return None  # a file system without locks: `hooks list` still shows it
    if claimed is None:
        return time.time() + _LOOK if os.path.exists(folder) else None
    again: dict[str, float | None] = {}
    try:
        # Those that were queued meanwhile, too: whoever did that may have found us here, and gone.
        while new := [entry for entry in queue.entries(folder) if entry.id not in again]:
            for entry in new:
                due = entry.due(now := time.time())
                again[entry.id] = due if due > now else _try(claimed, entry)
        return min((due for due in again.values() if due is not None), default=None)
    finally:
        queue.release(claimed)


def _try(claimed: runs.Run, entry: Entry) -> float | None:
    """Run a hook that is due; when it is due again, None if it never is."""
    entry.close_cut_off(time.time())
    if entry.state not in ("done", "dead"):
        entry.begin(time.time())
        queue.save(claimed, entry)
        told = entry.telling(os.getpid(), queue.ledger(claimed, entry))
        env = None if entry.env is None else _environment(entry.env)
        outcome, output = process.run(entry.words, told, entry.folder, env, entry.timeout)
        entry.end(time.time(), outcome, output)
    queue.save(claimed, entry)
    report.note_hook(entry.run, entry.stream, entry.session, entry.as_ran())
    if entry.state in ("done", "dead"):
        queue.settle(claimed, entry)
        return None
    return entry.due(time.time())


def _environment(theirs: dict[str, str]) -> dict[str, str]:
    """That of the dead process, as far as it differs from ours, and nothing of us in it."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("HERMES_")}
    return ours | theirs


def _stay() -> int | None:
    """The lock of the one that stays; None if another has it."""
    path = os.path.join(queue.place(), "lock")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd
