"""A history as something to replay: its jobs as they were submitted, and the cluster that it shows.

A job is a try that ran on GPUs; it is submitted when it became eligible, since what lies before is no scheduler's
doing, and works as long as it ran. Attempts that never started are left out and counted, and so are those without GPUs,
except those that ran on the same nodes while it is known how many CPUs these have: they take CPUs, and are not judged.
Where no cluster is given, a node has as many GPUs as were ever held on it at one time, and the partitions of its
jobs as labels. CPU and memory count where it is known how much of them nodes have: from a cluster that is given, or
from what its accounting says of all nodes together.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from berth.errors import SettingError
from berth.gpu_models import gpu_model
from berth.history.store.capacity import Capacity, capacity_at
from berth.model import GpuModel, Job, Node, Record


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs in order of submission, in ms since the first of them, and the nodes to run them on."""

    jobs: tuple[Job, ...]
    """`virtual_cluster` is the QOS, by which a cluster limits; partitions are labels."""
    nodes: tuple[Node, ...]
    measured: frozenset[str]
    """Ids of the jobs that are judged; the others ran already when the period began."""
    recorded_wait_s: tuple[float, ...]
    """How long those that are judged waited in truth once eligible."""
    use: dict[str, tuple[float, float | None]]
    """By job: mean use of its GPUs and of their memory as fractions, if measured."""
    replayed_cpu_jobs: int = 0
    """Attempts without a GPU that are replayed."""
    without_gpu: int = 0
    """Attempts without a GPU that are left out."""
    never_started: int = 0
    too_large: int = 0
    """Attempts that the given cluster could never start."""

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return sum(node.gpus for node in self.nodes)


def workload_of(
    records: Iterable[Record],
    nodes: Sequence[Node] = (),
    *,
    most_jobs: int | None = None,
    capacities: Mapping[str, tuple[Capacity, ...]] | None = None,
) -> Workload:
    """The last `most_jobs` attempts of a history as a workload; SettingError where there is nothing to replay.

    `capacities` are what clusters had, by name: of a history of one cluster the nodes are those that it says, with no
    more GPUs together.
    """
    every = list(records)
    ran = [record for record in every if record.start_ms is not None]
    on_gpus = sorted(
        (record for record in ran if record.gpus),
        key=lambda r: (r.ready_ms, r.cluster, r.job_id, r.attempt),
    )
    if not on_gpus:
        raise SettingError("no job of the history ran on a GPU in this period; there is nothing to replay")
    judged = on_gpus[-most_jobs:] if most_jobs else on_gpus
    origin = judged[0].ready_ms
    before = [record for record in on_gpus[: len(on_gpus) - len(judged)] if record.end_ms > origin]
    clusters = {record.cluster for record in judged}
    capacity_rows = (capacities or {}).get(next(iter(clusters)), ()) if len(clusters) == 1 else ()
    last_ms = judged[-1].ready_ms
    bare = [r for r in ran if not r.gpus and r.nodes and r.end_ms > origin and r.ready_ms <= last_ms]
    on_nodes = {name for record in (*before, *judged) for name in record.nodes}
    bare = [record for record in bare if on_nodes.issuperset(record.nodes)]
    if most_jobs and len(bare) > most_jobs:
        bare = []  # they would be most of the replay
    made = tuple(nodes) or _nodes_of([*before, *judged], bare, capacity_at(capacity_rows, judged[-1].end_ms))
    names_made = {node.name for node in made if node.cpu_milli is not None}
    bare = [record for record in bare if names_made.issuperset(record.nodes)]
    labels = {label for node in made for label in node.labels}
    jobs = [_job(record, origin, labels) for record in (*before, *bare, *judged)]
    most = max(node.gpus for node in made)
    fitting = [job for job in jobs if job.nodes == 0 or any(_fits(job, node) for node in made)]
    names = {_id(record) for record in judged} & {job.id for job in fitting}
    if not names:
        raise SettingError(
            f"none of the {len(judged)} attempts that ran on GPUs fits the cluster: no node has more than {most} GPUs,"
            " or CPU or memory enough; say with --cluster where they ran"
        )
    return Workload(
        jobs=tuple(sorted(fitting, key=lambda job: job.submit_ms)),
        nodes=made,
        measured=frozenset(names),
        recorded_wait_s=tuple(((r.start_ms or 0) - r.ready_ms) / 1000 for r in judged if _id(r) in names),
        use={_id(r): (r.gpu_use_mean, r.gpu_mem_mean) for r in judged if r.gpu_use_mean is not None},
        replayed_cpu_jobs=len(bare),
        without_gpu=len(ran) - len(on_gpus) - len(bare),
        never_started=len(every) - len(ran),
        too_large=len(jobs) - len(fitting),
    )


def _fits(job: Job, node: Node) -> bool:
    """Whether a node that is empty has room for what a job wants of each of its nodes."""
    return all(
        has is None or -(-wanted // max(job.nodes, 1)) <= has
        for wanted, has in (
            (job.gpus, node.gpus),
            (job.cpu_milli, node.cpu_milli),
            (job.mem_mib, node.mem_mib),
        )
    )


def _id(record: Record) -> str:
    return f"{record.cluster}:{record.job_id}#{record.attempt}"


def _job(record: Record, origin_ms: int, labels: set[str]) -> Job:
    begun = record.ready_ms < origin_ms  # it ran or waited when the period began, and is there from the first
    start_ms = record.start_ms or 0
    return Job(
        _id(record),
        max(record.ready_ms - origin_ms, 0),
        record.end_ms - (max(start_ms, origin_ms) if begun else start_ms),
        user=record.user,
        application=record.application,
        gpus=record.gpus,
        share=record.share,
        cpu_milli=record.cpu_milli,
        mem_mib=record.mem_mib,
        nodes=record.parts,
        labels=(record.virtual_cluster,) if record.virtual_cluster in labels else (),
        time_limit_ms=record.time_limit_ms or None,
        virtual_cluster=record.qos,
        retries=0,
    )


def _nodes_of(
    records: Sequence[Record], bare: Sequence[Record], capacity: Capacity | None = None
) -> tuple[Node, ...]:
    """Nodes with as many GPUs as were ever held at one time, by the partitions whose jobs ran there.

    Where the cluster had fewer, as its accounting says, what was held for the shortest time is taken off: a job's GPUs
    are stated together, not node by node. A node has an even part of the CPUs and memory that its accounting says, and
    no less than was held on it at one time, also by the `bare` jobs, which have no GPU.
    """
    held: dict[str, list[tuple[int, int]]] = defaultdict(list)
    models: dict[str, Counter[str]] = defaultdict(Counter)
    partitions: dict[str, set[str]] = defaultdict(set)
    for record in records:
        if not record.nodes:
            raise SettingError(
                f"job {record.job_id} does not tell its nodes; say what the cluster is with --cluster FILE or "
                "--cluster 10x8:V100"
            )
        milli = -(-record.gpus * record.share.milli // len(record.nodes))
        for name in record.nodes:
            held[name] += [(record.start_ms or 0, milli), (record.end_ms, -milli)]
            models[name][record.gpu_model] += record.gpus
            partitions[name].add(record.virtual_cluster)
    lasted = {name: _levels(each) for name, each in held.items()}
    if capacity is not None:
        kept = {name: levels for name, levels in lasted.items() if name in capacity.nodes}
        lasted = kept if kept else lasted
        over = sum(len(levels) for levels in lasted.values()) - capacity.gpus if capacity.gpus else 0
        for _ in range(over):
            least = min((name for name in sorted(lasted) if lasted[name]), key=lambda name: lasted[name][-1])
            lasted[least].pop()
    all_of = capacity or Capacity(0, None, (), 0, 0, 0)
    every = [*records, *bare]
    cpu_milli = _even_part(every, all_of.cpus * 1000, all_of.nodes, lambda record: record.cpu_milli)
    mem_mib = _even_part(every, all_of.mem_mib, all_of.nodes, lambda record: record.mem_mib)
    found = []
    for name in sorted(lasted):
        gpus = len(lasted[name])
        known = max(models[name], key=lambda model: (models[name][model], model))
        model = gpu_model(known) if known else GpuModel("GPU")
        labels = tuple(sorted(filter(None, partitions[name])))
        found.append(
            Node(
                name,
                gpus=gpus,
                gpu_model=replace(model, mem_mib=0),
                cpu_milli=cpu_milli.get(name),
                mem_mib=mem_mib.get(name),
                labels=labels,
            )
        )
    return tuple(node for node in found if node.gpus)


def _even_part(
    records: Sequence[Record], whole: int, among: Collection[str], wanted: Callable[[Record], int]
) -> dict[str, int]:
    """How much of `whole` each node has that ran one of the records; empty where the whole is not known."""
    if not whole or not among:
        return {}
    changes: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for record in records:
        part = -(-wanted(record) // len(record.nodes))
        for name in record.nodes:
            changes[name] += [(record.start_ms or 0, part), (record.end_ms, -part)]
    return {
        name: max(whole // len(among), *accumulate(part for _, part in sorted(each)))
        for name, each in changes.items()
    }


def _levels(changes: Sequence[tuple[int, int]]) -> list[int]:
    """For how long, in ms, a node's first GPU was held, its second, and so on: changes in per mille by moment."""
    moments = np.array(sorted(changes), np.int64)  # an end comes before a start of the same moment
    held = -(-np.cumsum(moments[:, 1]) // 1000)
    lasts = np.append(np.diff(moments[:, 0]), 0)
    return [int(lasts[held >= gpu].sum()) for gpu in range(1, int(held.max()) + 1)]
