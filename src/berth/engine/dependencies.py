"""Jobs that come after others: which are held until those have finished, and which never start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set

from berth.errors import SimulationError
from berth.model import Job


class Dependencies:
    """Which jobs are held, and by which others."""

    def __init__(self, known: Set[str]) -> None:
        """`known` has the ids of all jobs that have come, and grows."""
        self._known = known
        self._never: set[str] = set()  # jobs, tasks and gangs that ended for good and did not finish
        self._unfinished_tasks: dict[
            str, int
        ] = {}  # by name of a gang or id of its task, how many are to finish
        self._held: dict[str, tuple[Job, set[str]]] = {}  # job that has come -> jobs that it waits for
        self.waited_for: dict[str, list[str]] = {}
        """The other way round: by id of an unfinished job, those that are held for it."""

    def gang_submitted(self, gang: Job) -> None:
        """Others may come after the whole gang, by its name, or after one of its tasks, by the task's id."""
        self._unfinished_tasks.update((task.id, 1) for task in gang.tasks)
        self._unfinished_tasks[gang.gang] = len(gang.tasks)

    def can_start(self, job: Job) -> bool:
        """Whether all jobs that a job comes after have finished or still may. Raises SimulationError for a job that
        comes after one that has not been submitted."""
        own = _names_of(job)
        for name in job.after:
            if name in own or name not in self._known:
                raise SimulationError(
                    f"job '{job.id}' comes after job '{name}', which was not submitted before it; a job can only"
                    " wait for earlier ones, so that none waits for itself in a circle"
                )
            if name in self._never:
                return False
        return True

    def hold(self, job: Job, is_unfinished: Callable[[str], bool]) -> bool:
        """Hold a job until those that it comes after have finished. Returns whether there is anything to wait for."""
        missing = {
            name
            for name in job.after
            if name in self._held or name in self._unfinished_tasks or is_unfinished(name)
        }
        if missing:
            self._held[job.id] = job, missing
            for name in missing:
                self.waited_for.setdefault(name, []).append(job.id)
        return bool(missing)

    def finished(self, job: Job) -> Iterator[Job]:
        """The jobs that waited for this one alone, or for its gang if it was the last task; they are held no more."""
        for name in _names_of(job):
            unfinished = self._unfinished_tasks.pop(name, 1) - 1
            if unfinished:
                self._unfinished_tasks[name] = unfinished
            else:
                yield from self._released(name)

    def _released(self, name: str) -> Iterator[Job]:
        """The jobs that were held for this name alone."""
        for job_id in self.waited_for.pop(name, ()):
            job, missing = self._held.get(job_id, (None, set()))
            missing.discard(name)
            if job is not None and not missing:
                del self._held[job_id]
                yield job

    def never_finishes(self, job: Job) -> Iterator[Job]:
        """A job has ended for good without finishing, and so its gang never does: the held ones that come after them,
        which are to be rejected."""
        names = _names_of(job)
        self._never.update(names)
        for name in names:
            self._unfinished_tasks.pop(name, None)
            for job_id in self.waited_for.pop(name, ()):
                held, _ = self._held.pop(job_id, (None, None))
                if held is not None:
                    yield held

    def held(self) -> list[Job]:
        """The jobs that are still held."""
        return [job for job, _ in self._held.values()]


def _names_of(job: Job) -> tuple[str, ...]:
    """The names by which others come after a job: its id, and of a task or a gang those of its gang and tasks."""
    if not job.gang:
        return (job.id,)
    return tuple(dict.fromkeys((*(task.id for task in job.tasks or (job,)), job.gang)))
