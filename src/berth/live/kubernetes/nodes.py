"""A node as the steerer sees it, with its GPUs by labels.

Several GPUs stand in the value of one label as `0-3.6`: label values take letters, digits, `-`, `_`, `.` and at most 63
characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from berth.errors import AskError
from berth.live.card_models import card_model
from berth.live.kubernetes import names
from berth.live.kubernetes import objects as api
from berth.live.kubernetes.pod_requests import cpu_milli, mem_mib, whole
from berth.model import GpuModel

MOST_PODS = 1 << 20
MOST_GPUS = 64
"""Of a node; a label that says more is a mistake."""
MOST_CHARACTERS = 63
_PART = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")


class Gpu(NamedTuple):
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
    node: api.Node
    """As it was read last."""
    gpus: list[Gpu] = field(default_factory=list)
    """Those that pods can have."""
    model: GpuModel | None = None
    cpu_milli: int = 0
    mem_mib: int = 0
    pods_most: int = MOST_PODS
    problem: str = ""
    """What its labels say that makes no sense."""

    @property
    def name(self) -> str:
        return self.node.metadata.name

    @property
    def cordoned(self) -> bool:
        return self.node.spec.unschedulable

    @property
    def ready(self) -> bool:
        said = [each.status for each in self.node.status.conditions if each.type == "Ready"]
        return not said or said[0] == "True"

    def read(self, node: api.Node) -> None:
        """Take over what the API says now. A kubelet takes no notice of a resource that it does not
        have, so that a node without `berth.dev/gpu` has no GPU for pods."""
        self.node, there, self.problem = node, node.status.allocatable, ""
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


def label_of(indices: Iterable[int]) -> str:
    """The value of a label that names these GPUs. Raises AskError where it would be too long for a label."""
    there = sorted(set(indices))
    starts = [at for at, index in enumerate(there) if not at or there[at - 1] != index - 1]
    runs = [there[start:end] for start, end in pairwise([*starts, len(there)])]
    text = ".".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    if len(text) > MOST_CHARACTERS:
        raise AskError(
            f"GPUs {text} do not fit into a label of {MOST_CHARACTERS} characters; serve GPUs whose numbers follow"
            " each other"
        )
    return text


def indices_of(text: str) -> tuple[int, ...]:
    """The GPUs that a label's value names, in order. Raises AskError."""
    found: set[int] = set()
    for part in text.split(".") if text else ():
        said = _PART.fullmatch(part)
        first = int(said[1]) if said else 0
        last = int(said[2] or first) if said else -1
        if not 0 <= last - first < MOST_GPUS:
            raise AskError(f"'{text[:63]}' names no GPUs; expected numbers and ranges such as 0-3.6")
        found.update(range(first, last + 1))
    if len(found) > MOST_GPUS:
        raise AskError(f"'{text[:63]}' names {len(found)} GPUs; expected at most {MOST_GPUS}")
    return tuple(sorted(found))
