"""Elastic jobs: how many GPUs each has is decided anew from time to time, by what one more is worth to each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from berth.cluster import Cluster, Queue, Running
from berth.cluster.shadow import Shadow
from berth.errors import SettingError
from berth.model import FOREVER_MS, Evict, GpuSlot, Job, Placement, WakeAt, placement_of, sized
from berth.policies.options import settings_from
from berth.policies.placements.by_score import BestFit
from berth.policies.protocol import Setting, place_job


@dataclass(frozen=True, slots=True)
class ElasticSettings:
    """When sizes change."""

    round_ms: int = 300_000
    """Sizes of running jobs are looked at anew at whole multiples of this, as each change costs a restart."""
    gain: float = 1.2
    """A running job is given more GPUs only if it gets at least this many times as fast."""

    def __post_init__(self) -> None:
        if not 1 <= self.round_ms <= 86_400_000:
            raise SettingError(f"round_ms is {self.round_ms}; expected from 1 to 86,400,000")
        if not 1 <= self.gain <= 1000:
            raise SettingError(f"gain is {self.gain:g}; expected from 1 to 1,000")


class Elastic:
    """Give every job its least number of GPUs, and each further GPU to the job that it helps most.

    The help is the gain in speed, as a multiple of the job's speed on its least number. That is the goal of Qiao et
    al., "Pollux", OSDI 2021, and of Jayaram Subramanya et al., "Sia", SOSP 2023. They use a search and an integer
    program; here GPUs are given one by one. Running jobs change only at rounds, by an eviction and a new start, and
    only if they keep their work (`keeps_work`). A job is stopped only if there is room for its new size at once, and
    if it saves more time than the restart takes. It is as strict as `fifo`: a job that does not get its least number
    delays those behind it.
    """

    draws = False
    resizes = True

    def __init__(self, setting: Setting | None = None, settings: ElasticSettings | None = None) -> None:
        self.settings = settings or ElasticSettings()
        self._restart_ms = (setting or Setting()).restart_ms
        self._place = BestFit(setting)

    @classmethod
    def with_options(cls, setting: Setting, options: dict[str, str]) -> Elastic:
        """Made with the settings in a policy's name: those of `ElasticSettings`."""
        return cls(setting, settings_from(ElasticSettings, options))

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Placement | Evict | WakeAt]:
        """Yield evictions of those that change, and placements."""
        round_ms = self.settings.round_ms
        last_round = cluster.memo.get(self, -1)
        wanted: dict[str, int] = {}
        if now_ms // round_ms > last_round:
            cluster.memo[self] = now_ms // round_ms
            wanted = self._targets(queue, cluster)
            changes, starts = self._plan(queue, cluster, wanted, now_ms)
            for run, _ in changes:
                yield Evict(run.job)
            for _, placement in changes:
                yield placement
            yield from starts if changes else ()
        for job in _in_turn(queue, wanted):
            started = _largest(
                job, wanted.get(job.id, job.gpus), lambda on: place_job(self._place, on, cluster)
            )
            if started is not None:
                yield started
            elif job.patience_ms != 0:
                break
        if any(_resizable(run) for run in cluster.running.values()):
            yield WakeAt((now_ms // round_ms + 1) * round_ms)

    def _plan(
        self, queue: Queue, cluster: Cluster, wanted: dict[str, int], now_ms: int
    ) -> tuple[list[tuple[Running, Placement]], list[Placement]]:
        """The runs that change, each with where it goes on, and where waiting jobs start then.

        All is tried out first, so that nothing is stopped for GPUs that it would not get: jobs that shrink, those that
        wait, then those that grow. One that finds no room for a size worth its restart stays as it is, and one whose
        GPUs no other job takes does not shrink.
        """
        changing = [
            run for run in cluster.running.values() if self._is_worth(run, wanted.get(run.job.id), now_ms)
        ]
        changing.sort(key=lambda run: run.job.submit_ms)
        while changing:
            shadow = Shadow(cluster)
            for run in changing:
                shadow.end(run)
            new: dict[str, Placement] = {}
            starts: list[Placement] = []
            for run in changing:
                if wanted[run.job.id] < run.job.gpus:
                    on = sized(run.job, wanted[run.job.id])
                    smaller = placement_of(on, run.slots[: on.gpus])
                    if shadow.has_room(on, smaller.slots):
                        new[run.job.id] = smaller
                        shadow.start(on, smaller.slots, smaller.share)
            for job in _in_turn(queue, wanted):
                started = _largest(job, wanted.get(job.id, job.gpus), shadow.slots_in_tightest)
                if started is not None:
                    starts.append(started)
                    shadow.start(started.job, started.slots, started.share)
                elif job.patience_ms != 0:
                    break
            for run in changing:
                most = wanted[run.job.id]
                for size, _ in reversed(run.job.elastic):
                    if run.job.gpus < size <= most and self._is_worth(run, size, now_ms):
                        on = sized(run.job, size)
                        slots = shadow.slots_in_tightest(on)
                        if slots is not None:
                            new[run.job.id] = placement_of(on, slots)
                            shadow.start(on, slots, on.share)
                            break
            if len(new) == len(changing):
                return _needed(changing, new, shadow), starts
            changing = [run for run in changing if run.job.id in new]
        return [], []

    def _is_worth(self, run: Running, gpus: int | None, now_ms: int) -> bool:
        """Whether a running job is to have fewer GPUs, or enough more to be worth a restart; one that would end while
        it restarts is left alone."""
        if gpus is None or gpus == run.job.gpus:
            return False
        left_ms = FOREVER_MS if run.end_ms() >= FOREVER_MS else run.left_us_at(now_ms) / 1000
        if gpus < run.job.gpus:
            return left_ms > self._restart_ms
        speeds = dict(run.job.elastic)
        before, after = speeds[run.job.gpus], speeds[gpus]
        return after >= self.settings.gain * before and left_ms * (1 - before / after) > self._restart_ms

    def _targets(self, queue: Queue, cluster: Cluster) -> dict[str, int]:
        """How many GPUs each elastic job is to have that waits or may be resized, by its id."""
        free = int((cluster.free.milli[cluster.up] == 1000).sum())
        mine: list[Job] = []
        for run in cluster.running.values():
            # What is stopped on a node that is drained cannot start there again.
            if _resizable(run) and all(cluster.up[slot.node] for slot in run.slots):
                mine.append(run.job)
                free += run.job.gpus
        sizes: dict[str, int] = {}
        for job in mine:  # what runs goes on
            sizes[job.id] = _least(job)
            free -= _least(job)
        for job in sorted(queue, key=lambda job: job.submit_ms):
            needed = _least(job) if job.elastic else -(-job.gpus * job.share.milli // 1000)
            if needed > free:
                break
            free -= needed
            if job.elastic:
                sizes[job.id] = needed
                mine.append(job)
        speeds = {job.id: _speeds(job, cluster) for job in mine}
        while free > 0:
            each = (_best_step(job, speeds[job.id], sizes[job.id], free) for job in mine)
            steps = [step for step in each if step is not None]
            if not steps:
                break
            _, _, job_id, size = max(steps)
            free -= size - sizes[job_id]
            sizes[job_id] = size
        return sizes


def _in_turn(queue: Queue, wanted: dict[str, int]) -> list[Job]:
    """The waiting jobs as queued; in a round by when they were submitted, as those that were stopped wait anew."""
    return sorted(queue, key=lambda job: job.submit_ms) if wanted else list(queue)


def _largest(job: Job, most: int, slots_for: Callable[[Job], tuple[GpuSlot, ...] | None]) -> Placement | None:
    """The job on as many GPUs as it may have, or on fewer if those do not fit."""
    for gpus in sorted({size for size, _ in job.elastic} or {job.gpus}, reverse=True):
        if gpus <= most or gpus == _least(job):
            on = sized(job, gpus)
            slots = slots_for(on)
            if slots is not None:
                return placement_of(on, slots)
    return None


def _needed(
    changing: list[Running], new: dict[str, Placement], shadow: Shadow
) -> list[tuple[Running, Placement]]:
    """Without the runs that shrink for no other: with all others in their places, they could stay in theirs."""
    changes: list[tuple[Running, Placement]] = []
    for run in changing:
        placement = new[run.job.id]
        if placement.job.gpus < run.job.gpus:
            shadow.stop(placement.job, placement.slots, placement.share)
            if shadow.has_room(run.job, run.slots):
                shadow.undo_end(run)
                continue
            shadow.start(placement.job, placement.slots, placement.share)
        changes.append((run, placement))
    return changes


def _least(job: Job) -> int:
    """The fewest GPUs that it can run on."""
    return job.elastic[0][0] if job.elastic else job.gpus


def _resizable(run: Running) -> bool:
    """Whether it can be stopped and started on another number of GPUs without losing its work."""
    return bool(run.job.elastic) and run.job.keeps_work and not run.shared


def _speeds(job: Job, cluster: Cluster) -> dict[int, int]:
    """Its speed, per mille, on its least number of GPUs and on all that the cluster could give it if it were empty."""
    return {
        size: milli
        for size, milli in job.elastic
        if size == _least(job) or cluster.fits_when_empty(sized(job, size))
    }


def _best_step(job: Job, speeds: dict[int, int], gpus: int, free: int) -> tuple[float, int, str, int] | None:
    """The next larger size that is worth most for each GPU more: its worth, what settles ties, the job, the size."""
    steps = [
        (
            (speeds[size] - speeds[gpus]) / speeds[_least(job)] / (size - gpus),
            -job.submit_ms,
            job.id,
            size,
        )
        for size in speeds
        if gpus < size <= gpus + free and speeds[size] > speeds[gpus]
    ]
    return max(steps, default=None)
