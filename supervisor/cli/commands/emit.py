"""`hermes-supervise emit`: reports the messages of a supervised shell script, one call at a time.

Never reports on its own behalf, because it exits at once. Its records belong to the script: to the
topmost process that has our variables. All calls of a script share one stream, which ends with that
process. Concurrent calls wait for each other, because they continue the same numbers.

Without supervision it reads its input to the end and does nothing else, so that a script with
`… | hermes-supervise emit delta --tee -` behaves the same with and without supervision.
"""

from __future__ import annotations

import argparse
import codecs
import fcntl
import hashlib
import os
import signal
import sys
import time

from ....ipc import clock, endpoint
from ...ingest.blocking_client import BlockingClient, NotDelivered
from ...process.platform import command_line, environment, process_start, sees_processes
from ...process.tree import ancestors
from ...storage.run_folder import Run, settings
from ...storage.run_notes import living_agent
from ..errors import USAGE, CommandError, Parser

_ROLES = ("user", "assistant", "system", "tool")
# If nobody accepts the connection now, a successor may do so in a moment.
_PATIENCE = 5.0
_BLOCK = 64 * 1024
_VARIABLES = (endpoint.SOCKET_VARIABLE, endpoint.SPOOL_VARIABLE, endpoint.RUN_VARIABLE)
_EXAMPLE = """\
in a script started with `hermes-supervise -- ./script`:
  %(prog)s message --role user "$QUESTION"
  my-model "$QUESTION" | %(prog)s delta --tee -
  %(prog)s end

without supervision it reads its input and, with --tee, prints it"""


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
    delta.add_argument("--tee", action="store_true",
                       help="with -: print each piece as well, once it is recorded")  # fmt: skip
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
    tee = getattr(args, "tee", False)
    if tee and not reads_input:
        raise CommandError("--tee needs -, which reads standard input", USAGE)
    switched_off = os.environ.get(endpoint.SWITCH_VARIABLE) == "0"
    if switched_off or not all(os.environ.get(name) for name in _VARIABLES):
        if reads_input:
            _read_the_rest(tee)
        return 0
    try:
        emitter = Emitter(args.session or os.environ[endpoint.RUN_VARIABLE])
        if args.kind == "delta" and reads_input:
            emitter.stream_input(reasoning=args.reasoning, tee=tee)
        else:
            emitter.send(_record(args))
    except NotDelivered as why:
        if reads_input:
            _read_the_rest(tee)  # whoever writes to us must not be stopped by our failure
        raise CommandError(f"not recorded: {why}") from None
    return 0


def _read_the_rest(tee: bool) -> None:
    """Read standard input to its end without recording it."""
    try:
        while data := os.read(0, _BLOCK):
            _pass_on(data, tee)
    except OSError:
        pass  # there is no input


def _pass_on(data: bytes, tee: bool) -> None:
    try:
        while tee and data:
            data = data[os.write(1, data) :]
    except BrokenPipeError:
        # Nobody reads it: as any other command in a pipe. Not the default from the start, because
        # the supervisor's socket may be closed, too.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)


class Emitter:
    """Sends records on the stream of the script, for the time of one call."""

    def __init__(self, session: str) -> None:
        self._session = session
        self._address, self._folder, run = (os.environ[name] for name in _VARIABLES)
        above = _above()
        owner = _left_by(above, self._folder) or above[-1]
        name = f"{run} {owner} {process_start(owner)}"
        self._stream = hashlib.sha256(name.encode()).hexdigest()[:32]
        self._about: dict[str, object] = {
            "argv": command_line(owner), "executable": None, "boot": clock.boot(),
        }  # fmt: skip
        if owner != os.getpid():
            self._about["for"] = owner

    def send(self, record: dict[str, object]) -> None:
        """Returns when the record is acknowledged."""
        common = {"session": self._session, "at": time.time(), "mono": clock.now()}
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

    def stream_input(self, *, reasoning: bool, tee: bool) -> None:
        """Send standard input as it comes, to its end. `tee`: print it as well, each piece once it
        is recorded."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while data := os.read(0, _BLOCK):
            try:
                if piece := decoder.decode(data):
                    self.send(_delta(piece, reasoning=reasoning))
            finally:
                _pass_on(data, tee)
        if rest := decoder.decode(b"", final=True):
            self.send(_delta(rest, reasoning=reasoning))


def _above() -> list[int]:
    """The processes of this run from us up to the topmost: the script, or the process that started
    it."""
    variable = os.fsencode(f"{endpoint.SOCKET_VARIABLE}={os.environ[endpoint.SOCKET_VARIABLE]}")
    above = [os.getpid()]
    for pid in ancestors(above[0]):
        if variable not in environment(pid):
            break
        above.append(pid)
    return above


def _left_by(above: list[int], folder: str) -> int | None:
    """The command of the run, if we are not below it any more: a process in between has ended, as
    the tee of `tee >(hermes-supervise emit delta -)` may have. None: we are, or it is not known.
    The run of a launcher that has ended is for another process, which we need not be a part of."""
    agent = living_agent(folder)
    if agent is None or agent[0] in above or not sees_processes():
        return None
    started, words = settings(Run(folder, -1)).get("command") or [""], command_line(agent[0])
    last = words[-len(started) :] or [""]  # behind the interpreter of a script
    same = os.path.basename(last[0]) == os.path.basename(started[0]) and last[1:] == started[1:]
    return agent[0] if same else None


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
