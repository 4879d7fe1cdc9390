"""The same jobs in less time: a queue forms where the cluster of a trace was half empty."""

from __future__ import annotations

import math
from collections.abc import Callable

from berth.errors import SettingError
from berth.model import Job
from berth.traces.job_draft import setter


def compression(factor: float) -> Callable[[Job], Job]:
    """What divides the time of submission of a job by `factor`, rounded down to a millisecond.

    The job comes straight from a reader and is finished here: no other code may have seen it. Raises
    SettingError for a factor that is not a positive number.
    """
    if not (math.isfinite(factor) and factor > 0):
        raise SettingError(f"arrivals can be compressed by a positive number, not by {factor}")
    put_submit_ms = setter("submit_ms")

    def compressed(job: Job) -> Job:
        put_submit_ms(job, int(job.submit_ms / factor))
        return job

    return compressed
