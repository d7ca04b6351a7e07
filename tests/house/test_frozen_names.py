"""The names that others rely on stay: docs/stability.md lists them, and both the release and the
current tree are run and watched.

    what the release shows  ⊆  what the page lists  ⊆  what the current tree shows
"""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest
from installed import PACKAGES, ROOT, current_tree, installed_world, release_tree
from observed import ObservedWorld

PAGE = ROOT / "docs" / "stability.md"
Names = dict[str, set[str]]

# Commands whose answers hold reports, and where in the answer each report is.
HOLDING_REPORTS = {
    "sessions --json": "[].",
    "show --json": "[].",
    "show SESSION --json": "reports[].",
    "recover --json": "settled[].",
}


def listed() -> Names:
    """The lists of the page: a heading in bold, then a paragraph of nothing but names."""
    found: Names = {}
    for part in re.split(r"^\*\*(?=[^*\n]+\*\*$)", PAGE.read_text(), flags=re.M)[1:]:
        heading, _, text = part.partition("**")
        names = found.setdefault(heading, set())
        for paragraph in re.split(r"^#", text, flags=re.M)[0].split("\n\n"):
            if re.fullmatch(r"\s*(`[^`]+`\s*)+", paragraph):
                names |= set(re.findall(r"`([^`]+)`", paragraph))
    report = {name for name in found["fields of a report"] if name.isidentifier()}
    for command, place in HOLDING_REPORTS.items():
        found[command] |= {place + name for name in report}
    return found


def of_every_report(seen: Names) -> Names:
    """What is inside the fields of a report depends on how the agent died."""
    for command, place in HOLDING_REPORTS.items():
        inside = rf"{re.escape(place)}\w+(\.|\[\])"
        seen[command] = {name for name in seen[command] if not re.match(inside, name)}
    # Whether it was measured depends on how long the agent lived.
    seen["fields of a report"] -= {"memory.last", "memory.last_at"}
    return seen


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("names")


@pytest.fixture(scope="module")
def current(folder: Path) -> Names:
    with installed_world(folder, current_tree(folder / "tree"), ObservedWorld) as world:
        return of_every_report(world.observe())


@pytest.mark.parametrize("what", sorted(listed()))
def test_the_current_tree_has_every_listed_name(what: str, current: Names) -> None:
    missing = listed()[what] - current.get(what, set())
    assert not missing, f"{what}: frozen in docs/stability.md, and gone: {sorted(missing)}"


def test_the_list_has_every_name_of_the_release(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    with installed_world(tmp_path, release_tree(tree), ObservedWorld) as world:
        seen = of_every_report(world.observe())
    known = listed()
    # Which values occur depends on the machine: a busy one sees more kinds of ends.
    names = {what: seen[what] - known.get(what, set()) for what in seen if "values" not in what}
    unlisted = {what: sorted(missing) for what, missing in names.items() if missing}
    assert not unlisted


# -- modules that living processes load late ---------------------------------------------------


def late_modules() -> dict[str, set[str]]:
    """File to names, from the last table of the page."""
    table = PAGE.read_text().partition("### What a living process loads late")[2]
    rows = re.findall(r"^\| `([\w/]+\.py)` \| ([^|]*) \|", table, flags=re.M)
    return {file: set(re.findall(r"`(\w+)`", names)) for file, names in rows}


@pytest.mark.parametrize("file", sorted(late_modules()))
def test_a_module_that_is_loaded_late_is_where_it_was(file: str) -> None:
    assert (ROOT / file).is_file()
    names = late_modules()[file]
    if names:
        module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        loaded = importlib.import_module(f"hermes_supervise.{module}")
        assert names <= set(vars(loaded))


def test_what_the_shim_of_the_release_loads_late_is_listed(tmp_path: Path) -> None:
    tree = release_tree(tmp_path)
    known = late_modules()
    for path in sorted(
        path for room in ("ipc", "agent_shim") for path in (tree / room).rglob("*.py")
    ):
        for module, name in late_imports(path.relative_to(tree), path.read_text()):
            assert name in known.get(module, ()), f"{path.name} loads {name} of {module} late"


def late_imports(path: Path, source: str) -> list[tuple[str, str]]:
    """The relative imports inside functions: file and name of each."""
    found = []
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = path.parts[: len(path.parts) - node.level]
                file = "/".join([*base, *(node.module or "").split(".")]) + ".py"
                found += [(file, alias.name) for alias in node.names]
    return found


def test_the_three_packages_keep_their_names() -> None:
    assert PACKAGES == ("ipc", "agent_shim", "supervisor")
    for package in PACKAGES:
        assert importlib.import_module(f"hermes_supervise.{package}").__file__
