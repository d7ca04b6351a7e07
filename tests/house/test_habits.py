"""What people expect of a project is there, and its pieces agree with each other."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import release
from page_examples import examples

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from torture import __main__ as torture  # noqa: E402

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob(".github/**/*.md")])
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def headings(page: Path) -> set[str]:
    """The anchors of a page, as hosting platforms make them."""
    found = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.M)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in found)
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = Path(os.path.normpath(page.parent / path)) if path else page
        assert there.exists(), f"{target} is not there"
        if anchor:
            assert anchor in headings(there), f"{target} has no such heading"


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    for page in ROOT.glob("docs/*.md"):
        assert page.name == "README.md" or f"({page.name})" in index, page.name


def test_hosted_ci_runs_every_supported_python() -> None:
    """The classifiers say which are supported."""
    named = {
        line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)
    }
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    [matrix] = re.findall(r"python: \[(.*)\]", workflow)
    assert set(re.findall(r"3\.\d+", matrix)) == named
    assert PROJECT["requires-python"] == f">={min(named)}"
    assert "run: make test\n" in workflow


def test_the_changelog_has_this_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    releases = re.findall(r"^## (\S+)", changelog, flags=re.M)
    assert releases[0] == "Unreleased"
    assert PROJECT["version"] in releases
    kinds = re.findall(r"^### (\w+)", changelog, flags=re.M)
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "README.md", ".pre-commit-config.yaml"])
def test_every_make_command_that_is_named_exists(page: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([\w-]+):(?!=)", makefile, flags=re.M))
    text = (ROOT / page).read_text()
    named = set(re.findall(r"^    make ([\w-]+)|`make ([\w-]+)|entry: make ([\w-]+)", text, re.M))
    for words in named:
        assert "".join(words) in targets, words


def make(*words: str) -> str:
    # The suite may itself be run by make, with an interpreter of its own.
    env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "PYTHON")}
    return subprocess.check_output(["make", "--dry-run", *words], cwd=ROOT, env=env, text=True)


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", "docs/torture.md", "docs/hermes.md"]
)
def test_the_make_lines_of_a_page_are_understood(page: str) -> None:
    """Each is only planned: the commands themselves take from minutes to an hour."""
    lines = [line for example in examples(page) if not example.language for line in example.typed()]
    # Which other interpreters there are depends on the machine.
    there = (re.sub(r"PYTHON=\S+", f"PYTHON={shlex.quote(sys.executable)}", line) for line in lines)
    wanted = [shlex.split(line, comments=True) for line in there]
    planned = [make(*words[1:]) for words in wanted if words[0] == "make"]
    assert planned and all(planned)
    for words in wanted:
        if words[1:3] == ["-m", "torture"]:
            torture.arguments().parse_args([w.replace("FOLDER", ".") for w in words[3:]])


def test_another_interpreter_has_an_environment_of_its_own(tmp_path: Path) -> None:
    other = tmp_path / "some where" / "python"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\necho 3.99\n")
    other.chmod(0o755)
    assert ".venv/bin/ruff" in make("lint")
    assert ".venv-3.99/bin/ruff" in make("lint", f"PYTHON={other}")


def test_a_new_version_is_in_every_file_that_has_one(tmp_path: Path) -> None:
    for name in (
        "pyproject.toml",
        "CHANGELOG.md",
        "man/hermes-supervise.1",
        "tests/lib/man_page.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    changelog = tmp_path / "CHANGELOG.md"
    head, empty, rest = changelog.read_text().partition("## Unreleased\n")
    changelog.write_text(f"{head}{empty}\n### Added\n\n- Something.\n{rest}")
    release.release(tmp_path, "99.1.0", "2099-01-31")
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]
    assert project["version"] == "99.1.0"
    page = (tmp_path / "man" / "hermes-supervise.1").read_text()
    assert "2099-01-31" in page and "99.1.0" in page
    news = changelog.read_text()
    assert re.findall(r"^## (.*)", news, re.M)[:2] == ["Unreleased", "99.1.0 (2099-01-31)"]
    assert news.index("## 99.1.0") < news.index("- Something.")
    for again in ("99.1.0", "99.0.9", "1"):
        with pytest.raises(SystemExit):
            release.release(tmp_path, again, "2099-02-01")
    with pytest.raises(SystemExit, match="nothing"):
        release.release(tmp_path, "99.2.0", "2099-02-01")
