"""What a release uploads: built, checked, installed by pip, pipx and uv in a path with a space.

Needs a package index, and minutes: `make test-wheel` runs it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from page_examples import examples

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(os.environ.get("WHEEL") != "all", reason="make test-wheel")


def call(*words: object, **env: object) -> str:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HERMES_", "PYTHONPATH"))}
    done = subprocess.run(
        [str(word) for word in words],
        env={**kept, **{name: str(value) for name, value in env.items()}},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with build, twine, pipx and uv."""
    folder = tmp_path_factory.mktemp("tools")
    call(sys.executable, "-m", "venv", folder)
    call(folder / "bin" / "pip", "install", "--quiet", "build", "twine", "pipx", "uv")
    return folder / "bin"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh checkout: what is under version control, as it is in the working tree."""
    source = tmp_path_factory.mktemp("with a space") / "source"
    names = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT).decode().split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name)
    return source


@pytest.fixture(scope="module")
def built(tools: Path, source: Path) -> Path:
    """The folder with wheel and source archive."""
    call(tools / "python", "-m", "build", "--outdir", source / "dist", source)
    return source / "dist"


def wheel_in(built: Path) -> Path:
    [wheel] = built.glob("*.whl")
    return wheel


def test_both_are_sound_and_hold_everything(tools: Path, built: Path) -> None:
    archives = sorted(built.iterdir())
    assert {path.suffix for path in archives} == {".whl", ".gz"} and len(archives) == 2
    assert call(tools / "twine", "check", "--strict", *archives).count("PASSED") == 2
    inside = zipfile.ZipFile(wheel_in(built)).namelist()
    modules = {str(p.relative_to(ROOT)) for room in ("ipc", "agent_shim", "supervisor")
               for p in (ROOT / room).rglob("*.py")}  # fmt: skip
    assert {f"hermes_supervise/{name}" for name in modules} <= set(inside)
    assert any(name.endswith("man/man1/hermes-supervise.1") for name in inside)
    [source] = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        assert any(name.endswith("/pyproject.toml") for name in archive.getnames())


def works(command: Path, home: Path) -> None:
    assert call(command, "--version", HOME=home).startswith("hermes-supervise ")
    shown = call(command, "demo", HOME=home, XDG_STATE_HOME=home / "state")
    assert "assistant (interrupted)" in shown
    assert "reason='killed by SIGKILL'" in shown


def test_installed_by_pip(built: Path, tmp_path: Path) -> None:
    folder = tmp_path / "my environment"
    call(sys.executable, "-m", "venv", folder)
    call(folder / "bin" / "pip", "install", "--quiet", wheel_in(built))
    works(folder / "bin" / "hermes-supervise", tmp_path)


def test_installed_by_pipx(tools: Path, built: Path, tmp_path: Path) -> None:
    home, commands = tmp_path / "my pipx", tmp_path / "my commands"
    call(tools / "pipx", "install", wheel_in(built), PIPX_HOME=home, PIPX_BIN_DIR=commands,
         PIPX_DEFAULT_PYTHON=sys.executable, HOME=tmp_path)  # fmt: skip
    works(commands / "hermes-supervise", tmp_path)


def test_installed_by_uv(tools: Path, built: Path, tmp_path: Path) -> None:
    folder, commands = tmp_path / "my tools", tmp_path / "my commands"
    call(tools / "uv", "tool", "install", "--python", sys.executable, wheel_in(built),
         UV_TOOL_DIR=folder, UV_TOOL_BIN_DIR=commands, HOME=tmp_path)  # fmt: skip
    works(commands / "hermes-supervise", tmp_path)


# How the README upgrades and uninstalls what each of its lines installs.
LATER = {
    "pipx": ("pipx install --force .", "pipx uninstall hermes-supervise"),
    "uv": ("uv tool install --reinstall .", "uv tool uninstall hermes-supervise"),
    "python3": ("~/.venvs/supervise/bin/pip install --upgrade .", "rm -r ~/.venvs/supervise"),
}


@pytest.mark.parametrize("tool", LATER)
def test_the_lines_of_the_readme_install_upgrade_and_uninstall(
    tools: Path, source: Path, tmp_path: Path, tool: str
) -> None:
    home = tmp_path / "my home"
    home.mkdir()
    [lines] = [
        example.typed()
        for example in examples("README.md")
        if example.text.startswith("pipx install")
    ]
    [install] = [line for line in lines if line.startswith(tool)]
    upgrade, uninstall = LATER[tool]
    assert upgrade.removeprefix("~/.venvs/supervise/bin/") in (ROOT / "README.md").read_text()
    path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {"HOME": home, "PATH": path, "PIPX_DEFAULT_PYTHON": sys.executable,
           "UV_PYTHON": sys.executable}  # fmt: skip
    command = home / (".venvs/supervise/bin" if tool == "python3" else ".local/bin")
    command /= "hermes-supervise"
    for line in (install, upgrade):
        call("bash", "-e", "-c", f"cd {shlex.quote(str(source))}; {line}", **env)
        works(command, home)
    call("bash", "-e", "-c", uninstall, **env)
    assert not command.exists()
    assert (home / "state" / "hermes-supervise").is_dir(), "what the README says stays"
