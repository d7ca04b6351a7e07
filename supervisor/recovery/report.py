"""The report: one JSON line for each settled session.

Never holds a message's text.
"""

from __future__ import annotations

import os

from ...ipc import endpoint
from ...ipc.lightweight import json
from ...ipc.lightweight.dataclass import asdict, dataclass, field
from ..statedb.reconcile import Counts
from ..storage import counters
from ..storage import run_folder as runs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@dataclass
class SessionReport:
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
    """When this process started or resumed the session."""
    doing: str | None = None
    """The phase it died in: idle, working, replying, calling, ended."""
    doing_since: float | None = None
    open_calls: list[dict[str, Any]] = field(default_factory=list)
    """The tool calls without an answer: name, call, since when, whether it had started."""
    turn: dict[str, Any] | None = None
    """What followed the user's last message: when that was sent (asked), how many answers of the
    model and results of tools came, how many characters of text, whether the user stopped it."""
    memory: dict[str, Any] = field(default_factory=dict)
    """Memory of the dead process, in bytes: last (at last_at), peak; cpu in seconds;
    group_peak and group_limit of its cgroup. Fields that are missing are not known."""
    settled_at: float | None = None
    end_reason: str | None = None
    model: str | None = None
    platform: str | None = None
    subagent: bool = False
    resume: str | None = None
    """The command that resumes the session, if there is one."""
    resume_full: str | None = None
    """The same with the options that the agent was started with, for people. Not in the file if
    there are none."""
    recovered: Counts = field(default_factory=Counts)
    hooks: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    not_captured: list[str] = field(default_factory=list)
    """What cannot be captured in the agent's release. Not in the file if there is nothing."""
    orphans: list[dict[str, Any]] = field(default_factory=list)
    """Processes that it left running: pid, command, age, kind, what was done, dumps."""
    complete: bool = True
    """False: something could not be written yet; the journal is kept."""
    working: bool = False
    """Work was in flight: a reply, a tool, or a question just asked."""
    progress: bool = False
    """The agent has completed a message or a call in this run, and was not only asked."""
    unseen_reply: bool = False
    """The agent was replying or about to, and what it showed of that is not known: it is tracked
    through its transcript, which gets a message only when it is complete."""
    after: str | None = None
    """The run whose crash this one was started after."""


def append(path: str, settled: list[SessionReport]) -> None:
    """Append durably: the files of these sessions are removed next."""
    if not settled:
        return  # an empty line would replace the earlier report
    with open(path, "a", encoding="utf-8", opener=endpoint.private_file) as file:
        for entry in settled:
            # Begins with a newline: a torn line before it must not swallow this one.
            fields = asdict(entry)
            for name in ("not_captured", "resume_full"):
                if not fields[name]:
                    del fields[name]  # which 0.1.0 does not know
            file.write("\n" + json.dumps(fields) + "\n")
        file.flush()
        os.fsync(file.fileno())


def note_hook(run: str, stream: str, session: str, ran: dict[str, Any]) -> None:
    """Note the result of a hook in the report of its run, wherever the report is by now."""
    line = json.dumps({"stream": stream, "session": session, "hook": ran})
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


def read(path: str) -> list[SessionReport]:
    """The sessions in a report. If a session was settled in several tries, or a hook has several
    results, the last one counts."""
    found: dict[tuple[str, str], SessionReport] = {}
    ran: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    fields = json.loads(line)
                    if "hook" in fields:
                        hook = fields["hook"]
                        known = ran.setdefault((fields["stream"], fields["session"]), {})
                        # Two processes may note it at once, and the one that looked first may write
                        # last.
                        if _how_far(hook) >= _how_far(known.get(hook["id"], {})):
                            known[hook["id"]] = hook
                        continue
                    fields["recovered"] = Counts(**fields["recovered"])
                    entry = SessionReport(**fields)
                except (ValueError, TypeError, KeyError):
                    continue  # torn, or from a version that says more than we know
                found[entry.stream, entry.session] = entry
    except FileNotFoundError:
        pass
    for which, entry in found.items():
        queued = {hook["id"]: hook for hook in entry.hooks if "id" in hook}
        entry.hooks = list((queued | ran.get(which, {})).values())
    return list(found.values())


def _how_far(hook: dict[str, Any]) -> tuple[int, float]:
    """Which attempt, and whether it is over."""
    return int(hook.get("attempt") or 0), float(hook.get("ended") or 0.0)


def every() -> list[SessionReport]:
    """All sessions in all reports kept, and in runs that are not settled yet; oldest first."""
    paths = [
        os.path.join(runs.reports_folder(), n) for n in sorted(os.listdir(runs.reports_folder()))
    ]
    paths += [os.path.join(folder, "report.jsonl") for folder in runs.left_behind()]
    # The name of a run says when it began, and that to the second only.
    by_run = sorted(
        map(read, paths), key=lambda run: max((entry.died_at for entry in run), default=0.0)
    )
    return [entry for run in by_run for entry in run]


def forget(sessions: set[str]) -> tuple[list[str], list[str]]:
    """Delete the reports about these sessions. Returns the ids that were forgotten, and those that
    were kept because a run with them is not recovered yet."""
    kept = {
        entry.session
        for folder in runs.left_behind()
        for entry in read(os.path.join(folder, "report.jsonl"))
        if entry.session in sessions
    }
    forgotten: set[str] = set()
    for name in os.listdir(runs.reports_folder()):
        path = os.path.join(runs.reports_folder(), name)
        if not name.endswith(".jsonl"):
            continue
        found = {entry.session for entry in read(path)} & sessions - kept
        if found:
            _drop_lines(path, found)
            forgotten |= found
    return sorted(forgotten), sorted(kept)


def _drop_lines(path: str, sessions: set[str]) -> None:
    """Write a report anew without the lines about these sessions, or remove it if none is left."""
    left: list[str] = []
    dropped: list[str] = []
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                stays = json.loads(line).get("session") not in sessions
                (left if stays else dropped).append(line)
            except (ValueError, AttributeError):
                continue  # a torn line, or an empty one
    if not left:
        counters.keep({os.path.basename(path).removesuffix(".jsonl"): path})
        os.unlink(path)
        return
    counters.keep_lines(dropped)
    draft = f"{path}.{os.getpid()}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(draft, flags, 0o600), "w", encoding="utf-8") as file:
        file.writelines(left)
    os.replace(draft, path)
