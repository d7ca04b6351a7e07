"""Hermes in the shapes that later releases have, or may have, behind every launcher, and with
methods under other names, killed at every moment that `test_hermes_moments` knows: nothing lost,
nothing twice.

SLOW=all (`make test-drift`) renames every method by itself, on both releases.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hermes_drift import SHAPES, TAPPED, Drifted, renamed
from hermes_launchers import script, store
from support import World, short
from test_hermes_moments import (  # noqa: F401
    SERVER,
    VERSIONS,
    Talk,
    check_history,
    continuation,
    rows_of,
    run_and_kill,
    test_killed_before_the_first_word_of_an_answer,
    test_killed_between_a_message_and_the_tool_it_calls,
    test_killed_while_a_summary_is_made_for_a_continuation,
    test_killed_while_a_summary_is_made_or_used_in_place,
    test_killed_while_it_thinks,
)
from test_hermes_moments import (
    test_killed_in_the_first_reply_of_a_continuation as _the_summary_is_kept,
)
from test_hermes_moments import (
    test_killed_when_one_of_two_parallel_tools_is_done as _the_first_result_is_kept,
)
from test_hermes_moments import (
    test_killed_when_the_continuation_has_a_row_and_nothing_in_it as _the_continuation_is_filled,
)

# What a rotation is known by. The others are renamed one by one where there is time for it.
OF_A_ROTATION = ("_compress_context", "create_session", "end_session")
ALL = os.environ.get("SLOW") == "all"
LAUNCHERS = ("bash launcher", "two launchers and -I", "child with another PYTHONPATH")
AXIS = [
    *[(version, shape) for shape in SHAPES for version in VERSIONS],
    *[(version, name) for name in LAUNCHERS for version in VERSIONS],
    *[(version, f"renamed {name}")
      for place, name in enumerate(TAPPED if ALL else OF_A_ROTATION)
      for version in (VERSIONS if ALL else VERSIONS[place % 2 :][:1])],
]  # fmt: skip

# A module that Hermes starts as a process of its own. What it runs is the test's program.
OWN = "batch_runner"
STARTS = """
import hermes_cli, run_agent, subprocess
words = [*__import__("json").loads(sys.argv[1]), sys.argv[2]]
os.environ["PYTHONPATH"] = "/replaced/by/hermes"
child = subprocess.Popen(words, env={name: value for name, value in os.environ.items()
                                     if not name.startswith("HERMES_SUPERVISE")})
with open(os.environ["FLAGS"] + "/child", "w") as file:
    file.write(str(child.pid))
child.wait()
"""


def bash_launcher(hermes: Drifted, program: str) -> list[str]:
    """The script of the installers up to 0.20."""
    text = f'#!/bin/bash\nunset PYTHONPATH\nexec "{hermes.python}" "{program}" "$@"\n'
    return [script(hermes.world.folder / "local" / "hermes", text)]


def isolated(hermes: Drifted, program: str) -> list[str]:
    """What the installer of 0.21 leaves."""
    made = store(hermes, module=OWN)
    made.add(OWN, program)
    return [made.command]


def child(hermes: Drifted, program: str) -> list[str]:
    """Hermes starts Hermes, isolated, and has replaced PYTHONPATH before."""
    made = store(hermes)
    made.add(OWN, program)
    starter = hermes.world.script(STARTS)
    return [hermes.python, starter, json.dumps(made.child(OWN))]


STARTED: dict[str, Callable[[Drifted, str], list[str]]] = dict(
    zip(LAUNCHERS, (bash_launcher, isolated, child), strict=True)
)


@pytest.fixture(scope="module", params=AXIS, ids=lambda param: f"{param[1]}-{param[0]}")
def killed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Drifted]:
    version, shape = request.param
    runtime = Path(tempfile.mkdtemp(prefix="hs"))
    world, model = World(tmp_path_factory.mktemp("drift"), runtime), Talk()
    try:
        hermes = Drifted(version, world, model)
        source, start = SERVER, None
        if shape.startswith("renamed "):
            hermes.take(rename=renamed((shape.removeprefix("renamed "),)))
            source = hermes.adapted(SERVER)
        elif shape in STARTED:
            start = functools.partial(STARTED[shape], hermes)
        else:
            hermes.take(shape)
        if shape == "async":
            source = "import asyncio\n" + SERVER.replace(
                "agent.run_conversation(", "result = agent.run_conversation("
            ).replace(
                "conversation_history=past)", "conversation_history=past); asyncio.run(result)"
            )
        # Tools that run side by side are put into the list of messages when all are done.
        each_result = "_invoke_tool" not in hermes.renamed_names
        run_and_kill(hermes, model, source, start, each_result=each_result)
        yield hermes
    finally:
        model.close()
        world.close()
        shutil.rmtree(runtime, ignore_errors=True)


def test_killed_when_the_continuation_has_a_row_and_nothing_in_it(killed: Drifted) -> None:
    if "create_session" not in killed.renamed_names:
        _the_continuation_is_filled(killed)
        return
    # Nothing tells of the continuation before it is used: all is in the session that it continues.
    parent, rows = rows_of(killed, "torn")
    check_history(rows, "torn")
    assert parent["end_reason"] == "compression"
    assert rows_of(killed, continuation(killed, "torn"))[1] == []


def test_killed_when_one_of_two_parallel_tools_is_done(killed: Drifted) -> None:
    if "_invoke_tool" not in killed.renamed_names:
        _the_first_result_is_kept(killed)
        return
    session, rows = rows_of(killed, "parallel")
    assert [row["role"] for row in rows] == ["user", "assistant", "tool", "tool"]
    assert all("unknown" in row["content"] for row in rows[2:])
    assert session["end_reason"] == "interrupted"


def test_killed_in_the_first_reply_of_a_continuation(killed: Drifted) -> None:
    if "_compress_context" not in killed.renamed_names or killed.version != "0.13.0":
        _the_summary_is_kept(killed)
        return
    # Nothing tells of the shorter list before it is stored, which 0.13.0 does when the turn ends.
    parent, rows = rows_of(killed, "rotated")
    check_history(rows, "rotated")
    assert parent["end_reason"] == "compression"
    child, rows = rows_of(killed, continuation(killed, "rotated"))
    check_history(rows[:-1], "rotated")
    assert short(rows[-1:]) == [("assistant", "And then ")]
    assert child["end_reason"] == "interrupted"
