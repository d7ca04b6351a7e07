"""A supervisor whose own files are replaced under it, as by an upgrade during a chat."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from support import World, short, until

ROOT = Path(__file__).parents[2]


def gone(package: Path) -> None:
    package.rename(package.with_name("uninstalled"))


def half_written(package: Path) -> None:
    for module in package.rglob("*.py"):
        module.write_text(module.read_text()[:200])


def another_version(package: Path) -> None:
    """In which nothing of what recovery is asked for has the name that it had."""
    for module in (package / "supervisor" / "recovery").rglob("*.py"):
        module.write_text(module.read_text().replace("def ", "def new_"))


@pytest.mark.parametrize("when", ["at once", "when it is written down"])
@pytest.mark.parametrize(
    ("replace", "restart"),
    [(gone, "never"), (gone, "on-crash"), (half_written, "never"), (half_written, "on-crash"),
     (another_version, "never")],
)  # fmt: skip
def test_what_it_cannot_recover_any_more_is_kept_for_who_can(
    world: World, replace: Callable[[Path], None], restart: str, when: str
) -> None:
    package = world.folder / "site" / "hermes_supervise"
    for room in ("ipc", "agent_shim", "supervisor"):
        shutil.copytree(ROOT / room, package / room, ignore=shutil.ignore_patterns("__pycache__"))
    world.env["PYTHONPATH"] = str(package.parent)
    agent = world.supervise(
        """
import hermes_supervise.agent_shim
ready("from " + hermes_supervise.agent_shim.__file__)
chat = session("chat")
chat.message("user", "how long?")
chat.delta("a while")
ready("said")
forever()
""",
        "--restart",
        restart,
    )
    assert agent.wait_for("from").split()[1].startswith(str(package))
    agent.wait_for("said")
    if when == "when it is written down":
        [run] = world.runs()
        until(lambda: any(b"a while" in path.read_bytes() for path in run.glob("*.log")), when)
    replace(package)
    agent.kill_agent()
    assert agent.finish() == -signal.SIGKILL, f"it ends as the agent did: {agent.errors.decode()}"
    said = agent.errors.decode()
    assert "supervision failed" in said or "`hermes-supervise recover`" in said
    assert "Traceback" not in said
    del world.env["PYTHONPATH"]
    done = world.call("recover")
    assert done.returncode == 0, done.stderr
    assert short(world.messages("chat")) == [("user", "how long?"), ("assistant", "a while")]
