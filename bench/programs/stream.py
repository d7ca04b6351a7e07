"""An agent that streams in rounds: it reports its pid after each, and waits for the next."""

import os
import sys
import time

from hermes_supervise.agent_shim import session

stopped, deltas, times = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


def report_and_wait():
    with open(stopped, "w") as file:
        file.write(str(os.getpid()))
    with open(stopped + ".go") as file:  # a named pipe: this blocks until somebody writes to it
        file.read()


with session("chat", db=stopped + ".db") as chat:
    report_and_wait()
    for _ in range(times):
        for number in range(deltas):
            chat.delta("a few words of it, ")
            if number % 2000 == 1999:
                chat.message("assistant", None)
                chat.acknowledged(5)
        chat.acknowledged(5)
        time.sleep(2)
        report_and_wait()
