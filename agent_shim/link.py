"""The link from one process to its supervisor, across forks.

Never raises into the agent and never prints.

A `Stream` does the work for one process. A forked child must not use its parent's stream: they
would mix their records in one ring and under one numbering. So every call first looks at the
stream's fork mark, before it takes any lock, and a child begins a stream of its own. That also
holds for a child of libc's `fork()`, of which Python knows nothing: its first call finds the mark
wiped, whatever state the lock was copied in. A child of Python's `fork()` begins its stream at
once, so that it does not keep its parent's connection open.
"""

from __future__ import annotations

import os
from time import time

from ..ipc import records
from ..ipc.handlers import raised_by_signal_handler
from .stream import NEW, Stream


class Link:
    __slots__ = ("_about", "_address", "_spool_folder", "_stream")

    def __init__(self, address: str, spool_folder: str, about: dict[str, object]) -> None:
        """`about`: what the hello says of this process beyond its identity."""
        self._address = address
        self._spool_folder = spool_folder
        self._about = about
        self._stream = Stream(address, spool_folder, about)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def send(self, *payloads: bytes) -> None:
        """Hand records over. When this returns they are out of the process, in order."""
        stream = self._stream
        if not stream.mark[0]:
            stream = self._begin_in_child()
        stream.send(*payloads)

    def send_soon(self, payload: bytes) -> None:
        """`send` for a record that nobody waits for and that others usually follow: it is out of
        the process, but the supervisor may get it a second later."""
        stream = self._stream
        if not stream.mark[0]:
            stream = self._begin_in_child()
        stream.send_soon(payload)

    def acknowledged(self, timeout: float) -> bool:
        """Wait until the supervisor has acknowledged everything sent. False if it did not, or if
        a call that sends is further up this thread's own stack."""
        return self._current().acknowledged(timeout)

    def close(self) -> None:
        """Report that this interpreter exits normally. A hint, because `os._exit` skips it."""
        stream = self._current()
        if stream.state is not NEW:
            stream.send(records.pack({"kind": "bye", "at": time()}))

    def describe(self, **facts: object) -> None:
        """Facts for the hello, from now on."""
        self._about.update(facts)

    @property
    def stream(self) -> str:
        """The name of this process's stream."""
        return self._current().name

    @property
    def generation(self) -> int:
        """How many forks this process is away from the one that made the link."""
        return self._current().generation

    @property
    def faults(self) -> int:
        """How many faults of our own were swallowed."""
        return self._stream.faults

    def count_fault(self) -> None:
        self._stream.faults += 1

    def _current(self) -> Stream:
        stream = self._stream
        return stream if stream.mark[0] else self._begin_in_child()

    def _forked(self) -> None:
        try:
            self._begin_in_child()
        except Exception as error:  # Python would print it; the next call tries again
            if raised_by_signal_handler(error):
                raise

    def _begin_in_child(self) -> Stream:
        """In a forked child: leave the parent's stream alone, and begin another.

        If a signal handler raises in here, the mark is still wiped, and the next call comes here
        again.
        """
        parents = self._stream
        parents.abandon()
        self._stream = Stream(
            self._address, self._spool_folder, self._about, parents.generation + 1
        )
        return self._stream
