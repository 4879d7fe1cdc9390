"""The first jobs of the queue, as a policy looks at them again and again while it starts some of them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter

from berth.cluster import Queue
from berth.model import Job
from berth.policies.colocation.forecast import Candidate

_request_of = attrgetter(
    "application", "gpus", "nodes", "share", "cpu_milli", "mem_mib", "models", "labels", "work_ms"
)
"""What two jobs have in common that may run in the same places; of equal work they are the same to a forecast. The last
is not believed of all jobs."""
AT_ONCE = 1000
"""Jobs that are read at a time if all are to be."""
NOT_SHARING = -1
"""In place of the kind of jobs that do not share."""


class QueuePrefix:
    """The jobs of the queue that may share, looked at from the first on, kept while a pass starts some of them.

    They end before one that must have a GPU for itself and has no room yet.
    """

    def __init__(
        self,
        queue: Queue,
        in_order: Callable[[Queue], Iterable[Job]],
        candidate: Callable[[Job], Candidate | None],
        *,
        certain: bool,
    ) -> None:
        """`candidate` is how forecasts see a job, None if it does not share. `certain`: where jobs say their work, that
        of two which ask for the same is the same."""
        self.queue = queue
        self.started: set[str] = set()
        """Ids of those that were started since the last look."""
        self.jobs: list[Job] = []
        self.places: list[int] = []
        """The number of the kind of each."""
        self.kinds: list[Job] = []
        """One job of each kind, by what it asks for."""
        self.candidates: list[Candidate] = []
        """Each kind as forecasts see it."""
        self._in_order = in_order
        self._candidate = candidate
        self._certain = certain
        self._numbers: dict[tuple[object, ...], int] = {}
        # By what they ask for alone, of those of certain work.
        self._known: dict[tuple[object, ...], int] = {}
        self._begin()

    def _begin(self) -> None:
        self.jobs, self.places = [], []
        self._rest: Iterator[Job] = iter(self._in_order(self.queue))
        self._changes = self.queue.changes

    def look(self) -> None:
        """Leave out those that were started since; begin anew where others have come or gone."""
        if self.queue.changes != self._changes + len(self.started):
            self._begin()
        elif self.started:
            stay = [at for at, job in enumerate(self.jobs) if job.id not in self.started]
            self.jobs = [self.jobs[at] for at in stay]
            self.places = [self.places[at] for at in stay]
            self._changes = self.queue.changes
        self.started.clear()

    def read(self, count: int) -> bool:
        """Look at this many more jobs of the queue, or at more until one of them shares; False behind the last."""
        jobs, places, known = self.jobs, self.places, self._known
        before = len(jobs)
        while len(jobs) == before and (more := list(islice(self._rest, count))):
            for job in more:
                request = _request_of(job)
                kind = known.get(request)
                if kind is None:
                    kind = self._kind(job, request)
                if kind >= 0:
                    jobs.append(job)
                    places.append(kind)
                elif job.patience_ms != 0:
                    self._rest = iter(())
                    break
        return len(self.jobs) > before

    def window(
        self, begin: int, most: int, taken: Container[int], may: Mapping[int, bool]
    ) -> tuple[list[int], int]:
        """Numbers of the first jobs, from this one on, that are not taken and of kinds that may run, and of the job
        behind the last of them."""
        places, at, missing = self.places, begin, most
        end = len(places)
        found: list[int] = []
        while missing:
            if at >= end:
                if not self.read(most):
                    break
                end = len(places)
                continue
            if may[places[at]] and at not in taken:
                found.append(at)
                missing -= 1
            at += 1
        return found, at

    def _kind(self, job: Job, request: tuple[object, ...]) -> int:
        """The number of a job's kind, a new one if it is the first of its kind."""
        candidate = self._candidate(job)
        kind = NOT_SHARING
        if candidate is not None:
            kind = self._numbers.setdefault((*request[:-1], candidate.left_us), len(self.kinds))
            if kind == len(self.kinds):
                self.kinds.append(job)
                self.candidates.append(candidate)
        if self._certain and job.work_ms is not None:
            self._known[request] = kind
        return kind

    def all_kinds(self) -> Iterator[tuple[Job, Candidate]]:
        """A job of each kind among all of them, in order."""
        while self.read(AT_ONCE):
            pass
        return zip(self.kinds, self.candidates, strict=True)


class Kinds(dict[int, bool]):
    """Whether a job of each kind may run on a node; asked the first time."""

    def __init__(self, ask: Callable[[Job], bool], jobs: Sequence[Job]) -> None:
        """`jobs` is one of each kind, to which others may be added."""
        self.ask = ask
        self.jobs = jobs

    def __missing__(self, kind: int) -> bool:
        found = self[kind] = self.ask(self.jobs[kind])
        return found
