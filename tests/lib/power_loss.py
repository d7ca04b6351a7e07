"""A disk that loses power: every file operation is recorded, and then taken back at will.

What is recorded below one folder, of whatever this process does there through `os`, `open` and
SQLite: names made, renamed and removed, bytes written, files cut, files and folders synced. From
that follow the states in which the disk may be found if the power goes between two operations:

    contents   lost since the file's last sync; or there; or of the right length and all zeros;
               or a write in the middle missing; or the last write torn, its tail missing or zeros
    names      a folder's changes since its last sync are not there; or all are; or the first few
    mixed      only this file's writes arrived, or all but this file's; this folder's, or all but

A file that was synced has its contents, not its name: that is its folder's. A rename is one
change, in both folders or in neither, which every file system with a journal keeps to. What
SQLite maps (the `-shm` file) is not recorded and so is never there after a loss, which is what
SQLite expects of it. How SQLite's own files may be torn is left to SQLite's tests: their writes
since the last sync are there, or not, or zeros, at the boundaries that we had a part in.
"""

from __future__ import annotations

import builtins
import hashlib
import io
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import apsw

Tree = dict[str, bytes | None]
"""Path below the folder to contents; None for a folder."""

ROOT = 0


@dataclass
class Change:
    """One change of names, in one folder or, for a rename, in two."""

    removed: tuple[int, str] | None = None
    added: tuple[int, str, int] | None = None

    def folders(self) -> set[int]:
        return {place[0] for place in (self.removed, self.added) if place is not None}


@dataclass
class Op:
    """What happened: `write`, `cut`, `sync` of a file or folder, `name`, or a test's `mark`."""

    kind: str
    node: int = ROOT
    offset: int = 0
    data: bytes = b""
    change: Change = field(default_factory=Change)
    mark: Any = None


class Recorder:
    """Records while it is entered. `log` is what happened, `marks` come from the test."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.log: list[Op] = []
        self.is_folder = {ROOT: True}
        self.sqlite: set[int] = set()
        self._names: dict[int, dict[str, int]] = {ROOT: {}}
        self._size: dict[int, int] = {}
        self._fds: dict[int, tuple[int, bool]] = {}
        self._real: dict[str, Any] = {}
        self._vfs: _Vfs | None = None

    def mark(self, what: Any) -> None:
        self.log.append(Op("mark", mark=what))

    def __enter__(self) -> Recorder:
        for name in _PATCHED:
            self._real[name] = getattr(os, name)
            setattr(os, name, getattr(self, f"_{name}"))
        self._real["builtin open"] = builtins.open
        builtins.open = self._builtin_open  # type: ignore[assignment]
        self._vfs = _Vfs(self)
        return self

    def __exit__(self, *_: object) -> None:
        for name in _PATCHED:
            setattr(os, name, self._real[name])
        builtins.open = self._real["builtin open"]
        if self._vfs is not None:
            self._vfs.unregister()
            apsw.set_default_vfs("unix")

    # -- where things are --------------------------------------------------------------------

    def _find(self, path: Any) -> tuple[int, str] | None:
        """The folder and the name that a path stands for, if that is below the root."""
        if not isinstance(path, str | bytes | os.PathLike):
            return None
        words = os.path.relpath(os.path.abspath(os.fsdecode(path)), self.root).split(os.sep)
        if words[0] in ("..", "."):
            return (ROOT, ".") if words[0] == "." else None
        folder = ROOT
        for word in words[:-1]:
            inner = self._names[folder].get(word)
            if inner is None or not self.is_folder[inner]:
                return None
            folder = inner
        return folder, words[-1]

    def _node(self, path: Any) -> int | None:
        place = self._find(path)
        if place is None:
            return None
        return ROOT if place[1] == "." else self._names[place[0]].get(place[1])

    def made(self, path: Any, *, folder: bool = False) -> None:
        place = self._find(path)
        if place is not None and self._node(path) is None:
            node = len(self.is_folder)
            self.is_folder[node] = folder
            if folder:
                self._names[node] = {}
            self._size[node] = 0
            self._names[place[0]][place[1]] = node
            self.log.append(Op("name", change=Change(added=(*place, node))))

    def gone(self, path: Any) -> None:
        place = self._find(path)
        if place is not None and self._names[place[0]].pop(place[1], None) is not None:
            self.log.append(Op("name", change=Change(removed=place)))

    def written(self, node: int | None, offset: int, data: bytes) -> None:
        if node is not None:
            self._size[node] = max(self._size[node], offset + len(data))
            self.log.append(Op("write", node, offset, data))

    def cut(self, node: int | None, size: int) -> None:
        if node is not None:
            self._size[node] = size
            self.log.append(Op("cut", node, size))

    def synced(self, node: int | None) -> None:
        if node is not None:
            self.log.append(Op("sync", node))

    # -- in the place of `os` ----------------------------------------------------------------

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: Any = None) -> int:
        fd: int = self._real["open"](path, flags, mode, dir_fd=dir_fd)
        if flags & os.O_CREAT:
            self.made(path)
        node = self._node(path)
        if node is not None:
            if flags & os.O_TRUNC and self._size[node]:
                self.cut(node, 0)
            self._fds[fd] = node, bool(flags & os.O_APPEND)
        return fd

    def _close(self, fd: int) -> None:
        self._fds.pop(fd, None)
        self._real["close"](fd)

    def _write(self, fd: int, data: Any) -> int:
        node, appends = self._fds.get(fd, (None, False))
        offset = 0
        if node is not None:
            offset = self._size[node] if appends else os.lseek(fd, 0, os.SEEK_CUR)
        done: int = self._real["write"](fd, data)
        self.written(node, offset, bytes(data[:done]))
        return done

    def _pwrite(self, fd: int, data: Any, offset: int) -> int:
        done: int = self._real["pwrite"](fd, data, offset)
        self.written(self._fds.get(fd, (None,))[0], offset, bytes(data[:done]))
        return done

    def _ftruncate(self, fd: int, size: int) -> None:
        self._real["ftruncate"](fd, size)
        self.cut(self._fds.get(fd, (None,))[0], size)

    def _fsync(self, fd: int) -> None:
        self._real["fsync"](fd)
        self.synced(self._fds.get(fd, (None,))[0])

    def _fdatasync(self, fd: int) -> None:
        self._real["fdatasync"](fd)
        self.synced(self._fds.get(fd, (None,))[0])

    def _mkdir(self, path: Any, *how: Any, **where: Any) -> None:
        self._real["mkdir"](path, *how, **where)
        self.made(path, folder=True)

    def _rmdir(self, path: Any, **where: Any) -> None:
        self._real["rmdir"](path, **where)
        self.gone(path)

    def _unlink(self, path: Any, **where: Any) -> None:
        self._real["unlink"](path, **where)
        self.gone(path)

    def _replace(self, old: Any, new: Any, **where: Any) -> None:
        self._real["replace"](old, new, **where)
        before, after, node = self._find(old), self._find(new), self._node(old)
        assert before is not None and after is not None and node is not None, "out of sight"
        del self._names[before[0]][before[1]]
        self._names[after[0]][after[1]] = node
        self.log.append(Op("name", change=Change(removed=before, added=(*after, node))))

    _rename = _replace

    def _builtin_open(self, file: Any, mode: str = "r", *more: Any, **words: Any) -> Any:
        known = file in self._fds if isinstance(file, int) else self._find(file) is not None
        if not known or not set(mode) & set("wax+"):
            return self._real["builtin open"](file, mode, *more, **words)
        if isinstance(file, int):
            fd = file
        else:
            kind = {"w": os.O_TRUNC, "a": os.O_APPEND, "x": os.O_EXCL}[mode.strip("bt+")]
            opener = words.get("opener") or os.open
            fd = opener(file, os.O_WRONLY | os.O_CREAT | kind)
        raw = io.BufferedWriter(_Raw(fd))
        if "b" in mode:
            return raw
        return io.TextIOWrapper(raw, words.get("encoding"), words.get("errors"))


_PATCHED = ("open", "close", "write", "pwrite", "ftruncate", "fsync", "fdatasync", "mkdir", "rmdir",
            "unlink", "replace", "rename")  # fmt: skip


class _Raw(io.RawIOBase):
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def write(self, data: Any) -> int:
        return os.write(self._fd, data)

    def close(self) -> None:
        if not self.closed:
            super().close()
            os.close(self._fd)


class _Vfs(apsw.VFS):  # type: ignore[misc]
    """SQLite's files, recorded as ours are."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        super().__init__("power-loss", "unix", makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> _VfsFile:
        return _VfsFile(self._recorder, name, flags)

    def xDelete(self, name: str, sync_folder: bool) -> None:
        super().xDelete(name, sync_folder)
        self._recorder.gone(name)
        if sync_folder:
            self._recorder.synced(self._recorder._node(os.path.dirname(name)))


class _VfsFile(apsw.VFSFile):  # type: ignore[misc]
    def __init__(self, recorder: Recorder, name: Any, flags: list[int]) -> None:
        self._path = name.filename() if isinstance(name, apsw.URIFilename) else name
        super().__init__("unix", name, flags)
        self._recorder = recorder
        known = recorder._node(self._path) if self._path else None
        if self._path and known is None:
            recorder.made(self._path)
        # Of a journal that it has made SQLite syncs the name with the first sync of the contents.
        journals = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL
        self._name_too = known is None and bool(flags[0] & journals)
        self._node = recorder._node(self._path) if self._path else None
        if self._node is not None:
            recorder.sqlite.add(self._node)

    def xWrite(self, data: bytes, offset: int) -> None:
        super().xWrite(data, offset)
        self._recorder.written(self._node, offset, bytes(data))

    def xTruncate(self, size: int) -> None:
        super().xTruncate(size)
        self._recorder.cut(self._node, size)

    def xSync(self, flags: int) -> None:
        super().xSync(flags)
        self._recorder.synced(self._node)
        if self._name_too:
            self._name_too = False
            self._recorder.synced(self._recorder._node(os.path.dirname(self._path)))


# -- what may be left ------------------------------------------------------------------------


@dataclass
class Disk:
    """What is on the disk for certain, and what is on its way there."""

    is_folder: dict[int, bool]
    sqlite: set[int]
    contents: dict[int, bytes] = field(default_factory=dict)
    names: dict[int, dict[str, int]] = field(default_factory=dict)
    unsynced: dict[int, list[Op]] = field(default_factory=dict)
    unnamed: list[Change] = field(default_factory=list)

    def take(self, op: Op) -> None:
        if op.kind in ("write", "cut"):
            self.unsynced.setdefault(op.node, []).append(op)
        elif op.kind == "name":
            self.unnamed.append(op.change)
        elif op.kind == "sync" and self.is_folder[op.node]:
            for change in [c for c in self.unnamed if op.node in c.folders()]:
                self.unnamed.remove(change)
                _rename(self.names, change)
        elif op.kind == "sync":
            done = self.unsynced.pop(op.node, [])
            self.contents[op.node] = _filled(self.contents.get(op.node, b""), done)

    def tree(self, changes: list[Change], arrived: dict[int, list[Op]]) -> Tree:
        """What is found if these changes of names and these writes made it."""
        names = {folder: dict(inner) for folder, inner in self.names.items()}
        for change in changes:
            _rename(names, change)
        found: Tree = {}

        def walk(folder: int, above: str) -> None:
            for name, node in names.get(folder, {}).items():
                if self.is_folder[node]:
                    found[above + name] = None
                    walk(node, above + name + "/")
                else:
                    found[above + name] = _filled(
                        self.contents.get(node, b""), arrived.get(node, [])
                    )

        walk(ROOT, "")
        return found

    def states(self) -> Iterator[tuple[str, list[Change], dict[int, list[Op]]]]:
        """Everything that may be found: what made it so, and which changes and writes arrived.
        Some may come to the same."""
        names, data = self.unnamed, self.unsynced
        zeros = {node: _zeros(ops) for node, ops in data.items()}
        for which, changes in (("no names", []), ("all names", names)):
            yield f"{which}, nothing unsynced", changes, {}
            yield f"{which}, everything", changes, data
            yield f"{which}, zeros", changes, zeros
        for count in range(1, len(names)):
            yield f"the first {count} names, everything", names[:count], data
            yield f"the first {count} names, nothing unsynced", names[:count], {}
        for folder in {folder for change in names for folder in change.folders()}:
            its = [change for change in names if folder in change.folders()]
            others = [change for change in names if folder not in change.folders()]
            yield f"only names of folder {folder}", its, data
            yield f"all names but those of folder {folder}", others, data
        for node, ops in data.items():
            others_data = {n: o for n, o in data.items() if n != node}
            yield f"only writes to {node}", names, {node: ops}
            yield f"all writes but those to {node}", names, others_data
            if node in self.sqlite:
                continue
            for index in range(len(ops) - 1):
                holed = [*ops[:index], *_zeros(ops[index : index + 1]), *ops[index + 1 :]]
                yield f"write {index} to {node} missing", names, {**data, node: holed}
            if ops[-1].kind == "write":
                for cut in _cuts(len(ops[-1].data)):
                    for filled in (False, True):
                        torn = [*ops[:-1], _torn(ops[-1], cut, filled)]
                        how = f"{cut} bytes of the last write to {node}"
                        yield how, names, {**data, node: torn}


def _rename(names: dict[int, dict[str, int]], change: Change) -> None:
    if change.removed is not None:
        names.setdefault(change.removed[0], {}).pop(change.removed[1], None)
    if change.added is not None:
        folder, name, node = change.added
        names.setdefault(folder, {})[name] = node


def _filled(data: bytes, ops: list[Op]) -> bytes:
    if not ops:
        return data
    found = bytearray(data)
    for op in ops:
        if op.kind == "cut":
            del found[op.offset :]
            found.extend(bytes(op.offset - len(found)))
        else:
            found.extend(bytes(max(0, op.offset - len(found))))
            found[op.offset : op.offset + len(op.data)] = op.data
    return bytes(found)


def _zeros(ops: list[Op]) -> list[Op]:
    return [Op(op.kind, op.node, op.offset, bytes(len(op.data))) for op in ops]


def _cuts(length: int) -> list[int]:
    """Where a write may break off: in a header, at an odd place, between two sectors."""
    return sorted({cut for cut in (1, 19, length // 2, 512, 4096, length - 1) if 0 < cut < length})


def _torn(op: Op, cut: int, filled: bool) -> Op:
    tail = bytes(len(op.data) - cut) if filled else b""
    return Op(op.kind, op.node, op.offset, op.data[:cut] + tail)


PLAIN = "no names, nothing unsynced"


def losses(
    recorder: Recorder, wanted: Callable[[int, str], bool]
) -> Iterator[tuple[int, str, Tree]]:
    """For every boundary between two operations, every state of the disk not seen before it:
    the number of operations done, how it came about, what is found."""
    disk = Disk(recorder.is_folder, recorder.sqlite)
    seen: set[bytes] = set()
    marks = b""
    index = 0
    log = [Op("start"), *recorder.log, Op("end")]
    for number, op in enumerate(log[:-1]):
        disk.take(op)
        if op.node in recorder.sqlite and log[number + 1].node in recorder.sqlite:
            continue
        if op.kind == "mark":
            marks += repr(op.mark).encode()  # the same disk must hold more from here on
        for how, changes, arrived in disk.states():
            index += 1
            if not wanted(index, how):
                continue
            tree = disk.tree(changes, arrived)
            known = hashlib.sha1(marks)
            for path in sorted(tree):
                known.update(path.encode() + b"\0" + (tree[path] or b"\0") + b"\0")
            # Plain losses are named as such, even if other mixtures lead to the same state.
            state = known.digest() + (b"plain" if how == PLAIN else b"")
            if not {state, known.digest() + b"plain"} & seen:
                seen.add(state)
                yield number, how, tree


def restore(root: str, tree: Tree) -> None:
    """Have the folder hold what the disk held."""
    shutil.rmtree(root, ignore_errors=True)
    os.mkdir(root, 0o700)
    for path in sorted(tree):
        data = tree[path]
        if data is None:
            os.mkdir(os.path.join(root, path), 0o700)
        else:
            fd = os.open(os.path.join(root, path), os.O_WRONLY | os.O_CREAT, 0o600)
            os.write(fd, data)
            os.close(fd)
