"""The house itself: who may import whom, types, what is packaged, and docs that match."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from hermes_supervise.ipc import frames

ROOT = Path(__file__).parent.parent
ROOMS = ("ipc", "agent_shim", "supervisor")
MODULES = sorted(p.relative_to(ROOT) for room in ROOMS for p in (ROOT / room).rglob("*.py"))

# Who may import whom. Everything of ours is imported relatively, so that the tree also works
# under the name the shim has in an agent without us installed.
MAY_IMPORT = {
    "ipc": {"ipc"},
    "agent_shim": {"ipc", "agent_shim"},
    "supervisor": {"ipc", "supervisor"},
}
# Pure cores: no module that could touch the world.
PURE = {
    "ipc/frames.py": {"__future__", "struct", "zlib"},
    "ipc/records.py": {"__future__"},
    "ipc/jsontext.py": {"__future__", "_json", "collections", "json", "typing"},
    "supervisor/recovery/phases.py": {"__future__"},
    "supervisor/watchers/lines.py": {"__future__", "collections"},
    "supervisor/watchers/messages.py": {"__future__", "datetime", "json", "typing"},
    "supervisor/watchers/teller.py": {"__future__", "hashlib", "json"},
    "supervisor/recovery/outcome.py": {"__future__", "itertools"},
    "supervisor/recovery/replay.py": {"__future__", "collections", "typing"},
    "supervisor/recovery/told.py": {"__future__", "dataclasses", "typing"},
    "supervisor/recovery/reconcile.py": {"__future__", "dataclasses", "typing"},
}
# Scripts that run in an agent's own interpreter, and so may import what is there.
GUESTS = {
    "hermes_hooks.py": {"agent", "hermes_cli", "hermes_state", "plugins"},
    "hermes_probe.py": {"hermes_cli"},
}
# What neither a supervisor at rest loads nor a recovery before its commit.
HEAVY = {"json", "re", "enum", "functools", "contextlib", "socket", "subprocess", "psutil",
         "dataclasses", "typing", "logging", "threading", "argparse", "asyncio", "tempfile",
         "inspect"}  # fmt: skip


def imports(path: Path) -> tuple[set[str], set[str]]:
    """The rooms of ours and the foreign top-level modules that a file imports."""
    ours: set[str] = set()
    foreign: set[str] = set()
    package = path.parts[:-1]
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            foreign |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            foreign.add((node.module or "").split(".")[0])
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - (node.level - 1)]
            named = base + tuple((node.module or "").split(".") if node.module else ())
            ours |= {named[0]} if named else {alias.name for alias in node.names}
    return ours, foreign


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_rooms_import_only_what_they_may(path: Path) -> None:
    ours, foreign = imports(path)
    assert ours <= MAY_IMPORT[path.parts[0]]
    if path.name != "demo_agent.py":  # an agent, not a part of us: it says what agents say
        assert "hermes_supervise" not in foreign, "within the tree imports are relative"
    if path.parts[0] in ("ipc", "agent_shim"):
        assert foreign - GUESTS.get(path.name, set()) <= set(sys.stdlib_module_names)
    if str(path) in PURE:
        assert foreign <= PURE[str(path)]


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_every_module_says_what_it_is_and_is_no_longer_than_a_room(path: Path) -> None:
    source = (ROOT / path).read_text()
    assert ast.get_docstring(ast.parse(source)), "a module begins with what it is"
    assert len(source.splitlines()) <= 500


def view_of_the_tree(folder: Path) -> None:
    """The rooms only have their names below the namespace."""
    view = folder / "hermes_supervise"
    view.mkdir()
    for room in ROOMS:
        (view / room).symlink_to(ROOT / room)


def loaded_by(folder: Path, *modules: str, then: str = "") -> set[str]:
    """What is loaded with these. -S: `site` may load anything, depending on what is installed."""
    if not (folder / "hermes_supervise").exists():
        view_of_the_tree(folder)
    places = [str(folder), sysconfig.get_path("platlib")]
    words = [f"import hermes_supervise.supervisor.{name}" for name in modules]
    probe = ["import sys", f"sys.path += {places!r}", *words, then, "print(*sys.modules)"]
    command = [sys.executable, "-I", "-S", "-c", "\n".join(probe)]
    found = subprocess.check_output(command, text=True).split()
    return {name.split(".")[0] for name in found}


def test_a_supervisor_has_loaded_nothing_heavy_whether_its_agent_speaks_or_not(
    tmp_path: Path,
) -> None:
    at_rest = loaded_by(tmp_path, "start", "supervise", "tending")
    assert at_rest & (HEAVY | {"apsw"}) == set()
    assert "_json" in at_rest, "the probe sees what is loaded"


def test_who_finishes_for_the_dead_loads_little_more_than_the_database(tmp_path: Path) -> None:
    said = "str(hermes_supervise.supervisor.cause.Cause(signal=9))"
    loaded = loaded_by(tmp_path, "recovery.finish", "recovery.checkpoint", "cause", then=said)
    assert "apsw" in loaded
    assert loaded & HEAVY == set()


def test_types_are_strict(tmp_path: Path) -> None:
    view_of_the_tree(tmp_path)
    packages = [word for room in ROOMS for word in ("-p", f"hermes_supervise.{room}")]
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
    command += ["--cache-dir", str(ROOT / ".mypy_cache")]
    env = {**os.environ, "MYPYPATH": str(tmp_path)}
    done = subprocess.run(
        [*command, *packages], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_the_wheel_holds_the_tree_and_nothing_else(tmp_path: Path) -> None:
    source = tmp_path / "source"
    subprocess.check_call(["git", "clone", "-q", "--no-hardlinks", str(ROOT), str(source)])
    tracked = subprocess.check_output(["git", "ls-files", *ROOMS], cwd=ROOT, text=True).split()
    script = "bin/hermes-supervise"
    manual = "man/hermes-supervise.1"
    for name in [*tracked, script, manual]:  # what is in the working tree, committed or not
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    (source / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(tmp_path)]
    subprocess.check_call([*build, str(source)], stderr=subprocess.DEVNULL)
    [wheel] = tmp_path.glob("*.whl")
    names = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    [installed] = [name for name in names if name.endswith(".data/scripts/hermes-supervise")]
    [page] = [n for n in names if n.endswith(".data/data/share/man/man1/hermes-supervise.1")]
    assert names - {installed, page} == {f"hermes_supervise/{name}" for name in tracked}


# -- docs ------------------------------------------------------------------------------------


def test_the_architecture_page_lists_every_module() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    described = set(re.findall(r"`([\w/]+\.py)`", page))
    for path in MODULES:
        if path.name != "__init__.py":
            inside = str(path.relative_to(path.parts[0]))
            assert inside in described or path.name in described, f"{path} is not on the page"
    existing = {str(p.relative_to(p.parts[0])) for p in MODULES} | {p.name for p in MODULES}
    assert described <= existing, "the page names modules that are not there"


def test_every_guarantee_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "guarantees.md").read_text()
    sections = re.split(r"^## (G\d) ", page, flags=re.M)[1:]
    named = dict(zip(sections[::2], sections[1::2], strict=True))
    assert sorted(named) == [f"G{number}" for number in range(1, 9)]
    for guarantee, text in named.items():
        tests = re.findall(r"`(test_\w+\.py)`", text)
        assert tests, f"{guarantee} names no test"
        for test in tests:
            assert (ROOT / "tests" / test).exists(), f"{guarantee} names {test}, which is not there"


def test_the_protocol_page_holds_a_true_vector() -> None:
    page = (ROOT / "docs" / "protocol.md").read_text()
    found = re.search(r"^    (f5485301(?: [0-9a-f]+)+)$", page, flags=re.M)
    assert found is not None
    vector = bytes.fromhex(found[1].replace(" ", ""))
    assert vector == frames.encode(1, b'{"kind":"bye"}')


def test_nothing_names_a_machine_it_was_written_on() -> None:
    files = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).split()
    pattern = re.compile(r"(?<![\w.$}])/(?:work|root)/")
    for name in files:
        path = ROOT / name
        if path.exists() and name != "tests/test_house.py":
            assert not pattern.search(path.read_text(errors="replace")), name
