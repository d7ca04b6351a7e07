"""One supervised run as a table: (state, event) to the next state and the actions to take.

Never touches anything: `supervision.py` observes, asks this table, and acts.

    STARTING ──started──► RUNNING ──command gone──► FOLLOWING ──nobody left──► DRAINING
        └─────────────took over──────────────────────────▲                     │  ▲  └─► LEAVING
                                                          └──someone connects──┤  │
                                                                               ▼  │
                                                                            RECOVERING
    any ──a fault of ours──► WAITING_ONLY ──command gone──► LEAVING

An observation is made after every round of the event loop and says what is left: the command, other
processes of the agent, work of our own, or nothing. The other events happen at some moment.
"""

from __future__ import annotations

from ...ipc.lightweight.dataclass import Enum


class State(Enum):
    STARTING = "starting"  # the agent is being started, or a dead supervisor's run taken over
    RUNNING = "running"  # the command that we started runs
    FOLLOWING = "following"  # the command has exited, other processes of the agent run
    DRAINING = "draining"  # nobody runs: look once more for what was sent or left
    RECOVERING = "recovering"  # nobody runs: recoveries, hooks and transcripts are under way
    WAITING_ONLY = "waiting only"  # supervision failed: no capture, the exit status is still ours
    LEAVING = "leaving"  # nothing is left to do


class Event(Enum):
    STARTED = "started"
    TOOK_OVER = "took over"
    # Observations: what is left.
    COMMAND_RUNS = "command runs"
    OTHERS_RUN = "others run"
    WORK_REMAINS = "work remains"
    NOTHING_LEFT = "nothing left"
    # What happens.
    SIGNAL = "signal"  # one that is the agent's business, other than the next
    INTERRUPT = "interrupt"  # SIGINT
    LEFT = "left"  # SIGINT, after a line said that it leaves what holds the terminal
    AGENT_STOPPED = "agent stopped"
    AGENT_CONTINUED = "agent continued"
    FAILED = "failed"  # a fault of ours, or a file or descriptor that we could not get


class Action(Enum):
    FORWARD = "forward the signal to the agent, unless the whole group got it"
    STOP_TOO = "stop as the agent did, so that the shell sees it"
    NOTE_CONTINUED = "the agent runs again"
    DRAIN = "read what was sent, find what was left, and have it recovered"
    START_HOOKS = "start queued hooks without waiting for them"
    STOP_CAPTURE = "say why, close the socket: shims spool from now on"


Row = tuple[State, tuple[Action, ...]]

_LOOK = {
    Event.COMMAND_RUNS: (State.RUNNING, ()),
    Event.OTHERS_RUN: (State.FOLLOWING, ()),
    Event.WORK_REMAINS: (State.RECOVERING, ()),
    Event.NOTHING_LEFT: (State.DRAINING, (Action.DRAIN,)),
}
_SIGNALS = {
    Event.SIGNAL: (Action.FORWARD,),
    Event.INTERRUPT: (Action.FORWARD,),
    Event.AGENT_STOPPED: (Action.STOP_TOO,),
    Event.AGENT_CONTINUED: (Action.NOTE_CONTINUED,),
}

# Pairs that are not listed below change nothing.
TABLE: dict[tuple[State, Event], Row] = {
    (state, event): (state, ()) for state in State for event in Event
}
TABLE |= {
    (State.STARTING, Event.STARTED): (State.RUNNING, ()),
    (State.STARTING, Event.TOOK_OVER): (State.FOLLOWING, ()),
}
for _state in (State.RUNNING, State.FOLLOWING):
    TABLE |= {(_state, event): row for event, row in _LOOK.items()}
    TABLE |= {(_state, event): (_state, actions) for event, actions in _SIGNALS.items()}
# The remaining processes never connected, and may continue to run.
TABLE[State.FOLLOWING, Event.LEFT] = (State.LEAVING, (Action.START_HOOKS,))
for _state in (State.DRAINING, State.RECOVERING):
    TABLE |= {(_state, event): row for event, row in _LOOK.items()}
    # Only our own work is left. Ctrl-C means that the user does not want to wait; the work
    # continues without us.
    TABLE[_state, Event.INTERRUPT] = (State.LEAVING, (Action.START_HOOKS,))
    TABLE[_state, Event.LEFT] = TABLE[_state, Event.INTERRUPT]
# We have looked once more, and nothing is left.
TABLE[State.DRAINING, Event.NOTHING_LEFT] = (State.LEAVING, ())
for _state in State:
    if _state is not State.LEAVING:
        TABLE[_state, Event.FAILED] = (State.WAITING_ONLY, (Action.STOP_CAPTURE,))
TABLE |= {
    (State.WAITING_ONLY, event): (State.WAITING_ONLY, actions)
    for event, actions in _SIGNALS.items()
}
TABLE |= {
    (State.WAITING_ONLY, event): (State.LEAVING, ())
    for event in (Event.OTHERS_RUN, Event.WORK_REMAINS, Event.NOTHING_LEFT)
}
TABLE[State.WAITING_ONLY, Event.FAILED] = (State.WAITING_ONLY, ())
