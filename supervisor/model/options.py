"""The settings of a run, as data.

Never parses anything: `cli/options.py` does, and fills this in.
"""

from __future__ import annotations

# The events that hooks run for. Each has an option of its name.
END, FINALIZE, RESET = "on_session_end", "on_session_finalize", "on_session_reset"
HOOK_EVENTS = (END, FINALIZE, RESET)


class UsageError(Exception):
    """A flag, variable or value is wrong; the text says which and why."""


class Options:
    """The settings of a run. A flag wins over HERMES_SUPERVISE_<NAME>, that over config.toml,
    that over the default."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.db: str | None = None
        self.on_session_end: list[str] = []
        self.on_session_finalize: list[str] = []
        self.on_session_reset: list[str] = []
        self.hook_timeout = 300.0
        self.hook_wait = 2.0
        self.hook_retry = "10,60"
        self.idle_finalize = 0.0
        self.grace = 10.0
        self.orphans = "terminate"
        self.sync = "interval"
        self.checkpoint = 15.0
        self.restart = "never"
        self.max_restarts = 5
        self.resume_with: str | None = None
        self.agent: str | None = None
        self.watch: list[str] = []
        self.exclusive = False
        self.no_adopt = False
        self.no_tap = False
        self.replica: str | None = None
        self.replica_disk = 1024
        self.replica_keep = 600.0
        self.replica_hooks = "claimed"
        self.replica_key: str | None = None
        self.replica_retention = 0
        self.replica_lost_after = 0.0
        self.strict = False
        self.notify = False
        self.log: str | None = None
        self.quiet = False
