"""What growth and suspension see of a machine: the jobs that share its GPUs, and the host that keeps what they become.

A host writes down what is to become of a tenant before it is done, so that its successor goes on after a kill at any
step: a broker in its store (`live.local.book`), an agent of a node in files beside the partitions (`NodeTenants`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from berth.partition.gpus import Gpu

SUSPENDING, SUSPENDED, RESUMING = "suspending", "suspended", "resuming"
"""What becomes of a running job that leaves its GPUs, keeps off them, or comes back."""
WHOLE_MILLI = 1000


class Tenant(Protocol):
    """A job that starts or runs on GPUs of a machine."""

    id: str
    serial: int
    """Rises with each job that comes: older ones are answered first."""
    start: int
    """Which of its attempts it is."""
    slots: tuple[int, ...]
    share: tuple[int, int]
    """Milli and MiB that it has of each GPU now; 0 MiB: all of it."""
    peak_mib: int
    """What it is believed to need at most of each GPU; 0: nothing is known."""
    suspension: str
    """SUSPENDING, SUSPENDED or RESUMING; empty: its processes run."""
    resumes: bool
    """Whether it runs on as soon as there is room; else its user lets it."""
    idle: bool
    """Whether it was suspended because it called CUDA no more."""
    lends_to: str
    """The tenant whose memory grows by what it leaves; empty: none."""
    parked_mib: int
    """Memory of the machine that takes what it held on each GPU."""

    @property
    def promise_mib(self) -> int:
        """The part of its memory that it keeps; 0: all."""

    @property
    def best_effort(self) -> bool:
        """Whether it is promised no compute."""

    @property
    def gang(self) -> str:
        """The gang that it is a task of; empty: none."""

    @property
    def priority(self) -> int:
        """The lowest leaves first."""

    @property
    def interactive(self) -> bool:
        """Whether it leaves while it is idle."""

    @property
    def shows_max(self) -> bool:
        """Whether its programs see a card of the size that it may grow to."""

    @property
    def going(self) -> bool:
        """Whether its attempt is neither over nor being ended."""

    @property
    def runs(self) -> bool:
        """Whether its processes run and are not being ended."""

    @property
    def makes_way(self) -> bool:
        """Whether it is about to leave its GPUs."""


T = TypeVar("T", bound=Tenant)


class Host(Protocol[T]):
    """Keeps the tenants of one machine's GPUs. All is called in the thread of its event loop."""

    @property
    def gpus(self) -> Sequence[Gpu]:
        """By the numbers of the tenants' slots."""

    def tenants(self) -> Iterable[T]:
        """Those that start or run, the suspended ones too."""

    def tenants_on(self, at: int) -> Iterable[T]:
        """Those of them that have this GPU."""

    def partition_of(self, tenant: T) -> str:
        """The name of its partition."""

    def most_mib(self, tenant: T) -> int:
        """How far its memory may grow on each GPU; 0: it does not."""

    def others_mib(self, at: int) -> int:
        """Memory of a GPU that is no tenant's."""

    def uncounted_mib(self, tenant: T) -> int:
        """What its processes hold beyond what its partition counts; if that is anything, it does not grow."""

    def room_kept(self) -> AbstractContextManager[None]:
        """Hold the lock under which memory of the GPUs is promised."""

    def grown(self, tenant: T, mem_mib: int) -> None:
        """Keep the limit that it is about to get."""

    def lend(self, tenant: T, to: T) -> None:
        """Have it leave its GPUs so that another grows, or comes back."""

    def let_resume(self, tenant: T) -> None:
        """Let a suspended one run on as soon as there is room."""

    def act(self) -> None:
        """Do what follows from what was kept."""

    def log(self, event: str, /, **values: object) -> None:
        """Write a line of the log."""


class MovingHost(Host[T], Protocol[T]):
    """A host whose tenants can leave their GPUs and come back. It is called with the result of each move."""

    @property
    def fake(self) -> bool:
        """Whether its GPUs are fake."""

    @property
    def fake_card(self) -> str:
        """The file of the fake GPU; empty: the usual one."""

    def moves(self, tenant: T) -> None:
        """It is about to leave, or to come back."""

    def signal(self, tenant: T, number: int) -> None:
        """Send a signal to its processes."""

    def left_mib(self, tenant: T) -> int | None:
        """Memory of the machine that it may still take of its own limit; None: it has none."""

    def left_gpus(self, tenant: T, parked_mib: int) -> None:
        """It has left, if it was to."""

    def stayed(self, tenant: T) -> None:
        """It could not leave, and runs on."""

    def came_back(self, tenant: T) -> None:
        """It runs on."""

    def kept_off(self, tenant: T) -> None:
        """It could not come back yet, most often for want of room."""

    def lost(self, tenant: T) -> None:
        """The driver has lost what it held: end it."""

    def moved(self) -> None:
        """A move has ended."""


def given_milli(tenant: Tenant) -> int:
    """What a tenant is promised of the compute of each GPU."""
    return 0 if tenant.best_effort else tenant.share[0]


def given(host: Host[T], tenant: T, at: int) -> tuple[int, int]:
    """What a tenant has of a GPU, in milli and MiB."""
    return given_milli(tenant), tenant.share[1] or host.gpus[at].mem_mib


def room(host: Host[T], at: int, without: Iterable[T] = ()) -> tuple[int, int]:
    """What is left of a GPU once the tenants of `without` have left, in milli and MiB; below 0 if that is not there."""
    gone = {tenant.id for tenant in without}
    free_milli, free_mib = WHOLE_MILLI, host.gpus[at].mem_mib - host.others_mib(at)
    for tenant in host.tenants_on(at):
        if tenant.suspension != SUSPENDED and tenant.id not in gone:
            milli, mem_mib = given(host, tenant, at)
            free_milli, free_mib = free_milli - milli, free_mib - mem_mib
    return free_milli, free_mib
