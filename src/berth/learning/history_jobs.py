"""A cluster's own history as sets of jobs: earlier ones to learn from, later ones to measure on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from berth.errors import SettingError
from berth.learning.jobsets import JobSets, Task
from berth.model import Record, RecordState

MEASURED_ON = 5
"""One job in this many, the last by submission, is measured on and never trained on."""


def history_sets(
    task: Task, records: Iterable[Record], jobs: int, sets: tuple[int, int], seed: int
) -> tuple[JobSets, JobSets]:
    """Sets of jobs that followed each other in a history, to train on and to measure on, drawn by the seed.

    The two have no job in common: those to measure on were submitted after the others. A job counts where its
    application has a profile, it used one GPU and it completed; its work is what the record says, else how long it
    ran. Where there are fewer jobs than a set has, some are in it twice. Raises SettingError where fewer than two
    jobs count.
    """
    index = {name: at for at, name in enumerate(task.applications)}
    found = []
    for record in records:
        work_ms = record.work_ms
        if work_ms is None and record.start_ms is not None:
            work_ms = record.end_ms - record.start_ms
        counts = record.state is RecordState.COMPLETED and record.gpus == 1 and record.application in index
        if counts and work_ms:
            found.append((record.submit_ms, index[record.application], work_ms))
    if len(found) < 2:
        raise SettingError(
            f"the history has {len(found)} completed jobs on one GPU of an application with a profile"
            f" ({', '.join(task.applications)}); two are the least, one to train on and one to measure on: record"
            " some, or train on the thesis's workloads"
        )
    found.sort()
    split = len(found) - max(1, len(found) // MEASURED_ON)
    draw = np.random.default_rng(seed)
    training, measured = (
        _windows(part, jobs, count, draw)
        for part, count in zip((found[:split], found[split:]), sets, strict=True)
    )
    return training, measured


def _windows(
    found: Sequence[tuple[int, int, int]], jobs: int, sets: int, draw: np.random.Generator
) -> JobSets:
    """Sets of jobs that follow each other, after the last the first again."""
    application = np.array([one[1] for one in found], np.int32)
    work_ms = np.array([one[2] for one in found], np.int64)
    at = (draw.integers(0, len(found), sets)[:, None] + np.arange(jobs)) % len(found)
    return JobSets(application[at], work_ms[at])
