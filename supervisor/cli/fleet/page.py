"""The machines, runs and sessions on the replica as one HTML page. Pure."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from ..output.formatting import ago, date_and_time, number, one_line, package_version
from ..output.page_frame import closing, escaped, opening


def page(machines: list[dict[str, Any]], runs: list[dict[str, Any]]) -> str:
    now = time.time()
    names = {machine["machine"]: str(machine["name"]) for machine in machines}
    lost = any(machine["state"] == "lost" for machine in machines)
    states = Counter(str(machine["state"]) for machine in machines)
    summary = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    summary = summary or "no machine has shipped anything yet"
    parts = [
        opening("The fleet"),
        f'<header class="{"bad" if lost else "good"}">',
        f'<p class="badge">{escaped(number(len(machines), "machine"))}</p><h1>The fleet</h1>',
        f'<p class="cause">{escaped(summary)}</p></header>',
    ]
    for machine in machines:
        of_it = [run for run in runs if run["machine"] == machine["machine"]]
        parts += _machine(machine, of_it, names, now)
    footer = f"hermes-supervise {package_version()}, {date_and_time(now)}"
    return "".join([*parts, closing(footer)])


def _machine(
    machine: dict[str, Any], runs: list[dict[str, Any]], names: dict[str, str], now: float
) -> list[str]:
    about = f"{machine['state']}, last seen {ago(machine['seen'], now)}"
    if machine["lost_because"]:
        about += f": {machine['lost_because']}"
    parts = [
        f'<section class="machine"><h2>{escaped(one_line(machine["name"]))}</h2>',
        f'<p class="when"><code>{escaped(machine["machine"])}</code> {escaped(about)}</p><dl>',
    ]
    for run in runs:
        by = names.get(run["claimed_by"], run["claimed_by"])
        state = run["state"]
        state += f" by {by}" if state in ("recovered", "recovering") and by else ""
        state += ", hooks due" if run["hooks"] == "due" else ""
        facts = f"{state}; {run['records']:,} records, the last one {ago(run['heard'], now)}"
        lines = [f"<p>{escaped(facts)}</p>"]
        for session in run["sessions"]:
            title = f" {one_line(session['title'])}" if session["title"] else ""
            lines.append(f"<p><code>{escaped(session['session'])}</code>{escaped(title)}</p>")
            if run["state"] == "lost":
                command = f"hermes-supervise fleet recover {session['session']}"
                lines.append(f'<p class="branch"><code>{escaped(command)}</code></p>')
        parts.append(
            f"<div><dt><code>{escaped(run['run'])}</code></dt><dd>{''.join(lines)}</dd></div>"
        )
    return [*parts, "</dl></section>"]
