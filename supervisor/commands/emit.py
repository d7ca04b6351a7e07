"""`hermes-supervise emit`: a supervised shell script says what it says, a line at a time.

Never speaks for itself: it is gone in a moment. What it says is the script's: of the topmost
process that has our variables, on one stream for all the calls, which ends with that process.
Of calls at the same time one waits for the other, because the stream's numbers are counted on.
"""

from __future__ import annotations

import argparse
import codecs
import fcntl
import hashlib
import os
import sys
import time

from ...ipc import endpoint
from .. import launch
from ..orphans import command_line
from ..speaker import Speaker, Unheard
from ..tree import ancestors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ROLES = ("user", "assistant", "system", "tool")
# If nobody listens now, an heir may do so in a moment.
_PATIENCE = 5.0
_PIECE = 64 * 1024
_EXAMPLE = """\
in a script that is started with `hermes-supervise -- ./script`:
  %(prog)s message --role user "$QUESTION"
  my-model "$QUESTION" | tee >(%(prog)s delta -)
  %(prog)s end"""


def main(arguments: list[str]) -> int:
    wanted = parser().parse_args(arguments)
    if os.environ.get(endpoint.SWITCH_VARIABLE) == "0":
        return 0
    missing = [name for name in _NEEDED if not os.environ.get(name)]
    if missing:
        launch.say(
            f"emit works only within a supervised run ({missing[0]} is not set): "
            "hermes-supervise -- YOUR-SCRIPT"
        )
        return launch.OUR_FAILURE
    try:
        voice = Voice(wanted.session or os.environ[endpoint.RUN_VARIABLE])
        if wanted.what == "delta" and wanted.text == "-":
            voice.stream(reasoning=wanted.reasoning)
        else:
            voice.say(_record(wanted))
    except Unheard as why:
        launch.say(f"not said: {why}")
        return launch.OUR_FAILURE
    return 0


_NEEDED = (endpoint.SOCKET_VARIABLE, endpoint.SPOOL_VARIABLE, endpoint.RUN_VARIABLE)


class Voice:
    """The script's, as long as this call lasts."""

    def __init__(self, session: str) -> None:
        self._session = session
        self._address, self._folder, run = (os.environ[name] for name in _NEEDED)
        owner = _topmost()
        name = f"{run} {owner} {endpoint.process_start(owner)}"
        self._stream = hashlib.sha256(name.encode()).hexdigest()[:32]
        self._about: dict[str, object] = {"argv": command_line(owner), "executable": None}
        if owner != os.getpid():
            self._about["for"] = owner

    def say(self, record: dict[str, object]) -> None:
        """Returns when it is stored."""
        now = time.time()
        told = {"session": self._session, "at": now}
        opened = {"kind": "session", **told, "cwd": os.getcwd()}
        records = [{**told, **record}] if record["kind"] == "session" else [opened, told | record]
        path = os.path.join(self._folder, f"{self._stream}.emit")
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise Unheard(f"the run is over: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._say(records)
        finally:
            os.close(lock)

    def _say(self, records: list[dict[str, object]]) -> None:
        speaker = Speaker(self._address, stream=self._stream, about=self._about)
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                speaker.connect()
                break
            except Unheard:
                if time.monotonic() > deadline or not os.path.isdir(self._folder):
                    raise
                time.sleep(0.05)
        try:
            speaker.say(*records)
        finally:
            speaker.close()

    def stream(self, *, reasoning: bool) -> None:
        """Standard input as it comes, to its end."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while data := os.read(0, _PIECE):
            if piece := decoder.decode(data):
                self.say(_delta(piece, reasoning=reasoning))
        if rest := decoder.decode(b"", final=True):
            self.say(_delta(rest, reasoning=reasoning))


def _topmost() -> int:
    """The outermost process of this run that we are a part of: the script, or what started it."""
    entry = os.fsencode(f"{endpoint.SOCKET_VARIABLE}={os.environ[endpoint.SOCKET_VARIABLE]}")
    found = os.getpid()
    for pid in ancestors(found):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if entry not in file.read().split(b"\0"):
                    break
        except OSError:
            break
        found = pid
    return found


def _record(wanted: Any) -> dict[str, object]:
    if wanted.what == "session":
        about = {"source": wanted.source, "model": wanted.model}
        return {"kind": "session", "cwd": os.getcwd(), **{k: v for k, v in about.items() if v}}
    if wanted.what == "end":
        return {"kind": "ended", "reason": wanted.reason}
    text = wanted.text
    if text == "-":
        text = sys.stdin.buffer.read().decode("utf-8", "replace")
    if wanted.what == "title":
        return {"kind": "title", "title": text.strip()}
    if wanted.what == "delta":
        return _delta(text, reasoning=wanted.reasoning)
    message = {"role": wanted.role, "content": text}
    if wanted.call:
        message["tool_call_id"] = wanted.call
    return {"kind": "message", "message": message}


def _delta(text: str, *, reasoning: bool) -> dict[str, object]:
    return {"kind": "delta", "reasoning" if reasoning else "text": text}


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="hermes-supervise emit",
        description="Say what a supervised script says, so that it is recovered if that dies.\n"
        "Works only in what hermes-supervise has started.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "--session", metavar="ID", help="which session it is said in (default: that of this run)"
    )
    what = made.add_subparsers(dest="what", metavar="WHAT", required=True)
    session = what.add_parser("session", help="a session begins, or goes on")
    session.add_argument("--source", metavar="WHAT", help="what kind of agent it is, as in cli")
    session.add_argument("--model", metavar="NAME", help="the model that answers")
    message = what.add_parser("message", help="a complete message")
    message.add_argument("--role", choices=_ROLES, required=True, help="who says it")
    message.add_argument("--call", metavar="ID", help="the tool call that it answers")
    delta = what.add_parser("delta", help="a piece of the reply being streamed; - as it comes")
    delta.add_argument("--reasoning", action="store_true", help="it is reasoning, not reply")
    title = what.add_parser("title", help="the session's title")
    for one in (message, delta, title):
        one.add_argument("text", metavar="TEXT", help="what is said; - reads standard input")
    end = what.add_parser("end", help="the session is over")
    end.add_argument("--reason", default="completed", metavar="WORD",
                     help="why, in a word (default: completed)")  # fmt: skip
    return made
