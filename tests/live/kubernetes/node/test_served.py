"""Which resources the device plugin serves, and how many GPUs a container asks for by each."""

from __future__ import annotations

import pytest

from berth.live.kubernetes.gpu_words import COMPAT, known_resources
from berth.live.kubernetes.node.api_server import pod_of
from berth.live.kubernetes.served import gpus_asked, served_by


@pytest.mark.parametrize("compat", [None, *COMPAT])
def test_what_is_served_is_what_the_scheduler_reads(compat: str | None) -> None:
    served = served_by(compat)
    assert {each.resource for each in served} <= known_resources(compat)
    assert len({each.mark for each in served}) == len(served)  # no two have units of one name


@pytest.mark.parametrize(
    ("compat", "limits", "gpus"),
    [
        (None, {"berth.dev/gpu": "2"}, 2),
        (None, {"nvidia.com/gpu": "2"}, 0),
        ("hami", {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "3000"}, 2),
        ("hami", {"berth.dev/gpu": 1}, 1),
        ("kai", {"nvidia.com/gpu": "1"}, 1),
        ("alibaba", {"aliyun.com/gpu-mem": "8"}, 1),
        ("alibaba", {"aliyun.com/gpu-mem": "8", "aliyun.com/gpu-count": "2"}, 2),
        ("volcano", {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "3000"}, 1),
        ("volcano", {"volcano.sh/vgpu-memory": "3000"}, 0),
    ],
)
def test_how_many_gpus_a_container_asks_for(
    compat: str | None, limits: dict[str, str | int | float], gpus: int
) -> None:
    assert gpus_asked(limits, served_by(compat)) == gpus
    told = {
        "metadata": {"namespace": "n", "name": "p", "uid": "u"},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
    }
    assert pod_of(told, served_by(compat)).containers[0].gpus == gpus


def test_units_are_places_or_memory() -> None:
    own, aliyun = served_by("alibaba")
    assert (own.units(81_920), aliyun.units(81_920)) == (16, 80)
