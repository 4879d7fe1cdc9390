"""The jobs that are still to come, in order of submission, and the next of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from berth.errors import SimulationError
from berth.model import Job

NO_ARRIVAL_MS = 2**80
"""Later than anything."""


class Arrivals:
    """Draws jobs one at a time, and refuses those that make no sense."""

    def __init__(self, jobs: Iterator[Job]) -> None:
        self._jobs = jobs
        self.known: set[str] = set()
        """Ids of all jobs that were drawn."""
        self.job: Job | None = None
        """The next job to come; None after the last, and before the first `draw`."""
        self.time_ms = NO_ARRIVAL_MS
        """When it comes."""
        self.more = True
        """Whether there are any more, as far as is known."""

    def go_on(self, jobs: Iterator[Job], known: Iterable[str]) -> None:
        """These are to come after those that are known, by their ids."""
        self._jobs = jobs
        self.known.update(known)

    def draw(self, now_ms: int) -> None:
        """Draw the next job. Raises SimulationError for one that should have come before now, has the id of another,
        whose work is not known or whose patience is negative."""
        job = self.job = next(self._jobs, None)
        if job is None:
            self.time_ms = NO_ARRIVAL_MS
            self.more = False
            return
        if not isinstance(job, Job):
            raise SimulationError(f"{job!r:.80} is among the jobs; expected each to be a berth.Job")
        submit_ms = self.time_ms = job.submit_ms
        known = self.known
        if not isinstance(submit_ms, int) or submit_ms < now_ms:
            if not isinstance(submit_ms, int) or submit_ms < 0:
                raise SimulationError(
                    f"job '{job.id}' was submitted at {submit_ms} ms; expected a whole number, 0 or more"
                )
            raise SimulationError(
                f"job '{job.id}' was submitted at {submit_ms} ms, before the one that stands before it"
                f" ({now_ms} ms); give the jobs in order of submission"
            )
        for task in job.tasks or (job,):
            if task.id in known:
                raise SimulationError(f"two jobs have the id '{task.id}'; give each its own")
            if not isinstance(task.work_ms, int) or task.work_ms < 0:
                raise SimulationError(
                    f"job '{task.id}' has {task.work_ms} ms of work; a simulation needs a whole number, 0 or more"
                )
            known.add(task.id)
        if job.patience_ms is not None and job.patience_ms < 0:
            raise SimulationError(
                f"job '{job.id}' has a patience of {job.patience_ms} ms; expected 0 or more"
            )
        if job.tasks:
            known.add(job.gang)
