"""Classifies the processes that a dead Hermes left running: tools it waited for, and jobs to keep.

Never signals a process. A process that it does not recognise is left alone.

A tool that Hermes waits for is a shell in its own session. It first reads the environment that
Hermes dumped for this chat, and Hermes ends it before it exits on a TERM. A background job is
listed in processes.json and outlives even a clean exit.
"""

from __future__ import annotations

import os
import stat

from ...process.orphans import JOB, TOOL
from ...process.platform import environment

_DUMP = "hermes-snap-"


def kind(pid: int, words: list[str]) -> str | None:
    if _is_listed(pid):
        return JOB
    shell = os.path.basename(words[0]) if words else ""
    reads_a_dump = any("source " in word and f"/{_DUMP}" in word for word in words[1:])
    return TOOL if shell.endswith("sh") and reads_a_dump else None


def dumps(words: list[str]) -> list[str]:
    """The dumps of the whole environment that a command line names, where they are the user's."""
    found = []
    for piece in " ".join(words).replace("'", " ").replace('"', " ").replace(";", " ").split():
        name = os.path.basename(piece)
        if name.startswith(_DUMP) and name.endswith(".sh") and _is_ours(piece):
            found.append(piece)
    return sorted(set(found))


def _is_ours(path: str) -> bool:
    try:
        about = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(about.st_mode) and about.st_uid == os.getuid()


def _is_listed(pid: int) -> bool:
    """Whether Hermes lists it as a background job. Only the pid is compared: if another process
    has it by now, that one is left alone as well."""
    import json  # start-up: only after a death

    try:
        with open(os.path.join(_home(pid), "processes.json"), encoding="utf-8") as file:
            jobs = json.load(file)
    except (OSError, ValueError):
        return False
    if not isinstance(jobs, list):
        return False
    return any(isinstance(job, dict) and job.get("pid") == pid for job in jobs)


def _home(pid: int) -> str:
    """The Hermes home a process was started with: a profile has its own."""
    for entry in environment(pid):
        if entry.startswith(b"HERMES_HOME="):
            return os.fsdecode(entry.partition(b"=")[2])
    return os.environ.get("HERMES_HOME") or os.path.expanduser("~/.hermes")
