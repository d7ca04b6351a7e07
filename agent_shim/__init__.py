"""The shim inside the agent, and its SDK: report what happens before the user sees it.

    from hermes_supervise.agent_shim import session

    with session("chat-1", source="cli", model="some-model") as chat:
        chat.message("user", "hello")
        for text in stream:
            chat.delta(text)          # report it first,
            print(text, end="")       # then show it
        chat.message("assistant", whole_reply)

Without a supervisor, every call works and does nothing. The shim uses the standard library only,
never raises into the agent and never writes to its terminal.
"""

from .sdk import Session, Tool, session

__all__ = ["Session", "Tool", "session"]
