"""GPU series of a monitoring system into the history: DCGM's exporter, or jobstats' exporters, through Prometheus.

A job is known by the label `hpc_job` (DCGM's exporter with its job mapping) or `jobid`, by the labels of a pod
(`namespace` and `pod`, or `exported_…` where Prometheus has its own), or by the series `nvidia_gpu_jobId`, whose value
is the job that has the GPU (jobstats, Princeton).

The values themselves are kept, so that what they say of a job is the same whichever came first: the metrics of a GPU
may come one by one, an hour in pieces, and the jobs after all else.

Two forms are read: answers of Prometheus' `query_range` (JSON, a matrix; a file may hold several, as a list or under
any keys), and its text exposition, of which every line has its time at the end, or the file's own time.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from berth.errors import HistoryError
from berth.history.store.database import connect, write_rows
from berth.history.store.folder import History
from berth.history.store.import_result import ImportResult, Rejections
from berth.history.store.series_merge import JOB, METRICS, MOST, SERIES

Value = tuple[str, str, str, str, str, int, float]
"""In the order of SERIES."""


def import_series(history: History, files: Sequence[Path], cluster: str = "") -> ImportResult:
    """Take over the values of series: one that is there already changes nothing.

    Each value counts as a row; of two for one moment the larger is kept. HistoryError where a file is of neither form;
    what else cannot be used is noted.
    """
    rejections = Rejections()
    with history.import_space() as space, connect(space) as database:
        staged = space / "series.parquet"
        write_rows(staged, SERIES, _values(files, cluster, rejections))
        return history.merge_series(database, staged, rejections)


def _values(files: Sequence[Path], cluster: str, rejections: Rejections) -> Iterator[Value]:
    """Every value that can be used, of a metric that is known and a GPU that the labels tell."""
    for path in files:
        for name, labels, values in read_series(path, rejections):
            if name not in METRICS:
                rejections.add(f"{path}, {name}", "no series of GPU use that is known")
                continue
            node = _node(labels)
            index = labels.get("gpu") or labels.get("minor_number") or labels.get("ordinal") or ""
            if not node or not index:
                rejections.add(
                    f"{path}, {name}", "no label that tells the node (Hostname, instance) or the GPU"
                )
                continue
            gpu = labels.get("cluster") or cluster, node, index
            job = labels.get("hpc_job") or labels.get("jobid") or _pod(labels)
            for moment, value in values:
                if name == JOB:
                    yield (*gpu, "", name, moment, value if 0 < value < math.inf else 0.0)
                elif not (math.isfinite(value) and 0 <= value <= MOST.get(name, math.inf)):
                    most = f" to {MOST[name]:g}" if name in MOST else " or more"
                    where = f"{path}, {name} of {node}/{index} at {moment / 1000:.0f}: {value:g}"
                    rejections.add(where, f"not 0{most}")
                else:
                    yield (*gpu, job, name, moment, value)


def _pod(labels: Mapping[str, str]) -> str:
    """The pod that has the GPU, as `import pods` calls it, and not the exporter's own."""
    for prefix in ("exported_", ""):
        if (pod := labels.get(f"{prefix}pod")) and (namespace := labels.get(f"{prefix}namespace")):
            return f"{namespace}/{pod}"
    return ""


def _node(labels: Mapping[str, str]) -> str:
    name = labels.get("Hostname") or labels.get("hostname") or labels.get("instance") or ""
    return re.sub(r":\d+$", "", name).partition(".")[0]


_LINE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+(-?\d+(?:\.\d+)?))?\s*")
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"\s*,?\s*')

Series = tuple[str, Mapping[str, str], list[tuple[int, float]]]
"""The name of the metric, the labels, and values by moment in ms."""


def read_series(path: Path, rejections: Rejections) -> Iterator[Series]:
    """Yield each series of a file, noting what is no series or no number; HistoryError where it is of neither form."""
    try:
        text = path.read_text(encoding="utf-8")
        modified_ms = path.stat().st_mtime_ns // 1_000_000
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror or error if isinstance(error, OSError) else "it is not text in UTF-8"
        raise HistoryError(f"{path} cannot be read: {reason}") from error
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
            points = [(round(float(moment) * 1000), value) for moment, value in each["values"]]
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            why = "no series: expected 'metric' with labels, and 'values' of [seconds, \"value\"]"
            rejections.add(f"{path}, result[{number}]", why)
            continue
        values = []
        for moment, text in points:
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
