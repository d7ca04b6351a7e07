"""`hermes-supervise hooks`: list the queue of end-of-session hooks, retry and forget hooks.

Never runs a hook again that succeeded, and never shows the input of a hook.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from ...hooks import queue
from ...hooks.entry import Entry
from ...model.text import printable
from ..errors import PROBLEMS, Parser
from ..output import pager, replicated, style, table
from ..output.formatting import number, one_line
from ..output.table import Column, Row
from .recover import run_hooks

_STYLES = {"failed": "yellow", "dead": "red", "running": "green"}
_DONE_SHOWN = 20
_OUTPUT_SHOWN = 3

Hooks = list[tuple[str, Entry]]


def parser() -> argparse.ArgumentParser:
    command = Parser(
        prog="hermes-supervise hooks",
        description="List pending, running, failed, abandoned and recently completed hooks.",
    )
    style.add_options(command)
    subcommands = command.add_subparsers(dest="subcommand", metavar="list|retry|forget")
    listing = subcommands.add_parser("list", help="list all hooks (the default)")
    retrying = subcommands.add_parser("retry", help="retry failed or abandoned hooks now")
    forgetting = subcommands.add_parser(
        "forget", help="remove hooks from the queue; pending ones will not run"
    )
    for sub, verb in ((retrying, "retry"), (forgetting, "forget")):
        sub.add_argument("id", nargs="*", metavar="ID", help="hook ids, or their first characters")
        what = "failed and abandoned" if verb == "retry" else "abandoned and done"
        sub.add_argument("--all", action="store_true", help=f"{verb} all {what} hooks")
    for sub in (listing, retrying, forgetting):
        style.add_options(sub, subcommand=True)
    return command


def main(argv: list[str]) -> int:
    args = parser().parse_args(argv)
    if args.subcommand in ("retry", "forget"):
        if bool(args.id) == args.all:
            parser().error(f"name the hooks to {args.subcommand}: ID..., or --all")
        return _retry(args) if args.subcommand == "retry" else _forget(args)
    _print(list(queue.all_entries()), args)
    return 0


def _named(ids: list[str], hooks: Hooks) -> tuple[Hooks, list[str]]:
    """The hooks with these ids, and a problem for each id that does not name one hook."""
    chosen: Hooks = []
    problems = []
    for id in ids:
        found = [(state, entry) for state, entry in hooks if entry.id.startswith(id)]
        if len(found) == 1:
            chosen += found
        else:
            problems.append(f"{id}: {'matches several hooks' if found else 'no such hook'}")
    return chosen, problems


def _retry(args: argparse.Namespace) -> int:
    hooks = list(queue.all_entries())
    chosen, problems = _named(args.id, hooks)
    problems += [f"{entry.id}: already done" for state, entry in chosen if state == "done"]
    chosen = [(state, entry) for state, entry in chosen if state != "done"]
    if args.all:
        chosen = [(state, entry) for state, entry in hooks if state in ("failed", "dead")]
    for state, entry in chosen:
        if state == "dead":
            queue.retry_abandoned(entry)
        elif state == "failed" and not queue.retry_failed(entry):
            problems.append(f"{entry.id}: waits for another hook of the same process")
    finished = run_hooks()
    ids = {entry.id for _, entry in chosen}
    after = [(state, entry) for state, entry in queue.all_entries() if entry.id in ids]
    _print(after, args, problems=problems, nothing="no hooks to retry")
    if not finished and not args.json:
        print("still running; continuing in the background")
    failed = any(state in ("failed", "dead") for state, _ in after)
    return PROBLEMS if problems or failed else 0


def _forget(args: argparse.Namespace) -> int:
    hooks = list(queue.all_entries())
    chosen, problems = _named(args.id, hooks)
    if args.all:
        chosen = [(state, entry) for state, entry in hooks if state in ("dead", "done")]
    forgotten = []
    for _, entry in chosen:
        if queue.forget(entry):
            forgotten.append(entry.id)
        else:
            problems.append(f"{entry.id}: it is running, or waits for a hook that is")
    if args.json:
        print(json.dumps({"forgotten": forgotten, "problems": problems}, indent=2))
    else:
        for problem in problems:
            print(printable(problem))
        print(f"forgot {number(len(forgotten), 'hook')}")
    return PROBLEMS if problems else 0


# -- list ------------------------------------------------------------------------------------


def _print(
    hooks: Hooks,
    args: argparse.Namespace,
    *,
    problems: list[str] | None = None,
    nothing: str = "no hooks are pending, and none ran recently",
) -> None:
    dropped = queue.dropped()
    if args.json:
        answer = {
            "hooks": [_as_dict(state, entry) for state, entry in hooks],
            "dropped": dropped,
            "problems": problems or [],
        }
        print(json.dumps(answer, indent=2))
        return
    done = [hook for hook in hooks if hook[0] == "done"]
    shown = [hook for hook in hooks if hook[0] != "done"] + done[-_DONE_SHOWN:]
    columns = [Column("HOOK"), Column("STATE", least=20), Column("EVENT"),
               Column("SESSION", least=12)]  # fmt: skip
    rows = [_row(state, entry) for state, entry in shown]
    lines = table.render(columns, rows, style.for_output(args)) if rows else []
    lines += [printable(problem) for problem in problems or ()]
    if dropped:
        lines.append(f"{number(dropped, 'older abandoned hook')} no longer kept")
    if not hooks and not problems:
        lines.append(nothing)
    pager.show(lines)


def _row(state: str, entry: Entry) -> Row:
    cells = [entry.id, _state(state, entry), entry.event, one_line(printable(entry.session))]
    notes = [(one_line(printable(entry.command)), "dim")]
    if state in ("failed", "dead"):
        output = entry.attempts[-1].get("output", "").splitlines()[-_OUTPUT_SHOWN:]
        notes += [(f"| {printable(line)}", "") for line in output]
        notes.append((f"hermes-supervise hooks retry {entry.id}", table.COMMAND))
    return Row(cells, {0: "bold", 1: _STYLES.get(state, "")}, notes)


def _state(state: str, entry: Entry) -> str:
    """The state as people read it, with when and which attempt."""
    last = entry.attempts[-1] if entry.attempts else {}
    attempt = f"attempt {len(entry.attempts)}"
    if state == "done":
        again = f" ({attempt})" if len(entry.attempts) > 1 else ""
        return f"done {_clock(last['ended'])}{again}"
    if state == "running":
        return f"running since {_clock(last['at'])} ({attempt})"
    if state == "failed":
        retry = _clock(entry.due_at(time.time()))
        return f"failed: {printable(last['outcome'])} ({attempt}), retry at {retry}"
    if state == "dead":
        return f"abandoned: {printable(last['outcome'])} ({attempt})"
    why = replicated.why_hooks_wait(entry.run)
    return f"pending since {_clock(entry.queued)}" + (f": {printable(why)}" if why else "")


def _as_dict(state: str, entry: Entry) -> dict[str, Any]:
    last = entry.attempts[-1] if entry.attempts else {}
    return {
        "id": entry.id,
        "state": state,
        "event": entry.event,
        "kind": entry.kind,
        "session": entry.session,
        "run": entry.run,
        "command": entry.command,
        "queued": entry.queued,
        "attempts": len(entry.attempts),
        "outcome": last.get("outcome"),
        "output": last.get("output", ""),
        "last": last.get("at"),
        "next": entry.due_at(time.time()) if state == "failed" else None,
    }


def _clock(at: float) -> str:
    today = time.strftime("%Y-%m-%d", time.localtime(at)) == time.strftime("%Y-%m-%d")
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M", time.localtime(at))
