"""`make torture`, or `python -m torture`: the campaign's command line."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile

from . import campaign, judge, record
from .wide.plan import KINDS


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="torture", description="Random lives, real deaths.")
    parser.add_argument("--seed", default="", help="default: a fresh one, which is printed")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--kills", type=int, default=0, help="stop after so many")
    parser.add_argument("--jobs", type=int, default=3 * (os.cpu_count() or 1))
    parser.add_argument("--real", type=float, default=0.01, metavar="SHARE",
                        help="of scenarios that go through the command line")  # fmt: skip
    parser.add_argument("--wide", type=float, default=0.05, metavar="SHARE",
                        help="of scenarios of the wider campaign")  # fmt: skip
    parser.add_argument("--kind", choices=KINDS, default="", metavar="KIND",
                        help=f"only this kind of them: {', '.join(KINDS)}")  # fmt: skip
    parser.add_argument("--product", default="", metavar="FOLDER",
                        help="with --kind: a folder with another hermes_supervise/")  # fmt: skip
    parser.add_argument("--only", metavar="SEED:NUMBER", help="this scenario alone")
    parser.add_argument("--again", type=int, default=1, metavar="N", help="with --only: N times")
    parser.add_argument("--folder", help="default: one in memory, if there is any")
    parser.add_argument("--record", action="store_true", help="write docs/torture.* anew")
    return parser


def main() -> int:
    given = arguments().parse_args()
    seed = given.seed or os.urandom(4).hex()
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = given.folder or tempfile.mkdtemp(prefix="hst", dir=memory)
    wanted = campaign.Wanted(
        seed, given.jobs, given.seconds, given.kills, given.real, folder, given.only, given.again,
        wide=given.wide, kind=given.kind, product=given.product,
    )  # fmt: skip
    print(f"seed {seed}, {given.jobs} workers, in {folder}", flush=True)
    total = campaign.run(wanted)
    print(campaign.progress(total, total.seconds))
    for who, count in sorted(total.kills.items()):
        print(f"    {count:8} {who}")
    counts = dict.fromkeys(judge.CATEGORIES, 0)
    for violation in total.violations:
        counts[violation["category"]] += 1
    print(", ".join(f"{name} {count}" for name, count in counts.items()))
    for violation in total.violations:
        kind = f" ({violation['kind']})" if "kind" in violation else ""
        print(
            f"\n{violation['category'].upper()} in {violation['seed']}{kind}, {violation['text']}"
        )
        print(f"kept: {violation['folder']}")
        again = f"--only {violation['seed']} --again 200 --real {given.real} --jobs {given.jobs}"
        again += f" --kind '{violation['kind']}'" if kind else f" --wide {given.wide}"
        print(f"again: {os.path.relpath(sys.executable)} -m torture {again}")
    if given.record:
        record.write(record.of(wanted, total))
    return 1 if total.violations else 0


if __name__ == "__main__":
    sys.exit(main())
