"""An agent that sends one message and then waits for ever."""

import signal
import sys

from hermes_supervise.agent_shim import session

chat = session("chat", db=sys.argv[1] + ".db")
chat.message("user", "hello")
open(sys.argv[1], "w").close()
while True:
    signal.pause()
