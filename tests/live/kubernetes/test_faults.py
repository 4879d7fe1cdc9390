"""Faults of the cluster and of the steerer itself; after each it is seen from outside that nothing is given twice."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from typing import Any

import pytest

from berth.errors import ApiError
from berth.live.kubernetes import names, writing
from berth.live.kubernetes.objects import Lease
from berth.live.kubernetes.steering import Steering
from berth.live.kubernetes.steps import Lift
from tests.live.kubernetes.conftest import Played
from tests.live.kubernetes.server import Server
from tests.live.kubernetes.world import World

pytestmark = pytest.mark.usefixtures("kube_scheduler")


async def fill(world: World, first: int, count: int) -> list[str]:
    """Post pods of mixed parts; returns their names."""
    made = [f"p-{at:03}" for at in range(first, first + count)]
    for at, name in enumerate(made):
        await world.pod(name, milli=(250, 500, 100)[at % 3], mem=(20_000, 40_000, 8_000)[at % 3])
    return made


@pytest.mark.slow
def test_an_api_server_that_restarts_loses_nothing(play: Played, server: Server) -> None:
    async def test(world: World) -> None:
        for at in range(4):
            await world.node(f"n{at}", 4)
        first = await fill(world, 0, 12)
        async with world.steerer():
            await world.until_bound(*first)
            await asyncio.to_thread(server.stop_api, signal.SIGKILL)
            await asyncio.sleep(0.5)
            await asyncio.to_thread(server.start_api)
            second = await fill(world, 12, 12)
            await world.until_bound(*first, *second)
        # Counted from outside: the reply to a bind may be lost with the server that did it.
        await world.check()

    play(test)


@pytest.mark.slow
def test_a_watch_gap_is_closed_by_listing_anew(play: Played, server: Server) -> None:
    async def test(world: World) -> None:
        await world.node("n1", 2)
        await world.pod("goes", 2)
        async with world.steerer() as steering:
            await world.until_bound("goes")
            await asyncio.to_thread(server.stop_api, signal.SIGKILL)
            # What it knew last is older than what a server remembers that has just started.
            steering.pods._version = "1"
            await asyncio.to_thread(server.start_api)
            await world.delete("goes")
            await world.pod("comes", 2)
            await world.until_bound("comes")
            assert steering.pods.lists >= 2  # the watch alone did not do it
        await world.check()

    play(test)


@pytest.mark.slow
def test_a_vanished_node_gives_nothing_and_takes_nothing_with_it(play: Played) -> None:
    async def test(world: World) -> None:
        await world.node("n1", 2)
        await world.node("n2", 2)
        first = await fill(world, 0, 6)
        async with world.steerer():
            await world.until_bound(*first)
            await world.delete("n1", "nodes", None)
            second = await fill(world, 6, 12)
            await world.until_told(second[-1], "waits for room")
            after = await world.places()
            assert {after[name] for name in second if name in after} <= {"n2"}
            await world.check()
            for name in first:
                await world.delete(name)  # as the garbage collector does with those of the node
            await world.node("n1", 2)
            await world.until_bound(*second)
        await world.check()

    play(test)


@pytest.mark.slow
def test_a_steerer_that_dies_between_decision_and_patch_leaves_nothing_behind(
    play: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(world: World) -> None:
        await world.node("n1", 4)
        for at in range(4):
            await world.pod(f"gang-{at}", milli=900, annotations={names.GANG: "g/4"})
        real = writing.place
        bound: list[str] = []

        async def dies(api: object, step: Lift) -> None:
            if len(bound) >= 2:
                await asyncio.sleep(3600)  # killed here, with two of the gang bound
            bound.append(step.name)
            await real(api, step)  # type: ignore[arg-type]

        with monkeypatch.context() as patched:
            patched.setattr(writing, "place", dies)
            async with world.steerer():
                await world.until_bound(*await _two(world, bound))
        await world.pod("other", milli=900)
        async with world.steerer():
            await world.until_bound(*(f"gang-{at}" for at in range(4)))
            await world.until_told("other", "room")
        await world.check()

    play(test)


async def _two(world: World, bound: list[str]) -> list[str]:
    async def two() -> bool:
        return len(bound) == 2

    await world.until("two are bound", two)
    return bound


@pytest.mark.slow
def test_of_two_steerers_one_leads_and_the_other_takes_over(play: Played) -> None:
    async def test(world: World) -> None:
        for at in range(2):
            await world.node(f"n{at}", 2)
        async with world.steerer("second-to-come", elect=True) as first:
            names_ = await fill(world, 0, 6)
            await world.until_bound(*names_)
            async with world.steerer("waits", elect=True) as second:
                more = await fill(world, 6, 3)
                await world.until_bound(*more)
                await world.until_counted(9, first)
                assert second.counts.placed == 0
                await first.lease.release()  # loses it, as after a long pause
                last = await fill(world, 9, 3)
                await world.until_bound(*last)
                await world.until_counted(12, first, second)
                assert first.counts.failed == 0
        await world.check()

    play(test)


def test_a_steerer_that_is_stopped_gives_up_its_lease(play: Played) -> None:
    async def test(world: World) -> None:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{names.NAMESPACE}/leases/{names.LEASE}"
        await world.node("n1", 1)
        await world.pod("a")
        async with world.steerer("stopped", elect=True):
            await world.until_bound("a")
            assert (await world.api.get(path, Lease)).spec.holder_identity == "stopped"
        assert (await world.api.get(path, Lease)).spec.holder_identity == ""

    play(test)


@pytest.mark.slow
def test_a_pod_that_is_made_anew_at_its_patch_has_not_the_place_of_the_old_one(
    play: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(world: World) -> None:
        await world.node("n1", 1)
        await world.pod("goes")
        real = writing.place
        met: list[str] = []

        async def late(api: object, step: Lift) -> None:
            if not met:
                met.append(step.uid)
                await world.delete("goes")
                await world.pod("goes", milli=300, mem=1)  # another of the same name
            await real(api, step)  # type: ignore[arg-type]

        monkeypatch.setattr(writing, "place", late)
        async with world.steerer():

            async def right() -> bool:
                there = (await world.pods()).get("goes")
                if there is None:
                    return True
                return '"milli":300' in there["metadata"].get("annotations", {}).get(names.PLACEMENT, "")

            await world.until("the new pod does not hold the place of the old one", right)
        assert met
        await world.check()

    play(test)


NAMES = ("lost", "busy", "broken", "conflict", "plain")


def test_a_lost_answer_and_a_refusal_that_passes_are_lived_with(
    play: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(world: World) -> None:
        await world.node("n1", 5)
        real = Steering.__init__
        answers: dict[str, int] = {}

        def init(self: Steering, api: object, options: object) -> None:
            real(self, api, options)  # type: ignore[arg-type]
            once = self.api._once

            async def unreliable(method: str, path: str, *rest: object) -> bytes:
                if method == "PATCH" and path.rpartition("/")[2] in NAMES:
                    number = answers[path] = answers.get(path, 0) + 1
                    if number == 1 and "lost" in path:
                        await once(method, path, *rest)  # type: ignore[arg-type]
                        raise ApiError(path, 0, "Unreachable", "the answer is lost", 0.0)
                    if number <= 2 and "busy" in path:
                        raise ApiError(path, 429, "TooManyRequests", "slow down", 0.1)
                    if number == 1 and "conflict" in path:
                        raise ApiError(path, 409, "Conflict", "the object has been modified", None)
                    if number == 1 and "broken" in path:
                        raise ApiError(path, 500, "InternalError", "etcd is away", 0.0)
                return await once(method, path, *rest)  # type: ignore[arg-type]

            self.api._once = unreliable  # type: ignore[method-assign]

        monkeypatch.setattr(Steering, "__init__", init)
        for name in NAMES:
            await world.pod(name)
        async with world.steerer() as steering:
            await world.until_bound(*NAMES)
            await world.until_counted(5, steering)
            assert steering.counts.failed == 0
        assert sorted(answers.values()) == [1, 1, 2, 2, 3]
        await world.check()

    play(test)


@pytest.mark.slow  # a stall that patches do not outlast takes its time
def test_an_etcd_that_stalls_delays_pods_and_gives_nothing_twice(play: Played, server: Server) -> None:
    async def test(world: World) -> None:
        for at in range(4):
            await world.node(f"n{at}", 4)
        made = await fill(world, 0, 24)
        async with world.steerer(elect=True):

            async def begun() -> bool:
                return bool(await world.places())

            await world.until("some are bound", begun)
            with server.etcd_stalls():
                await asyncio.sleep(6)  # longer than a patch may take
            more = await fill(world, 24, 6)
            await world.until_bound(*made, *more, patience_s=120)
        await world.check()

    play(test)


def is_done(steering: Steering, pods: dict[str, Any]) -> bool:
    """Whether a steerer has seen these pods as they are now, has decided, and has done what it decided."""
    if steering._using_site.locked() or not steering._is_idle():
        return False
    seen = {pod.metadata.name: pod.metadata.resource_version for pod in steering.pods.values()}
    return seen == {name: pod["metadata"]["resourceVersion"] for name, pod in pods.items()}


@pytest.mark.slow
def test_two_who_both_take_themselves_for_the_leader_overcommit_nothing_for_long(play: Played) -> None:
    async def test(world: World) -> None:
        for at in range(2):
            await world.node(f"n{at}", 2)
        await fill(world, 0, 24)
        async with world.steerer("one") as one, world.steerer("two") as two:

            async def settled() -> bool:
                pods = await world.pods()
                waits = [name for name, pod in pods.items() if "nodeName" not in pod["spec"]]
                if not waits or not (is_done(one, pods) and is_done(two, pods)):
                    return False
                with contextlib.suppress(AssertionError):
                    await world.check()
                    return True
                return False

            await world.until("both have nothing to do, and nothing is given twice", settled, patience_s=120)

    play(test)


@pytest.mark.slow  # the lease of another takes its seconds to be over
def test_clocks_that_are_wrong_or_set_back_hold_up_no_pod_and_give_nobody_the_lease(
    play: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, behind_s = time.time_ns, 3600
    monkeypatch.setattr(time, "time_ns", lambda: real() - behind_s * 10**9)

    async def test(world: World) -> None:
        nonlocal behind_s
        leases = f"/apis/coordination.k8s.io/v1/namespaces/{names.NAMESPACE}/leases"
        spec = {"holderIdentity": "elsewhere", "leaseDurationSeconds": 10}
        lease = {"apiVersion": "coordination.k8s.io/v1", "metadata": {"name": names.LEASE}, "spec": spec}
        await world.api.request("POST", leases, lease)
        await world.node("n1", 1)
        await world.pod("a", milli=500, mem=1000)
        async with world.steerer("here", elect=True):
            for at in range(12):  # its holder's clock is decades behind, and yet it holds the lease
                said = {"spec": {"renewTime": f"2001-01-01T00:00:{at:02}.000000Z"}}
                await world.patch(f"{leases}/{names.LEASE}", said)
                await asyncio.sleep(1)
            assert await world.places() == {}
            await world.until_bound("a")
            behind_s = 7200
            await world.pod("b", milli=400, mem=1000)
            await world.until_bound("b")
            await world.pod("c", milli=400, mem=1000)  # made an hour or two later than it is here
            await world.until_told("c", "waits for room")
        await world.check()

    play(test)
