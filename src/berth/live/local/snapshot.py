"""What the broker answers of its GPUs and jobs, as the snapshot that `status`, `queue`, `top` and the console show."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from berth.live.driver.snapshot import Gpu, LiveJob, Snapshot, gpu_of


def snapshot_of(status: Mapping[str, Any], *listings: Mapping[str, Any], node: str = "") -> Snapshot:
    """The answer to `status` and those to `queue`; `node` is what this machine is called, empty if it need not be."""
    counts = status["jobs"]
    notes = (*(each["note"] for each in listings), *status["trouble"])
    return Snapshot(
        time.time_ns() // 1_000_000,
        gpus_of(status["gpus"], node),
        tuple(job for each in listings for job in jobs_of(each, node)),
        counts["waiting"] + counts["held"],
        counts["starting"] + counts["running"] + counts.get("suspended", 0),
        status["policy"],
        tuple(filter(None, dict.fromkeys(notes))),
    )


def gpus_of(gpus: Iterable[Mapping[str, Any]], node: str = "") -> tuple[Gpu, ...]:
    return tuple(replace(gpu_of(each), node=node) for each in gpus)


def jobs_of(listing: Mapping[str, Any], node: str = "") -> tuple[LiveJob, ...]:
    jobs = (LiveJob(*row) for row in listing["rows"])
    return tuple(replace(job, where=f"{node} {job.where}") if node and job.where else job for job in jobs)


def where_of(slots: Iterable[int], node: str = "") -> str:
    """The GPUs of a job, `GPU 0,1`; empty if it has none."""
    indices = ",".join(map(str, slots))
    return f"{node} GPU {indices}".strip() if indices else ""
