"""The SDK: an agent reports its sessions, and what happens in them, before the user sees it.

Never raises into the agent for a fault of ours, and does nothing when not supervised.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from itertools import count

from ..ipc import clock, endpoint, frames, records
from ..ipc.handlers import raised_by_signal_handler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

    from .link import Link

_SPLIT_ABOVE = frames.LIMIT // 8

# We set these in every record; an agent's own fields do not replace them.
_RESERVED = ("kind", "session", "at", "mono")

_found: list[Link | None] = []
# One count for all sessions: two objects may report on the same session, from any thread.
_uids = count(1)
# The process whose end `_close_with_worker` has seen to.
_closed_by: dict[str, int] = {}


def _supervised() -> tuple[str, str] | None:
    """The socket and the spool folder that this process was given, if it was given both."""
    address = os.environ.get(endpoint.SOCKET_VARIABLE)
    spool = os.environ.get(endpoint.SPOOL_VARIABLE)
    if address and spool and os.environ.get(endpoint.SWITCH_VARIABLE) != "0":
        return address, spool
    return None


if _supervised():
    # All of the shim is loaded with the SDK: later, an upgrade may have replaced the files. An
    # unsupervised process never pays for it.
    from . import link as _loaded  # noqa: F401


def connection() -> Link | None:
    """This process's link to its supervisor, or None when there is no supervisor."""
    if not _found:
        link = None
        try:
            where = _supervised()
            if where is not None:
                from .link import Link  # loaded above, if this process was started supervised

                link = Link(*where, {})
        except Exception as error:
            if raised_by_signal_handler(error):
                raise
        # Threads may look at the same time: the first one's stays, and nobody waits.
        _found.append(link)
        if link is not None and _found[0] is link:
            atexit.register(link.close)
    return _found[0]


def session(
    id: str | None = None,
    *,
    source: str = "agent",
    model: str | None = None,
    platform: str | None = None,
    parent: str | None = None,
    db: str | None = None,
    history: list[dict[str, Any]] | None = None,
    **more: Any,
) -> Session:
    """Begin a session, or continue the session that has this `id`.

        with session("chat-1", source="cli", model="some-model") as chat:
            chat.message("user", "hello")

    `id`: the session's id; made up when not given.
    `source`, `model`, `platform`, `parent`: stored with the session; `parent` is a session's id.
    `db`: the state.db in which this session lives, if the agent knows it; a relative path is
    relative to the current folder.
    `history`: the messages that the agent held when it began, each a dict with `role` and
    `content`. Messages reported later win over them.
    Other keywords are stored with the session as they are.
    """
    about: dict[str, object] = {
        "source": source,
        "model": model,
        "platform": platform or source,
        "parent": parent,
        "db": None if db is None else _from_here(db),
        **more,
    }
    return Session(id or _made_up(), about, history)


def _close_with_worker(link: Link) -> None:
    """Report the normal exit of a `multiprocessing` worker, which does not run `atexit`."""
    process = sys.modules.get("multiprocessing.process")
    util = sys.modules.get("multiprocessing.util")
    if process is not None and util is not None and _closed_by.get("pid") != os.getpid():
        _closed_by["pid"] = os.getpid()
        if process.parent_process() is not None:
            util.Finalize(None, link.close, exitpriority=-100)


class Session:
    """One conversation. Use it as a context manager, or call `end` yourself.

    No method raises, and only `acknowledged` waits. What a method was given is safe from the
    agent's death when the method returns. Unsupervised, every method does nothing.
    """

    def __init__(
        self, id: str, about: dict[str, object], history: list[dict[str, Any]] | None = None
    ) -> None:
        self.id = id
        """The session's id; `rotate` changes it."""
        given = {key: value for key, value in about.items() if value is not None}
        self._about = {"started": time.time(), **given}
        self._link = connection()
        self._generation = 0
        self._streaming = False
        self._name(id)
        self._announce()
        if history is not None:
            self._say("history", messages=history)

    # -- the conversation ------------------------------------------------------------------

    def message(
        self,
        role: str,
        content: object = None,
        *,
        uid: str | None = None,
        aside: bool = False,
        **fields: object,
    ) -> str:
        """Report a complete message; returns its uid. With the uid of an earlier message, it
        replaces that one.

        `role`: "user", "assistant", "tool" or "system".
        `content`: the text, or a list of parts as providers take them.
        `aside`: an assistant's message completes the reply being streamed, unless this says that
        the reply was broken off and the message is another one.
        Other keywords (`tool_calls`, `tool_call_id`, …) are fields of the message.
        """
        self._streaming = False
        uid = uid or f"{self._link.stream[:8] if self._link else 'm'}-{next(_uids)}"
        message = {"role": role, "content": content, **fields}
        more = {"aside": True} if aside else {}
        # A user's message may have to be in state.db before the agent works on it.
        self._send("message", {"uid": uid, "message": message, **more}, soon=role != "user")
        return uid

    def delta(self, text: str, *, reasoning: bool = False, restart: bool = False) -> None:
        """Report a piece of the reply being streamed. Call it before you show the piece.

        `reasoning`: the piece belongs to the model's reasoning, not to its answer.
        `restart`: the reply begins again (a retry). What was streamed of it before is dropped.
        """
        link = self._link
        if link is None:
            return
        try:
            if link.generation != self._generation:
                self._announce()
            head = self._reasoning_head if reasoning else self._text_head
            plain = head and text.__class__ is str and not restart
            if plain and self._streaming and len(text) <= _SPLIT_ABOVE:
                link.send_soon(head + text.encode("utf-8", "surrogatepass"))
            else:
                self._delta_at_length(link, text, reasoning, restart)
        except Exception as error:
            if raised_by_signal_handler(error):
                raise
            link.count_fault()

    def tool(self, name: str, arguments: object = None, *, call: str | None = None) -> Tool:
        """A tool call, as a context manager. Set `result` inside it.

            with chat.tool("search", {"query": "tides"}) as tool:
                tool.result = search("tides")

        `call`: the call's id, if an assistant message of yours has announced it. Without it, that
        message is reported for you. An exception inside becomes the result, and passes through.
        """
        return Tool(self, name, arguments, call)

    def turn(self, phase: str) -> None:
        """Report `turn("start")` and `turn("end")`; in between the agent works on an answer."""
        self._say("turn", phase=phase)

    def title(self, text: str) -> None:
        """Give the session a title."""
        self._say("title", title=text)

    def rotate(self, new_id: str, reason: str = "compression") -> None:
        """Continue the conversation under a new id. The old session is ended with `reason`."""
        self._say("rotated", new=_text(new_id), reason=reason)
        self._name(new_id)

    def reset(self, new_id: str | None = None) -> Session:
        """End this conversation, and return the new one that replaces it."""
        name = _text(new_id) if new_id else _made_up()
        self._say("reset", new=name, reason="new_session")
        about = {k: v for k, v in self._about.items() if k not in ("started", "parent", "title")}
        return Session(name, about)

    # -- for agents that keep state.db themselves ---------------------------------------------

    def settled(self, uids: list[str], rows: list[int] | None = None) -> None:
        """Report that these messages are in state.db now, in these rows."""
        self._send("settled", {"uids": uids, "rows": rows or []}, soon=True)

    def rewritten(self) -> None:
        """Report that the agent rewrote this session's rows itself: nothing is missing there."""
        self._say("rewritten")

    def hook(self, name: str) -> None:
        """Report that the agent ran this end-of-session hook itself."""
        self._say("hook", name=name)

    def end(self, reason: str = "completed") -> None:
        """End the session."""
        self._say("ended", reason=reason)

    def acknowledged(self, timeout: float = 10.0) -> bool:
        """Wait until the supervisor has journalled everything that this process has reported; with
        `--sync always` that is on disk. False if it has not within `timeout` seconds, or if there
        is no supervisor."""
        link = self._link
        if link is None:
            return False
        try:
            return link.acknowledged(timeout)
        except Exception as error:
            if raised_by_signal_handler(error):
                raise
            link.count_fault()
            return False

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end("completed" if kind is None else f"failed: {kind.__name__}")

    # -- sending it ------------------------------------------------------------------------

    def _delta_at_length(self, link: Link, text: object, reasoning: bool, restart: bool) -> None:
        """The first piece carries the time when the reply began, which the compact form cannot."""
        text = "" if text is None else _text(text)
        if len(text) > _SPLIT_ABOVE and not restart and self._text_head:
            link.send(*records.fit_deltas(self.id, text, reasoning=reasoning))
        else:
            self._streaming = True
            self._say(
                "delta", restart=bool(restart), **{"reasoning" if reasoning else "text": text}
            )

    def _name(self, id: str) -> None:
        self.id = _text(id)
        try:
            self._text_head = records.pack_delta(self.id, "")
            self._reasoning_head = records.pack_delta(self.id, "", reasoning=True)
        except OverflowError:
            # The id is too long for the compact form.
            self._text_head = self._reasoning_head = b""

    def _announce(self) -> None:
        """Comes first, and again in a forked child, whose stream has no record of it yet."""
        if self._link is not None:
            self._generation = self._link.generation
            _close_with_worker(self._link)
            given = {key: value for key, value in self._about.items() if key not in _RESERVED}
            self._say("session", **given)

    def _say(self, kind: str, /, **fields: object) -> None:
        self._send(kind, fields)

    def _send(self, kind: str, fields: dict[str, object], *, soon: bool = False) -> None:
        link = self._link
        if link is None:
            return
        try:
            if link.generation != self._generation:
                self._announce()
            when = {"at": time.time(), "mono": clock.now()}
            record = {"kind": kind, "session": self.id, **when, **fields}
            try:
                payloads = records.fit_all(record)
            except Exception as error:
                if raised_by_signal_handler(error):
                    raise
                payloads = records.fit_all({key: _plain(value) for key, value in record.items()})
            if soon and len(payloads) == 1:
                link.send_soon(payloads[0])
            else:
                link.send(*payloads)
        except Exception as error:
            if raised_by_signal_handler(error):
                raise
            link.count_fault()


class Tool:
    """A tool call in progress. What `result` holds at the end is the call's answer."""

    def __init__(self, session: Session, name: str, arguments: object, call: str | None) -> None:
        self._session = session
        self._announced = call is not None
        self.call = call or "call_" + os.urandom(6).hex()
        """The call's id."""
        self.name = name
        self.arguments = arguments
        self.result: object = None
        """The call's answer: a text, or anything that JSON can carry. Set it."""

    def __enter__(self) -> Tool:
        if self._session._link is None:
            return self
        if not self._announced:
            text = self.arguments if isinstance(self.arguments, str) else _as_json(self.arguments)
            function = {"name": self.name, "arguments": text}
            calls = [{"id": self.call, "type": "function", "function": function}]
            self._session.message("assistant", None, tool_calls=calls)
        self._session._say("tool", phase="start", call=self.call, name=self.name)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session._link is None:
            return
        failure = _as_json({"error": f"{kind.__name__}: {_text(error)}"}) if kind else None
        result = failure or (self.result if isinstance(self.result, str) else _as_json(self.result))
        self._session._say("tool", phase="end", call=self.call, name=self.name, result=result)
        self._session.message("tool", result, tool_call_id=self.call, tool_name=self.name)


def _from_here(path: str) -> str:
    """A path as it is meant now: the agent may change its folder later."""
    try:
        return os.path.abspath(path)
    except Exception as error:  # no path, or in a folder that was removed
        if raised_by_signal_handler(error):
            raise
        return path


def _made_up() -> str:
    return time.strftime("%Y%m%d_%H%M%S_") + os.urandom(3).hex()


def _as_json(value: object) -> str:
    import json  # here: an agent without tool calls may not need it

    try:
        return json.dumps({} if value is None else value, default=repr)
    except Exception:
        return json.dumps(_plain(value))


def _text(value: object) -> str:
    """As `str`, which may fail in an object's own code."""
    try:
        return value if isinstance(value, str) else str(value)
    except Exception:
        return f"<{type(value).__name__}>"


def _plain(value: object, inside: tuple[int, ...] = ()) -> object:
    """A copy that JSON can carry, of a value that it refused: cycles, odd keys, a bad `repr`."""
    if value is None or isinstance(value, (bool, float, str)):
        return value
    if isinstance(value, int):
        # Python refuses to write very long ones in decimal.
        return value if value.bit_length() < 1024 else hex(value)
    if id(value) not in inside and len(inside) < 64:
        within = (*inside, id(value))
        if isinstance(value, dict):
            return {_text(key): _plain(item, within) for key, item in list(value.items())}
        if isinstance(value, (list, tuple)):
            return [_plain(item, within) for item in list(value)]
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__name__}>"
