"""A small history for the pages: three users, one with a hostile name; some jobs failed, some were measured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from berth.history.importing.simulated import import_records
from berth.history.store.folder import History, open_history
from berth.history.store.import_result import Options
from berth.history.store.record_files import write_records
from berth.model import Record, RecordState, Share

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
BEGIN_MS = 20_000 * DAY_MS  # 2024-10-04
HOSTILE = "<img src=x onerror=alert(1)>"
SECRET = "python /home/bob/secret.py"
DAYS = 40


def records(user: str, application: str, days: range, **values: object) -> Iterator[Record]:
    """One job a day that waits an hour and runs two on one GPU."""
    for day in days:
        queued = BEGIN_MS + day * DAY_MS
        told = {
            "state": RecordState.COMPLETED,
            "gpu_use_mean": None,
            "gpu_mem_peak": None,
            "name": "train",
            "command": "",
            "time_limit_ms": None,
        } | values
        yield Record(
            f"{user[:3]}{application}{day}".replace("<", "h"),
            1,
            user,
            application,
            "v100",
            queued,
            queued,
            queued + HOUR_MS,
            queued + 3 * HOUR_MS,
            gpus=1,
            share=Share(1000, 0),
            cpu_milli=4000,
            mem_mib=8192,
            nodes=("n1",),
            gpu_model="V100",
            work_ms=None,
            **told,  # type: ignore[arg-type]
        )


def made(folder: Path) -> History:
    """The history in a folder."""
    half = {"gpu_use_mean": 0.25, "gpu_use_peak": 0.5, "gpu_mem_mean": 0.2, "gpu_mem_peak": 0.3}
    every = [
        *records("ann", "pytorch", range(DAYS), **half, time_limit_ms=48 * HOUR_MS),
        *records("bob", "lammps", range(DAYS), command=SECRET, name="secret", exit_code=3, **half),
        *records("bob", "", range(0, DAYS, 4), state=RecordState.FAILED),
        *records(HOSTILE, "=cmd|' /C calc'!A0", range(DAYS - 4, DAYS), name=HOSTILE),
    ]
    folder.mkdir(exist_ok=True)
    write_records(every, folder / "made.parquet")
    history = open_history(folder / "history")
    import_records(history, folder / "made.parquet", Options("made"))
    return history
