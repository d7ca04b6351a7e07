"""The report: one JSON line a settled session, in words that keep known and unknown apart.

Never holds a message's text.
"""

from __future__ import annotations

import os

from ...ipc import jsontext
from .. import run as runs
from ..plain import asdict, dataclass, field
from .reconcile import Counts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@dataclass
class Settled:
    """What became of one session."""

    session: str
    run: str
    stream: str
    db: str
    outcome: str
    """interrupted, exited, ended by the agent, continued as another, open elsewhere, empty"""
    cause: str
    died_at: float
    reason: dict[str, Any] = field(default_factory=dict)
    """The cause as data: its kind (signal, exit, out of memory, terminal closed, machine
    restarted, supervisor lost, unknown), signal, exit_code."""
    agent: str | None = None
    pid: int | None = None
    launched: float | None = None
    began: float | None = None
    """When this process took the session up."""
    doing: str | None = None
    """The phase it died in: idle, working, replying, calling, ended."""
    doing_since: float | None = None
    open_calls: list[dict[str, Any]] = field(default_factory=list)
    """The tool calls without an answer: name, call, since when, whether it had started."""
    turn: dict[str, Any] | None = None
    """What came of the user's last words: when they were said (asked), how often the model
    answered and tools did, how much text there was to read, whether the user broke it off."""
    memory: dict[str, Any] = field(default_factory=dict)
    """What the dead process weighed, in bytes: last (at last_at), peak; cpu in seconds;
    group_peak and group_limit of its cgroup. What is not there is not known."""
    settled_at: float | None = None
    end_reason: str | None = None
    model: str | None = None
    platform: str | None = None
    subagent: bool = False
    resume: str | None = None
    """The command that takes the session up again, where there is one."""
    recovered: Counts = field(default_factory=Counts)
    hooks: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    orphans: list[dict[str, Any]] = field(default_factory=list)
    """What the dead process left running: pid, command, age, kind, what was done, dumps."""
    complete: bool = True
    """False: something could not be written yet; the journal is kept."""
    working: bool = False
    """Work was in flight: a reply, a tool, or a question just asked."""
    progress: bool = False
    """The agent has said or done something in this run, and not only been asked."""
    after: str | None = None
    """The run whose crash this one was started after."""


def append(path: str, settled: list[Settled]) -> None:
    """To last: what it tells of is removed next."""
    if not settled:
        return  # an empty one would take the place of what was told before

    def private(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    with open(path, "a", encoding="utf-8", opener=private) as file:
        for one in settled:
            # Begins with a newline: a torn line before it must not swallow this one.
            file.write("\n" + jsontext.dumps(asdict(one)) + "\n")
        file.flush()
        os.fsync(file.fileno())


def note_hook(run: str, stream: str, session: str, ran: dict[str, Any]) -> None:
    """What became of a hook, in the report of its run, wherever that is by now."""
    line = jsontext.dumps({"stream": stream, "session": session, "hook": ran})
    places = os.path.join(runs.runs_folder(), run, "report.jsonl"), _kept(run)
    for path in (*places, *places):  # it may move while we look
        try:
            fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        with open(fd, "a", encoding="utf-8") as file:
            file.write("\n" + line + "\n")
        return


def _kept(run: str) -> str:
    return os.path.join(runs.reports_folder(), run + ".jsonl")


def read(path: str) -> list[Settled]:
    """The sessions in a report; of one that was settled in several tries, the last word, and
    of each of its hooks."""
    found: dict[tuple[str, str], Settled] = {}
    ran: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    fields = jsontext.loads(line)
                    if "hook" in fields:
                        hook = fields["hook"]
                        known = ran.setdefault((fields["stream"], fields["session"]), {})
                        # Two may tell of it at once, and who looked first may write last.
                        if _how_far(hook) >= _how_far(known.get(hook["id"], {})):
                            known[hook["id"]] = hook
                        continue
                    fields["recovered"] = Counts(**fields["recovered"])
                    one = Settled(**fields)
                except (ValueError, TypeError, KeyError):
                    continue  # torn, or from a version that says more than we know
                found[one.stream, one.session] = one
    except FileNotFoundError:
        pass
    for which, one in found.items():
        queued = {hook["id"]: hook for hook in one.hooks if "id" in hook}
        one.hooks = list((queued | ran.get(which, {})).values())
    return list(found.values())


def _how_far(hook: dict[str, Any]) -> tuple[int, float]:
    """Which attempt, and whether it is over."""
    return int(hook.get("attempt") or 0), float(hook.get("ended") or 0.0)


def every() -> list[Settled]:
    """All sessions in all reports kept, and in runs that are not settled yet; oldest first."""
    paths = [
        os.path.join(runs.reports_folder(), n) for n in sorted(os.listdir(runs.reports_folder()))
    ]
    paths += [os.path.join(folder, "report.jsonl") for folder in runs.left_behind()]
    # The name of a run says when it began, and that to the second only.
    told = sorted(map(read, paths), key=lambda run: max((one.died_at for one in run), default=0.0))
    return [one for run in told for one in run]
