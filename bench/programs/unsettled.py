"""An agent with messages that are not stored yet: unsettled.py READY N SIZE."""

import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hermes_supervise.agent_shim import session
from texts import Texts

ready, count, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
texts = Texts()
chat = session("chat", source="cli", model="m")
for number in range(count):
    chat.message("user" if number % 2 == 0 else "assistant", texts(number, size))
chat.turn("start")
assert chat.acknowledged(30)
with open(ready + ".new", "w") as file:
    file.write(str(os.getpid()))
os.rename(ready + ".new", ready)
while True:
    signal.pause()
