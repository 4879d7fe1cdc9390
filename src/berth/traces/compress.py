"""The same jobs in less time: a queue forms where the cluster of a trace was half empty."""

from __future__ import annotations

import math
from collections.abc import Sequence

from berth.errors import SettingError
from berth.model import Job
from berth.traces.job_draft import submitted_at
from berth.traces.job_table import JobTable


def compressed(jobs: Sequence[Job], factor: float) -> Sequence[Job]:
    """Jobs whose times of submission are divided by `factor`, rounded down to a millisecond.

    Raises SettingError for a factor that is not a positive number.
    """
    if not (math.isfinite(factor) and factor > 0):
        raise SettingError(f"arrivals can be compressed by a positive number, not by {factor}")
    if factor == 1.0:
        return jobs

    def sooner(job: Job) -> Job:
        return submitted_at(job, int(job.submit_ms / factor))

    return jobs.each(sooner) if isinstance(jobs, JobTable) else tuple(map(sooner, jobs))
