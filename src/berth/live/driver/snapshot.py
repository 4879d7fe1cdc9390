"""What a site has at one moment: its GPUs with who holds which part, and the jobs that wait and run.

It imports nothing heavy: the broker of a machine and the console make it, too.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Gpu", "LiveJob", "Snapshot", "Stranger", "Tenant"]


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


@dataclass(frozen=True, slots=True)
class Stranger:
    """What is on a GPU without being a job of the site."""

    what: str
    mem_mib: int


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
