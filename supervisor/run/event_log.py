"""What the supervisor did, as structured lines: a file of JSON lines, or systemd's journal.

Never contains message text, nor the arguments of a command, which may be a question. Never raises:
a log that cannot be written harms nobody.

    --log FILE       a JSON object a line, appended
    --log journal    an entry of systemd's journal, with the same fields
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..recovery.report import SessionReport

JOURNAL = "journal"
JOURNAL_SOCKET = "/run/systemd/journal/socket"


class EventLog:
    """`target`: a path, "journal", or None for no log."""

    def __init__(self, target: str | None, run: str) -> None:
        self._target = target
        self._run = run

    def write(self, event: str, **fields: object) -> None:
        if self._target is None:
            return
        known: dict[str, object] = {"event": event, "run": self._run}
        known |= {name: value for name, value in fields.items() if value is not None}
        try:
            if self._target == JOURNAL:
                _to_journal(known)
            else:
                _append(self._target, {"time": round(time.time(), 3), **known})
        except Exception:
            pass  # a full disk, a folder that is gone, an upgrade that replaced our files

    def write_sessions(self, reports: list[SessionReport]) -> None:
        for report in reports:
            self.write(
                "settled", session=report.session, outcome=report.outcome, cause=report.cause,
                complete=report.complete, messages=report.recovered.messages,
                characters=report.recovered.partial_characters,
                calls=report.recovered.calls_unknown, hooks=len(report.hooks),
                died_at=report.died_at,
            )  # fmt: skip


def _append(path: str, fields: dict[str, object]) -> None:
    from ...ipc.lightweight import json  # only with --log

    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, (json.dumps(fields) + "\n").encode("utf-8", "replace"))
    finally:
        os.close(fd)


def _to_journal(fields: dict[str, object]) -> None:
    """The journal's own protocol: a datagram with a field a line. No value has a line break."""
    import socket  # only with --log journal

    message = f"hermes-supervise: {fields['event']}"
    lines = [f"MESSAGE={message}", "PRIORITY=6", "SYSLOG_IDENTIFIER=hermes-supervise"]
    for name, value in fields.items():
        text = str(value).replace("\n", " ")
        lines.append(f"HERMES_SUPERVISE_{name.upper()}={text}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.sendto(("\n".join(lines) + "\n").encode("utf-8", "replace"), JOURNAL_SOCKET)
