"""Which conversation an agent of Hermes is in, and which one a request to the model belongs to.

Never makes a conversation of an agent that is not to be followed: it is not stored, it is a fork
for a review, or nobody asked for its turn.
"""

from __future__ import annotations

import os
import threading
import weakref

from . import hermes_conversation as conversations
from .hermes_conversation import Conversation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .model_messages import Message

# On an agent whose turn nobody asked for.
PHANTOM = "_hermes_supervise_phantom"

# The class, or classes, of its databases.
stores: weakref.WeakSet[type] = weakref.WeakSet()

_sender = threading.local()
_NO = object()


def of(agent: Any) -> Conversation | None:
    """The conversation an agent is in now, if it is one to follow."""
    if not _is_followed(agent):
        return None
    found = agent.__dict__.get("_hermes_supervise")
    # While it compresses, it says itself under which id it goes on.
    if found is not None and found.session.id != agent.session_id and found.compressing is None:
        if found.in_turn:
            found.moved(agent.session_id)
        else:
            found = None
    if found is None:
        found = agent.__dict__["_hermes_supervise"] = Conversation(agent, path_of(database(agent)))
    return found if isinstance(found, Conversation) else None


def asked(messages: list[Message], *, turns_are_tapped: bool) -> Conversation | Unfollowed | None:
    """The conversation that a request to the model belongs to; None: not known."""
    alive = conversations.alive()
    found = [conversation for conversation in alive if conversation.may_ask(messages)]
    if len(found) > 1 or not turns_are_tapped:
        agent = _asking()
        if agent is not None:
            return of(agent) or Unfollowed()
    if not found and not turns_are_tapped:
        found = [conversation for conversation in alive if conversation.may_ask(messages) is None]
    if not found:  # the request may contain other text
        found = [conversation for conversation in alive if conversation.in_turn]
        found = found if len(found) == 1 else []
    if len(found) == 1:
        return found[0]
    # A turn of an agent that is not captured, or a side request of Hermes.
    return Unfollowed() if turns_are_tapped and not found else None


def sends(agent: Any) -> None:
    """This thread is about to send a request of the agent's."""
    _sender.agent = weakref.ref(agent)


def _asking() -> Any:
    """The agent for which this thread sends a request; None: that is not known."""
    found = getattr(_sender, "agent", None)
    return found() if found is not None else None


class Unfollowed:
    """Ignores a request that is not part of a conversation."""

    has_all_pieces = True

    def model_asked(self, messages: list[Message]) -> None:
        pass

    def model_piece(self, text: str, *, reasoning: bool) -> None:
        pass

    def model_answered(self, message: Message) -> None:
        pass


def database(agent: Any) -> Any:
    """What the agent stores its session with; None: it is not stored."""
    found = getattr(agent, "_session_db", _NO)
    return _stored_with(agent) if found is _NO else found


def _stored_with(owner: Any) -> Any:
    """The database that an object has, under whatever name."""
    kinds = tuple(stores)
    held = list(getattr(owner, "__dict__", {}).values())
    return next((value for value in held if isinstance(value, kinds)), None)


def path_of(db: Any) -> str | None:
    """The file of a database, or of the one that it hands everything on to; None: not known."""
    owners = [db, _stored_with(db)]
    named = [getattr(owner, "db_path", None) for owner in owners]
    held = [value for owner in owners for value in getattr(owner, "__dict__", {}).values()]
    for path in (*named, *(path for path in held if str(path).endswith(".db"))):
        if isinstance(path, (str, os.PathLike)):
            return os.fspath(path)
    return None


def _is_followed(agent: Any) -> bool:
    """False for an agent that is never stored, for a review fork, which shares its parent's session
    id, and for a turn that nobody asked for."""
    return (
        database(agent) is not None
        and isinstance(getattr(agent, "session_id", None), str)
        and not getattr(agent, "_persist_disabled", False)
        and getattr(agent, "_memory_write_origin", None) != "background_review"
        and not agent.__dict__.get(PHANTOM)
    )
