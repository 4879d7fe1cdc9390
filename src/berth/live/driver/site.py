"""What a place where jobs run can do: this machine, a Slurm, a Kubernetes, a folder.

A site reads and does; it decides nothing. It names GPUs by node and index. What not every site can do is a capability,
a protocol of its own, which the driver asks for with `isinstance`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol, runtime_checkable

from berth.knowledge.out_of_memory import NO_NEED, MemoryNeed
from berth.model import Job, Node, Profile, RecordState, Share


class Gpu(NamedTuple):
    """One GPU of a site; `index` is NO_GPU if a job takes only CPU and memory of the node."""

    node: str
    index: int  # type: ignore[assignment]  # it hides tuple.index, which a GPU does not need

    def __str__(self) -> str:
        return f"{self.node}:{self.index}"


class NodeState(StrEnum):
    """Whether jobs start on a node."""

    UP = "up"
    DRAINED = "drained"
    """Nothing starts there; what runs there runs on."""
    LOST = "lost"
    """What ran there is gone."""


class SiteNode(NamedTuple):
    """A node of a site as it is now."""

    node: Node
    state: NodeState = NodeState.UP


class SiteGang(NamedTuple):
    """The gang that a job is a task of."""

    name: str
    """One gang of the site has it. Reasons show what follows its last `/`."""
    min_tasks: int
    """How many of its tasks start together, those counted that ran and have ended. All others that the site lists are
    further tasks: each starts by itself as soon as these run."""
    whole: bool = False
    """Whether the site itself starts and ends them together."""


@dataclass(frozen=True, slots=True)
class SiteJob:
    """A job of a site that waits or runs, and what the site remembers of its earlier attempts."""

    job: Job
    """As its user asked for it; the driver adds what it turned out to need."""
    order: tuple[int, ...] = ()
    """Its place in the queue: lower is further ahead, before the policy's own order."""
    attempt: int = 1
    queued_ms: int | None = None
    """When this attempt was queued; None: when the job was submitted."""
    memory: MemoryNeed = NO_NEED
    """How often its attempts ran out of GPU memory, and what the next one needs."""
    alike: Hashable = None
    """What it has in common with jobs that need as much memory; None: nothing."""
    only_gpus: tuple[Gpu, ...] = ()
    """The GPUs that it may have, because its user named them or its site keeps it to them; empty: any."""
    start_failures: int = 0
    """Starts in a row that failed."""
    not_before_ms: int = 0
    """It waits until then whatever room there is."""
    reruns: bool = False
    """Whether it runs again after its node was lost or its end is unknown."""
    why: str = ""
    """Why it waits for another attempt, as the driver said last (`Again`)."""
    version: int = 0
    """Rises when its user changes it, so that a start of what it was before is known as such."""
    gang: SiteGang | None = None
    """The gang that it is a task of, on a site that has gangs (`HasGangs`); None: it is a job by itself."""
    mem_max_mib: int = 0
    """How far its memory may grow on each GPU while it runs; 0: it does not grow. One that may grow is promised what it
    is believed to need, but at least what it asks for."""


@dataclass(frozen=True, slots=True)
class SiteRun:
    """An attempt that a site says is starting or running."""

    of: SiteJob
    gpus: tuple[Gpu, ...] = ()
    """Its GPUs; empty if the site knows only the nodes, and for a job without GPUs."""
    nodes: tuple[str, ...] = ()
    """Its nodes, if `gpus` does not tell them."""
    share: Share | None = None
    """What it has of each GPU now, with what it has grown by; None: what it asked for."""
    best_effort: bool = False
    start_ms: int | None = None
    """None: not known yet."""
    started: bool = True
    """Whether its processes exist; else it may still fail to start."""
    suspended_since_ms: int | None = None
    """Since when it has left its GPUs, or is leaving them, and keeps what it has done (`CanSuspend`); None: it runs."""
    suspended_ms: int = 0
    """For how long it was suspended before it ran last."""
    parked_mib: int = 0
    """While it is suspended, the memory of its node that takes what it held on each of its GPUs."""
    resumes: bool = True
    """While it is suspended, whether it runs on as soon as there is room; else its user lets it."""

    @property
    def suspended(self) -> bool:
        """Whether it is suspended now."""
        return self.suspended_since_ms is not None


@dataclass(frozen=True, slots=True)
class End:
    """How an attempt ended. A site may tell it more than once."""

    job_id: str
    state: RecordState
    end_ms: int
    attempt: int = 0
    """Which attempt; 0: the one that ran last."""
    why: str = ""
    cut_short: bool = False
    """Whether it ended through no fault of its own: its node was lost, or how it ended is unknown."""
    waits_again: bool = False
    """Whether the site queues it again by itself, whatever the driver would say."""
    needed_mib: int = 0
    """GPU memory that it would have held with what it was refused, on each GPU; 0: it was refused nothing."""
    peak_mib: int | None = None
    """The most GPU memory that it held on one GPU; None: not measured."""
    cpu_used_ms: int | None = None
    mem_peak_mib: int | None = None
    exit_code: int | None = None
    ran: SiteRun | None = None
    """What ran, for a driver that did not see it run."""


@dataclass(frozen=True, slots=True)
class FailedStart:
    """A job that the driver started does not run: nothing of the attempt did."""

    job_id: str
    why: str = ""
    """Empty if the job was stopped or changed meanwhile, which is no failure."""
    no_room: bool = False
    """Whether others had taken the room, which is no failure of the job."""


class Start(NamedTuple):
    """Start a job there."""

    job_id: str
    gpus: tuple[Gpu, ...]
    """A job without GPUs has one entry a node, with the index NO_GPU."""
    share: Share
    best_effort: bool
    version: int
    attempt: int
    memory: MemoryNeed
    peak_mib: int = 0
    """What it is expected to need at most of each GPU; 0: nothing is known."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of its nodes, each once."""
        return tuple(dict.fromkeys(gpu.node for gpu in self.gpus))


class Again(NamedTuple):
    """Let a job wait for another attempt, and remember this of it."""

    job_id: str
    why: str
    attempt: int
    """The number of the attempt that waits now."""
    memory: MemoryNeed = NO_NEED
    start_failures: int = 0
    not_before_ms: int = 0
    keeps_place: bool = True
    """Whether it keeps its place in the queue; else it goes behind those that wait."""


class GiveUp(NamedTuple):
    """A job does not run again."""

    job_id: str
    state: RecordState
    why: str


class Site(Protocol):
    """A place where jobs run, as the driver sees it. What it returns may be old or wrong; the driver asks again."""

    name: str

    def nodes(self) -> Sequence[SiteNode]:
        """The nodes that there are."""
        ...

    def waiting(self) -> Mapping[str, SiteJob]:
        """The jobs that may start if there is room, by id, in the order of the queue."""
        ...

    def running(self) -> Mapping[str, SiteRun]:
        """What starts or runs, by the job's id."""
        ...

    def others(self) -> Mapping[Gpu, Share]:
        """What processes that are no job's hold of each GPU; a GPU that is missing: nothing."""
        ...

    def ended(self) -> Sequence[End | FailedStart]:
        """What ended or did not start since this was asked last."""
        ...

    def start(self, start: Start) -> None:
        """Start a job; whether it runs, a later `running` or `ended` tells."""
        ...

    def again(self, again: Again) -> None:
        """Queue a job again whose attempt ended or did not start."""
        ...

    def give_up(self, given_up: GiveUp) -> None:
        """End a job for good."""
        ...

    def note(self, job_id: str, why: str) -> None:
        """Say why a job waits."""
        ...


@runtime_checkable
class CanEvict(Protocol):
    """A site on which a running job can make room for another: it is stopped, and waits again."""

    def evict(self, job_id: str) -> None:
        """Stop a running job so that others get its GPUs. Starts on these GPUs wait until it is gone."""
        ...


@runtime_checkable
class CanSuspend(Protocol):
    """A site on which a running job can leave its GPUs and run on later, on the same ones, with what it has done.

    `running` tells what has come of it. A job whose suspension fails is stopped as `CanEvict` does it, since others are
    to have its GPUs.
    """

    def parked_mib(self, job_id: str) -> int | None:
        """Memory of its node that a running job would take for each of its GPUs; None: it cannot be suspended now."""
        ...

    def suspend(self, job_id: str) -> None:
        """Suspend a running job so that others get its GPUs. Starts on these GPUs wait until it has left them."""
        ...

    def resume(self, job_id: str) -> None:
        """Let a suspended job run on."""
        ...


@runtime_checkable
class SamplesRuns(Protocol):
    """A site that samples what running jobs use of their GPUs, and can tell before they end."""

    def sampled(self, job_id: str) -> Profile | None:
        """What was sampled so far of a running job that is alone on its GPU, of the kind `BEGUN`; None: too little."""
        ...


@runtime_checkable
class HasGangs(Protocol):
    """A site whose jobs may be tasks of gangs (`SiteJob.gang`)."""

    def ended_tasks(self, gang: str) -> int:
        """How many tasks of a gang ran and have ended for good, since one of its tasks came and no other was there. A
        task that left without having run does not count."""
        ...


@runtime_checkable
class CanResize(Protocol):
    """A site that can change what a running job may use."""

    def resize(self, job_id: str, share: Share) -> None:
        """Give a running job this share of each of its GPUs."""
        ...


@runtime_checkable
class NamesChanges(Protocol):
    """A site that knows which of its jobs changed, so that the driver need not compare thousands that did not."""

    def changed(self) -> Set[str] | None:
        """Ids of the jobs that came, changed or left since this was asked last; None: any may have."""
        ...


@runtime_checkable
class RemembersMemory(Protocol):
    """A site that keeps what a waiting job is believed to need since another one like it ran out of memory."""

    def remember(self, job_id: str, memory: MemoryNeed) -> None:
        """Keep it over a restart of the driver."""
        ...


@runtime_checkable
class KeepsStarts(Protocol):
    """A site that keeps what start intervals have learned."""

    learned_starts: str
    """Survives a restart of the driver, the only reader; empty: nothing yet."""


@runtime_checkable
class KnowsInUse(Protocol):
    """A site that knows which GPUs are in use, and not by whom."""

    def in_use(self) -> Set[Gpu]:
        """GPUs in use. One on which the driver knows no job counts as taken until this returns another set. A site
        that has not looked since returns the same object."""
        ...
