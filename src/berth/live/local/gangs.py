"""The gangs of the queue: the tasks of each that have not ended, and how many ran and have ended."""

from __future__ import annotations

from collections.abc import Mapping

from berth.errors import LiveError
from berth.live.local.entry import Entry
from berth.live.local.request import Request, Tasks


class LocalGangs:
    """The gangs of which a task has not ended, by `Entry.gang`. One that is over may begin anew by the same name."""

    def __init__(self, jobs: Mapping[str, Entry]) -> None:
        """`jobs` are all that have not ended; they are only read."""
        self._jobs = jobs
        self._tasks: dict[str, dict[str, None]] = {}
        self._ended: dict[str, int] = {}

    def check(self, request: Request, tasks: Tasks, user: str) -> None:
        """LiveError if jobs could not be tasks of the gang that they name."""
        if not request.gang:
            return
        if 0 < tasks.most < request.gang_starts:
            raise LiveError(
                f"--gang {request.gang}/{request.gang_starts}, but --array lets only {tasks.most} run at a time;"
                " name as many"
            )
        for job_id in self._tasks.get(f"{user}/{request.gang}", ()):
            starts = self._jobs[job_id].request.gang_starts
            if starts != request.gang_starts:
                raise LiveError(
                    f"--gang {request.gang}/{request.gang_starts}, but {starts} tasks of gang {request.gang} start"
                    f" together, as job {job_id} says; write --gang {request.gang}/{starts}, or another name"
                )
            return

    def enter(self, entry: Entry) -> None:
        if entry.gang:
            self._tasks.setdefault(entry.gang, {})[entry.id] = None
            self._ended[entry.gang] = max(self._ended.get(entry.gang, 0), entry.gang_ended)

    def leave(self, entry: Entry, ran: bool) -> tuple[int, Entry | None] | None:
        """A job has come to its end: how many tasks of its gang ran and have ended, and the task that is to keep that
        number, if there is one. None if that number is as before."""
        gang = entry.gang
        if entry.id not in self._tasks.get(gang, ()):
            return None
        del self._tasks[gang][entry.id]
        count = self._ended[gang] + ran
        if not self._tasks[gang]:
            del self._tasks[gang], self._ended[gang]
            return 0, None
        self._ended[gang] = count
        return count, self._jobs[next(iter(self._tasks[gang]))]

    def ended(self, gang: str) -> int:
        return self._ended.get(gang, 0)

    def tasks(self) -> Mapping[str, list[Entry]]:
        return {gang: [self._jobs[job_id] for job_id in ids] for gang, ids in self._tasks.items()}
