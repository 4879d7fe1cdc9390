"""Parts of GPUs add up for whoever counts resources: a kube-scheduler without berth, a ResourceQuota."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from berth.errors import ApiError
from berth.live.kubernetes import names
from berth.live.kubernetes.installing import apply
from berth.live.kubernetes.manifests import Install, manifests
from tests.live.kubernetes.conftest import Played
from tests.live.kubernetes.server import Server
from tests.live.kubernetes.world import World


@pytest.fixture(autouse=True)
def has_the_policy(server: Server) -> None:
    """Skips where the API server has no policy that adds resources."""
    if not server.is_at_least(36):
        pytest.skip(f"{server.assets.version} has no MutatingAdmissionPolicy")


async def gate(world: World, right_size: str = "off") -> None:
    """The API server adds gates from now on, by this policy and no longer by that of an earlier test."""
    for each in manifests(Install("", right_size=right_size))["gate"]:
        await apply(world.api, each)

    async def in_force() -> bool:
        await world.pod("asks", gates=())
        pod = (await world.pods())["asks"]
        await world.delete("asks")
        adds = names.ASKED_MILLI in asked(pod)
        return "schedulingGates" in pod["spec"] and adds == (right_size != "apply")

    await world.until("the policy is in force", in_force)


def asked(pod: dict[str, Any]) -> dict[str, str]:
    """What the first container asks for of GPUs."""
    (takes,) = {
        json.dumps(pod["spec"]["containers"][0]["resources"][kind]) for kind in ("limits", "requests")
    }
    return {key: amount for key, amount in json.loads(takes).items() if key.startswith("berth.dev/")}


def test_the_gate_asks_for_parts_as_resources_and_changes_none_that_are_asked_for(play: Played) -> None:
    async def test(world: World) -> None:
        await gate(world)
        await world.pod("whole", gates=())
        await world.pod("part", 2, gates=(), milli=300, mem=8000)
        await world.pod("memory", gates=(), mem=8000)
        await world.pod("gated", milli=500)
        await world.pod("own", gates=(), resources={names.ASKED_MILLI: "700"})
        await world.pod("size", 2, gates=(), resources={names.ASKED_MEM_MIB: "16000"})
        await world.pod("wrong", gates=(), milli="half")
        await world.pod("none", 0, gates=())
        pods = await world.pods()
        assert {name: asked(pod) for name, pod in pods.items()} == {
            "whole": {names.RESOURCE: "1", names.ASKED_MILLI: "1k"},
            "part": {names.RESOURCE: "2", names.ASKED_MILLI: "600", names.ASKED_MEM_MIB: "16k"},
            "memory": {names.RESOURCE: "1", names.ASKED_MILLI: "100", names.ASKED_MEM_MIB: "8k"},
            "gated": {names.RESOURCE: "1", names.ASKED_MILLI: "500"},
            "own": {names.RESOURCE: "1", names.ASKED_MILLI: "700"},
            "size": {names.RESOURCE: "2", names.ASKED_MILLI: "200", names.ASKED_MEM_MIB: "16k"},
            "wrong": {names.RESOURCE: "1"},  # berth says what is wrong
            "none": {},
        }
        assert pods["wrong"]["spec"]["schedulingGates"] == [{"name": names.GATE}]

    play(test)


def test_parts_that_shrink_to_what_is_enough_are_not_counted_as_they_were_asked_for(play: Played) -> None:
    async def test(world: World) -> None:
        await gate(world, right_size="apply")
        await world.pod("part", gates=(), milli=300)
        assert asked((await world.pods())["part"]) == {names.RESOURCE: "1"}

    play(test)


@pytest.mark.usefixtures("kube_scheduler")
@pytest.mark.parametrize(
    ("asks", "fit"),
    [
        pytest.param([{}] * 3, 2, marks=pytest.mark.slow),
        pytest.param([{"milli": 400}] * 6, 5, marks=pytest.mark.slow),
        pytest.param([{"mem": 60_000}] * 3, 2, marks=pytest.mark.slow),
        ([{}, {}, {"mem": 1000}], 2),
    ],
    ids=["whole", "compute", "memory", "mixed"],
)
def test_kube_scheduler_alone_gives_no_more_than_two_cards_have(
    play: Played, asks: Iterable[dict[str, int]], fit: int
) -> None:
    async def test(world: World) -> None:
        await gate(world)
        await world.node("n1", 2)
        for at, each in enumerate(asks):
            await world.pod(f"p{at}", gates=(), **each)
            path = f"/api/v1/namespaces/default/pods/p{at}"
            await world.patch(path, {"spec": {"schedulingGates": None}})  # nobody steers
            await (world.until_bound(f"p{at}") if at < fit else world.until_told(f"p{at}", "Insufficient"))
        assert len(await world.places()) == fit

    play(test)


def test_a_quota_counts_the_parts_that_pods_ask_for(play: Played) -> None:
    quota = "/api/v1/namespaces/other/resourcequotas"

    async def test(world: World) -> None:
        await gate(world)
        hard = {f"requests.{names.ASKED_MILLI}": "1500"}
        body = {"kind": "ResourceQuota", "metadata": {"name": "gpus"}, "spec": {"hard": hard}}
        await world.make(quota, body)
        try:
            # What its controller does; none runs here.
            status = {"hard": hard, "used": {f"requests.{names.ASKED_MILLI}": "0"}}
            await world.patch(f"{quota}/gpus/status", {"status": status})

            async def counted() -> bool:
                await world.pod("whole", gates=(), namespace="other")
                used = json.loads(await world.api.request("GET", f"{quota}/gpus"))["status"]["used"]
                if used == {f"requests.{names.ASKED_MILLI}": "1k"}:
                    return True
                await world.delete("whole", namespace="other")  # it was made before the quota was seen
                return False

            await world.until("the API server has seen the quota", counted)
            with pytest.raises(ApiError, match="exceeded quota: gpus"):
                await world.pod("more", gates=(), namespace="other", milli=600)
            await world.pod("half", gates=(), namespace="other", milli=500)
            used = json.loads(await world.api.request("GET", f"{quota}/gpus"))["status"]["used"]
            assert used == {f"requests.{names.ASKED_MILLI}": "1500"}
        finally:
            await world.api.request("DELETE", f"{quota}/gpus")

    play(test)


@pytest.mark.usefixtures("kube_scheduler")
def test_pods_that_ask_by_resources_are_placed_by_them(play: Played) -> None:
    async def test(world: World) -> None:
        await world.node("n1", 2)
        await world.pod("two", 2, resources={names.ASKED_MILLI: "800", names.ASKED_MEM_MIB: "16000"})
        async with world.steerer():
            await world.until_bound("two")
        placement = (await world.pods())["two"]["metadata"]["annotations"][names.PLACEMENT]
        gpus = [(gpu["milli"], gpu["mem_mib"]) for gpu in json.loads(placement)["gpus"]]
        assert gpus == [(400, 8000)] * 2
        await world.check()

    play(test)
