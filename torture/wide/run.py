"""Runs one scenario of the wider campaign, in a process of its own: it may mount a disk."""

from __future__ import annotations

import json
import os
import shutil
import sys
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from hermes_supervise.supervisor.process.platform import become_subreaper

from ..conduct import Stuck, kill_everyone
from ..violation import Violation
from . import judge, plan
from .conduct import Lived, NotAllowed, World


def run_one(kind: str, seed: str, folder: str, product: str) -> dict[str, Any]:
    """Kills by who was killed, and what was found: category and text, or None. The folder is kept
    if something was found."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(out)
            os.setpgid(0, 0)
            become_subreaper()
            os.write(into, json.dumps(_run(kind, seed, folder, product)).encode())
            code = 0
        except BaseException:
            traceback.print_exc(file=sys.stderr)
        finally:
            kill_everyone()
            os._exit(code)
    os.close(into)
    with open(out, "rb") as file:
        written = file.read()
    os.waitpid(pid, 0)
    if not written:
        return {
            "kills": {},
            "messages": 0,
            "found": ["misreported", f"the harness of {kind} failed"],
        }
    done: dict[str, Any] = json.loads(written)
    if done["found"] is None:
        shutil.rmtree(folder, ignore_errors=True)
    return done


def _run(kind: str, seed: str, folder: str, product: str) -> dict[str, Any]:
    lived = Lived(World(Path(folder), product), plan.scenario(kind, seed))
    found = None
    try:
        lived.live()
        if lived.undisturbed:
            judge.judge(lived, recovered=False)
        lived.recover()
        judge.judge(lived, recovered=True)
    except NotAllowed as what:
        print(f"skipped, {kind}: it needs {what}", file=sys.stderr)
    except Violation as violation:
        found = [violation.category, violation.text]
    except Stuck as stuck:
        found = ["misreported", f"did not end: {stuck}"]
    messages = sum(len(certain) for certain in lived.certain)
    return {"kills": dict(Counter(lived.kills)), "messages": messages, "found": found}
