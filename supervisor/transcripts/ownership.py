"""Which transcripts belong to this run: two agents of one kind may work in one folder at a time.

Never touches a transcript. Decided by facts that hold after a takeover as well, never by which
process is below which supervisor at the moment:

    the run noted it before        its path and inode are in the run's `owned` file
    the agent says who has it      a process of this run, or of another (`owners`)
    a process has the file open    a process of this run, or another

A process belongs to this run if its environment names the run, or if it is the agent that the run
has noted, or below one of these, and its environment names no other run. If nothing is known about
a file, it belongs to the first run that claims it, so it is stored once. A file of another run
stays that run's when the process is dead: that run reads it, or nobody does.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from hashlib import blake2b

from ...ipc.endpoint import RUN_VARIABLE
from ..process.platform import (
    command_line,
    environment,
    is_open_for_writing,
    process_table,
)
from ..storage.run_folder import Run
from ..storage.run_notes import living_agent


def _nobody(words: list[str]) -> bool:
    return False


class Ownership:
    def __init__(self, folder: str) -> None:
        self._run = Run(folder, -1)
        self._claims: dict[str, socket.socket] = {}
        self._noted = _read_notes(self._run.path("owned"))

    def decide(
        self,
        path: str,
        owners: list[int],
        *,
        named_by_user: bool = False,
        is_server: Callable[[list[str]], bool] = _nobody,
    ) -> bool:
        """True if the file belongs to this run. `owners`: the processes that have it, as the agent
        itself notes them; some may be dead. `named_by_user`: it belongs to this run whoever writes
        it. `is_server`: by its command line, a process writes it for others."""
        noted = self._noted.get(_name(path))
        if noted:
            return self.claim(path)
        ours = None
        if not named_by_user:
            ours = self._by_processes(path, owners, is_server)
        if ours is None:
            ours = noted is None
        ours = ours and self.claim(path)
        self._note(path, ours)
        return ours

    def is_noted(self, path: str) -> bool:
        """True if this run has noted that the file is its own. The file need not be there."""
        if (name := _name(path)) is not None:
            return self._noted.get(name) is True
        real = os.path.realpath(path)
        return any(ours and known and known[0] == real for known, ours in self._noted.items())

    def is_held(self, path: str, is_server: Callable[[list[str]], bool] = _nobody) -> bool:
        """True if a process of this run has the file open."""
        return bool(_holders(path, is_server, self._processes()))

    def _by_processes(
        self, path: str, owners: list[int], is_server: Callable[[list[str]], bool]
    ) -> bool | None:
        """None: no living process is known to have it."""
        # First: a process of ours that dies meanwhile must not be taken for another's.
        processes = self._processes()
        # A zombie that nobody reaps keeps its pid, and is dead.
        holders = {info.pid for info in process_table(owners) if info.alive} if owners else set()
        holders = holders or _holders(path, is_server)
        if not holders:
            return None
        if not holders.isdisjoint(processes):
            return True
        return not holders.isdisjoint(self._processes())  # one of ours may have begun meanwhile

    def _processes(self) -> set[int]:
        """The living processes of this run."""
        entry = os.fsencode(f"{RUN_VARIABLE}=")
        ours = entry + os.fsencode(self._run.name)
        noted = living_agent(self._run.folder)
        pids = set() if noted is None else {noted[0]}
        children: dict[int, list[int]] = {}
        foreign = set()
        for info in process_table():
            children.setdefault(info.parent, []).append(info.pid)
            variables = environment(info.pid)
            if ours in variables:
                pids.add(info.pid)
            elif any(variable.startswith(entry) for variable in variables):
                foreign.add(info.pid)
        waiting = list(pids)
        while waiting:
            fresh = [pid for pid in children.get(waiting.pop(), []) if pid not in pids | foreign]
            pids.update(fresh)
            waiting += fresh
        return pids

    def claim(self, name: str) -> bool:
        """Take a name in the kernel. It is free again when this process is gone, however it ends.
        False if another process has it."""
        if name in self._claims:
            return True
        digest = blake2b(os.fsencode(os.path.realpath(name)), digest_size=16).hexdigest()
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0hermes-supervise-{os.getuid()}-{digest}")
        except OSError:
            claim.close()
            return False
        self._claims[name] = claim
        return True

    def close(self) -> None:
        for claim in self._claims.values():
            claim.close()

    def _note(self, path: str, ours: bool) -> None:
        """Note whose it is, for the next process that reads the transcripts of this run."""
        name = _name(path)
        if name is not None and self._noted.get(name) != ours:
            self._noted[name] = ours
            line = json.dumps({"path": name[0], "inode": name[1], "ours": ours})
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            fd = os.open(self._run.path("owned"), flags, 0o600)
            try:
                os.write(fd, os.fsencode(f"{line}\n"))
            finally:
                os.close(fd)


def _read_notes(path: str) -> dict[tuple[str, int] | None, bool]:
    owned: dict[tuple[str, int] | None, bool] = {}
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    note = json.loads(line)
                    owned[note["path"], note["inode"]] = note["ours"] is True
                except (ValueError, TypeError, LookupError):
                    continue  # torn by a death
    except OSError:
        pass
    return owned


def _name(path: str) -> tuple[str, int] | None:
    """A name for this file, and not for another file that may have its path later."""
    try:
        return os.path.realpath(path), os.stat(path).st_ino
    except OSError:
        return None


def _holders(
    path: str, is_server: Callable[[list[str]], bool], among: set[int] | None = None
) -> set[int]:
    """Those of these processes, or of all that we may ask, that have the file open for writing, and
    not for others. A process that only reads it may be one like this."""
    real = os.path.realpath(path)
    pids = {info.pid for info in process_table()} if among is None else among
    return {
        pid for pid in pids if is_open_for_writing(pid, real) and not is_server(command_line(pid))
    }
