"""Gangs of which tasks run: what becomes of the others when one is lost."""

from __future__ import annotations

from dataclasses import dataclass, field

from berth.model import Job, gang_of


@dataclass(slots=True)
class _Gang:
    """A gang of which tasks have started."""

    min_tasks: int
    """How many are to run, those that have ended counted."""
    tasks: dict[str, Job] = field(default_factory=dict)
    """Those that have not ended for good, by id, in the order of the gang."""
    running: set[str] = field(default_factory=set)
    ended: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether as many run or have ended as start together."""
        return len(self.running) + self.ended >= self.min_tasks


class Gangs:
    """The gangs of which tasks have started, by name."""

    def __init__(self) -> None:
        self._gangs: dict[str, _Gang] = {}

    def start(self, job: Job) -> None:
        """The tasks of a gang that start together run, and the further ones wait."""
        gang = self._gangs.setdefault(job.gang, _Gang(job.min_tasks))
        gang.tasks.update((task.id, task) for task in job.tasks)
        gang.running.update(task.id for task in job.tasks[: job.min_tasks])

    def start_task(self, task: Job) -> None:
        """A further task of a gang runs, or one that ran before the scheduler knew of it."""
        gang = self._gangs.setdefault(task.gang, _Gang(task.min_tasks))
        gang.tasks[task.id] = task
        gang.running.add(task.id)

    def end(self, task: Job) -> None:
        """A task has ended for good: it counts as one that runs."""
        gang = self._gangs.get(task.gang)
        if gang is not None and gang.tasks.pop(task.id, None) is not None:
            gang.running.discard(task.id)
            gang.ended += 1
            if not gang.tasks:
                del self._gangs[task.gang]

    def leave(self, task: Job) -> None:
        """A task was taken away, or could not be started, and does not come again: the others run on without it."""
        gang = self._gangs.get(task.gang)
        if gang is not None and gang.tasks.pop(task.id, None) is not None:
            gang.running.discard(task.id)
            if not gang.tasks:
                del self._gangs[task.gang]

    def lose(self, task: Job) -> list[str] | None:
        """A task runs no more, and is to run again: the ids of those of its gang that are to run no more without it.
        None if it may start again by itself."""
        gang = self._gangs.get(task.gang)
        if gang is None:
            return None
        gang.running.discard(task.id)
        return None if gang.is_whole else sorted(gang.running)

    def take_apart(self, name: str) -> Job:
        """A gang that is not whole any more, to be queued: all of its tasks that have not ended."""
        gang = self._gangs.pop(name)
        least = min(max(1, gang.min_tasks - gang.ended), len(gang.tasks))
        return gang_of([*gang.tasks.values()], least, name)
