"""The shortest total time of a few jobs that may share one GPU, found by trying every schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from berth.errors import SettingError
from berth.interference import Interference, Tenant
from berth.model import GpuModel, Job, work_of

MOST_JOBS = 8

Running = tuple[tuple[int, int], ...]
"""Number of a job's kind and its work left in µs, of each tenant in the order of their start."""


@dataclass(frozen=True, slots=True)
class Exact:
    """A schedule that no other of its kind is shorter than."""

    total_ms: int
    starts: tuple[tuple[int, str], ...]
    """When a job of which application starts, in order."""


def least_total_time(
    jobs: Sequence[Job], interference: Interference, gpu: GpuModel, *, every_row: bool = False
) -> Exact:
    """The shortest time from 0 to the last end, of all schedules that start jobs at 0 and whenever one ends.

    With `every_row` jobs may also start whenever a tenant enters a new row of its profile. Schedules in which
    a job runs out of memory are left out. Raises SettingError for more than 8 jobs, and where one fits nowhere.
    """
    if not 1 <= len(jobs) <= MOST_JOBS:
        raise SettingError(f"{len(jobs)} jobs to try every schedule of; expected 1…{MOST_JOBS}")
    kinds: dict[tuple[str, int], Job] = {}
    for job in jobs:
        kinds.setdefault((job.application, work_of(job)), job)
    search = _Search(list(kinds.values()), interference, gpu, every_row)
    waiting = tuple(sum((job.application, work_of(job)) == key for job in jobs) for key in kinds)
    total_ms, starts = search.least((), waiting)
    if total_ms is None:
        raise SettingError(f"one of these jobs does not fit on a {gpu.name} alone")
    return Exact(total_ms, starts)


class _Search:
    """Depth first, every state once."""

    def __init__(
        self, kinds: Sequence[Job], interference: Interference, gpu: GpuModel, every_row: bool
    ) -> None:
        self.kinds = kinds
        self.interference = interference
        self.gpu = gpu
        self.every_row = every_row
        self.known: dict[tuple[Running, tuple[int, ...]], tuple[int | None, tuple[tuple[int, str], ...]]] = {}

    def least(
        self, running: Running, waiting: tuple[int, ...]
    ) -> tuple[int | None, tuple[tuple[int, str], ...]]:
        """The least time it takes from here; None if a job runs out of memory whatever is done."""
        if not running and not any(waiting):
            return 0, ()
        found = self.known.get((running, waiting))
        if found is None:
            found = self.known[running, waiting] = self._least(running, waiting)
        return found

    def _least(
        self, running: Running, waiting: tuple[int, ...]
    ) -> tuple[int | None, tuple[tuple[int, str], ...]]:
        best: int | None = None
        best_starts: tuple[tuple[int, str], ...] = ()
        for started in product(*(range(count + 1) for count in waiting)):
            newcomers = tuple(
                (kind, work_of(self.kinds[kind]) * 1000)
                for kind, number in enumerate(started)
                for _ in range(number)
            )
            if not running and not newcomers:
                continue
            passed = self._until_decision((*running, *newcomers))
            if passed is None:
                continue
            dt_ms, after = passed
            left = tuple(count - number for count, number in zip(waiting, started, strict=True))
            rest, starts = self.least(after, left)
            if rest is not None and (best is None or dt_ms + rest < best):
                best = dt_ms + rest
                here = tuple((0, self.kinds[kind].application) for kind, _ in newcomers)
                best_starts = here + tuple((dt_ms + when, application) for when, application in starts)
        return best, best_starts

    def _until_decision(self, running: Running) -> tuple[int, Running] | None:
        """Let time go on until a job may start again; None if a job runs out of memory until then."""
        passed_ms = 0
        while True:
            tenants = []
            for kind, left_us in running:
                job = self.kinds[kind]
                tenants.append(Tenant(job, job.share, *divmod(work_of(job) * 1000 - left_us, 1000)))
            outlook = self.interference(tenants, self.gpu)
            if outlook.out_of_memory is not None:
                return None
            speeds = outlook.speeds_milli
            ends = [-(-left // speed) for (_, left), speed in zip(running, speeds, strict=True) if speed > 0]
            if not ends:
                return None
            dt_ms = min(outlook.hold_ms, *ends)
            passed_ms += dt_ms
            advanced = tuple(
                (kind, left - dt_ms * speed) for (kind, left), speed in zip(running, speeds, strict=True)
            )
            running = tuple((kind, left) for kind, left in advanced if left > 0)
            if len(running) < len(advanced) or self.every_row:
                return passed_ms, running
