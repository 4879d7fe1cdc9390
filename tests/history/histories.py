"""A made-up history: what users submit, run through a plain scheduler, as records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import duckdb

from berth.cluster import Cluster
from berth.engine import simulate
from berth.history.importing.simulated import import_records
from berth.history.store.folder import History, open_history
from berth.history.store.import_result import Options
from berth.history.store.record_files import SCHEMA, record_of, records, write_records
from berth.model import GpuModel, Job, Node, Record

NODES = tuple(Node(f"n{n}", gpus=4, gpu_model=GpuModel("V100")) for n in range(2))


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


def read_records(path: Path) -> list[Record]:
    """The records of a file that the simulator wrote, in its order."""
    columns = ", ".join(f'"{name}"' for name in SCHEMA)
    with duckdb.connect() as database:
        found = database.execute(f"SELECT {columns} FROM read_parquet(?)", [str(path)])
        return [record_of(row) for row in found.fetchall()]
