"""The folder of one run: made, claimed by who finishes the run, and removed.

Never reads a journal.

    runs/<run>/lock        see run_lock.py
    runs/<run>/run.json    the command, and where and how to finish its sessions
    runs/<run>/agent       the process that was started, and other notes: see run_notes.py
    runs/<run>/…           journals and spools (see journal.py), hooks.jsonl, report.jsonl

A run whose folder exists and whose lock is free was left behind. The folder is removed once
everything in it is settled and nobody is left who may still send messages: neither the agent, nor
any other process that was started in the run. A forked child may send its first record long after
the agent is gone, and then this folder is all it has.
"""

from __future__ import annotations

import errno
import os
import time

from ...ipc import endpoint
from ...ipc.lightweight import json
from ..process.platform import boot_id
from . import run_lock, run_notes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_REPORTS_KEPT = 500
# How often to ask whether a dead supervisor's job has ended.
_ASK_AGAIN = 0.02


class Run:
    """A run's folder, with its lock held through `lock`."""

    def __init__(self, folder: str, lock: int) -> None:
        self.folder = folder
        self.name = os.path.basename(folder)
        self.lock = lock
        self.is_below_us = False
        """Every process that was started in it is a descendant of this process."""
        self.transcript_stream: str | None = None
        """The stream of the process that follows the agent's transcripts, if it has any."""
        self.described: str | None = None
        """What run.json says, if this process has written it."""

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def streams(self) -> list[str]:
        """The streams that still have files in this folder."""
        files = os.listdir(self.folder)
        return sorted({name.split(".", 1)[0] for name in files if is_stream_file(name)})

    def release(self) -> None:
        run_lock.release(self.folder, self.lock)


def is_stream_file(name: str) -> bool:
    stem = name.partition(".")[0]
    named = len(stem) == 32 and not stem.strip("0123456789abcdef")
    return named and name.endswith((".log", ".spool", ".ring", ".settled"))


def runs_folder() -> str:
    return endpoint.private_folder(os.path.join(endpoint.state_folder(), "runs"))


def create(about: dict[str, object]) -> Run:
    lock = None
    while lock is None:
        name = time.strftime("%Y%m%d-%H%M%S-") + os.urandom(4).hex()
        folder = os.path.join(runs_folder(), name)
        os.mkdir(folder, 0o700)
        # None: a recoverer found the folder before it was locked, and removes it.
        lock = run_lock.lock(folder)
    run = Run(folder, lock)
    run.described = json.compact({"boot": boot_id(), "started": time.time(), **about})
    _write_description(run)
    run.is_below_us = True
    run.transcript_stream = str(about["watcher"]) if "watcher" in about else None
    return run


def _write_description(run: Run) -> None:
    if run.described is not None:
        with open(run.path("run.json"), "w", opener=endpoint.private_file) as file:
            file.write(run.described)


def make_again(run: Run) -> bool:
    """If somebody has removed the folder of this living run, make it again, and lock it. False if
    it is still there; or elsewhere: a folder that was moved may come back. Raises OSError."""
    if os.fstat(run.lock).st_nlink:
        return False
    runs_folder()
    try:
        os.mkdir(run.folder, 0o700)
    except FileExistsError:
        pass  # only what was in it was removed
    lock = run_lock.lock(run.folder)
    if lock is None:
        raise FileExistsError(f"{run.folder} is in use by another process")
    os.close(run.lock)
    run.lock = lock
    _write_description(run)
    return True


def settings(run: Run) -> dict[str, Any]:
    """What run.json says, in the types that it was written in. With `lost` if something of it, or
    all, cannot be read: the disk was full, or its end was lost with the power."""
    from ..model.checked import RUN, checked  # start-up: a run reads it at its end

    try:
        with open(run.path("run.json"), encoding="utf-8") as file:
            stored = json.loads(file.read())
    except (OSError, ValueError):
        return {"lost": True}
    kept = {name: value for name, value in checked(stored, RUN).items() if value is not None}
    kept.pop("lost", None)
    whole = (
        isinstance(stored, dict)
        and stored
        and all(name in kept for name, value in stored.items() if value is not None)
    )
    return kept if whole else {**kept, "lost": True}


def make(folder: str) -> Run:
    """A folder that is to become a run, locked by us. Nobody looks for it where it is."""
    os.mkdir(folder, 0o700)
    lock = run_lock.lock(folder)
    if lock is None:
        raise FileExistsError(f"{folder} is in use by another process")
    return Run(folder, lock)


def put_in_place(run: Run) -> Run:
    """A folder that was made elsewhere becomes a run, with everything in it, in one step."""
    folder = os.path.join(runs_folder(), run.name)
    os.rename(run.folder, folder)
    endpoint.sync_folder(runs_folder())
    run_lock.note_claimed(folder)
    return Run(folder, run.lock)


def make_durable(folder: str) -> None:
    """Sync the run's folder, run.json and the folders above, before the first journal is written:
    after a power loss a journal without them would be lost or misread."""
    try:
        fd = os.open(os.path.join(folder, "run.json"), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        pass
    else:
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    for path in (folder, runs_folder(), endpoint.state_folder()):
        endpoint.sync_folder(path)
    # The folders above may be just as new, unless we cannot write there.
    above = os.path.dirname(endpoint.state_folder())
    while os.access(above, os.W_OK | os.R_OK):
        endpoint.sync_folder(above)
        if above == os.path.dirname(above):
            break
        above = os.path.dirname(above)


def claim(folder: str, *, wait: bool = False) -> Run | None:
    """Lock a run; None if it is settled, or if another process has it. `wait`: until it is free."""
    lock = run_lock.lock(folder, wait=wait)
    if lock is None:
        return None
    run_lock.note_claimed(folder)
    return Run(folder, lock)


def claim_after_job(folder: str, patience: float) -> Run | None:
    """`claim`, but if the supervisor was killed and a job that it had forked is still at work,
    wait for that job: it has the lock, and what it does not finish nobody else would."""
    until = time.monotonic() + patience
    while (run := claim(folder)) is None and time.monotonic() < until:
        if not run_lock.is_held_by_orphan(folder):
            # It may have ended just now.
            return claim(folder)
        time.sleep(_ASK_AGAIN)
    return run


def why_unwritable(run: Run) -> str | None:
    """Why nothing more can be written to the run's folder; None: something can be."""
    path = run.path("probe")
    try:
        with open(path, "w", opener=endpoint.private_file) as file:
            file.write(" " * 4096)
        return None
    except OSError as error:
        return f"{run.folder}: {error.strerror or error}"
    finally:
        try:
            os.unlink(path)
        except OSError:
            pass  # it could not be made


def left_behind() -> Iterator[str]:
    """Folders of all runs, living or left behind, in the order in which they began; `claim` finds
    out which. A session that went on in a later run is recovered in this order."""
    try:
        folder = runs_folder()
        names = os.listdir(folder)
    except OSError:
        return
    for name in sorted(names, key=lambda name: _beginning(folder, name)) if names else ():
        yield os.path.join(folder, name)


def _beginning(folder: str, name: str) -> tuple[str, int]:
    """A run's name has the second in which it began, its lock the moment: nobody writes to that."""
    try:
        moment = os.stat(os.path.join(folder, name, "lock")).st_mtime_ns
    except OSError:
        moment = 0
    return name.rpartition("-")[0], moment


def retire(run: Run, *, keep: bool = False) -> bool:
    """End a run: keep the report and remove the folder if it is settled, then release the lock.
    `keep`: something is left to do that no file in it may show. True if a process is left that may
    still send records, so that the folder stays."""
    # In this order: a process that is gone by now has written all its records.
    agent_lives = run_notes.living_agent(run.folder) is not None
    speakers = agent_lives or _may_still_send(run)
    if not keep and not run.streams():
        if not speakers:
            if os.path.exists(run.path("report.jsonl")):
                _keep_report(run)
            _remove(run)
        elif not agent_lives:
            run_notes.note_settled(run.folder)
    run.release()
    return speakers


def _may_still_send(run: Run) -> bool:
    """True if a process that was started in a run is still alive. Where processes cannot be looked
    at, any process that we have left counts, and whoever comes later believes what was noted."""
    from ..process.platform import sees_processes  # start-up: only an end needs it
    from ..process.tree import has_children, started_in

    if sees_processes():
        return bool(started_in(run.name, below_us=run.is_below_us))
    if not run.is_below_us:
        return run_notes.has_unseen(run.folder)
    if has_children():
        run_notes.note_unseen(run.folder)
        return True
    return False


def waits_for_nothing_else(run: Run) -> bool:
    """True if everything in a run is settled, and its folder stays only for a process that may
    still send records."""
    return not run.streams() and _may_still_send(run)


def has_nothing_to_recover(run: Run) -> bool:
    """True if everything in a run is settled, also if the process that its folder stayed for is
    gone by now and has sent nothing. The next start, or `recover`, removes the folder."""
    return not run.streams() and (run_notes.was_settled(run.folder) or _may_still_send(run))


def with_queued_hooks() -> list[str]:
    """Names of runs, each with its stream, that have hooks in the queue (hooks/queue.py)."""
    try:
        return os.listdir(os.path.join(endpoint.state_folder(), "hooks", "waiting"))
    except OSError:
        return []


def reports_folder() -> str:
    return endpoint.private_folder(os.path.join(endpoint.state_folder(), "reports"))


def _keep_report(run: Run) -> None:
    """Move the report out of the folder, durably, before the folder is removed."""
    folder = reports_folder()
    endpoint.sync_folder(os.path.dirname(folder))
    os.replace(run.path("report.jsonl"), os.path.join(folder, run.name + ".jsonl"))
    endpoint.sync_folder(folder)
    _delete_old_reports()


def _delete_old_reports() -> None:
    names = sorted(os.listdir(reports_folder()))
    if len(names) <= _REPORTS_KEPT:
        return
    from . import counters  # only once there are many

    old = [name for name in names[:-_REPORTS_KEPT] if name.endswith(".jsonl")]
    counters.keep({n.removesuffix(".jsonl"): os.path.join(reports_folder(), n) for n in old})
    for name in names[:-_REPORTS_KEPT]:
        try:
            os.unlink(os.path.join(reports_folder(), name))
        except FileNotFoundError:
            pass  # another run ended at the same time and deleted it


def _remove(run: Run) -> None:
    """Remove a settled run's folder. The lock goes last, so that nobody claims half a run."""
    if os.path.isdir(tap := run.path(run_notes.TAP_FOLDER)):
        for name in os.listdir(tap):
            os.unlink(os.path.join(tap, name))
        os.rmdir(tap)
    for name in os.listdir(run.folder):
        if name != "lock":
            os.unlink(run.path(name))
    try:
        os.unlink(endpoint.socket_path(run.name))
    except OSError:
        pass  # the socket is left over only if the supervisor was killed
    os.unlink(run.path("lock"))
    try:
        os.rmdir(run.folder)
    except OSError as error:
        # Another process that claimed the run after the lock was gone made a new lock file, and
        # removes it.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise
