"""GPU series of a monitoring system into the history: DCGM's exporter, or jobstats' exporters, through Prometheus.

A job is known by the label `hpc_job` (DCGM's exporter with its job mapping) or `jobid`, by the labels of a pod
(`namespace` and `pod`, or `exported_…` where Prometheus has its own), or by the series `nvidia_gpu_jobId`, whose value
is the job that has the GPU (jobstats, Princeton).

The values themselves are kept, so that what they say of a job is the same whichever came first: the metrics of a GPU
may come one by one, an hour in pieces, and the jobs after all else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from berth.history.importing.exporters import read_series
from berth.history.store.database import connect
from berth.history.store.folder import History
from berth.history.store.gpu_hours import JOB, METRICS, MOST
from berth.history.store.import_result import ImportResult, Rejections
from berth.history.store.parquet import ParquetWriter, rows_to_columns
from berth.history.store.series_merge import SERIES

CHUNK: Final = 250_000
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
        values = _values(files, cluster, rejections)
        with ParquetWriter(staged, SERIES) as writer:
            while chunk := list(islice(values, CHUNK)):
                writer.write(rows_to_columns(chunk, tuple(SERIES)))
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
