"""The same jobs in less time: a queue forms where the cluster of a trace was half empty."""

from __future__ import annotations

import math
from collections.abc import Iterator

from berth.errors import SettingError
from berth.model import Job
from berth.traces.job_draft import setter


def compressed(fresh: Iterator[Job], factor: float) -> Iterator[Job]:
    """Divide the time of submission of each job by `factor`, rounded down to a millisecond.

    The jobs come straight from a reader and are finished here: no other code may have seen them. Raises
    SettingError for a factor that is not a positive number.
    """
    if not (math.isfinite(factor) and factor > 0):
        raise SettingError(f"arrivals can be compressed by a positive number, not by {factor}")
    put_submit_ms = setter("submit_ms")
    for job in fresh:
        put_submit_ms(job, int(job.submit_ms / factor))
        yield job
