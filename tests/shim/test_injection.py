"""The injection: every Python below a supervised command starts as if we were not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hermes_supervise import agent_shim
from interpreters import interpreters
from support import DEADLINE, World, short

SHIM = Path(agent_shim.__file__).parent
INJECTED = str(SHIM / "inject")
HOME = str(SHIM.parent)

# All that stays, at the ends of `sys.meta_path`: objects that wait for an import of
# `hermes_supervise`, or of an agent that we know.
LEFT_BEHIND = ("_ImportHook", "_LastResort")

every_python = pytest.mark.parametrize("python", interpreters().values(), ids=interpreters().keys())


def start(
    world: World, python: str, *arguments: str, injected: bool, path: str = ""
) -> tuple[int, str, str]:
    """How a Python ends and what it prints, with or without us, under a user's PYTHONPATH."""
    env = world.env | {"PYTHONDONTWRITEBYTECODE": "1"}
    entries = [INJECTED] * injected + [path] * bool(path)
    if entries:
        env["PYTHONPATH"] = os.pathsep.join(entries)
    if injected:
        env["HERMES_SUPERVISE_SOCKET"] = str(world.folder / "nobody.sock")
        env["HERMES_SUPERVISE_SPOOL"] = str(world.folder)
    ran = subprocess.run(
        [python, *arguments],
        env=env, cwd=world.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=DEADLINE,
    )  # fmt: skip
    return ran.returncode, ran.stdout, ran.stderr


def bare(world: World) -> tuple[str, Path]:
    """A virtual environment with nothing in it: its interpreter, and where packages would go."""
    home = world.folder / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    [packages] = home.glob("lib/python*/site-packages")
    return str(home / "bin" / "python"), packages


# -- unrelated interpreters ----------------------------------------------------------------

STATE = """
import json, sys
print(json.dumps({
    "path": sys.path,
    "modules": sorted(sys.modules),
    "meta": [getattr(f, "__name__", type(f).__name__) for f in sys.meta_path],
    "hooks": len(sys.path_hooks),
    "argv": sys.argv,
    "flags": repr(sys.flags),
}))
"""


@every_python
@pytest.mark.parametrize("path", ["", "elsewhere"])
def test_an_unrelated_python_starts_as_without_us(world: World, python: str, path: str) -> None:
    plain = start(world, python, "-c", STATE, "an argument", injected=False, path=path)
    code, output, errors = start(
        world, python, "-c", STATE, "an argument", injected=True, path=path
    )
    assert (code, errors) == (plain[0], plain[2])
    before, after = json.loads(plain[1]), json.loads(output)
    after["meta"] = [name for name in after["meta"] if name not in LEFT_BEHIND]
    assert after == before


@every_python
def test_it_prints_nothing_and_ends_with_its_own_status(world: World, python: str) -> None:
    for code in ("pass", "import sys; sys.exit(7)", "raise KeyError('mine')"):
        plain = start(world, python, "-c", code, injected=False)
        assert start(world, python, "-c", code, injected=True) == plain


@pytest.mark.parametrize("switch", ["-I", "-E", "-S", "-IS", "-P", "-OO"])
def test_switches_that_isolate_python_isolate_it_from_us(world: World, switch: str) -> None:
    _, plain, _ = start(world, sys.executable, switch, "-c", STATE, injected=False)
    code, output, errors = start(world, sys.executable, switch, "-c", STATE, injected=True)
    assert (code, errors) == (0, "")
    before, after = json.loads(plain), json.loads(output)
    if switch in ("-P", "-OO"):
        after["meta"] = [name for name in after["meta"] if name not in LEFT_BEHIND]
    elif switch == "-S":
        # Nobody asks for a sitecustomize, so nobody takes the folder off again.
        after["path"].remove(INJECTED)
    assert after == before


# -- the sitecustomize that ours shadows ---------------------------------------------------

CUSTOM = f"""
import sys
import helper_of_mine
print(__name__, __file__.replace(".pyc", ".py"), {INJECTED!r} in sys.path, helper_of_mine.__name__)
sys.modules["left by mine"] = sys
"""
LOOK = "import sys, sitecustomize; print(sitecustomize.__file__, 'left by mine' in sys.modules)"


def customize(folder: Path, source: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(source)
    (folder / "helper_of_mine.py").write_text("")
    return str(folder)


@every_python
def test_a_users_own_sitecustomize_still_runs(world: World, python: str) -> None:
    path = customize(world.folder / "custom", CUSTOM)
    plain = start(world, python, "-c", LOOK, injected=False, path=path)
    assert start(world, python, "-c", LOOK, injected=True, path=path) == plain
    code, output, errors = plain
    own = path + "/sitecustomize.py"
    first, second = output.replace("('", "").splitlines()
    assert (code, errors) == (0, "")
    assert own in first and "helper_of_mine" in first and "False" in first
    assert own in second and "True" in second


def test_a_sitecustomize_in_site_packages_still_runs(world: World) -> None:
    python, packages = bare(world)
    customize(packages, CUSTOM)
    plain = start(world, python, "-c", LOOK, injected=False)
    assert start(world, python, "-c", LOOK, injected=True) == plain
    assert plain[0] == 0


def test_a_usercustomize_still_runs(world: World) -> None:
    folder = world.folder / "custom"
    folder.mkdir()
    (folder / "usercustomize.py").write_text("print('user')")
    python = os.path.realpath(sys.executable)  # a virtual environment switches it off
    plain = start(world, python, "-c", "print('main')", injected=False, path=str(folder))
    assert plain == (0, "user\nmain\n", "")
    assert start(world, python, "-c", "print('main')", injected=True, path=str(folder)) == plain


@every_python
@pytest.mark.parametrize(
    "source",
    [
        "raise RuntimeError('mine')",
        "import not_there_at_all",
        "import sys; print('leaving'); sys.exit(9)",
        "this is not Python",
    ],
    ids=["raises", "misses an import", "exits", "cannot be read"],
)
def test_a_broken_sitecustomize_fails_as_without_us(world: World, python: str, source: str) -> None:
    path = customize(world.folder / "custom", source)
    after = "import sys; print('main', 'sitecustomize' in sys.modules)"
    code, output, errors = start(world, python, "-c", after, injected=False, path=path)
    ours = start(world, python, "-c", after, injected=True, path=path)
    # A traceback shows our line between the site module's and the culprit's.
    assert (*ours[:2], _last(ours[2])) == (code, output, _last(errors))


def _last(errors: str) -> str:
    return errors.strip().rpartition("\n")[2]


# -- the SDK where nothing is installed ----------------------------------------------------

IMPORT = "from hermes_supervise.agent_shim import session; print(session.__module__)"


def test_the_sdk_is_there_under_supervision_and_only_then(world: World) -> None:
    python, _ = bare(world)
    code, _, errors = start(world, python, "-c", IMPORT, injected=False)
    assert code == 1 and "ModuleNotFoundError: No module named 'hermes_supervise'" in errors
    answer = start(world, python, "-c", IMPORT, injected=True)
    assert answer == (0, "hermes_supervise.agent_shim.sdk\n", "")


def test_an_installed_copy_wins(world: World) -> None:
    python, packages = bare(world)
    own = packages / "hermes_supervise" / "agent_shim"
    own.mkdir(parents=True)
    (own / "__init__.py").write_text("def session(): pass")
    answer = start(world, python, "-c", IMPORT, injected=True)
    assert answer == (0, "hermes_supervise.agent_shim\n", "")


def test_an_agent_in_an_empty_environment_is_recovered(world: World) -> None:
    python, _ = bare(world)
    script = world.script("chat = session('chat')\nchat.delta('half a')\nready()\nforever()\n")
    agent = world.run([python, script])
    agent.wait_for("ready")
    agent.kill_agent()
    agent.finish()
    assert short(world.messages("chat")) == [("assistant", "half a")]


@every_python
def test_older_pythons_speak_or_do_not_but_none_breaks(world: World, python: str) -> None:
    """From 3.8 on the SDK works; before, it is simply not there."""
    ask = """
import sys
try:
    from hermes_supervise.agent_shim import session
except ImportError:
    print(sys.version_info < (3, 8))
else:
    with session("chat") as chat:
        chat.message("user", {"odd": {1}})
        chat.delta("half a")
        with chat.tool("look") as tool:
            tool.result = 5
    from hermes_supervise.agent_shim import sdk
    print(sdk.connection().faults == 0)
"""
    assert start(world, python, "-c", ask, injected=True) == (0, "True\n", "")


def test_the_shim_needs_nothing_but_the_standard_library(world: World) -> None:
    """In `python -I -S`, used to the full, with nobody at the other end."""
    package = world.folder / "importable" / "hermes_supervise"
    package.mkdir(parents=True)
    for name in ("ipc", "agent_shim"):
        (package / name).symlink_to(Path(HOME) / name)
    ask = f"""
import os, sys
sys.path.insert(0, {str(package.parent)!r})
os.environ["HERMES_SUPERVISE_SOCKET"] = os.environ["HERMES_SUPERVISE_SPOOL"] = "/nowhere"
import hermes_supervise.ipc.endpoint, hermes_supervise.ipc.frames, hermes_supervise.ipc.records
from hermes_supervise.agent_shim import link, sdk, session
with session("chat") as chat:
    chat.message("user", "hello")
    chat.delta("half a")
    with chat.tool("look") as tool:
        tool.result = "seen"
assert sdk.connection().faults == 0
names = {{name.partition(".")[0] for name in sys.modules}}
print(sorted(names - set(sys.stdlib_module_names)))
"""
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", ask], capture_output=True, text=True, env=world.env
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == "['__main__', 'hermes_supervise']\n"
