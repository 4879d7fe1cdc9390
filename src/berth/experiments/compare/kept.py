"""The finished runs of a comparison, kept so that it can be continued: `SELECT * FROM 'OUT/runs/*.parquet'`."""

from __future__ import annotations

import hashlib
import math
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
from numpy.typing import NDArray

from berth.errors import TraceError
from berth.experiments.compare.conditions import OwnMetrics
from berth.experiments.compare.kept_file import (
    KeptFile,
    digest_of,
    file_mark,
    kept_path,
    policy_marks,
    read_kept,
    write_kept,
)
from berth.experiments.compare.sweep import Result, Task
from berth.interference import Interference
from berth.interference.contention import Contention
from berth.interference.mig import Mig
from berth.interference.profiled import ProfiledInterference
from berth.model import Reason
from berth.statistics import (
    Cdf,
    Distribution,
    Film,
    GpuHours,
    Run,
    Schedule,
    Summary,
    Timeline,
    summary_dict,
)
from berth.traces import Trace

OTHERWISE = ("source", "jobs_file", "conditions", "events", "records", "measure")
"""Fields of a task that count otherwise for its digest, or not at all."""
OF_INTERFERENCE = ("interference", "interference_name")
"""Likewise of its conditions."""


class KeptRuns:
    """The runs of one folder."""

    def __init__(self, folder: Path, *, apart: bool = False) -> None:
        """With `apart` each run has a file of its own, also where only the conditions differ."""
        self.folder = folder / "runs"
        self.apart = apart

    def load(self, task: Task) -> Result | None:
        """The finished run of a task; None for none, one under other conditions, or if events or records are wanted."""
        if task.events is not None or task.records is not None:
            return None
        file = read_kept(self._path(task), digest(task))
        if file is None:
            return None
        skipped = tuple(TraceError(**error) for error in file.skipped)
        return Result(_run(task, file.summary, file.curves), skipped)

    def save(self, task: Task, result: Result) -> None:
        """Keep a finished run; the file is there whole or not at all."""
        skipped = tuple(
            {"path": e.path, "expected": e.expected, "line": e.line, "column": e.column, "value": e.value}
            for e in result.skipped
        )
        trace = task.source.path if isinstance(task.source, Trace) else f"{len(task.source)} jobs"
        summary, curves = summary_dict(result.run.summary), _curves(result.run)
        write_kept(
            self._path(task), KeptFile(task.policy, task.seed, trace, digest(task), summary, curves, skipped)
        )

    def _path(self, task: Task) -> Path:
        more = (digest(task)[:12],) if self.apart else ()
        return kept_path(self.folder, task.policy, task.seed, *more)


def digest(task: Task) -> str:
    """A fingerprint of all that decides the result of a task, the program's version included.

    A trace file, and one that the policy's settings mention, counts by its path, size and time of change, and a trace
    by how it is read (`--map`) too; a function of the user's by its name alone.
    """
    if isinstance(task.source, Trace):
        source: object = (file_mark(task.source.path), task.source.format)
    else:
        source = [repr(job) for job in task.source]
    under = task.conditions
    parts = [repr(getattr(task, field.name)) for field in fields(task) if field.name not in OTHERWISE]
    parts += [
        repr(getattr(under, field.name)) for field in fields(under) if field.name not in OF_INTERFERENCE
    ]
    parts += [
        field.name for field in fields(Summary)
    ]  # a run that was kept without some of them is made again
    if isinstance(task.measure, OwnMetrics):
        parts.append(repr(task.measure))
    return digest_of(source, interference_digest(under.interference), parts, *policy_marks(task.policy))


def interference_digest(how: Interference) -> str:
    """What names a model of interference: its function, or the profiles, speeds and named pairs that it was made of.

    A function of the user's counts by what it answers, a fitted model by all its coefficients.
    """
    if not isinstance(how, ProfiledInterference):
        return f"{getattr(how, '__module__', '')}:{getattr(how, '__qualname__', repr(how))}"
    fitted = how.speeds if isinstance(how.speeds, Contention | Mig) else None
    digest_so_far = hashlib.sha256(repr((fitted, how.named)).encode())
    for name in sorted(how.profiles):
        profile = how.profiles[name]
        digest_so_far.update(
            repr((name, profile.interval_ms, profile.hardware)).encode() + profile.usage.tobytes()
        )
    usage = np.random.default_rng(0).integers(0, 1000, (64, 4, 4)).astype(np.int32)
    present = np.arange(4) < 1 + np.arange(64)[:, None] % 4
    digest_so_far.update(np.asarray(how.speeds(usage, present, 0)).tobytes())
    return digest_so_far.hexdigest()


_PARTS: dict[str, type[Any]] = {
    "timeline": Timeline,
    "waiting": Cdf,
    "completion": Cdf,
    "film": Film,
    "schedule": Schedule,
}
"""Fields of a run that are arrays, by their names."""


def _curves(run: Run) -> dict[str, NDArray[Any]]:
    """All arrays of a run."""
    parts = ((name, getattr(run, name)) for name in _PARTS)
    return {
        f"{name}.{field.name}": getattr(part, field.name)
        for name, part in parts
        if part is not None
        for field in fields(part)
    }


def _run(task: Task, summary: dict[str, Any], curves: dict[str, NDArray[Any]]) -> Run:
    parts: dict[str, Any] = {}
    for name, kind in _PARTS.items():
        arrays = {field.name: curves.get(f"{name}.{field.name}") for field in fields(kind)}
        if all(array is not None for array in arrays.values()):
            parts[name] = kind(**{key: _value(array) for key, array in arrays.items()})
    return Run(policy=task.policy, seed=task.seed, summary=_summary(summary), oracle=task.oracle, **parts)


def _value(array: Any) -> Any:
    return array.item() if array.ndim == 0 else array


def _summary(plain: dict[str, Any]) -> Summary:
    kinds = get_type_hints(Summary)
    values: dict[str, Any] = {}
    for name, value in plain.items():
        if name in ("failures", "rejections"):
            values[name] = {Reason(reason): count for reason, count in value.items()}
        elif name == "own":
            values[name] = {key: _number(inner) for key, inner in value.items()}
        elif isinstance(value, list):
            values[name] = tuple(value)
        elif isinstance(value, dict):
            kind = GpuHours if name == "gpu_hours" else Distribution
            values[name] = kind(**{key: _number(inner) for key, inner in value.items()})
        else:
            values[name] = _number(value) if kinds[name] is float else value
    return Summary(**values)


def _number(value: Any) -> Any:
    return math.nan if value is None else value
