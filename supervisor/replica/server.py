"""The replica's database: every query and every write. The only user of psycopg.

Never decides anything: `claims.py` does. A connection that fails raises `Unreachable`; the caller
connects again and asks what is there, because a commit whose answer was lost may have happened.
"""

from __future__ import annotations

import fcntl
import os
import sys
import termios
import time
from typing import Any

import psycopg

from ...ipc.lightweight import json
from . import claims, tables
from .seal import key_in

LEASE = 60.0
_CONNECT_TIMEOUT = 10
_STATEMENT_TIMEOUT = 30_000
# Whoever is stopped inside a transaction keeps others waiting no longer than this.
_IDLE_TIMEOUT = 5_000
# For the connection, or for a transaction.
_SETTINGS = f"""
SELECT set_config('synchronous_commit', 'on', {{0}}),
    set_config('statement_timeout', '{_STATEMENT_TIMEOUT}', {{0}}),
    set_config('idle_in_transaction_session_timeout', '{_IDLE_TIMEOUT}', {{0}})
"""
# For the shipper: a connection on which nothing moves for so many seconds is given up. Longer than
# a statement may take, because the server is to be the one that says so.
PATIENCE = 45.0


class Unreachable(Exception):
    """The database cannot be used now; the text says why."""


class NotReady(Exception):
    """The database has no tables of ours, or those of a later version."""


class Differs(Exception):
    """A position holds something else than what we have under it."""

    def __init__(self, stream: str, position: int) -> None:
        super().__init__(f"position {position} of stream {stream} holds another record")
        self.stream = stream


class _Connection(psycopg.Connection[Any]):
    """A connection that is given up if nothing moves on it for a while.

    TCP does not help against a server that is stopped, or a proxy whose other side is gone: what
    is sent to them is acknowledged. Nor does a time limit of the server's."""

    patience: float | None = None

    def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        if self.patience is not None:
            gen = self._while_it_moves(gen, self.patience)
        return super().wait(gen, *args, **options)

    def _while_it_moves(self, gen: Any, patience: float) -> Any:
        """psycopg waits in short intervals, and resumes its generators after each of them with
        what the socket is ready for; nothing, if nothing moved. Behind that, the kernel may still
        be sending, over a slow line."""
        try:
            wanted = next(gen)
            since, waiting = time.monotonic(), -1
            while True:
                ready = yield wanted
                if ready or waiting != (waiting := _unsent(self.pgconn.socket)):
                    since = time.monotonic()
                elif time.monotonic() - since > patience:
                    self.pgconn.finish()  # so that nobody waits on it once more
                    raise psycopg.OperationalError(f"no answer for {patience:.0f} s")
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value


class Server:
    def __init__(self, where: str, *, check: bool = True, patience: float | None = None) -> None:
        """`patience`: after so many seconds in which nothing moves, it is unreachable."""
        try:
            self._db = _Connection.connect(
                where,
                autocommit=True,
                **_defaults(where),
            )
            self._db.patience = patience
            self._is_pooled = self._has_another_server()
            if self._is_pooled:
                self._db.prepare_threshold = None  # the next one would not know them
            else:
                self._db.execute(_SETTINGS.format("false"))
        except psycopg.Error as error:
            raise Unreachable(_reason(error)) from error
        if check:
            try:
                self._check_version()
            except BaseException:
                self.close()
                raise

    def _has_another_server(self) -> bool:
        """Whether a pooler is between us and the server: its processes are not those that we are
        told of. It may lend us another one for each transaction, so that what is set holds for a
        transaction only."""
        row = self._db.execute("SELECT pg_backend_pid()").fetchone()
        return row is not None and row[0] != self._db.info.backend_pid

    def _check_version(self) -> None:
        try:
            [[version]] = self._run(tables.FIND_VERSION)
        except (NotReady, ValueError):
            raise NotReady(
                "the database is not prepared; run `hermes-supervise fleet init` once"
            ) from None
        _check(int(version))

    def close(self) -> None:
        try:
            self._db.close()
        except psycopg.Error:
            pass

    def _run(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        if self._lacks_settings():
            with self._transaction():
                return self._run(statement, **values)
        try:
            cursor = self._db.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            raise _failure(error) from error

    def _change(self, statement: str, **values: Any) -> int:
        """How many rows it changed."""
        if self._lacks_settings():
            with self._transaction():
                return self._change(statement, **values)
        try:
            return int(self._db.execute(statement, values).rowcount)
        except psycopg.Error as error:
            raise _failure(error) from error

    def _lacks_settings(self) -> bool:
        idle = psycopg.pq.TransactionStatus.IDLE
        return self._is_pooled and self._db.info.transaction_status == idle

    def _transaction(self) -> _Transaction:
        return _Transaction(self._db, _SETTINGS.format("true") if self._is_pooled else None)

    # -- the shipper ---------------------------------------------------------------------------

    def migrate(self, *, create: bool) -> tuple[int, int]:
        """Make the tables, or bring them to our version: the version before (0: none), and now.
        `create`: only make them where there are none."""
        with self._transaction():
            self._run(tables.LOCK_SCHEMA)
            [[exists]] = self._run(tables.SCHEMA_EXISTS)
            before = int(self._run(tables.FIND_VERSION)[0][0]) if exists else 0
            if create == bool(before) or before == tables.VERSION:
                return before, before
            if before > tables.VERSION:
                _check(before)
            self._run("SET LOCAL statement_timeout = 0")
            for step in tables.MIGRATIONS[before:]:
                self._run(step)
            self._change(tables.SET_VERSION, version=str(tables.VERSION))
            return before, tables.VERSION

    def register(self, machine: str, name: str, disk: str | None = None) -> tuple[int, bool]:
        """The machine's epoch, and whether it was declared lost. `disk`: where it ships from."""
        [[epoch, lost]] = self._run(tables.REGISTER, machine=machine, name=_text(name), disk=disk)
        return epoch, lost

    def renew(self, machine: str, epoch: int, disk: str | None = None) -> str | None:
        """The disk that the machine was last reported from, or "". None: the machine was declared
        lost meanwhile."""
        rows = self._run(tables.RENEW, machine=machine, epoch=epoch, lease=LEASE, disk=disk)
        for version, before in rows:
            _check(int(version))
            return before or ""
        return None

    def come_back(self, machine: str) -> None:
        """The machine was declared lost, and is here: what nobody claimed is its own again."""
        with self._transaction():
            self._change(tables.COME_BACK, machine=machine)

    def taken(self, machine: str) -> tuple[dict[str, str], dict[str, str]]:
        """The runs of this machine that another one copied, with its name; and of them, those
        whose hooks it was given."""
        rows = self._run(tables.TAKEN, machine=machine)
        return {run: name for run, name, _ in rows}, {
            run: name for run, name, given in rows if given
        }

    def have(self, streams: list[str]) -> dict[str, tuple[int, bytes | None]]:
        """The last position of each stream, and what is compared of it (`seal.Sealer.may_be`)."""
        rows = self._run(tables.HAVE, streams=streams)
        return {stream: (position, hash and bytes(hash)) for stream, position, hash in rows}

    def add_run(self, machine: str, run: str, about: bytes) -> None:
        self._change(tables.ADD_RUN, machine=machine, run=run, about=about)

    def unknown_runs(self, machine: str, runs: list[str]) -> list[str]:
        """Of the runs of a machine, those that are not there."""
        return [row[0] for row in self._run(tables.UNKNOWN_RUNS, machine=machine, runs=runs)]

    def end_run(self, machine: str, epoch: int, run: str) -> bool:
        """The machine has finished a run itself. False: it was declared lost meanwhile."""
        with self._transaction():
            [[now, lost]] = self._run(tables.LOCK_EPOCH, machine=machine)
            if lost or now != epoch:
                return False
            self._change(tables.END_RUN, machine=machine, run=run)
            return True

    def ship(
        self,
        machine: str,
        frames: list[tuple[str, int, int, bytes]],
        streams: dict[str, str],
        shares: list[tuple[str, str, str | None]],
        runs: list[str],
    ) -> None:
        """One transaction: frames (stream, position, number, body), and what is new beside them:
        streams with their runs, and shares (session, stream, title).

        All of it is sent at once: a machine that is stopped or cut off in the middle holds no
        locks for which others would wait. If a position is there already, it is looked at again,
        one statement after the other."""
        columns = [list(column) for column in zip(*frames, strict=True)] or [[], [], [], []]
        values = dict(zip(("streams", "positions", "seqs", "bodies"), columns, strict=True))
        beside = _beside(machine, streams, shares)
        try:
            with self._db.pipeline():
                # In words: a commit that fails is an answer to a statement, not to the end of the
                # pipeline, where nobody would hear of it.
                self._db.execute("BEGIN")
                if self._is_pooled:
                    self._db.execute(_SETTINGS.format("true"))
                for statement, its_values in beside:
                    self._db.execute(statement, its_values)
                if frames:
                    self._db.execute(tables.ADD_NEW_FRAMES, values)
                if runs:
                    self._db.execute(tables.HEARD, {"machine": machine, "runs": runs})
                self._db.execute("COMMIT")
            return
        except psycopg.errors.DivisionByZero:
            self._db.rollback()  # a position is not new
        except psycopg.Error as error:
            raise _failure(error) from error
        with self._transaction():
            for statement, its_values in beside:
                self._change(statement, **its_values)
            if self._change(tables.ADD_FRAMES, **values) < len(frames):
                del values["seqs"]
                for stream, position in self._run(tables.DIFFERING, **values):
                    raise Differs(stream, position)
            if runs:
                self._change(tables.HEARD, machine=machine, runs=runs)

    # -- who may finalise ------------------------------------------------------------------------

    def lose(self, machine: str, because: str, silent: float = 0.0) -> bool:
        """Declare a machine lost. False: its lease is not over for so many seconds, or it is lost
        already."""
        values = {"machine": machine, "because": _text(because), "silent": silent}
        return self._change(tables.LOSE, **values) == 1

    def claim(self, me: str, machine: str, run: str) -> tuple[int | None, str, str]:
        """The epoch of the claim, and what is to be done about the hooks (`claims.hooks`); or
        None, and why not."""
        with self._transaction():
            # Everybody who may change the answer locks these rows first, in this order.
            before = self._run(tables.CLAIMED_BY, machine=machine, run=run)
            if not before:
                return None, claims.NOT_OURS, "there is no such run"
            concerned = sorted({machine, before[0][0] or machine})
            found = {row[0]: row for row in self._run(tables.LOCK_MACHINES, machines=concerned)}
            [(epoch, claimed_by, ended, recovered, hooks_by)] = self._run(
                tables.RUN_FOR_CLAIM, machine=machine, run=run
            )
            _, lost, is_over = found.get(machine, (machine, False, False))
            claimer_lost = claimed_by in found and found[claimed_by][1]
            answer, why = claims.claim(
                me, machine, silent=lost or is_over, claimed_by=claimed_by,
                claimer_lost=claimer_lost,
            )  # fmt: skip
            if answer == claims.REFUSED:
                return None, claims.NOT_OURS, why
            [[epoch]] = self._run(tables.CLAIM, me=me, machine=machine, run=run, epoch=epoch)
            hooks, _ = claims.hooks(
                me, lost=lost, claimed_by=me, hooks_by=hooks_by, ended=ended, recovered=recovered
            )
            if hooks == claims.GIVEN:
                self._change(tables.GIVE_HOOKS, me=me, machine=machine, run=run, epoch=epoch)
            return epoch, hooks, ""

    def ask_for_hooks(
        self, me: str, machine: str, run: str, lost_after: float = 0.0
    ) -> tuple[str, str]:
        """Whether we, who have copied a run, are to run its hooks now; and why not.
        `lost_after`: a machine that was silent for so many seconds is lost; 0: never."""
        if lost_after:
            self.lose(machine, f"silent for more than {lost_after:.0f} s", lost_after)
        with self._transaction():
            found = self._run(tables.LOCK_MACHINES, machines=[machine])
            rows = self._run(tables.RUN_FOR_CLAIM, machine=machine, run=run)
            for epoch, claimed_by, ended, _, hooks_by in rows:
                lost = any(row[1] for row in found)
                answer, why = claims.hooks(
                    me, lost=lost, claimed_by=claimed_by, hooks_by=hooks_by, ended=ended
                )
                if answer == claims.GIVEN:
                    self._change(tables.GIVE_HOOKS, me=me, machine=machine, run=run, epoch=epoch)
                return answer, why
            return claims.NOT_OURS, "it was deleted from the replica"

    def recovered(
        self, me: str, machine: str, run: str, epoch: int, upto: dict[str, int] | None = None
    ) -> bool:
        """Say that a claimed run is recovered, up to a position in each stream. False: the claim
        is no longer ours."""
        values = {"me": me, "machine": machine, "run": run, "epoch": epoch}
        values["upto"] = json.dumps(upto or {})
        return self._change(tables.RECOVERED, **values) == 1

    def recovered_to(self, machine: str, run: str) -> dict[str, int] | None:
        """How far the run was recovered by the machine that has claimed it; None: not yet."""
        [[upto]] = self._run(tables.RECOVERED_TO, machine=machine, run=run)
        return None if upto is None else {str(s): int(p) for s, p in upto.items()}

    # -- forgetting ------------------------------------------------------------------------------

    def forgettable(self, machine: str | None, older: float) -> list[tuple[str, str, bool, bool]]:
        """Machine, run, whether it is open, and whether its machine is alive; of one machine, or
        of all. `older`: not heard of for so many seconds."""
        rows = self._run(tables.FORGETTABLE, machine=machine, older=older)
        return [(row[0], row[1], row[2], row[3]) for row in rows]

    def forget_run(self, machine: str, run: str, *, even_open: bool = False) -> bool:
        """Delete all that is there of a run. False: nobody has finished it, or somebody recovers
        it just now."""
        with self._transaction():
            # As for a claim: whoever changes the answer locks these rows first, in this order.
            before = self._run(tables.CLAIMED_BY, machine=machine, run=run)
            concerned = sorted({machine, *(row[0] for row in before if row[0])})
            self._run(tables.LOCK_MACHINES, machines=concerned)
            for is_open, is_claimed in self._run(tables.IS_OPEN, machine=machine, run=run):
                if is_open and (is_claimed or not even_open):
                    return False
                for statement in tables.FORGET_RUN:
                    self._change(statement, machine=machine, run=run)
            return True

    def forget_machine(self, machine: str) -> bool:
        """Delete a machine that has no runs. False: it has, or it is alive."""
        return self._change(tables.FORGET_MACHINE, machine=machine) == 1

    def forget_expired(self, machine: str, older: float) -> int:
        """Delete some of this machine's own finished runs; how many."""
        rows = self._run(tables.EXPIRED, machine=machine, older=older)
        return sum(self.forget_run(machine, row[0]) for row in rows)

    def forgotten(self, machine: str, runs: list[str]) -> set[str]:
        """Of the runs of a machine, those that were deleted on purpose."""
        return {row[0] for row in self._run(tables.FORGOTTEN, machine=machine, runs=runs)}

    # -- looking ---------------------------------------------------------------------------------

    def machines(self) -> list[dict[str, Any]]:
        names = ("machine", "name", "owner", "seen", "state", "lost_at", "lost_because", "lease")
        return [dict(zip(names, row, strict=True)) for row in self._run(tables.MACHINES)]

    def runs(self) -> list[dict[str, Any]]:
        names = ("machine", "run", "began", "heard", "ended_at", "claimed_by", "hooks_by",
                 "recovered_at", "records")  # fmt: skip
        return [dict(zip(names, row, strict=True)) for row in self._run(tables.RUNS)]

    def sessions(self) -> list[dict[str, Any]]:
        names = ("machine", "run", "session", "title", "began")
        return [dict(zip(names, row, strict=True)) for row in self._run(tables.SESSIONS)]

    def runs_of(self, session: str) -> list[tuple[str, str, str]]:
        """Machine, run and session id of the runs in which a session was spoken, the latest last.
        `session` may be the beginning of an id."""
        escaped = _text(session).replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        rows = self._run(tables.RUNS_OF, session=_text(session), prefix=escaped + "%")
        exact = [row for row in rows if row[2] == session]
        return [(machine, run, id) for machine, run, id, _ in exact or rows]

    def went_on(self, machine: str, run: str) -> set[str]:
        return {row[0] for row in self._run(tables.WENT_ON, machine=machine, run=run)}

    def about(self, machine: str, run: str) -> tuple[bytes, float]:
        """What the run's settings were, and when it was last heard of."""
        [[about, heard]] = self._run(tables.ABOUT, machine=machine, run=run)
        return bytes(about), heard

    def keys_of(self, machine: str, run: str) -> set[bytes]:
        """The ids of the keys that the records of a run are encrypted with."""
        rows = self._run(tables.SEALS, machine=machine, run=run)
        found = {key_in(bytes(row[0])) for row in rows} | {key_in(self.about(machine, run)[0])}
        return {key for key in found if key is not None}

    def frames(self, machine: str, run: str) -> dict[str, list[tuple[int, bytes]]]:
        """By stream: position and body, in the order of their positions."""
        found: dict[str, list[tuple[int, bytes]]] = {}
        try:
            with self._db.transaction(), self._db.cursor("frames", binary=True) as cursor:
                cursor.itersize = 2000
                cursor.execute(tables.FRAMES, {"machine": machine, "run": run})
                for stream, position, body in cursor:
                    found.setdefault(stream, []).append((position, bytes(body)))
        except psycopg.Error as error:
            raise Unreachable(_reason(error)) from error
        return found

    def settings(self) -> dict[str, str]:
        return dict(self._run(tables.SETTINGS))

    def lacking_rights(self) -> list[str]:
        return [table for table, granted in self._run(tables.RIGHTS) if not granted]

    def clock(self) -> float:
        [[now]] = self._run("SELECT extract(epoch FROM clock_timestamp())::float8")
        return float(now)

    def is_encrypted(self) -> bool | None:
        """None: the connection does not leave the machine."""
        rows = self._run("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
        local = (self._db.info.host or "/").startswith("/")
        return None if local else bool(rows and rows[0][0])


def _unsent(socket: int) -> int:
    """How many bytes in the kernel's hands are not at the other end yet."""
    try:
        answer = fcntl.ioctl(socket, termios.TIOCOUTQ, bytes(4))
    except OSError:
        return 0
    return int.from_bytes(answer, sys.byteorder)


def _beside(
    machine: str, streams: dict[str, str], shares: list[tuple[str, str, str | None]]
) -> list[tuple[str, dict[str, Any]]]:
    """The statements that say what is new beside records, with their values."""
    found: list[tuple[str, dict[str, Any]]] = []
    if streams:
        values = {"machine": machine, "streams": list(streams), "runs": list(streams.values())}
        found.append((tables.ADD_STREAMS, values))
    if shares:
        named = {
            "sessions": [_text(session) for session, _, _ in shares],
            "streams": [stream for _, stream, _ in shares],
            "titles": [None if t is None else _text(t) for _, _, t in shares],
        }
        found.append((tables.ADD_SHARES, named))
    return found


class _Transaction:
    """`settings`: a statement that makes the settings of this transaction."""

    def __init__(self, db: psycopg.Connection[Any], settings: str | None) -> None:
        self._db = db
        self._settings = settings
        self._within = db.transaction()

    def __enter__(self) -> None:
        try:
            self._within.__enter__()
            if self._settings is not None:
                self._db.execute(self._settings)
        except psycopg.Error as error:
            raise Unreachable(_reason(error)) from error

    def __exit__(self, *exception: Any) -> None:
        try:
            self._within.__exit__(*exception)
        except psycopg.Error as error:
            raise Unreachable(_reason(error)) from error


def _check(version: int) -> None:
    """Whether we may use tables of this version."""
    if version > tables.VERSION:
        raise NotReady(
            f"the tables are of version {version}, and this hermes-supervise knows "
            f"{tables.VERSION}; upgrade hermes-supervise on this machine"
        )
    if version < tables.VERSION:
        raise NotReady(
            f"the tables are of version {version}, and this hermes-supervise needs "
            f"{tables.VERSION}; run `hermes-supervise fleet migrate` once"
        )


def _defaults(where: str) -> dict[str, Any]:
    """What the user has not set: to notice a dead connection, to be known by name, and of several
    hosts to find the one that was promoted."""
    given = psycopg.conninfo.conninfo_to_dict(where)
    wanted: dict[str, Any] = {
        "application_name": "hermes-supervise",
        "connect_timeout": _CONNECT_TIMEOUT,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": _STATEMENT_TIMEOUT,
        "target_session_attrs": "read-write",
    }
    variables = {
        "application_name": "PGAPPNAME",
        "connect_timeout": "PGCONNECT_TIMEOUT",
        "target_session_attrs": "PGTARGETSESSIONATTRS",
    }
    return {
        name: value
        for name, value in wanted.items()
        if name not in given and variables.get(name, "") not in os.environ
    }


def _text(value: str) -> str:
    """What a text column takes: no NUL, and no lone surrogate."""
    return value.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def _failure(error: psycopg.Error) -> Unreachable | NotReady:
    if isinstance(error, (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName)):
        return NotReady(_reason(error))
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return NotReady(f"no right: {_reason(error)}")
    return Unreachable(_reason(error))


def _reason(error: psycopg.Error) -> str:
    text = " ".join(str(error).split())
    return text or type(error).__name__
