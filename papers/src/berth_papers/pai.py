"""The experiment of PAI's own simulator: how much estimates of run times gain, on one pool of GPUs.

Weng and others, *MLaaS in the Wild*, NSDI 2022, section 6; the procedure is that of `run_simulator.py` in
cluster-trace-gpu-v2020/simulator of github.com/alibaba/clusterdata. Its steps, all kept here:

1. Rows of the job sample, at most ten times as many as are asked for and one more; GPUs and CPU in whole per cent,
   run times in whole seconds, at least one.
2. They are shuffled by Python's generator with the seed, as many as asked for are taken and put in order of
   submission, then of number, and arrive anew: a fixed number a minute, all at the beginning of it.
3. One node has all GPUs, and 23.22 cores a GPU. A job fits where enough is left of both in sum, so that fractions
   fit that no single GPU could hold: what is measured here of utilisation would be too good.
4. Every second, those that wait are gone through in order, and each that fits is started: none holds up
   another. The orders are by run time as it is believed (SJF), by the true one's mean over the user's (SJU), the
   group's (SJG), or the group's and GPUs' (SJGG) jobs, and by arrival (FIFO); the smaller number wins a tie.
5. Completion and wait are averaged over instances.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from itertools import islice
from math import inf
from time import perf_counter
from typing import Any, Final

from berth.cluster import Cluster, Key, Queue
from berth.engine import simulate
from berth.errors import SettingError, TraceError
from berth.knowledge import check_knowledge, make_knowledge
from berth.model import NO_GPU, EventKind, GpuSlot, Job, Node, Placement, work_of
from berth.traces.fields import Field, count, decimal, seconds, text
from berth.traces.opening import open_table

ORDERS: Final = {
    "SJF": "duration",
    "SJU": "user_dur",
    "SJG": "group_dur",
    "SJGG": "group_gpu_dur",
    "FIFO": "arrival",
}
"""What each order goes by."""

PUBLISHED: Final = {"SJF": 5988.61, "SJU": 6278.33, "SJG": 6071.01, "SJGG": 6001.94, "FIFO": 7918.47}
"""Mean completion time in seconds that the publisher states, for the estimate sample with the defaults below."""

_CORES_PER_GPU: Final = 23.22


@dataclass(frozen=True, slots=True)
class PaiRow:
    """A job of the sample, in the simulator's own units."""

    number: int
    submit_s: int
    duration_s: int
    instances: int
    cpu_pct: int
    gpu_pct: int
    estimates: tuple[float, ...]
    """By user, by group, by group and GPUs; infinite where the file has none."""


@dataclass(frozen=True, slots=True)
class PaiResult:
    """One order's result."""

    order: str
    completion_s: float
    """Mean over instances."""
    wait_s: float
    makespan_s: float
    jobs: int
    seconds: float
    """What the simulation took."""
    knowledge: str = "oracle"
    """What SJF believed of run times."""


def read_rows(path: str, at_most: int) -> list[PaiRow]:
    """The first rows of a job sample; TraceError for a bad one, with its line."""
    estimates = [ORDERS[name] for name in ("SJU", "SJG", "SJGG")]
    fields: list[tuple[Field[Any], Any]] = [
        (count("job_id"), None),
        (seconds("submit_time").or_else(1000), 1000),
        (seconds("duration"), None),
        (count("num_inst").or_else(1), 1),
        (decimal("num_cpu").or_else(0.0), 0.0),
        (decimal("num_gpu").or_else(0.0), 0.0),
        (text("user"), ""),
        *((decimal(name).or_else(inf), inf) for name in estimates),
    ]
    found: list[PaiRow] = []
    with open_table(path) as table:
        for field, default in fields[:1] + fields[2:3]:
            if default is None and field.name not in table.columns:
                raise TraceError(
                    path, "the header of PAI's job sample", line=table.header_line, column=field.name
                )
        for line, row in islice(table.rows(), at_most):
            values = [
                field.check(table, line, row) if field.name in table.columns else default
                for field, default in fields
            ]
            number, submit_ms, duration_ms, instances, cores, gpus, _, *known = values
            found.append(
                PaiRow(
                    number,
                    round(submit_ms / 1000),
                    max(1, duration_ms // 1000),
                    instances,
                    round(100 * cores),
                    round(100 * gpus),
                    tuple(known),
                )
            )
    return found


def sample(rows: Sequence[PaiRow], jobs: int, seed: int) -> list[PaiRow]:
    """A number of the rows, drawn as the simulator draws them, in order of submission."""
    drawn = list(rows)
    generator = random.Random(seed)
    if jobs <= len(drawn):
        generator.shuffle(drawn)
        drawn = drawn[:jobs]
    return sorted(drawn, key=lambda row: (row.submit_s, row.number))


def pai(
    path: str,
    *,
    jobs: int = 20_000,
    gpus: int = 6500,
    rate: int = 1000,
    seed: int = 42,
    orders: Sequence[str] = (),
    knowledge: str = "oracle",
) -> list[PaiResult]:
    """Run the experiment for each order; by default for all that the file has estimates for.

    `rate` is how many jobs arrive a minute; below 0 they arrive when they were submitted. `knowledge` is what SJF
    believes of run times; the published figures are those of an oracle. The estimates are the file's in any case. Jobs
    of which nothing is believed come last.

    Raises SettingError if nothing would run or there is no such order or knowledge, TraceError for a bad file.
    """
    check_knowledge(knowledge)
    if jobs < 1 or gpus < 1 or rate == 0:
        raise SettingError(f"{jobs} jobs, {gpus} GPUs, {rate} a minute; expected at least one of each")
    rows = sample(read_rows(path, 10 * jobs + 1), jobs, seed)
    if not rows:
        raise TraceError(path, "at least one job below the header")
    known = [all(row.estimates[place] < inf for row in rows) for place in range(3)]
    able = [
        "SJF",
        *(name for name, there in zip(("SJU", "SJG", "SJGG"), known, strict=True) if there),
        "FIFO",
    ]
    for order in orders:
        if order not in able:
            raise SettingError(f"no order '{order}' for this file; there are {', '.join(able)}")
    return [_run(rows, order, gpus, rate, seed, knowledge) for order in orders or able]


def pai_dict(result: PaiResult, published: bool) -> dict[str, object]:
    """A result as JSON has it; with what the publisher states where it is the same experiment."""
    return {
        "order": result.order,
        "knowledge": result.knowledge,
        "mean_completion_s": result.completion_s,
        "mean_wait_s": result.wait_s,
        "makespan_s": result.makespan_s,
        "jobs": result.jobs,
        "seconds": result.seconds,
        "published_completion_s": PUBLISHED[result.order] if published else None,
    }


def _run(rows: Sequence[PaiRow], order: str, gpus: int, rate: int, seed: int, knowledge: str) -> PaiResult:
    """GPUs of the pool are counted as the node's memory: per cent of a GPU as MiB."""
    cores_pct = 100 * round(_CORES_PER_GPU * gpus)
    cluster = Cluster([Node("pool", cpu_milli=10 * cores_pct, mem_mib=100 * gpus)])
    keys: dict[str, tuple[float, int]] = {}
    instances: dict[str, int] = {}
    jobs: list[Job] = []
    for place, row in enumerate(rows):
        arrival_s = row.submit_s if rate < 0 else place // rate * 60
        job = Job(
            id=f"{place}",
            submit_ms=1000 * arrival_s,
            work_ms=1000 * row.duration_s,
            gpus=0,
            cpu_milli=10 * min(row.cpu_pct, cores_pct) * row.instances,
            mem_mib=min(row.gpu_pct, 100 * gpus) * row.instances,
        )
        jobs.append(job)
        by_file = {"FIFO": float(arrival_s), **dict(zip(("SJU", "SJG", "SJGG"), row.estimates, strict=True))}
        keys[job.id] = (by_file.get(order, inf), row.number)
        instances[job.id] = row.instances
    known = make_knowledge(knowledge, jobs, seed=seed)
    if order == "SJF":
        for job in jobs:
            spread = known.run_ms(job)
            keys[job.id] = (inf if spread is None else spread.expected, keys[job.id][1])
    jobs.sort(key=lambda job: job.submit_ms)
    begin = perf_counter()
    total = waited = done = end_ms = 0
    for event in simulate(jobs, cluster, _Greedy(lambda job: keys[job.id]), knowledge=known):
        end_ms = event.time_ms
        if event.kind is EventKind.FINISH:
            weight = instances[event.job.id]
            took_ms = event.time_ms - event.job.submit_ms
            total += weight * took_ms
            waited += weight * (took_ms - work_of(event.job))
            done += weight
    taken = perf_counter() - begin
    # The simulator's clock stops a second after the last job ends.
    return PaiResult(
        order, total / done / 1000, waited / done / 1000, end_ms / 1000 + 1, done, taken, knowledge
    )


def _size(job: Job) -> tuple[int, int]:
    """What the job takes of the pool."""
    return job.cpu_milli, job.mem_mib


class _Greedy:
    """Start every waiting job that fits, in order of a key; what is too large for what is left is passed over."""

    def __init__(self, key: Key) -> None:
        self._key = key
        self._slots = (GpuSlot(0, NO_GPU),)

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Placement]:
        lanes = queue.lanes(_size, self._key)
        turns = [(*lane[0][:2], size) for size, lane in lanes.items()]
        heapify(turns)
        while turns:
            size = turns[0][2]
            job: Job = lanes[size][0][2]
            cpu, mem = int(cluster.free.cpu_milli[0]), int(cluster.free.mem_mib[0])
            if job.cpu_milli > cpu or job.mem_mib > mem:
                heappop(turns)  # nor does any other of this kind: what is left only shrinks
                continue
            yield Placement(job, self._slots, job.share)
            if size in lanes:
                heapreplace(turns, (*lanes[size][0][:2], size))
            else:
                heappop(turns)
