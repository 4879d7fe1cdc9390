"""The values that everything else passes around: jobs, shares, placements, events, records.

All are frozen and have no behaviour. Times are integer milliseconds (`_ms`) from an origin that the trace
chooses; memory is MiB (`_mib`); parts of a CPU core or of a GPU are per mille (`milli`, 1000 = one whole).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

if TYPE_CHECKING:  # `berth job` needs no NumPy, whose import takes as long as its answer
    import numpy as np
    from numpy.typing import NDArray

FOREVER_MS = 2**60
"""The work of a job that never leaves by itself: the engine schedules no end for it."""

FIRST_LOOK_MS = 30_000
"""When a run of an application without a profile is first looked at; again each time it has run twice as long. On seeds
700,000 to 700,011 of a cold start under `time-sliced` this shortens mean completion by 6.3 %, 60 s by 4.1 %; by 7.7 %
as it ships, where jobs alike wait for the first look."""

PLACES = 10
"""Jobs that can share one GPU by best effort."""

NO_GPU = -1
"""The `index` of the slot that a job without GPUs takes on its node."""


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A kind of GPU: what one card of it has."""

    name: str
    architecture: str = ""
    mem_mib: int = 0
    """Memory of one card; 0 where the trace does not tell, and then GPU memory is not accounted for."""
    cores: int = 0
    pcie_mbps: int = 0
    """Bandwidth of its PCIe link, MB/s."""


@dataclass(frozen=True, slots=True)
class Node:
    """One machine of a cluster, empty."""

    name: str
    gpus: int = 0
    gpu_model: GpuModel | None = None
    """The model of all its GPUs; None where it has none."""
    cpu_milli: int | None = None
    """Its CPU; None if it is not known, and then CPU is not accounted for."""
    mem_mib: int | None = None
    """Its memory; None if it is not known, and then memory is not accounted for."""
    labels: tuple[str, ...] = ()
    reserved_for: tuple[str, ...] = ()
    """The users whose jobs alone may start on it now; empty: all users'."""


class Share(NamedTuple):
    """What a job may use of one GPU."""

    milli: int = 1000
    """Per mille of the GPU's compute; 1000 = the whole GPU."""
    mem_mib: int = 0
    """GPU memory on each of its GPUs; 0 where the job does not say."""


WHOLE_GPU = Share()


@dataclass(frozen=True, slots=True)
class Job:
    """What a user submits, and how long it would run alone on what it asked for."""

    id: str
    submit_ms: int
    work_ms: int | None
    """Run time alone on the GPUs that it asked for; FOREVER_MS for a service that does not end. It is the truth, which
    the simulator alone knows: None for a live job. Policies ask a `berth.knowledge.Knowledge`."""
    user: str = ""
    application: str = ""
    gpus: int = 1
    """GPUs in total, over all its nodes; 0 for a job that uses CPU and memory only."""
    share: Share = WHOLE_GPU
    """Part of each of its GPUs."""
    nodes: int = 1
    """The exact number of nodes, all or nothing (a gang), with the same number of GPUs on each;
    0: as few nodes as will hold it."""
    cpu_milli: int = 0
    """CPU in total; each of its nodes gives a part in proportion to its GPUs there, rounded up."""
    mem_mib: int = 0
    """Memory of the node in total, divided like `cpu_milli`."""
    models: tuple[str, ...] = ()
    """Names of the GPU models it may run on; empty: any. A job without GPUs may run on any node whatever they say."""
    labels: tuple[str, ...] = ()
    """Labels that each of its nodes must carry."""
    priority: int = 0
    time_limit_ms: int | None = None
    """What the user requested; an attempt that runs longer is ended as failed, and is the last."""
    estimate_ms: int | None = None
    """An estimate of its run time, for orders that use one."""
    retries: int = 3
    """How often it is queued again after it ran out of memory. A lost node or an eviction does not count."""
    keeps_work: bool = False
    """Whether an eviction or a lost node keeps what was done so far (a checkpoint) or loses it."""
    patience_ms: int | None = None
    """How long after it was queued it leaves if it has not started; None: it waits for ever."""
    virtual_cluster: str = ""
    """The queue, partition, virtual cluster or account it was submitted under."""
    deadline_ms: int | None = None
    """Time from its submission by which it is to finish; None: whenever. It is for orders and metrics: a job that
    misses it runs on."""
    after: tuple[str, ...] = ()
    """Ids of jobs that must have finished before it is queued. They are submitted before it, so that there is no cycle.
    If one of them ends for good without finishing, it is rejected."""
    elastic: tuple[tuple[int, int], ...] = ()
    """The numbers of GPUs that it can run on, ascending, and how fast it is on each, per mille of the speed at which it
    does its `work_ms`; `gpus` is among them. Empty: on `gpus` alone. A policy may start it on any of them."""
    tasks: tuple[Job, ...] = ()
    """The tasks of a gang, which `gang_of` makes: jobs of like or unlike size, each with an id of its own. Empty: a job
    of one task, itself."""
    min_tasks: int = 0
    """How many of its tasks, the first ones, start together or not at all; 0 for a job of one task."""
    gang: str = ""
    """Of a task, the name of its gang; empty for a job of one task."""
    groups: tuple[str, ...] = ()
    """Groups whose limits count it besides those of its user and virtual cluster, such as its account and QOS."""
    apart: bool = False
    """Of a task, whether no other task that starts with it may have one of its nodes."""


def gang_of(tasks: Sequence[Job], min_tasks: int | None = None, name: str = "") -> Job:
    """One job of several tasks: one unit of the queue, with the size of the tasks that start together.

    Those are the first `min_tasks`, by default all. Once they have started, each further task is queued by itself, in
    the place that the gang had. The gang has the id, user, application, submit time, priority and limits of its first
    task, and the name `name`, by default that id. A gang of one task is that task.

    In the simulator and in every driver a gang runs as its tasks: each has placements, events and Records of its own,
    and ends by itself. If one of them is evicted, loses its node, runs out of memory or fails to start, and fewer than
    `min_tasks` would be left, the others are evicted too, and all wait as one gang again.

    Raises ValueError for a gang without tasks, of gangs, of elastic tasks, of two with one id, or with another number
    of tasks that start together than it has.
    """
    least = len(tasks) if min_tasks is None else min_tasks
    if not tasks or not 1 <= least <= len(tasks):
        raise ValueError(
            f"a gang of {len(tasks)} tasks cannot start {least} together; expected 1 or more of them"
        )
    if len({task.id for task in tasks}) < len(tasks):
        raise ValueError(
            f"two tasks of the gang of '{tasks[0].id}' have the same id; give each one of its own"
        )
    if odd := next((task for task in tasks if task.tasks or task.elastic), None):
        raise ValueError(f"'{odd.id}' cannot be a task of a gang: it has tasks itself, or is elastic")
    if len(tasks) == 1:
        return tasks[0]
    first, starting = tasks[0], tasks[:least]
    gpus = sum(task.gpus for task in starting)
    milli = sum(task.gpus * task.share.milli for task in starting)
    mem_mib = max(task.share.mem_mib for task in starting)
    return replace(
        first,
        gpus=gpus,
        share=Share(-(-milli // gpus) if gpus else first.share.milli, mem_mib),
        nodes=0,
        cpu_milli=sum(task.cpu_milli for task in starting),
        mem_mib=sum(task.mem_mib for task in starting),
        models=first.models if all(task.models == first.models for task in starting) else (),
        labels=tuple(label for label in first.labels if all(label in task.labels for task in starting)),
        apart=any(task.apart for task in starting),
        tasks=tuple(replace(task, gang=name or first.id, min_tasks=least) for task in tasks),
        min_tasks=least,
        gang=name or first.id,
    )


def starting_tasks(job: Job) -> tuple[Job, ...]:
    """The tasks of a gang that start together; of another job, itself."""
    return job.tasks[: job.min_tasks] or (job,)


def slots_by_task(job: Job, slots: tuple[GpuSlot, ...]) -> list[tuple[Job, tuple[GpuSlot, ...]]]:
    """The slots of a gang's placement, which are those of its tasks one after the other; of another job, all."""
    parts, at = [], 0
    for task in starting_tasks(job):
        end = at + (task.gpus or max(1, task.nodes)) if job.tasks else len(slots)
        parts.append((task, slots[at:end]))
        at = end
    return parts


def work_of(job: Job) -> int:
    """The work of a simulated job, ms. Raises ValueError for a live one, whose work is not known."""
    if job.work_ms is None:
        raise ValueError(f"the work of job '{job.id}' is not known: it is a live job")
    return job.work_ms


def elastic_milli(job: Job) -> int:
    """How fast a job is on as many GPUs as it has, per mille; 1000 for one that is not elastic."""
    return dict(job.elastic).get(job.gpus, 1000) if job.elastic else 1000


def sized(job: Job, gpus: int) -> Job:
    """An elastic job on this number of GPUs, with its CPU and memory in proportion, rounded up.

    Raises ValueError for a number that it cannot run on.
    """
    if gpus == job.gpus:
        return job
    if gpus not in dict(job.elastic):
        raise ValueError(
            f"job '{job.id}' cannot run on {gpus} GPUs; it can on {[size for size, _ in job.elastic]}"
        )
    return replace(
        job,
        gpus=gpus,
        cpu_milli=-(-job.cpu_milli * gpus // job.gpus),
        mem_mib=-(-job.mem_mib * gpus // job.gpus),
    )


class GpuSlot(NamedTuple):
    """One GPU of one node; `index` is NO_GPU where a job takes only CPU and memory there."""

    node: int
    index: int  # type: ignore[assignment]  # it hides tuple.index, which a slot does not need


class Placement(NamedTuple):
    """A policy's decision to start a job on these slots, and what is to be enforced on each of them."""

    job: Job
    slots: tuple[GpuSlot, ...]
    share: Share
    """What a partition enforces: GPU memory (0: all that the card has), and compute, which is promised unless
    `best_effort`."""
    shared: bool = False
    """Whether other jobs may use the same compute, so that any number of them run on the GPU at once. Jobs that each
    have a promised part of a GPU are not `shared`."""
    best_effort: bool = False
    """Whether compute is not promised: the job may use up to `share.milli`, and what is left of it while others use the
    card. The cluster then counts one of `PLACES` places of the GPU, and of memory what the job itself asked for:
    believed peaks may take turns."""


def placement_of(job: Job, slots: tuple[GpuSlot, ...]) -> Placement:
    """The placement of a job that gets what it asks for, in half of the time that a NamedTuple's constructor takes."""
    return tuple.__new__(Placement, (job, slots, job.share, False, False))


class Evict(NamedTuple):
    """A policy's decision to stop a running job and queue it again."""

    job: Job


class Resize(NamedTuple):
    """A policy's decision to give a running job this share of each of its GPUs, more or less than it has."""

    job: Job
    share: Share


class Resume(NamedTuple):
    """A policy's decision to let a suspended job run on, on the GPUs that it had."""

    job: Job


class WakeAt(NamedTuple):
    """A policy's wish to be asked again at this time, even if nothing happens until then."""

    time_ms: int


class Outage(NamedTuple):
    """A node is lost at `down_ms` and back at `up_ms` (None: never)."""

    node: int
    down_ms: int
    up_ms: int | None = None
    drain_ms: int = 0
    """Announced this long before, as maintenance is: nothing starts on the node from then on, what still runs there at
    `down_ms` is evicted rather than failed. 0: not announced."""


class Reservation(NamedTuple):
    """Nodes are kept for jobs of some users from `start_ms` to `end_ms`; what these run then runs to its end."""

    nodes: tuple[int, ...]
    users: tuple[str, ...]
    start_ms: int
    end_ms: int
    drain_ms: int = 0
    """For this long before `start_ms` only jobs of these users start there; jobs of others that still run at
    `start_ms` are evicted."""


class EventKind(StrEnum):
    """What can happen to an attempt: submit and start, any number of resizes and of suspends with a resume, then
    finish, fail, evict or cancel; or, without a start, reject, cancel, or fail because it could not be started."""

    SUBMIT = "submit"
    START = "start"
    FINISH = "finish"
    FAIL = "fail"
    EVICT = "evict"
    REJECT = "reject"
    CANCEL = "cancel"
    """A waiting or running job was withdrawn."""
    RESIZE = "resize"
    """A running job has another share of its GPUs from now on, which the event tells."""
    SUSPEND = "suspend"
    """A running job has left its GPUs for the memory of its nodes, with all that it has done."""
    RESUME = "resume"
    """A suspended job runs on, on the GPUs that it had."""


class Reason(StrEnum):
    """Why an attempt failed or a job was rejected; NONE elsewhere."""

    NONE = ""
    OUT_OF_MEMORY = "out-of-memory"
    NODE_LOST = "node-lost"
    LOST_TOO_OFTEN = "lost-too-often"
    """It was given up after too many attempts in a row that were lost with their nodes and kept nothing."""
    TIME_LIMIT = "time-limit"
    FAILED_TO_START = "failed-to-start"
    """The attempt never ran."""
    NEVER_FITS = "never-fits"
    PATIENCE = "patience"
    DEPENDENCY = "dependency"
    """A job that it waited for did not finish."""
    LEFT_WAITING = "left-waiting"


class Event(NamedTuple):
    """Something that happened to one attempt of a job."""

    time_ms: int
    kind: EventKind
    job: Job
    attempt: int
    """1 for the first attempt. A submit has the number of the attempt that it queues."""
    slots: tuple[GpuSlot, ...]
    """Where it ran; empty for submit and reject, and for the cancellation of a job that waited."""
    share: Share
    reason: Reason
    shared: bool = False
    """Whether others may run on its GPUs, so that a GPU counts once however many run on it."""


class RecordState(StrEnum):
    """How an attempt ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    OUT_OF_MEMORY = "out-of-memory"
    NODE_FAIL = "node-fail"
    TIMEOUT = "timeout"
    PREEMPTED = "preempted"
    CANCELLED = "cancelled"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Record:
    """One attempt of a job that has ended, wherever it ran: simulated, imported or live."""

    job_id: str
    attempt: int
    user: str
    application: str
    virtual_cluster: str
    submit_ms: int
    queued_ms: int
    """When this attempt entered the queue; `submit_ms` for the first."""
    start_ms: int | None
    """None where it never started."""
    end_ms: int
    state: RecordState
    gpus: int
    share: Share
    cpu_milli: int
    mem_mib: int
    nodes: tuple[str, ...]
    """Names of the nodes it ran on."""
    gpu_model: str
    """Model of its GPUs; the first node's where they differ."""
    work_ms: int | None
    """Its run time alone, where it is known for certain, as of a simulated job; never an estimate."""
    gpu_use_mean: float | None = None
    """Use of its GPUs over the run as a fraction; None if it was not measured, never 0 for that."""
    gpu_use_peak: float | None = None
    gpu_mem_mean: float | None = None
    """GPU memory in use over GPU memory there is, as a fraction; None if it was not measured."""
    gpu_mem_peak: float | None = None
    cluster: str = ""
    """Which cluster's accounting it came from; job ids repeat between clusters."""
    name: str = ""
    account: str = ""
    qos: str = ""
    node_count: int = 0
    """On how many nodes it ran; more than `nodes` names where their names are not known, 0 where neither is."""
    time_limit_ms: int | None = None
    eligible_ms: int | None = None
    """When nothing but resources, priority and limits kept it waiting any more."""
    wait_reason: str = ""
    """What its scheduler last gave as the reason for its waiting, in the scheduler's words."""
    comment: str = ""
    command: str = ""
    """How it was submitted: container image, script or command line, as far as it is known."""
    exit_code: int | None = None
    """What its process returned, or 128 and the signal that ended it; None if it is not known or nothing ran."""
    end_reason: str = ""
    """Why it failed or was rejected, as `Reason` says it; empty if nothing did or it is not known."""
    label: str = ""
    """What people call the job where that is not its id: `12_3` is task 3 of array 12, `7+1` component 1 of job 7."""
    suspended_ms: int | None = None
    """For how long of its run it was suspended; None if it is not known."""
    cpu_used_ms: int | None = None
    """CPU time that its processes used, of all cores together."""
    mem_peak_mib: int | None = None
    """The most memory that its processes had, over all nodes, as far as it was measured."""
    energy_j: int | None = None
    """Energy that its nodes took for it, or its GPUs alone, where nothing else was measured."""
    gpu_slots: tuple[str, ...] = ()
    """The GPUs that it ran on, each as NODE:INDEX; empty if they are unknown: Slurm's accounting does not have them."""
    priority: int | None = None
    """Its job's priority, the higher the more; None if it is not known."""

    @property
    def ready_ms(self) -> int:
        """When it could have started, from which its wait counts: `eligible_ms` if it is known, within the attempt."""
        until_ms = self.end_ms if self.start_ms is None else self.start_ms
        eligible_ms = self.queued_ms if self.eligible_ms is None else self.eligible_ms
        return min(max(eligible_ms, self.queued_ms), until_ms)

    @property
    def parts(self) -> int:
        """`Job.nodes` of the same job submitted again: equal parts, one a node; 0 where GPUs may spread in any way."""
        many = self.node_count or len(self.nodes)
        if many > 1 and self.gpus % many == 0:
            return many
        return 1 if many == 1 else 0


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """An application's resource-use history alone on one GPU (Oh 2019, table 2)."""

    application: str
    kind: str
    input_bytes: int
    parameters: str
    hardware: GpuModel
    interval_ms: int
    usage: NDArray[np.float64]
    """(steps, 4): GPU utilisation, GPU memory, GPU cores (SM activity), PCIe throughput; each a fraction of
    what the hardware has, one row an interval."""
    cores_are: str = ""
    """What stands for the use of the cores: `sm-activity`, or `memory-activity` where only that was measured; empty
    if it is not known."""
