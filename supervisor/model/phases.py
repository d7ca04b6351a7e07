"""What a session is doing, as a table: (phase, event) to phase, for every pair.

Never touches anything: replay asks it record by record, and at the end it says whether work was in
flight.
"""

from __future__ import annotations

from ...ipc.lightweight.dataclass import Enum


class Phase(Enum):
    IDLE = "idle"  # nothing asked, or everything answered
    WORKING = "working"  # the user asked, the agent thinks
    REPLYING = "replying"  # a reply is being streamed
    CALLING = "calling"  # tool calls are open
    ENDED = "ended"  # closed by the agent itself


class Event(Enum):
    TURN_STARTED = "turn started"
    TURN_ENDED = "turn ended"
    TURN_BROKEN_OFF = "turn broken off"
    USER_SPOKE = "user spoke"
    PIECE_CAME = "piece came"
    CALLS_MADE = "calls made"
    TOOL_STARTED = "tool started"
    TOOL_ANSWERED = "tool answered"
    ALL_ANSWERED = "all answered"
    REPLY_CAME = "reply came"
    REWRITTEN = "rewritten"
    SESSION_ENDED = "session ended"
    SESSION_OPENED = "session opened"


# Most events say by themselves what the session does next, whatever it did before.
_NEXT = {
    Event.TURN_STARTED: Phase.WORKING,
    Event.TURN_ENDED: Phase.IDLE,
    Event.TURN_BROKEN_OFF: Phase.WORKING,  # the answer is still missing
    Event.USER_SPOKE: Phase.WORKING,
    Event.PIECE_CAME: Phase.REPLYING,
    Event.CALLS_MADE: Phase.CALLING,
    Event.TOOL_STARTED: Phase.CALLING,
    Event.TOOL_ANSWERED: Phase.CALLING,
    Event.ALL_ANSWERED: Phase.WORKING,
    Event.REPLY_CAME: Phase.IDLE,
    Event.REWRITTEN: Phase.IDLE,
    Event.SESSION_ENDED: Phase.ENDED,
}

TABLE: dict[tuple[Phase, Event], Phase] = {
    (phase, event): after for phase in Phase for event, after in _NEXT.items()
}
# Announcing a session again says nothing new, except that an ended one goes on.
TABLE |= {(phase, Event.SESSION_OPENED): phase for phase in Phase}
TABLE[Phase.ENDED, Event.SESSION_OPENED] = Phase.IDLE
# Late records (a slow thread, the end of the turn itself) do not reopen an ended session. Only the
# user or a new turn does.
_OPENS_AGAIN = (Event.SESSION_OPENED, Event.USER_SPOKE, Event.TURN_STARTED)
TABLE |= {(Phase.ENDED, event): Phase.ENDED for event in Event if event not in _OPENS_AGAIN}

IN_FLIGHT = frozenset({Phase.WORKING, Phase.REPLYING, Phase.CALLING})
