"""The state table of a run: total, without a dead end, and never without the agent's status."""

from __future__ import annotations

import pytest
from hermes_supervise.supervisor.run.states import TABLE, Action, Event, State

OBSERVATIONS = (
    Event.COMMAND_RUNS,
    Event.OTHERS_RUN,
    Event.WORK_REMAINS,
    Event.NOTHING_LEFT,
)


def after(state: State, *events: Event) -> tuple[State, list[Action]]:
    actions: list[Action] = []
    for event in events:
        state, more = TABLE[state, event]
        actions += more
    return state, actions


def test_every_state_knows_every_event() -> None:
    assert set(TABLE) == {(state, event) for state in State for event in Event}
    for state, actions in TABLE.values():
        assert state in State
        assert set(actions) <= set(Action)


@pytest.mark.parametrize("state", list(State), ids=lambda state: str(state.value))
def test_once_nothing_is_left_every_state_comes_to_its_end(state: State) -> None:
    begun = [Event.STARTED] if state is State.STARTING else []
    assert after(state, *begun, Event.NOTHING_LEFT, Event.NOTHING_LEFT)[0] is State.LEAVING


@pytest.mark.parametrize("state", list(State), ids=lambda state: str(state.value))
def test_a_fault_of_ours_leaves_the_agent_waited_for(state: State) -> None:
    if state is State.LEAVING:
        assert after(state, Event.FAILED) == (State.LEAVING, [])
    else:
        assert after(state, Event.FAILED)[0] is State.WAITING_ONLY
        assert after(state, Event.FAILED, Event.COMMAND_RUNS)[0] is State.WAITING_ONLY


def test_nobody_leaves_without_a_last_look_at_what_was_sent() -> None:
    for state in (State.RUNNING, State.FOLLOWING, State.RECOVERING):
        assert after(state, Event.NOTHING_LEFT) == (State.DRAINING, [Action.DRAIN])


def test_a_process_that_connects_late_is_followed_again() -> None:
    for state in (State.DRAINING, State.RECOVERING):
        assert after(state, Event.OTHERS_RUN)[0] is State.FOLLOWING


@pytest.mark.parametrize("event", [Event.SIGNAL, Event.INTERRUPT])
def test_signals_are_the_agents_while_it_lives(event: Event) -> None:
    for state in (State.RUNNING, State.FOLLOWING, State.WAITING_ONLY):
        assert after(state, event) == (state, [Action.FORWARD])


def test_ctrl_c_does_not_wait_for_our_own_work() -> None:
    for state in (State.DRAINING, State.RECOVERING):
        assert after(state, Event.INTERRUPT) == (State.LEAVING, [Action.START_HOOKS])
        assert after(state, Event.SIGNAL) == (state, [])


def test_a_user_leaves_only_what_nobody_knows_and_what_is_our_own() -> None:
    for state in State:
        leaves = state in (State.FOLLOWING, State.DRAINING, State.RECOVERING)
        expected = (State.LEAVING, [Action.START_HOOKS]) if leaves else (state, [])
        assert after(state, Event.LEFT) == expected


def test_what_is_left_alone_decides_where_a_run_is() -> None:
    """Whatever happened before: observations lead to the same state from everywhere."""
    states = (State.RUNNING, State.FOLLOWING, State.RECOVERING)
    for event in OBSERVATIONS:
        assert len({after(state, event)[0] for state in states}) == 1
