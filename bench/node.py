"""The guest in a Node agent: what a delta and a start cost it."""

from __future__ import annotations

import resource
import shutil
import subprocess
from typing import Any

from . import environment
from .stats import summary, target

_GUEST = environment.ROOT / "agent_shim" / "node"


def measure(quick: bool) -> dict[str, Any]:
    node = shutil.which("node")
    section: dict[str, Any] = {
        "title": "A Node agent", "tables": [], "targets": [], "left_out": [],
        "notes": ["A delta: from the bytes of the model's event to a frame in the file, in the "
                  "agent's own thread. A start: Node's own, in turns with and without the guest. "
                  "Both in processor time, which other processes do not change. What is added to "
                  "a script is mostly Node's own `http` and `child_process`, which an agent loads"
                  " anyway."],
    }  # fmt: skip
    if node is None:
        section["left_out"].append("Node.js: not installed")
        return section
    with environment.world() as world:
        tap = world.folder / "tap"
        tap.mkdir(mode=0o700)
        program = [node, str(environment.PROGRAMS / "guest_delta.js")]
        deltas = world.ask(program, _GUEST, tap, 2000, 10 if quick else 50)
        script = world.folder / "empty.js"
        script.touch()
        rows = [
            ["a delta of 20 letters in a known agent, us", summary(deltas["tap"]), None],
            ["the same in a program that nobody knows, us", summary(deltas["floor"]), None],
        ]
        options = {"NODE_OPTIONS": f'--require "{_GUEST / "guest.js"}"'}
        env = world.env | {"HERMES_SUPERVISE_TAP": str(tap)}
        for name, words in (("node -e 0", ["-e", "0"]), ("node empty.js", [str(script)])):
            plain, loaded = [], []
            for _ in range(10 if quick else 60):
                plain.append(_processor_time([node, *words], env))
                loaded.append(_processor_time([node, *words], env | options))
            added = summary([a - b for a, b in zip(loaded, plain, strict=True)])["median"]
            rows.append([f"{name}, alone, ms", summary(plain), None])
            rows.append([f"{name}, with the guest, ms", summary(loaded), added])
            if "-e" in words:
                section["targets"].append(target(f"added to {name}", added, 5, "ms"))
    slowest = max(summary(samples)["median"] for samples in deltas.values())
    section["targets"].insert(0, target("a delta in the guest", slowest, 20, "us"))
    section["tables"] = [{"columns": ["what", "measured", "added, ms"], "rows": rows}]
    return section


def _processor_time(command: list[str], env: dict[str, str]) -> float:
    """Milliseconds of a command, in it and in the kernel for it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=env, check=True, stdin=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
