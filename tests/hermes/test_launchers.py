"""Launcher scripts are understood whole or run untouched; isolation is kept without its switch."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hermes_supervise import agent_shim
from hermes_supervise.ipc import isolation
from hermes_supervise.ipc.launchers import Launcher, followed
from hermes_supervise.supervisor.agents import registry
from support import DEADLINE

INJECTED = str(Path(agent_shim.__file__).parent / "inject")
PYTHON = sys.executable


def script(folder: Path, text: str, name: str = "hermes") -> str:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f'#!/usr/bin/env bash\nunset PYTHONPATH\nexec "{PYTHON}" "/a b/hermes" "$@"\n',
         [PYTHON, "/a b/hermes"]),
        (f'#!/bin/sh\n# a comment; ours\nunset PYTHONPATH; exec {PYTHON} /h "$@"', [PYTHON, "/h"]),
        (f'#!/bin/bash\nunset PYTHONPATH PYTHONHOME\nexec \\\n  {PYTHON} "/h \\"q\\"" "$@"\n',
         [PYTHON, '/h "q"']),
        (f'#!/bin/sh\nunset PYTHONPATH\nexec {PYTHON} "$HOME/h" "$@"\n',
         [PYTHON, os.path.expanduser("~/h")]),
        (f"#!/bin/sh\nexec {PYTHON} -I -c 'a\nb=\"$@\"; c'\"'\"'d' \"$@\"\n",
         [PYTHON, "-I", "-c", "a\nb=\"$@\"; c'd"]),
    ],
)  # fmt: skip
def test_a_script_that_only_clears_variables_and_executes_is_understood(
    tmp_path: Path, text: str, words: list[str]
) -> None:
    found = followed([script(tmp_path, text), "an argument", "-I"])
    assert isinstance(found, Launcher)
    assert found.command == [*words, "an argument", "-I"]
    assert found.keeps_us_out


@pytest.mark.parametrize(
    "lines",
    [
        '. /etc/profile\nexec {python} /h "$@"',
        'export A=b\nexec {python} /h "$@"',
        'A=b exec {python} /h "$@"',
        'exec {python} /h $@',
        'exec {python} /h "$@" more',
        'exec {python} /h',
        'exec {python} "$(dirname "$0")/h" "$@"',
        'exec {python} "$HOMES/h" "$@"',
        'exec -a name {python} /h "$@"',
        'exec python3 /h "$@"',
        'if true; then exec {python} /h "$@"; fi',
        'exec {python} /h "$@" 2>/dev/null',
        'exec {python} "unterminated /h $@',
        'exec /bin/cat "$@"',
        'exec /nonexistent/python "$@"',
    ],
)  # fmt: skip
def test_a_script_of_another_shape_runs_untouched(tmp_path: Path, lines: str) -> None:
    text = "#!/bin/sh\nunset PYTHONPATH\n" + lines.replace("{python}", PYTHON) + "\n"
    command = [script(tmp_path, text), "an argument"]
    assert isinstance(followed(command), str), "and the reason is known"
    assert registry.named("hermes").way_in(command, {"A": "b"}, INJECTED) == (command, {"A": "b"})


def test_scripts_that_lead_in_a_circle_run_untouched(tmp_path: Path) -> None:
    command = [script(tmp_path, f'#!/bin/sh\nexec {tmp_path}/hermes "$@"\n')]
    assert isinstance(followed(command), str)
    assert registry.named("hermes").way_in(command, {}, INJECTED) == (command, {})


def test_what_keeps_nobody_out_runs_untouched(tmp_path: Path) -> None:
    entry = script(tmp_path, f"#!{PYTHON}\n", "entry/hermes")
    for text in (f'#!/bin/sh\nexec {entry} "$@"\n', f"#!{PYTHON}\nprint('unset PYTHONPATH')\n"):
        command = [script(tmp_path, text)]
        assert registry.named("hermes").way_in(command, {}, INJECTED) == (command, {})


def test_a_console_script_of_uv_ends_the_chain(tmp_path: Path) -> None:
    entry = script(
        tmp_path,
        "#!/bin/sh\n"
        "'''exec' \"$(dirname -- \"$(realpath -- \"$0\")\")\"/'python3' \"$0\" \"$@\"\n' '''\n",
        "entry/hermes",
    )
    command = [script(tmp_path, f'#!/bin/sh\nunset PYTHONPATH\nexec "{entry}" "$@"\n'), "x"]
    assert registry.named("hermes").way_in(command, {}, INJECTED) == (
        [entry, "x"],
        {"PYTHONPATH": INJECTED},
    )


@pytest.mark.parametrize(
    ("options", "found", "left"),
    [
        (["-I"], "I", []),
        (["-IB", "-u"], "I", ["-B", "-u"]),
        (["-W", "ignore", "-E", "-X", "utf8"], "E", ["-W", "ignore", "-X", "utf8"]),
        (["-WI", "-XE=S"], "", ["-WI", "-XE=S"]),
        (["--check-hash-based-pycs", "always", "-I"], "I", ["--check-hash-based-pycs", "always"]),
    ],
)
def test_only_the_switches_in_the_way_are_dropped(
    options: list[str], found: str, left: list[str]
) -> None:
    words = [PYTHON, *options, "-c", "code", "-I"]
    assert isolation.switches(words) == found
    admitted = isolation.admitting(words, {}, INJECTED)
    assert admitted is None if not found else admitted[0] == [PYTHON, *left, "-c", "code", "-I"]
    assert isolation.admitting([PYTHON, "-I", "-S", "-c", "code"], {}, INJECTED) is None


LOOK = """
import json, os, site, sys
print(json.dumps({
    "env": {name: value for name, value in os.environ.items() if name != "LC_CTYPE"},
    "path": sys.path, "argv": sys.argv, "user": site.ENABLE_USER_SITE,
    "flags": [sys.flags.safe_path, sys.flags.no_user_site, sys.flags.optimize, sys.flags.utf8_mode],
    "in": "_ImportHook" in [type(finder).__name__ for finder in sys.meta_path],
    "modules": sorted(sys.modules),
}))
"""


@pytest.mark.parametrize("switch", ["-I", "-E"])
def test_an_isolated_python_is_as_isolated_as_it_would_have_been(
    tmp_path: Path, switch: str
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('the folder that we are in is searched')")
    users = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(tmp_path / "mine"),
        "PYTHONOPTIMIZE": "2",
        "PYTHONSAFEPATH": "",
        "PYTHONSTARTUP": "100% \x1f of it\n",
        "PYTHONUTF8": "1",
    }
    folder = tmp_path / "elsewhere"
    folder.mkdir()

    def start(words: list[str], env: dict[str, str]) -> dict[str, object]:
        where = tmp_path if switch == "-I" else folder
        ran = subprocess.run(
            words, env=env, cwd=where, capture_output=True, text=True, timeout=DEADLINE
        )
        assert ran.returncode == 0, (shlex.join(words[:2]), ran.stderr)
        found: dict[str, object] = json.loads(ran.stdout)
        return found

    words = [PYTHON, switch, "-c", LOOK, "an argument"]
    plain = start(words, users)
    ours = users | {
        "PYTHONPATH": INJECTED + os.pathsep + users["PYTHONPATH"],
        "HERMES_SUPERVISE_SOCKET": str(tmp_path / "nobody.sock"),
    }
    admitted = isolation.admitting(words, ours, INJECTED)
    assert admitted is not None
    inside = start(*admitted)
    assert (plain.pop("in"), inside.pop("in")) == (False, True)
    assert (plain.pop("env"), inside.pop("env")) == (users, ours), "as another supervised Python"
    assert inside == plain
