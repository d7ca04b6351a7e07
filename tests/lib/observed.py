"""The names that a version of the product shows to the world, observed while it runs.

Never reads the product's source: it starts agents, kills them, runs the commands, and takes down
which files come into being, which programs are executed, which sockets are bound, which rows are
written and what is printed. The list of frozen names in docs/stability.md is compared with this.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import closing
from hashlib import blake2b
from pathlib import Path
from typing import Any

from installed import InstalledWorld
from support import Supervised, kill, until, wait_dead

# Loaded by every Python of the installed environment: it writes down what the process does.
NOTING = """
import json, os, sys
_busy = []
def _note(*what):
    _busy.append(1)
    try:
        line = json.dumps(what, default=os.fsdecode).encode() + b"\\n"
        fd = os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.write(fd, line)
        os.close(fd)
    except Exception:
        pass
    finally:
        _busy.pop()
def _hook(event, arguments):
    if _busy:
        return
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_CREAT:
        if not isinstance(arguments[0], int):
            _note("file", arguments[0])
    elif event == "os.rename":
        _note("file", arguments[1])
    elif event == "socket.bind":
        _note("bind", arguments[1])
    elif event in ("os.exec", "os.posix_spawn", "subprocess.Popen"):
        _note("exec", list(arguments[1]))
sys.addaudithook(_hook)
if any("hermes-supervise" in word or "hermes_supervise" in word for word in sys.orig_argv[:5]):
    import apsw
    def _statement(cursor, text, values):
        if "INTO state_meta" in text:
            _note("meta", list(values or ()))
        return True
    def _trace(connection):
        connection.exec_trace = _statement
    apsw.connection_hooks.append(_trace)
"""

# One valid value for every setting: as a flag and a variable have it, and as config.toml does.
VALUES = {
    "db": ("/tmp/some.db", '"/tmp/some.db"'),
    "on_session_end": ("true", '["true"]'),
    "on_session_finalize": ("true", '["true"]'),
    "on_session_reset": ("true", '["true"]'),
    "hook_timeout": ("5", "5"),
    "hook_wait": ("5", "5"),
    "hook_retry": ("5,6", '"5,6"'),
    "idle_finalize": ("5", "5"),
    "grace": ("5", "5"),
    "orphans": ("leave", '"leave"'),
    "sync": ("always", '"always"'),
    "checkpoint": ("5", "5"),
    "restart": ("on-crash", '"on-crash"'),
    "max_restarts": ("2", "2"),
    "resume_with": ("true", '"true"'),
    "agent": ("none", '"none"'),
    "watch": ("/tmp/some.jsonl", '["/tmp/some.jsonl"]'),
    "exclusive": ("1", "true"),
    "no_adopt": ("1", "true"),
    "strict": ("1", "true"),
    "notify": ("1", "true"),
    "quiet": ("1", "true"),
    "replica": ("service=agents", '"service=agents"'),
    "replica_disk": ("5", "5"),
    "replica_keep": ("5", "5"),
    "replica_hooks": ("always", '"always"'),
    "replica_key": ("/tmp/some.key", '"/tmp/some.key"'),
    "replica_retention": ("5", "5"),
    "no_tap": ("1", "true"),
    "log": ("/tmp/some.log", '"/tmp/some.log"'),
}

# Obeys lines on its standard input: Python, with the names below at hand.
OBEDIENT = """
import subprocess
ready("pid %d" % os.getpid())
for line in sys.stdin:
    exec(line)
    ready("done")
"""


class ObservedWorld(InstalledWorld):
    """Runs everything there is, and notes what can be seen of it."""

    def __init__(self, folder: Path, runtime: Path, tree: Path) -> None:
        super().__init__(folder, runtime, tree)
        self._log = folder / "noted"
        (self.site / "sitecustomize.py").write_text(NOTING.format(log=str(self._log)))
        self.seen: dict[str, set[str]] = {}
        self.env["XDG_CONFIG_HOME"] = str(folder / "config")
        self.env["XDG_DATA_HOME"] = str(folder / "data")
        self._hook_events = folder / "events"
        self._agents = 0

    def observe(self) -> dict[str, set[str]]:
        self._command_line()
        self._settings()
        self._sdk()
        self._plugin()
        self._a_death_with_everything()
        self._a_long_recovery()
        self._while_it_lives()
        self._without_a_supervisor()
        self._taken_over()
        self._two_agents_in_one_session()
        self._started_again()
        self._damaged()
        self._hooks_given_up()
        self._desktop()
        self._answers()
        self._noted()
        return self.seen

    def add(self, what: str, names: Iterable[str]) -> None:
        self.seen.setdefault(what, set()).update(names)

    # -- help ----------------------------------------------------------------------------------

    def _command_line(self) -> None:
        text = self.call("--help").stdout
        self.add("options", re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, re.M))
        self.add("options", re.findall(r"^  (-\w), --", text, re.M))
        listed = text.partition("\ncommands")[2].partition("\noptions:")[0]
        names = re.findall(r"^  ([\w-]+) ", listed, re.M)
        self.add("commands", names)
        below = [(name,) for name in names]
        while below:
            command = below.pop()
            answer = self.call(*command, "--help").stdout
            found = set(re.findall(r"^ +(?:-\w(?: \w+)?, )?(--[\w-]+)", answer, re.M)) - {"--help"}
            self.add("options of commands", (f"{' '.join(command)} {flag}" for flag in found))
            if len(command) == 1:
                below += [(*command, word) for word in re.findall(r"^    (\w+) {2,}", answer, re.M)]

    def _settings(self) -> None:
        """Each setting is given as a variable, and then in config.toml."""
        flags = self.seen["options"]
        values = {n: v for n, v in VALUES.items() if f"--{n.replace('_', '-')}" in flags}
        given = {f"HERMES_SUPERVISE_{name.upper()}": value for name, (value, _) in values.items()}
        before, self.env = self.env, {**self.env, **given}
        answer = self.json("config", "--json")
        self.env = before
        sources = {setting["from"] for setting in answer["settings"].values()}
        self.add("variables", sources - {"default"})
        file = Path(answer["file"])
        self.add("folders", {f"$XDG_CONFIG_HOME/{file.relative_to(self.env['XDG_CONFIG_HOME'])}"})
        file.parent.mkdir(parents=True)
        file.write_text("".join(f"{name} = {value}\n" for name, (_, value) in values.items()))
        before = self.env
        self.env = {k: v for k, v in before.items() if not k.startswith("HERMES_SUPERVISE_")}
        memory = self.state / "hermes-supervise" / "settings"

        def remembered() -> bool:
            answer = self.json("config", "--json")
            in_file = {
                n for n, setting in answer["settings"].items() if str(file) in setting["from"]
            }
            self.add("config keys", in_file)
            return memory.exists()

        until(remembered, "what was read is remembered")
        self.env = before
        file.unlink()

    def _sdk(self) -> None:
        """As an agent sees it that is not supervised."""
        script = self.folder / "sdk.py"
        script.write_text(
            "import inspect, hermes_supervise.agent_shim as sdk\n"
            "def show(name, what):\n"
            "    names = list(inspect.signature(what).parameters)\n"
            "    print(name + '(' + ', '.join(n for n in names if n != 'self') + ')')\n"
            "for name in sorted(sdk.__all__):\n"
            "    what = getattr(sdk, name)\n"
            "    if not inspect.isclass(what):\n"
            "        show(name, what)\n"
            "        continue\n"
            "    print(name)\n"
            "    for method, code in inspect.getmembers(what, inspect.isfunction):\n"
            "        if not method.startswith('_'):\n"
            "            show(name + '.' + method, code)\n"
            "for name in vars(sdk.session().tool('x')):\n"
            "    if not name.startswith('_'):\n"
            "        print('Tool.' + name)\n"
            "for name in vars(sdk.session()):\n"
            "    if not name.startswith('_'):\n"
            "        print('Session.' + name)\n"
        )
        names = subprocess.check_output([self.python, str(script)], text=True, env=self.env)
        self.add("SDK", names.splitlines())
        self.add("SDK import path", {"hermes_supervise.agent_shim"})

    def _plugin(self) -> None:
        """An installed package that offers a hook."""
        (self.site / "observing.py").write_text(
            f"def ended(event):\n    open({str(self.folder / 'called')!r}, 'w').close()\n"
        )
        info = self.site / "observing-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: observing\nVersion: 1\n")
        (info / "entry_points.txt").write_text(
            "[hermes_supervise.hooks]\non_session_end = observing:ended\n"
        )

    # -- agents --------------------------------------------------------------------------------

    def start(self, *options: str, command: list[str] | None = None, **popen: Any) -> Supervised:
        self._agents += 1
        agent = command or [self.python, self.script(OBEDIENT, f"agent{self._agents}.py")]
        run = self.run(agent, *options, stdin=subprocess.PIPE, **popen)
        run.wait_for("pid")
        return run

    def do(self, run: Supervised, *lines: str) -> None:
        for line in lines:
            run.send_line(line)
            run.wait_for("done")

    def hooks(self) -> list[str]:
        """A command for each event, which keeps its input."""
        script = self.folder / "hook.py"
        script.write_text(
            f"import sys; open({str(self._hook_events)!r}, 'a').write(sys.stdin.read() + chr(10))\n"
        )
        command = f"{self.python} {script}"
        events = ("end", "finalize", "reset")
        return [word for event in events for word in (f"--on-session-{event}", command)]

    def events(self) -> list[dict[str, Any]]:
        if not self._hook_events.exists():
            return []
        return [json.loads(line) for line in self._hook_events.read_text().splitlines() if line]

    def run_folder(self) -> Path:
        [folder] = self.runs()
        return folder

    def _a_death_with_everything(self) -> None:
        """Killed in a tool call, with a reply begun, processes left behind, hooks that run."""
        transcript = self.folder / "chat.jsonl"
        transcript.touch()
        run = self.start(*self.hooks(), "--watch", str(transcript), "--orphans", "report")
        folder = self.run_folder()
        self.do(
            run,
            "no = subprocess.DEVNULL",
            "left = subprocess.Popen(['sleep', '600'], stdin=no, stdout=no, stderr=no)",
            "chat = session('chat', source='cli', model='some-model')",
            "chat.title('A title')",
            "chat.message('user', 'question')",
            "chat.tool('shell', {'command': 'ls'}).__enter__()",
            "chat.delta('half a reply')",
            f'open({str(transcript)!r}, \'a\').write(\'{{"role": "user", "content": "x"}}\\n\')',
        )
        until(
            lambda: (folder / "watched").exists() and (folder / "watched").read_bytes(), "reported"
        )
        self.add("fields of run.json", json.loads((folder / "run.json").read_text()))
        names = until(lambda: self._variables_of(run.agent), "the agent's variables")
        self.add("variables", names)
        answer = self.json("ps", "--json")
        self.add("ps --json", fields(answer))
        self._journal(folder)
        run.kill_agent()
        assert run.finish() == -signal.SIGKILL
        until(lambda: len(self.events()) >= 2, "the hooks")
        until(lambda: (self.folder / "called").exists(), "the plugin")
        self.add("entry-point group", {"hermes_supervise.hooks"})
        for pid in self.inhabitants():
            if b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)

    def _variables_of(self, pid: int) -> set[str]:
        words = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
        names = {word.partition("=")[0] for word in words}
        test = {f"HERMES_SUPERVISE_{name.upper()}" for name in VALUES}
        return {name for name in names if name.startswith("HERMES_SUPERVISE")} - test

    def _journal(self, folder: Path) -> None:
        """The records of the supervisor's own, which a later version must understand."""
        for log in folder.glob("*.log"):
            for record in handshakes(log.read_bytes()):
                if record["kind"] in ("peer", "stored", "death"):
                    self.add("records in a journal", {f"{record['kind']}.{n}" for n in record})

    def _a_long_recovery(self) -> None:
        """So long that its rows go in in several steps."""
        run = self.start()
        self.do(
            run,
            "chat = session('long')",
            "[chat.message('user', 'm%d' % n) for n in range(2500)]",
            "chat.acknowledged()",
        )
        folder = self.run_folder()
        with closing(sqlite3.connect(self.db, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")  # so that its death can be read before it is settled
            run.kill_agent()

            def noted() -> bool:
                self._journal(folder)
                return "death.kind" in self.seen["records in a journal"]

            until(noted, "the death is in the journal")
            db.execute("ROLLBACK")
        run.finish()

    def _while_it_lives(self) -> None:
        """Stored while it runs, finalised when it is silent, replaced by another conversation."""
        options = ("--checkpoint", "0.1", "--idle-finalize", "0.5")
        run = self.start(*self.hooks(), *options)
        folder = self.run_folder()
        self.do(
            run,
            "chat = session('silent')",
            "chat.title('Silent')",
            "chat.message('user', 'hello')",
            "chat.message('assistant', 'hello')",
        )
        [line, *_] = until(lambda: whole_lines(folder / "idle.jsonl"), "the silence is noted")
        self.add("fields of idle.jsonl", json.loads(line))
        until(lambda: list(folder.glob("*.stored.log")), "a checkpoint")
        self._journal(folder)
        self.do(run, "other = chat.reset('other')", "other.message('user', 'again')")
        self.do(run, "open('hermes_cli.py', 'w').close(); sys.path.append('.')")
        self.do(run, "import hermes_cli")
        until((folder / "reached").exists, "the sign of a Hermes")
        names = {"on_session_finalize", "on_session_reset"}
        until(lambda: names <= {event["hook_event_name"] for event in self.events()}, "the hooks")
        lines = until(lambda: whole_lines(folder / "hooks.jsonl"), "the list of queued hooks")
        self.add("fields of hooks.jsonl", json.loads(lines[0]))
        for line in lines:
            key = json.loads(line)["queued"].split(":", 3)
            self.add("keys of hooks", {re.sub(r"\d+|silent|other", "N", key[3])})
        self.do(run, "other.end()")
        assert run.process.stdin is not None
        run.process.stdin.close()
        assert run.process.wait(30) == 0
        for event in self.events():
            self.add("hook events", {event["hook_event_name"]})
            self.add("fields of a hook event", fields(event))

    def _without_a_supervisor(self) -> None:
        run = self.start("--no-adopt")
        agent = run.agent
        self.do(
            run, "chat = session('spooled')", "chat.message('user', 'x')", "chat.acknowledged()"
        )
        kill(run.pid)
        run.process.wait()
        self.do(run, "chat.message('user', 'y')", "chat.message('user', 'z')")
        folder = self.run_folder()
        until(lambda: list(folder.glob("*.spool")), "a spool")
        self.add("ps --json", fields(self.json("ps", "--json")))
        kill(agent)
        wait_dead(agent)
        left = self.json("ps", "--json")
        assert left["left_behind"], "the run is left behind"
        answer = self.json("recover", "--notify", "--json")
        assert answer["settled"]
        self.add("recover --json", fields(answer, stop=("failed",)))

    def _taken_over(self) -> None:
        run = self.start()
        agent = run.agent
        self.do(run, "chat = session('taken')", "chat.message('user', 'x')", "chat.acknowledged()")
        kill(run.pid)
        run.process.wait()
        [successor] = until(self.successors, "a successor")
        self.do(run, "chat.message('user', 'y')")
        kill(agent)
        wait_dead(successor)

    def _two_agents_in_one_session(self) -> None:
        script = self.folder / "claude"
        script.write_text("#!/bin/sh\nexit 0\n")
        script.chmod(0o755)
        words = ("--exclusive", "--", str(script), "--resume", "nobody-has-it")
        assert self.call(*words).returncode == 0
        first = self.start()
        self.do(first, "chat = session('shared')", "chat.message('user', 'x')")
        self.do(first, "chat.acknowledged()")
        second = self.start("--exclusive")
        self.do(second, "chat = session('shared')", "chat.message('user', 'y')")
        until(lambda: [run for run in self.runs() if (run / "elsewhere").exists()], "it is noticed")
        for run in (second, first):
            run.kill_agent()
            run.finish()

    def _started_again(self) -> None:
        run = self.run(
            [
                self.python,
                self.script(
                    "chat = session('again')\n"
                    "chat.message('user', 'x')\n"
                    "chat.acknowledged()\n"
                    "resumed = os.environ.get('HERMES_SUPERVISE_RESUMED')\n"
                    "ready('resumed ' + resumed) if resumed else os.kill(os.getpid(), 9)\n",
                    "again.py",
                ),
            ],
            "--restart",
            "on-crash",
        )
        answer = json.loads(run.wait_for("resumed").partition(" ")[2])
        self.add("variables", {"HERMES_SUPERVISE_RESUMED"})
        self.add("fields of HERMES_SUPERVISE_RESUMED", answer)
        run.finish()
        # And the switch: an agent that must not send anything.
        before, self.env = self.env, {**self.env, "HERMES_SUPERVISE": "0"}
        off = self.start()
        self.do(off, "chat = session('off')", "ready('link %s' % chat._link)")
        self.env = before
        self.add("variables", {"HERMES_SUPERVISE"})
        off.kill_agent()
        off.finish()

    def _damaged(self) -> None:
        run = self.start()
        self.do(run, "chat = session('damaged')")
        self.do(run, *["chat.message('user', 'x' * 200); chat.acknowledged()"] * 4)
        folder = self.run_folder()
        run.abandon()
        [log] = folder.glob("*.000001.log")  # there may be a note of a checkpoint, too
        data = bytearray(log.read_bytes())
        data[len(data) // 2] ^= 0xFF
        log.write_bytes(data)
        for ring in folder.glob("*.ring"):
            ring.unlink()
        assert self.call("recover").returncode == 0

    def _hooks_given_up(self) -> None:
        # One retry: the runner that stays for it has a lock of its own.
        run = self.start("--on-session-end", "false", "--hook-retry", "0.1")
        self.do(run, "chat = session('hooked')", "chat.message('user', 'x')")
        run.kill_agent()
        run.finish()
        hooks = self.state / "hermes-supervise" / "hooks"
        [dead] = until(lambda: list((hooks / "dead").glob("*.json")), "a dead letter")
        self.add("fields of a queued hook", fields(json.loads(dead.read_text()), stop=("told",)))
        dead.with_suffix(".ledger").touch()
        (hooks / "dropped").write_text("7")
        answer = self.json("hooks", "--json")
        assert answer["dropped"] == 7
        self.add("state folder", {"hooks/dropped"})
        self.add("hooks --json", fields(answer))
        self.call("hooks", "retry", "--all")
        for done in (hooks / "done").glob("*.json"):
            entry = json.loads(done.read_text())
            self.add("fields of a queued hook", fields(entry, stop=("told",)))
            self.add("kinds of hooks", {entry["kind"]})

    # -- the desktop -----------------------------------------------------------------------------

    def _desktop(self) -> None:
        words = ("desktop", "install", "--autostart-recover", "--name", "An agent")
        installed = self.call(*words, "--", "true")
        assert installed.returncode == 0, installed.stderr
        for base, name in (("XDG_DATA_HOME", "data"), ("XDG_CONFIG_HOME", "config")):
            for file in (self.folder / name).rglob("*.desktop"):
                self.add("launchers", {f"${base}/{file.relative_to(self.env[base])}"})
                text = file.read_text()
                self.add("marks in a launcher", re.findall(r"^(X-[\w-]+)=", text, re.M))
                [line] = re.findall(r"^Exec=(.*)$", text, re.M)
                script = str(self.script_file)
                assert line.startswith(script)
                words_of_ours = [w for w in line.removeprefix(script).split() if w[0] in "-r"]
                self.add("words in a launcher", {" ".join(words_of_ours)})
        self.add("desktop list --json", fields(self.json("desktop", "list", "--json")))

    # -- what the commands print -----------------------------------------------------------------

    def json(self, *words: str) -> Any:
        answer = self.call(*words)
        assert answer.stdout, answer.stderr
        return json.loads(answer.stdout)

    def _answers(self) -> None:
        rows = ("session", "messages")  # as wide as Hermes' own tables
        answer = self.json("sessions", "--all", "--json")
        self.add("sessions --json", fields(answer))
        self.add("show --json", fields(self.json("show", "--json")))
        self.add("show SESSION --json", fields(self.json("show", "chat", "--json"), stop=rows))
        self.add("values of outcome", {session["outcome"] for session in answer})
        self.add("values of state", {session["state"] for session in answer})
        self.add(
            "values of end_reason", {str(session["end_reason"]) for session in answer} - {"None"}
        )
        self.add("values of reason.kind", {session["reason"]["kind"] for session in answer})
        doctor = self.json("doctor", "--json", "--", self.python)
        self.add("doctor --json", fields(doctor))
        self.add("names of checks", {check["name"] for check in doctor["checks"]})
        self.add("values of checks[].state", {check["state"] for check in doctor["checks"]})
        answer = fields(self.json("config", "--json"))
        self.add("config --json", (re.sub(r"^settings\.\w+", "settings.<key>", n) for n in answer))
        answer = self.json("sweep", "--dry-run", "--json")
        self.add("sweep --json", fields(answer, stop=("left_alone",)))
        with closing(sqlite3.connect(f"file:{self.db}?mode=ro", uri=True)) as db:
            for (key,) in db.execute("SELECT key FROM state_meta WHERE key LIKE '%supervise%'"):
                self.add("keys in state_meta", {normal(key)})
            query = "SELECT DISTINCT finish_reason FROM messages WHERE finish_reason IS NOT NULL"
            self.add("values of finish_reason", (reason for (reason,) in db.execute(query)))
        kept = self.state / "hermes-supervise" / "reports"
        for line in "".join(path.read_text() for path in kept.iterdir()).splitlines():
            if line:
                answer = json.loads(line)
                what = "a hook's line in a report" if "hook" in answer else "a report"
                self.add(f"fields of {what}", fields(answer))

    # -- what was noted on the way ---------------------------------------------------------------

    def _noted(self) -> None:
        state = str(self.state / "hermes-supervise") + "/"
        runtime = self.env["XDG_RUNTIME_DIR"] + "/"
        transcript = os.path.realpath(self.folder / "chat.jsonl")
        claim = blake2b(os.fsencode(transcript), digest_size=16).hexdigest()
        for line in self._log.read_text().splitlines():
            kind, value = json.loads(line)
            if kind == "file" and value.startswith(state):
                name = normal(value.removeprefix(state))
                if name.endswith((".new", ".storing", "<pid>")):
                    continue  # a draft, which gets its name when it is whole
                if name.startswith("runs/<run>/"):
                    self.add("run folder", {name.removeprefix("runs/<run>/")})
                else:
                    self.add("state folder", {name})
            elif kind == "bind" and isinstance(value, str):
                if value.startswith("\0"):
                    name = value[1:].replace(claim, "<digest>")
                    self.add("abstract sockets", {name.replace(f"-{os.getuid()}-", "-<uid>-")})
                elif value.startswith(runtime):
                    name = normal(value.removeprefix(runtime))
                    if "<run>" in name:
                        self.add("folders", {"$XDG_RUNTIME_DIR/" + name})
            elif kind == "exec" and "hermes_supervise.supervisor" in value:
                at = value.index("hermes_supervise.supervisor")
                said = " ".join([*value[at - 2 : at + 1], value[at + 1]])
                self.add("internal commands", {said})
            elif kind == "meta" and len(value) == 2 and str(value[1]).startswith("{"):
                self.add("fields of a marker", fields(json.loads(value[1]), stop=("rows",)))
        self.add("folders", {"$XDG_STATE_HOME/hermes-supervise/"})


def whole_lines(path: Path) -> list[str]:
    """Those that have been written to their end."""
    if not path.exists():
        return []
    text = path.read_text()
    return [line for line in text[: text.rfind("\n") + 1].splitlines() if line]


def handshakes(data: bytes) -> Iterator[dict[str, Any]]:
    """The records with number 0 in a journal, by the layout in docs/protocol.md."""
    at = 0
    while data[at : at + 4] == b"\xf5HS\x01":
        size, number = (
            int.from_bytes(data[at + a : at + b], "little") for a, b in ((4, 8), (8, 16))
        )
        payload = data[at + 20 : at + 20 + size]
        at += 20 + size
        if number == 0:
            yield json.loads(payload)


def normal(name: str) -> str:
    """A name with what differs from run to run replaced by what it stands for."""
    name = re.sub(r"\d{8}-\d{6}-[0-9a-f]{8}", "<run>", name)
    name = re.sub(r"\b[0-9a-f]{32}\b", "<stream>", name)
    name = re.sub(r"(?<=^hermes_supervise:<stream>:).*", "<session>", name)
    name = re.sub(r"(?<=[./])\d{6}(?=\.log)", "<number>", name)
    name = re.sub(r"\b[0-9a-f]{12}\b", "<id>", name)
    return re.sub(r"(?<=[.-])\d+(?=\.new$|\.sock$|$)", "<pid>", name)


def fields(value: object, stop: tuple[str, ...] = (), at: str = "") -> set[str]:
    """The names of all fields in a piece of JSON, with their place; below `stop`, none."""
    if at in stop:
        return set()
    if isinstance(value, dict):
        found = set()
        for name, below in value.items():
            place = f"{at}.{name}" if at else name
            found |= {place} | fields(below, stop, place)
        return found
    if isinstance(value, list):
        return {name for item in value for name in fields(item, stop, f"{at}[]")}
    return set()
