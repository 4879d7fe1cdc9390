"""What a site has at one moment: its GPUs with who holds which part, and the jobs that wait and run.

It imports nothing heavy: the broker of a machine and the console make it, too.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tenant:
    """One job on one GPU."""

    job: str
    user: str
    name: str
    milli: int
    """Compute promised to it, in thousandths of the GPU."""
    mem_mib: int
    """GPU memory promised to it."""
    used_mib: int | None = None
    """None: it is not measured."""
    use_pct: float | None = None
    since_ms: int | None = None
    state: str = "running"
    """`starting` or `running`."""


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


@dataclass(frozen=True, slots=True)
class LiveJob:
    """One job that waits or runs."""

    id: str
    user: str
    name: str
    state: str
    """`waiting`, `held`, `starting` or `running`."""
    gpus: int
    milli: int
    mem_mib: int
    submit_ms: int
    ready_ms: int | None
    """Since when it could start if there were room, from which its wait counts; None while something else keeps it."""
    start_ms: int | None = None
    where: str = ""
    why: str = ""
    """Why it waits, in words."""
    starts_from_ms: int | None = None
    """The predicted start: the earlier end of its interval, or when its reservation begins."""
    starts_to_ms: int | None = None
    priority: int = 0
    partition: str = ""


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
