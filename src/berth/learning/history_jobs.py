"""A cluster's own history as sets of jobs to learn from."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from berth.errors import SettingError
from berth.learning.jobsets import JobSets, Task
from berth.model import Record, RecordState

__all__ = ["history_sets"]


def history_sets(task: Task, records: Iterable[Record], jobs: int, sets: int, seed: int) -> JobSets:
    """Sets of jobs that followed each other in a history, drawn by the seed.

    A job counts where its application has a profile, it used one GPU and it completed; its work is what the record
    says, else how long it ran. Of a history of fewer jobs than a set some are drawn twice. Raises SettingError where
    no job counts.
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
    if not found:
        raise SettingError(
            "the history has no completed job on one GPU of an application with a profile"
            f" ({', '.join(task.applications)}); record some, or train on the thesis's workloads"
        )
    found.sort()
    application, work = (np.array(column, np.int32) for column in list(zip(*found, strict=True))[1:])
    draw = np.random.default_rng(seed)
    first = draw.integers(0, len(found), sets)
    at = (first[:, None] + np.arange(jobs)) % len(found)
    return JobSets(application[at], work[at])
