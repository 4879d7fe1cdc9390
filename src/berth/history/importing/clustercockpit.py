"""ClusterCockpit's job archive into jobs: a folder with a `meta.json` for each job.

The fields are those of its schema `job-meta`. It has no submit time: a job is taken to be submitted when it
started, so such an archive shows no waits. Use is that of `statistics`: `acc_utilization`, in per cent.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from berth.errors import HistoryError, cause_of
from berth.history.importing.job_row import JobRow, since_1970_ms
from berth.history.store.import_result import Rejections
from berth.history.values.tres import Resources

ABSENT: Final = ("comment", "command")
_STATES: Final = {
    "completed": "COMPLETED",
    "failed": "FAILED",
    "cancelled": "CANCELLED",
    "canceled": "CANCELLED",
    "stopped": "CANCELLED",
    "timeout": "TIMEOUT",
    "preempted": "PREEMPTED",
    "out_of_memory": "OUT_OF_MEMORY",
    "node_fail": "NODE_FAIL",
    "boot_fail": "BOOT_FAIL",
    "deadline": "DEADLINE",
    "running": "RUNNING",
}


def archive_rows(folder: Path, rejections: Rejections) -> Iterator[JobRow]:
    """Yield a row for each job of an archive; note those that cannot be read. HistoryError if there is none."""
    found = False
    for path in sorted(folder.rglob("meta.json*")) if folder.is_dir() else ():
        if path.name not in ("meta.json", "meta.json.gz"):
            continue
        found = True
        try:
            data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            yield _row(json.loads(data))
        except (OSError, EOFError, ValueError) as error:
            rejections.add(str(path), f"cannot be read: {cause_of(error)}")
        except KeyError as error:
            rejections.add(
                str(path), f"no '{error.args[0]}' in it, as ClusterCockpit's schema job-meta has it"
            )
        except (TypeError, AttributeError):
            rejections.add(
                str(path), "something in it is of another kind than ClusterCockpit's schema job-meta says"
            )
    if not found:
        raise HistoryError(f"{folder} is no job archive of ClusterCockpit: there is no meta.json in it")


def _row(job: Mapping[str, Any]) -> JobRow:
    start, duration = _whole(job["startTime"]), _whole(job["duration"])
    state = str(job["jobState"])
    hosts = [str(each["hostname"]) for each in job["resources"]]
    given = sum(len(each.get("accelerators") or ()) for each in job["resources"])
    gpus = _whole(job.get("numAcc") or given)
    cpus = _whole(job.get("numHwthreads") or 0) // max(_whole(job.get("smt") or 1), 1)
    limit = _whole(job.get("walltime") or 0)
    use = ((job.get("statistics") or {}).get("acc_utilization") or {}).get("avg")
    return JobRow(
        job_id=str(_whole(job["jobId"])),
        cluster=_text(job["cluster"]),
        name=_text((job.get("metaData") or {}).get("jobName")),
        user=_text(job["user"]),
        account=_text(job.get("project")),
        partition=_text(job.get("partition") or job.get("subCluster")),
        state=_STATES.get(state.lower(), state),
        submit_ms=since_1970_ms(_whole(job.get("submitTime") or start)),
        start_ms=since_1970_ms(start),
        end_ms=since_1970_ms(start + duration),
        limit_min=limit // 60 or None,
        node_count=_whole(job.get("numNodes") or len(hosts)),
        nodes=tuple(hosts),
        cpus=cpus,
        allocated=Resources(gpus=gpus, cpus=cpus, nodes=len(hosts)),
        gpu_use=None if use is None or not gpus else min(max(float(use) / 100, 0.0), 1.0),
    )


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _whole(value: Any) -> int:
    """A number; TypeError where something else stands there."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(value)
    return int(value)
