"""Histories made up for advice: what users submit, run through a plain scheduler, as records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from berth.cluster import Cluster
from berth.engine import simulate
from berth.history.importing.simulated import import_records
from berth.history.store.folder import History, open_history
from berth.history.store.import_result import Options
from berth.history.store.record_files import write_records
from berth.history.store.records import records
from berth.model import GpuModel, Job, Node

HOUR_MS = 3_600_000
NODES = tuple(Node(f"n{n}", gpus=4, gpu_model=GpuModel("V100")) for n in range(2))


def hog(days: int = 7) -> list[Job]:
    """One user fills the cluster every morning; seven others come through the day with an hour each."""
    jobs = []
    for day in range(days):
        begin = day * 24 * HOUR_MS
        jobs += [Job(f"h{day}-{n}", begin + n, 3 * HOUR_MS, user="hog") for n in range(40)]
        jobs += [
            Job(f"u{day}-{user}-{n}", begin + (1 + user + 6 * n) * HOUR_MS // 2, HOUR_MS, user=f"u{user}")
            for user in range(7)
            for n in range(2)
        ]
    return jobs


def even(days: int = 4) -> list[Job]:
    """Eight users who submit the same."""
    return [
        Job(f"e{day}-{user}-{n}", day * 24 * HOUR_MS + n * HOUR_MS + user, 2 * HOUR_MS, user=f"u{user}")
        for day in range(days)
        for n in range(8)
        for user in range(8)
    ]


def history_of(jobs: Sequence[Job], folder: Path, **values: object) -> History:
    """What first in, first out makes of them on two nodes of four GPUs; `values` are set on every record."""
    ordered = sorted(jobs, key=lambda job: job.submit_ms)
    made = [
        replace(record, cluster="made", qos="normal", eligible_ms=record.queued_ms, **values)  # type: ignore[arg-type]
        for record in records(simulate(ordered, Cluster(NODES), "fifo+best-fit"), NODES)
    ]
    write_records(made, folder / "made.parquet")
    history = open_history(folder / "history")
    import_records(history, folder / "made.parquet", Options("made"))
    return history
