"""Every example on the pages is run: most of them here, as somebody types them into a shell.

WHERE says which test runs an example that is not typed here. A new example fails until it is typed
or has a test.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from page_examples import PAGES, ROOT, Example, examples
from support import World, until

# Page and beginning of an example to the test that runs it or compares it with what is printed.
WHERE = {
    ("README.md", "make demo"): "house/test_installing.py",
    ("README.md", "pipx install ."): "house/test_wheel.py",
    ("README.md", "import os, subprocess"): "cli/test_demo.py",
    ("README.md", "hermes-supervise: the agent was"): "cli/test_demo.py",
    ("README.md", "eval "): "cli/test_shell_init.py",
    ("CONTRIBUTING.md", "git clone"): "house/test_habits.py",
    ("CONTRIBUTING.md", "make "): "house/test_habits.py",
    ("docs/adding-an-agent.md", ""): "transcripts/test_adding_an_agent.py",
    ("docs/architecture.md", ""): "a drawing",
    ("docs/commands.md", "hermes-supervise: the agent was"): "cli/test_examples.py",
    ("docs/commands.md", "$ "): "cli/test_examples.py",
    ("docs/commands.md", '{"time"'): "cli/test_examples.py",
    ("docs/commands.md", "journalctl "): "cli/test_metrics.py",
    ("docs/hermes.md", "make test-matrix"): "house/test_habits.py",
    ("docs/hooks.md", "{"): "hooks/test_hooks.py",
    ("docs/hooks.md", "[project.entry-points"): "hooks/test_hooks.py",
    ("docs/hooks.md", "def ended"): "hooks/test_hooks.py",
    ("docs/protocol.md", "hermes-supervise emit"): "cli/test_pages.py",
    ("docs/protocol.md", "f5485301"): "wire/test_wire.py",
    ("docs/protocol.md", "hello, number 0"): "wire/test_wire.py",
    ("docs/protocol.md", "cut, number 5"): "wire/test_wire.py",
    ("docs/protocol.md", '{"kind":"hello"'): "wire/test_wire.py",
    ("docs/replica.md", "agent ──►"): "a drawing",
    ("docs/replica.md", "CREATE ROLE"): "replica/test_separation.py",
    ("docs/replica.md", ""): "replica/test_page.py",
    ("docs/running.md", "mkdir -p"): "process/test_container.py",
    ("docs/running.md", "ENTRYPOINT"): "process/test_container.py",
    ("docs/running.md", "tmux "): "cli/test_pages.py",
    ("docs/running.md", '"terminal.'): "cli/test_pages.py",
    ("docs/settings.md", "# ~/.config"): "cli/test_examples.py",
    ("docs/torture.md", ""): "house/test_habits.py",
}
# Words before a command that a test cannot have.
WITHOUT = ("sudo -u bot ",)

AGENT = """
chat = session("SESSION", model="m")
chat.message("user", "Fix the login page.")
chat.delta("I look at ")
ready()
forever()
"""


def where(example: Example) -> str | None:
    """The test that runs it; None: it is typed here."""
    begins = [
        test for (page, start), test in WHERE.items()
        if page == example.page and example.text.startswith(start)
    ]  # fmt: skip
    return begins[0] if begins else None


def typed_here(page: str) -> list[Example]:
    return [example for example in examples(page) if where(example) is None]


def test_each_example_that_is_not_typed_here_has_a_test() -> None:
    used = set()
    for page in PAGES:
        for example in examples(page):
            used |= {key for key in WHERE if key[0] == page and example.text.startswith(key[1])}
            test = where(example)
            if test in (None, "a drawing"):
                continue
            path = ROOT / "tests" / str(test)
            assert path.is_file(), f"{example}: {path}"
    assert used == set(WHERE), "an example that is gone"


@pytest.fixture
def desk(world: World) -> Iterator[World]:
    """A home in which the pages' programs are there, a session was interrupted, and its hook
    failed for good."""
    bin = world.folder / "bin"
    bin.mkdir()
    quiet = "#!/bin/sh\ncat >/dev/null\n"
    command = " ".join(world.command)
    programs = {
        "hermes-supervise": f'#!/bin/sh\nexec {command} "$@"\n',
        **dict.fromkeys(("hermes", "claude", "npx", "aider", "my-model"), quiet),
        # Refuses to work until somebody has made room.
        "save-notes": f'{quiet}test -e "{world.folder}/room"\n',
    }
    for name, text in programs.items():
        (bin / name).write_text(text)
        (bin / name).chmod(0o755)
    world.env["PATH"] = f"{bin}:{world.env['PATH']}"
    world.env["XDG_DATA_HOME"] = str(world.folder / "data")
    world.env["XDG_CONFIG_HOME"] = str(world.folder / "config")
    world.env.pop("HERMES_SUPERVISE_HOOK_WAIT")
    for name in ("my-agent", "pics/hermes.png", "logs/chat.jsonl", "launchers/some-agent.desktop"):
        path = world.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/bin/sh\n" if name == "my-agent" else "")
        path.chmod(0o755)
    applications = world.folder / "data" / "applications"
    applications.mkdir(parents=True)
    (applications / "some-agent.desktop").write_text(
        "[Desktop Entry]\nType=Application\nName=Some agent\nExec=aider\n"
    )
    agent = world.supervise(
        AGENT, "--on-session-end", "save-notes", "--hook-retry", "none", "--notify",
        env={**world.env, "HERMES_SUPERVISE_HOOK_WAIT": "30"},
    )  # fmt: skip
    agent.wait_for("ready")
    agent.kill_agent()
    agent.finish()
    (world.folder / "room").touch()
    yield world


def fill_in(line: str, world: World) -> str:
    """A line as its reader types it, with something in place of each placeholder."""
    hooks = json.loads(world.call("hooks", "--json").stdout)["hooks"]
    for name, value in {
        "-- COMMAND": "-- hermes",
        " ID...": f" {hooks[0]['id'][:8]}" if hooks else " --all",
        "~/.local/state/": f"{world.state}/",
        "/var/lib/node_exporter/": f"{world.folder}/",
        "kill 23267;": "sleep 600 & kill $!;",
    }.items():
        line = line.replace(name, value)
    for words in WITHOUT:
        line = line.removeprefix(words)
    return line


def type_in(line: str, world: World) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-e", "-u", "-o", "pipefail", "-c", line], env=world.env, cwd=world.folder,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.mark.parametrize("page", [page for page in PAGES if typed_here(page)])
def test_the_lines_of_a_page_work_as_they_are_typed(desk: World, page: str) -> None:
    for example in typed_here(page):
        for line in example.typed():
            done = type_in(fill_in(line, desk), desk)
            # `doctor` notices that these agents are not the real ones.
            expected = (0, 1) if line.startswith("hermes-supervise doctor -- ") else (0,)
            assert done.returncode in expected, f"{example}\n{line}\n{done.stdout}{done.stderr}"


def only(page: str, begins: str) -> Example:
    [found] = [example for example in examples(page) if example.text.startswith(begins)]
    return found


def test_the_script_on_the_protocol_page_is_recorded(desk: World) -> None:
    example = only("docs/protocol.md", "hermes-supervise emit")
    (desk.folder / "bin" / "my-model").write_text("#!/bin/sh\necho Hi, I am\n")
    script = desk.folder / "script"
    script.write_text("#!/bin/bash\n" + example.text + "\n")
    script.chmod(0o755)
    done = desk.call("--", str(script))
    assert (done.returncode, done.stdout) == (0, "Hi, I am\n"), done.stderr
    rows = desk.messages("chat-1")
    assert [(row["role"], row["content"].strip()) for row in rows] == [
        ("user", "Hello?"), ("assistant", "Hi, I am"),
    ]  # fmt: skip


def test_the_terminal_profile_on_the_page_starts_a_supervised_agent(desk: World) -> None:
    example = only("docs/running.md", '"terminal.')
    [(_, profiles)] = json.loads("{" + example.text + "}").items()
    [profile] = profiles.values()
    (desk.folder / "bin" / "hermes").write_text('#!/bin/sh\necho "in $HERMES_SUPERVISE_RUN"\n')
    done = type_in(shlex.join([profile["path"], *profile["args"]]), desk)
    assert done.returncode == 0 and re.match(r"in \d{8}-", done.stdout)


def test_the_window_on_the_page_ends_with_its_agent(desk: World) -> None:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    example = only("docs/running.md", "tmux ")
    ran = desk.folder / "ran"
    (desk.folder / "bin" / "hermes").write_text(
        f"#!/bin/sh\necho $HERMES_SUPERVISE_RUN > {ran}.new; mv {ran}.new {ran}\n"
    )
    desk.env["TMUX_TMPDIR"] = desk.env["XDG_RUNTIME_DIR"]
    # Nobody is there to attach to it.
    done = type_in(example.text.replace("new-session", "-f /dev/null new-session -d"), desk)
    assert done.returncode == 0, done.stderr
    until(ran.exists, "the agent has run")
    assert ran.read_text().strip(), "and under supervision"
    until(lambda: type_in("tmux list-sessions", desk).returncode, "its window is closed")
