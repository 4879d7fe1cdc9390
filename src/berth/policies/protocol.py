"""What a policy is: the three shapes that a plug-in can have, and what it is told when it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from berth.arrays import FloatArray
from berth.cluster import Cluster, Queue
from berth.interference import Interference
from berth.model import Evict, GpuSlot, Job, Placement, WakeAt

__all__ = ["Decision", "Order", "Place", "Policy", "Progress", "Searching", "Setting"]

Decision = Placement | Evict | WakeAt

Progress = Callable[[float, float], None]
"""Called now and then with how much is done and how much there is."""


class Policy(Protocol):
    """Decides which waiting jobs start where."""

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
        """Yield decisions, best first. Each is applied before the next is asked for; never write to what you are
        shown. Called whenever a job came, ended or failed, a node was lost or came back, or at a WakeAt."""


@runtime_checkable
class Searching(Protocol):
    """What else a policy has that gets better over generations: how far it is, and how it got there."""

    progress: Progress | None
    """Hears of the generations done and to do in each search; None: nobody listens."""
    history: FloatArray  # (generations + 1, 2)
    """The best and the mean worth of the last search's solutions, from the first ones on."""


class Order(Protocol):
    """Decides which waiting job comes first.

    An order may also be a function of the queue alone; `make_policy` takes both. One that is given the cluster may
    look at who runs (`cluster.running`) and who has used how much (`cluster.usage()`), and writes to neither.
    """

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Job]:
        """Yield the waiting jobs, the first to be placed first."""


class Place(Protocol):
    """Decides where one job goes."""

    def __call__(self, job: Job, cluster: Cluster) -> tuple[GpuSlot, ...] | None:
        """The slots for the job, all of them or None where it does not fit now."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a policy may know when it is made."""

    seed: int = 0
    """Where its random numbers start."""
    workload: Sequence[Job] = field(default_factory=tuple)
    """The jobs to come, or a history like them, for policies that plan for the usual request (`fgd`)."""
    quotas: Mapping[str, int] | None = None
    """GPUs of each virtual cluster, for orders with a placement; None where nobody has a quota."""
    borrow: bool = False
    """Whether a virtual cluster may hold more than its quota while nobody waits within his."""
    interference: Interference | None = None
    """How jobs on one GPU slow each other, for policies that co-locate; None: as the thesis's applications do under
    `measured`."""
