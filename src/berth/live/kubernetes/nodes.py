"""A node as the steerer sees it: its GPUs by labels, what others use of it, what it is called."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from berth.errors import AskError
from berth.live.card_models import card_model
from berth.live.kubernetes import names
from berth.live.kubernetes import objects as api
from berth.live.kubernetes.constraints import NodeTraits
from berth.live.kubernetes.gpu_labels import MOST_GPUS, indices_of
from berth.live.kubernetes.quantities import cpu_milli, mem_mib, whole
from berth.model import GpuModel, Node

MOST_PODS = 1 << 20


class Gpu(NamedTuple):
    """One GPU of a node."""

    index: int  # type: ignore[assignment]  # it hides tuple.index, which a GPU does not need
    """By which the node knows it."""
    healthy: bool = True
    drained: bool = False
    """Whether an operator wants nothing new on it."""

    @property
    def is_open(self) -> bool:
        """Whether pods may start on it."""
        return self.healthy and not self.drained


@dataclass(slots=True)
class View:
    """A node with what is known of it; `node()` is what the scheduler's cluster is told."""

    name: str
    gpus: list[Gpu] = field(default_factory=list)
    """Those that pods can have."""
    model: GpuModel | None = None
    cpu_milli: int = 0
    mem_mib: int = 0
    pods_most: int = MOST_PODS
    pods: int = 0
    """How many are on it, of all schedulers."""
    foreign_cpu_milli: int = 0
    """What pods take that are not steered."""
    foreign_mem_mib: int = 0
    traits: NodeTraits = field(default_factory=lambda: NodeTraits("", {}, []))
    cordoned: bool = False
    ready: bool = True
    problem: str = ""
    """What its labels say that makes no sense."""
    labels: tuple[str, ...] = ()
    """The names of the constraints that it satisfies."""

    def node(self) -> Node:
        """The node as the cluster counts it: without what others use of its CPU and memory."""
        return Node(
            self.name,
            len(self.gpus),
            self.model if self.gpus else None,
            max(0, self.cpu_milli - self.foreign_cpu_milli),
            max(0, self.mem_mib - self.foreign_mem_mib),
            self.labels,
        )

    def read(self, node: api.Node) -> None:
        """Take over what the API says now; what is used stays. A kubelet takes no notice of a resource that it does not
        have, so that a node without `berth.dev/gpu` has no GPU for pods."""
        there = node.status.allocatable
        self.problem = ""
        try:
            self.cpu_milli = cpu_milli(there.get("cpu", 0))
            self.mem_mib = mem_mib(there.get("memory", 0), down=True)
            self.pods_most = whole(there["pods"]) if "pods" in there else MOST_PODS
            self.gpus, self.model = gpus_of_labels(node.metadata.labels)
            if not whole(there.get(names.RESOURCE, 0)):
                self.gpus = []
        except AskError as error:
            self.problem = f"node {self.name}: {error}"
            self.gpus, self.model = [], None
        ready = [each.status for each in node.status.conditions if each.type == "Ready"]
        self.ready = not ready or ready[0] == "True"
        self.cordoned = node.spec.unschedulable
        self.traits = NodeTraits(self.name, node.metadata.labels, node.spec.taints)


def gpus_of_labels(labels: Mapping[str, str]) -> tuple[list[Gpu], GpuModel | None]:
    """The GPUs that a node's labels tell of. Raises AskError."""
    if names.LABEL_GPU_COUNT not in labels:
        return [], None
    indices = _indices(labels, names.LABEL_GPU_INDICES)
    if indices is None:
        indices = tuple(range(_label(labels, names.LABEL_GPU_COUNT, MOST_GPUS)))
    ailing = _indices(labels, names.LABEL_GPUS_AILING) or ()
    mib = _label(labels, names.LABEL_GPU_MEMORY_MIB, 1 << 24) if names.LABEL_GPU_MEMORY_MIB in labels else 0
    gpus = [
        Gpu(index, index not in ailing, f"{names.LABEL_GPU_DRAINED}{index}" in labels) for index in indices
    ]
    return gpus, _model(labels.get(names.LABEL_GPU_MODEL, "GPU"), mib)


def _indices(labels: Mapping[str, str], key: str) -> tuple[int, ...] | None:
    try:
        return indices_of(labels[key]) if key in labels else None
    except AskError as error:
        raise AskError(f"label {key}: {error}") from error


def _label(labels: Mapping[str, str], key: str, most: int) -> int:
    text = labels[key]
    if not re.fullmatch("[0-9]{1,12}", text) or int(text) > most:
        raise AskError(f"label {key} is '{text[:40]}'; expected a whole number from 0 to {most}")
    return int(text)


def _model(name: str, mib: int) -> GpuModel:
    if not mib:
        return GpuModel(name)
    found = card_model(name, mib)
    return found if found.mem_mib == mib else replace(found, mem_mib=mib)
