"""The shipper: the process that brings what the journals of this machine say into the database.

Never in anybody's way: it reads files, and nobody waits for it. One for each target, for all runs;
it outlives them, and exits when the database has everything.

    read      what is new in the runs' files; each frame gets its position, in the outbox, synced
              (intake.py)
    send      the outbox, from what the database has on; one transaction for a batch; the lease, and
              what other machines claimed (sender.py)
    forget    what the database has, after a while; runs that are over

The database may be gone for as long as it likes: reading goes on, up to the limit of the outbox.
Beyond it records are dropped, and said to be; once there is room again, the sessions' rows are
shipped in their place.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

from ...ipc.lightweight import json
from ..storage.run_lock import lock_file
from . import places
from .intake import Intake
from .outbox import Outbox
from .sender import Sender

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_TICK = 1.0
_STREAMS_KEPT = 500


class Shipper:
    def __init__(self, target: str) -> None:
        self._target = target
        with open(os.path.join(target, "conninfo"), encoding="utf-8") as file:
            where = file.read()
        self._machine = places.machine()
        self._outbox = Outbox(os.path.join(target, "outbox"))
        old = places.status(target)
        self._progress = {s: [p[0], 0] for s, p in (old.get("streams") or {}).items()}
        """By stream: the last numbers that were read, and that are replicated."""
        self._intake = Intake(target, self._outbox, self._progress)
        self._sender = Sender(
            self._machine, where, self._outbox, self._intake, self._progress, target,
            self.write_status,
        )  # fmt: skip
        self._sender.taken = dict(old.get("taken") or {})
        self._dropping = False
        self._idle = False
        self._written: dict[str, Any] = {}

    def read(self) -> None:
        self._intake.find_runs()
        self._mind_the_disk()
        self._intake.read(idle=self._idle, dropping=self._dropping)

    def _mind_the_disk(self) -> None:
        """Nothing more is taken in while the database is gone and our share of the disk is full.
        What was dropped is healed once the rest is sent: the sessions' rows stand for it."""
        sent = self._sender.connected and self._sender.all_sent
        if self._outbox.size() > self._intake.disk:
            # Room for what is said next matters more than a copy of what is sent.
            if sent:
                self._outbox.roll(self._intake.state)
                self._sender.cursor = self._outbox.end()
            self._outbox.drop(self._sender.cursor, 0.0)
        if not sent and self._outbox.size() > self._intake.disk:
            self._dropping = True
        elif self._dropping and sent:
            self._dropping = False
            self._intake.heal()

    def send(self) -> None:
        self._sender.send()

    def forget(self) -> None:
        if self._sender.connected:
            self._outbox.drop(self._sender.cursor, self._intake.keep)
        self.write_status()
        sent = self._sender.all_sent
        for run in [run for run in self._intake.runs.values() if run.ended]:
            self._intake.finish(run)
        if sent:
            self._sender.cursor = self._outbox.end()  # behind notes of our own

    def write_status(self) -> None:
        dropping = "its part of the disk is full; records are dropped until the database is back"
        while len(self._progress) > _STREAMS_KEPT:
            del self._progress[next(iter(self._progress))]
        now = {
            "pid": os.getpid(),
            "machine": self._machine,
            "connected": self._sender.connected,
            "problem": self._sender.problem,
            "warning": dropping if self._dropping else None,
            "lease": self._sender.lease,
            "taken": self._sender.taken,
            "copied": self._sender.copied,
            "streams": {stream: list(pair) for stream, pair in self._progress.items()},
        }
        if now != self._written:
            self._written = now
            path = os.path.join(self._target, "status.json")
            draft = path + ".new"
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            with open(os.open(draft, flags, 0o600), "w", encoding="utf-8") as file:
                file.write(json.dumps({**now, "at": time.time()}))
            os.replace(draft, path)

    @property
    def done(self) -> bool:
        """The database has everything, and nobody will say more."""
        idle = not self._intake.runs and not os.listdir(os.path.join(self._target, "runs"))
        idle = idle and not places.waiting_claims(self._target)
        return idle and self._sender.all_sent and self._sender.connected

    def wait(self, wake: int) -> None:
        """Until somebody has said something, and then a moment more; or for a second."""
        left = _TICK
        if not self._sender.connected:
            left = min(left, self._sender.until_next_try())
        self._idle = not select.select([wake], [], [], left)[0]
        if not self._idle:
            try:
                os.read(wake, 65536)
            except BlockingIOError:
                pass

    def say_why(self, fault: Exception) -> None:
        """We cannot go on: `ps` and `fleet doctor` say why."""
        self._sender.problem = f"the shipper stopped: {type(fault).__name__}: {fault}"
        try:
            self.write_status()
        except OSError:
            pass  # no room on the disk, most likely

    def close(self) -> None:
        self._outbox.close()
        self._sender.close()


def lock(target: str) -> int | None:
    """The lock of the one shipper of a target; None: another process has it."""
    return lock_file(os.path.join(target, "lock"))


def ship(target: str) -> int:
    """Ship until the database has everything; the exit status."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    wake = os.open(os.path.join(target, "wake"), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    while (held := lock(target)) is not None:
        try:
            _ship_all(target, wake)
        except OSError:
            time.sleep(_TICK)  # no room on the disk, most likely: read everything again
        finally:
            os.close(held)
        # A run that began just now found the lock taken, and starts no shipper.
        if not os.listdir(os.path.join(target, "runs")) and not places.waiting_claims(target):
            break
    return 0


def _ship_all(target: str, wake: int) -> None:
    shipper = Shipper(target)
    try:
        while True:
            shipper.read()
            shipper.send()
            shipper.forget()
            if shipper.done:
                return
            shipper.wait(wake)
    except Exception as fault:
        shipper.say_why(fault)
        raise
    finally:
        shipper.close()


if __name__ == "__main__":
    sys.exit(ship(sys.argv[1]))
