"""What docs/commands.md shows is what the commands print: all of it, except for figures and folds.

One agent dies as the page tells it; each example is then compared with the real output, word by
word. Times, sizes, process ids and the like differ from run to run and are replaced on both sides.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import Supervised, World, children, kill, until, wait_dead

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "commands.md").read_text()
ID = "20261116_091500_a1b2c3"

AGENT = f"""
import json, subprocess

def asks(id, name, **arguments):
    function = {{"name": name, "arguments": json.dumps(arguments)}}
    call = {{"id": id, "type": "function", "function": function}}
    chat.message("assistant", None, tool_calls=[call])

chat = session({ID!r}, model="gpt-x")
chat.title("Why does the login page lose its query?")
chat.message("user", "Fix the login page and run the tests.")
asks("c1", "read_file", path="login.py")
with chat.tool("read_file", call="c1") as tool:
    tool.result = "text"
asks("c2", "terminal", command="sh run-tests", timeout=600)
chat.tool("terminal", call="c2").__enter__()
shell = subprocess.Popen(["sh", "run-tests"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
shell.stdout.readline()
assert chat.acknowledged(30)
ready()
forever()
"""
TESTS = "sleep 300 &\necho up\nwait\n"


class Story:
    """The world of the page: what its agent printed, and what our commands print about it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.log = world.folder / "log"
        (world.folder / "run-tests").write_text(TESTS)
        world.script(AGENT)
        world.env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{world.env['PATH']}"
        world.env["HERMES_SUPERVISE_CHECKPOINT"] = "1"
        options = ("--on-session-end", "true", "--log", str(self.log))
        self.agent: Supervised = world.run(
            [Path(sys.executable).name, "agent.py"], *options, env=world.env
        )
        self.agent.wait_for("ready")

    def sleeps(self) -> bool:
        below = [pid for shell in children(self.agent.agent) for pid in children(shell)]
        return any(b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in below)

    def prints(self, *words: str) -> str:
        done = self.world.call(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout


def shape(text: str, world: World) -> list[str]:
    """The words of a text, without what differs from run to run."""
    text = text.replace(str(world.db), "/home/me/.hermes/state.db")
    text = text.replace(str(world.folder), "/home/me")
    text = re.sub(r"\bpython[\d.]* agent", "python agent", text)
    text = re.sub(r"(?m)^( *memory) .*", r"\1", text)  # measured, if there was time for it
    text = re.sub(r"just now|[\d.]+ \w+ ago", "AGO", text)
    text = re.sub(r"\d[\d.]* (?:s|min)\b(?: \d+ s\b)?", "TIME", text)
    text = re.sub(r"\b\d{8}-\d{6}-[0-9a-f]{8}\b", "RUN", text)
    text = re.sub(r"\b(?=[a-f]*\d)[0-9a-f]{12}\b", "HOOK", text)
    text = re.sub(r"\d[\d.]* [KM]iB", "SIZE", text)
    text = re.sub(r"\b\d{4}-\d\d-\d\d\b|\b\d\d:\d\d:\d\d(?:\.\d+)?|\b\d{3,}\b", "N", text)
    return text.split()


def compare(printed: str, heading: str, world: World) -> None:
    shown = shown_below(heading)
    assert shape(printed, world) == shape(shown, world), f"docs/commands.md has:\n{shown}"


@pytest.fixture
def story(world: World) -> Iterator[Story]:
    story = Story(world)
    yield story
    for pid in left_running(story):
        kill(pid)
        wait_dead(pid)


def left_running(story: Story) -> list[int]:
    found = json.loads(story.prints("sessions", "--json"))
    orphans = [orphan for report in found for orphan in report["orphans"]]
    return [p["pid"] for orphan in orphans for p in (orphan, *orphan.get("below", ()))]


def shown_below(heading: str) -> str:
    """The first example below a heading of the page, without the command line."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    block = re.search(r"(?:^ {4}.*\n|^\n(?= {4}))+", section, re.M)
    assert block is not None, heading
    lines = [line.removeprefix("    ") for line in block[0].strip("\n").splitlines()]
    return "\n".join(line for line in lines if not line.startswith("$ hermes-supervise"))


def test_the_death_on_the_page_is_shown_as_the_page_shows_it(story: Story) -> None:
    world = story.world
    until(lambda: "all messages in" in story.prints("ps"), "a checkpoint")
    compare(story.prints("ps"), "ps", world)
    until(lambda: story.sleeps(), "the shell's child is the program that the page names")
    story.agent.kill_agent()
    story.agent.finish()
    compare(story.agent.errors.decode(), "After a crash", world)
    compare(story.prints("sessions"), "sessions", world)
    compare(story.prints("show", ID).partition("\nTranscript")[0], "show", world)
    assert story.world.call("report", ID, "-o", "death.html").returncode == 0
    [ended] = [line for line in story.log.read_text().splitlines() if '"ended"' in line]
    shown = json.loads(shown_below("The log"))
    real = json.loads(ended)
    assert list(real) == list(shown)
    assert {name: real[name] for name in ("event", "status", "cause")} == {
        name: shown[name] for name in ("event", "status", "cause")
    }
    printed, page = story.prints("metrics"), shown_below("metrics")
    assert [line.rpartition(" ")[0] for line in page.splitlines()] == [
        line.rpartition(" ")[0] for line in printed.splitlines()[: len(page.splitlines())]
    ]


def test_an_abandoned_hook_is_listed_as_the_page_shows_it(world: World) -> None:
    hook = world.folder / "bin" / "save-notes"
    hook.parent.mkdir()
    hook.write_text("#!/bin/sh\necho no space left on device\nexit 1\n")
    hook.chmod(0o755)
    options = ("--on-session-end", str(hook), "--hook-retry", "0,0")
    agent = world.supervise(f"session({ID!r}).message('user', 'x')\nready()\nforever()", *options)
    agent.wait_for("ready")
    agent.kill_agent()
    agent.finish()
    until(lambda: "abandoned" in world.call("hooks").stdout, "three attempts")
    compare(world.call("hooks").stdout, "hooks", world)


def test_recover_prints_what_the_page_shows(world: World) -> None:
    agent = world.supervise(
        "chat = session('chat')\nchat.message('user', 'x')\nchat.message('assistant', 'y')\n"
        "assert chat.acknowledged(30)\nready()\nforever()"
    )
    agent.wait_for("ready")
    agent.abandon()
    compare(world.call("recover").stdout, "recover", world)


def test_the_config_file_on_the_settings_page_is_understood(world: World) -> None:
    [text] = re.findall(r"^```toml\n(.*?)^```", (DOCS / "settings.md").read_text(), re.M | re.S)
    folder = world.folder / "config"
    world.env["XDG_CONFIG_HOME"] = str(folder)
    (folder / "hermes-supervise").mkdir(parents=True)
    (folder / "hermes-supervise" / "config.toml").write_text(text)
    done = world.call("config")
    assert (done.returncode, done.stderr) == (0, "")
    in_force = tomllib.loads(done.stdout)
    assert {name: in_force[name] for name in tomllib.loads(text)} == tomllib.loads(text)
