"""The files of a replica on this machine, and who may finalise what: read by many, changed by few.

Never speaks to the database. Recovery calls `keep` before it removes a file of a run; the runner
of hooks asks `verdict`.

    replica/machine                  the id of this machine, as the database knows it
    replica/<target>/conninfo        where it is
    replica/<target>/lock            held (flock) by the shipper
    replica/<target>/wake            a FIFO: a byte in it wakes the shipper
    replica/<target>/runs/<run>      a run to be shipped, until the database has all of it
    replica/<target>/kept/<run>/     files that recovery or compaction removed: not read yet
    replica/<target>/claims/<run>    a run that was copied here, and whose hooks wait
    replica/<target>/outbox/         what was given a position (outbox.py)
    replica/<target>/status.json     how far it is; who holds which run
    runs/<run>/replica               the target's folder, in a run that has a replica
"""

from __future__ import annotations

import os
import time

from ...ipc import clock, endpoint
from ...ipc.lightweight import json
from ...ipc.lightweight.sha256 import sha256
from ..storage.run_notes import REPLICA_NOTE, replica_of
from . import claims, conninfo

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

GO, WAIT, NEVER = "go", "wait", "never"
_CLAIMS_KEPT = 7 * 86400.0


def folder() -> str:
    return endpoint.private_folder(os.path.join(endpoint.state_folder(), "replica"))


def target_folder(where: str) -> str:
    """The folder of a replica, with what is in it made where it is missing."""
    path = endpoint.private_folder(os.path.join(folder(), conninfo.name_of(where)))
    for name in ("runs", "kept", "claims", "outbox"):
        endpoint.private_folder(os.path.join(path, name))
    if not os.path.exists(os.path.join(path, "conninfo")):
        write(os.path.join(path, "conninfo"), where)
    try:
        os.mkfifo(os.path.join(path, "wake"), 0o600)
    except FileExistsError:
        pass
    return path


def targets() -> list[str]:
    """The folders of all replicas that this machine ever had."""
    above = os.path.join(endpoint.state_folder(), "replica")
    try:
        names = sorted(os.listdir(above))
    except FileNotFoundError:
        return []
    paths = [os.path.join(above, name) for name in names]
    return [path for path in paths if os.path.exists(os.path.join(path, "conninfo"))]


def machine_file() -> str:
    return os.path.join(folder(), "machine")


def disk() -> str:
    """Where the state folder is, until the next boot: a copy of it is elsewhere."""
    found = os.stat(folder())
    return sha256(f"{clock.boot()} {found.st_dev} {found.st_ino}".encode()).hexdigest()[:16]


def machine() -> str:
    """The id of this machine: of this user's state folder, to be exact."""
    path = machine_file()
    try:
        with open(path) as file:
            return file.read().strip()
    except FileNotFoundError:
        draft = f"{path}.{os.getpid()}"
        write(draft, os.urandom(8).hex())
        try:
            os.link(draft, path)
        except FileExistsError:
            pass  # another process was first
        finally:
            os.unlink(draft)
        return machine()


def register(where: str, run: str, run_folder: str, about: dict[str, Any]) -> None:
    """A run begins that is to be shipped. Before its agent is started."""
    target = target_folder(where)
    write(os.path.join(target, "runs", run), json.dumps(about))
    write(os.path.join(run_folder, REPLICA_NOTE), target)


def write(path: str, text: str) -> None:
    draft = f"{path}.{os.getpid()}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(draft, flags, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)


def read(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.loads(file.read())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def status(target: str) -> dict[str, Any]:
    return read(os.path.join(target, "status.json"))


def keep(run_folder: str, names: list[str]) -> None:
    """Files of a run are about to be removed or replaced: the shipper may not have read them."""
    target = replica_of(run_folder)
    if target is None:
        return
    kept = os.path.join(target, "kept", os.path.basename(run_folder))
    try:
        endpoint.private_folder(kept)
        for name in names:
            path = os.path.join(run_folder, name)
            inode = os.stat(path).st_ino
            try:
                os.link(path, os.path.join(kept, f"{name}@{inode}"))
            except FileExistsError:
                pass  # a recovery before this one was cut off
        endpoint.sync_folder(kept)
    except OSError:
        pass  # the shipper finds numbers missing, and sends the rows instead


def wake(target: str) -> None:
    """There is something to ship. Nothing happens if nobody listens."""
    try:
        fd = os.open(os.path.join(target, "wake"), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.write(fd, b".")
    except OSError:
        pass
    finally:
        os.close(fd)


# -- runs of other machines that were copied here ------------------------------------------------


def note_claim(target: str, run: str, claim: dict[str, Any]) -> None:
    """A run was copied here, and the loss of its machine is not declared: its hooks wait. Before
    anything of it is in place."""
    above = endpoint.private_folder(os.path.join(target, "claims"))
    for name in os.listdir(above):
        answered = "why_not" in claim_of(target, name)
        if answered and time.time() - os.path.getmtime(os.path.join(above, name)) > _CLAIMS_KEPT:
            os.unlink(os.path.join(above, name))
    write(_claim_file(target, run), json.dumps(claim))


def claim_of(target: str, run: str) -> dict[str, Any]:
    return read(_claim_file(target, run))


def waiting_claims(target: str) -> list[str]:
    """The runs that were copied here, and whose hooks wait."""
    try:
        names = sorted(os.listdir(os.path.join(target, "claims")))
    except FileNotFoundError:
        return []
    known = ((name, claim_of(target, name)) for name in names if not name.endswith(".new"))
    return [name for name, claim in known if claim and "why_not" not in claim]


def answer_claim(target: str, run: str, answer: str, why: str) -> None:
    """What the database said. Hooks that are given are hooks like any others."""
    if answer == claims.GIVEN:
        os.unlink(_claim_file(target, run))
    elif answer == claims.NOT_OURS:
        write(_claim_file(target, run), json.dumps({**claim_of(target, run), "why_not": why}))


def _claim_file(target: str, run: str) -> str:
    return os.path.join(target, "claims", run)


# -- who may finalise --------------------------------------------------------------------------


def verdict(status: dict[str, Any], run: str, *, boot: str, now: int) -> tuple[str, str]:
    """Whether the hooks of a run may be run on its own machine: GO, WAIT or NEVER, and why. Pure.

    While the lease surely holds, nobody else can have been given the run. Behind it, somebody may
    have been, so that the database has to be asked: the shipper does, and its next word decides.
    """
    by = (status.get("taken") or {}).get(run)
    if by is not None:
        return NEVER, f"{by} recovered this session, and its hooks are run there"
    lease = status.get("lease") or {}
    until = lease.get("until")
    if lease.get("boot") == boot and isinstance(until, int) and now < until:
        return GO, ""
    return WAIT, "the replica's database has to confirm that no other machine runs them"


def may_run_hooks(run: str) -> tuple[str, str]:
    """The verdict on a run of this machine; GO for one without a replica, and for one that the
    database knows to be finished here."""
    for target in targets():
        claim = claim_of(target, run)
        if claim:
            name = claim.get("name")
            if "why_not" in claim:
                return NEVER, str(claim["why_not"])
            return WAIT, (
                f"machine {name} is not declared lost; if it is gone for good, run "
                f"`hermes-supervise fleet lost {name}`"
            )
        known = status(target)
        about = read(os.path.join(target, "runs", run))
        if about.get("replica_hooks") == "always":
            return GO, ""
        if about or run in (known.get("taken") or {}):
            return verdict(known, run, boot=clock.boot(), now=clock.now())
    return GO, ""


# -- how far it is -----------------------------------------------------------------------------


def progress(stream: str) -> dict[str, Any] | None:
    """How far a stream is shipped: numbers `read` and `replicated`, whether `connected`, the
    `problem` if there is one, and the time of the last look. None: it has no replica."""
    for target in targets():
        found = status(target)
        known = (found.get("streams") or {}).get(stream)
        if known is not None:
            return {
                "read": known[0],
                "replicated": known[1],
                "connected": bool(found.get("connected")),
                "problem": found.get("problem"),
                "at": found.get("at"),
            }
    return None


def in_words(progress: dict[str, Any], said: int | None = None) -> str:
    """`said`: the number of the last record that the agent handed over, where it is known."""
    said = max(said or 0, progress["read"])
    if progress["replicated"] >= said:
        return f"all {said:,} records replicated"
    text = f"{progress['replicated']:,} of {said:,} records replicated"
    if not progress["connected"]:
        since = time.strftime("%H:%M", time.localtime(progress["at"] or 0))
        text += f" (no connection at {since}; the rest follows)"
    return text
