"""The gangs of a site: which tasks each has, and which gangs are to be looked at again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from berth.live.driver.site import SiteGang, SiteJob


class GangTasks(NamedTuple):
    """The tasks of a gang at one moment."""

    gang: SiteGang
    running: Sequence[str]
    """Ids of those that start or run."""
    waiting: Sequence[SiteJob]
    """Those that wait, in the order of the queue, including those that may not start yet."""
    ended: int
    """How many ran and have ended for good: they count as if they ran."""

    @property
    def missing(self) -> int:
        """How many more tasks have to run; 0 or less: the gang is whole."""
        return self.gang.min_tasks - self.ended - len(self.running)


class SiteGangs:
    """The gangs of which tasks wait or run, by name."""

    def __init__(self) -> None:
        self._tasks: dict[str, dict[str, None]] = {}
        self._touched: dict[str, None] = {}
        self._ended: dict[str, int] = {}

    def touch(self, job: SiteJob) -> None:
        """A task has come, changed or left, if this is one: its gang is to be looked at again."""
        if job.gang is not None:
            self._tasks.setdefault(job.gang.name, {})[job.job.id] = None
            self._touched[job.gang.name] = None

    def leave(self, name: str) -> None:
        """There is nothing to do about a gang until something happens."""
        self._touched.pop(name, None)

    def take_touched(self, ended: Mapping[str, int]) -> list[str]:
        """The gangs that are to be looked at now; `ended` is how many tasks of each have ended."""
        for name in self._tasks:
            if ended.get(name, 0) != self._ended.get(name, 0):
                self._touched[name] = None
        self._ended = {name: count for name, count in ended.items() if name in self._tasks}
        touched, self._touched = [*self._touched], {}
        return touched

    def tasks(
        self, name: str, known: Mapping[str, SiteJob], running: Collection[str], leaving: Collection[str]
    ) -> GangTasks | None:
        """The tasks of a gang; None if it has none any more. `known` are all jobs that wait or run, `leaving` those
        whose attempt is about to end."""
        ids = [
            job_id
            for job_id in self._tasks.get(name, ())
            if (job := known.get(job_id)) is not None and job.gang is not None and job.gang.name == name
        ]
        if not ids:
            self._tasks.pop(name, None)
            return None
        self._tasks[name] = dict.fromkeys(ids)
        jobs = [known[job_id] for job_id in ids]
        gang = max((job.gang for job in jobs if job.gang is not None), key=lambda gang: gang.min_tasks)
        waiting = [job for job in jobs if job.job.id not in running and job.job.id not in leaving]
        return GangTasks(
            gang,
            [job_id for job_id in ids if job_id in running],
            sorted(waiting, key=lambda job: job.order),
            self._ended.get(name, 0),
        )

    @property
    def names(self) -> list[str]:
        return [*self._tasks]


def gang_title(name: str) -> str:
    """The name of a gang as its user wrote it."""
    return name.rpartition("/")[2]
