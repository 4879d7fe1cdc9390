"""Headroom around any other policy: GPUs stay free for urgent jobs that are believed to come soon."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from berth.arrays import BoolArray
from berth.cluster import Cluster, Queue
from berth.errors import SettingError
from berth.model import Evict, Job, Placement, WakeAt
from berth.policies.protocol import Decision, InOrder, Policy, Resuming, Setting, draws
from berth.policies.schemes.strict import ShownQueue
from berth.policies.sort_keys import as_queued, key_of

Models = tuple[str, ...]
"""The GPU models that a job may run on; empty for any."""
SAMPLES_AHEAD: Final = 6
"""Samples of the demand in the time that is looked ahead."""
WINDOW_MS: Final = 7 * 24 * 3_600_000
"""How far back the demand is remembered: a week has its own days."""
WINDOWS: Final = 8
"""Windows of samples that are kept, so that a trial of the future does not push out those of the past."""
FEWEST: Final = 24
"""Samples without which nothing is kept free."""


class Headroom:
    """Keep as many GPUs free as urgent jobs will soon need; another policy places the other jobs in the rest.

    Jobs of a priority above 0 are urgent. Their demand is the GPUs that they hold and wait for. How much it rises
    within `ahead_s` is learned over a week, for each set of GPU models. The quantile of these rises is kept free, so
    that an urgent job finds room without an eviction. The idea is from Duan and others, *GFS: A Preemptive Scheduling
    Framework for GPU Clusters with Predictive Spot Management* (ASPLOS 2026), who forecast with one network per
    department. Settings in the name: `headroom?quantile=0.9&ahead_s=3600+preempt+fifo+best-fit`. With `passing=1`, a
    job that is not urgent and fits passes larger ones that do not, even where the other policy is strict; large ones
    may then starve.
    """

    def __init__(
        self, inner: Policy, quantile: float = 0.9, ahead_s: int = 3600, *, passing: bool = False
    ) -> None:
        if not 0 <= quantile <= 1 or ahead_s < 1:
            raise SettingError(
                f"headroom takes a quantile from 0 to 1 and ahead_s of 1 or more, not {quantile} and {ahead_s}"
            )
        self.passing = passing
        self.inner = inner
        self.quantile = quantile
        self.step_ms = max(1, ahead_s * 1000 // SAMPLES_AHEAD)
        self.draws = draws(inner)
        self.resumes = isinstance(inner, Resuming) and inner.resumes
        self._key = key_of(inner.order if isinstance(inner, InOrder) else None) or as_queued
        self._samples: list[tuple[int, Mapping[Models, int]]] = []  # time, milli of GPUs
        self._reserve_milli: dict[Models, int] = {}

    @classmethod
    def around(cls, rest: str, options: dict[str, str], setting: Setting) -> Headroom:
        """Made from the settings in a name and the rest of it; SettingError or PolicyError where they are none."""
        from berth.policies import make_policy

        if unknown := options.keys() - {"quantile", "ahead_s", "passing"}:
            raise SettingError(
                f"no setting '{min(unknown)}' of headroom; there are quantile, ahead_s, passing"
            )
        if (passing := options.get("passing", "0")) not in ("0", "1"):
            raise SettingError(f"headroom?passing={passing}; expected 0 or 1")
        try:
            quantile, ahead_s = float(options.get("quantile", "0.9")), int(options.get("ahead_s", "3600"))
        except ValueError:
            came = "&".join(map("=".join, options.items()))
            raise SettingError(
                f"headroom?{came}; expected numbers, as in quantile=0.9&ahead_s=3600"
            ) from None
        inner = make_policy(rest or "preempt+fifo+first-fit", setting)
        return cls(inner, quantile, ahead_s, passing=passing == "1")

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
        """Yield what the other policy decides on urgent jobs and on those that leave the headroom."""
        lanes: Mapping[Any, Any] = queue.lanes(_lane, self._key)
        shown_anyway = (jobs for (is_shown, _), jobs in lanes.items() if is_shown)
        waiting = _milli_by_models(job for jobs in shown_anyway for _, _, job in jobs)
        self._learn(waiting, cluster, now_ms)
        again, held_back = True, False
        while again:
            again = False
            shown, held_back = self._shown(queue, cluster)
            blocked = True
            while blocked and not again:
                for decision in self.inner(shown, cluster, now_ms):
                    yield decision
                    if isinstance(decision, Placement) and decision.job in shown:
                        if decision.job.id in cluster.running:
                            shown.remove(decision.job)
                    elif isinstance(decision, Evict):
                        again = True  # what was evicted waits, and is not shown yet
                blocked = self.passing and _without_largest(shown)
        if held_back and any(self._reserve_milli.values()):
            yield WakeAt(self._samples[-1][0] + self.step_ms)  # the headroom shrinks if no urgent job comes

    def _shown(self, queue: Queue, cluster: Cluster) -> tuple[ShownQueue, bool]:
        """Jobs that are urgent or need no GPU, and of the others as many, in order, as leave the headroom; whether
        others are held back."""
        shown, held_back = ShownQueue(), False
        chosen: list[tuple[int, Job]] = []
        left: dict[Models, int] = {}
        lanes: Mapping[Any, Any] = queue.lanes(_lane, self._key)
        for (shown_anyway, _), jobs in lanes.items():
            if shown_anyway:
                chosen += [(serial, job) for _, serial, job in jobs]
        waiting = _milli_by_models(job for _, job in chosen)
        for models in {*self._reserve_milli, *waiting}:
            left[models] = (
                self._free_milli(cluster, models) - waiting[models] - self._reserve_milli.get(models, 0)
            )
        for shown_anyway, models in sorted(lanes):
            if shown_anyway:
                continue
            kinds = [kind for kind in left if not kind or not models or not set(kind).isdisjoint(models)]
            for _, serial, job in lanes[shown_anyway, models]:
                if any(left[kind] < _milli(job) for kind in kinds):
                    held_back = True
                    if self.passing and all(left[kind] > 0 for kind in kinds):
                        continue
                    break
                for kind in kinds:
                    left[kind] -= _milli(job)
                chosen.append((serial, job))
        for serial, job in sorted(chosen, key=lambda pair: pair[0]):
            shown.put(job, serial)
        return shown, held_back

    def _learn(self, waiting: Mapping[Models, int], cluster: Cluster, now_ms: int) -> None:
        """Note the demand of urgent jobs once a step, and what of it to keep free."""
        samples = self._samples
        if samples and samples[-1][0] > now_ms:  # of a trial that was rolled back
            del samples[bisect_right(samples, now_ms, key=lambda sample: sample[0]) :]
            self._reserve_milli = self._rises()
        if samples and samples[-1][0] + self.step_ms > now_ms:
            return
        demand = defaultdict(int, waiting)
        for models, milli in _milli_by_models(
            run.job for run in cluster.running.values() if run.job.priority > 0
        ).items():
            demand[models] += milli
        samples.append((now_ms, dict(demand)))
        del samples[: -WINDOWS * WINDOW_MS // self.step_ms]
        self._reserve_milli = self._rises()

    def _rises(self) -> dict[Models, int]:
        """The quantile of how much the demand rose within the time ahead, by GPU models, over the last window."""
        most = WINDOW_MS // self.step_ms
        samples = self._samples[-most:]
        times = np.array([time_ms for time_ms, _ in samples], dtype=np.int64)
        # Between two samples nothing happened, so that the demand was as at the first.
        steps = np.minimum(np.diff(times, append=times[-1:] + self.step_ms) // self.step_ms, most)
        if steps.sum() < FEWEST:
            return {}
        older = int((steps[::-1].cumsum()[::-1] - steps >= most).sum())
        samples, steps = samples[older:], steps[older:]
        reserve_milli = {}
        for models in sorted({models for _, demand in samples for models in demand}):
            demand = np.repeat([sample.get(models, 0) for _, sample in samples], steps)[-most:]
            windows = np.lib.stride_tricks.sliding_window_view(demand, SAMPLES_AHEAD + 1)
            reserve_milli[models] = int(np.quantile(windows.max(axis=1) - windows[:, 0], self.quantile))
        return reserve_milli

    def _free_milli(self, cluster: Cluster, models: Models) -> int:
        """What is free on the GPUs of these models, on nodes that are up."""
        masks: dict[Models, BoolArray] = cluster.memo.setdefault(self, {})
        if models not in masks:
            kinds = (node.gpu_model.name if node.gpu_model else "" for node in cluster.nodes)
            masks[models] = np.array([not models or kind in models for kind in kinds])
        return int(cluster.free.milli[masks[models] & cluster.up].sum())


def _lane(job: Job) -> tuple[bool, Models]:
    """Whether it is shown whatever is free, as it is urgent or needs no GPU; and its GPU models."""
    return job.priority > 0 or not job.gpus, job.models


def _without_largest(shown: ShownQueue) -> bool:
    """Hide the largest jobs, which wait behind one without room; whether smaller ones are left. None passes an urgent
    one."""
    left = list(shown)
    if any(job.priority > 0 for job in left):
        return False
    most = max((_milli(job) for job in left), default=0)
    smaller = [job for job in left if _milli(job) < most]
    for job in left:
        if _milli(job) == most:
            shown.remove(job)
    return bool(smaller)


def _milli(job: Job) -> int:
    return job.gpus * job.share.milli


def _milli_by_models(jobs: Iterator[Job]) -> dict[Models, int]:
    found: dict[Models, int] = defaultdict(int)
    for job in jobs:
        if job.gpus:
            found[job.models] += _milli(job)
    return found
