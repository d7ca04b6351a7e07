from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hermes_world import Model
from support import World

# Children inherit what is ignored: a run under nohup, or in the background of a script, would
# otherwise have no hangup and no Ctrl-C to test.
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    # A socket's path must be short, and pytest's folders are not.
    runtime = Path(tempfile.mkdtemp(prefix="hs"))
    made = World(tmp_path, runtime)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(runtime, ignore_errors=True)
    made.prove_sound()


@pytest.fixture
def model() -> Iterator[Model]:
    made = Model()
    yield made
    made.close()
