"""The SDK: a session, and what happens in it, said in the agent's own words.

Never raises into the agent for a fault of ours, and does nothing when not supervised.
"""

from __future__ import annotations

import atexit
import os
import time
from itertools import count

from ..ipc import endpoint, frames, records
from ..ipc.handlers import is_the_agents
from .link import Link

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

_SPLIT_ABOVE = frames.LIMIT // 8

# Said by us in every record; what an agent tells of a session does not replace it.
_OURS = ("kind", "session", "at")

_found: list[Link | None] = []
# One count for all sessions: two objects may tell of the same one, from any thread.
_uids = count(1)


def connection() -> Link | None:
    """This process's line to its supervisor, or None when there is none to speak to."""
    if not _found:
        link = None
        try:
            address = os.environ.get(endpoint.SOCKET_VARIABLE)
            spool = os.environ.get(endpoint.SPOOL_VARIABLE)
            if address and spool and os.environ.get(endpoint.SWITCH_VARIABLE) != "0":
                link = Link(address, spool, {})
        except Exception:
            pass
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
    """Begin a session, or go on with one that has this `id`.

    `db` is the state.db that this session lives in, where the agent knows it. `history` is
    what the agent already held when it began; messages said later win over it.
    """
    about: dict[str, object] = {
        "source": source,
        "model": model,
        "platform": platform or source,
        "parent": parent,
        "db": db,
        **more,
    }
    return Session(id or _made_up(), about, history)


class Session:
    """One conversation. Use as a context manager, or call `end` yourself."""

    def __init__(
        self, id: str, about: dict[str, object], history: list[dict[str, Any]] | None = None
    ) -> None:
        self.id = id
        told = {key: value for key, value in about.items() if value is not None}
        self._about = {"started": time.time(), **told}
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
        """A complete message. Said again with the same `uid`, it replaces the earlier one.

        An assistant's message completes the reply being streamed, unless `aside` says that the
        reply was broken off and this is something else.
        """
        self._streaming = False
        uid = uid or f"{self._link.stream[:8] if self._link else 'm'}-{next(_uids)}"
        told = {"role": role, "content": content, **fields}
        more = {"aside": True} if aside else {}
        # What the user says may have to be in state.db before the agent works on it.
        self._tell("message", {"uid": uid, "message": told, **more}, soon=role != "user")
        return uid

    def delta(self, text: str, *, reasoning: bool = False, restart: bool = False) -> None:
        """A piece of the reply being streamed. Call it before you show the piece.

        `restart` says that the reply begins anew (a retry): what was streamed of it before
        no longer counts.
        """
        link = self._link
        if link is None:
            return
        try:
            if link.generation != self._generation:
                self._announce()
            head = self._reasoning_head if reasoning else self._text_head
            # Not `isinstance`, and the rarest last: each name that is looked up is fetched anew.
            plain = head and text.__class__ is str and not restart
            if plain and self._streaming and len(text) <= _SPLIT_ABOVE:
                # An encoding that is named is looked for; where caches are cold, that shows.
                try:
                    piece = text.encode()
                except UnicodeEncodeError as error:
                    if is_the_agents(error):
                        raise
                    piece = text.encode("utf-8", "surrogatepass")  # half of a character
                link.send_soon(head + piece)
            else:
                self._delta_at_length(link, text, reasoning, restart)
        except Exception as error:
            if is_the_agents(error):
                raise
            link.faults += 1

    def tool(self, name: str, arguments: object = None, *, call: str | None = None) -> Tool:
        """A tool call, as a context manager; set `result` inside it.

        Give `call` where an assistant message has announced the call's id; without it, that
        message is said for you.
        """
        return Tool(self, name, arguments, call)

    def turn(self, phase: str) -> None:
        """`turn("start")` and `turn("end")`: the agent works on an answer in between."""
        self._say("turn", phase=phase)

    def title(self, text: str) -> None:
        self._say("title", title=text)

    def rotate(self, new_id: str, reason: str = "compression") -> None:
        """The conversation goes on under a new id; the old one is closed with `reason`."""
        self._say("rotated", new=_text(new_id), reason=reason)
        self._name(new_id)

    def reset(self, new_id: str | None = None) -> Session:
        """A new conversation in the place of this one, which is over; the new one."""
        name = _text(new_id) if new_id else _made_up()
        self._say("reset", new=name, reason="new_session")
        about = {k: v for k, v in self._about.items() if k not in ("started", "parent", "title")}
        return Session(name, about)

    # -- for agents that keep state.db themselves ---------------------------------------------

    def settled(self, uids: list[str], rows: list[int] | None = None) -> None:
        """These messages are in state.db now, in these rows."""
        self._tell("settled", {"uids": uids, "rows": rows or []}, soon=True)

    def rewritten(self) -> None:
        """The agent rewrote this session's rows itself; nothing said before is missing."""
        self._say("rewritten")

    def hook(self, name: str) -> None:
        """The agent ran this end-of-session hook itself."""
        self._say("hook", name=name)

    def end(self, reason: str = "completed") -> None:
        self._say("ended", reason=reason)

    def acknowledged(self, timeout: float = 10.0) -> bool:
        """Wait until the supervisor has written down all that this process has said: on the disk,
        with `--sync always`. False if it has not by then, or nobody supervises."""
        link = self._link
        if link is None:
            return False
        try:
            return link.acknowledged(timeout)
        except Exception as error:
            if is_the_agents(error):
                raise
            link.faults += 1
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

    # -- saying it -------------------------------------------------------------------------

    def _delta_at_length(self, link: Link, text: object, reasoning: bool, restart: bool) -> None:
        """The first piece says when the reply began; the compact form has no room for it."""
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
            # Too long an id for the compact form.
            self._text_head = self._reasoning_head = b""

    def _announce(self) -> None:
        """Said first, and again in a forked child, whose stream knows nothing yet."""
        if self._link is not None:
            self._generation = self._link.generation
            told = {key: value for key, value in self._about.items() if key not in _OURS}
            self._say("session", **told)

    def _say(self, kind: str, /, **fields: object) -> None:
        self._tell(kind, fields)

    def _tell(self, kind: str, fields: dict[str, object], *, soon: bool = False) -> None:
        link = self._link
        if link is None:
            return
        try:
            if link.generation != self._generation:
                self._announce()
            record = {"kind": kind, "session": self.id, "at": time.time(), **fields}
            try:
                payload = records.fit(record)
            except Exception as error:
                if is_the_agents(error):
                    raise
                payload = records.fit({key: _plain(value) for key, value in record.items()})
            (link.send_soon if soon else link.send)(payload)
        except Exception as error:
            if is_the_agents(error):
                raise
            link.faults += 1


class Tool:
    """A tool call under way. What `result` holds at the end is the call's answer."""

    def __init__(self, session: Session, name: str, arguments: object, call: str | None) -> None:
        self._session = session
        self._announced = call is not None
        self.call = call or "call_" + os.urandom(6).hex()
        self.name = name
        self.arguments = arguments
        self.result: object = None

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


def _made_up() -> str:
    return time.strftime("%Y%m%d_%H%M%S_") + os.urandom(3).hex()


def _as_json(value: object) -> str:
    import json

    try:
        return json.dumps({} if value is None else value, default=repr)
    except Exception:
        return json.dumps(_plain(value))


def _text(value: object) -> str:
    """`str`, which an object's own code may make fail."""
    try:
        return value if isinstance(value, str) else str(value)
    except Exception:
        return f"<{type(value).__name__}>"


def _plain(value: object, inside: tuple[int, ...] = ()) -> object:
    """A copy that JSON can carry, of what it refused: cycles, odd keys, a `repr` that fails."""
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
