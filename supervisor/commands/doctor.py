"""`hermes-supervise doctor`: is everything in place here, and what would be captured?

Never changes anything of the user's, and never starts the agent.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass

from ...ipc import endpoint
from .. import cause, interpreter, launch, options, recognise
from .. import run as runs
from ..adapters import hermes_doctor, hermes_launcher
from ..text import printable
from ..watchers import doctor as watchers
from . import paint, table

OK, NOTE, BAD = "ok", "note", "bad"
_STYLES = {OK: "green", NOTE: "yellow", BAD: "red"}
# Releases that mend two writers and a checkpoint losing a commit, or more, in WAL mode: from
# the first on, and later ones of these two branches.
_MENDED = (3, 51, 3)
_BACKPORTS = ((3, 50, 7), (3, 44, 6))


@dataclass
class Check:
    name: str
    state: str
    """ok; note: works, with something to know; bad: will not work"""
    text: str


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="hermes-supervise doctor",
        usage="%(prog)s [OPTIONS] [-- COMMAND [ARG...]]",
        description="Is everything in place here? With COMMAND: what would be captured of it?",
    )
    paint.add_options(made)
    made.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="COMMAND",
        help="an agent's command line, as it would be supervised; it is not started",
    )
    return made


def main(arguments: list[str]) -> int:
    wanted = parser().parse_args(arguments)
    command = wanted.command[1:] if wanted.command[:1] == ["--"] else wanted.command
    checks = here()
    if command:
        checks += of_command(command)
    well = all(check.state != BAD for check in checks)
    if wanted.json:
        print(json.dumps({"well": well, "checks": [asdict(check) for check in checks]}, indent=2))
    else:
        brush = paint.chosen(wanted)
        room = None if brush.width is None else max(20, brush.width - 6)
        for check in _summed_up(checks):
            state = brush(check.state, _STYLES[check.state]) + " " * (5 - len(check.state))
            for line in table.fold(f"{check.name}: {printable(check.text)}", room, "  "):
                print(f"{state} {line}")
                state = " " * 5
        print("\nAll is well." if well else "\nSomething will not work; see the lines with `bad`.")
    return 0 if well else 1


def _summed_up(checks: list[Check]) -> list[Check]:
    """For people: the seams that hold are a number, and only those that do not have a line."""
    holding = [check for check in checks if check.name == "seam" and check.state == OK]
    if not holding:
        return checks
    tapped = sum(check.text.endswith(" holds") for check in holding)
    text = f"{tapped} of Hermes' methods will be listened to"
    if absent := len(holding) - tapped:
        text += f"; {absent} more are not in this release"
    at = checks.index(holding[0])
    rest = [check for check in checks[at:] if check not in holding]
    return [*checks[:at], Check("seams", OK, text), *rest]


# -- this machine ------------------------------------------------------------------------------


def here() -> list[Check]:
    return [
        _tried("state folder", _state_folder),
        _tried("socket", _socket),
        _tried("watching processes", _pidfd, otherwise=NOTE),
        _tried("orphans", _subreaper, otherwise=NOTE),
        _tried("witness", _witness, otherwise=NOTE),
        _tried("settings", _settings),
        _tried("database", _database),
        _tried("search index", _search_index),
        _tried("leftovers", _leftovers),
        _tried("out of memory", _oom_counter),
    ]


def _tried(name: str, check: Callable[[], str | Check], otherwise: str = BAD) -> Check:
    try:
        told = check()
    except Exception as error:
        return Check(name, otherwise, str(error) or type(error).__name__)
    return told if isinstance(told, Check) else Check(name, OK, told)


def _state_folder() -> str:
    folder = runs.runs_folder()
    path = os.path.join(folder, f".doctor.{os.getpid()}")
    with open(path, "xb") as file:
        try:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
        finally:
            os.unlink(path)
    return f"{os.path.dirname(folder)} can be written"


def _socket() -> str:
    from ..listener import Listener

    listener = Listener(f"doctor-{os.getpid()}")
    listener.close()
    return f"can be bound in {os.path.dirname(listener.path)}"


def _pidfd() -> str:
    if not hasattr(os, "pidfd_open"):
        raise OSError("no pidfds here; processes are asked twice a second whether they live")
    os.close(os.pidfd_open(os.getpid()))
    return "pidfd"


def _subreaper() -> str:
    import ctypes

    from ..signals import become_subreaper

    become_subreaper()
    found = ctypes.c_int(0)
    ctypes.CDLL(None).prctl(37, ctypes.byref(found), 0, 0, 0)  # PR_GET_CHILD_SUBREAPER
    if not found.value:
        raise OSError("what a dead agent leaves running is not handed to us, and not seen")
    return "what a dead agent leaves running is handed to us"


def _witness() -> str:
    from ..loop import Loop
    from ..signals import Witness

    witness = Witness()
    witness.attend(Loop(), lambda number: None)
    witness.dismiss()
    return "can be forked"


def _database() -> Check:
    import apsw

    version = apsw.sqlite_lib_version()
    text = f"apsw {apsw.apsw_version()} with SQLite {version}"
    return _about_sqlite("database", text, version)


def _about_sqlite(name: str, text: str, version: str) -> Check:
    numbers = tuple(int(part) for part in version.split(".")[:3])
    mended = numbers >= _MENDED or any(
        numbers[:2] == fixed[:2] and numbers >= fixed for fixed in _BACKPORTS
    )
    if mended:
        return Check(name, OK, text)
    why = (
        "; before 3.51.3 (or 3.50.7, 3.44.6) a rare race of two writers and a checkpoint can "
        "damage a database in WAL mode"
    )
    return Check(name, NOTE, text + why)


def _search_index() -> str:
    import apsw

    db = apsw.Connection(":memory:")
    db.execute("CREATE VIRTUAL TABLE one USING fts5(content)")
    db.execute("CREATE VIRTUAL TABLE two USING fts5(content, tokenize='trigram')")
    db.close()
    return "FTS5 and its trigram tokenizer are there"


def _leftovers() -> str | Check:
    runs.runs_folder()  # raises where it may not be used: that is not "none"
    waiting = []
    for folder in runs.left_behind():
        run = runs.claim(folder)
        if run is not None:
            waiting.append(run.name)
            run.release()
    if not waiting:
        return "none"
    text = f"{len(waiting)} waiting; the next start, or `hermes-supervise recover`, finishes them"
    return Check("leftovers", NOTE, text)


def _settings() -> str | Check:
    chosen, _ = options.parse([])  # raises for a variable with which no agent would be started
    if chosen.problems:
        return Check("settings", NOTE, "; ".join(chosen.problems))
    file = options.settings_file()
    return f"{file} is understood" if os.path.exists(file) else "no config.toml, which is fine"


def _oom_counter() -> str | Check:
    if cause.oom_kills() is None:
        text = "no counter to read here; an out-of-memory kill looks like any other SIGKILL"
        return Check("out of memory", NOTE, text)
    return "the kernel's counter can be read"


# -- a command ---------------------------------------------------------------------------------


def of_command(command: list[str]) -> list[Check]:
    path = shutil.which(command[0])
    if path is None:
        return [Check("command", BAD, f"{command[0]}: not found, or not executable")]
    behind = launch.seen_through(command)
    checks = [Check("command", OK, path)]
    if behind != command:
        text = f"a launcher script that clears PYTHONPATH; run directly: {shlex.join(behind[:2])}"
        checks.append(Check("launcher", OK, text))
    elif (cleared := _clears_the_path(path)) is not None:
        checks.append(Check("launcher", BAD, cleared))
    is_hermes = hermes_launcher.is_hermes(command)
    try:
        checks += [Check(*told) for told in watchers.checks(command, options.parse([])[0])]
    except options.UsageError as error:
        checks.append(Check("settings", BAD, str(error)))
    if recognise.agent_of(command) is not None:
        return checks
    found = interpreter.of(behind)
    if found is None:
        return checks + _not_python(is_hermes)
    entry = f", which runs {found.entry}" if found.entry else ""
    checks.append(Check("interpreter", OK, f"{found.python}{entry}"))
    if found.deaf is not None:
        text = f"started with {found.deaf}, Python does not read PYTHONPATH or sitecustomize, "
        checks.append(Check("shim", BAD, text + "so the agent is supervised, but not followed"))
    told = hermes_doctor.ask(found, hermes=is_hermes)
    if isinstance(told, str):
        return [*checks, Check("interpreter", BAD, told)]
    if told["sqlite"]:
        name = "the agent's database"
        checks.append(_about_sqlite(name, f"its SQLite is {told['sqlite']}", told["sqlite"]))
    if found.deaf is None:
        checks.append(_shim(bool(told["shim"])))
    if is_hermes:
        return checks + _hermes(told, behind)
    return checks + _other_python(bool(told["sdk"]), deaf=found.deaf is not None)


def _clears_the_path(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            text = file.read(8192)
    except OSError:
        return None
    if text.startswith(b"#!") and b"unset PYTHONPATH" in text:
        return "a script that clears PYTHONPATH and is not understood; the shim cannot get in"
    return None


def _not_python(is_hermes: bool) -> list[Check]:
    if is_hermes:
        text = "which Python it starts cannot be told from outside, so nothing was tried in it"
        return [Check("interpreter", NOTE, text)]
    text = "not Python; it speaks the wire (docs/protocol.md) only if it does so itself"
    return [Check("agent", NOTE, text)]


def _shim(gets_in: bool) -> Check:
    if os.environ.get(endpoint.SWITCH_VARIABLE) == "0":
        return Check("shim", BAD, "switched off by HERMES_SUPERVISE=0")
    if gets_in:
        return Check("shim", OK, "gets into that interpreter")
    return Check(
        "shim", BAD, "does not get in: that interpreter runs another sitecustomize, or none"
    )


def _other_python(sdk: bool, *, deaf: bool) -> list[Check]:
    if deaf:
        text = "Python; it is followed only if it uses the SDK, and has it installed"
        return [Check("agent", NOTE, text)]
    if sdk:
        text = "Python; it is followed as far as it uses the SDK, which can be imported in it"
        return [Check("agent", OK, text)]
    return [Check("agent", BAD, "Python; the SDK cannot be imported in it")]


def _hermes(told: dict[str, object], behind: list[str]) -> list[Check]:
    checks = [Check("agent", OK, f"Hermes {told['version'] or '(its version cannot be told)'}")]
    checks.append(Check("state.db", OK, hermes_doctor.state_db(_arguments(behind))))
    errors, seams = told["errors"], told["seams"]
    assert isinstance(errors, dict)
    assert isinstance(seams, list)
    for module, error in errors.items():
        checks.append(Check("agent", BAD, f"{module} cannot be imported: {error}"))
    if told["container"]:
        text = f"hands over to the container {told['container']}, where it cannot be followed"
        checks.append(Check("container", BAD, text))
    for name, state in seams:
        lost = ": what it told is not captured; all else is" if state == "missing" else ""
        checks.append(Check("seam", BAD if lost else OK, f"{name} {state}{lost}"))
    return checks


def _arguments(behind: list[str]) -> list[str]:
    """What Hermes itself is given: behind the interpreter's own words, if it is named."""
    if interpreter.is_python(behind[0]):
        for index, word in enumerate(behind[1:], 1):
            if word == "-m":
                return behind[index + 2 :]
            if not word.startswith("-"):
                return behind[index + 1 :]
    return behind[1:]
