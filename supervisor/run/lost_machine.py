"""Recovers a run of a lost machine on this one: claimed, rebuilt, and finished like any other.

Never runs a command, and never opens a path, that the database names: hooks, state.db and the
agent's interpreter are those of this machine.

    1  claim the run, and its hooks if the loss is       one transaction on the replica
       declared; if not, note that they wait
    2  rebuild its streams into a folder of their own    nobody else looks there
    3  rename it to be a run that was left behind        `recover` can finish it from here on
    4  finish it: rows, end marks, hooks, report         as after any crash
    5  say so on the replica

A machine that came back goes on in its session. Run again, only what follows is rebuilt, as streams
of other names, so that nothing is stored twice.

Cut off anywhere and run again on this machine, it goes on: the claim is ours, and markers say what
is written.
"""

from __future__ import annotations

import os
import platform
import shutil
import time
from hashlib import sha256

from ...ipc import endpoint, frames
from ...ipc.endpoint import sync_folder
from ...ipc.lightweight import json
from ..agents import registry
from ..agents.state_db import default_db
from ..model.options import HOOK_EVENTS
from ..recovery.replay import replay
from ..replica import claims, places, raw, rebuild, seal, snapshot
from ..replica.sender import about_space
from ..storage import run_folder as runs
from ..storage.journal import segment_name
from .recover import finish_left_behind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..model.options import Options
    from ..recovery.report import SessionReport
    from ..replica.server import Server

# The settings that are taken from the lost run. All others are this machine's.
_ABOUT = ("command", "cwd", "started", "boot")
# Fields of the hello that hold only where it was said.
_OF_THE_MACHINE = ("speaks_for", "db", "executable", "env")


class Refused(Exception):
    """The run is not ours to recover; the text says why."""


def recover(
    server: Server,
    target: str,
    machine: dict[str, Any],
    run: str,
    options: Options,
    progress: Callable[[int, int], None] | None = None,
) -> list[SessionReport]:
    """Recover one run of a lost machine. `target`: the folder of the replica here. Raises Refused,
    and what the server raises."""
    me = places.machine()
    if machine["machine"] == me:
        raise Refused("it is of this machine; `hermes-supervise recover` finishes it")
    server.register(me, platform.node() or "unknown")
    sealer = _sealer(server, machine["machine"], run, options)
    epoch, hooks, why = server.claim(me, machine["machine"], run)
    if epoch is None:
        raise Refused(why)
    before = server.recovered_to(machine["machine"], run)
    if hooks == claims.WAITING and before is None:
        note = {"machine": machine["machine"], "name": machine["name"], "run": run,
                "lost_after": options.replica_lost_after}  # fmt: skip
        places.note_claim(target, run, note)
    # What an earlier recovery has of the run gives what follows a name of its own.
    name = run if before is None else f"{run}c{sum(before.values())}"
    claimed = runs.claim(os.path.join(runs.runs_folder(), name))  # left by one that was cut off
    if claimed is None:
        lost = _Lost(server, machine, run, sealer)
        # Those of the first recovery are queued already.
        owes_hooks = before is None and hooks != claims.NOT_OURS
        claimed = lost.rebuilt(name, options, before, owes_hooks=owes_hooks)
    upto = _positions(runs.settings(claimed).get("recovered_to"))
    finished = finish_left_behind(claimed, progress=progress)
    runs.retire(claimed)
    if all(report.complete for report in finished.reports):
        server.recovered(me, machine["machine"], run, epoch, upto)
    return finished.reports


class _Lost:
    """A run of a lost machine, as it is on the replica."""

    def __init__(
        self, server: Server, machine: dict[str, Any], run: str, sealer: seal.Sealer
    ) -> None:
        self._machine = machine
        about_text, self._heard = server.about(machine["machine"], run)
        try:
            self._about = _dict(sealer.open(about_text, about_space(machine["machine"], run)))
        except seal.Damaged:
            self._about = {}
        frames = server.frames(machine["machine"], run)
        self._last = {stream: placed[-1][0] for stream, placed in frames.items()}
        self._frames, self._damaged = _opened(frames, sealer)
        self._without = server.went_on(machine["machine"], run)

    def rebuilt(
        self, name: str, options: Options, before: dict[str, int] | None, *, owes_hooks: bool
    ) -> runs.Run:
        """The run as a folder that was left behind, locked by us. `before`: how far it was
        recovered here already. Raises Refused if nothing follows."""
        db = os.path.abspath(options.db) if options.db else default_db()

        def present(session: str) -> list[dict[str, Any]]:
            return snapshot.take(db, session, ()).messages

        shipped = {s: [frame for _, frame in placed] for s, placed in self._frames.items()}
        here = rebuild.Here(hello=_hello, present=present, without=self._without)
        if before is None:
            here.trouble = _lost(self._machine, self._heard)
        else:
            here.trouble = _came_back(self._machine)
            here.before = self._stored(before)
        here.trouble += _changed(self._damaged) + _put_back(shipped, self._without)
        if before is not None:
            shipped = self._following(before)
        streams = rebuild.rebuild(shipped, here)
        if before is not None:
            # Markers say of the streams that all of them is stored: what follows is another one.
            streams = {_name_behind(s, before.get(s, 0)): frames for s, frames in streams.items()}
        folder = endpoint.private_folder(os.path.join(places.folder(), "rebuilding"))
        shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
        run = runs.make(os.path.join(folder, name))
        settings = {name: self._about[name] for name in _ABOUT if name in self._about}
        settings |= {
            "db": db,
            "hook_timeout": options.hook_timeout,
            "hook_retry": options.hook_retry,
            "recovered_from": self._machine["name"],
            "recovered_to": self._last,
        }
        if not owes_hooks:
            settings["hooks_run_by"] = "another machine"
        for event in HOOK_EVENTS:
            settings[event] = getattr(options, event)
        places.write(run.path("run.json"), json.dumps(settings))
        for stream, numbered in streams.items():
            path = run.path(segment_name(stream, 1))
            with open(path, "wb", opener=endpoint.private_file) as file:
                file.writelines(frame for _, frame in numbered)
                file.flush()
                os.fsync(file.fileno())
        sync_folder(run.folder)
        return runs.put_in_place(run)

    def _following(self, before: dict[str, int]) -> dict[str, list[bytes]]:
        """What was said behind the positions that were recovered."""
        streams = {}
        for stream, placed in self._frames.items():
            cut = before.get(stream, 0)
            after = [frame for position, frame in placed if position > cut]
            if any(frames.number_of(frame) for frame in after):
                known = [frame for position, frame in placed if position <= cut]
                streams[stream] = rebuild.without_records(known) + after
        if not streams:
            raise Refused("it was recovered here already, and nothing was said there since")
        return streams

    def _stored(self, before: dict[str, int]) -> dict[str, rebuild.Before]:
        """What the recovery up to these positions has stored of each stream."""
        cut = {
            stream: [frame for position, frame in placed if position <= before[stream]]
            for stream, placed in self._frames.items()
            if stream in before
        }
        stored = {}
        for stream, numbered in rebuild.rebuild(cut, rebuild.Here(without=self._without)).items():
            known = rebuild.Before(first=rebuild.first_session(cut[stream]))
            for session in replay(numbered).sessions.values():
                known.sessions.add(session.id)
                known.answered |= session.calls.keys()
                if session.reply is not None:
                    known.replies[session.id] = session.reply.text
            stored[stream] = known
        return stored


def _name_behind(stream: str, position: int) -> str:
    return sha256(f"{stream}/{position}".encode()).hexdigest()[:32]


def _positions(value: object) -> dict[str, int]:
    items = value.items() if isinstance(value, dict) else ()
    return {stream: position for stream, position in items if isinstance(position, int)}


def _sealer(server: Server, machine: str, run: str, options: Options) -> seal.Sealer:
    """What opens the records of a run. Raises Refused, before the run is claimed: a machine that
    has the key may still recover it."""
    try:
        sealer = seal.load(options.replica_key)
        needed = server.keys_of(machine, run)
        if lacking := sealer.lacks(needed):
            raise Refused(seal.missing(lacking, any_key=sealer.seals))
        if needed and not seal.is_installed():
            raise Refused(seal.INSTALL)
    except seal.KeyProblem as error:
        raise Refused(str(error)) from None
    return sealer


def _opened(
    streams: dict[str, list[tuple[int, bytes]]], sealer: seal.Sealer
) -> tuple[dict[str, list[tuple[int, bytes]]], int]:
    """The frames of each stream with their positions, and how many of them cannot be decrypted."""
    opened: dict[str, list[tuple[int, bytes]]] = {}
    damaged = 0
    for stream, placed in streams.items():
        kept = opened.setdefault(stream, [])
        for position, body in placed:
            try:
                kept.append((position, sealer.open(body, stream, position)))
            except seal.Damaged:
                damaged += 1
    return opened, damaged


def _put_back(shipped: dict[str, list[bytes]], without: set[str]) -> str:
    """The agents' own transcripts to where the agents here look for them. What the user has to
    know about that, for the end of a sentence."""
    differing = []
    for stream in shipped.values():
        name = rebuild.hello_of(stream).get("agent")
        agent = registry.named(name if isinstance(name, str) else "")
        for path, (session, contents) in raw.put_together(stream).items():
            place = agent.transcript_here(path)
            if place is None or session in without:
                continue
            if not _is_extended(place, contents):
                differing.append(place)
    if not differing:
        return ""
    return f". {', '.join(differing)} holds something else than on that machine, and is left alone"


def _is_extended(path: str, contents: bytes) -> bool:
    """Make a file hold what was shipped. What is there already is the beginning of it, or goes
    further; False: neither, and it is left alone."""
    folder = os.path.dirname(path)
    os.makedirs(folder, 0o700, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(path, flags, 0o600), "r+b", buffering=0) as file:
        there = file.read(len(contents)) or b""
        if contents[: len(there)] != there:
            return False
        rest = memoryview(contents)[len(there) :]
        while rest:
            rest = rest[file.write(rest) or 0 :]
        os.fsync(file.fileno())
    sync_folder(folder)
    return True


def _hello(hello: dict[str, Any]) -> dict[str, Any]:
    """The hello of a lost process as it would be said here, as far as hooks need it."""
    name = hello.get("agent")
    agent = registry.named(name if isinstance(name, str) else "")
    kept = {n: v for n, v in hello.items() if n not in _OF_THE_MACHINE}
    return kept | agent.installed_here()


def _lost(machine: dict[str, Any], heard: float) -> str:
    when, seen = (
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) for at in (heard, machine["seen"])
    )
    declared = "was declared lost" if machine["state"] == "lost" else "is silent"
    return (
        f"recovered from the replica: machine {machine['name']} {declared}. It last reported at "
        f"{seen}, and the last record arrived at {when}; what was said there later, and not "
        "replicated, is lost with it"
    )


def _came_back(machine: dict[str, Any]) -> str:
    return (
        f"machine {machine['name']} came back after this session had been recovered here; what was "
        "said there since follows"
    )


def _changed(records: int) -> str:
    if not records:
        return ""
    return f". {records} records were changed in the database and cannot be decrypted"


def _dict(text: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(text.decode())
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}
