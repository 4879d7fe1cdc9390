"""What a site has at one moment: its GPUs with who holds which part, and the jobs that wait and run.

Every site makes it; `status`, `queue`, `top`, the console and their JSON show it. It imports
nothing heavy, because the broker of a machine and its commands use it too.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import attrgetter

from berth.counts import counted

TYPE_CHECKING = False  # as in typing, whose import takes a tenth of a client's time
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

GOING = ("starting", "running")
"""The states of a job that has its GPUs."""
UNENDED = ("waiting", "held", *GOING, "suspending", "suspended", "resuming")
"""The states of a job that has not ended."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """One job on one GPU."""

    job: str
    user: str
    name: str
    milli: int
    """Compute promised to it, in thousandths of the GPU."""
    mem_mib: int
    """GPU memory that it may hold."""
    used_mib: int | None = None
    """None: it is not measured."""
    use_pct: float | None = None
    since_ms: int | None = None
    state: str = "running"
    """`starting` or `running`."""
    promise_mib: int | None = None
    """The part of `mem_mib` that is promised; None: all of it, and it does not grow."""
    max_mib: int | None = None
    """How far `mem_mib` may grow."""
    asked: int = 0
    """How often its programs asked for more than `mem_mib` had room for."""
    granted: int = 0
    refused: int = 0
    measured: bool = False
    """Whether its use is measured because its application is unknown; other jobs of it may wait for that."""

    @property
    def sizes_mib(self) -> dict[str, int]:
        """What is known of its memory if that may grow: `promise`, `limit`, `max` and `used`; else nothing."""
        if self.promise_mib is None:
            return {}
        sizes = {
            "promise": self.promise_mib,
            "limit": self.mem_mib,
            "max": self.max_mib,
            "used": self.used_mib,
        }
        return {kind: mem_mib for kind, mem_mib in sizes.items() if mem_mib is not None}


@dataclass(frozen=True, slots=True)
class Stranger:
    """What is on a GPU without being a job of the site."""

    name: str
    """Such as `process 4711` or `partition a`."""
    mem_mib: int
    command: str = ""
    """What a process runs."""
    remedy: str = ""
    """How to be rid of it if nothing uses it."""
    milli: int = 0
    """Compute promised to it, in thousandths of the GPU."""
    pid: int | None = None
    """None: it is no process."""

    @property
    def what(self) -> str:
        """Its name, and what it runs."""
        return f"{self.name} ({self.command})" if self.command else self.name


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU."""

    node: str
    index: int
    model: str
    mem_mib: int
    tenants: tuple[Tenant, ...] = ()
    strangers: tuple[Stranger, ...] = ()
    used_mib: int | None = None
    """GPU memory in use; None where it is not measured."""
    use_pct: float | None = None
    health: str = ""
    """What is wrong with it in words; empty if nothing is."""
    drained: bool = False
    rack: str = ""
    partition: str = ""
    uuid: str = ""

    @property
    def stranger_mib(self) -> int:
        """Memory held by processes of no job, or promised to others, whichever is larger: a promise includes what its
        processes hold."""
        held_mib = sum(each.mem_mib for each in self.strangers if each.pid is not None)
        return max(held_mib, sum(each.mem_mib for each in self.strangers) - held_mib)


@dataclass(frozen=True, slots=True)
class LiveJob:
    """One job that waits or runs; a listing of this machine's queue may hold those that ended as well."""

    id: str
    user: str
    name: str
    state: str
    """`waiting`, `held`, `starting`, `running`, `suspended` (or on the way there or back), or how it ended."""
    gpus: int
    milli: int
    mem_mib: int
    submit_ms: int
    ready_ms: int | None
    """Since when it could start if there were room, from which its wait counts; None while something else keeps it."""
    start_ms: int | None = None
    where: str = ""
    why: str = ""
    """Why it waits, or how it ended, in words."""
    starts_from_ms: int | None = None
    """The predicted start: the earlier end of its interval, or when its reservation begins."""
    starts_to_ms: int | None = None
    priority: int = 0
    partition: str = ""
    gang: str = ""
    attempt: int = 1
    end_ms: int | None = None
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class MoreCards:
    """What would start jobs that wait for room, by itself."""

    model: str
    cards: int
    """How many more cards of this model."""
    jobs: int
    """How many jobs would start on them."""

    @property
    def text(self) -> str:
        return f"{counted(self.cards, 'more card')} of model {self.model} would start {counted(self.jobs, 'job')}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A site at one moment."""

    at_ms: int
    gpus: tuple[Gpu, ...] = ()
    jobs: tuple[LiveJob, ...] = ()
    waiting: int = 0
    """How many wait in all; `jobs` may hold the first of them alone."""
    running: int = 0
    policy: str = ""
    notes: tuple[str, ...] = ()
    """What an operator has to know, in words."""
    more_cards: tuple[MoreCards, ...] = ()
    """For each GPU model that jobs wait for; only Kubernetes tells."""

    def places_of(self, job_id: str) -> str:
        """The GPUs that a job has, `node1 GPU 0, node2 GPU 1`."""
        return ", ".join(f"{gpu.node} GPU {gpu.index}" for gpu in self._gpus_of(job_id))

    def neighbours_of(self, job_id: str) -> list[str]:
        """The other jobs on the GPUs of a job, in words."""
        return [
            f"{each.job} ({each.user}) on {gpu.node} GPU {gpu.index}"
            for gpu in self._gpus_of(job_id)
            for each in gpu.tenants
            if each.job != job_id
        ]

    def _gpus_of(self, job_id: str) -> list[Gpu]:
        return [gpu for gpu in self.gpus if any(each.job == job_id for each in gpu.tenants)]


JOB_FIELDS = tuple(field.name for field in fields(LiveJob))
job_row = attrgetter(*JOB_FIELDS)
"""The values of a job in the order of `JOB_FIELDS`."""


def job_dict(job: LiveJob) -> dict[str, Any]:
    return dict(zip(JOB_FIELDS, job_row(job), strict=True))


def gpu_of(values: Mapping[str, Any]) -> Gpu:
    """A GPU from what `asdict` made of it."""
    tenants = tuple(Tenant(**each) for each in values["tenants"])
    strangers = tuple(Stranger(**each) for each in values["strangers"])
    return Gpu(**{**values, "tenants": tenants, "strangers": strangers})
