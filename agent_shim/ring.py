"""The ring, as the agent writes it: a copy of each frame in memory that outlives every process.

Never waits, and never has the agent killed with SIGBUS: that happens to a mapped page for which
the disk has no block. So the ring only uses file systems that keep the blocks they have given, and
writes every block before it maps the file.

A frame is handed over when it is here: the kernel has the page, whoever is killed next. The
mapping needs no descriptor, so an agent that closes all of them does not harm it.

A shim of release 0.1.0 loads this module late, perhaps after an upgrade. So its path, the class,
the first four arguments, `memory`, `end`, `left`, `filled` and the methods keep their names, and
nothing is imported by name that `endpoint` did not have then.
"""

from __future__ import annotations

import os
import sys
from mmap import mmap

from ..ipc import frames, ring
from ..ipc.endpoint import identity
from ..ipc.ring import HEAD, LARGEST_HALF, name_of
from .fork_mark import ForkedChild
from .standard_streams import numbers_kept_free

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .fork_mark import Mark

# They overwrite a block in place; others (btrfs, zfs, a network) may need a new one.
_IN_PLACE = ("ext2", "ext3", "ext4", "xfs", "tmpfs")

# Mappings whose descriptor has become the agent's: they are never closed.
_left_alone: list[mmap] = []


class Ring:
    __slots__ = (
        "_fd", "_file", "_half", "_hello", "_here", "_mark", "_path", "_start", "_there", "end",
        "left", "memory",
    )  # fmt: skip

    def __init__(
        self, folder: str, stream: str, hello: bytes, half: int, mark: Mark = b"\1"
    ) -> None:
        """Raises OSError where there can be none.

        `mark`: the fork mark of the process that may write. The default never changes.
        """
        if len(hello) > HEAD or not _keeps_blocks(folder):
            raise OSError("there can be no ring here")
        self._path = os.path.join(folder, name_of(stream))
        self._mark = mark
        self._half = half
        with numbers_kept_free():
            self.memory, self._fd, self._file = _mapped(self._path + ".new", HEAD + 2 * half, mark)
        self.memory[: len(hello)] = hello
        self._hello = len(hello)
        self._start = self.end = HEAD
        self.left = half
        """How many bytes the half that is being filled still takes."""
        # The highest number in the half that is being filled, and in the other.
        self._here = self._there = 0

    def publish(self) -> None:
        """Let others find it, instead of the smaller one before it, if there was one."""
        if not self._mark[0]:
            raise ForkedChild
        os.rename(self._path + ".new", self._path)

    def put(self, seq: int, frame: bytes, safe: int) -> bool:
        """Keep a frame. False: there is no room, until more than `safe` is acknowledged."""
        length = len(frame)
        if length > self.left:
            if self._there > safe or length > self._half:
                return False
            self._there, self._here = self._here, 0
            self._start = HEAD if self._start != HEAD else HEAD + self._half
            self.end = self._start
            self.left = self._half
        end = self.end + length
        if not self._mark[0]:
            raise ForkedChild
        self.memory[self.end : end] = frame
        self.end = end
        self.left -= length
        self._here = seq
        return True

    def note(self, seq: int) -> None:
        """Say that records up to this number exist, whether or not there is room for them."""
        note = frames.encode(seq, b"")
        if not self._mark[0]:
            raise ForkedChild
        if self._hello <= ring.NOTE:
            self.memory[ring.NOTE : HEAD] = note

    def filled(self, end: int, left: int, seq: int) -> None:
        """Release 0.1.0 writes frames, up to number `seq`, into `memory` itself."""
        self.end, self.left, self._here = end, left, max(seq, self._here)

    def half_for(self, length: int) -> int | None:
        """How large the halves must be for such a frame. None: larger than they may be."""
        half = self._half
        while half < 2 * length:
            half *= 2
        return half if half <= LARGEST_HALF else None

    def withdraw(self) -> None:
        """Take it away. Nobody has found it yet."""
        self.drop()
        if not self._mark[0]:
            raise ForkedChild
        os.unlink(self._path + ".new")

    def drop(self) -> None:
        """Unmap it. Until Python 3.13 a mapping keeps a descriptor, which the agent may have
        closed, and may use for something else by now."""
        if self._fd is not None and identity(self._fd) != self._file:
            _left_alone.append(self.memory)
        else:
            self.memory.close()


def _mapped(path: str, size: int, mark: Mark) -> tuple[mmap, int | None, tuple[int, int] | None]:
    """The mapping of a new file; the descriptor it keeps, and what that stands for."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    if not mark[0]:
        raise ForkedChild
    try:
        os.unlink(path)  # of a call that was interrupted before it could publish its own
    except FileNotFoundError:
        pass
    if not mark[0]:
        raise ForkedChild
    fd = os.open(path, flags, 0o600)
    try:
        if os.write(fd, bytes(size)) != size:
            raise OSError("the disk is full")
        if sys.version_info >= (3, 13):
            return mmap(fd, size, trackfd=False), None, None
        following = os.dup(fd)
        os.close(following)
        file = identity(fd)
        kept = mmap(fd, size)
        # Another thread may have been quicker; then the mapping is left alone at the end.
        return kept, following, file
    except BaseException:
        if mark[0]:
            os.unlink(path)
        raise
    finally:
        os.close(fd)


def _keeps_blocks(folder: str) -> bool:
    """Whether the folder is on a file system of which that is known."""
    device = os.stat(folder).st_dev
    name = b"%d:%d" % (os.major(device), os.minor(device))
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            fields = line.split()
            if fields[2] == name:
                kind = fields[fields.index(b"-") + 1].decode("ascii", "replace")
                return kind in _IN_PLACE
    return False
