"""Whose exception it is that came up in a call of ours: our own fault, or a signal handler's.

Never looks at what an exception says.

A timeout that the agent set with `signal.alarm` may strike while it is in here, and raises what
the agent wants to catch. That is swallowed by nobody.
"""

from __future__ import annotations


def is_the_agents(error: BaseException) -> bool:
    """A handler is given the frame that it interrupts, and nobody else is."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        interrupted, trace = trace.tb_frame, trace.tb_next
        for given in trace.tb_frame.f_locals.values():
            within = given if isinstance(given, tuple) else (given,)
            if any(one is interrupted for one in within):
                return True
    return False
