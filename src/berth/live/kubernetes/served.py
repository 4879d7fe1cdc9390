"""The resources that berth's device plugin lets the kubelet count: its own, and with `--compat` those of others.

A container that asks for one of them gets its parts of GPUs from the plugin, and is held to them. Words that name no
resource, such as KAI's annotations, reach no plugin; pods that use them are reported by an event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from berth.live.kubernetes import names
from berth.live.kubernetes.quantities import whole


@dataclass(frozen=True, slots=True)
class Served:
    """One resource."""

    resource: str
    mark: str = ""
    """Before the names of its units, which tells those of different resources apart."""
    counts: str = ""
    """The resource that says how many GPUs a container wants, one if it is absent; empty: this one does."""
    of_memory: bool = False
    """Whether a unit is a GiB of GPU memory, and not a place on a GPU."""

    def units(self, mem_mib: int) -> int:
        """How many units there are of a GPU with this much memory."""
        return mem_mib // 1024 if self.of_memory else names.SLOTS_PER_GPU


OWN = Served(names.RESOURCE)
_OF_OTHERS: Mapping[str, tuple[Served, ...]] = {
    "hami": (Served("nvidia.com/gpu", "hami-"),),
    "kai": (Served("nvidia.com/gpu", "kai-"),),
    "alibaba": (Served("aliyun.com/gpu-mem", "aliyun-", "aliyun.com/gpu-count", of_memory=True),),
    "volcano": (
        Served("volcano.sh/vgpu-number", "volcano-"),
        Served("volcano.sh/gpu-number", "volcano-old-"),
    ),
}


def served_by(compat: str | None) -> tuple[Served, ...]:
    """The resources of a node whose agent runs with this `--compat`."""
    return (OWN, *_OF_OTHERS.get(compat or "", ()))


def gpus_asked(limits: Mapping[str, str | int | float], served: tuple[Served, ...]) -> int:
    """How many GPUs a container asks for by resources that are served."""
    return sum(
        whole(limits.get(each.counts, 1)) if each.counts else whole(limits[each.resource])
        for each in served
        if whole(limits.get(each.resource, 0))
    )
