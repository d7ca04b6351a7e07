"""Small agents that know nothing of us and write transcripts as the real ones do."""

from __future__ import annotations

import sys
from pathlib import Path

from support import FOREVER, World

_COMMON = (
    f"""\
#!{{python}}
import datetime, hashlib, json, os, signal, sqlite3, sys, time, uuid

{FOREVER}"""
    + '''\
HOME, CWD = os.path.expanduser("~"), os.getcwd()

def ready(what="ready"):
    sys.stdout.write(what + "\\n")
    sys.stdout.flush()

def wait():
    """For a line from the test."""
    return sys.stdin.readline().strip()

def now():
    return datetime.datetime.now(datetime.timezone.utc).isoformat().replace("+00:00", "Z")

KEPT_OPEN = {} if "KEEP_OPEN" in os.environ else None  # as Claude Code and Codex do

def append(path, *entries, torn=""):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    text = "".join(json.dumps(entry) + "\\n" for entry in entries) + torn
    if KEPT_OPEN is None:
        with open(path, "a") as file:
            file.write(text)
        return
    file = KEPT_OPEN.setdefault(path, None) or open(path, "a")
    KEPT_OPEN[path] = file
    file.write(text)
    file.flush()

ready("pid %d" % os.getpid())
'''
)

CLAUDE = (
    _COMMON
    + '''
CONFIG = os.environ.get("CLAUDE_CONFIG_DIR") or HOME + "/.claude"
FOLDER = CONFIG + "/projects/" + "".join(c if c.isalnum() else "-" for c in CWD)

class Chat:
    """A session's file, a line at a time; `pid` writes down who has it open."""

    def __init__(self, id, name=None, pid=False, **always):
        self.id, self.path, self.above = id, FOLDER + "/%s.jsonl" % (name or id), None
        self.always = always
        if pid:
            os.makedirs(CONFIG + "/sessions", exist_ok=True)
            with open(CONFIG + "/sessions/%d.json" % os.getpid(), "w") as file:
                json.dump({"pid": os.getpid(), "sessionId": id, "cwd": CWD}, file)

    def line(self, kind, message, **more):
        entry = {"parentUuid": self.above, "isSidechain": False, "userType": "external",
                 "cwd": CWD, "sessionId": self.id, "version": "2.1.0", "type": kind,
                 "uuid": str(uuid.uuid4()), "timestamp": now(), "message": message}
        entry.update(self.always, **more)
        self.above = entry["uuid"]
        append(self.path, entry)

    def user(self, content, **more):
        self.line("user", {"role": "user", "content": content}, **more)

    def result(self, call, text):
        self.user([{"type": "tool_result", "tool_use_id": call, "content": text}])

    def block(self, message, **block):
        self.line("assistant", {"id": message, "role": "assistant", "type": "message",
                                "model": "claude-opus-4-6", "content": [block],
                                "stop_reason": None, "usage": {"output_tokens": 1}})

    def text(self, message, text):
        self.block(message, type="text", text=text)

    def call(self, message, id, name, **given):
        self.block(message, type="tool_use", id=id, name=name, input=given)

    def other(self, torn="", **entry):
        append(self.path, *([entry] if entry else []), torn=torn)
'''
)

CODEX = (
    _COMMON
    + """
BASE = os.environ.get("CODEX_HOME") or HOME + "/.codex"
DAY = datetime.date.today().strftime("%Y/%m/%d")

class Chat:
    def __init__(self, id, **meta):
        self.id = id
        self.path = BASE + "/sessions/%s/rollout-2026-01-31T12-00-00-%s.jsonl" % (DAY, id)
        self.line("session_meta", id=id, timestamp=now(), originator="codex_cli_rs",
                  cli_version="0.99.0", **{"source": "cli", "cwd": CWD, **meta})

    def line(self, kind, **payload):
        append(self.path, {"timestamp": now(), "type": kind, "payload": payload})

    def item(self, kind, **payload):
        self.line("response_item", type=kind, **payload)

    def event(self, kind, **payload):
        self.line("event_msg", type=kind, **payload)

    def user(self, text):
        self.item("message", role="user", content=[{"type": "input_text", "text": text}])
        self.event("user_message", message=text)

    def text(self, text):
        self.event("agent_message", message=text)
        self.item("message", role="assistant", content=[{"type": "output_text", "text": text}])
"""
)

GEMINI = (
    _COMMON
    + """
HASH = hashlib.sha256(CWD.encode()).hexdigest()
CHATS = HOME + "/.gemini/tmp/%s/chats" % HASH

class Chat:
    def __init__(self, id, path=None, **meta):
        self.path = CHATS + "/" + (path or "session-2026-01-31T12-00-%s.jsonl" % id[:8])
        append(self.path, {"sessionId": id, "projectHash": HASH, "startTime": now(),
                           "lastUpdated": now(), "kind": "main", **meta})

    def message(self, id, kind, content, **more):
        append(self.path, {"id": id, "timestamp": now(), "type": kind, "content": content, **more})

    def update(self, **entry):
        append(self.path, entry)
"""
)

OPENCODE = (
    _COMMON
    + """
DATA = os.environ.get("XDG_DATA_HOME") or HOME + "/.local/share"
os.makedirs(DATA + "/opencode", exist_ok=True)
db = sqlite3.connect(DATA + "/opencode/opencode.db", isolation_level=None)
db.execute("PRAGMA journal_mode = WAL")
db.execute("PRAGMA wal_autocheckpoint = 0")
TIMES = "time_created INTEGER NOT NULL, time_updated INTEGER NOT NULL"
db.execute("CREATE TABLE IF NOT EXISTS session (id TEXT PRIMARY KEY, project_id TEXT, parent_id "
           "TEXT, slug TEXT, directory TEXT, title TEXT, version TEXT, " + TIMES + ")")
db.execute("CREATE TABLE IF NOT EXISTS message (id TEXT PRIMARY KEY, session_id TEXT, " + TIMES
           + ", data TEXT)")
db.execute("CREATE TABLE IF NOT EXISTS part (id TEXT PRIMARY KEY, message_id TEXT, session_id "
           "TEXT, " + TIMES + ", data TEXT)")

def ms():
    return int(time.time() * 1000)

def session(id, parent=None, title="New session - 2026"):
    db.execute("INSERT OR REPLACE INTO session VALUES (?, 'p', ?, 's', ?, ?, '1.2', ?, ?)",
               (id, parent, CWD, title, ms(), ms()))

def message(session, id, at=None, **data):
    at = at or ms()
    db.execute("INSERT OR REPLACE INTO message VALUES (?, ?, ?, ?, ?)",
               (id, session, at, ms(), json.dumps(data)))

def part(session, message, id, **data):
    db.execute("INSERT OR REPLACE INTO part VALUES (?, ?, ?, ?, ?, ?)",
               (id, message, session, ms(), ms(), json.dumps(data)))
"""
)

PLAIN = (
    _COMMON
    + """
def say(path, role, content, **more):
    append(path, {"role": role, "content": content, **more})
"""
)


def install(world: World, name: str, kind: str, body: str) -> str:
    """An agent of this kind that can be started by this name."""
    folder = world.folder / "bin"
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(kind.replace("{python}", sys.executable, 1) + body)
    path.chmod(0o755)
    return str(path)


def journals(world: World) -> bytes:
    """Everything that the journals of this world have so far."""
    found = b""
    for path in (world.state / "hermes-supervise" / "runs").glob("*/*.log"):
        try:
            found += path.read_bytes()
        except FileNotFoundError:
            continue
    return found


def watcher_of(pid: int) -> list[int]:
    """The watchers below a supervisor."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
            stat = (path.parent / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if b"read-transcripts" in words and int(stat.rpartition(")")[2].split()[1]) == pid:
            found.append(int(path.parent.name))
    return found
