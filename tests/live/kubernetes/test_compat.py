"""Pods as the documents of other projects write them, gated, on a real API server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from berth.live.kubernetes import names
from tests.live.kubernetes.conftest import Played
from tests.live.kubernetes.world import World

HALF_MIB = (81_920 - 768) // 2
"""Of a card of 80 GiB, less what the driver keeps."""

PODS: dict[str, dict[str, tuple[dict[str, str], dict[str, str], list[tuple[int, int]]]]] = {
    "hami": {
        "two": (
            {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"},
            {},
            [(300, 3000)] * 2,
        ),
        "half": ({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"}, {}, [(100, HALF_MIB)]),
    },
    "kai": {
        "fraction": ({}, {"gpu-fraction": "0.5"}, [(500, HALF_MIB)]),
        "memory": ({}, {"gpu-memory": "2000"}, [(100, 2000)]),
        "two": ({}, {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"}, [(500, HALF_MIB)] * 2),
    },
    "alibaba": {"binpack-1": ({"aliyun.com/gpu-mem": "3"}, {}, [(100, 3072)])},
    "volcano": {
        "vgpu": (
            {"volcano.sh/vgpu-number": "2", "volcano.sh/vgpu-memory": "3000", "volcano.sh/vgpu-cores": "50"},
            {"volcano.sh/vgpu-mode": "hami-core"},
            [(500, 3000)] * 2,
        ),
        "share": ({"volcano.sh/gpu-memory": "1024"}, {}, [(100, 1024)]),
    },
}
"""By project: pods with their resources, annotations and what each gets of its GPUs."""
COUNTED = {
    "nvidia.com/gpu": "40", "nvidia.com/gpumem": "327680", "nvidia.com/gpumem-percentage": "400",
    "nvidia.com/gpucores": "400", "aliyun.com/gpu-mem": "316", "volcano.sh/vgpu-number": "40",
    "volcano.sh/gpu-number": "40", "volcano.sh/vgpu-memory": "327680", "volcano.sh/gpu-memory": "327680",
    "volcano.sh/vgpu-cores": "400",
}  # fmt: skip
"""What the node advertises: kube-scheduler counts every resource that a pod names."""


@pytest.mark.usefixtures("kube_scheduler")
@pytest.mark.parametrize("compat", PODS)
def test_pods_in_the_words_of_other_projects_are_placed(play: Played, compat: str) -> None:
    pods = PODS[compat]

    async def test(world: World) -> None:
        labels = {
            names.NVIDIA_GPU_COUNT: "4",
            names.NVIDIA_GPU_MODEL: "NVIDIA-A100-SXM4-80GB",
            names.NVIDIA_GPU_MEMORY_MIB: "81920",
        }
        await world.node("n1", 0, labels=labels, resources=COUNTED)
        for name, (resources, said, _) in pods.items():
            await world.pod(name, 0, resources=resources, annotations=said)
        async with world.steerer(compat=compat):
            await world.until_bound(*pods)
        found: dict[str, Any] = await world.pods()
        given = {
            name: [
                (gpu["milli"], gpu["mem_mib"])
                for gpu in json.loads(found[name]["metadata"]["annotations"][names.PLACEMENT])["gpus"]
            ]
            for name in pods
        }
        assert given == {name: wanted for name, (_, _, wanted) in pods.items()}

    play(test)
