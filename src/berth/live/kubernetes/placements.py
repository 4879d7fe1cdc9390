"""What was decided for a pod, as the annotation `berth.dev/placement` that the node reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec

from berth.live.kubernetes import names
from berth.live.kubernetes.nodes import MOST_GPUS, View
from berth.model import NO_GPU, Share

if TYPE_CHECKING:  # the nodes' agents do without: 13 MiB less on each node
    from berth.live.driver.site import Start

T = TypeVar("T", bound=msgspec.Struct)
Index = Annotated[int, msgspec.Meta(ge=0, le=9999)]
Milli = Annotated[int, msgspec.Meta(ge=0, le=1000)]
Mib = Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class PlacedGpu(msgspec.Struct, kw_only=True):
    """A pod's part of one GPU. What is out of range was not written by berth."""

    index: Index
    uuid: str | None = None
    """In what berth 0.2 wrote."""
    milli: Milli
    mem_mib: Mib


class Placed(msgspec.Struct):
    """Where a pod was placed on its node."""

    gpus: Annotated[list[PlacedGpu], msgspec.Meta(max_length=MOST_GPUS)]
    shared: bool = False
    best_effort: bool = False
    policy: str = ""
    node: str = ""
    """Empty in what berth 0.2 wrote."""
    at_ms: Count = 0
    """When the gate was lifted with it, ms since 1970; 0: it does not say, or the pod was bound before."""


class GpuMemory(msgspec.Struct):
    """What a pod has of the memory of each of its GPUs, as its node's agent wrote it, in MiB."""

    promise_mib: Mib
    limit_mib: Mib
    """What it may hold now: the promise, and what it has grown by."""
    max_mib: Mib
    """How far that may grow."""
    asked: Count = 0
    granted: Count = 0
    refused: Count = 0
    """Calls for more than the limit had room for."""
    leaves: bool = False
    """Whether the agent can suspend it now."""
    suspended_ms: Count | None = None
    """Since when it has left its GPUs; None: it has not."""
    idle: bool = False
    """Whether it has left them until its next call of CUDA."""
    why: str = ""
    """Why it could not be suspended when that was asked for."""
    uncounted: str = ""
    """What it holds beyond its count, or was throttled or suspended for."""


class Measured(msgspec.Struct, frozen=True):
    """What a pod used of one GPU, as its node's agent wrote it."""

    peak_mib: Mib = 0
    refused: Count = 0
    """Allocations that were refused at its limit."""
    needed_mib: Mib = 0
    """What it would have held with the largest of those."""

    def __add__(self, other: Measured) -> Measured:
        return Measured(
            max(self.peak_mib, other.peak_mib),
            self.refused + other.refused,
            max(self.needed_mib, other.needed_mib),
        )


_KEYS: Mapping[type[msgspec.Struct], str] = {
    Placed: names.PLACEMENT,
    GpuMemory: names.GPU_MEMORY,
    Measured: names.MEASURED,
}


def read_annotation(annotations: Mapping[str, str], kind: type[T]) -> T | None:
    """What a pod's annotation of this kind says; None where it has none, or one that berth did not write."""
    try:
        return msgspec.json.decode(annotations.get(_KEYS[kind], ""), type=kind)
    except msgspec.DecodeError:
        return None


def placed_by(start: Start, view: View, policy: str, lifted_ms: int) -> Placed:
    """The placement of a start on one node. A part for which no memory was said is all that the card has."""
    share = start.share
    card_mib = view.model.mem_mib if view.model else 0
    there = (view.gpus[gpu.index] for gpu in start.gpus if gpu.index != NO_GPU)
    mem_mib = share.mem_mib or card_mib
    gpus = [PlacedGpu(index=gpu.index, milli=share.milli, mem_mib=mem_mib) for gpu in there]
    return Placed(gpus, start.best_effort, start.best_effort, policy, view.name, lifted_ms)


def share_words(share: Share) -> str:
    """What is enough for a pod, as the annotation `berth.dev/enough` has it."""
    return f"{share.milli} milli and {share.mem_mib} MiB"


def places_of(placed: Placed, view: View) -> tuple[int, ...] | None:
    """The GPUs of a placement as places in the node's list; None if a GPU is not there any more."""
    places = {gpu.index: at for at, gpu in enumerate(view.gpus)}
    found = tuple(places[gpu.index] for gpu in placed.gpus if gpu.index in places)
    return found if len(set(found)) == len(placed.gpus) else None
