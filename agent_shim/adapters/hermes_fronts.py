"""Hermes' front ends: what they keep about a session themselves.

Never writes to them. A title that the user gave before the session had a row is in no list of
messages: the classic front end keeps it in its own object, the TUI in its table of sessions.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Methods of the classic front end that it hands to its agent: one of them is always set.
_CALLBACKS = ("tool_progress_callback", "stream_delta_callback", "thinking_callback")


def pending_title(agent: Any) -> str | None:
    """The title that waits for the session's row, if any does."""
    kept = [
        getattr(getattr(getattr(agent, name, None), "__self__", None), "_pending_title", None)
        for name in _CALLBACKS
    ]
    for session in list(getattr(sys.modules.get("tui_gateway.server"), "_sessions", {}).values()):
        if session.get("session_key") == agent.session_id:
            kept.append(session.get("pending_title"))
    return next((title for title in kept if isinstance(title, str) and title), None)


def hermes_variables() -> dict[str, str]:
    """The variables that hooks need to find the same Hermes and its home, whoever runs them."""
    found = {name: value for name, value in os.environ.items() if name.startswith("HERMES_")}
    source = getattr(sys.modules.get("hermes_bootstrap"), "__file__", None)
    folder = os.path.dirname(os.path.abspath(source)) if source else sys.prefix
    if not folder.startswith(os.path.join(sys.prefix, "")) and folder != sys.prefix:
        # Its interpreter alone cannot import it; with this it can, and finds its packages itself.
        found["PYTHONPATH"] = folder
    return found
