"""The socket of a line: made, waited for, let go.

Never waits longer than it is told, and never closes a descriptor that has become the agent's.
"""

from __future__ import annotations

import os
from time import monotonic

from ..ipc.endpoint import identity
from ..ipc.handlers import is_the_agents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket as Socket

# The kernel gives twice this or what it allows, most often twice its default: a supervisor that
# reads in batches, or late, is not noticed here.
_BUFFER = 1024 * 1024
# How long to stay awake for an answer that the agent has asked to wait for: most often it is
# there by then, with `--sync always` and a disk that is no slower than most, too.
_AWAKE = 0.0005


def connected(address: str) -> Socket:
    """Raises OSError where nobody listens."""
    # Not `socket`, whose imports cost milliseconds and which some agents replace.
    import _socket

    line = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        line.setblocking(False)
        line.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDBUF, _BUFFER)
        line.connect(address)
    except BaseException:
        line.close()
        raise
    return line


def wait(line: Socket, *, reading: bool, seconds: float) -> None:
    import select

    poller = select.poll()
    poller.register(line, select.POLLIN if reading else select.POLLOUT)
    try:
        if reading:
            # An answer is there sooner than a processor that went to sleep would be back.
            until = monotonic() + min(seconds, _AWAKE)
            while not (ready := poller.poll(0)) and monotonic() < until:
                os.sched_yield()
            if ready:
                return
        poller.poll(max(1, int(min(seconds, 3600) * 1000)))
    except (OSError, ValueError) as error:
        if is_the_agents(error):
            raise


def let_go(line: Socket, inode: int) -> None:
    """Close our descriptor, but not one of the agent's that has its number now."""
    now = identity(line.fileno())
    if now is not None and now[1] == inode:
        line.close()
    else:
        line.detach()
