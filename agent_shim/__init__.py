"""The guest inside the agent: an SDK that hands over what happens before it is shown.

    from hermes_supervise.agent_shim import session

    with session("chat-1", source="cli", model="some-model") as chat:
        chat.message("user", "hello")
        for text in stream:
            chat.delta(text)          # handed over first,
            print(text, end="")       # shown second
        chat.message("assistant", whole_reply)

Works, and does nothing, when no supervisor is there. Standard library only; it never
raises into the agent and never writes to its terminal.
"""

from .sdk import Session, Tool, session

__all__ = ["Session", "Tool", "session"]
