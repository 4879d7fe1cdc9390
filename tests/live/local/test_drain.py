"""GPUs on which an operator lets nothing new start."""

from __future__ import annotations

import pytest

from berth.errors import LiveError
from tests.live.local.world import World


def test_nothing_starts_on_a_drained_gpu_even_after_a_restart_until_it_is_given_back(world: World) -> None:
    world.ask("drain", gpus=[0], on=True)
    first, second = world.submit("sleep 60", gpus=1), world.submit("sleep 60", gpus=1)
    world.until(lambda: world.state_of(first) == "running", "the first runs")
    assert world.job(first)["slots"] == [1]
    world.kill_broker()
    world.up()
    assert [gpu["drained"] for gpu in (world.status() or {})["gpus"]] == [True, False]
    assert world.state_of(second) == "waiting"
    with pytest.raises(LiveError, match="there is no GPU 7; this machine's GPUs: 0, 1"):
        world.ask("drain", gpus=[7], on=True)
    world.ask("drain", gpus=[0], on=False)
    world.until(lambda: world.state_of(second) == "running", "the second runs")
    assert world.job(second)["slots"] == [0]
    world.ask("cancel", ids=[first, second])
