"""`hermes-supervise emit`: reports the messages of a supervised shell script, one call at a time.

Never reports on its own behalf, because it exits at once. Its records belong to the script: to the
topmost process that has our variables. All calls of a script share one stream, which ends with that
process. Concurrent calls wait for each other, because they continue the same numbers.

Without supervision it reads its input to the end and does nothing, so that a script with
`… | tee >(hermes-supervise emit delta -)` behaves the same with and without supervision.
"""

from __future__ import annotations

import argparse
import codecs
import fcntl
import hashlib
import os
import sys
import time

from ....ipc import endpoint
from ...ingest.blocking_client import BlockingClient, NotDelivered
from ...process.platform import command_line, environment, process_start
from ...process.tree import ancestors
from ..errors import CommandError, Parser

_ROLES = ("user", "assistant", "system", "tool")
# If nobody accepts the connection now, a successor may do so in a moment.
_PATIENCE = 5.0
_BLOCK = 64 * 1024
_VARIABLES = (endpoint.SOCKET_VARIABLE, endpoint.SPOOL_VARIABLE, endpoint.RUN_VARIABLE)
_EXAMPLE = """\
in a script started with `hermes-supervise -- ./script`:
  %(prog)s message --role user "$QUESTION"
  my-model "$QUESTION" | tee >(%(prog)s delta -)
  %(prog)s end

without supervision it reads its input and does nothing"""


def parser() -> argparse.ArgumentParser:
    command = Parser(
        prog="hermes-supervise emit",
        description="Report the messages of a supervised script, so that they survive its death.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument(
        "--session", metavar="ID", help="the session it belongs to (default: the run's own)"
    )
    kinds = command.add_subparsers(dest="kind", metavar="WHAT", required=True)
    session = kinds.add_parser("session", help="begin or continue a session")
    session.add_argument("--source", metavar="WHAT", help="the kind of agent, for example cli")
    session.add_argument("--model", metavar="NAME", help="the name of the model")
    message = kinds.add_parser("message", help="report a complete message")
    message.add_argument("--role", choices=_ROLES, required=True, help="who wrote it")
    message.add_argument("--call", metavar="ID", help="the tool call that this is the result of")
    delta = kinds.add_parser(
        "delta", help="report a piece of the reply in progress; - streams standard input"
    )
    delta.add_argument("--reasoning", action="store_true", help="this is reasoning, not the reply")
    title = kinds.add_parser("title", help="set the session's title")
    for kind in (message, delta, title):
        kind.add_argument("text", metavar="TEXT", help="the text; - reads standard input")
    end = kinds.add_parser("end", help="end the session")
    end.add_argument("--reason", default="completed", metavar="WORD",
                     help="the end reason (default: completed)")  # fmt: skip
    return command


def main(argv: list[str]) -> int:
    args = parser().parse_args(argv)
    reads_input = getattr(args, "text", None) == "-"
    switched_off = os.environ.get(endpoint.SWITCH_VARIABLE) == "0"
    if switched_off or not all(os.environ.get(name) for name in _VARIABLES):
        if reads_input:
            _discard_input()
        return 0
    try:
        emitter = Emitter(args.session or os.environ[endpoint.RUN_VARIABLE])
        if args.kind == "delta" and reads_input:
            emitter.stream_input(reasoning=args.reasoning)
        else:
            emitter.send(_record(args))
    except NotDelivered as why:
        if reads_input:
            _discard_input()  # whoever writes to us must not be stopped by our failure
        raise CommandError(f"not recorded: {why}") from None
    return 0


def _discard_input() -> None:
    try:
        while os.read(0, _BLOCK):
            pass
    except OSError:
        pass  # there is no input


class Emitter:
    """Sends records on the stream of the script, for the time of one call."""

    def __init__(self, session: str) -> None:
        self._session = session
        self._address, self._folder, run = (os.environ[name] for name in _VARIABLES)
        owner = _script()
        name = f"{run} {owner} {process_start(owner)}"
        self._stream = hashlib.sha256(name.encode()).hexdigest()[:32]
        self._about: dict[str, object] = {"argv": command_line(owner), "executable": None}
        if owner != os.getpid():
            self._about["for"] = owner

    def send(self, record: dict[str, object]) -> None:
        """Returns when the record is acknowledged."""
        common = {"session": self._session, "at": time.time()}
        start = {"kind": "session", **common, "cwd": os.getcwd()}
        is_session = record["kind"] == "session"
        records = [{**common, **record}] if is_session else [start, common | record]
        path = os.path.join(self._folder, f"{self._stream}.emit")
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise NotDelivered(f"the run has ended: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._send(records)
        finally:
            os.close(lock)

    def _send(self, records: list[dict[str, object]]) -> None:
        client = BlockingClient(self._address, stream=self._stream, about=self._about)
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                client.connect()
                break
            except NotDelivered:
                if time.monotonic() > deadline or not os.path.isdir(self._folder):
                    raise
                time.sleep(0.05)
        try:
            client.send(*records)
        finally:
            client.close()

    def stream_input(self, *, reasoning: bool) -> None:
        """Send standard input as it comes, to its end."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while data := os.read(0, _BLOCK):
            if piece := decoder.decode(data):
                self.send(_delta(piece, reasoning=reasoning))
        if rest := decoder.decode(b"", final=True):
            self.send(_delta(rest, reasoning=reasoning))


def _script() -> int:
    """The topmost process of this run above us: the script, or the process that started it."""
    variable = os.fsencode(f"{endpoint.SOCKET_VARIABLE}={os.environ[endpoint.SOCKET_VARIABLE]}")
    topmost = os.getpid()
    for pid in ancestors(topmost):
        if variable not in environment(pid):
            break
        topmost = pid
    return topmost


def _record(args: argparse.Namespace) -> dict[str, object]:
    if args.kind == "session":
        about = {"source": args.source, "model": args.model}
        return {"kind": "session", "cwd": os.getcwd(), **{k: v for k, v in about.items() if v}}
    if args.kind == "end":
        return {"kind": "ended", "reason": args.reason}
    text = args.text
    if text == "-":
        text = sys.stdin.buffer.read().decode("utf-8", "replace")
    if args.kind == "title":
        return {"kind": "title", "title": text.strip()}
    if args.kind == "delta":
        return _delta(text, reasoning=args.reasoning)
    message = {"role": args.role, "content": text}
    if args.call:
        message["tool_call_id"] = args.call
    return {"kind": "message", "message": message}


def _delta(text: str, *, reasoning: bool) -> dict[str, object]:
    return {"kind": "delta", "reasoning" if reasoning else "text": text}
