"""What Claude Code has not yet written to its transcript, through its own hooks.

    MessageDisplay     called with each finished line of a reply; Claude Code shows the line when
                       the hook has returned: what is on the screen was handed over before
    PreToolUse         called with each call; the tool runs when the hook has returned. Claude Code
                       writes the call to the transcript some tenths of a second after that
    UserPromptSubmit   called with each question, before the transcript has it

The hooks are given by `--settings`, which Claude Code merges with the user's own; a `--settings` of
the user's is merged here. Each is the same line of POSIX shell in the settings themselves. It needs
no file of ours and no supervisor, makes a new file in the run's `tap` folder for each time that it
is called (concurrent appends could tear), always exits with 0, and has a timeout of a second.

    runs/<run>/tap/settings.json   what `--settings` names
    runs/<run>/tap/line-PID.*      what a hook of the process PID was given:
                                   {"hook_event_name", "session_id", "message_id", "delta", …}

The transcript is authoritative: text that it has is not reported again, and a call or a question is
reported only if the process died before the transcript had it.
"""

from __future__ import annotations

import json
import os

from ...process.platform import process_table
from ..messages import about, assistant, call, said
from ..protocol import Database

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from ..protocol import Entry, Read, Record

SOURCE = "claude-code"
_PREFIX = "line-"
_DISPLAY, _CALL, _PROMPT = "MessageDisplay", "PreToolUse", "UserPromptSubmit"
_SETTINGS = "settings.json"
_TIMEOUT = 1
# With these Claude Code shows nothing before it is complete.
_NOT_SHOWN = ("-p", "--print")
# With these it has no hooks.
_WITHOUT = ("--bare", "--safe-mode", "--version", "-v", "--help", "-h")
_MANAGED = (
    "/etc/claude-code/managed-settings.json",
    "/Library/Application Support/ClaudeCode/managed-settings.json",
)
# How many complete texts of a session are kept, to recognise the lines that belong to one of them.
_RECENT = 32


def command_with(command: list[str], at: int, folder: str) -> list[str] | None:
    """The command that starts the same Claude Code with the hooks, which write into `folder`; None
    if they cannot be added. `at`: where its own arguments begin."""
    words = command[at:]
    events = [_PROMPT, _CALL]
    if set(_NOT_SHOWN).isdisjoint(words):
        events.append(_DISPLAY)
    given, place = _given_settings(words)
    if given is None:
        return None
    hooks = given.setdefault("hooks", {})
    for event in events:
        if not isinstance(hooks, dict) or not isinstance(hooks.setdefault(event, []), list):
            return None
        hooks[event].append({"hooks": [hook(folder)]})
    path = os.path.join(folder, _SETTINGS)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(path, flags, 0o600), "w", encoding="utf-8") as file:
        json.dump(given, file)
    if place is None:
        return [*command[:at], "--settings", path, *words]
    option = words[place].partition("=")
    if option[1]:
        words[place] = f"{option[0]}={path}"
    else:
        words[place + 1] = path
    return [*command[:at], *words]


def hook(folder: str) -> dict[str, Any]:
    quoted = "'" + folder.replace("'", "'\\''") + "'"
    # `true`, not `:`: a redirection that fails for a special builtin ends the shell with status 2,
    # which to Claude Code means that a hook objects.
    script = (
        f"umask 077; cd {quoted} 2>/dev/null || {{ cat > /dev/null; exit 0; }}; n=0; set -C; "
        "while [ $n -lt 100 ]; do "
        f'f={_PREFIX}$PPID.$$.$n; {{ true > "$f"; }} 2>/dev/null && '
        '{ set +C; cat > "$f" 2>/dev/null; exit 0; }; '
        "n=$((n+1)); done; cat > /dev/null; exit 0"
    )
    return {"type": "command", "command": script, "timeout": _TIMEOUT}


def why_not_shown(arguments: list[str], env: Mapping[str, str], cwd: str) -> str | None:
    """Why no hook would see a reply in progress; None if one would."""
    for word in arguments:
        if word in _NOT_SHOWN:
            return f"with {word} it shows a reply when it is complete"
    return why_not(arguments, env, cwd)


def why_not(arguments: list[str], env: Mapping[str, str], cwd: str) -> str | None:
    """Why no hook would be called; None if they would."""
    for word in arguments:
        if word in _WITHOUT:
            return f"with {word} it calls no hooks"
    home = env.get("HOME") or os.path.expanduser("~")
    config = env.get("CLAUDE_CONFIG_DIR") or os.path.join(home, ".claude")
    local = os.path.join(cwd, ".claude")
    files = [*_MANAGED, os.path.join(config, "settings.json")]
    files += [os.path.join(local, name) for name in ("settings.json", "settings.local.json")]
    for path in files:
        settings = _read(path)
        if settings.get("disableAllHooks") is True:
            return f"{path} switches hooks off"
        if path in _MANAGED and settings.get("allowManagedHooksOnly") is True:
            return f"{path} allows no hooks but its own"
    return None


def _given_settings(words: list[str]) -> tuple[dict[str, Any] | None, int | None]:
    """The settings that the user gives on the command line, and where; None: not understood."""
    place = None
    for at, word in enumerate(words):
        if word == "--":
            break
        if word.partition("=")[0] == "--settings":
            if place is not None:
                return None, None
            place = at
    if place is None:
        return {}, None
    _, equals, value = words[place].partition("=")
    value = value if equals else "".join(words[place + 1 : place + 2])
    try:
        text = value
        if not value.lstrip().startswith("{"):
            with open(value, encoding="utf-8") as file:
                text = file.read()
        found = json.loads(text)
    except (OSError, ValueError):
        return None, None
    return (found, place) if isinstance(found, dict) else (None, None)


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


class Complete:
    """What the transcript has, by session, as far as the tap has to know it."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}
        self._ids: set[str] = set()
        self._last: dict[str, float] = {}
        self._replies: dict[str, tuple[str, dict[str, Any]]] = {}

    def note_line(self, session: str, at: float | None) -> None:
        """It has a line from that time. A reply before it is over."""
        self._last[session] = max(at or 0.0, self._last.get(session, 0.0))
        self._replies.pop(session, None)

    def note_id(self, id: str) -> None:
        """It has a call, or a question."""
        self._ids.add(id)

    def note_reply(self, session: str, uid: str, message: dict[str, Any]) -> None:
        """Its last line belongs to this reply, which may go on."""
        self._replies[session] = (uid, message)

    def lacks(self, session: str, id: str, at: float) -> bool:
        """True if it ends before this call or question."""
        return id not in self._ids and at >= self._last.get(session, 0.0)

    def has_id(self, id: str) -> bool:
        return id in self._ids

    def last_reply(self, session: str) -> tuple[str, dict[str, Any]] | None:
        return self._replies.get(session)

    def note(self, session: str, text: str) -> None:
        texts = self._texts.setdefault(session, [])
        texts.append(_plain(text))
        del texts[:-_RECENT]

    def has(self, session: str, text: str) -> bool:
        return any(known.startswith(_plain(text)) for known in self._texts.get(session, ()))


def _plain(text: str) -> str:
    """The text without blanks around lines: display and transcript may differ in those."""
    return "\n".join(filter(None, (line.strip() for line in text.splitlines())))


class _Message:
    """The part of a reply that was handed over."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.text = ""
        self.next = 0
        self.files: list[str] = []
        """Those that were read, in the order of their lines."""
        self.over = False
        """It is final, the transcript has it, or a line is missing: there is no more to report."""
        self.is_lost = False
        """A line is missing: what followed it is not known."""

    def forget(self) -> None:
        """Remove its files, the last line first: the beginning is what may remain."""
        while self.files:
            os.unlink(self.files[-1])
            self.files.pop()


class ClaudeTap(Database):
    """The files that the hooks made. The files of a reply stay until it is over: a process that
    replaces this one begins with the first line, and does not report again what was reported."""

    def __init__(self, folder: str, complete: Complete, announced: Callable[[str], bool]) -> None:
        self._folder = folder
        self._complete = complete
        self._announced = announced
        self._messages: dict[str, _Message] = {}

    def folders(self) -> list[str]:
        return [self._folder]

    def look_first(self) -> set[str]:
        # The question that a line answers is in the transcript before the line is shown.
        paths = (given.get("transcript_path") for _, _, given in self._unread())
        return {path for path in paths if isinstance(path, str)}

    def _unread(self) -> list[tuple[str, int, Entry]]:
        """The files that are new, or not done with: path, time, contents. A file that is still
        being written is not JSON yet, and is read the next time."""
        known = {path for message in self._messages.values() for path in message.files}
        found = []
        for name in os.listdir(self._folder):
            path = os.path.join(self._folder, name)
            if name.startswith(_PREFIX) and path not in known and (given := _read(path)):
                found.append((path, os.stat(path).st_mtime_ns, given))
        return found

    def read(self, *, final: bool) -> Iterator[list[Read]]:
        unread = self._unread()
        for path, given in _in_order(unread):
            # A reply comes after its question: it waits until the transcript has been read.
            session = str(given.get("session_id"))
            if final or self._announced(session):
                message = self._message(str(given.get("message_id")), session)
                message.files.append(path)
                yield self._records(message, given)
        # What was yielded has been acknowledged.
        for message in self._messages.values():
            if message.is_lost or self._complete.has(message.session, message.text):
                message.forget()
        steps = [step for step in unread if step[2].get("hook_event_name") in (_CALL, _PROMPT)]
        yield self._unwritten(sorted(steps, key=lambda step: step[1]), final=final)

    def _message(self, id: str, session: str) -> _Message:
        if id not in self._messages:
            for older in self._messages.values():
                older.forget()
            while len(self._messages) >= _RECENT:
                del self._messages[next(iter(self._messages))]
            self._messages[id] = _Message(session)
        return self._messages[id]

    def _records(self, message: _Message, given: Entry) -> list[Read]:
        session, delta, index = given.get("session_id"), given.get("delta"), _index(given)
        if not isinstance(session, str) or not isinstance(delta, str) or index < message.next:
            return []
        message.text += delta
        message.is_lost |= index != message.next
        message.over |= message.is_lost or self._complete.has(session, message.text)
        message.next = index + 1
        tapped: Record = {"kind": "session", "session": session, "tapped": True}
        read: list[Read] = [(tapped, "tapped", True)]
        if not message.over:
            record: Record = {"kind": "delta", "session": session, "text": delta}
            if index == 0:
                record["restart"] = True
            read.append((record, f"{given.get('message_id')}.{index}", True))
        message.over |= given.get("final") is True
        return read

    def _unwritten(self, steps: list[tuple[str, int, Entry]], *, final: bool) -> list[Read]:
        """The calls and questions that a dead process has not written to the transcript."""
        read: list[Read] = []
        calls: dict[str, list[dict[str, Any]]] = {}
        for path, time, given in steps:
            session, at = str(given.get("session_id")), time / 1e9
            is_call = given.get("hook_event_name") == _CALL
            id = str(given.get("tool_use_id" if is_call else "prompt_id"))
            # A subagent has a transcript of its own, which the hook does not name.
            if self._complete.has_id(id) or given.get("agent_id"):
                os.unlink(path)
            elif final and self._complete.lacks(session, id, at) and not _is_alive(path):
                if not self._announced(session) and not read:
                    read.append((_session_of(given, at), id, True))
                if is_call:
                    made = call(id, given.get("tool_name"), given.get("tool_input"))
                    calls.setdefault(session, []).append(made)
                    uid, message = self._with_calls(session, calls[session])
                    read.append((said(session, uid, message, at), uid, True))
                else:
                    message = {"role": "user", "content": str(given.get("prompt") or "")}
                    read.append((said(session, f"prompt {id}", message, at), id, True))
        return read

    def _with_calls(self, session: str, calls: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
        """The message that makes these calls: the reply that the transcript ends with goes on, or
        what was shown after it."""
        uid, begun = self._complete.last_reply(session) or (f"call {calls[0]['id']}", {})
        texts = [str(begun.get("content") or "")]
        for shown in self._messages.values():
            if shown.session == session and not self._complete.has(session, shown.text):
                texts.append(shown.text.strip())
        text = "\n\n".join(filter(None, texts))
        known = begun.get("tool_calls") or []
        return uid, assistant(text, [*known, *calls], str(begun.get("reasoning") or ""))


def _session_of(given: Entry, at: float) -> Record:
    """A session of which nothing is in a transcript."""
    session = str(given.get("session_id"))
    return about(
        session, at, source=SOURCE, cwd=given.get("cwd"), started=at,
        resume=f"claude --resume {session}", transcript=given.get("transcript_path"),
    )  # fmt: skip


def _in_order(unread: list[tuple[str, int, Entry]]) -> list[tuple[str, Entry]]:
    """The lines of replies, in the order of messages and of the lines in each."""
    lines = [entry for entry in unread if entry[2].get("hook_event_name", _DISPLAY) == _DISPLAY]
    began: dict[object, int] = {}
    for _, time, given in lines:
        id = given.get("message_id")
        began[id] = min(time, began.get(id, time))
    lines.sort(key=lambda entry: (began[entry[2].get("message_id")], _index(entry[2])))
    return [(path, given) for path, _, given in lines]


def _is_alive(path: str) -> bool:
    """True if the process whose hook made the file may still write to the transcript."""
    pid = os.path.basename(path).removeprefix(_PREFIX).partition(".")[0]
    return pid.isdecimal() and any(info.alive for info in process_table([int(pid)]))


def _index(given: Entry) -> int:
    index = given.get("index")
    return index if isinstance(index, int) else -1
