"""The floor: captures conversations from requests to the model, where nothing else reports them.

Knows nothing of an agent's own code. It gets the messages of every request and the answers, and
makes sessions from them. It works only in a process that runs a known agent, and in the command
that the user supervises, if no transcript of it is read: not in its tools, nor below a shell. An
adapter that captures its agent by itself (`steps_aside`) makes it idle. An adapter that knows which
conversation a request belongs to (`belongs_to`) gets what it lacks, and no session is made.

A request continues the conversation that its messages begin with; its other messages are new. A
request that continues none begins one: its last question is new, and everything before it is
history, or examples for the model. A request of the Responses API may name an earlier response, or
a conversation that the provider keeps, and carry only what is new: it gets the messages before it
from the requests that this process has sent. If the process has not, its session begins with what
is new. A single request that is neither streamed nor has tools is an
aside (a title, a summary) until another one continues it.
"""

from __future__ import annotations

import os
import sys
import threading
import time

from ...ipc import endpoint, jsontext
from .. import sdk
from .model_messages import call_ids

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from .model_messages import Message

    class Listener(Protocol):
        """An adapter that knows the conversation, and wants what it lacks."""

        @property
        def has_all_pieces(self) -> bool:
            """Every piece of an answer that has come from the model has reached it as well. The
            agent itself may report a piece later, when it has come to it."""

        def model_asked(self, messages: list[Message]) -> None: ...

        def model_piece(self, text: str, *, reasoning: bool) -> None: ...

        def model_answered(self, message: Message) -> None: ...


# A module of the agent distinguishes it from a tool that uses a model for its own purposes.
AGENTS = ("hermes_cli", "hermes_bootstrap", "run_agent", "aider", "agents.run")
# A process that uses the SDK reports its sessions itself. An agent in it may be an adapter's.
_SDK = "hermes_supervise.agent_shim.sdk"
TITLE = "Captured from the model's stream; its session is not known"
_KEPT = 64
# Programs that start the command and wait for it.
_LAUNCHERS = ("uv", "uvx", "pipx", "poetry", "pdm", "hatch", "rye", "timeout", "time", "nice")
SOURCE = "python"

steps_aside: list[Callable[[], bool]] = []
belongs_to: list[Callable[[list[Message], bool], Listener | None]] = []

_began: list[float] = []
_conversations: list[Conversation] = []
_lineages: dict[str, tuple[Listener, list[Message]]] = {}
"""By the id that a later request may name: who got the answer, and all messages up to it."""
_lock = threading.RLock()
_is_command: dict[int, bool] = {}  # by pid: a forked child is another process


def begin() -> None:
    """A model SDK has been imported. The link to the supervisor is made while that is possible."""
    sdk.connection()
    _began.append(time.time())


def is_wanted() -> bool:
    """True in an agent that nothing else captures."""
    return (
        sdk.connection() is not None
        and (any(name in sys.modules for name in AGENTS) or _is_the_command())
        and not any(full() for full in steps_aside)
        and (bool(belongs_to) or not _reports_itself())
    )


def _reports_itself() -> bool:
    return _SDK in sys.modules


def _is_the_command() -> bool:
    pid = os.getpid()
    if pid not in _is_command:
        try:
            _is_command[pid] = _looks_like_the_command(os.environ[endpoint.SPOOL_VARIABLE])
        except Exception:
            _is_command[pid] = False
    return _is_command[pid]


def _looks_like_the_command(folder: str) -> bool:
    """True if the supervisor's notes in the run's folder fit: which process was started, and which
    transcripts are followed."""
    with open(os.path.join(folder, "run.json"), encoding="utf-8") as file:
        settings = jsontext.loads(file.read())
    with open(os.path.join(folder, "agent"), encoding="ascii") as file:
        started = int(file.read().split(" ")[0])
    if not isinstance(settings, dict) or settings.get("watcher"):
        return False  # its transcript is read
    launcher = os.path.basename(str(settings["command"][0]))
    return started == os.getpid() or (started == os.getppid() and launcher in _LAUNCHERS)


def is_known(id: str | None) -> bool:
    """True if this process has sent the request that the id stands for."""
    return id in _lineages


def asked(
    messages: list[Message], *, lasting: bool, after: str | None = None, kept_as: str | None = None
) -> Reply | None:
    """A request is sent to a model. Returns who gets the answer; None: nobody.

    `after`: the id of what it continues, if it carries only what is new. `kept_as`: the id under
    which the provider keeps all of the conversation.
    """
    origin, before = _lineages.get(after or "", (None, []))
    messages = [*before, *messages]
    for find in belongs_to:
        listener = find(messages, lasting)
        if listener is not None:
            listener.model_asked(messages)
            return Reply(listener, messages, kept_as)
    if _reports_itself():
        return None
    with _lock:
        found = [candidate for candidate in _conversations if candidate.continues(messages)]
        found = [candidate for candidate in found if candidate is origin] or found
        conversation = max(found, key=lambda candidate: candidate.length, default=None)
        if conversation is None:
            conversation = Conversation(messages)
            _conversations.insert(0, conversation)
            del _conversations[_KEPT:]
        if lasting or conversation.is_answered:
            conversation.model_asked(messages)
    return Reply(conversation, messages, kept_as)


class Reply:
    """The answer to one request."""

    def __init__(
        self, listener: Listener, messages: list[Message], kept_as: str | None = None
    ) -> None:
        self._listener = listener
        self._messages = messages
        self._id: str | None = None
        self._kept_as = kept_as
        self._over = False

    def named(self, id: str) -> None:
        """The provider says how a later request may refer to the answer."""
        self._id = id
        _remember(id, self._listener, self._messages)

    def _learn(self, message: Message) -> None:
        for id in (self._id, self._kept_as):
            if id is not None:
                _remember(id, self._listener, [*self._messages, message])

    def piece(self, text: str, *, reasoning: bool) -> None:
        self._listener.model_piece(text, reasoning=reasoning)

    def complete(self, message: Message) -> None:
        """The answer is complete, though its stream is not closed yet: the agent may send the next
        request before it closes the stream, or never close it."""
        self._learn(message)
        if self._listener.has_all_pieces:
            self.over(message)

    def over(self, message: Message | None) -> None:
        """The stream is closed. If the answer was cut off, there is no message."""
        if not self._over and message is not None:
            self._listener.model_answered(message)
            self._learn(message)
        self._over = True


def _remember(id: str, listener: Listener, messages: list[Message]) -> None:
    with _lock:
        _lineages.pop(id, None)
        _lineages[id] = listener, messages
        for old in list(_lineages)[:-_KEPT]:
            del _lineages[old]


class Conversation:
    """A conversation that is known only from requests to the model."""

    has_all_pieces = True

    def __init__(self, messages: list[Message]) -> None:
        self._known = list(messages)
        self._start = len(_but_the_last_question(messages))
        self._session: sdk.Session | None = None
        self._tools: dict[str, str] = {}  # by call: the tool's name
        self._restart = False
        self.is_answered = False

    @property
    def length(self) -> int:
        return len(self._known)

    def continues(self, messages: list[Message]) -> bool:
        """True if these messages begin with the known ones."""
        known = self._known
        return 0 < len(known) <= len(messages) and all(map(is_same, known, messages))

    def model_asked(self, messages: list[Message]) -> None:
        if self._session is None:
            about = {"source": "unknown", "settles": True} if _is_hermes() else {"source": SOURCE}
            self._session = sdk.session(captured="model stream", since=_began[0], **about)
            if _is_hermes():
                self._session.title(TITLE)
            # What was said in an aside that this request continues is a part of the conversation.
            past = messages[: self._start]
            if _is_hermes() and (past := _but_the_last_question(messages)):
                # In another agent these may be examples for the model, which nobody said.
                self._session._say("history", messages=past)
            self._known = past
        for message in messages[len(self._known) :]:
            self._say(message)
        self._restart = True

    def model_piece(self, text: str, *, reasoning: bool) -> None:
        if self._session is not None:
            restart, self._restart = self._restart, False
            self._session.delta(text, reasoning=reasoning, restart=restart)

    def model_answered(self, message: Message) -> None:
        self.is_answered = True
        if self._session is not None:
            self._say(message)
        else:
            self._known = [*self._known, message]

    def _say(self, message: Message) -> None:
        self._known = [*self._known, message]
        assert self._session is not None
        for call in message.get("tool_calls") or ():
            self._tools[str(call.get("id"))] = str((call.get("function") or {}).get("name"))
        name = self._tools.get(str(message.get("tool_call_id")))
        if message["role"] == "tool" and name is not None:
            message = {"tool_name": name, **message}
        self._session.message(**message)


def _is_hermes() -> bool:
    """True in a Hermes, which stores its sessions itself."""
    return "hermes_cli" in sys.modules


def _but_the_last_question(messages: list[Message]) -> list[Message]:
    places = [place for place, message in enumerate(messages) if message["role"] == "user"]
    return messages[: places[-1]] if places else []


def is_same(one: Message, other: Message) -> bool:
    """True if two messages are the same, as far as that can be known: an agent may have changed the
    form of an answer, or added text around a question."""
    if one["role"] != other["role"]:
        return False
    if one["role"] == "tool":
        return one.get("tool_call_id") == other.get("tool_call_id")
    if one["role"] == "assistant":
        return call_ids(one) == call_ids(other)
    mine, its = str(one.get("content")).strip(), str(other.get("content")).strip()
    return mine == its or (bool(mine and its) and (mine in its or its in mine))


def last_question(messages: list[Message]) -> str | None:
    said = [message["content"] for message in messages if message["role"] == "user"]
    return str(said[-1]) if said else None
