"""Profiles grow by themselves: from a node's agent to the folder of a steerer that runs, on a real API server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from berth.errors import KubernetesError
from berth.history.store.folder import open_history
from berth.live.driver import renewing
from berth.live.kubernetes.access import from_kubeconfig
from berth.live.kubernetes.client import Api
from berth.live.kubernetes.collecting import Collector
from berth.live.kubernetes.installing import apply
from berth.live.kubernetes.manifests import Install, manifests
from berth.live.kubernetes.names import APPLICATION, PLACEMENT, RESOURCE
from berth.live.kubernetes.node.api_server import ApiServer
from berth.live.kubernetes.steering import Steering
from tests.live.kubernetes.conftest import Played
from tests.live.kubernetes.kubelet import Kubelet
from tests.live.kubernetes.node.containers import of_device_plugin, share_of, start
from tests.live.kubernetes.node.test_service import Running, node
from tests.live.kubernetes.world import World

LOOKS = 5
"""That a profile is made of."""


@contextlib.contextmanager
def cgroup_of(uid: str) -> Iterator[Path]:
    """A cgroup by whose name an agent knows a pod's processes, as a container runtime makes it."""
    top = Path("/sys/fs/cgroup")
    made = (top / "pids" if (top / "pids").is_dir() else top) / f"pod{uid}"
    made.mkdir()
    try:
        yield made
    finally:
        made.rmdir()


async def run_for_a_while(world: World, kubelet: Kubelet, name: str, folder: Path) -> None:
    """Run a bound pod's container until its agent has looked often enough, and let it succeed."""
    pod = await ApiServer(world.api, "here").pod("default", name)
    assert pod is not None
    await kubelet.admit(pod, RESOURCE)
    given = await kubelet.pre_start(pod, "main", RESOURCE)
    with cgroup_of(pod.uid) as cgroup:
        process = start(of_device_plugin(given.answer), share_of("4000", "hold"), folder / "scratch")
        (cgroup / "cgroup.procs").write_text(str(process.pid))
        assert process.stdout is not None
        await asyncio.to_thread(process.stdout.readline)

        async def has_looked() -> bool:
            files = (folder / "state" / "samples").glob(f"*/{pod.uid}")
            return any(len(each.read_text().splitlines()) >= LOOKS for each in files)

        await world.until("its agent has looked often enough", has_looked)
        await asyncio.to_thread(process.communicate)
    kubelet.end(pod)
    await world.ended(name)


@pytest.mark.usefixtures("kube_scheduler")
@pytest.mark.slow  # an agent, a container and its pod's whole life
@pytest.mark.skipif(os.geteuid() != 0, reason="the node's agent runs as root")
def test_an_unknown_application_runs_alone_once_and_shares_from_then_on(
    play: Played, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewing, "LOOK_S", 0.2)
    monkeypatch.setattr(renewing, "MOST_PART", 1)
    history = folder / "gathered"
    history.mkdir()
    resnet = {APPLICATION: "resnet"}

    async def story(world: World) -> None:
        for each in manifests(Install("image"))["steerer-rights"]:
            await apply(world.api, each)
        async with node(world, folder) as (running, kubelet):
            await kubelet.until_registered(RESOURCE)
            units, _ = kubelet.capacity(RESOURCE)
            counted = {"cpu": "8", "memory": "8Gi", RESOURCE: str(units)}
            await world.patch("/api/v1/nodes/here/status", {"status": {"allocatable": counted}})
            await world.patch(
                "/api/v1/nodes/here", {"metadata": {"labels": {"berth.dev/gpu-drained-1": "true"}}}
            )
            access = from_kubeconfig(world.kubeconfig.with_name("steerertoken.kubeconfig"))
            async with (
                Api(access) as api,
                world.agent_pod(running.port),
                world.steerer(
                    policy="learned", knowledge=f"history?begin={history}", right_size="apply"
                ) as steering,
            ):
                gathering = asyncio.create_task(Collector(api, history).follow(0.2))
                try:
                    await grows(world, running, kubelet, steering)
                finally:
                    gathering.cancel()
                    await asyncio.gather(gathering, return_exceptions=True)

    async def grows(world: World, running: Running, kubelet: Kubelet, steering: Steering) -> None:
        await world.pod("first", annotations=resnet)
        await world.until_bound("first")
        await world.pod("beside", annotations=resnet)
        await world.until_told("beside", "room")  # an unknown application has its GPU to itself
        await world.delete("beside")
        await run_for_a_while(world, kubelet, "first", folder)

        async def is_there() -> bool:
            assert running.process.poll() is None, running.said
            return bool(list((history / "profiles").glob("*resnet*")))

        await world.until("its profile is gathered", is_there, 60)
        (record,) = open_history(history).records()
        assert (record.job_id, record.application, record.state.value) == (
            "default/first", "default/resnet", "completed",
        )  # fmt: skip

        async def is_known() -> bool:
            return "default/resnet" in steering.driver.knowledge.profiles

        await world.until("the steerer has taken it up", is_known)
        for name in ("second", "third"):
            await world.pod(name, annotations=resnet)
        await world.until_bound("second", "third")
        pods = await world.pods()
        placed = [
            json.loads(pods[name]["metadata"]["annotations"][PLACEMENT]) for name in ("second", "third")
        ]
        assert [[gpu["index"] for gpu in each["gpus"]] for each in placed] == [[0], [0]]
        assert all(each["shared"] for each in placed)

    play(story)


def test_a_gatherer_without_its_right_says_which_it_lacks(play: Played, tmp_path: Path) -> None:
    async def story(world: World) -> None:
        access = from_kubeconfig(world.kubeconfig.with_name("nobodytoken.kubeconfig"))
        async with Api(access) as api:
            with pytest.raises(KubernetesError, match='cannot list resource "pods"'):
                await Collector(api, tmp_path).collect()

    play(story)
