"""Shortest job first, by what is known of a job's run time."""

from __future__ import annotations

from collections.abc import Iterator

from berth.model import FOREVER_MS, Job
from berth.policies.keyed import keyed
from berth.queue import Queue


def _work(job: Job) -> int:
    return job.work_ms


def _requested(job: Job) -> int:
    return FOREVER_MS if job.time_limit_ms is None else job.time_limit_ms


def _estimated(job: Job) -> int:
    return FOREVER_MS if job.estimate_ms is None else job.estimate_ms


@keyed(_work)
def sjf(queue: Queue) -> Iterator[Job]:
    """By true run time alone: what a scheduler could do that knew the future. The first queued on ties.

    Smith, "Various optimizers for single-stage production", Naval Research Logistics Quarterly 3, 1956.
    """
    return queue.by(_work)


@keyed(_requested)
def sjf_requested(queue: Queue) -> Iterator[Job]:
    """By the time limit that the user requested; jobs that state none come last, the first queued on ties."""
    return queue.by(_requested)


@keyed(_estimated)
def sjf_estimated(queue: Queue) -> Iterator[Job]:
    """By the estimate that the trace or a predictor gives; jobs without one come last, the first queued on ties."""
    return queue.by(_estimated)
