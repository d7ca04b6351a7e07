"""The scripted model and the terminal that the real agents run with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hermes_supervise.supervisor.cli.proof.scripted_model import ScriptedModel
from support import World
from tmux import Tmux


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    made = ScriptedModel()
    yield made
    made.close()


@pytest.fixture
def window(world: World) -> Iterator[Tmux]:
    made = Tmux(world)
    yield made
    made.close()
