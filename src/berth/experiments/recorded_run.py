"""What really happened on one machine, as a trace to replay, and how far a replay is from it.

The local queue keeps two files beside the history: `cluster.csv`, the machine as a list of nodes, and `policies.json`,
which policy decided since when. A job works as long as its last attempt held its GPUs: while it ran, neighbours
included, and while it was started. Without the latter, jobs that were started at one moment and run for the same time
would end in another order than they did, and a strict order of whole GPUs packs otherwise from there on.

Partitions: where nodes carry the name of a job's partition as a label (`NAME`, or `partition:NAME` as Slurm's nodes
do), the job runs on those alone. Where no node carries a label, and partitions ran on nodes of their own, each node has
the partitions of which jobs ran there. A job that left the queue before it ran waits as long in the replay. Nodes on
which attempts were lost are out until something starts there again. Limits of Slurm's QOS and associations hold if the
history keeps them (`berth import limits`).
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from berth.errors import SettingError
from berth.experiments.slurm_limits import SlurmLimits, slurm_limits
from berth.experiments.weeks import NO_WAITS, Waits
from berth.files import write_whole
from berth.history.store.folder import History
from berth.model import FOREVER_MS, Job, Node, Outage, Reason, Record, RecordState, Share
from berth.policies.schemes.limits import Limit
from berth.statistics import Cdf, Distribution, Run, cdf, distribution
from berth.traces import read_nodes, write_nodes

CLUSTER = "cluster.csv"
POLICIES = "policies.json"
LONGEST_START_MS = 1000


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """Jobs that ran, in ms since the first of them could have started, and what came of them in truth."""

    jobs: tuple[Job, ...]
    nodes: tuple[Node, ...]
    makespan_s: float
    waiting_time_s: Distribution
    """From when a job could have started to the start of its last attempt, as in a replay."""
    completion_time_s: Distribution
    """From when a job could have started to the end of its last attempt, however it ended."""
    waiting: Cdf
    completion: Cdf
    gpu_allocation_pct: float
    """Capacity that attempts held, of all that the machine has."""
    policy: str
    """The policy that decided when the last job was submitted; empty if it is not known."""
    left_out: int
    """Jobs that never could run, which are no part of this."""
    known: bool
    """Whether the history itself tells what the machine is."""
    elsewhere: int = 0
    """Jobs of other clusters, which ran on nodes that this machine lacks, and are no part of this."""
    gave_up: int = 0
    """Jobs that left the queue before they ran: among `jobs`, with that patience."""
    outages: tuple[Outage, ...] = ()
    """Nodes on which attempts were lost, in ms since the first job."""
    origin_ms: int = 0
    """When the first of the jobs could have started, ms since 1970."""
    limits: tuple[Limit, ...] = ()
    """Of the groups that the jobs count to, by the QOS and associations that the history keeps."""
    waits: Waits = NO_WAITS
    """How long each job waited that ran."""

    @property
    def wait_mean_s(self) -> float:
        """The mean of `waiting_time_s`."""
        return self.waiting_time_s.mean


def keep_machine(history: Path, nodes: Sequence[Node], policies: Sequence[tuple[int, str]]) -> None:
    """Keep what the machine is, and which policy decided since when, ms since 1970."""
    history.mkdir(parents=True, exist_ok=True)
    write_nodes(nodes, history / CLUSTER)
    write_whole(history / POLICIES, json.dumps([list(each) for each in policies]))


def recorded_run(
    history: History, *, since_ms: int = 0, until_ms: int | None = None, nodes: Sequence[Node] = ()
) -> RecordedRun:
    """The jobs that were submitted from then, and before `until_ms`.

    `nodes` are what they ran on, where the history does not tell it. Where it does, jobs of clusters of which none ran
    on these nodes, such as imported ones beside those of the local queue, are left out. Raises SettingError if none
    ran, or nothing tells the machine.
    """
    cluster_file = history.folder / CLUSTER
    if not nodes and not cluster_file.exists():
        raise SettingError(
            f"{cluster_file} is not there, which the local queue writes; say with --cluster what the jobs ran on"
        )
    machine = tuple(read_nodes(cluster_file)) if cluster_file.exists() else tuple(nodes)
    by_job: dict[tuple[str, str], list[Record]] = {}
    until_ms = FOREVER_MS if until_ms is None else until_ms
    for record in history.records("submit_ms >= ? AND submit_ms < ?", [since_ms, until_ms]):
        by_job.setdefault((record.cluster, record.job_id), []).append(record)
    there = len(by_job)
    if cluster_file.exists():
        by_job = _of_machine(by_job, machine, cluster_file)
    by_attempt = [sorted(each, key=lambda record: record.attempt) for each in by_job.values()]
    ran = [each for each in by_attempt if any(record.start_ms is not None for record in each)]
    if not ran:
        with history.database() as database:
            first, last = database.execute(
                "SELECT min(d), max(d) FROM"
                " (SELECT epoch_ms(submit_ms)::DATE AS d FROM records WHERE start_ms IS NOT NULL)"
            ).fetchall()[0]
        if first is None:
            raise SettingError(
                "the history has no job that ran, so there is nothing to replay; fill it with `berth import`"
            )
        raise SettingError(
            "no job of the history ran in this period, so there is nothing to replay: its jobs that"
            f" ran are of {first} to {last}. Choose a period within these with --since and --until"
        )
    gave_up = [
        each[-1] for each in by_attempt if all(r.start_ms is None for r in each) and _gave_up(each[-1])
    ]
    lasts = [next(record for record in reversed(each) if record.start_ms is not None) for each in ran]
    # A job that was held, or waited for a time or another job, counts from when it could have started.
    ready = [each[0].ready_ms for each in ran]
    origin_ms = min([*ready, *(record.ready_ms for record in gave_up)])
    moments = sorted({*ready, *(r.end_ms for each in ran for r in each), *(r.end_ms for r in gave_up)})
    machine = _with_partitions(machine, [record for each in ran for record in each])
    labels = {label for node in machine for label in node.labels}
    groups = _Groups(slurm_limits(history.folder))
    jobs = [
        _job(each, last, at_ms - origin_ms, _start_took_ms(last, moments), labels, groups)
        for each, last, at_ms in zip(ran, lasts, ready, strict=True)
    ]
    usual_ms = int(median(job.work_ms or 0 for job in jobs))
    parts = {
        gpus: Counter(job.nodes for job in jobs if job.gpus == gpus) for gpus in {r.gpus for r in gave_up}
    }
    jobs += [
        _job_that_gave_up(record, origin_ms, usual_ms, parts[record.gpus], labels, groups)
        for record in gave_up
    ]
    jobs.sort(key=lambda job: (job.submit_ms, _place(job.id)))
    makespan_ms = max(last.end_ms for last in lasts) - origin_ms
    waits_s = [((last.start_ms or 0) - at_ms) / 1000 for last, at_ms in zip(lasts, ready, strict=True)]
    completions_s = [(last.end_ms - at_ms) / 1000 for last, at_ms in zip(lasts, ready, strict=True)]
    return RecordedRun(
        tuple(jobs),
        machine,
        makespan_ms / 1000,
        distribution(waits_s),
        distribution(completions_s),
        cdf(waits_s),
        cdf(completions_s),
        _allocation_pct(ran, machine, makespan_ms),
        _policy(history.folder, max(last.submit_ms for last in lasts)),
        len(by_job) - len(ran) - len(gave_up),
        cluster_file.exists(),
        there - len(by_job),
        len(gave_up),
        _outages([record for each in ran for record in each], machine, origin_ms),
        origin_ms,
        tuple(groups.limits.values()),
        Waits(np.array(ready, np.int64) - origin_ms, np.array(waits_s)),
    )


def _gave_up(record: Record) -> bool:
    """Whether a job that never ran waited for room until it left."""
    waited = record.state is RecordState.CANCELLED or record.end_reason == Reason.PATIENCE
    return waited and record.end_ms > record.ready_ms


def _with_partitions(machine: tuple[Node, ...], ran: Sequence[Record]) -> tuple[Node, ...]:
    """The nodes with a label for each partition of which jobs ran there, where no node carries a label and some two
    partitions ran on no node together."""
    if any(node.labels for node in machine):
        return machine
    used: dict[str, set[str]] = {}
    for record in ran:
        if record.nodes and record.virtual_cluster:
            used.setdefault(record.virtual_cluster, set()).update(record.nodes)
    apart = any(one.isdisjoint(other) for one in used.values() for other in used.values())
    if not apart or not {name for names in used.values() for name in names} <= {
        node.name for node in machine
    }:
        return machine
    return tuple(
        replace(node, labels=tuple(sorted(name for name, nodes in used.items() if node.name in nodes)))
        for node in machine
    )


def _outages(ran: Iterable[Record], machine: Sequence[Node], origin_ms: int) -> tuple[Outage, ...]:
    """The nodes on which attempts were lost, each from then until something starts there again.

    Of the nodes of one attempt that one is taken which was lost at that moment with another attempt, else the one on
    which nothing starts for longest.
    """
    row_of = {node.name: row for row, node in enumerate(machine)}
    lost: list[tuple[int, tuple[str, ...]]] = []
    starts: dict[str, list[int]] = {}
    for record in ran:
        there = tuple(name for name in record.nodes if name in row_of)
        for name in there:
            starts.setdefault(name, []).append(record.start_ms or 0)
        if there and record.state is RecordState.NODE_FAIL:
            lost.append((record.end_ms, there))

    def next_start_ms(name: str, down_ms: int) -> int:
        return min((at_ms for at_ms in starts[name] if at_ms >= down_ms), default=FOREVER_MS)

    outages: dict[tuple[int, str], Outage] = {}
    for down_ms, names in sorted(lost, key=lambda each: (each[0], len(each[1]))):
        if any((down_ms, name) in outages for name in names):
            continue
        name = max(names, key=lambda each: next_start_ms(each, down_ms))
        up_ms = next_start_ms(name, down_ms)
        until_ms = None if up_ms >= FOREVER_MS else max(up_ms, down_ms + 1) - origin_ms
        outages[down_ms, name] = Outage(row_of[name], down_ms - origin_ms, until_ms)
    return tuple(outages.values())


def _of_machine(
    by_job: dict[tuple[str, str], list[Record]], machine: Sequence[Node], cluster_file: Path
) -> dict[tuple[str, str], list[Record]]:
    """Those jobs whose cluster ran some job on a node of the machine, or named none on which it ran.

    SettingError if there is none.
    """
    names = {node.name for node in machine}
    ran_on: dict[str, set[str]] = {}
    for (cluster, _), each in by_job.items():
        ran_on.setdefault(cluster, set()).update(name for record in each for name in record.nodes)
    own = {cluster for cluster, machines in ran_on.items() if not machines or machines & names}
    if by_job and not own:
        others = ", ".join(sorted(map(repr, ran_on))[:3])
        nodes = ", ".join(sorted(names)[:3])
        raise SettingError(
            f"all jobs of this period are of other clusters ({others}), and ran on none of the nodes of this machine"
            f" ({nodes}, in {cluster_file}); choose another period, or replay them from a history of their own"
        )
    return {key: each for key, each in by_job.items() if key[0] in own}


def _allocation_pct(ran: Iterable[Sequence[Record]], nodes: Iterable[Node], makespan_ms: int) -> float:
    """What all attempts held of the GPUs, per cent; NaN where there are none, or no time has passed."""
    held = sum(
        record.gpus * record.share.milli * (record.end_ms - record.start_ms)
        for each in ran
        for record in each
        if record.start_ms is not None
    )
    there = 1000 * sum(node.gpus for node in nodes) * makespan_ms
    return 100 * held / there if there else float("nan")


def distances(real: RecordedRun, runs: Iterable[Run]) -> list[tuple[str, float, float]]:
    """Of each replay its policy, and how far its makespan and mean wait are from the real ones, per cent.

    A wait is compared on the scale of the real makespan where the real one is less than a hundredth of that.
    """
    scale_s = max(real.wait_mean_s, real.makespan_s / 100)
    return [
        (
            run.policy,
            100 * (run.summary.makespan_s - real.makespan_s) / real.makespan_s,
            100 * (run.summary.waiting_time_s.mean - real.wait_mean_s) / scale_s,
        )
        for run in runs
    ]


def _start_took_ms(record: Record, moments: Sequence[int]) -> int:
    """How long the start took: since the last moment at which GPUs became free or a job came, where that is near."""
    start_ms = record.start_ms or 0
    took_ms = start_ms - moments[max(0, bisect_right(moments, start_ms) - 1)]
    return took_ms if 0 <= took_ms <= LONGEST_START_MS else 0


def _labels(record: Record, there: Set[str]) -> tuple[str, ...]:
    """The label of a job's partition, where nodes carry one."""
    names = (record.virtual_cluster, f"partition:{record.virtual_cluster}")
    return tuple(name for name in names if record.virtual_cluster and name in there)[:1]


class _Groups:
    """The groups that jobs count to, and the limit of each."""

    def __init__(self, of_slurm: SlurmLimits) -> None:
        self._of_slurm = of_slurm
        self._of: dict[tuple[str, str, str, str], tuple[str, ...]] = {}
        self.limits: dict[str, Limit] = {}

    def of(self, record: Record) -> tuple[str, ...]:
        key = record.cluster, record.user, record.account, record.qos
        if key not in self._of:
            limits = {limit.name: limit for limit in self._of_slurm.of(*key)}
            self.limits |= limits
            self._of[key] = tuple(limits)
        return self._of[key]


def _job(
    attempts: Sequence[Record],
    record: Record,
    ready_ms: int,
    start_took_ms: int,
    labels: Set[str],
    groups: _Groups,
) -> Job:
    """A job whose last attempt is `record`; it works as long as that, or as is known of one that kept its work."""
    shared_milli = record.share.milli
    ran_ms = record.end_ms - (record.start_ms or 0)
    again = sum(each.start_ms is not None for each in attempts) > 1
    keeps = again and record.state is RecordState.COMPLETED and ran_ms < (record.work_ms or 0)
    return Job(
        id=record.job_id,
        submit_ms=ready_ms,
        work_ms=(record.work_ms or 0) if keeps else max(1, ran_ms + start_took_ms),
        user=record.user,
        application=record.application,
        gpus=record.gpus,
        share=Share(shared_milli, record.share.mem_mib if shared_milli < 1000 else 0),
        nodes=record.parts,
        cpu_milli=record.cpu_milli,
        mem_mib=record.mem_mib,
        labels=_labels(record, labels),
        priority=record.priority or 0,
        time_limit_ms=record.time_limit_ms,
        retries=0,
        keeps_work=keeps,
        virtual_cluster=record.virtual_cluster,
        groups=groups.of(record),
    )


def _job_that_gave_up(
    record: Record, origin_ms: int, usual_ms: int, parts: Counter[int], labels: Set[str], groups: _Groups
) -> Job:
    """A job that left before it ran. What it would have worked is its known work, its limit, or what is usual, on as
    many nodes as most jobs of as many GPUs."""
    work_ms = record.work_ms or record.time_limit_ms or usual_ms
    waited = replace(record, start_ms=record.end_ms, end_ms=record.end_ms + work_ms)
    job = _job([record], waited, record.ready_ms - origin_ms, 0, labels, groups)
    usual_nodes = parts.most_common(1)[0][0] if parts else int(record.gpus <= 1)
    return replace(job, nodes=usual_nodes, patience_ms=record.end_ms - record.ready_ms)


def _place(job_id: str) -> tuple[int, ...]:
    """The order of submission among jobs of one moment: by the number of the job and of its task."""
    return tuple(int(part) for part in job_id.split("_") if part.isdigit())


def kept_policies(history: Path) -> list[tuple[int, str]]:
    """Which policy decided since when, ms since 1970, as it was kept; nothing where it was not."""
    try:
        text = (history / POLICIES).read_text(encoding="utf-8")
        return [(int(since), str(name)) for since, name in json.loads(text)]
    except (OSError, ValueError):
        return []


def _policy(history: Path, at_ms: int) -> str:
    before = [name for since, name in kept_policies(history) if since <= at_ms]
    return before[-1] if before else ""
