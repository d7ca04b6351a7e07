"""The demo's agent: it answers once or uses a tool once, and waits to be killed.

Never ends by itself. It shows what an agent with the SDK looks like.
"""

from __future__ import annotations

import sys
import time

from hermes_supervise.agent_shim import session

# Fits on one line of any terminal.
REPLY = "I read the configuration, move the old entries aside, and write the new ones."


def main() -> None:
    act, name = sys.argv[1:3]
    with session(name, source="cli", model="demo-model") as chat:
        chat.message("user", "Tidy up my configuration, please.")
        for word in REPLY.split(" "):
            chat.delta(word + " ")  # record it first,
            print(word, end=" ", flush=True)  # then show it
            time.sleep(0.03)
            if act == "reply" and word == "aside,":
                wait_for_the_end()
        print("\n[runs: mv config.toml config.old]", flush=True)
        with chat.tool("shell", {"command": "mv config.toml config.old"}):
            wait_for_the_end()


def wait_for_the_end() -> None:
    print("\n(now)", flush=True)
    time.sleep(3600)


if __name__ == "__main__":
    main()
