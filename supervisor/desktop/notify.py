"""Notices where nobody reads standard error: in a log file, and as a desktop notification.

Never contains message text, never keeps more than two files of a bounded size, and never raises.
"""

from __future__ import annotations

import os
import time

from ...ipc import endpoint

_LARGEST = 256 * 1024
# Without a desktop, notify-send would wait for half a minute.
_PATIENCE = 5.0


def log_path() -> str:
    return os.path.join(endpoint.state_folder(), "notices.log")


def tell(text: str, *, loud: bool) -> None:
    """Write a notice to the log. `loud`: also show a notification.

    Not loud while an agent runs: notify-send would look like a child of the agent's.
    """
    try:
        _log(text)
    except OSError:
        pass
    if loud:
        _show(text)


def _log(text: str) -> None:
    from ..model.text import printable  # start-up: only to notify

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
    import subprocess  # start-up: only to notify
    from html import escape  # start-up: the same

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
