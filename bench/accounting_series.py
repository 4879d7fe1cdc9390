"""How long values of GPU series take into a history, and the rows of use that are made of them.

    python bench/accounting_series.py [--values 1500000] [--gpus 8]

Four of jobstats' metrics of each GPU every 30 s; jobs of three hours have the GPUs. Prints processor and wall seconds
of the first import and of the same values again. Writes bench/results/accounting_series.json.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb

from berth.history.store.database import connect
from berth.history.store.folder import open_history
from berth.history.store.import_result import Rejections
from harness import count, save

METRICS = {
    "nvidia_gpu_duty_cycle": "t % 101",
    "nvidia_gpu_memory_used_bytes": "(t % 16) * 1073741824",
    "nvidia_gpu_memory_total_bytes": "17179869184",
    "nvidia_gpu_jobId": "1 + t // 360",
}
BEGIN_MS = 1_767_225_600_000


def stage(path: Path, values: int, gpus: int) -> None:
    """Write a file of values, as `import series` stages them."""
    moments = values // gpus // len(METRICS)
    parts = [
        f"SELECT 'c' AS cluster, 'node' || g // 8 AS node, (g % 8)::VARCHAR AS gpu, '' AS job_id,"
        f" '{name}' AS metric, {BEGIN_MS} + 30000 * t AS moment_ms, ({value})::DOUBLE AS value"
        f" FROM range({gpus}) a(g), range({moments}) b(t)"
        for name, value in METRICS.items()
    ]
    duckdb.execute(f"COPY ({' UNION ALL '.join(parts)}) TO '{path}' (FORMAT parquet)")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--values", type=count, default=1_500_000)
    parser.add_argument("--gpus", type=count, default=8)
    given = parser.parse_args()
    rows = []
    with TemporaryDirectory(prefix="berth-series-") as name:
        history = open_history(Path(name) / "history")
        for what in ("first", "again"):
            with history.import_space() as space, connect(space) as database:
                stage(space / "series.parquet", given.values, given.gpus)
                begin_s, own_s = time.perf_counter(), time.process_time()
                found = history.merge_series(database, space / "series.parquet", Rejections())
                row = {
                    "import": what,
                    "new": found.imported,
                    "processor_s": round(time.process_time() - own_s, 2),
                    "wall_s": round(time.perf_counter() - begin_s, 2),
                }
            rows.append(row)
            print(row, flush=True)
    save("accounting_series", {**vars(given), "load": round(os.getloadavg()[0], 1), "rows": rows})


if __name__ == "__main__":
    main()
