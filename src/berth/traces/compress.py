"""The same jobs in less time: a queue forms where the cluster of a trace was half empty."""

from __future__ import annotations

import math
from collections.abc import Callable

from berth.errors import SettingError
from berth.model import Job
from berth.traces.job_draft import submitted_at


def compression(factor: float) -> Callable[[Job], Job]:
    """What divides the time of submission of a job by `factor`, rounded down to a millisecond.

    It makes a new job, so that what is asked for twice is divided once. Raises SettingError for a factor that is not a
    positive number.
    """
    if not (math.isfinite(factor) and factor > 0):
        raise SettingError(f"arrivals can be compressed by a positive number, not by {factor}")
    return lambda job: submitted_at(job, int(job.submit_ms / factor))
