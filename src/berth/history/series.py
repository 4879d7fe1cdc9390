"""GPU series of a monitoring system into the history: DCGM's exporter, or jobstats' exporters, through Prometheus.

Two forms are read: answers of Prometheus' `query_range` (JSON, a matrix; a file may hold several, as a list or under
any keys), and its text exposition, of which every line has its time at the end, or the file's own time.

A job is known by the label `hpc_job` (DCGM's exporter with its job mapping) or `jobid`, or by the series
`nvidia_gpu_jobId`, whose value is the job that has the GPU (jobstats, Princeton).
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from berth.errors import HistoryError
from berth.history.folder import History
from berth.history.imports import ImportResult, Rejections
from berth.history.usage import UsageRow

__all__ = ["import_series"]

HOUR_MS: Final = 3_600_000
LONGEST_STEP_MS: Final = 600_000
"""A sample counts until the next one, but no longer than twice the usual step of its series, nor than this."""

_USE: Final = {
    "DCGM_FI_DEV_GPU_UTIL": 100.0,
    "nvidia_gpu_duty_cycle": 100.0,
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 1.0,
}
_SM: Final = {"DCGM_FI_PROF_SM_ACTIVE": 1.0}
_MEM_USED: Final = {"DCGM_FI_DEV_FB_USED": 1.0, "nvidia_gpu_memory_used_bytes": 1 / 2**20}
_MEM_FREE: Final = {"DCGM_FI_DEV_FB_FREE": 1.0}
_MEM_TOTAL: Final = {"DCGM_FI_DEV_FB_TOTAL": 1.0, "nvidia_gpu_memory_total_bytes": 1 / 2**20}
_POWER: Final = {"DCGM_FI_DEV_POWER_USAGE": 1.0, "nvidia_gpu_power_usage_milliwatts": 1e-3}
_JOB: Final = "nvidia_gpu_jobId"
_MOST: Final = {**_USE, **_SM}
_KNOWN: Final = {*_USE, *_SM, *_MEM_USED, *_MEM_FREE, *_MEM_TOTAL, *_POWER, _JOB}

_LINE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+(-?\d+(?:\.\d+)?))?\s*")
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"\s*,?\s*')


_Metrics = dict[str, dict[int, float]]
"""By metric: value by moment, in ms."""


def _no_metrics() -> _Metrics:
    return defaultdict(dict)


@dataclass(slots=True)
class _Gpu:
    """All that is known of one GPU."""

    metrics: dict[str, _Metrics] = field(default_factory=lambda: defaultdict(_no_metrics))
    """By the job that the labels name; under an empty name what was told without one."""
    job: dict[int, str] = field(default_factory=dict)
    """Which job a series says to have the GPU, by moment, in ms."""


def import_series(history: History, files: Sequence[Path], cluster: str = "") -> ImportResult:
    """Take over series; those of the same cluster, GPU and hour replace what was there of them.

    HistoryError where a file is of neither form; what else cannot be used is noted.
    """
    rejections = Rejections()
    gpus: dict[tuple[str, str, str], _Gpu] = defaultdict(_Gpu)
    for path in files:
        for name, labels, values in _series(path, rejections):
            if name not in _KNOWN:
                rejections.add(f"{path}, {name}", "no series of GPU use that is known")
                continue
            node = _node(labels)
            index = labels.get("gpu") or labels.get("minor_number") or labels.get("ordinal") or ""
            if not node or not index:
                rejections.add(
                    f"{path}, {name}", "no label that tells the node (Hostname, instance) or the GPU"
                )
                continue
            gpu = gpus[labels.get("cluster") or cluster, node, index]
            job = labels.get("hpc_job") or labels.get("jobid") or ""
            for moment, value in values:
                if name == _JOB:
                    gpu.job[moment] = str(int(value)) if 0 < value < math.inf else ""
                elif not 0 <= value <= _MOST.get(name, math.inf):
                    most = f" to {_MOST[name]:g}" if name in _MOST else " or more"
                    where = f"{path}, {name} of {node}/{index} at {moment / 1000:.0f}: {value:g}"
                    rejections.add(where, f"not 0{most}")
                else:
                    gpu.metrics[job][name][moment] = value
    rows = [row for key, gpu in sorted(gpus.items()) for row in _rows(*key, gpu)]
    return history.merge_usage(rows, rejections)


def _node(labels: Mapping[str, str]) -> str:
    name = labels.get("Hostname") or labels.get("hostname") or labels.get("instance") or ""
    return re.sub(r":\d+$", "", name).partition(".")[0]


# --- the two forms ---------------------------------------------------------------------------------

Series = tuple[str, Mapping[str, str], list[tuple[int, float]]]


def _series(path: Path, rejections: Rejections) -> Iterator[Series]:
    try:
        text = path.read_text(encoding="utf-8")
        modified_ms = path.stat().st_mtime_ns // 1_000_000
    except (OSError, UnicodeDecodeError) as error:
        raise HistoryError(f"{path} cannot be read: {error}") from error
    if text.lstrip()[:1] in ("{", "["):
        try:
            content = json.loads(text)
        except ValueError as error:
            raise HistoryError(f"{path} is no whole JSON document: {error}") from error
        found = list(_matrices(content))
        if not found:
            raise HistoryError(f"{path} holds no matrix, as Prometheus answers a query_range with")
        for result in found:
            yield from _matrix(result, path, rejections)
        return
    yield from _exposition(text, path, modified_ms, rejections)


def _matrices(content: Any) -> Iterator[list[Any]]:
    """The results of every matrix, however deep."""
    if isinstance(content, dict):
        if content.get("resultType") == "matrix" and isinstance(content.get("result"), list):
            yield content["result"]
        else:
            for value in content.values():
                yield from _matrices(value)
    elif isinstance(content, list):
        for value in content:
            yield from _matrices(value)


def _matrix(result: list[Any], path: Path, rejections: Rejections) -> Iterator[Series]:
    for number, each in enumerate(result):
        try:
            labels = {str(key): str(value) for key, value in each["metric"].items()}
            told = [(round(float(moment) * 1000), value) for moment, value in each["values"]]
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            why = "no series: expected 'metric' with labels, and 'values' of [seconds, \"value\"]"
            rejections.add(f"{path}, result[{number}]", why)
            continue
        values = []
        for moment, text in told:
            try:
                values.append((moment, float(text)))
            except (TypeError, ValueError):
                rejections.add(f"{path}, result[{number}] at {moment / 1000:.0f}: {text!r}", "no number")
        known = [(moment, value) for moment, value in values if not math.isnan(value)]
        yield labels.get("__name__", ""), labels, known


def _exposition(text: str, path: Path, modified_ms: int, rejections: Rejections) -> Iterator[Series]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line)
        try:
            if found is None:
                raise ValueError
            value = float(found[3])
            moment = modified_ms if found[4] is None else _ms(float(found[4]))
        except ValueError:
            rejections.add(f"{path}, line {number}", "no line of Prometheus' text form")
            continue
        labels = {name: re.sub(r"\\(.)", r"\1", quoted) for name, quoted in _LABEL.findall(found[2] or "")}
        if not math.isnan(value):
            yield found[1], labels, [(moment, value)]


def _ms(moment: float) -> int:
    """Prometheus writes milliseconds, OpenMetrics seconds: one of these decades tells which."""
    return round(moment if moment > 1e11 else moment * 1000)


# --- into rows -------------------------------------------------------------------------------------


def _rows(cluster: str, node: str, index: str, gpu: _Gpu) -> Iterator[UsageRow]:
    """The rows of one GPU: of each job that labels name, and of those that the series of jobs names."""
    every = sorted(
        {moment for metrics in gpu.metrics.values() for name in metrics for moment in metrics[name]}
    )
    steps = np.diff(np.array(every, np.int64))
    usual = min(int(np.median(steps)) if len(steps) else 15_000, LONGEST_STEP_MS)
    place = f"{cluster}/{node}/{index}" if cluster else f"{node}/{index}"
    nameless = gpu.metrics.get("", {})
    for label, metrics in sorted(gpu.metrics.items()):
        moments = sorted({moment for values in metrics.values() for moment in values})
        if label:
            jobs = [label] * len(moments)
            metrics = {
                name: {**nameless.get(name, {}), **metrics.get(name, {})} for name in {*nameless, *metrics}
            }
        else:
            told = _jobs(gpu.job, moments, 2 * usual)
            jobs = ["" if job in gpu.metrics else job for job in told]
        yield from _rows_of(place, node, cluster, metrics, moments, jobs, usual)


def _rows_of(
    place: str,
    node: str,
    cluster: str,
    metrics: Mapping[str, Mapping[int, float]],
    moments: Sequence[int],
    jobs: Sequence[str],
    usual: int,
) -> Iterator[UsageRow]:
    """Rows by job and hour; `jobs` tells at each moment which one has the GPU, empty where none has."""
    use, sm, power = (_known(metrics, names, moments) for names in (_USE, _SM, _POWER))
    mem = _memory(metrics, moments)
    groups: dict[tuple[str, int], list[tuple[int, int, int]]] = defaultdict(list)
    for at, moment in enumerate(moments):
        step = moments[at + 1] - moment if at + 1 < len(moments) else usual
        if jobs[at]:
            groups[jobs[at], moment // HOUR_MS].append((at, moment, min(step, 2 * usual, LONGEST_STEP_MS)))
    for (job, hour), picked in sorted(groups.items()):
        watched = float(sum(passed for _, _, passed in picked))

        def total(
            values: list[float | None],
            picked: list[tuple[int, int, int]] = picked,
            watched: float = watched,
        ) -> float | None:
            """The mean of what is known, over all the time; a moment without a value says nothing."""
            told = [(value * passed, passed) for at, _, passed in picked if (value := values[at]) is not None]
            known_ms = sum(passed for _, passed in told)
            return sum(part for part, _ in told) * watched / known_ms if known_ms else None

        def peak(values: list[float | None], picked: list[tuple[int, int, int]] = picked) -> float | None:
            return max((value for at, _, _ in picked if (value := values[at]) is not None), default=None)

        energy = total(power)
        yield UsageRow(
            *("series", f"{place}/{hour}", node, cluster, job, picked[0][1]),
            *(picked[-1][1] + picked[-1][2], len(picked)),
            # Each GPU has rows of its own, so the time that the job was watched for is in those of its GPUs alone.
            *(0.0, watched),
            *(total(use), total(mem), total(sm), None, None if energy is None else energy / 1000),
            *(peak(use), peak(mem)),
        )


def _known(
    metrics: Mapping[str, Mapping[int, float]], names: Mapping[str, float], moments: Sequence[int]
) -> list[float | None]:
    """The first of these metrics that there is, as fractions or in its unit, at each moment."""
    for name, scale in names.items():
        if values := metrics.get(name):
            factor = 1 / scale if names is _USE else scale
            return [values[moment] * factor if moment in values else None for moment in moments]
    return [None] * len(moments)


def _memory(metrics: Mapping[str, Mapping[int, float]], moments: Sequence[int]) -> list[float | None]:
    used, free, whole = (_known(metrics, names, moments) for names in (_MEM_USED, _MEM_FREE, _MEM_TOTAL))
    found: list[float | None] = []
    for held, left, total in zip(used, free, whole, strict=True):
        there = total if total is not None else (None if held is None or left is None else held + left)
        found.append(held / there if held is not None and there and held <= there else None)
    return found


def _jobs(known: Mapping[int, str], moments: Sequence[int], longest_ms: int) -> list[str]:
    """The job at each moment: as the last one said, if that was not too long ago; empty for none."""
    told = np.array(sorted(known), np.int64)
    found = []
    for moment in moments:
        at = int(np.searchsorted(told, moment, side="right")) - 1
        found.append(known[int(told[at])] if at >= 0 and moment - int(told[at]) <= longest_ms else "")
    return found
