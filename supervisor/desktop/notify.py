"""What we say where nobody reads our standard error: into a log file, and onto the desktop.

Never a message's text, never more than two files of a bounded size, never an error to anybody.
"""

from __future__ import annotations

import os
import time

from ...ipc import endpoint

_LARGEST = 256 * 1024
# One that has nobody to show it would wait for half a minute.
_PATIENCE = 5.0


def log_path() -> str:
    return os.path.join(endpoint.state_folder(), "notices.log")


def tell(text: str, *, loud: bool) -> None:
    """`loud`: as a notification, too. Not while an agent runs: it would be a child of ours that
    is none of the agent's."""
    try:
        _log(text)
    except OSError:
        pass
    if loud:
        _show(text)


def _log(text: str) -> None:
    from ..text import printable

    path = log_path()
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(path, flags, 0o600)
    try:
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {printable(text)}\n"
        os.write(fd, line.encode("utf-8", "replace"))
        if os.fstat(fd).st_size > _LARGEST:
            os.replace(path, f"{path}.old")
    finally:
        os.close(fd)


def _show(text: str) -> None:
    import subprocess
    from html import escape

    title, _, body = text.partition("\n")
    body = "\n".join(line.strip() for line in body.splitlines())
    command = ["notify-send", "--app-name=hermes-supervise", "--icon=dialog-warning", "--"]
    try:
        subprocess.run(
            [*command, title, escape(body, quote=False)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_PATIENCE,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        pass  # it is in the log
