"""The examples of docs/replica.md, as they are typed: on a machine, and elsewhere if it is lost."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tomllib

import psycopg
from fleet import Fleet, Machine
from page_examples import ROOT, Example, examples

PAGE = "docs/replica.md"
SAYING = """
if "--resume" not in sys.argv:
    chat = session("SESSION", resume="hermes --resume SESSION")
    chat.message("user", "Fix the login page.")
    chat.delta("I look at it")
    assert chat.acknowledged(30)
    ready()
    forever()
"""


def shown(begins: str) -> Example:
    [found] = [
        example for example in examples(PAGE) if begins in example.text and not example.language
    ]
    return found


def prepared(fleet: Fleet) -> Machine:
    """A machine that knows the database as `service=agents`, and has a hermes."""
    machine = fleet.machine()
    del machine.env["HERMES_SUPERVISE_REPLICA"]
    known = psycopg.conninfo.conninfo_to_dict(fleet.url)
    lines = [f"{name}={value}" for name, value in known.items()]
    (machine.folder / ".pg_service.conf").write_text("\n".join(["[agents]", *lines, ""]))
    agent = [sys.executable, machine.script(SAYING)]
    bin = machine.folder / "bin"
    bin.mkdir()
    for name, words in (("hermes-supervise", machine.command), ("hermes", agent)):
        (bin / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        (bin / name).chmod(0o755)
    machine.env["PATH"] = f"{bin}:{machine.env['PATH']}"
    return machine


def type_in(lines: list[str], machine: Machine) -> str:
    """All lines in one shell, which stops at the first that fails."""
    done = subprocess.run(
        ["bash", "-e", "-u", "-c", "\n".join(lines)], env=machine.env, cwd=machine.folder,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def install(line: str) -> None:
    """Checked instead of typed: pip would need a package index."""
    words = shlex.split(line)
    name, _, extras = words[-1].removesuffix("]").partition("[")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (words[:2], name) == (["pip", "install"], project["name"])
    assert set(extras.split(",")) <= set(project["optional-dependencies"])


def test_a_lost_machine_is_recovered_as_the_page_says(fleet: Fleet) -> None:
    first, second = prepared(fleet), prepared(fleet)
    pip, init, start = shown("fleet init").typed()
    install(pip)
    type_in([init], first)
    agent = first.shell(f"exec {start}")
    agent.wait_for("ready")
    fleet.until_there("I look at it")
    machine = first.id
    first.lose()
    fleet.lease_is_over(machine)
    there = shown("fleet lost MACHINE").text.replace("MACHINE ", f"{machine} ").splitlines()
    printed = type_in(there, second)
    assert [row["content"] for row in second.messages("SESSION")] == [
        "Fix the login page.", "I look at it"
    ]  # fmt: skip
    assert "hermes-supervise -- hermes --resume SESSION" in printed
    page = [line.replace(" MACHINE", f" {machine}") for line in shown("fleet forget").typed()]
    second.env["HERMES_SUPERVISE_REPLICA"] = "service=agents"
    type_in(page, second)
    assert fleet.query("SELECT run FROM hermes_supervise.run WHERE machine = %s", machine) == []


def test_records_are_encrypted_as_the_page_says(fleet: Fleet) -> None:
    machine = prepared(fleet)
    pip, key, start = shown("fleet key").typed()
    install(pip)
    type_in([key], machine)
    agent = machine.shell(f"exec {start}")
    agent.wait_for("ready")
    agent.kill_agent()
    agent.finish()
    machine.until_shipped()
    assert fleet.bodies() and b"I look at it" not in fleet.bodies()
    assert machine.messages("SESSION"), "here it is as readable as before"
