"""The manual: made of what is understood, fit for `man`, and installed."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from contextlib import redirect_stdout, suppress
from importlib import import_module
from io import StringIO
from pathlib import Path

import man_page
import pytest
from hermes_supervise.supervisor.agents import registry
from hermes_supervise.supervisor.cli import arguments, options
from hermes_supervise.supervisor.cli.completions import schema
from hermes_supervise.supervisor.cli.options import TABLE
from hermes_supervise.supervisor.cli.usage import COMMANDS, brief_usage, usage

ROOT = man_page.PAGE.parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


def rendered() -> str:
    shown = subprocess.run(
        ["groff", "-man", "-Tascii", "-ww", "-rHY=0", man_page.PAGE],
        capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
    )  # fmt: skip
    assert (shown.returncode, shown.stderr) == (0, "")
    return re.sub("\x1b\\[[0-9;]*m|.\x08", "", shown.stdout)


def test_every_option_of_a_command_is_explained() -> None:
    every = [*schema.commands()]
    for command in every:
        every += command.below
        assert all(flag.meaning for flag in command.flags), command.name


def test_every_help_fits_a_terminal_of_the_usual_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for command in schema.commands():
        name = command.name.replace("-", "_")
        module = import_module(f"hermes_supervise.supervisor.cli.commands.{name}")
        for words in ([], *([below.name] for below in command.below)):
            out = StringIO()
            with redirect_stdout(out), suppress(SystemExit):
                module.main([*words, "--help"])
            assert out.getvalue().startswith(f"usage: hermes-supervise {command.name}")
            assert [line for line in out.getvalue().splitlines() if len(line) > 80] == []
            assert "hermes-\n" not in out.getvalue(), "a word that people copy is not broken"
            _, empty, rest = out.getvalue().partition("\n\n")
            assert empty and not rest.startswith(("options:", "positional ")), (
                f"what {command.name} {' '.join(words)} is for"
            )


@pytest.mark.parametrize("command", ["completions", "shell-init"])
def test_help_has_the_line_for_each_start_file_unbroken(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    module = import_module(f"hermes_supervise.supervisor.cli.commands.{command.replace('-', '_')}")
    text = module.parser().format_help()
    for shell in ("bash", "zsh", "fish"):
        [line] = [
            line for line in text.splitlines() if f"hermes-supervise {command} {shell}" in line
        ]
        assert re.match(r"~/\.\S+.*: ", line)


def test_help_and_readme_name_every_agent_that_can_be_followed() -> None:
    for text in (usage(), brief_usage(), (ROOT / "README.md").read_text()):
        example = text.partition("hermes-supervise -- claude ")[2][:150]
        assert set(registry.with_transcripts()) <= set(re.findall(r"\w+", example)) | {"claude"}


def test_the_man_page_says_what_the_program_understands() -> None:
    assert man_page.PAGE.read_text() == man_page.page(), (
        "`python tests/lib/man_page.py` writes it anew"
    )


@pytest.mark.skipif(not shutil.which("groff"), reason="groff is not installed here")
def test_the_man_page_is_set_without_a_warning_and_names_everything() -> None:
    text = rendered()
    for option in TABLE:
        assert re.search(rf"^ +{option.flag}( {option.value})?\b", text, flags=re.M), option.flag
    for name in COMMANDS:
        assert re.search(rf"^   {name}\b", text, flags=re.M), name


@pytest.mark.skipif(not shutil.which("mandoc"), reason="mandoc is not installed here")
def test_the_man_page_is_right_for_mandoc_too() -> None:
    result = subprocess.run(["mandoc", "-T", "lint", man_page.PAGE], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "")


def test_the_synopsis_names_every_subcommand() -> None:
    synopsis = man_page.PAGE.read_text().partition(".SH SYNOPSIS")[2].partition(".SH ")[0]
    for command in schema.commands():
        for below in command.below:
            assert re.search(rf"\b{below.name}\b", synopsis), f"{command.name} {below.name}"


# What many commands have, so that no line of the synopsis repeats it.
EVERYWHERE = {"--help", "--color", "--json", "--no-pager", "--replica", "--replica-key"}


def test_the_synopsis_names_every_option_of_a_command() -> None:
    for command in schema.commands():
        forms = command.usage.split("\n")
        for place in (command, *command.below):
            named = [form for form in forms if form.startswith((place.name, f"[{place.name}"))]
            form = " ".join(named or forms[:1] if place is not command else forms)
            flags = {name for flag in place.flags for name in flag.names}
            wanted = {name for name in flags - EVERYWHERE if name.startswith("--")}
            short = {"--output": "-o"}
            missing = {name for name in wanted if short.get(name, name) not in form}
            assert not missing or "OPTIONS" in form, f"{command.name} {place.name}: {missing}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_command_lines_on_the_pages_are_understood(page: Path) -> None:
    """Whoever types what a page says is not told that there is no such thing."""
    known = {command.name: command for command in schema.commands()}
    found = re.findall(r"(?:^ {4}(?:\$ )?|`)(?:\w+=\w+ )?hermes-supervise ([^`\n]+)",
                       page.read_text(), flags=re.M)  # fmt: skip
    for line in found:
        if re.search(r"[\[\]…\\|]|^NAME|^itself", line):
            continue  # a pattern, or a line that goes on
        if line == "--":
            continue  # the prefix itself
        words = shlex.split(line, comments=True)
        if words[0] in options.HELP + options.VERSION:
            continue
        if words[0] not in known:
            _, command = arguments.parse(words)
            assert command or "--" not in words, line
            continue
        ours = words[: words.index("--")] if "--" in words else words
        named, flags = known[words[0]], set()
        for place in (named, *(below for below in named.below if below.name in ours)):
            flags |= {name for flag in place.flags for name in flag.names}
        assert {word for word in ours if word.startswith("-") and word != "-"} <= flags, line


def test_the_readme_leads_to_every_page() -> None:
    readme = (ROOT / "README.md").read_text()
    index = ROOT / "docs" / "README.md"
    listed = index.read_text() if "docs/README.md" in readme else ""
    for page in (ROOT / "docs").glob("*.md"):
        assert f"docs/{page.name}" in readme or f"({page.name})" in listed, page.name
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} leads to {target}"
