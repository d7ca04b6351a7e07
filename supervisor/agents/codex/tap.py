"""The reply in progress of Codex' TUI, from the daemon that the TUI is a client of.

A thread of ours joins the daemon as a second client (daemon.py). It listens to the threads that
the TUI of this run has open, and writes what it hears to files in the run's folder at once: what
is in a file survives the death of everybody. The files are read as any transcript is.

    runs/<run>/tap/threads.jsonl    {"thread", "whole", "running"}: whether everything that is said
                                    in it is heard, and whether a turn is in progress
    runs/<run>/tap/msg_*.jsonl      a reply each (live.py), removed when the rollout has it

The daemon tells every client that a thread becomes active. A new thread can be joined then, not
earlier, and what is said before it is joined cannot be had later. So it is joined at once, and left
again if the TUI of another run has it. A piece of a reply whose beginning was not heard is dropped:
what is stored of a reply is its beginning.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time

from ....ipc.endpoint import RUN_VARIABLE
from ...process.platform import environment
from ..live import Live
from ..protocol import Database
from .daemon import Daemon, Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ..protocol import Read, Record

_THREADS = "threads.jsonl"
# Seconds between two looks for a daemon, which may begin its first turn half a second later.
_RETRY, _LATER = 0.02, 2.0
_QUICK_TRIES = 3000  # then only now and then: there is no daemon
# Seconds between two tries to join a thread, and until that is given up.
_JOIN_WAIT, _JOIN_PATIENCE = 0.05, 5.0
# Seconds for a listener to read what a dead daemon has sent, and between two looks.
_DRAIN_PATIENCE, _DRAIN_WAIT = 10.0, 0.005


class Complete:
    """The replies that the rollouts have, by the ids that the model gave them."""

    def __init__(self) -> None:
        self.ids: set[str] = set()


class _Reply:
    """A reply in progress, and the file it is written to."""

    def __init__(self, folder: str, id: str, thread: str) -> None:
        name = re.sub(r"\W", "_", id)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        self.fd = os.open(os.path.join(folder, f"msg_{name}.jsonl"), flags, 0o600)
        self._id, self._next = id, 0
        self._write({"session": thread})

    def piece(self, text: str) -> None:
        entry = {"n": self._next, "part": self._id, "type": "text", "text": text}
        self._next += 1
        self._write(entry)

    def _write(self, entry: dict[str, Any]) -> None:
        data = json.dumps(entry, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
        if os.write(self.fd, data) != len(data):
            raise OSError("the file is full")


class Listener(threading.Thread):
    """Listens to the daemon for as long as this process lives."""

    def __init__(self, codex_home: str, folder: str) -> None:
        super().__init__(daemon=True, name="codex daemon")
        self._home = codex_home
        self._folder = folder
        run = os.path.basename(os.path.dirname(folder))
        self._ours = os.fsencode(f"{RUN_VARIABLE}={run}")
        self._pause = threading.Event()
        self._daemon: Daemon | None = None
        self.ready = threading.Event()
        """What is noted of the threads that were known before holds."""

    def drain(self) -> None:
        """Wait until everything that the daemon has sent so far is in our files."""
        end = time.monotonic() + _DRAIN_PATIENCE
        while (daemon := self._daemon) is not None and not daemon.is_drained():
            if time.monotonic() > end:
                return
            self._pause.wait(_DRAIN_WAIT)

    def run(self) -> None:
        tries = 0
        while os.path.isdir(self._folder):
            try:
                daemon = Daemon(self._home)
            except Exception:
                tries += 1
                self._pause.wait(_RETRY if tries < _QUICK_TRIES else _LATER)
                continue
            self._daemon = daemon
            try:
                _Joined(daemon, self._folder, self._ours).listen(self.ready)
            except Exception:
                self._daemon = None
                tries = 0  # it is gone, or speaks otherwise: another one may come
                self._pause.wait(_RETRY)
            finally:
                daemon.close()


class _Joined:
    """One connection to a daemon."""

    def __init__(self, daemon: Daemon, folder: str, ours: bytes) -> None:
        self._daemon = daemon
        self._folder = folder
        self._ours = ours
        self._known = set(notes(folder))
        """Ours as an earlier listener found out; the TUI may be dead now."""
        self._joined: set[str] = set()
        self._others: set[str] = set()
        self._wanted: dict[str, float] = {}  # threads to join, and until when it is tried
        self._late: set[str] = set()  # threads that may have been active before we came
        self._not_whole: set[str] = set()  # of what is said in them now, something was missed
        self._replies: dict[str, _Reply | None] = {}  # None: not from its beginning, or failed

    def listen(self, ready: threading.Event) -> None:
        loaded = self._daemon.threads()
        for thread in loaded:
            self._want(thread)
            self._late.add(thread)
        for thread in self._known.difference(loaded):
            self._note(thread, running=False)
        while True:
            for thread in sorted(self._wanted, key=lambda thread: thread in self._late):
                self._join(thread)
                if self._daemon.has_news():  # another may have become active, and cannot wait
                    break
            if self._known.isdisjoint(self._wanted):
                ready.set()
            message = self._daemon.next(_JOIN_WAIT if self._wanted else 3600.0)
            if message is not None and isinstance(message.get("params"), dict):
                self._heard(str(message.get("method")), message["params"])

    def _want(self, thread: str) -> None:
        self._wanted[thread] = time.monotonic() + _JOIN_PATIENCE

    def _join(self, thread: str) -> None:
        """Listen to a thread, if the TUI of this run has it."""
        if time.monotonic() > self._wanted[thread]:
            del self._wanted[thread]
            return
        try:
            # One that was there before may be anybody's, and has no reply that begins just now.
            if thread in self._late and not self._is_ours(thread):
                del self._wanted[thread]
                return
            self._daemon.call("thread/resume", {"threadId": thread, "excludeTurns": True})
            ours = thread in self._late or self._is_ours(thread)
            if not ours:
                self._daemon.call("thread/unsubscribe", {"threadId": thread})
            # As it is now: meanwhile its turn may have ended.
            about = self._daemon.call("thread/read", {"threadId": thread})["thread"]
        except Refused:
            return
        del self._wanted[thread]
        if not ours:
            return
        self._joined.add(thread)
        running = about.get("status", {}).get("type") == "active"
        self._note(thread, running=running, whole=not running or thread not in self._late)

    def _is_ours(self, thread: str) -> bool:
        if thread in self._known:
            return True
        pids = self._daemon.tui_of(thread)
        if any(self._ours in environment(pid) for pid in pids):
            self._known.add(thread)
            return True
        if pids:
            self._others.add(thread)
        return False

    def _heard(self, method: str, about: dict[str, Any]) -> None:
        thread = about.get("threadId")
        if method == "thread/status/changed":
            active = about.get("status", {}).get("type") == "active"
            if active and thread not in self._joined | self._others:
                self._want(str(thread))
                self._late.discard(str(thread))
            elif not active and thread in self._wanted:
                del self._wanted[thread]
            if thread in self._joined:
                self._note(str(thread), running=active)
            return
        if not isinstance(thread, str) or thread not in self._joined:
            return
        if method == "turn/started":
            self._note(thread, running=True)
        elif method == "turn/completed":
            self._note(thread, running=False)
        elif method == "thread/closed":
            self._joined.discard(thread)
        elif method == "item/agentMessage/delta":
            self._piece(thread, str(about["itemId"]), str(about["delta"]))
        elif method in ("item/started", "item/completed"):
            item = about.get("item")
            if isinstance(item, dict) and item.get("type") == "agentMessage":
                self._begin_or_end(thread, str(item["id"]), begins=method == "item/started")

    def _begin_or_end(self, thread: str, id: str, *, begins: bool) -> None:
        if begins and id not in self._replies:
            try:
                self._replies[id] = _Reply(self._folder, id, thread)
                if thread in self._not_whole:
                    self._note(thread, running=True)
            except OSError:  # an earlier listener heard its beginning, and not what came since
                self._replies[id] = None
                self._note(thread, whole=False, running=True)
        elif not begins:
            reply = self._replies.pop(id, None)
            if reply is not None:
                os.close(reply.fd)

    def _piece(self, thread: str, id: str, text: str) -> None:
        if id not in self._replies:
            self._replies[id] = None
            self._note(thread, whole=False, running=True)
        reply = self._replies[id]
        if reply is None:
            return
        try:
            reply.piece(text)
        except OSError:
            os.close(reply.fd)
            self._replies[id] = None
            self._note(thread, whole=False, running=True)

    def _note(self, thread: str, *, running: bool, whole: bool = True) -> None:
        (self._not_whole.discard if whole else self._not_whole.add)(thread)
        entry = json.dumps({"thread": thread, "whole": whole, "running": running})
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(os.path.join(self._folder, _THREADS), flags, 0o600)
        try:
            os.write(fd, f"{entry}\n".encode())
        finally:
            os.close(fd)


class CodexTap(Database):
    """What the listener has written."""

    def __init__(
        self,
        codex_home: str,
        folder: str,
        complete: Complete,
        announced: Callable[[str], bool],
    ) -> None:
        self._home, self._folder = codex_home, folder
        self._complete = complete
        self._announced = announced
        self._listener: Listener | None = None
        self._messages: dict[str, Live] = {}

    def folders(self) -> list[str]:
        return [self._folder]

    def is_idle(self) -> bool:
        if self._listener is None or not self._listener.ready.is_set():
            return False
        return not any(known["running"] for known in notes(self._folder).values())

    def read(self, *, final: bool) -> Iterator[list[Read]]:
        if self._listener is None and not final:
            self._listener = Listener(self._home, self._folder)
            self._listener.start()
        elif self._listener is not None and final:
            self._listener.drain()
        for thread, known in notes(self._folder).items():
            if self._announced(thread):
                about: Record = {"kind": "session", "session": thread, "tapped": known["whole"]}
                yield [(about, "tapped", True)]
        for name in sorted(os.listdir(self._folder)):
            if name.startswith("msg_"):
                path = os.path.join(self._folder, name)
                self._messages.setdefault(name, Live(path)).look()
        for name, live in list(self._messages.items()):
            if self._complete.ids.intersection(live.parts):
                self._forget(name)
            elif self._announced(live.session):  # a reply comes after its question
                pending = live.pending(set())
                if pending is not None:
                    yield [(pending[0], f"{name}.{pending[1]}", True)]

    def _forget(self, name: str) -> None:
        del self._messages[name]
        try:
            os.unlink(os.path.join(self._folder, name))
        except OSError:
            pass


def notes(folder: str) -> dict[str, dict[str, bool]]:
    """What is known of each thread: the last note of it."""
    found: dict[str, dict[str, bool]] = {}
    try:
        with open(os.path.join(folder, _THREADS), encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    known = json.loads(line)
                    found[str(known["thread"])] = {
                        "whole": known["whole"] is True, "running": known["running"] is True
                    }  # fmt: skip
                except (ValueError, TypeError, LookupError):
                    continue  # torn by a death
    except OSError:
        pass
    return found
