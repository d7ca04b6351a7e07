"""Whose transcript is it? Two agents of one kind may work in the same folder at the same time.

Never touches a transcript. What is known for certain decides: the agent says which process has
the session open, or a process has the file open. Where nothing is known, the first watcher that
claims a file has it, so that it is told once. And what was another's stays so when that one is
dead: its own watcher sees to it.
"""

from __future__ import annotations

import os
import socket
from hashlib import blake2b

from ...ipc.endpoint import process_start


class Ours:
    def __init__(self, supervisor: int | None) -> None:
        self._supervisor = supervisor
        self._claims: dict[str, socket.socket] = {}
        self._foreign: set[str] = set()

    def are(self, path: str, owners: list[int]) -> bool:
        """`owners` are the processes that the agent itself says have it, dead ones among them."""
        living = {pid for pid in owners if process_start(pid) is not None}
        agent = self._agent()
        if living:
            mine = not living.isdisjoint(agent)
        else:
            mine = _is_open(path, agent) or not (path in self._foreign or _is_open(path))
        mine = mine and self.claim(path)
        if not mine:
            self._foreign.add(path)
        return mine

    def held(self, path: str) -> bool:
        """Whether a process of the agent has the file open."""
        return _is_open(path, self._agent())

    def _agent(self) -> set[int]:
        return set() if self._supervisor is None else _below(self._supervisor)

    def close(self) -> None:
        for claim in self._claims.values():
            claim.close()

    def claim(self, path: str) -> bool:
        """Take a name in the kernel, free again when we are gone, whatever ends us."""
        if path in self._claims:
            return True
        mark = blake2b(os.fsencode(os.path.realpath(path)), digest_size=16).hexdigest()
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0hermes-supervise-{os.getuid()}-{mark}")
        except OSError:
            claim.close()
            return False
        self._claims[path] = claim
        return True


def _is_open(path: str, among: set[int] | None = None) -> bool:
    """Whether one of these processes has the file open to write, or anybody that we may ask. Who
    only reads may be a watcher like us."""
    real = os.path.realpath(path)
    for pid in _processes() if among is None else among:
        try:
            with os.scandir(f"/proc/{pid}/fd") as entries:
                found = [one.name for one in entries if os.readlink(one.path) == real]
            if any(_writes(pid, fd) for fd in found):
                return True
        except OSError:
            continue
    return False


def _writes(pid: int, fd: str) -> bool:
    with open(f"/proc/{pid}/fdinfo/{fd}") as file:
        flags = int(file.read().partition("flags:")[2].split()[0], 8)
    return flags & os.O_ACCMODE != os.O_RDONLY


def _processes() -> list[int]:
    if not os.path.isdir("/proc/self"):
        return []
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _below(pid: int) -> set[int]:
    """A process and everything below it."""
    children: dict[int, list[int]] = {}
    for one in _processes():
        try:
            with open(f"/proc/{one}/stat", "rb") as file:
                line = file.read()
            parent = int(line[line.rindex(b")") + 2 :].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        children.setdefault(parent, []).append(one)
    found, wanted = {pid}, [pid]
    while wanted:
        below = children.get(wanted.pop(), [])
        wanted += [one for one in below if one not in found]
        found.update(below)
    return found
