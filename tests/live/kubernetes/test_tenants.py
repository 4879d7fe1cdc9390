"""The ConfigMap of tenants: what it says holds from the next round on, and what makes no sense changes nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, cast

import msgspec
import pytest

from berth.errors import ApiError, BerthError, PolicyError, SettingError
from berth.live.kubernetes import names
from berth.live.kubernetes.client import Api
from berth.live.kubernetes.lease import Leadership
from berth.live.kubernetes.objects import ConfigMap, Lease, LeaseSpec, Meta
from berth.live.kubernetes.pod_requests import moment_ms
from berth.live.kubernetes.pod_site import Settings
from berth.live.kubernetes.tenants import Tenants, fault_of, in_force, manifest_of, tenants_in
from berth.live.kubernetes.viewing import as_steered, look, why_none_leads
from tests.live.kubernetes.conftest import Played
from tests.live.kubernetes.world import World

POLICY = "fifo+best-fit"
NOON = "2026-11-29T12:00:00.000000Z"
NOON_MS = moment_ms(NOON) or 0
PATH = f"/api/v1/namespaces/{names.NAMESPACE}/configmaps"


async def told(world: World, **data: str) -> None:
    """Make the ConfigMap, or give it other data."""
    meta = {"name": names.TENANTS}
    await world.make(PATH, {"kind": "ConfigMap", "metadata": meta, "data": data})
    await world.patch(f"{PATH}/{names.TENANTS}", {"data": data})


@pytest.mark.slow
@pytest.mark.usefixtures("kube_scheduler")
def test_a_change_of_quotas_holds_at_once_and_a_mistake_changes_nothing_even_after_a_restart(
    play: Played,
) -> None:
    async def test(world: World) -> None:
        await world.node("n1", 3)
        await told(world, quotas="default=1\nother=1")
        await world.pod("first")
        async with world.steerer(policy=POLICY):
            await world.until_bound("first")
            await world.pod("second")
            await world.until_told("second", "quota")
            await told(world, quotas="default=2")
            await world.until_bound("second")
            await told(world, quotas="default:3")
            event = await world.until_event("Invalid", names.TENANTS)
            assert "quota 'default:3' is not NAMESPACE=GPUS" in event
            await world.pod("third")
            await world.until_told("third", "quota")
        await world.pod("fourth")
        async with world.steerer(policy=POLICY):
            await world.until_told("fourth", "quota")
            seen = await look(world.api)
            assert seen.policy == POLICY
            assert ["quota 'default:3'" in note for note in seen.notes] == [False, True]  # it is not elected
            why = {job.name: job.why for job in seen.jobs}
            assert "the quota of 'default' is 2 GPUs, of which 2 are taken" in why["third"]
            await world.delete(names.TENANTS, "configmaps", names.NAMESPACE)
            await world.until_bound("third")

    play(test)


@pytest.mark.usefixtures("kube_scheduler")
def test_who_looks_without_a_config_map_takes_the_policy_of_the_steerer_that_leads(play: Played) -> None:
    async def test(world: World) -> None:
        assert (await look(world.api)).policy == ""
        await world.node("n1", 1)
        await world.pod("a")
        async with world.steerer(policy=POLICY, elect=True):
            await world.until_bound("a")
            assert (await look(world.api)).policy == POLICY
        path = f"/apis/coordination.k8s.io/v1/namespaces/{names.NAMESPACE}/leases/{names.LEASE}"
        await world.patch(path, {"metadata": {"annotations": {names.POLICY: "elsewhere:mine"}}})
        seen = await look(world.api)
        assert seen.policy == "elsewhere:mine"
        assert [text in note for text, note in zip(("since", "elsewhere"), seen.notes, strict=True)] == [
            True,
            True,
        ]

    play(test)


def test_who_looks_finds_the_tenants_of_a_steerer_in_another_namespace(play: Played) -> None:
    async def test(world: World) -> None:
        path, said = "/api/v1/namespaces/other/configmaps", {"kind": "ConfigMap", "data": {"quotas": "a=1"}}
        in_force = {names.IN_FORCE: msgspec.json.encode(Tenants(POLICY, {"a": 1})).decode()}
        await world.make(path, {**said, "metadata": {"name": names.TENANTS, "annotations": in_force}})
        try:
            lease = Leadership(world.api, "other", names.LEASE, "one", POLICY)
            await lease.acquire()
            settings, policy, notes, *_ = await as_steered(world.api, time.time_ns() // 1_000_000)
            assert (settings.quotas, policy, notes) == ({"a": 1}, POLICY, ())
        finally:
            leases = "/apis/coordination.k8s.io/v1/namespaces/other/leases"
            for each in (f"{path}/{names.TENANTS}", f"{leases}/{names.LEASE}"):
                await world.api.request("DELETE", each)

    play(test)


def test_a_config_map_says_quotas_and_two_flags_and_nothing_else() -> None:
    assert tenants_in({}, POLICY) == Tenants(POLICY)
    said = {"quotas": "vision=8\nspeech+audio=4\n", "borrow": "true", "reclaim": "false"}
    assert tenants_in(said, POLICY) == Tenants(POLICY, {"vision": 8, "speech+audio": 4}, borrow=True)
    assert tenants_in({"quotas": "\nvision=8,\n  audio=4 ,\n\n"}, POLICY).quotas == {"vision": 8, "audio": 4}
    assert tenants_in({"quotas": " \n,"}, POLICY) == Tenants(POLICY)


def test_install_leaves_nothing_of_the_quotas_that_it_made_before() -> None:
    before = manifest_of("a=1", borrow=True, reclaim=True)["data"]
    after = before | manifest_of("a=2", borrow=False, reclaim=False)["data"]  # as a merge patch does
    assert tenants_in(after, POLICY) == Tenants(POLICY, {"a": 2})


@pytest.mark.parametrize("policy", ["os:abort", "limits?no-such-file+fifo+best-fit", "gone"])
def test_who_looks_at_a_cluster_runs_no_code_that_it_names_and_sees_the_rest(policy: str) -> None:
    in_force = msgspec.json.encode(Tenants(policy, {"a": 1})).decode()

    class Cluster:
        async def list(self, path: str, kind: type, params: object) -> AsyncIterator[object]:
            raise ApiError(f"list of {path}", 403, "Forbidden", "in all namespaces", None)
            yield

        async def find(self, path: str, kind: type, missing: object) -> object:
            if kind is Lease:
                return Lease(spec=LeaseSpec("one", renew_time=NOON))
            return ConfigMap(Meta(annotations={names.IN_FORCE: in_force}), {"quotas": "a=1"})

    settings, named, notes, *_ = asyncio.run(as_steered(cast("Api", Cluster()), NOON_MS))
    assert (settings, named) == (Settings(), policy)
    (note,) = notes
    assert note.startswith("why pods wait is shown as if the policy were easy+priority+best-fit: ")
    assert policy.partition("?")[0] in note


@pytest.mark.parametrize(
    ("data", "policy", "kind", "why"),
    [
        ({"quota": "vision=8"}, POLICY, SettingError, "'quota' is no key of it; there are quotas, borrow"),
        ({"borrow": "yes"}, POLICY, SettingError, "borrow is 'yes'; expected true or false"),
        ({"quotas": "vision"}, POLICY, SettingError, "quota 'vision' is not NAMESPACE=GPUS"),
        ({"quotas": "team_A=1"}, POLICY, SettingError, "no namespace can be called 'team_A'"),
        ({"quotas": "a=1,a=2"}, POLICY, SettingError, "quota 'a' is given twice"),
        ({"quotas": "a=1", "reclaim": "true"}, POLICY, SettingError, "reclaim takes back what borrow lends"),
        ({"quotas": "a=1,a+b=2"}, POLICY, SettingError, "namespace 'a' has two quotas"),
        ({"quotas": "a=1"}, "easy+priority+best-fit", PolicyError, "has no quotas"),
    ],
)
def test_a_mistake_is_told_with_what_was_expected(
    data: dict[str, str], policy: str, kind: type[BerthError], why: str
) -> None:
    with pytest.raises(kind, match=why.replace("+", r"\+")):
        tenants_in(data, policy)
    assert why in fault_of(ConfigMap(data=data), policy)


def test_what_is_in_force_is_read_from_the_annotation_and_nonsense_there_is_nothing() -> None:
    text = '{"policy":"fifo+best-fit","quotas":{"a":2},"reclaim":true}'
    config = ConfigMap(Meta(annotations={names.IN_FORCE: text}))
    assert in_force(config) == Tenants(POLICY, {"a": 2}, reclaim=True)
    assert in_force(ConfigMap(Meta(annotations={names.IN_FORCE: "a=2"}))) == Tenants()
    assert in_force(ConfigMap()) == Tenants()


class Ruled:
    """A server with a Lease and a ConfigMap of tenants."""

    def __init__(self, lease: Lease | None, config: ConfigMap | None = None) -> None:
        self.leases, self.config = [lease] if lease else [], config

    async def list(self, path: str, kind: type, params: object) -> AsyncIterator[object]:
        yield "9", self.leases

    async def find(self, path: str, kind: type, missing: object) -> object:
        return self.config


def lease_of(policy: str, **said: str) -> Lease:
    meta = Meta(namespace=names.NAMESPACE, annotations={names.POLICY: policy, **said})
    return Lease(meta, LeaseSpec("one", renew_time=NOON))


def seen(lease: Lease | None, config: ConfigMap | None = None, now_ms: int = NOON_MS) -> Any:
    return asyncio.run(as_steered(cast("Api", Ruled(lease, config)), now_ms))


@pytest.mark.parametrize("policy", ["", POLICY])
def test_quotas_that_the_leaders_policy_ignores_are_told_to_who_looks(policy: str) -> None:
    before = {names.IN_FORCE: msgspec.json.encode(Tenants(policy, {"a": 1})).decode()}
    found = seen(lease_of("easy+priority+best-fit"), ConfigMap(Meta(annotations=before), {"quotas": "a=1"}))
    assert found.settings == Settings("easy+priority+best-fit")
    (note,) = found.notes
    assert note.startswith("ConfigMap berth-tenants changes nothing")
    assert "has no quotas" in note


def test_that_no_steerer_leads_is_told_with_since_when_and_where_to_look() -> None:
    see = "see kubectl get pods -n berth-system"
    never = f"no steerer leads, and none has led; {see}"
    assert seen(None) == (Settings(), "", (never,), "", never)
    lease = lease_of(POLICY)
    assert seen(lease, now_ms=NOON_MS + 20_000).notes == ()  # clocks differ
    gone = f"no steerer leads since 2026-11-29T12:00:00Z; {see}"
    assert seen(lease, now_ms=NOON_MS + 60_000) == (Settings(POLICY), POLICY, (gone,), "", gone)
    lease.spec.holder_identity = ""  # given up
    assert why_none_leads(lease, NOON_MS) == gone


def test_who_looks_knows_a_steerer_that_only_advises() -> None:
    assert seen(lease_of(POLICY, **{names.MODE: "advise"})).settings == Settings(POLICY, advise=True)
