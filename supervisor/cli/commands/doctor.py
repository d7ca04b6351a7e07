"""`hermes-supervise doctor`: checks this machine, and what would be captured of a command.

Never changes anything of the user's, and starts the agent only with `--prove`: in a home of its
own, against a model on loopback.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import shlex
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ....ipc import endpoint
from ...agents import node_guest, other_user, probe, registry, unknown
from ...agents.protocol import BAD, NOTE, OK
from ...agents.transcript_findings import findings
from ...model.text import printable
from ...process import cause, interpreter, launch, platform
from ...process.package import INJECTED_FOLDER
from ...storage import installs
from ...storage import run_folder as runs
from ...transcripts.settings import Settings, agent_to_follow, what_to_follow
from .. import options
from ..arguments import parse, settings_file
from ..errors import PROBLEMS, USAGE, CommandError, Parser
from ..output import style, table
from ..output.formatting import number
from ..output.patience import explained

if TYPE_CHECKING:
    from ...agents.protocol import Agent, WayIn

_STYLES = {OK: "green", NOTE: "yellow", BAD: "red"}
# What people read in place of the JSON name.
_SHOWN_NAMES = {"witness": "standby", "seam": "hook point"}
# Releases with a fix for a race of two writers and a checkpoint in WAL mode: from the first on, and
# later ones of these two branches.
_FIXED = (3, 51, 3)
_BACKPORTS = ((3, 50, 7), (3, 44, 6))


@dataclass
class Check:
    name: str
    state: str
    """ok; note: works, but there is something to know; bad: will not work"""
    text: str


def parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="hermes-supervise doctor",
        usage="%(prog)s [OPTIONS] [-- COMMAND [ARG...]]",
        description="Check this machine. With COMMAND: what would be captured of it?",
    )
    style.add_options(parser)
    parser.add_argument(
        "--prove",
        action="store_true",
        help="start the agent for real, in a scratch home against a scripted model on this "
        "machine; kill it in the middle of a reply and of a tool call, recover it, and say what "
        "is kept",
    )
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="COMMAND",
        help="the agent's command line; it is not started without --prove",
    )
    return parser


def main(argv: list[str]) -> int:
    args = parser().parse_args(argv)
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if args.prove and not command:
        raise CommandError("--prove needs an agent: doctor --prove -- COMMAND", USAGE)
    with explained("still looking: starting the agent's interpreter takes a while"):
        checks = here()
        if command:
            checks += of_command(command)
    if args.prove and all(check.name != "command" or check.state == OK for check in checks):
        from ..proof.trial import prove  # only with --prove

        with explained("still trying it out: the agent is started and killed, twice"):
            checks += [Check(*finding) for finding in prove(command)]
    well = all(check.state != BAD for check in checks)
    if args.json:
        print(json.dumps({"well": well, "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        styled = style.for_output(args)
        room = None if styled.width is None else max(20, styled.width - 6)
        for check in _summed_up(checks):
            name = _SHOWN_NAMES.get(check.name, check.name)
            state = styled(check.state, _STYLES[check.state]) + " " * (5 - len(check.state))
            for line in table.fold(f"{name}: {printable(check.text)}", room, "  "):
                print(f"{state} {line}")
                state = " " * 5
        print("\nEverything works." if well else "\nSomething will not work: see `bad` above.")
    return 0 if well else PROBLEMS


def _summed_up(checks: list[Check]) -> list[Check]:
    """For people: working hook points are only counted; each gap gets a line."""
    checks = [check for check in checks if check.name != "capability" or check.state != OK]
    holding = [check for check in checks if check.name == "seam" and check.state == OK]
    if not holding:
        return checks
    tapped = sum(check.text.endswith(" holds") for check in holding)
    text = f"{tapped} methods instrumented"
    if absent := len(holding) - tapped:
        text += f"; {absent} more do not exist in this release"
    at = checks.index(holding[0])
    rest = [check for check in checks[at:] if check not in holding]
    return [*checks[:at], Check("hook points", OK, text), *rest]


# -- this machine ------------------------------------------------------------------------------


def here() -> list[Check]:
    return [
        _tried("state folder", _state_folder),
        _tried("socket", _socket),
        _tried("watching processes", _watching, otherwise=NOTE),
        _tried("processes", _processes, otherwise=NOTE),
        _tried("orphans", _subreaper, otherwise=NOTE),
        _tried("witness", _standby, otherwise=NOTE),
        _tried("settings", _settings),
        _tried("database", _database),
        _tried("search index", _search_index),
        _tried("leftovers", _leftovers),
        _tried("out of memory", _oom_counter),
    ]


def _tried(name: str, check: Callable[[], str | Check], otherwise: str = BAD) -> Check:
    try:
        result = check()
    except Exception as error:
        return Check(name, otherwise, str(error) or type(error).__name__)
    return result if isinstance(result, Check) else Check(name, OK, result)


def _state_folder() -> str:
    folder = runs.runs_folder()
    path = os.path.join(folder, f".doctor.{os.getpid()}")
    try:
        with open(path, "xb") as file:
            try:
                file.write(b"x")
                file.flush()
                os.fsync(file.fileno())
            finally:
                os.unlink(path)
    except OSError as error:
        raise OSError(f"cannot write to {folder}: {error.strerror}; {_remedy(error)}") from None
    return f"{os.path.dirname(folder)} is writable"


def _remedy(error: OSError) -> str:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return f"{'make room' if full else 'make it writable'}, or move it with XDG_STATE_HOME"


def _socket() -> str:
    from ...ingest.listener import Listener  # tried here: it may fail to load

    listener = Listener(f"doctor-{os.getpid()}")
    listener.close()
    return f"can be bound in {os.path.dirname(listener.path)}"


def _watching() -> str:
    watched = platform.watch(os.getpid(), None)
    if watched is None or watched.fileno() is None:
        raise OSError("processes are polled twice a second; Linux 5.3 or newer reports deaths")
    watched.close()
    return "the kernel reports deaths at once"


def _processes() -> str:
    if not platform.sees_processes():
        raise OSError(
            "/proc is missing or belongs to other processes, so an agent behind a launcher is "
            "known only once it sends something, and what a dead agent leaves running is not "
            "listed; mount it: mount -t proc proc /proc"
        )
    return "can be looked at"


def _subreaper() -> str:
    platform.become_subreaper()
    if not platform.is_subreaper():
        raise OSError("processes that a dead agent leaves behind cannot be seen; Linux shows them")
    return "processes that a dead agent leaves behind can be seen"


def _standby() -> str:
    from ...process.loop import Loop  # tried here: it may fail to load
    from ...process.signals import Standby  # the same

    try:
        standby = Standby()
        standby.start(Loop(), lambda number: None)
        standby.stop()
    except OSError as error:
        raise OSError(
            f"cannot be forked: {error}; raise the limit of processes (ulimit -u)"
        ) from None
    return "can be forked"


def _database() -> Check:
    import apsw  # tried here: it may fail to load

    version = apsw.sqlite_lib_version()
    text = f"apsw {apsw.apsw_version()} with SQLite {version}"
    return _about_sqlite("database", text, version, "pip install --upgrade apsw")


def _about_sqlite(name: str, text: str, version: str, remedy: str) -> Check:
    numbers = tuple(int(part) for part in version.split(".")[:3])
    is_fixed = numbers >= _FIXED or any(
        numbers[:2] == fixed[:2] and numbers >= fixed for fixed in _BACKPORTS
    )
    if is_fixed:
        return Check(name, OK, text)
    why = (
        "; before 3.51.3 (or 3.50.7, 3.44.6) a rare race between two writers and a "
        f"checkpoint can damage a database in WAL mode; {remedy}"
    )
    return Check(name, NOTE, text + why)


def _search_index() -> str:
    import apsw  # tried here: it may fail to load

    db = apsw.Connection(":memory:")
    db.execute("CREATE VIRTUAL TABLE one USING fts5(content)")
    db.execute("CREATE VIRTUAL TABLE two USING fts5(content, tokenize='trigram')")
    db.close()
    return "FTS5 and its trigram tokenizer are available"


def _leftovers() -> str | Check:
    runs.runs_folder()  # raises if it cannot be used: that is not "none"
    waiting, broken = [], []
    for folder in runs.left_behind():
        run = runs.claim(folder)
        if run is None:
            continue
        if not runs.has_nothing_to_recover(run):
            waiting.append(run.name)
            if (why := _broken(run)) is not None:
                broken.append(f"{run.folder}: {why}")
        run.release()
    if not waiting:
        return "none"
    text = f"{len(waiting)} to recover; run `hermes-supervise recover`, or start an agent"
    if not broken:
        return Check("leftovers", NOTE, text)
    return Check("leftovers", BAD, f"{text}; {len(broken)} damaged: {'; '.join(broken)}")


def _broken(run: runs.Run) -> str | None:
    """Why a run cannot be recovered as a whole; None if nothing is known to be damaged."""
    from ...recovery.gather import gather  # only if a run waits

    if runs.settings(run).get("lost"):
        return "run.json cannot be read; default settings will be used"
    damaged = [name for stream in run.streams() for name in gather(run.folder, stream).damaged]
    return f"{', '.join(damaged)} damaged; a copy will be kept" if damaged else None


def _settings() -> str | Check:
    chosen, _ = parse([])  # raises for a variable with which no agent would be started
    if chosen.problems:
        count = number(len(chosen.problems), "error")
        text = f"{count} in the settings: {'; '.join(chosen.problems)}"
        return Check("settings", BAD, f"{text}; `hermes-supervise config` shows what is used")
    file = settings_file()
    return f"{file} is valid" if os.path.exists(file) else "no config.toml; defaults are used"


def _oom_counter() -> str | Check:
    if cause.oom_kills() is None:
        text = (
            "the kernel has no readable counter, so an out-of-memory kill looks like any SIGKILL; "
            "a control group with memory accounting has one (systemd-run --user --scope)"
        )
        return Check("out of memory", NOTE, text)
    return "the kernel's counter is readable"


# -- a command ---------------------------------------------------------------------------------


def _why_it_cannot_run(name: str) -> str:
    if os.path.isdir(name) and os.sep in name:
        return "is a directory; name a program in it"
    if os.sep in name and os.path.exists(name):
        return f"not executable; run: chmod +x {shlex.quote(name)}"
    if os.sep in name:
        return "there is no such file"
    return "not found on your PATH; install it, or give its full path"


def of_command(command: list[str]) -> list[Check]:
    path = shutil.which(command[0])
    if path is None:
        return [Check("command", BAD, f"{command[0]}: {_why_it_cannot_run(command[0])}")]
    agent = registry.recognised(command)
    checks = [Check("command", OK, path)]
    if (becomes := other_user.becomes(command)) is not None:
        return [*checks, Check("user", BAD, other_user.why(*becomes))]
    env = launch.environment("", "")
    ways = agent.ways_in(command, env, INJECTED_FOLDER)
    checks += _ways_in(ways)
    try:
        checks += _transcripts(command, agent)
    except options.UsageError as error:
        checks.append(Check("settings", BAD, str(error)))
    if agent.writes_transcripts:
        return checks
    behind = next((way.command for way in ways if way.taken), command)
    found = interpreter.of(behind)
    if found is None:
        return checks + _not_python(command, agent)
    entry = f", which runs {found.entry}" if found.entry else ""
    checks.append(Check("interpreter", OK, f"{found.python}{entry}"))
    if found.deaf is not None:
        text = f"with {found.deaf}, Python ignores PYTHONPATH and sitecustomize, "
        checks.append(Check("shim", BAD, text + "so the agent is supervised but not captured"))
    answer = probe.ask(found, injected=agent.injected, bootstrap=agent.bootstrap(behind))
    if isinstance(answer, str):
        return [*checks, Check("interpreter", BAD, answer)]
    if answer["sqlite"]:
        name = "the agent's database"
        remedy = "run the agent with a Python that has a newer SQLite"
        text = f"SQLite {answer['sqlite']}"
        checks.append(_about_sqlite(name, text, answer["sqlite"], remedy))
    if found.deaf is None:
        checks.append(_shim(bool(answer["shim"])))
    if agent.injected:
        at = agent.recognise(command) or 1
        _remember(path, command[1:at], agent, answer)
        inner = agent.inner_findings(answer, command[at:])
        return checks + [Check(*found) for found in inner]
    return checks + _other_python(bool(answer["sdk"]), deaf=found.deaf is not None)


def _ways_in(ways: list[WayIn]) -> list[Check]:
    """Each way in, with the reason why it is taken or not. If none is taken, the check fails."""
    checks = []
    taken = any(way.taken for way in ways)
    for way in ways:
        used = "yes" if way.taken else "maybe" if way.uncertain else "no"
        checks.append(Check("way in", OK if taken else BAD, f"{way.name}: {used}, {way.reason}"))
    return checks


def _remember(path: str, words: list[str], agent: Agent, answer: dict[str, Any]) -> None:
    """Note it for the next launch, which has no time to find it out."""
    try:
        start = [os.path.abspath(path), *words]  # as run/capture.py names it
        installs.remember(start, [start[0], *answer["files"]], agent.losses(answer))
    except OSError:
        pass  # it is only not said before the start


def _transcripts(command: list[str], agent: Agent) -> list[Check]:
    """What would be read from the files that the agent writes, or that the user named."""
    chosen = parse([])[0]
    noted = what_to_follow(command, chosen)
    if not noted:
        left_alone = agent.writes_transcripts
        text = "its transcripts are not read because of --agent none; leave that option out"
        return [Check("agent", NOTE, text)] if left_alone else []
    settings = Settings({"command": command, "cwd": os.getcwd(), "started": 0.0, **noted})
    readers = [registry.named(agent_to_follow(command, chosen)), registry.plain_lines()]
    place = settings.place()
    place.may_tap = not chosen.no_tap
    place.is_recognised = agent.name == agent_to_follow(command, chosen)
    found = [Check(*finding) for reader in readers for finding in findings(reader, place)]
    return [check for at, check in enumerate(found) if check not in found[:at]]


def _not_python(command: list[str], agent: Agent) -> list[Check]:
    if agent.injected:
        text = (
            "cannot determine which Python it starts, so nothing was tried in it; name its Python "
            "to check it: hermes-supervise doctor -- PYTHON SCRIPT"
        )
        return [Check("interpreter", NOTE, text)]
    is_node = unknown.is_node(command, os.environ)
    if (title := unknown.title_of(command)) is not None:
        text = unknown.why(title, has_guest=is_node)
        return [Check("agent", NOTE if is_node else BAD, text)]
    text = (
        "it is captured only if it uses the protocol (docs/protocol.md), or with --watch, which "
        "reads its transcript"
    )
    if not is_node:
        return [Check("agent", NOTE, f"not Python; {text}")]
    why = node_guest.restricted(command, os.environ)
    if why is None and parse([])[0].no_tap:
        why = "--no-tap leaves our guest in Node out"
    if why is not None:
        return [Check("agent", NOTE, f"Node; {why}, so {text}")]
    text = (
        "Node; its conversation is captured as far as it asks its model through fetch or http, as "
        "the SDKs of OpenAI, Anthropic and Google do, or uses the protocol (docs/protocol.md)"
    )
    return [Check("agent", OK, text)]


def _shim(gets_in: bool) -> Check:
    if os.environ.get(endpoint.SWITCH_VARIABLE) == "0":
        return Check("shim", BAD, "switched off by HERMES_SUPERVISE=0; unset that variable")
    if gets_in:
        return Check("shim", OK, "can be injected into that interpreter")
    return Check(
        "shim",
        BAD,
        "cannot be injected: that interpreter runs another sitecustomize, or none; start it "
        "without -I, -E or -S, and without that file on its path",
    )


def _other_python(sdk: bool, *, deaf: bool) -> list[Check]:
    if deaf:
        text = (
            "Python; captured only if it uses the SDK and has it installed; leave out the option "
            "that isolates Python to do without an installation"
        )
        return [Check("agent", NOTE, text)]
    if sdk:
        text = (
            "Python; captured as far as it uses the SDK, which it can import, or asks its model "
            "through httpx, as the SDKs of OpenAI and Anthropic do"
        )
        return [Check("agent", OK, text)]
    return [Check("agent", BAD, "Python; it cannot import the SDK")]
