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
from hermes_supervise.supervisor import adoption
from hermes_supervise.supervisor.cli.options import TABLE
from hermes_supervise.supervisor.model.options import HOOK_EVENTS, Options
from hermes_supervise.supervisor.process.signals import FORWARDED

ROOT = Path(__file__).parents[2]
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
    "ipc/handlers.py": {"__future__"},
    "ipc/lightweight/json.py": {"__future__", "_json", "collections", "json", "typing"},
    "ipc/lightweight/dataclass.py": {"__future__", "dataclasses", "enum"},
    "supervisor/model/phases.py": {"__future__"},
    "supervisor/run/states.py": {"__future__"},
    "supervisor/transcripts/lines.py": {"__future__", "collections"},
    "supervisor/agents/messages.py": {"__future__", "datetime", "json", "typing"},
    "supervisor/transcripts/deduplicator.py": {"__future__", "hashlib", "json"},
    "supervisor/recovery/outcome.py": {"__future__", "collections", "itertools"},
    "supervisor/recovery/replay.py": {"__future__", "collections"},
    "supervisor/recovery/conversation.py": {"__future__", "typing"},
    "supervisor/recovery/ending.py": {"__future__", "collections", "typing"},
    "supervisor/model/stream.py": {"__future__", "dataclasses", "typing"},
    "supervisor/statedb/reconcile.py": {"__future__", "dataclasses", "typing"},
}
# Scripts that run in an agent's own interpreter, and so may import what is there.
GUESTS = {
    "hermes_hooks.py": {"agent", "hermes_bootstrap", "hermes_cli", "hermes_state", "plugins"},
    "hermes_probe.py": {"hermes_bootstrap", "hermes_cli"},
}
# Of the standard library, but not of every Python that is supported.
OTHER_STDLIB = ("_sha2", "_sha256")
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
        names = {*sys.stdlib_module_names, *OTHER_STDLIB}
        assert foreign - GUESTS.get(path.name, set()) <= names
    if str(path) in PURE:
        assert foreign <= PURE[str(path)]


def late_imports(source: str) -> list[ast.Import | ast.ImportFrom]:
    """The imports inside functions without a comment. The first of several speaks for all."""
    lines = source.splitlines()
    silent: list[ast.Import | ast.ImportFrom] = []
    functions = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef)]
    blocks = [
        block
        for function in functions
        for node in ast.walk(function)
        for name in ("body", "orelse", "finalbody")
        if isinstance(block := getattr(node, name, None), list)
    ]
    for block in blocks:
        explained = False
        for node in block:
            if not isinstance(node, ast.Import | ast.ImportFrom):
                explained = False
                continue
            above, line = lines[node.lineno - 2].strip(), lines[node.lineno - 1]
            explained = explained or "#" in line or above.startswith("#")
            if not explained:
                silent.append(node)
    return silent


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_an_import_inside_a_function_says_why_it_is_there(path: Path) -> None:
    for node in late_imports((ROOT / path).read_text()):
        name = (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name
        # What is the agent's own is there only in its interpreter.
        assert name.split(".")[0] in GUESTS.get(path.name, ()), f"{path}:{node.lineno}"


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_every_module_says_what_it_is(path: Path) -> None:
    source = (ROOT / path).read_text()
    assert ast.get_docstring(ast.parse(source)), "a module begins with what it is"


# The rooms of supervisor/, from the bottom up. A room imports only itself and rooms before it.
SUPERVISOR_ROOMS = (
    "process", "model", "storage", "statedb", "agents", "ingest", "replica", "recovery",
    "hooks",
    "transcripts", "desktop", "run", "cli",
)  # fmt: skip


def imported_rooms(path: Path) -> set[str]:
    """The rooms of supervisor/ that a module imports, anywhere in it and for types as well."""
    rooms = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = path.parts[: len(path.parts) - node.level]
            full = base + tuple(node.module.split(".") if node.module else ())
            named = [full] if len(full) > 1 else [(*full, alias.name) for alias in node.names]
            rooms |= {name[1] for name in named if name[0] == "supervisor"}
    return rooms & set(SUPERVISOR_ROOMS)


@pytest.mark.parametrize("path", [p for p in MODULES if len(p.parts) > 2], ids=str)
def test_a_room_of_the_supervisor_imports_only_rooms_below_it(path: Path) -> None:
    if path.parts[0] == "supervisor":
        allowed = SUPERVISOR_ROOMS[: SUPERVISOR_ROOMS.index(path.parts[1]) + 1]
        assert imported_rooms(path) <= set(allowed)


def name_of(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


NAMES = {name_of(path) for path in MODULES}


def imported_modules(path: Path) -> set[str]:
    """Every module of ours that a module imports: at once, late, or for types."""
    modules = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = path.parts[: len(path.parts) - node.level]
            named = ".".join((*base, *((node.module or "").split(".") if node.module else ())))
            below = {f"{named}.{alias.name}" for alias in node.names} & NAMES
            modules |= below or {named} & NAMES
    return modules - {name_of(path)}


def test_no_module_imports_itself_by_way_of_others() -> None:
    imports_of = {name_of(path): imported_modules(path) for path in MODULES}
    assert sum(map(len, imports_of.values())) > len(MODULES), "imports are seen"
    # Take away what imports nothing that is left, and what nothing that is left imports.
    left = set(imports_of)
    while True:
        imported = {other for name in left for other in imports_of[name]}
        within = {name for name in left & imported if imports_of[name] & left}
        if within == left:
            break
        left = within
    assert sorted(left) == []


# The only files of the supervisor that name what one operating system has and another has not.
NAMES_A_PLATFORM = {f"supervisor/process/{name}.py" for name in ("linux", "linux_proc", "portable")}
OF_A_PLATFORM = re.compile(r"/proc/|pidfd_|prctl|/cgroup|SO_PEERCRED|kqueue|CLOCK_BOOTTIME")


@pytest.mark.parametrize("path", [p for p in MODULES if p.parts[0] == "supervisor"], ids=str)
def test_only_the_platforms_own_files_name_a_platform(path: Path) -> None:
    if str(path) not in NAMES_A_PLATFORM:
        tree = ast.parse((ROOT / path).read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                value = node.value
            elif isinstance(node, ast.Attribute):
                value = node.attr
            else:
                continue
            if "\n" not in value:  # prose may say what it likes
                assert not OF_A_PLATFORM.search(value), f"{path}:{node.lineno}"


# Outside agents/ an agent is named only in docstrings, in comments, in what people read (--help),
# and where state.db, which is Hermes' own database, is found and described.
MAY_NAME_AN_AGENT = {
    "supervisor/cli/usage.py",  # --help
    "supervisor/cli/options.py",  # --help
    "supervisor/cli/proof/model_apis.py",  # whose API a model speaks
    "supervisor/cli/proof/trial.py",  # variables that a trial must not see
    "supervisor/cli/commands/sweep.py",  # --help
    "supervisor/statedb/cjk_index.py",  # its tokenizer, and who rebuilds it
    "supervisor/statedb/schema.py",  # columns
}
AGENT_NAME = re.compile(
    r"hermes(?![-_]?supervise)|claude|codex|copilot|gemini|opencode|qwen|(?<![a-z])pi(?![a-z])",
    re.I,
)


def words_in_code(tree: ast.AST) -> list[str]:
    """Every name and every string in a module, without its docstrings."""
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    found: list[str] = []
    for node in ast.walk(tree):
        for _, value in ast.iter_fields(node):
            if isinstance(value, str) and id(node) not in docstrings:
                found.append(value)
    return found


CORE = [p for p in MODULES if p.parts[0] == "supervisor" and p.parts[1] != "agents"]


@pytest.mark.parametrize("path", CORE, ids=str)
def test_the_core_names_no_agent(path: Path) -> None:
    words = words_in_code(ast.parse((ROOT / path).read_text()))
    named = [word for word in words if AGENT_NAME.search(word)]
    assert bool(named) == (str(path) in MAY_NAME_AN_AGENT), named


# What the glossary's words have replaced. Still there: a record of the wire that is called
# "trouble", and fields on disk that are called "told" and "owed" (docs/stability.md).
RETIRED = {
    "witness", "heir", "door", "knock", "chute", "told", "teller", "speaker", "voice", "minder",
    "owed", "occasions", "bury", "paint", "surface", "herald", "confidant", "workshop", "tending",
}  # fmt: skip
KEEPS_A_RETIRED_WORD = {
    "supervisor/agents/hermes/sessions.py": {"owed"},
    "supervisor/hooks/entry.py": {"told"},
    "supervisor/statedb/writer.py": {"told"},
}


# Everything else in Python: tests, campaigns, benchmarks, examples.
BESIDE = sorted(
    p.relative_to(ROOT)
    for folder in ("tests", "torture", "bench", "fuzz", "figures", "examples")
    for p in (ROOT / folder).rglob("*.py")
)


@pytest.mark.parametrize("path", [*MODULES, *BESIDE], ids=str)
def test_retired_words_do_not_come_back_as_names(path: Path) -> None:
    names = {
        name
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        for kind in ("id", "attr", "arg", "name")
        if isinstance(name := getattr(node, kind, None), str)
    }
    parts = {name: re.findall("[a-z]+|[A-Z][a-z]*", name) for name in names}
    retired = {name for name in names if RETIRED & {part.lower() for part in parts[name]}}
    assert retired == KEEPS_A_RETIRED_WORD.get(str(path), set())


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
    at_rest = loaded_by(tmp_path, "run.start", "run.supervision", "run.background")
    assert at_rest & (HEAVY | {"apsw"}) == set()
    assert "_json" in at_rest, "the probe sees what is loaded"


def test_an_agent_is_recognised_without_loading_anything_heavy(tmp_path: Path) -> None:
    load_all = "[registry.named(name).recognise(['x']) for name in registry.names()]"
    then = f"from hermes_supervise.supervisor.agents import registry\n{load_all}"
    loaded = loaded_by(tmp_path, "agents.registry", then=then)
    assert loaded & (HEAVY | {"apsw", "importlib"}) == set()


def test_who_finishes_for_the_dead_loads_little_more_than_the_database(tmp_path: Path) -> None:
    said = "str(hermes_supervise.supervisor.process.cause.Cause(signal=9))"
    loaded = loaded_by(
        tmp_path, "recovery.finish", "recovery.checkpoint", "process.cause", then=said
    )
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
    manual = "man/hermes-supervise.1"
    for name in [*tracked, manual]:  # what is in the working tree, committed or not
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    (source / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(tmp_path)]
    subprocess.check_call([*build, str(source)], stderr=subprocess.DEVNULL)
    [wheel] = tmp_path.glob("*.whl")
    names = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    [page] = [n for n in names if n.endswith(".data/data/share/man/man1/hermes-supervise.1")]
    assert names - {page} == {f"hermes_supervise/{name}" for name in tracked}


# -- docs ------------------------------------------------------------------------------------


def test_the_architecture_page_has_a_paragraph_a_room() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    for room in SUPERVISOR_ROOMS:
        assert f"**`{room}/`**" in page, f"{room}/ is not on the page"


def test_every_guarantee_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "guarantees.md").read_text()
    sections = re.split(r"^## (G\d) ", page, flags=re.M)[1:]
    named = dict(zip(sections[::2], sections[1::2], strict=True))
    assert sorted(named) == [f"G{number}" for number in range(1, 10)]
    for guarantee, text in named.items():
        tests = re.findall(r"`(test_\w+\.py)`", text)
        assert tests, f"{guarantee} names no test"
        for test in tests:
            assert list((ROOT / "tests").rglob(test)), (
                f"{guarantee} names {test}, which is not there"
            )


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
        if path.exists() and name != "tests/house/test_house.py":
            assert not pattern.search(path.read_text(errors="replace")), name


# -- lists that must agree -----------------------------------------------------------------------


def test_a_standby_holds_back_the_signals_that_a_supervisor_forwards() -> None:
    # adoption.py imports nothing of ours, so it has a copy.
    assert set(adoption._HELD_BACK) == set(FORWARDED)


@pytest.mark.parametrize("event", HOOK_EVENTS)
def test_every_hook_event_has_an_option_and_is_documented(event: str) -> None:
    assert getattr(Options(), event) == []
    assert event in {option.name for option in TABLE}
    assert f"`{event}`" in (ROOT / "docs" / "hooks.md").read_text()
