"""One hook as a process: told what happened, contained, and its end described.

Never raises for what the hook does, and leaves nothing of its process group running.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time

from ..signals import PASSED_ON, prctl
from ..watch import watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from typing import Any

_CAPTURED = 16 * 1024
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LONGEST_WAIT = 3600.0


def run(
    words: list[str],
    told: dict[str, Any],
    folder: str | None,
    env: dict[str, str] | None,
    timeout: float,
) -> tuple[str, str]:
    """How it ended, and the first of what it printed.

    "ok", "exit N", "killed by …", "timed out after … s", or why it could not start.
    """
    import subprocess
    import tempfile

    try:
        with tempfile.TemporaryFile() as given:
            given.write(json.dumps(told).encode())
            given.seek(0)
            process = subprocess.Popen(
                words,
                env=env,
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_as_an_ordinary_program,
                cwd=folder if folder is not None and os.path.isdir(folder) else None,
            )
    except OSError as error:
        why = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        return f"could not start: {why}", ""
    except (ValueError, IndexError, subprocess.SubprocessError) as error:
        return f"could not start: {error}", ""
    with process:
        output = _attend(process, timeout)
        timed_out = process.poll() is None
        # Whatever it left running in its group goes with it.
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        if process.stdout is not None:
            process.stdout.close()
        code = process.wait()
    if timed_out:
        return f"timed out after {timeout:g} s", output
    if code < 0:
        return f"killed by {signal.Signals(-code).name}", output
    return ("ok" if code == 0 else f"exit {code}"), output


def _as_an_ordinary_program() -> None:
    """A runner ignores what might stop it; a hook must not inherit that. And it ends with its
    runner: it will be run again, and should then be the only one."""
    for number in (*PASSED_ON, signal.SIGTSTP):
        signal.signal(number, signal.SIG_DFL)
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _attend(process: subprocess.Popen[bytes], timeout: float) -> str:
    """Read what it prints until it ends or its time is up; keep the first of it only.

    Its end is that of the process, not of the pipe: a child it left behind may hold that.
    """
    assert process.stdout is not None
    pipe = process.stdout.fileno()
    os.set_blocking(pipe, False)
    ending = watch(process.pid, None)
    ended = ending.fileno() if ending is not None else None
    poller = select.poll()
    poller.register(pipe, select.POLLIN)
    if ended is not None:
        poller.register(ended, select.POLLIN)
    deadline = time.monotonic() + timeout
    kept = b""
    while process.poll() is None and (left := deadline - time.monotonic()) > 0:
        # The kernel counts milliseconds in 32 bits.
        ready = poller.poll(min(left, _LONGEST_WAIT if ended is not None else 0.05) * 1000)
        if any(fd == pipe for fd, _ in ready):
            piece = _read(pipe)
            kept = (kept + piece)[:_CAPTURED]
            if not piece:
                poller.unregister(pipe)
    while len(kept) < _CAPTURED and (piece := _read(pipe)):
        kept += piece
    if ending is not None:
        ending.close()
    return kept[:_CAPTURED].decode("utf-8", "replace")


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 65536)
    except BlockingIOError:
        return b""
