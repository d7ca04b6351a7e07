"""Where state.db is: Hermes' own database, which gets the sessions of other agents as well.

Never opens it, and never looks whether it exists.
"""

from __future__ import annotations

import os


def hermes_home() -> str:
    """The folder of Hermes, as it is set here."""
    return os.path.abspath(os.environ.get("HERMES_HOME") or os.path.expanduser("~/.hermes"))


def default_db() -> str:
    """The state.db for an agent that names none."""
    return os.path.join(hermes_home(), "state.db")
