"""A hook that is owed: what is to be run, what came of it so far, and when it is due. Pure.

Never touches a file or a clock.

    waiting   nothing was begun yet, or the user asks for it anew
    running   begun and not ended; if nobody is at it any more, it was cut off and is due at once
    failed    ended badly; due again once it has waited long enough
    done      ended well, once and for all
    dead      given up; kept until the user asks for it anew

A run that was cut off is not the hook's failure, so it does not count as one. But a hook that
cuts off whoever runs it must come to an end, too: hence `MOST_CUT_OFF`.
"""

from __future__ import annotations

from ..plain import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

EVENTS = ("on_session_end", "on_session_finalize", "on_session_reset")

# Seconds before each further attempt of one that failed; after the last it is given up.
BACK_OFF = (10.0, 60.0)
MOST_CUT_OFF = 10

# What kinds there are: a command of the user's, a Python plugin, Hermes' own plugins.
COMMAND, PLUGIN, HERMES = "command", "plugin", "hermes"

_OK = "ok"
_CUT_OFF = "cut off"


@dataclass
class Entry:
    key: str
    """run:stream:session:occasion: the same hook of the same occasion is the same entry."""
    run: str
    stream: str
    session: str
    event: str
    kind: str
    command: str
    """What it is called when somebody is told about it."""
    words: list[str]
    told: dict[str, Any]
    """What it gets on standard input, but for what only its runner knows."""
    folder: str | None = None
    env: dict[str, str] | None = None
    """In the place of ours, where it is not None, but for what ours says of no agent."""
    timeout: float = 300.0
    back_off: list[float] = field(default_factory=lambda: list(BACK_OFF))
    queued: float = 0.0
    place: int = 0
    """Among those that were queued with it."""
    forgiven: int = 0
    """Attempts from before the user asked for it anew."""
    attempts: list[dict[str, Any]] = field(default_factory=list)
    """Of each: at; once it ended, ended, outcome, output."""

    @property
    def id(self) -> str:
        from hashlib import sha256

        return sha256(self.key.encode("utf-8", "surrogatepass")).hexdigest()[:12]

    @property
    def group(self) -> str:
        """Hooks of one process run one after the other, as it would have run them itself."""
        return f"{self.run}.{self.stream}"

    @property
    def state(self) -> str:
        counted = self.attempts[self.forgiven :]
        if not counted:
            return "waiting"
        last = counted[-1].get("outcome")
        if last == _OK:
            return "done"
        ends = [one.get("outcome") for one in counted]
        failures = sum(1 for end in ends if end not in (None, _CUT_OFF))
        cut_off = sum(1 for end in ends if end == _CUT_OFF)
        if failures > len(self.back_off) or cut_off > MOST_CUT_OFF:
            return "dead"
        return "running" if last is None else "failed"

    def due(self, now: float) -> float:
        """When it is to be run next; not later than `now` if at once."""
        if self.state != "failed":
            return now
        ended = self.attempts[-1]["ended"]
        if ended > now:
            return now  # a clock that was set back makes nobody wait for ever
        ends = [one.get("outcome") for one in self.attempts[self.forgiven :]]
        failures = sum(1 for end in ends if end not in (None, _CUT_OFF))
        return float(ended + self.back_off[max(0, failures - 1)])

    def begin(self, now: float) -> None:
        self.close_cut_off(now)
        self.attempts.append({"at": now})

    def close_cut_off(self, now: float) -> None:
        """Whoever began it last did not live to say what came of it."""
        if self.attempts and "outcome" not in self.attempts[-1]:
            self.attempts[-1] |= {"ended": now, "outcome": _CUT_OFF, "output": ""}

    def end(self, now: float, outcome: str, output: str) -> None:
        for one in self.attempts[:-1]:
            one["output"] = ""  # of what was printed the last is enough
        self.attempts[-1] |= {"ended": now, "outcome": outcome, "output": output}

    def forgive(self) -> None:
        self.forgiven = len(self.attempts)

    def as_ran(self) -> dict[str, Any]:
        """What the report and the notice say of it."""
        last = self.attempts[-1] if self.attempts else {}
        pending = "running" if self.attempts else "waiting"
        return {
            "id": self.id,
            "event": self.event,
            "command": self.command,
            "outcome": last.get("outcome", pending),
            "state": self.state,
            "attempt": len(self.attempts),
            "output": last.get("output", ""),
            "at": last.get("at"),
            "ended": last.get("ended"),
        }

    def telling(self, runner: int, ledger: str) -> dict[str, Any]:
        """What to write to its standard input at its last attempt, which has begun."""
        if self.kind == HERMES:
            return {**self.told, "parent": runner, "ledger": ledger, "key": self.key}
        attempt = len(self.attempts)
        extra = {**self.told["extra"], "attempt": attempt, "repeated": attempt > 1}
        return {**self.told, "extra": extra}
