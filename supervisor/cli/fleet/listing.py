"""The machines, runs and sessions on the replica: as data, and as lines for a terminal."""

from __future__ import annotations

import time
from typing import Any

from ...model.text import printable
from ...replica.sender import title_space
from ..output import style, table
from ..output.formatting import ago, one_line
from ..output.table import Column, Row

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...replica.seal import Sealer
    from ...replica.server import Server

STYLES = {"alive": "green", "stale": "yellow", "lost": "red", "recovered": "green"}
_MOST_SHOWN = 50

Found = dict[str, list[dict[str, Any]]]


def look(server: Server, sealer: Sealer) -> Found:
    """Everything at this moment; a title that cannot be decrypted is None."""
    machines, runs, sessions = server.machines(), server.runs(), server.sessions()
    by_id = {machine["machine"]: machine for machine in machines}
    by_run: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for session in sessions:
        title = session["title"]
        if title is not None:
            title = sealer.open_text(title, title_space(session["session"]))
        spoken = by_run.setdefault((session["machine"], session["run"]), [])
        spoken.append({"session": session["session"], "title": title})
    for run in runs:
        run["state"] = state_of(run, by_id)
        run["hooks"] = hooks_of(run)
        run["went_on"] = run["recovered_at"] is not None and run["heard"] > run["recovered_at"]
        run["sessions"] = by_run.get((run["machine"], run["run"]), [])
    return {"machines": machines, "runs": runs}


def state_of(run: dict[str, Any], machines: dict[str, dict[str, Any]]) -> str:
    """alive, stale, lost, recovered, recovering, or ended."""
    if run["recovered_at"] is not None:
        return "recovered"
    if run["claimed_by"] not in (None, run["machine"]):
        return "recovering"
    if run["ended_at"] is not None:
        return "ended"
    machine = machines.get(run["machine"])
    return str(machine["state"]) if machine is not None else "unknown"


def hooks_of(run: dict[str, Any]) -> str | None:
    """Of a run that another machine has recovered: `given` to it, or `due`, which they are until
    the loss is declared. None: its own machine runs them."""
    if run["hooks_by"] not in (None, run["machine"]):
        return "given"
    copied = run["claimed_by"] not in (None, run["machine"])
    return "due" if copied and run["ended_at"] is None else None


def lines(
    machines: list[dict[str, Any]], runs_there: list[dict[str, Any]], styled: style.Style
) -> list[str]:
    if not machines:
        return ["no machine has shipped anything yet"]
    now = time.time()
    names = {machine["machine"]: machine["name"] for machine in machines}
    rows = [
        Row(
            [one_line(printable(machine["name"])), machine["machine"], machine["state"],
             ago(machine["seen"], now)],
            {0: "bold", 2: STYLES.get(machine["state"], "")},
            [],
        )
        for machine in machines
    ]  # fmt: skip
    columns = [Column("MACHINE"), Column("ID"), Column("STATE"), Column("LAST SEEN", least=8)]
    lines = table.render(columns, rows, styled)
    shown = [run for run in runs_there if run["state"] != "ended"][-_MOST_SHOWN:]
    if not shown:
        return [*lines, "", "no run is open"]
    rows = []
    for run in shown:
        state = run["state"]
        by = names.get(run["claimed_by"], run["claimed_by"])
        where = f" by {printable(by)}" if state in ("recovered", "recovering") and by else ""
        notes = []
        if run["hooks"] == "due":
            where += ", hooks due"
            name = printable(names.get(run["machine"], run["machine"]))
            notes.append((f"hermes-supervise fleet lost {name}", table.COMMAND))
        for session in run["sessions"]:
            title = f"  {one_line(printable(session['title']))}" if session["title"] else ""
            notes.append((f"\u2514 {one_line(printable(session['session']))}{title}", ""))
            if state == "lost" or run["went_on"]:
                command = f"hermes-supervise fleet recover {printable(session['session'])}"
                notes.append((command, table.COMMAND))
        cells = [run["run"], one_line(printable(names.get(run["machine"], "unknown"))),
                 state + where, f"{run['records']:,}", ago(run["heard"], now)]  # fmt: skip
        rows.append(Row(cells, {0: "bold", 2: STYLES.get(state, "")}, notes))
    columns = [Column("RUN"), Column("MACHINE"), Column("STATE"), Column("RECORDS", right=True),
               Column("LAST RECORD", least=8)]  # fmt: skip
    return [*lines, "", *table.render(columns, rows, styled)]
