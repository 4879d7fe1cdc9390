"""Finished runs as one Parquet dataset: a file a run, written when it is done, so that a sweep can be continued.

`SELECT * FROM 'OUT/runs/*.parquet'` has a row a run: what was run (`policy`, `seed`, `trace`, `task`), every number
of its summary under the names of the JSON, nested ones joined by an underscore (`waiting_time_s_mean`), `summary` as
JSON, and `curves`, the arrays that plots are drawn from, as NumPy's own file format. `task` is a digest of all that
decides the result; a run is taken from here only where it is the same.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

import berth
from berth.errors import HistoryError, TraceError
from berth.experiments.sweep import Result, Task
from berth.interference import Interference, no_interference
from berth.interference.profiled import ProfiledInterference
from berth.model import Reason
from berth.statistics import Cdf, Distribution, GpuHours, Occupancy, Run, Summary, Timeline, summary_dict
from berth.traces import Trace

__all__ = ["KeptRuns", "digest", "interference_digest"]


class KeptRuns:
    """The runs of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "runs"

    def path(self, task: Task) -> Path:
        """Where the run of a task is kept."""
        name = re.sub(r"[^A-Za-z0-9_.+-]", "_", task.policy)
        mark = hashlib.sha256(task.policy.encode()).hexdigest()[:6]
        return self.folder / f"{name}.{mark}.{task.seed}.parquet"

    def load(self, task: Task) -> Result | None:
        """The finished run of a task; None where there is none, or one under other conditions."""
        path = self.path(task)
        if not path.exists():
            return None
        with duckdb.connect() as database:
            try:
                row = database.execute(
                    "SELECT task, summary, curves, skipped FROM read_parquet(?)", [str(path)]
                ).fetchone()
            except duckdb.Error:
                return None  # damaged, or of another kind: it is run again and written anew
        if row is None or row[0] != digest(task):
            return None
        skipped = tuple(TraceError(**error) for error in json.loads(row[3]))
        return Result(_run(task, json.loads(row[1]), row[2]), skipped)

    def save(self, task: Task, result: Result) -> None:
        """Keep a finished run; the file is there whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.path(task)
        aside = path.with_name(path.name + ".part")
        trace = task.source.path if isinstance(task.source, Trace) else f"{len(task.source)} jobs"
        summary = summary_dict(result.run.summary)
        skipped = [
            {"path": e.path, "expected": e.expected, "line": e.line, "column": e.column, "value": e.value}
            for e in result.skipped
        ]
        columns: dict[str, tuple[str, object]] = {
            "policy": ("VARCHAR", task.policy),
            "seed": ("BIGINT", task.seed),
            "trace": ("VARCHAR", trace),
            "task": ("VARCHAR", digest(task)),
            **_numbers(summary),
            "summary": ("VARCHAR", json.dumps(summary)),
            "curves": ("BLOB", _curves(result.run)),
            "skipped": ("VARCHAR", json.dumps(skipped)),
        }
        chosen = ", ".join(f'?::{kind} AS "{name}"' for name, (kind, _) in columns.items())
        with duckdb.connect() as database:
            try:
                database.execute(
                    f"CREATE TABLE run AS SELECT {chosen}", [value for _, value in columns.values()]
                )
                quoted = str(aside).replace("'", "''")
                database.execute(f"COPY run TO '{quoted}' (FORMAT parquet)")
                aside.replace(path)
            except (duckdb.Error, OSError) as error:
                raise HistoryError(f"{path} cannot be written: {str(error).splitlines()[0]}") from error
            finally:
                aside.unlink(missing_ok=True)


def digest(task: Task) -> str:
    """A fingerprint of all that decides the result of a task, the program's version included.

    A trace file counts by its path, size and time of change; a function of the user's by its name alone.
    """
    if isinstance(task.source, Trace):
        file = Path(task.source.path)
        status = file.stat() if file.exists() else None
        source: object = (task.source.path, status and (status.st_size, status.st_mtime_ns))
    else:
        source = [repr(job) for job in task.source]
    model = interference_digest(task.interference)
    plain = replace(task, source=(), interference=no_interference, events=None)
    told = [repr(getattr(plain, field.name)) for field in fields(plain) if field.name != "interference"]
    return hashlib.sha256(repr((berth.__version__, source, model, told)).encode()).hexdigest()


def interference_digest(how: Interference) -> str:
    """What names a model of interference: its function, or the profiles and speeds that it was made of."""
    if not isinstance(how, ProfiledInterference):
        return f"{getattr(how, '__module__', '')}:{getattr(how, '__qualname__', repr(how))}"
    told = hashlib.sha256()
    for name in sorted(how.profiles):
        profile = how.profiles[name]
        told.update(repr((name, profile.interval_ms, profile.hardware)).encode() + profile.usage.tobytes())
    usage = np.random.default_rng(0).integers(0, 1000, (64, 4, 4)).astype(np.int32)
    present = np.arange(4) < 1 + np.arange(64)[:, None] % 4
    told.update(np.asarray(how.speeds(usage, present, 0)).tobytes())
    return told.hexdigest()


def _numbers(value: dict[str, Any], before: str = "") -> dict[str, tuple[str, object]]:
    columns: dict[str, tuple[str, object]] = {}
    for name, inner in value.items():
        if isinstance(inner, dict):
            if name not in ("failures", "rejections"):
                columns |= _numbers(inner, f"{before}{name}_")
        else:
            kind = "BIGINT" if isinstance(inner, int) else "DOUBLE"
            columns[f"{before}{name}"] = (kind, inner)
    return columns


def _curves(run: Run) -> bytes:
    """All arrays of a run in one file of NumPy's."""
    arrays: dict[str, Any] = {
        f"timeline.{field.name}": getattr(run.timeline, field.name) for field in fields(Timeline)
    }
    for name in ("waiting", "completion"):
        curve = getattr(run, name)
        arrays |= {f"{name}.{field.name}": getattr(curve, field.name) for field in fields(Cdf)}
    for number, seen in enumerate(run.occupancies):
        arrays |= {
            f"occupancy.{number}.{field.name}": getattr(seen, field.name) for field in fields(Occupancy)
        }
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def _run(task: Task, summary: dict[str, Any], curves: bytes) -> Run:
    with np.load(io.BytesIO(curves), allow_pickle=False) as arrays:
        kept = {name: _value(arrays[name]) for name in arrays.files}
    seen: list[Occupancy] = []
    while f"occupancy.{len(seen)}.time_ms" in kept:
        before = f"occupancy.{len(seen)}."
        seen.append(Occupancy(**{field.name: kept[before + field.name] for field in fields(Occupancy)}))
    return Run(
        policy=task.policy,
        seed=task.seed,
        summary=_summary(summary),
        timeline=Timeline(**{field.name: kept[f"timeline.{field.name}"] for field in fields(Timeline)}),
        waiting=Cdf(**{field.name: kept[f"waiting.{field.name}"] for field in fields(Cdf)}),
        completion=Cdf(**{field.name: kept[f"completion.{field.name}"] for field in fields(Cdf)}),
        occupancies=tuple(seen),
    )


def _value(array: Any) -> Any:
    return array.item() if array.ndim == 0 else array


def _summary(plain: dict[str, Any]) -> Summary:
    values: dict[str, Any] = {}
    for name, value in plain.items():
        if name in ("failures", "rejections"):
            values[name] = {Reason(reason): count for reason, count in value.items()}
        elif isinstance(value, dict):
            kind = GpuHours if name == "gpu_hours" else Distribution
            values[name] = kind(**{key: _number(inner) for key, inner in value.items()})
        else:
            values[name] = _number(value)
    return Summary(**values)


def _number(value: Any) -> Any:
    return math.nan if value is None else value
