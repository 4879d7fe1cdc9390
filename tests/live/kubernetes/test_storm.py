"""A short storm of faults: nothing is given twice, no gang stays half bound, every pod is bound in the end."""

from __future__ import annotations

import pytest

from tests.live.kubernetes.conftest import Played
from tests.live.kubernetes.server import Server
from tests.live.kubernetes.storm import Storm
from tests.live.kubernetes.world import World


@pytest.mark.slow
@pytest.mark.usefixtures("kube_scheduler")
def test_a_storm_of_kills_gives_nothing_twice_and_leaves_no_pod_behind(play: Played, server: Server) -> None:
    async def test(world: World) -> None:
        storm = Storm(world, server, seed=1)
        await storm.run(1)  # each fault once
        assert len(storm.faults) == 6
        assert storm.given_twice == 0
        assert storm.without_berth == storm.faults["both steerers killed"]

    play(test)
