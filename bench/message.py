"""A message of 2 KB: the time until it is handed over, acknowledged, and safe from power loss."""

from __future__ import annotations

from typing import Any

from . import environment
from .stats import summary, target

_SIZE = 2000
_PEERS = {
    "langgraph": "LangGraph SqliteSaver.put, 10 messages",
    "openai-agents": "OpenAI Agents SQLiteSession.add_items",
    "dbos": "DBOS step, SQLite",
}


def measure(quick: bool) -> dict[str, Any]:
    rounds, count = (3, 100) if quick else (8, 300)
    took: dict[str, list[float]] = {}
    medians: dict[str, list[float]] = {}
    missing: list[str] = []
    with environment.world() as world:

        def run(name: str, command: list[str], *arguments: object, **env: str) -> None:
            seen = world.ask(command, *arguments, **env)
            took.setdefault(name, []).extend(seen)
            medians.setdefault(name, []).append(summary(seen)["median"])

        program = environment.program("speak.py")
        supervised = [*environment.SUPERVISE, "--", *program]
        always = [*environment.SUPERVISE, "--sync", "always", "--", *program]
        for _ in range(rounds):
            said = ("message", count, _SIZE)
            asked = ("acknowledged", count, _SIZE)
            run("handed over", supervised, "product", *said)
            run("acknowledged", supervised, "product", *asked)
            run("acknowledged, `--sync always`", always, "product", *asked)
            run("floor: JSON to a socket", program, "raw", *said)
            run("floor: the same, appended and answered", program, "raw", *asked)
            run("floor: the same with fdatasync", program, "raw", *asked, BENCH_SYNC="always")
            for peer, name in _PEERS.items():
                if (environment.PEERS / "python").exists():
                    peers = environment.program("peer_message.py", environment.PEERS)
                    run(name, peers, peer, world.folder, count // 2, _SIZE)
            if environment.HERMES.exists():
                hermes = environment.program("hermes_append.py", environment.HERMES)
                run("Hermes append_message", hermes, world.folder / "h.db", count // 2, _SIZE)
    if not (environment.PEERS / "python").exists():
        missing += _PEERS.values()
    rows = [[name, summary(samples), summary(medians[name])] for name, samples in took.items()]
    targets = []
    stores = [name for name in took if name in _PEERS.values() or name.startswith("Hermes")]

    def median(name: str) -> float:
        return summary(medians[name])["median"]

    if stores:
        best = min(stores, key=median)
        targets = [
            target(f"handed over, against the fastest peer ({best})",
                   median("handed over") / median(best), 1 / 20, "x"),
            target("acknowledged, against the same",
                   median("acknowledged") / median(best), 1 / 2, "x"),
            target("`--sync always`, against the same",
                   median("acknowledged, `--sync always`") / median(best), 1.1, "x"),
        ]  # fmt: skip
    if "Hermes append_message" in took:
        share = median("acknowledged, `--sync always`") / median("Hermes append_message")
        targets.append(target("`--sync always`, against append_message", share, 1 / 2, "x"))
    return {
        "title": "A message",
        "tables": [
            {
                "columns": ["a message of 2 KB", "each, us", "median of a round, us"],
                "rows": rows,
            }
        ],
        "targets": targets,
        "left_out": missing,
        "notes": [
            "Measured in the agent, from the call until it returns. Ratios are ratios of medians."
        ],
    }
