from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hermes_world import Model
from hypothesis import HealthCheck, settings
from support import World

# Children inherit what is ignored: a run under nohup, or in the background of a script, would
# otherwise have no hangup and no Ctrl-C to test.
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)

# How fast a machine makes up examples, or goes through one, says nothing about the product.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests with the mark `both_platforms` run with Linux' own platform, and with the portable one
    that other systems have (supervisor/process/platform.py). `needs_linux` says why one cannot."""
    marked = metafunc.definition.get_closest_marker
    if marked("both_platforms") and not marked("needs_linux") and "world" in metafunc.fixturenames:
        metafunc.parametrize("world", ["linux", "portable"], indirect=True)


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    # A socket's path must be short, and pytest's folders are not.
    runtime = Path(tempfile.mkdtemp(prefix="hs"))
    world = World(tmp_path, runtime, getattr(request, "param", "linux"))
    try:
        yield world
    finally:
        world.close()
        shutil.rmtree(runtime, ignore_errors=True)
    world.prove_sound()


@pytest.fixture
def model() -> Iterator[Model]:
    model = Model()
    yield model
    model.close()
