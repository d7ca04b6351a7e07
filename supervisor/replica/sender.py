"""What the shipper sends: the outbox into the database, from what the database has on; the lease.

Never sends a record in plain text that is to be encrypted: where its key cannot be had, everything
waits in the outbox. A connection that fails is given up, and the next one asks what is there.
"""

from __future__ import annotations

import platform
import time

from ...ipc import clock, frames
from . import places, seal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .intake import Intake
    from .outbox import Cursor, Entry, Outbox
    from .server import Server

_RENEW = 10.0
_EXPIRE = 3600.0
_BATCH_BYTES = 1024 * 1024
_CAUSE = (
    "was the disk restored from an older copy, or copied? What is said in that stream from now on "
    "stays on this machine"
)
_RETRY = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Sender:
    def __init__(
        self,
        machine: str,
        where: str,
        outbox: Outbox,
        intake: Intake,
        progress: dict[str, list[int]],
        target: str,
        publish: Callable[[], None],
    ) -> None:
        """`publish`: others on this machine have to know at once what has changed."""
        self._machine = machine
        self._disk = places.disk()
        self._where = where
        self._target = target
        self._outbox = outbox
        self._intake = intake
        self._progress = progress
        self._publish = publish
        self._server: Server | None = None
        self._epoch = 0
        self.cursor: Cursor = outbox.start()
        self._have: dict[str, int] = {}
        self._tips: dict[str, tuple[int, bytes]] = {}
        """By stream: its last position when we connected, and the hash of what it holds."""
        self._refused: set[str] = set()
        self._forgotten: set[str] = set()
        """Streams of runs that are over, and were deleted from the database on purpose."""
        # What the database has been given of them, on this connection.
        self._registered_runs: set[str] = set()
        self._registered_streams: set[str] = set()
        self._registered_shares: dict[tuple[str, str], str | None] = {}
        self._sealers: dict[str | None, seal.Sealer] = {}
        self._waits_for_key = False
        self._failures = 0
        self._try_at = 0.0
        self._renew_at = 0.0
        self._expire_at = 0.0
        self.problem: str | None = None
        self.lease: dict[str, Any] = {}
        self.taken: dict[str, str] = {}
        """Runs whose hooks another machine was given, with its name."""
        self.copied: dict[str, str] = {}
        """Runs that another machine has a copy of, with its name."""

    @property
    def connected(self) -> bool:
        return self._server is not None

    @property
    def all_sent(self) -> bool:
        return self._outbox.is_read(self.cursor)

    def until_next_try(self) -> float:
        """How long there is nothing to do without a connection."""
        return max(0.0, self._try_at - time.monotonic())

    def send(self) -> None:
        """Bring the outbox into the database, as far as it goes."""
        if self._server is None and not self._connect():
            return
        from .server import Differs, NotReady, Unreachable  # loaded with the first connection

        assert self._server is not None
        try:
            if time.monotonic() >= self._renew_at:
                self._renew(self._server)
            self._add_runs(self._server)
            while self._send_batch(self._server):
                pass
            self._end_runs(self._server)
            self._forget_expired(self._server)
            if self._waits_for_key:
                self._waits_for_key, self.problem = False, None
        except Differs as alarm:
            self._refused.add(alarm.stream)
            self.problem = f"the replica holds other records than this machine: {alarm}; {_CAUSE}"
        except seal.KeyProblem as error:
            self._waits_for_key = True
            self.problem = f"records wait on this disk: {error}"
            self._sealers.clear()  # the file may be back the next time
        except (Unreachable, NotReady) as error:
            self._disconnect(str(error))

    # -- a batch -------------------------------------------------------------------------------

    def _sealer(self, key: str | None) -> seal.Sealer:
        if key not in self._sealers:
            self._sealers[key] = seal.load(key)
        return self._sealers[key]

    def _add_runs(self, server: Server) -> None:
        for run in self._intake.runs.values():
            if run.name not in self._registered_runs:
                space = about_space(self._machine, run.name)
                about = self._sealer(run.key).seal(run.text.encode(), space)
                server.add_run(self._machine, run.name, about)
                self._registered_runs.add(run.name)

    def _send_batch(self, server: Server) -> bool:
        entries, behind = self._outbox.read(self.cursor, _BATCH_BYTES)
        if not entries:
            return False
        origins = self._intake.origins
        new = [
            entry
            for entry in entries
            if entry[1] > self._have.get(entry[0], 0)
            and entry[0] not in self._refused
            and entry[0] not in self._forgotten
            and entry[0] in origins
        ]
        self._compare(entries)
        if new:
            batch = [
                (
                    s,
                    position,
                    frames.number_of(f),
                    self._sealer(origins[s].key).seal(f, s, position),
                )
                for s, position, f in new
            ]
            streams = {s for s, _, _ in new}
            unknown = {s: origins[s].run for s in streams - self._registered_streams}
            shares = self._new_shares(streams)
            sealed = [(x, s, self._title(t, x, origins[s].key)) for x, s, t in shares]
            runs = sorted({origins[s].run for s in streams})
            server.ship(self._machine, batch, unknown, sealed, runs)
            self._registered_streams |= set(unknown)
            self._registered_shares |= {(session, s): title for session, s, title in shares}
        for stream, position, frame in entries:
            if stream in self._refused:
                continue
            self._have[stream] = max(position, self._have.get(stream, 0))
            known = self._progress.setdefault(stream, [0, 0])
            known[1] = max(known[1], frames.number_of(frame))
        self.cursor = behind
        return True

    def _compare(self, entries: list[Entry]) -> None:
        """What the database had when we connected is what we have sent. Raises Differs."""
        from .server import Differs  # loaded with the first connection

        for stream, position, frame in entries:
            last, hashed = self._tips.get(stream, (None, b""))
            if position == last and stream in self._intake.origins:
                sealer = self._sealer(self._intake.origins[stream].key)
                del self._tips[stream]
                if not sealer.may_be(hashed, frame, stream, position):
                    raise Differs(stream, position)

    def _title(self, title: str | None, session: str, key: str | None) -> str | None:
        if title is None:
            return None
        return self._sealer(key).seal_text(title, title_space(session))

    def _new_shares(self, streams: set[str]) -> list[tuple[str, str, str | None]]:
        found = []
        for stream in streams:
            run = self._intake.run_of(stream)
            for session in run.listener.shares.get(stream, {}) if run is not None else ():
                title = run.listener.titles.get(session) if run is not None else None
                if self._registered_shares.get((session, stream), "") != title:
                    found.append((session, stream, title))
        return found

    def _end_runs(self, server: Server) -> None:
        for run in self._intake.runs.values():
            read = run.raw_is_whole and not run.listener.looks
            if run.files.gone and read and self.all_sent:
                run.ended = server.end_run(self._machine, self._epoch, run.name)
                if not run.ended:
                    self._renew_at = 0.0  # the machine was declared lost meanwhile

    def _forget_expired(self, server: Server) -> None:
        """What is older than the user wants to keep it on the server."""
        days = self._intake.retention
        if not days or time.monotonic() < self._expire_at:
            return
        from .server import NotReady  # loaded with the first connection

        try:
            more = server.forget_expired(self._machine, days * 86400.0)
        except NotReady as error:
            self.problem = f"old runs cannot be deleted from the replica: {error}"
            more = 0
        self._expire_at = time.monotonic() + (0.0 if more else _EXPIRE)

    # -- the connection, and the lease ---------------------------------------------------------

    def _connect(self) -> bool:
        if time.monotonic() < self._try_at:
            return False
        try:
            from .server import PATIENCE, NotReady, Server, Unreachable  # heavy: psycopg
        except ImportError as error:
            self._disconnect(f"psycopg cannot be loaded: {error}")
            return False
        try:
            server = Server(self._where, patience=PATIENCE)
        except (Unreachable, NotReady) as error:
            self._disconnect(str(error))
            return False
        try:
            self._register(server)
            known = server.have(sorted(self._progress.keys() | self._intake.origins.keys()))
            self._have = {stream: position for stream, (position, _) in known.items()}
            self._tips = {s: (at, hashed) for s, (at, hashed) in known.items() if hashed}
            self._tell_again(server)
        except (Unreachable, NotReady) as error:
            server.close()
            self._disconnect(str(error))
            return False
        self._server = server
        self.cursor = self._outbox.start()
        self._registered_runs.clear()
        self._registered_streams.clear()
        self._registered_shares.clear()
        self._sealers.clear()  # a key may have been put before the others
        self._failures, self.problem, self._renew_at = 0, None, 0.0
        self._refuse_restored()
        return True

    def _refuse_restored(self) -> None:
        """The database has records of ours that this disk never had: it is an older copy."""
        for stream, known in self._intake.numberings.items():
            if self._have.get(stream, 0) > known.last and stream not in self._refused:
                self._refused.add(stream)
                self.problem = (
                    f"the replica has more records of stream {stream} than this machine; {_CAUSE}"
                )

    def _register(self, server: Server) -> None:
        name = platform.node() or "unknown"
        self._epoch, lost = server.register(self._machine, name, self._disk)
        if lost:
            server.come_back(self._machine)
            self._epoch, _ = server.register(self._machine, name, self._disk)

    def _tell_again(self, server: Server) -> None:
        """A promoted standby may not know of runs that are over, and of which we still have
        everything."""
        over = self._intake.over
        if not over:
            return
        forgotten = server.forgotten(self._machine, sorted(over))
        self._forgotten = {
            s for s, origin in self._intake.origins.items() if origin.run in forgotten
        }
        for run in sorted(set(server.unknown_runs(self._machine, sorted(over))) - forgotten):
            keys = {o.key for o in self._intake.origins.values() if o.run == run}
            space = about_space(self._machine, run)
            for key in keys:
                try:
                    about = self._sealer(key).seal(over[run].encode(), space)
                except seal.KeyProblem:
                    continue  # so its records wait as well
                server.add_run(self._machine, run, about)
                server.end_run(self._machine, self._epoch, run)

    def _disconnect(self, why: str) -> None:
        self.problem = why
        self.close()
        wait = _RETRY[min(self._failures, len(_RETRY) - 1)]
        self._failures += 1
        self._try_at = time.monotonic() + wait

    def _renew(self, server: Server) -> None:
        """The lease surely lasts from before the question, never from its answer."""
        from .server import LEASE  # loaded with the first connection

        asked = clock.now()
        before = server.renew(self._machine, self._epoch, self._disk)
        if before is None:
            self.lease = {}
            self._publish()  # before anything else: nobody here may finalise by the old lease
            server.come_back(self._machine)
            self._register(server)
            asked = clock.now()
            before = server.renew(self._machine, self._epoch, self._disk)
            if before is None:
                return
        self.copied, self.taken = server.taken(self._machine)
        self.lease = {"boot": clock.boot(), "until": asked + int(LEASE * 1e9)}
        self._renew_at = time.monotonic() + _RENEW
        if before not in ("", self._disk):
            self.problem = (
                f"another machine reports as {self._machine}: its disk is a copy of this one, or "
                f"the other way round; remove {places.machine_file()} on one of them"
            )
        self._ask_for_hooks(server)

    def _ask_for_hooks(self, server: Server) -> None:
        """Of runs that were copied here, whether their hooks are ours to run by now."""
        for run in places.waiting_claims(self._target):
            claim = places.claim_of(self._target, run)
            answer, why = server.ask_for_hooks(
                self._machine, claim["machine"], claim["run"], claim["lost_after"]
            )
            places.answer_claim(self._target, run, answer, why)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._server = None


def title_space(session: str) -> str:
    """What the title of a session is encrypted for."""
    return f"title/{session}"


def about_space(machine: str, run: str) -> str:
    """What the settings of a run are encrypted for."""
    return f"run/{machine}/{run}"
