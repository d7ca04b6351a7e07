"""One hook as a process: given its input, contained, and its end described.

Never raises for anything the hook does, and leaves nothing of its process group running.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time

from ..process.death import watch
from ..process.platform import die_with_parent
from ..process.signals import FORWARDED

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from typing import Any

_KEPT_OUTPUT = 16 * 1024
# poll() counts milliseconds in 32 bits.
_LONGEST_POLL = 3600.0


def run(
    words: list[str],
    event: dict[str, Any],
    folder: str | None,
    env: dict[str, str] | None,
    timeout: float,
) -> tuple[str, str]:
    """Run a hook to its end. Returns its outcome and the first part of its output.

    The outcome is "ok", "exit N", "killed by …", "timed out after … s" or "could not start: …".
    """
    import subprocess  # start-up: this module is loaded in processes that run no hook
    import tempfile

    try:
        with tempfile.TemporaryFile() as standard_input:
            standard_input.write(json.dumps(event).encode())
            standard_input.seek(0)
            process = subprocess.Popen(
                words,
                env=env,
                stdin=standard_input,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_reset_signals,
                cwd=folder if folder is not None and os.path.isdir(folder) else None,
            )
    except OSError as error:
        why = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        return f"could not start: {why}", ""
    except (ValueError, IndexError, subprocess.SubprocessError) as error:
        return f"could not start: {error}", ""
    with process:
        output = _collect_output(process, timeout)
        timed_out = process.poll() is None
        # End everything that it left running in its group.
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


def _reset_signals() -> None:
    """In the hook's process, before exec. A runner ignores signals that a hook must not ignore.

    The hook dies with its runner: it will run again, and must then be the only one.
    """
    for number in (*FORWARDED, signal.SIGTSTP):
        signal.signal(number, signal.SIG_DFL)
    die_with_parent(signal.SIGKILL)


def _collect_output(process: subprocess.Popen[bytes], timeout: float) -> str:
    """Read its output until it ends or times out, and keep the first part.

    The process decides when it has ended, not the pipe: a child it left behind may hold the pipe.
    """
    assert process.stdout is not None
    pipe = process.stdout.fileno()
    os.set_blocking(pipe, False)
    exit_watch = watch(process.pid, None)
    exit_fd = exit_watch.fileno() if exit_watch is not None else None
    poller = select.poll()
    poller.register(pipe, select.POLLIN)
    if exit_fd is not None:
        poller.register(exit_fd, select.POLLIN)
    deadline = time.monotonic() + timeout
    kept = b""
    while process.poll() is None and (left := deadline - time.monotonic()) > 0:
        ready = poller.poll(min(left, _LONGEST_POLL if exit_fd is not None else 0.05) * 1000)
        if any(fd == pipe for fd, _ in ready):
            piece = _read(pipe)
            kept = (kept + piece)[:_KEPT_OUTPUT]
            if not piece:
                poller.unregister(pipe)
    while len(kept) < _KEPT_OUTPUT and (piece := _read(pipe)):
        kept += piece
    if exit_watch is not None:
        exit_watch.close()
    return kept[:_KEPT_OUTPUT].decode("utf-8", "replace")


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 65536)
    except BlockingIOError:
        return b""
