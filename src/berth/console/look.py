"""What a source shows of now, the same for every source: GPUs with the jobs on them, and the jobs that wait or run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from berth.console.roles import Viewer

__all__ = ["Gpu", "LiveJob", "Look", "Pending", "Source", "Stranger", "Tenant"]


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
    use_pct: float | None = None
    since_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Stranger:
    """What is on a GPU without being a job of the source."""

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
    """The predicted start: the earlier end of its interval."""
    starts_to_ms: int | None = None
    priority: int = 0
    partition: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """A source at one moment."""

    at_ms: int
    gpus: tuple[Gpu, ...] = ()
    jobs: tuple[LiveJob, ...] = ()
    waiting: int = 0
    """How many wait in all; `jobs` may hold the first of them alone."""
    running: int = 0
    policy: str = ""
    notes: tuple[str, ...] = ()
    """What an operator has to know, in words."""


class Source(Protocol):
    """A queue that is there now: this machine's, Slurm's or Kubernetes'."""

    name: str
    """`local`, `slurm` or `kubernetes`."""
    every_s: float
    """Seconds from the beginning of one look to that of the next, at the least."""

    async def look(self) -> Look:
        """What is there now. Raises BerthError if it cannot be reached."""
        ...

    async def job(self, job_id: str, viewer: Viewer, look: Look | None) -> dict[str, Any]:
        """All of one job that this viewer may see; `look` is the last one at this source, None before the first.
        Raises BerthError if there is none."""
        ...

    async def act(self, action: str, values: dict[str, Any], viewer: Viewer) -> str:
        """Do an action for a viewer who may, and say what was done. Raises BerthError."""
        ...

    def command(self, action: str, values: dict[str, Any]) -> str | None:
        """The command that does the same, or None where the source has no such action."""
        ...

    def lacks(self, viewer: Viewer) -> Mapping[str, str]:
        """Actions that this queue does not have for this viewer, or has in part, each with the reason in a sentence."""
        ...


@runtime_checkable
class Pending(Protocol):
    """A source of whose waiting jobs a model can predict the start."""

    def pending(self) -> tuple[Any, ...]:
        """Its queue as `berth.history.importing.pending` has it; called in a thread. Raises BerthError."""
        ...
