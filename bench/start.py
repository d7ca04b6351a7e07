"""The start of an agent: how much longer Python takes to start under supervision."""

from __future__ import annotations

import shutil
from typing import Any

from . import environment
from .stats import summary, target


def measure(quick: bool) -> dict[str, Any]:
    commands = {"python -c pass": [environment.PYTHON, "-c", "pass"]}
    missing = []
    if environment.HERMES.exists():
        commands["hermes --version"] = [str(environment.HERMES / "hermes"), "--version"]
    else:
        missing.append("Hermes: not installed")
    rows: list[list[Any]] = []
    counts: list[list[Any]] = []
    targets = []
    if not shutil.which("valgrind"):
        missing.append("instructions: valgrind is not installed")
    with environment.world() as world:
        for name, command in commands.items():
            turns = (20 if quick else 150) if "pass" in name else (6 if quick else 80)
            program = [*environment.SUPERVISE, "--", *environment.program("starts.py")]
            seen = world.ask(program, turns, *command)
            plain, injected, empty = seen["without"], seen["with"], seen["empty"]
            for what, samples in (
                ("without", plain), ("an empty sitecustomize", empty), ("supervised", injected)
            ):  # fmt: skip
                added = min(samples) - min(plain)
                differences = [a - b for a, b in zip(samples, plain, strict=True)]
                rows.append([f"{name}, {what}", summary(samples), added,
                             summary(differences)["median"]])  # fmt: skip
            added = summary([a - b for a, b in zip(injected, plain, strict=True)])["median"]
            if "hermes" in name:
                share = added / summary(plain)["median"] * 100
                targets.append(target(f"added to {name}", share, 2, "%"))
            else:
                targets.append(target(f"added to {name}", added, 2, "ms"))
            if shutil.which("valgrind") and not quick:
                seen = world.ask(program, 0, *command)
                more = (seen["with"] / seen["without"] - 1) * 100
                counts.append([name, seen["without"] / 1e6, seen["with"] / 1e6, more])
                if "hermes" in name:
                    targets.append(target(f"instructions added to {name}", more, 2, "%"))
    return {
        "title": "The agent's start",
        "tables": [
            {
                "columns": ["a fresh interpreter", "ms", "added (minima), ms",
                            "added (median of pairs), ms"],
                "rows": rows,
            },
            *([{
                "columns": ["instructions of one start, millions", "without", "supervised",
                            "added, %"],
                "rows": counts,
            }] if counts else []),
        ],
        "targets": targets,
        "left_out": missing,
        "notes": ["Measured by a supervised process, which starts the command in turns with and "
                  "without the variables that carry the shim. Two starts of Hermes differ by more"
                  " than the shim costs; the number of instructions, which callgrind counts, does"
                  " not."],
    }  # fmt: skip
