"""What the series of one GPU say of the jobs that had it, hour by hour: pure functions of values.

The rows of an hour follow from the values of that hour and of those next to it alone, so that they are the same
however the series came in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from berth.history.store.usage import UsageRow

HOUR_MS: Final = 3_600_000
LONGEST_STEP_MS: Final = 600_000
"""A value counts until the next one, but no longer than twice the usual step of its GPU, nor than this."""
LONE_STEP_MS: Final = 15_000
"""The step of series that have one value."""

_USE: Final = {
    "DCGM_FI_DEV_GPU_UTIL": 0.01,
    "nvidia_gpu_duty_cycle": 0.01,
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 1.0,
}
_SM: Final = {"DCGM_FI_PROF_SM_ACTIVE": 1.0}
_MEM_USED: Final = {"DCGM_FI_DEV_FB_USED": 1.0, "nvidia_gpu_memory_used_bytes": 1 / 2**20}
_MEM_FREE: Final = {"DCGM_FI_DEV_FB_FREE": 1.0}
_MEM_TOTAL: Final = {"DCGM_FI_DEV_FB_TOTAL": 1.0, "nvidia_gpu_memory_total_bytes": 1 / 2**20}
_POWER: Final = {"DCGM_FI_DEV_POWER_USAGE": 1.0, "nvidia_gpu_power_usage_milliwatts": 1e-3}
JOB: Final = "nvidia_gpu_jobId"
MOST: Final = {name: 1 / factor for name, factor in {**_USE, **_SM}.items()}
"""The largest value of the metrics that have one."""
METRICS: Final = frozenset({*_USE, *_SM, *_MEM_USED, *_MEM_FREE, *_MEM_TOTAL, *_POWER, JOB})

Moments = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Track:
    """One metric of one GPU: values (N,) at moments (N,) in ms since 1970, in order of time."""

    moments: Moments
    values: Floats

    def between(self, begin_ms: int, end_ms: int) -> Track:
        """What of it lies in a time."""
        first, last = np.searchsorted(self.moments, (begin_ms, end_ms))
        return Track(self.moments[first:last], self.values[first:last])

    def over(self, other: Track | None) -> Track:
        """This track, with the values of the other where it has none."""
        if other is None:
            return self
        moments, first = np.unique(np.concatenate((self.moments, other.moments)), return_index=True)
        return Track(moments, np.concatenate((self.values, other.values))[first])

    def at(self, moments: Moments) -> Floats:
        """The values at some moments (M,), NaN where there is none at this very moment."""
        return self._last(moments, 0)

    def until_next(self, moments: Moments, usual_ms: int) -> Floats:
        """The last values before some moments (M,), NaN where they are older than two steps."""
        steps = np.diff(self.moments)
        own = int(np.median(steps)) if len(steps) else usual_ms
        return self._last(moments, min(2 * max(own, usual_ms), LONGEST_STEP_MS))

    def _last(self, moments: Moments, oldest_ms: int) -> Floats:
        found = np.full(len(moments), np.nan)
        place = np.searchsorted(self.moments, moments, side="right") - 1
        there = place >= 0
        there[there] = moments[there] - self.moments[place[there]] <= oldest_ms
        found[there] = self.values[place[there]]
        return found


Metrics = Mapping[str, Track]
"""By the name of the metric."""


@dataclass(frozen=True, slots=True, eq=False)
class Gpu:
    """One GPU of one node, and all that is told of it."""

    cluster: str
    node: str
    index: str
    metrics: Mapping[str, Metrics]
    """By the job that the labels name; under an empty name what was told without one."""

    def between(self, begin_ms: int, end_ms: int) -> Gpu:
        """What of it lies in a time."""
        tracks: dict[str, dict[str, Track]] = {}
        for job, metrics in self.metrics.items():
            for name, track in metrics.items():
                if len((part := track.between(begin_ms, end_ms)).moments):
                    tracks.setdefault(job, {})[name] = part
        return Gpu(self.cluster, self.node, self.index, tracks)


def source_of(cluster: str, node: str, index: str, hour: int) -> str:
    """What the rows of a GPU's hour have as their source."""
    return f"{cluster}/{node}/{index}/{hour}" if cluster else f"{node}/{index}/{hour}"


def rows_of_hour(whole: Gpu, hour: int) -> Iterator[UsageRow]:
    """The rows of one GPU in an hour since 1970: of each job that labels name, and of those that JOB names."""
    gpu = whole.between((hour - 1) * HOUR_MS, (hour + 2) * HOUR_MS)
    steps = [
        np.diff(track.moments)
        for metrics in gpu.metrics.values()
        for name, track in metrics.items()
        if name != JOB
    ]
    known = np.concatenate(steps) if steps else np.empty(0, np.int64)
    usual = min(int(np.median(known)) if len(known) else LONE_STEP_MS, LONGEST_STEP_MS)
    nameless = gpu.metrics.get("", {})
    for label, metrics in sorted(gpu.metrics.items()):
        tracks = {name: track for name, track in metrics.items() if name != JOB}
        if not tracks:
            continue
        moments = np.unique(np.concatenate([track.moments for track in tracks.values()]))
        if label:
            jobs = [label] * len(moments)
            also = {name: track for name, track in nameless.items() if name != JOB}
            tracks = also | {name: track.over(also.get(name)) for name, track in tracks.items()}
        elif JOB in nameless:
            job_numbers = nameless[JOB].until_next(moments, usual)
            jobs = ["" if not number > 0 else str(int(number)) for number in job_numbers.tolist()]
            jobs = ["" if job in gpu.metrics else job for job in jobs]
        else:
            continue
        yield from _rows(gpu, hour, tracks, moments, jobs, usual)


def _rows(
    gpu: Gpu, hour: int, tracks: Metrics, moments: Moments, jobs: list[str], usual_ms: int
) -> Iterator[UsageRow]:
    """Rows of the hour by job and run; `jobs` tells at each moment which one has the GPU, empty where none has."""
    lasts = np.minimum(np.append(np.diff(moments), usual_ms), min(2 * usual_ms, LONGEST_STEP_MS))
    use, sm, power = (_known(tracks, names, moments) for names in (_USE, _SM, _POWER))
    mem = _memory(tracks, moments, usual_ms)
    by_job: dict[str, list[int]] = {}
    for place in np.flatnonzero(moments // HOUR_MS == hour).tolist():
        if jobs[place]:
            by_job.setdefault(jobs[place], []).append(place)
    for job, places in sorted(by_job.items()):
        for picked in _runs(moments, places, 2 * usual_ms):
            begin_ms, end_ms = int(moments[picked[0]]), int(moments[picked[-1]] + lasts[picked[-1]])
            passed = lasts[picked].astype(np.float64)
            watched = float(passed.sum())
            energy = _total(power[picked], passed)
            yield UsageRow(
                *("series", source_of(gpu.cluster, gpu.node, gpu.index, hour), gpu.node, gpu.cluster, job),
                *(begin_ms, end_ms, len(picked)),
                # Each GPU has rows of its own, so the time that the job was watched for is in those of its GPUs alone.
                *(0.0, watched),
                *(_total(use[picked], passed), _total(mem[picked], passed), _total(sm[picked], passed)),
                *(None, None if energy is None else energy / 1000),
                *(_peak(use[picked]), _peak(mem[picked])),
            )


def _runs(moments: Moments, places: list[int], gap_ms: int) -> Iterator[list[int]]:
    """The places of a job's moments, parted where nothing was seen of it for long: there it was another attempt."""
    run = places[:1]
    for before, place in pairwise(places):
        if moments[place] - moments[before] > gap_ms:
            yield run
            run = []
        run.append(place)
    yield run


def _total(values: Floats, passed: Floats) -> float | None:
    """The mean of what is known, over all the time; a moment without a value says nothing."""
    known = ~np.isnan(values)
    known_ms = float(passed[known].sum())
    return float((values[known] * passed[known]).sum()) * float(passed.sum()) / known_ms if known_ms else None


def _peak(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.max()) if len(known) else None


def _known(tracks: Metrics, names: Mapping[str, float], moments: Moments) -> Floats:
    """At each moment (M,) the first of these metrics that has a value there, in its unit."""
    return _first(names, tracks, moments, lambda track: track.at(moments))


def _first(
    names: Mapping[str, float], tracks: Metrics, moments: Moments, ask: Callable[[Track], Floats]
) -> Floats:
    found = np.full(len(moments), np.nan)
    for name, factor in names.items():
        if name in tracks:
            found = np.where(np.isnan(found), ask(tracks[name]) * factor, found)
    return found


def _memory(tracks: Metrics, moments: Moments, usual_ms: int) -> Floats:
    """Memory in use over memory there is, at each moment (M,) that tells what is in use."""
    used = _known(tracks, _MEM_USED, moments)
    free, whole = (
        _first(names, tracks, moments, lambda track: track.until_next(moments, usual_ms))
        for names in (_MEM_FREE, _MEM_TOTAL)
    )
    there = np.where(np.isnan(whole), used + free, whole)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((there > 0) & (used <= there), used / there, np.nan)
