"""What is in a trace, in numbers: one pass over its jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from berth.model import FOREVER_MS, Job, Node, work_of

_PERCENTILES = (0, 10, 25, 50, 75, 90, 99, 100)


@dataclass(frozen=True)
class Description:
    """Counts and distributions over the jobs of a trace."""

    jobs: int
    first_submit_ms: int | None
    """None where there are no jobs."""
    last_submit_ms: int | None
    users: int
    """Different ones that have a name; 0 where the trace names none."""
    virtual_clusters: int
    gpu_hours: float
    """Run time alone times GPUs and share, over jobs that end."""
    endless_jobs: int
    """Jobs that never end by themselves."""
    jobs_by_gpus: dict[int, int]
    """Number of jobs by GPUs asked for; sorted."""
    jobs_by_milli: dict[int, int]
    """Number of jobs with GPUs by their part of each; sorted."""
    jobs_by_model: dict[str, int]
    """Number of jobs by the models that they may run on, joined by `|`; sorted."""
    work_ms: dict[int, int]
    """Percentile of the run time alone, over jobs that end, in milliseconds, by per cent."""
    with_time_limit: int
    with_estimate: int
    with_patience: int
    nodes: int | None
    """Nodes of the cluster that the trace brings; None where it brings none."""
    cluster_gpus: int | None
    load: float | None
    """GPU time that is asked for over what the cluster has between first and last submission; None where
    there is no cluster, no such time, or a job that never ends."""


def describe_jobs(jobs: Iterable[Job], nodes: Sequence[Node] | None) -> Description:
    """Go over jobs once and count."""
    submits: list[int] = []
    works: list[int] = []
    users: set[str] = set()
    clusters: set[str] = set()
    by_gpus: Counter[int] = Counter()
    by_milli: Counter[int] = Counter()
    by_model: Counter[str] = Counter()
    gpu_ms_milli = endless = limits = estimates = patient = 0
    for job in jobs:
        submits.append(job.submit_ms)
        users.add(job.user)
        clusters.add(job.virtual_cluster)
        by_gpus[job.gpus] += 1
        if job.gpus:
            by_milli[job.share.milli] += 1
        if job.models:
            by_model["|".join(job.models)] += 1
        if work_of(job) >= FOREVER_MS:
            endless += 1
        else:
            works.append(work_of(job))
            gpu_ms_milli += work_of(job) * job.gpus * job.share.milli
        limits += job.time_limit_ms is not None
        estimates += job.estimate_ms is not None
        patient += job.patience_ms is not None
    first, last = (min(submits), max(submits)) if submits else (None, None)
    gpus = None if nodes is None else sum(node.gpus for node in nodes)
    span_ms = 0 if first is None or last is None else last - first
    return Description(
        jobs=len(submits),
        first_submit_ms=first,
        last_submit_ms=last,
        users=len(users - {""}),
        virtual_clusters=len(clusters - {""}),
        gpu_hours=gpu_ms_milli / 3.6e9,
        endless_jobs=endless,
        jobs_by_gpus=dict(sorted(by_gpus.items())),
        jobs_by_milli=dict(sorted(by_milli.items())),
        jobs_by_model=dict(sorted(by_model.items())),
        work_ms=_percentiles(works),
        with_time_limit=limits,
        with_estimate=estimates,
        with_patience=patient,
        nodes=None if nodes is None else len(nodes),
        cluster_gpus=gpus,
        load=gpu_ms_milli / (span_ms * gpus * 1000) if span_ms and gpus and not endless else None,
    )


def _percentiles(values: list[int]) -> dict[int, int]:
    if not values:
        return {}
    found = np.percentile(np.array(values, np.int64), _PERCENTILES, method="lower")
    return dict(zip(_PERCENTILES, (int(value) for value in found), strict=True))
