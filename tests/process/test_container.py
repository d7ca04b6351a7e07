"""The examples of docs/running.md, as they are typed: a container's entry point, and a unit."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import World

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "examples" / "container" / "Dockerfile").read_text()
PAGE = (ROOT / "docs" / "running.md").read_text()


def words_of(instruction: str) -> list[str]:
    [found] = re.findall(rf"^{instruction} (\[.*\])$", DOCKERFILE, re.MULTILINE)
    return [str(word) for word in json.loads(found)]


def installed(world: World, name: str, text: str) -> Path:
    """A command of this name on the PATH."""
    folder = world.folder / "bin"
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    world.env["PATH"] = f"{folder}:{os.environ['PATH']}"
    return path


@pytest.mark.skipif(os.getuid() != 0, reason="only root may make a pid namespace")
def test_the_entry_point_of_the_example_works_as_process_one(world: World) -> None:
    """In a process namespace of its own: as near to a container as no engine comes."""
    installed(world, "hermes-supervise", f'#!/bin/sh\nexec {" ".join(world.command)} "$@"\n')
    agent = world.script('chat = session("chat")\nchat.delta("Hel")\nos.kill(os.getpid(), 9)\n')
    installed(world, "hermes", f'#!/bin/sh\necho "parent $PPID: $*"\nexec {sys.executable} {agent}')
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", *words_of("ENTRYPOINT"), *words_of("CMD")],
        env=world.env, cwd=world.folder, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=60,
    )  # fmt: skip
    assert "parent 1: gateway run\n" in done.stdout, done.stderr
    assert done.returncode == 128 + signal.SIGKILL
    assert [row["content"] for row in world.messages("chat")] == ["Hel"]


def test_the_page_shows_the_entry_point_of_the_example() -> None:
    for instruction in ("ENTRYPOINT", "CMD"):
        shown = f"    {instruction} {json.dumps(words_of(instruction))}\n"
        assert shown in PAGE


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_line_that_writes_a_unit_works_as_typed_in_an_empty_home(world: World) -> None:
    installed(world, "hermes-supervise", f'#!/bin/sh\nexec {" ".join(world.command)} "$@"\n')
    installed(world, "hermes", "#!/bin/sh\nexit 0\n")
    home = world.folder / "an empty home"
    home.mkdir()
    block = PAGE.partition("can run as a systemd user service:\n\n")[2].partition("\n\n")[0]
    lines = block.partition("    systemctl")[0]
    env = {**world.env, "HOME": str(home)}
    env.pop("XDG_CONFIG_HOME", None)
    done = subprocess.run(["sh", "-e", "-c", lines], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    unit = home / ".config" / "systemd" / "user" / "hermes-gateway.service"
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--user", "--man=no", str(unit)],
        env={**env, "XDG_RUNTIME_DIR": world.env["XDG_RUNTIME_DIR"]},
        capture_output=True, text=True,
    )  # fmt: skip
    assert "hermes-gateway.service" not in checked.stderr, checked.stderr
    assert f"{world.folder}/bin/hermes gateway run" in unit.read_text().replace('"', "")
