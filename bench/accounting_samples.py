"""Samples of many nodes brought up to date by one day: what `berth import samples` takes where all else is known.

Two cases: 20 nodes whose history has 1,000 days (asked: 5 s), and 1,000 nodes (asked: 60 s of processor time) whose
history has 30. A node has one job at a time, a line of its spool for each ten seconds, and a row of the history for
each hour. The days before the last are put into the history as rows, as earlier imports made them of lines.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from berth.history.store.database import connect, literal
from berth.history.store.folder import open_history
from berth.history.store.import_result import Rejections
from berth.sampling.spool import Slice, SpoolWriter, segments
from harness import save

BEGIN_MS = 1_767_225_600_000  # 2026-01-01
DAY_MS = 86_400_000
BERTH = Path(sys.executable).parent / "berth"


def write_day(spool: Path, nodes: int, day: int) -> None:
    """Append a day to the segment of each node, which is begun if need be; nodes have the same jobs."""
    begin = BEGIN_MS + day * DAY_MS
    lines = [
        Slice(
            str(day * 24 + at // 360),
            *(begin + at * 10_000, begin + at * 10_000 + 10_000, 10, 10_000.0, 40_000.0),
            *(21_234.567, 12_345.678, 8_765.432, 123_456.789, 4321.0, 0.87, 0.65),
        )
        for at in range(8640)
    ]
    with tempfile.TemporaryDirectory() as name:
        with SpoolWriter(Path(name), "any", "c", 1000) as writer:
            writer.write(lines)
        body = segments(Path(name))[0].read_bytes().split(b"\n", 1)[1]
    known = sorted(spool.glob("*"))
    if not known:
        for number in range(nodes):
            with SpoolWriter(spool, f"node{number:04}", "c", 1000):
                pass
        known = sorted(spool.glob("*"))
    for path in known:
        with path.open("ab") as file:
            file.write(body)


def write_history(folder: Path, spool: Path, nodes: int, days: int) -> None:
    """Put the days before into the history, 50 at once, as sources that were read before."""
    history = open_history(folder)
    for first in range(0, days, 50):
        with history.import_space() as space, connect(space) as database:
            begin = f"({BEGIN_MS} + (d - {days}) * {DAY_MS} + h * 3600000)"
            database.execute(
                "COPY (SELECT 'sampled' AS kind, 'node' || n || '-old@' || (d * 24 + h) AS source, "
                "'node' || n AS node, "
                f"'c' AS cluster, (100000 + d * 24 + h)::VARCHAR AS job_id, {begin} AS begin_ms, "
                f"{begin} + 3600000 AS end_ms, 3600 AS samples, 3.6e6 AS watched_ms, 1.44e7 AS gpu_ms, "
                "random() * 1e7 AS use_ms, random() * 1e7 AS mem_ms, random() * 1e7 AS sm_ms, "
                "random() * 1e8 AS pcie_kb, "
                "random() * 1e6 AS energy_j, random() AS use_peak, random() AS mem_peak "
                f"FROM range({nodes}) a(n), range({first}, {min(first + 50, days)}) b(d), range(24) c(h)) "
                f"TO {literal(space / 'usage.parquet')} (FORMAT parquet)"
            )
            history.merge_usage(database, space / "usage.parquet", Rejections())


def timed(words: list[str]) -> tuple[float, float]:
    """Wall and processor time of a command, in s; prints what it says."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    subprocess.run(words, check=True)
    wall = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Make both histories, bring them up to date, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default="20x1000,1000x30", help="NODESxDAYS,…")
    chosen = parser.parse_args()
    results: dict[str, object] = {}
    for case in chosen.cases.split(","):
        nodes, days = map(int, case.split("x"))
        with tempfile.TemporaryDirectory() as name:
            spool, history = Path(name) / "spool", Path(name) / "h"
            write_history(history, spool, nodes, days - 1)
            write_day(spool, nodes, 0)
            command = [str(BERTH), "import", "samples", str(spool), "--history", str(history)]
            first = timed(command)
            write_day(spool, nodes, 1)
            one_more = timed(command)
            nothing = timed(command)
            shutil.rmtree(spool)
        for what, (wall, cpu) in (("first_day", first), ("one_day", one_more), ("nothing_new", nothing)):
            results[f"{case}_{what}_wall_s"] = round(wall, 2)
            results[f"{case}_{what}_processor_s"] = round(cpu, 2)
    for key, value in results.items():
        print(f"{key}: {value}")
    save("accounting_samples", results)


if __name__ == "__main__":
    main()
