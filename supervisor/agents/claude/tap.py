"""The reply in progress of Claude Code, through its own `MessageDisplay` hook.

Claude Code calls the hook with each finished line of a reply and shows the line when the hook has
returned: what is on the screen was handed over before. The hook is given by `--settings`, which
Claude Code merges with the user's own hooks; a `--settings` of the user's is merged here.

The hook is a line of POSIX shell in the settings themselves. It needs no file of ours and no
supervisor, makes a new file in the run's `tap` folder for each call (concurrent appends could
tear), always exits with 0, and has a timeout of a second.

    runs/<run>/tap/settings.json   what `--settings` names
    runs/<run>/tap/line-*          one call each: {"session_id", "message_id", "index", "delta", …}

The transcript is authoritative for complete messages: text that it has is not reported again.
"""

from __future__ import annotations

import json
import os

from ..protocol import Database

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from ..protocol import Read, Record

_PREFIX = "line-"
_SETTINGS = "settings.json"
_TIMEOUT = 1
# With these Claude Code has no hooks, or shows nothing before it is complete.
_WITHOUT = ("-p", "--print", "--bare", "--safe-mode", "--version", "-v", "--help", "-h")
_MANAGED = (
    "/etc/claude-code/managed-settings.json",
    "/Library/Application Support/ClaudeCode/managed-settings.json",
)
# How many complete texts of a session are kept, to recognise the lines that belong to one of them.
_RECENT = 32


def command_with(command: list[str], at: int, folder: str) -> list[str] | None:
    """The command that starts the same Claude Code with the hook, which writes into `folder`; None
    if it cannot be added. `at`: where its own arguments begin."""
    words = command[at:]
    given, place = _given_settings(words)
    if given is None:
        return None
    hooks = given.setdefault("hooks", {})
    if not isinstance(hooks, dict) or not isinstance(hooks.setdefault("MessageDisplay", []), list):
        return None
    hooks["MessageDisplay"].append({"hooks": [hook(folder)]})
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
        f'f={_PREFIX}$$.$n; {{ true > "$f"; }} 2>/dev/null && '
        '{ set +C; cat > "$f" 2>/dev/null; exit 0; }; '
        "n=$((n+1)); done; cat > /dev/null; exit 0"
    )
    return {"type": "command", "command": script, "timeout": _TIMEOUT}


def why_not(arguments: list[str], env: Mapping[str, str], cwd: str) -> str | None:
    """Why the hook would not be called; None if it would."""
    for word in arguments:
        if word in _WITHOUT:
            return f"with {word} it has no hook that sees a reply in progress"
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
    """The last texts that the transcript has, by session."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}

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

    def __init__(self) -> None:
        self.text = ""
        self.next = 0
        self.files: list[str] = []
        """Those that were read, in the order of their lines."""
        self.over = False
        """It is final, the transcript has it, or a line is missing: there is no more to report."""

    def forget(self) -> None:
        """Remove its files, the last line first: the beginning is what may remain."""
        while self.files:
            os.unlink(self.files[-1])
            self.files.pop()


class ClaudeTap(Database):
    """The files that the hook made. The files of a reply stay until it is over: a process that
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
        paths = (call.get("transcript_path") for _, call in self._unread())
        return {path for path in paths if isinstance(path, str)}

    def _unread(self) -> list[tuple[str, dict[str, Any]]]:
        """The files, in the order of messages and of the lines in each. A file that is still being
        written is not JSON yet, and is read the next time."""
        known = {path for message in self._messages.values() for path in message.files}
        found = []
        began: dict[object, int] = {}
        for name in os.listdir(self._folder):
            path = os.path.join(self._folder, name)
            if name.startswith(_PREFIX) and path not in known and (call := _read(path)):
                found.append((path, call))
                id, at = call.get("message_id"), os.stat(path).st_mtime_ns
                began[id] = min(at, began.get(id, at))
        return sorted(found, key=lambda e: (began[e[1].get("message_id")], _index(e[1])))

    def read(self, *, final: bool) -> Iterator[list[Read]]:
        for path, call in self._unread():
            # A reply comes after its question: it waits until the transcript has been read.
            if final or self._announced(str(call.get("session_id"))):
                message = self._message(str(call.get("message_id")))
                message.files.append(path)
                yield self._records(message, call)
                if message.over:  # what was yielded has been acknowledged
                    message.forget()

    def _message(self, id: str) -> _Message:
        if id not in self._messages:
            for older in self._messages.values():
                older.forget()
            while len(self._messages) >= _RECENT:
                del self._messages[next(iter(self._messages))]
            self._messages[id] = _Message()
        return self._messages[id]

    def _records(self, message: _Message, call: dict[str, Any]) -> list[Read]:
        session, delta, index = call.get("session_id"), call.get("delta"), _index(call)
        if not isinstance(session, str) or not isinstance(delta, str) or index < message.next:
            return []
        message.text += delta
        message.over |= index != message.next or self._complete.has(session, message.text)
        message.next = index + 1
        about: Record = {"kind": "session", "session": session, "tapped": True}
        read: list[Read] = [(about, "tapped", True)]
        if not message.over:
            record: Record = {"kind": "delta", "session": session, "text": delta}
            if index == 0:
                record["restart"] = True
            read.append((record, f"{call.get('message_id')}.{index}", True))
        message.over |= call.get("final") is True
        return read


def _index(call: dict[str, Any]) -> int:
    index = call.get("index")
    return index if isinstance(index, int) else -1
