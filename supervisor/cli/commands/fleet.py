"""`hermes-supervise fleet`: the sessions of every machine on the replica; recovers those of a lost
one.

Never decides that a machine is lost: a person or the platform says so, or the user has set how long
a machine may be silent; and only when its lease is over.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from typing import Any

from ....ipc.lightweight.dataclass import asdict
from ...model.text import printable, storable
from ...process import launch
from ...replica import places, seal, tables
from ...replica.conninfo import checked
from ...run import lost_machine, notice
from ...storage import run_folder as runs
from ..arguments import parse, settings_file
from ..errors import PROBLEMS, USAGE, CommandError, Parser
from ..fleet import doctor, listing, page
from ..output import style
from ..output.formatting import number, one_line
from ..output.progress import Progress
from .recover import run_hooks
from .report import write_page

# How often a command that waits asks the database.
_LOOK = 2.0
_INSTALL = "install hermes-supervise[postgres] to use a replica (psycopg cannot be loaded: {})"


def parser() -> argparse.ArgumentParser:
    command = Parser(
        prog="hermes-supervise fleet",
        description="The sessions of every machine that ships its journal to the replica. "
        "Without a subcommand, list them.",
    )
    parts = command.add_subparsers(dest="what", metavar="WHAT")
    helps = {
        "list": "list machines, runs and sessions",
        "recover": "write the sessions of a silent or lost machine to this one's state.db",
        "lost": "declare a machine lost: where its sessions are recovered, their hooks are run",
        "report": "write the list as one self-contained HTML page",
        "forget": "delete finished runs from the replica",
        "init": "make the tables, once for a database",
        "migrate": "bring the tables to the version of this hermes-supervise",
        "doctor": "check connection, rights, clock, lag and what the server promises",
        "key": "make a key file, to encrypt records before they leave",
    }
    made = {name: parts.add_parser(name, help=text) for name, text in helps.items()}
    made["recover"].add_argument("session", nargs="*", metavar="SESSION",
                                 help="an id or its first characters")  # fmt: skip
    made["recover"].add_argument("--all-lost", action="store_true",
                                 help="every session of every lost machine")  # fmt: skip
    made["recover"].add_argument("--db", metavar="PATH", help="the state.db to write to")
    made["lost"].add_argument("machine", metavar="MACHINE", help="its name or id")
    made["lost"].add_argument("--because", default="", metavar="TEXT", help="a note for others")
    made["lost"].add_argument("--wait", action="store_true",
                              help="wait until its lease is over, a minute at most")  # fmt: skip
    made["report"].add_argument("-o", "--output", metavar="FILE",
                                help="the file to write (default: standard output)")  # fmt: skip
    forget = made["forget"]
    forget.add_argument("session", nargs="*", metavar="SESSION",
                        help="every run in which this session was spoken")  # fmt: skip
    forget.add_argument("--machine", metavar="MACHINE", help="only runs of this machine")
    forget.add_argument("--older-than", metavar="DAYS", type=float,
                        help="only runs without a record for DAYS days")  # fmt: skip
    forget.add_argument("--even-unrecovered", action="store_true",
                        help="also runs that nobody has recovered, if their machine is gone",
    )  # fmt: skip
    forget.add_argument("--dry-run", action="store_true", help="only say how many runs")
    made["key"].add_argument("path", metavar="FILE", help="the file to make")
    for part in (command, *made.values()):
        part.add_argument("--replica", metavar="CONNINFO", default=argparse.SUPPRESS,
                          help="the database (default: the `replica` setting)")  # fmt: skip
        part.add_argument("--replica-key", metavar="FILE", default=argparse.SUPPRESS,
                          help="the key (default: the `replica_key` setting)")  # fmt: skip
        style.add_options(part, subcommand=part is not command)
    for part in (command, made["list"]):
        part.add_argument("-w", "--watch", action="store_true", default=argparse.SUPPRESS,
                          help="keep the list on screen, live; q leaves")  # fmt: skip
    return command


def main(argv: list[str]) -> int:
    args = parser().parse_args(argv)
    if args.what == "key":
        return _make_key(args)
    chosen, _ = parse([])
    if getattr(args, "replica_key", None) is not None:
        chosen.replica_key = os.path.abspath(args.replica_key)
    where = getattr(args, "replica", None) or chosen.replica
    if where is None:
        raise CommandError(
            "no replica is set; use --replica CONNINFO, HERMES_SUPERVISE_REPLICA or `replica` in "
            "config.toml", USAGE,
        )  # fmt: skip
    try:
        checked(where)
    except ValueError as error:
        raise CommandError(f"--replica: not {error}", USAGE) from None
    try:
        from ...replica import server  # psycopg is an extra
    except ImportError as error:
        raise CommandError(_INSTALL.format(error)) from None
    commands = {
        None: _list, "list": _list, "report": _report, "recover": _recover, "lost": _lost,
        "forget": _forget, "init": _init, "migrate": _migrate, "doctor": _doctor,
    }  # fmt: skip
    try:
        return commands[args.what](args, chosen, where)
    except (server.Unreachable, server.NotReady) as error:
        raise CommandError(f"the replica cannot be used: {error}") from None


def _sealer(chosen: Any) -> seal.Sealer:
    try:
        return seal.load(chosen.replica_key)
    except seal.KeyProblem as error:
        raise CommandError(str(error)) from None


def _server(where: str, *, check: bool = True) -> Any:
    from ...replica.server import Server  # psycopg is an extra

    return Server(where, check=check)


# -- list --------------------------------------------------------------------------------------


def _list(args: argparse.Namespace, chosen: Any, where: str) -> int:
    if getattr(args, "watch", False):
        return _watch(args, chosen, where)
    found = _look(chosen, where)
    if args.json:
        print(json.dumps(found, indent=2))
    else:
        print("\n".join(listing.lines(found["machines"], found["runs"], style.for_output(args))))
    return 0


def _look(chosen: Any, where: str) -> listing.Found:
    server = _server(where)
    try:
        return listing.look(server, _sealer(chosen))
    finally:
        server.close()


def _watch(args: argparse.Namespace, chosen: Any, where: str) -> int:
    if args.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CommandError("--watch needs a terminal, and cannot be combined with --json", USAGE)
    from ...replica.server import NotReady, Unreachable  # psycopg is an extra
    from ..output.live import show_live  # start-up: only for --watch

    sealer, styled = _sealer(chosen), style.for_output(args)
    server = _server(where)
    shown: list[str] = []

    def draw() -> list[str]:
        """The fleet now; while the database is gone, the last that was seen of it."""
        nonlocal server, shown
        head = time.strftime("machines and runs at %H:%M:%S; q leaves", time.localtime())
        try:
            if server is None:
                server = _server(where)
            found = listing.look(server, sealer)
            shown = listing.lines(found["machines"], found["runs"], styled)
        except (Unreachable, NotReady) as error:
            if server is not None:
                server.close()
            server = None
            head += f"; the replica cannot be used: {printable(one_line(str(error)))}"
        return [styled(head, "dim"), "", *shown]

    try:
        show_live(draw)
    finally:
        if server is not None:
            server.close()
    return 0


def _report(args: argparse.Namespace, chosen: Any, where: str) -> int:
    if args.output is None and sys.stdout.isatty():
        raise CommandError(
            "not printing HTML to a terminal; write it to a file:\n"
            "  hermes-supervise fleet report -o fleet.html", USAGE,
        )  # fmt: skip
    found = _look(chosen, where)
    write_page(storable(page.page(found["machines"], found["runs"])), args.output)
    return 0


# -- lost --------------------------------------------------------------------------------------


def _lost(args: argparse.Namespace, chosen: Any, where: str) -> int:
    server = _server(where)
    try:
        machine = _named(server.machines(), args.machine)
        while args.wait and machine["state"] == "alive":
            time.sleep(max(0.1, min(machine["lease"], _LOOK)))
            machine = _named(server.machines(), machine["machine"])
        if machine["state"] == "alive":
            left = f"{machine['lease']:.0f} s"
            raise CommandError(
                f"machine {printable(machine['name'])} has reported to the database just now; "
                f"it can be declared lost once its lease is over, in {left}", PROBLEMS,
            )  # fmt: skip
        if machine["state"] == "stale" and not server.lose(machine["machine"], args.because):
            raise CommandError("it has just reported to the database: it is not lost", PROBLEMS)
        _ask_for_hooks(server, where)
        if args.json:
            print(json.dumps({"lost": machine["machine"]}))
        else:
            next_step = "recover its sessions with `hermes-supervise fleet recover --all-lost`"
            print(f"machine {printable(machine['name'])} is declared lost; {next_step}")
    finally:
        server.close()
    run_hooks()
    return 0


def _ask_for_hooks(server: Any, where: str) -> list[str]:
    """Of what was recovered here, whether the hooks may run by now; the runs whose hooks wait."""
    me, target = places.machine(), places.target_folder(where)
    for run in places.waiting_claims(target):
        claim = places.claim_of(target, run)
        answer = server.ask_for_hooks(me, claim["machine"], claim["run"], claim["lost_after"])
        places.answer_claim(target, run, *answer)
    return places.waiting_claims(target)


def _named(machines: list[dict[str, Any]], word: str) -> dict[str, Any]:
    found = [machine for machine in machines if word in (machine["machine"], machine["name"])]
    if len(found) == 1:
        return found[0]
    if not found:
        raise CommandError(f"no machine {printable(word)}; `hermes-supervise fleet` lists them",
                           USAGE)  # fmt: skip
    ids = ", ".join(machine["machine"] for machine in found)
    raise CommandError(f"several machines are called {printable(word)}; use an id: {ids}", USAGE)


# -- recover -----------------------------------------------------------------------------------


def _recover(args: argparse.Namespace, chosen: Any, where: str) -> int:
    if bool(args.session) == args.all_lost:
        raise CommandError("name a session, or use --all-lost", USAGE)
    gc.disable()  # the collector would walk through every message again and again
    runs.runs_folder()  # raises if it cannot be used
    chosen.db = args.db or chosen.db
    server, target = _server(where), places.target_folder(where)
    try:
        if chosen.replica_lost_after:
            _lose_silent(server, chosen.replica_lost_after)
        machines = {machine["machine"]: machine for machine in server.machines()}
        wanted = _wanted(server, args, machines)
        reports, failed = [], {}
        progress = Progress(len(wanted))
        for machine, run in wanted:
            progress.begin_run()
            try:
                reports += lost_machine.recover(
                    server, target, machines[machine], run, chosen, progress.wrote
                )
            except lost_machine.Refused as error:
                failed[run] = str(error)
        progress.end()
        waiting = {r: places.claim_of(target, r)["name"] for r in _ask_for_hooks(server, where)}
    finally:
        server.close()
    hooks_continue = not run_hooks()
    complete = not failed and all(report.complete for report in reports)
    if args.json:
        answer = {"recovered": [asdict(report) for report in reports], "failed": failed,
                  "hooks_wait": waiting}  # fmt: skip
        print(json.dumps(answer, indent=2))
        return 0 if complete else PROBLEMS
    styled = style.for_output(args)
    for report in reports:
        outcome = styled(report.outcome, "green" if report.complete else "red")
        print(f"{styled(printable(report.session), 'bold')}  {outcome}; {notice.recovered(report)}")
        for problem in report.problems:
            print(f"    {styled(printable(problem), 'yellow')}")
        if report.resume:
            print(f"    {notice.supervised(report.resume)}")
    for run, why in failed.items():
        launch.say(f"run {run} was not recovered: {printable(why)}")
    if not reports and not failed:
        print("nothing to recover")
    for name in sorted(set(waiting.values())):
        print(f"hooks wait: machine {printable(name)} is silent, not declared lost; if it is gone "
              f"for good, run `hermes-supervise fleet lost {printable(name)}`")  # fmt: skip
    if hooks_continue and not waiting:
        print("hooks continue in the background; see `hermes-supervise hooks`")
    return 0 if complete else PROBLEMS


def _lose_silent(server: Any, seconds: float) -> None:
    for machine in server.machines():
        if machine["state"] == "stale":
            server.lose(machine["machine"], f"silent for more than {seconds:.0f} s", seconds)


def _wanted(
    server: Any, args: argparse.Namespace, machines: dict[str, dict[str, Any]]
) -> list[tuple[str, str]]:
    """Machine and run of what is to be recovered, each once."""
    wanted: dict[tuple[str, str], None] = {}
    if args.all_lost:
        me = places.machine()
        for run in server.runs():
            state = listing.state_of(run, machines)
            unfinished = state == "recovering" or (
                state == "recovered" and run["heard"] > run["recovered_at"]
            )
            if state == "lost" or (unfinished and run["claimed_by"] == me):
                wanted[run["machine"], run["run"]] = None
    for word in args.session:
        machine, run, _ = _runs_of(server, word)[-1]
        wanted[machine, run] = None
    return list(wanted)


# -- forget ------------------------------------------------------------------------------------


def _forget(args: argparse.Namespace, chosen: Any, where: str) -> int:
    if not (args.session or args.machine or args.older_than is not None):
        raise CommandError("name a session, or use --machine or --older-than", USAGE)
    server = _server(where)
    try:
        machine = _named(server.machines(), args.machine)["machine"] if args.machine else None
        older = (args.older_than or 0.0) * 86400.0
        candidates = server.forgettable(machine, older)
        if args.session:
            spoken = _spoken_in(server, args.session)
            candidates = [
                candidate for candidate in candidates if (candidate[0], candidate[1]) in spoken
            ]
        done, kept = [], {}
        for owner, run, is_open, is_alive in candidates:
            if is_open and (is_alive or not args.even_unrecovered):
                kept[run] = (
                    "it is running" if is_alive
                    else "nobody has recovered it; --even-unrecovered deletes it all the same"
                )  # fmt: skip
            elif args.dry_run or server.forget_run(owner, run, even_open=args.even_unrecovered):
                done.append(run)
            else:
                kept[run] = "another machine recovers it just now"
        if machine is not None and not kept and not args.dry_run and not args.session:
            server.forget_machine(machine)
    finally:
        server.close()
    # What is asked for by age, or for a whole machine, is understood to leave what is in use.
    refused = bool(args.session) and bool(kept)
    if args.json:
        print(json.dumps({"forgotten": done, "kept": kept, "dry_run": args.dry_run}, indent=2))
        return PROBLEMS if refused else 0
    verb = "would be deleted" if args.dry_run else "deleted"
    print(f"{number(len(done), 'run')} {verb} from the replica" if done else "nothing deleted")
    for run, why in kept.items():
        launch.say(f"run {run} is kept: {why}")
    return PROBLEMS if refused else 0


def _spoken_in(server: Any, words: list[str]) -> set[tuple[str, str]]:
    """The runs in which sessions were spoken."""
    return {(machine, run) for word in words for machine, run, _ in _runs_of(server, word)}


def _runs_of(server: Any, word: str) -> list[tuple[str, str, str]]:
    """Machine, run and session id of the runs of one session, the latest last."""
    found: list[tuple[str, str, str]] = server.runs_of(word)
    if not found:
        raise CommandError(f"no session {printable(word)} on the replica", USAGE)
    ids = {id for _, _, id in found}
    if len(ids) > 1:
        some = ", ".join(printable(id) for id in sorted(ids)[:5])
        raise CommandError(f"several sessions begin so: {some}", USAGE)
    return found


# -- init and doctor ---------------------------------------------------------------------------


def _make_key(args: argparse.Namespace) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    folder = os.path.dirname(os.path.abspath(args.path))
    try:
        if folder == os.path.dirname(settings_file()):
            os.makedirs(folder, 0o700, exist_ok=True)  # as the documented place may not be there
        with open(os.open(args.path, flags, 0o600), "w") as file:
            file.write(seal.new_key())
    except FileExistsError:
        raise CommandError(f"{printable(args.path)} exists already; it is left alone") from None
    except OSError as error:
        raise CommandError(f"cannot make {printable(args.path)}: {error.strerror}") from None
    text = "keep a copy where the loss of this machine cannot reach it: without the key, what is "
    text += "on the replica cannot be recovered"
    print(json.dumps({"key": args.path}) if args.json else f"{printable(args.path)} made; {text}")
    return 0


def _init(args: argparse.Namespace, chosen: Any, where: str) -> int:
    return _prepare(args, where, create=True)


def _migrate(args: argparse.Namespace, chosen: Any, where: str) -> int:
    return _prepare(args, where, create=False)


def _prepare(args: argparse.Namespace, where: str, *, create: bool) -> int:
    server = _server(where, check=False)
    try:
        before, now = server.migrate(create=create)
    finally:
        server.close()
    if args.json:
        print(json.dumps({"ready": now == tables.VERSION, "before": before, "version": now}))
    elif now == 0:
        raise CommandError("there are no tables yet; `hermes-supervise fleet init` makes them")
    elif now < tables.VERSION:
        raise CommandError(
            f"the tables are of version {now}; `hermes-supervise fleet migrate` brings them to "
            f"version {tables.VERSION}"
        )
    elif before not in (0, now):
        print(f"the tables were brought from version {before} to {now}")
    else:
        print(f"the database is ready (tables of version {now})")
    return 0 if now == tables.VERSION else PROBLEMS


def _doctor(args: argparse.Namespace, chosen: Any, where: str) -> int:
    findings = doctor.findings(where, chosen.replica_key)
    bad = any(verdict == "bad" for _, verdict, _ in findings)
    if args.json:
        names = ("about", "verdict", "text")
        print(
            json.dumps([dict(zip(names, finding, strict=True)) for finding in findings], indent=2)
        )
    else:
        styled = style.for_output(args)
        colours = {"ok": "green", "note": "yellow", "bad": "red"}
        for about, verdict, text in findings:
            print(f"{styled(f'{verdict:<5}', colours[verdict])} {about:<12} {printable(text)}")
    return PROBLEMS if bad else 0
