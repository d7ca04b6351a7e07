"""A gateway's day, shortened: `make soak` is the whole of it."""

from __future__ import annotations

import soak
from support import World


def test_nothing_piles_up_and_nothing_is_left(world: World) -> None:
    assert len(soak.soak(world, 200, checkpoint=1.0)) == 19
