"""What of the processes a dead Hermes left is what: a tool it waited for, a job it meant to keep.

Never signals anyone, and takes what it cannot tell for something to be left alone.

A tool that Hermes waits for is a shell in a session of its own that first reads the dump of
the environment it made for this chat; on a TERM Hermes ends it before it goes. A background
job is listed in processes.json and outlives even a clean exit.
"""

from __future__ import annotations

import os
import stat

TOOL = "tool"
JOB = "background job"
OTHER = "other"

_DUMP = "hermes-snap-"


def kind(pid: int, words: list[str]) -> str:
    if _is_listed(pid):
        return JOB
    shell = os.path.basename(words[0]) if words else ""
    reads_a_dump = any("source " in word and f"/{_DUMP}" in word for word in words[1:])
    return TOOL if shell.endswith("sh") and reads_a_dump else OTHER


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
    """Whether Hermes has it down as a background job. The pid alone counts: if it should be
    another process' by now, that one is left alone, too."""
    import json

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
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            for entry in file.read().split(b"\0"):
                if entry.startswith(b"HERMES_HOME="):
                    return os.fsdecode(entry.partition(b"=")[2])
    except OSError:
        pass
    return os.environ.get("HERMES_HOME") or os.path.expanduser("~/.hermes")
