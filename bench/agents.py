"""The real agent CLIs: what a live tap adds to a line, to a piece of a reply and to a start."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from . import environment, procfs
from .stats import summary, target

_PROGRAMS = environment.ROOT / ".agents" / "node_modules" / ".bin"
_PLUGIN = environment.ROOT / "supervisor" / "agents" / "opencode" / "plugin.js"
_GUEST = environment.ROOT / "agent_shim" / "node" / "guest.js"
_NAMES = ("claude", "codex", "gemini", "opencode", "qwen", "pi")
# In turns: alone, supervised, supervised with the tap.
_WAYS: dict[str, list[str]] = {
    "alone": [],
    "without its tap": [*environment.SUPERVISE, "--no-tap", "--"],
    "with its tap": [*environment.SUPERVISE, "--"],
}
# Seconds that one CLI may take, of about five minutes for the section.
_EACH, _EACH_QUICK = 40.0, 4.0
_FEWEST = 3


def measure(quick: bool) -> dict[str, Any]:
    section: dict[str, Any] = {
        "title": "Agent CLIs", "tables": [], "targets": [], "left_out": [],
        "notes": [
            "A line through Claude Code's hook: the shell that Claude Code starts for it, from its "
            "start to its end. A piece through opencode's plugin: from the event to a line in the "
            "file (in Node; opencode itself runs in Bun). Both in processor time, which other "
            "processes do not change; the hook also by the clock, as Claude Code waits for it.",
            "A start: `--version` of each CLI, in turns alone, supervised with `--no-tap`, and "
            "supervised with the tap; processor time of all processes. What the tap adds compares "
            "the best of each.",
        ],
    }  # fmt: skip
    with environment.world() as world:
        _lines(world, section, quick)
        _starts(world, section, quick)
        _memory(world, section, quick)
    return section


# -- a line and a piece ------------------------------------------------------------------------


def _lines(world: environment.World, section: dict[str, Any], quick: bool) -> None:
    rows: list[list[Any]] = []
    folder = world.folder / "hooked"
    folder.mkdir(mode=0o700)
    ask = (
        "import sys; from hermes_supervise.supervisor.agents.claude.tap import hook; "
        "print(hook(sys.argv[1])['command'])"
    )
    words = [environment.PYTHON, "-P", "-c", ask, str(folder)]
    script = subprocess.check_output(words, text=True).strip()
    line = {"session_id": "s", "message_id": "m", "index": 0, "final": False, "delta": 80 * "x"}
    data = world.folder / "line.json"
    data.write_text(json.dumps(line))
    both: dict[str, list[tuple[float, float]]] = {"the hook": [], "a shell that only reads": []}
    for _ in range(30 if quick else 300):
        both["the hook"].append(_cost(["/bin/sh", "-c", script], world.env, data))
        both["a shell that only reads"].append(
            _cost(["/bin/sh", "-c", "cat > /dev/null"], world.env, data)
        )
    for name, samples in both.items():
        clock = summary([wall for wall, _ in samples])
        rows.append([f"Claude Code, {name}, ms", summary([used for _, used in samples]), clock])
    hooked = rows[0]
    section["targets"] += [
        target("a line through Claude Code's hook, processor time", hooked[1]["median"], 5, "ms"),
        target("the same by the clock, the best of all", hooked[2]["min"], 5, "ms"),
    ]
    node = shutil.which("node")
    if node is None:
        section["left_out"].append("opencode's plugin: Node.js is not installed")
    else:
        beside = world.folder / "plugin"
        beside.mkdir()
        shutil.copy(_PLUGIN, beside / "plugin.mjs")
        program = [node, str(environment.PROGRAMS / "plugin_delta.mjs")]
        pieces = world.ask(program, beside / "plugin.mjs", 2000, 10 if quick else 50)
        rows.append(["opencode, a piece of 20 letters, us", summary(pieces), None])
        section["targets"].append(
            target("a piece through opencode's plugin", summary(pieces)["median"], 20, "us")
        )
    columns = ["what", "processor time", "by the clock, ms"]
    section["tables"].append({"columns": columns, "rows": rows})


def _cost(command: list[str], env: dict[str, str], data: Path | None = None) -> tuple[float, float]:
    """Milliseconds of a command, with all that it started: by the clock, and of the processor."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    with open(data or os.devnull, "rb") as given:
        subprocess.run(
            command, env=env, stdin=given, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            check=True,
        )  # fmt: skip
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return 1000 * wall, 1000 * used


# -- a start -----------------------------------------------------------------------------------


def _starts(world: environment.World, section: dict[str, Any], quick: bool) -> None:
    rows: list[list[Any]] = []
    for name in _NAMES:
        program = _PROGRAMS / name
        if not program.exists():
            section["left_out"].append(f"{name}: not installed (`make test-agents` installs it)")
            continue
        used = _turns([str(program), "--version"], world, _EACH_QUICK if quick else _EACH)
        best = {way: min(samples) for way, samples in used.items()}
        added = 100 * (best["with its tap"] / best["without its tap"] - 1)
        rows.append([name, *(summary(used[way]) for way in _WAYS), added])
        section["targets"].append(target(f"the tap adds to {name} --version", added, 2, "%"))
    if rows:
        columns = ["`--version`, processor time, ms", *_WAYS, "the tap adds, %"]
        section["tables"].append({"columns": columns, "rows": rows})


def _turns(command: list[str], world: environment.World, seconds: float) -> dict[str, list[float]]:
    used: dict[str, list[float]] = {way: [] for way in _WAYS}
    _cost(command, world.env)  # the first start may unpack something
    began = time.monotonic()
    while len(used["alone"]) < _FEWEST or time.monotonic() - began < seconds:
        for way in random.sample(list(_WAYS), len(_WAYS)):
            used[way].append(_cost([*_WAYS[way], *command], world.env)[1])
    return used


# -- memory ------------------------------------------------------------------------------------


def _memory(world: environment.World, section: dict[str, Any], quick: bool) -> None:
    rows: list[list[Any]] = []
    rows.append(["the process that reads transcripts, PSS", _reader(world)])
    if node := shutil.which("node"):
        script = world.folder / "resident.js"
        script.write_text("process.stdout.write(String(process.memoryUsage().rss / 2 ** 20))")
        tap = world.folder / "tap"
        tap.mkdir(mode=0o700)
        loaded = {"HERMES_SUPERVISE_TAP": str(tap), "NODE_OPTIONS": f'--require "{_GUEST}"'}
        for text, more in (("an empty Node", {}), ("the same with the guest", loaded)):
            sizes = [
                float(subprocess.check_output([node, str(script)], env={**world.env, **more}))
                for _ in range(5 if quick else 20)
            ]
            rows.append([f"{text}, RSS", summary(sizes)])
    section["tables"].append({"columns": ["memory", "MiB"], "rows": rows})


def _reader(world: environment.World) -> float | None:
    """The process that follows the transcripts of an agent that is silent."""
    supervisor = world.start([*environment.SUPERVISE, "--agent", "claude", "--", "sleep", "60"])
    found: list[int] = []

    def is_there() -> bool:
        found[:] = [pid for pid in procfs.tree(supervisor.pid) if _reads_transcripts(pid)]
        return bool(found) and procfs.memory(found[0])["rss"] > 1

    try:
        procfs.until(is_there)
        time.sleep(2)  # it loads what it needs
        return procfs.memory(found[0])["pss"]
    except (OSError, TimeoutError):
        return None
    finally:
        procfs.kill_tree(supervisor.pid)
        supervisor.wait()


def _reads_transcripts(pid: int) -> bool:
    try:
        return b"read-transcripts" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
