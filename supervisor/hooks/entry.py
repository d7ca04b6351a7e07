"""One hook in the queue: what to run, the attempts so far, and when it is due. Pure.

Never touches a file or a clock. The field names are those of the files, so they do not change.

    state     shown as    meaning
    waiting   pending     not started yet, or the user asked to retry it
    running   running     started and not ended; without a runner, it was cut off and is due at once
    failed    failed      the last attempt failed; due again after its delay
    done      done        succeeded; never runs again
    dead      abandoned   failed too often; kept until the user asks to retry it

An attempt that was cut off (its runner died) does not count as a failure of the hook. But a hook
that kills its runner each time must be abandoned too: hence `MAX_CUT_OFF`.
"""

from __future__ import annotations

from ...ipc.lightweight.dataclass import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Seconds before each retry of a failed hook. After the last one it is abandoned.
RETRY_DELAYS = (10.0, 60.0)
MAX_CUT_OFF = 10

# Kinds: a command of the user's, a Python plugin, or, by its name, an agent's own hooks.
COMMAND, PLUGIN = "command", "plugin"

_OK = "ok"
_CUT_OFF = "cut off"

# States as people read them. A hook that was cut off runs again at once, so it is pending.
SHOWN_STATES = {"waiting": "pending", "cut off": "pending", "dead": "abandoned"}


@dataclass
class Entry:
    key: str
    """run:stream:session:trigger. The same hook for the same trigger is the same entry."""
    run: str
    stream: str
    session: str
    event: str
    kind: str
    command: str
    """What people see as its name."""
    words: list[str]
    """The command line."""
    told: dict[str, Any]
    """Its standard input, without what only the runner knows."""
    folder: str | None = None
    env: dict[str, str] | None = None
    """The environment of the dead agent, for an agent's own hooks. None: the runner's own."""
    timeout: float = 300.0
    back_off: list[float] = field(default_factory=lambda: list(RETRY_DELAYS))
    """Seconds before each retry."""
    queued: float = 0.0
    place: int = 0
    """Position among the hooks that were queued together."""
    forgiven: int = 0
    """Number of attempts from before the user asked to retry it. They no longer count."""
    attempts: list[dict[str, Any]] = field(default_factory=list)
    """For each attempt: at; once it ended, ended, outcome, output."""

    @property
    def id(self) -> str:
        from hashlib import sha256  # start-up: the supervisor never computes an id

        return sha256(self.key.encode("utf-8", "surrogatepass")).hexdigest()[:12]

    @property
    def group(self) -> str:
        """Hooks of one process run one after the other, as the process would have run them."""
        return f"{self.run}.{self.stream}"

    @property
    def state(self) -> str:
        outcomes = self._outcomes()
        if not outcomes:
            return "waiting"
        last = outcomes[-1]
        if last == _OK:
            return "done"
        if self._failures() > len(self.back_off) or outcomes.count(_CUT_OFF) > MAX_CUT_OFF:
            return "dead"
        return "running" if last is None else "failed"

    def due_at(self, now: float) -> float:
        """When to run it next; not later than `now` if at once."""
        if self.state != "failed":
            return now
        ended = self.attempts[-1]["ended"]
        if ended > now:
            return now  # the clock was set back; do not wait for it to catch up
        return float(ended + self.back_off[max(0, self._failures() - 1)])

    def _outcomes(self) -> list[str | None]:
        """Of the attempts that count; None for one that has not ended."""
        return [attempt.get("outcome") for attempt in self.attempts[self.forgiven :]]

    def _failures(self) -> int:
        return sum(1 for outcome in self._outcomes() if outcome not in (None, _CUT_OFF))

    def start_attempt(self, now: float) -> None:
        self.close_cut_off(now)
        self.attempts.append({"at": now})

    def close_cut_off(self, now: float) -> None:
        """Record that the last attempt was cut off, if its runner died before it ended."""
        if self.attempts and "outcome" not in self.attempts[-1]:
            self.attempts[-1] |= {"ended": now, "outcome": _CUT_OFF, "output": ""}

    def end_attempt(self, now: float, outcome: str, output: str) -> None:
        for attempt in self.attempts[:-1]:
            attempt["output"] = ""  # the last output is enough
        self.attempts[-1] |= {"ended": now, "outcome": outcome, "output": output}

    def leave_to_others(self, now: float, why: str) -> None:
        """It is not run here, and not tried again."""
        self.start_attempt(now)
        self.end_attempt(now, why, "")
        self.back_off, self.forgiven = [], len(self.attempts) - 1

    def forget_failures(self) -> None:
        """Give it as many attempts as a new hook has."""
        self.forgiven = len(self.attempts)

    def summary(self) -> dict[str, Any]:
        """Its line in the report and the notice."""
        last = self.attempts[-1] if self.attempts else {}
        unfinished = "running" if self.attempts else "waiting"
        return {
            "id": self.id,
            "event": self.event,
            "command": self.command,
            "outcome": last.get("outcome", unfinished),
            "state": self.state,
            "attempt": len(self.attempts),
            "output": last.get("output", ""),
            "at": last.get("at"),
            "ended": last.get("ended"),
        }

    def standard_input(self, runner: int, ledger: str) -> dict[str, Any]:
        """The input of its latest attempt. `ledger`: where an agent's own hooks note progress."""
        if self.kind not in (COMMAND, PLUGIN):
            return {**self.told, "parent": runner, "ledger": ledger, "key": self.key}
        attempt = len(self.attempts)
        extra = {**self.told["extra"], "attempt": attempt, "repeated": attempt > 1}
        return {**self.told, "extra": extra}
