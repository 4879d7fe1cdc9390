"""Which jobs wait for which others, and whether what they wait for has come true."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from berth.errors import LiveError
from berth.live.local.entry import COMPLETED, Entry
from berth.live.local.request import Request


class Dependencies:
    """The jobs that have not ended, by what they wait for and by the array that they are tasks of."""

    def __init__(
        self,
        jobs: Mapping[str, Entry],
        just_ended: Mapping[str, str],
        ended_states: Callable[[str], Mapping[str, str]],
    ) -> None:
        """`jobs` are all that have not ended; what has is asked of `ended_states`, which may not know of `just_ended`
        yet. They are read and never written to."""
        self._jobs = jobs
        self._just_ended = just_ended
        self._ended_states = ended_states
        self._dependents: dict[str, set[str]] = defaultdict(set)
        self.arrays: dict[str, dict[str, None]] = defaultdict(dict)
        """The tasks of each array that have not ended, in order of submission."""

    def enter(self, entry: Entry) -> None:
        if entry.index is not None:
            self.arrays[entry.number][entry.id] = None
        for _, other in entry.request.after:
            self._dependents[other].add(entry.id)

    def leave(self, entry: Entry) -> list[Entry]:
        """A job has come to its end; the jobs that waited for it or for its array, in order of submission."""
        over = {entry.id}
        if entry.index is not None:
            tasks = self.arrays[entry.number]
            tasks.pop(entry.id, None)
            if not tasks:
                del self.arrays[entry.number]
                over.add(entry.number)
        self._wait_no_longer(entry)
        waited = {each for job_id in over for each in self._dependents.pop(job_id, ())}
        return sorted((self._jobs[each] for each in waited if each in self._jobs), key=lambda job: job.serial)

    def change(self, entry: Entry, request: Request) -> None:
        """Let a job wait for those that its new request names; LiveError where there is no such job, or it is
        itself, or waits for this one."""
        for _, other in request.after:
            if other in (entry.id, entry.number):
                raise LiveError(f"--after {other}: a job cannot wait for itself")
            self.check(other)
            if self._waits_for(other, entry):
                raise LiveError(
                    f"--after {other}: job {other} waits for job {entry.id} itself, so neither would ever start"
                )
        self._wait_no_longer(entry)
        for _, other in request.after:
            self._dependents[other].add(entry.id)

    def check(self, job_id: str) -> None:
        """LiveError where there is no job or array to wait for."""
        if job_id not in self._jobs and not self.arrays.get(job_id) and not self._ended(job_id):
            raise LiveError(
                f"--after names job {job_id}, which does not exist; `berth queue --ended` lists them"
            )

    def named(self, job_id: str) -> list[Entry]:
        if (entry := self._jobs.get(job_id)) is not None:
            return [entry]
        return sorted((self._jobs[each] for each in self.arrays.get(job_id, ())), key=lambda job: job.serial)

    def holds(self, kind: str, other: str) -> bool | None:
        """Whether a dependency holds; None: not yet."""
        if other in self._jobs or self.arrays.get(other):
            return None
        states = self._ended(other)
        return kind == "any" or all(state == COMPLETED for state in states.values()) == (kind == "ok")

    def _wait_no_longer(self, entry: Entry) -> None:
        for _, other in entry.request.after:
            if (those := self._dependents.get(other)) is not None:
                those.discard(entry.id)

    def _waits_for(self, job_id: str, entry: Entry) -> bool:
        """Whether a job, or a task of an array, waits for this one or its array, by however many others."""
        seen: set[str] = set()
        front = [job_id]
        while front:
            name = front.pop()
            if name in (entry.id, entry.number):
                return True
            if name in seen:
                continue
            seen.add(name)
            for job in self.named(name):
                front += [other for _, other in job.request.after]
        return False

    def _ended(self, job_id: str) -> dict[str, str]:
        """The states of a job or of the tasks of an array that have ended, written or not."""
        found = dict(self._ended_states(job_id))
        recent = self._just_ended.items()
        return found | {each: state for each, state in recent if job_id in (each, each.partition("_")[0])}
