"""What really happened on one machine, as a trace to replay, and how far a replay is from it.

The local queue keeps two files beside the history: `cluster.csv`, the machine as a list of nodes, and `policies.json`,
which policy decided since when. A job works as long as its last attempt held its GPUs: while it ran, neighbours
included, and while it was started. Without the latter, jobs that were started at one moment and run for the same time
would end in another order than they did, and a strict order of whole GPUs packs otherwise from there on. A priority is
not recorded, and counts as none.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from berth.errors import SettingError
from berth.files import whole_file
from berth.history.store.folder import History
from berth.model import FOREVER_MS, Job, Node, Record, Share
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
    """Jobs that never ran."""
    known: bool
    """Whether the history itself tells what the machine is."""
    elsewhere: int = 0
    """Jobs of other clusters, which ran on nodes that this machine lacks, and are no part of this."""

    @property
    def wait_mean_s(self) -> float:
        """The mean of `waiting_time_s`."""
        return self.waiting_time_s.mean


def keep_machine(history: Path, nodes: Sequence[Node], policies: Sequence[tuple[int, str]]) -> None:
    """Keep what the machine is, and which policy decided since when, ms since 1970."""
    history.mkdir(parents=True, exist_ok=True)
    write_nodes(nodes, history / CLUSTER)
    with whole_file(history / POLICIES) as temporary:
        temporary.write_text(json.dumps([list(each) for each in policies]), encoding="utf-8")


def recorded_run(
    history: History, *, since_ms: int = 0, until_ms: int | None = None, nodes: Sequence[Node] = ()
) -> RecordedRun:
    """The jobs that were submitted from then, and before `until_ms`.

    `nodes` are what they ran on, where the history does not tell it. Where it does, jobs of clusters of which none ran
    on these nodes, such as imported ones beside those of the local queue, are left out. Raises SettingError if none
    ran, or nothing tells the machine.
    """
    kept = history.folder / CLUSTER
    if not nodes and not kept.exists():
        raise SettingError(
            f"{kept} is not there, which the local queue writes; say with --cluster what the jobs ran on"
        )
    machine = tuple(read_nodes(kept)) if kept.exists() else tuple(nodes)
    tries: dict[tuple[str, str], list[Record]] = {}
    until_ms = FOREVER_MS if until_ms is None else until_ms
    for record in history.records("submit_ms >= ? AND submit_ms < ?", [since_ms, until_ms]):
        tries.setdefault((record.cluster, record.job_id), []).append(record)
    there = len(tries)
    if kept.exists():
        tries = _of_machine(tries, machine, kept)
    ran = [
        sorted(each, key=lambda record: record.attempt)
        for each in tries.values()
        if any(record.start_ms is not None for record in each)
    ]
    if not ran:
        raise SettingError("no job of the history ran in this period; there is nothing to replay")
    lasts = [next(record for record in reversed(each) if record.start_ms is not None) for each in ran]
    # A job that was held, or waited for a time or another job, counts from when it could have started.
    ready = [each[0].ready_ms for each in ran]
    origin_ms = min(ready)
    moments = sorted({*ready, *(record.end_ms for each in ran for record in each)})
    jobs = [
        _job(last, at_ms - origin_ms, _start_took_ms(last, moments))
        for last, at_ms in zip(lasts, ready, strict=True)
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
        _policy(history.folder / POLICIES, max(last.submit_ms for last in lasts)),
        len(tries) - len(ran),
        kept.exists(),
        there - len(tries),
    )


def _of_machine(
    tries: dict[tuple[str, str], list[Record]], machine: Sequence[Node], kept: Path
) -> dict[tuple[str, str], list[Record]]:
    """Those jobs whose cluster ran some job on a node of the machine, or named none on which it ran.

    SettingError if there is none.
    """
    names = {node.name for node in machine}
    ran_on: dict[str, set[str]] = {}
    for (cluster, _), each in tries.items():
        ran_on.setdefault(cluster, set()).update(name for record in each for name in record.nodes)
    own = {cluster for cluster, machines in ran_on.items() if not machines or machines & names}
    if tries and not own:
        others = ", ".join(sorted(map(repr, ran_on))[:3])
        nodes = ", ".join(sorted(names)[:3])
        raise SettingError(
            f"all jobs of this period are of other clusters ({others}), and ran on none of the nodes of this machine"
            f" ({nodes}, in {kept}); choose another period, or replay them from a history of their own"
        )
    return {key: each for key, each in tries.items() if key[0] in own}


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


def _job(record: Record, ready_ms: int, start_took_ms: int) -> Job:
    shared_milli = record.share.milli
    return Job(
        id=record.job_id,
        submit_ms=ready_ms,
        work_ms=max(1, record.end_ms - (record.start_ms or 0) + start_took_ms),
        user=record.user,
        application=record.application,
        gpus=record.gpus,
        share=Share(shared_milli, record.share.mem_mib if shared_milli < 1000 else 0),
        nodes=record.parts,
        cpu_milli=record.cpu_milli,
        mem_mib=record.mem_mib,
        time_limit_ms=record.time_limit_ms,
        retries=0,
    )


def _place(job_id: str) -> tuple[int, ...]:
    """The order of submission among jobs of one moment: by the number of the job and of its task."""
    return tuple(int(part) for part in job_id.split("_") if part.isdigit())


def _policy(path: Path, at_ms: int) -> str:
    try:
        changes = [(int(since), str(name)) for since, name in json.loads(path.read_text(encoding="utf-8"))]
    except (OSError, ValueError):
        return ""
    before = [name for since, name in changes if since <= at_ms]
    return before[-1] if before else ""
