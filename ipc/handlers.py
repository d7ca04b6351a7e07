"""Distinguishes an exception of a signal handler from one of our own.

A timeout that the agent set with `signal.alarm` may strike while the agent is in a call of ours,
and its handler raises what the agent wants to catch. We never swallow that.

Never looks at what an exception says.
"""

from __future__ import annotations


def raised_by_signal_handler(error: BaseException) -> bool:
    """Whether a handler raised it: a handler is given the frame that it interrupts, and nobody
    else is."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        interrupted, trace = trace.tb_frame, trace.tb_next
        for given in trace.tb_frame.f_locals.values():
            within = given if isinstance(given, tuple) else (given,)
            if any(value is interrupted for value in within):
                return True
    return False


# The name in 0.1.0: a process that was started before an upgrade may import it late.
is_the_agents = raised_by_signal_handler
