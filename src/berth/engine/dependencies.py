"""Jobs that come after others: which are held until those have finished, and which never start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set

from berth.errors import SimulationError
from berth.model import Job

__all__ = ["Dependencies"]


class Dependencies:
    """Which jobs are held, and by which others."""

    def __init__(self, known: Set[str]) -> None:
        """`known` has the ids of all jobs that have come, and grows."""
        self._known = known
        self._never: set[str] = set()  # jobs that ended for good and did not finish
        self._held: dict[str, tuple[Job, set[str]]] = {}  # job that has come -> jobs that it waits for
        self.waited_for: dict[str, list[str]] = {}
        """The other way round: by id of an unfinished job, those that are held for it."""

    def can_start(self, job: Job) -> bool:
        """Whether all jobs that a job comes after have finished or still may. Raises SimulationError for a job that
        comes after one that has not been submitted."""
        for name in job.after:
            if name == job.id or name not in self._known:
                raise SimulationError(
                    f"job '{job.id}' comes after job '{name}', which was not submitted before it; a job can only"
                    " wait for earlier ones, so that none waits for itself in a circle"
                )
            if name in self._never:
                return False
        return True

    def hold(self, job: Job, is_unfinished: Callable[[str], bool]) -> bool:
        """Hold a job until those that it comes after have finished. Returns whether there is anything to wait for."""
        missing = {name for name in job.after if name in self._held or is_unfinished(name)}
        if missing:
            self._held[job.id] = job, missing
            for name in missing:
                self.waited_for.setdefault(name, []).append(job.id)
        return bool(missing)

    def finished(self, job_id: str) -> Iterator[Job]:
        """The jobs that waited for this one alone; they are held no more."""
        for name in self.waited_for.pop(job_id, ()):
            job, missing = self._held.get(name, (None, set()))
            missing.discard(job_id)
            if job is not None and not missing:
                del self._held[name]
                yield job

    def never_finishes(self, job_id: str) -> Iterator[Job]:
        """A job has ended for good without finishing: the held ones that come after it, which are to be rejected."""
        self._never.add(job_id)
        for name in self.waited_for.pop(job_id, ()):
            job, _ = self._held.pop(name, (None, None))
            if job is not None:
                yield job

    def held(self) -> list[Job]:
        """The jobs that are still held."""
        return [job for job, _ in self._held.values()]
