"""An agent that streams when told to go, again and again, and says its pid at each stop."""

import os
import sys
import time

from hermes_supervise.agent_shim import session

told, deltas, times = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


def stop():
    with open(told, "w") as file:
        file.write(str(os.getpid()))
    with open(told + ".go") as file:  # a pipe, too: asleep until it is written to
        file.read()


with session("chat", db=told + ".db") as chat:
    stop()
    for _ in range(times):
        for number in range(deltas):
            chat.delta("a few words of it, ")
            if number % 2000 == 1999:
                chat.message("assistant", None)
                chat.acknowledged(5)
        chat.acknowledged(5)
        time.sleep(2)
        stop()
