"""A mark that tells a process from its forked children, without a system call.

    mark = fork_mark()
    mark[0]             1 in the process that made it, 0 in every child forked since then

Linux (4.14 and later) wipes the marked page in a child, whoever forked it: Python, a C library
that knows nothing of Python, or a bare system call. Elsewhere the mark compares process ids.

A shim of release 0.1.0 may load this module late, after an upgrade, with `ring.py`. So nothing here
is imported by name from a module of ours that it has loaded before.
"""

from __future__ import annotations

import mmap
import os
import sys

from ..ipc import handlers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Mark(Protocol):
        def __getitem__(self, index: int, /) -> int: ...


# linux/mman.h; Python has no name for it.
_MADV_WIPEONFORK = 18


class ForkedChild(Exception):
    """This process is a fork of the one that may write here. Never leaves the shim."""


def fork_mark() -> Mark:
    page = _wiped_on_fork() if sys.platform == "linux" else None
    return _ByProcessId() if page is None else page


def _wiped_on_fork() -> mmap.mmap | None:
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        page.madvise(_MADV_WIPEONFORK)
        page[0] = 1
        return page
    except Exception as error:  # an older kernel, or no memory
        if handlers.raised_by_signal_handler(error):
            raise
        return None


class _ByProcessId:
    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = os.getpid()

    def __getitem__(self, index: int) -> int:
        return int(os.getpid() == self._pid)
