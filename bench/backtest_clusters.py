"""How far a back-test's predictions are from what happened on Philly, Helios and Graham, and how often intervals hold.

Graham's table has real waits, of the GPU jobs that waited at a noon. Philly's and Helios's have none: what "happened"
there is a replay under `easy+fifo+best-fit` that knows run times only from what has ended, as a cluster does, and the
candidates are replays of other policies, or of the same one with the true run times. Each virtual cluster of Philly is
a cluster by itself, on as few nodes of eight GPUs as a load of 0.8 and its largest job need. Graham's GPUs are those
that its jobs held at most at once. Helios has 26 days, which is two predictions without an interval: `--days` predicts
each day from the days before instead, after a week.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from statistics import fmean, median

import duckdb
import numpy as np

from berth import traces
from berth.errors import SettingError
from berth.experiments.backtest import MEASURES, Backtest, backtest
from berth.experiments.compare.conditions import conditions_of
from berth.experiments.weeks import Waits
from berth.experiments.what_if import replayed_waits
from berth.model import Job, Node
from harness import data_folder, save

CANDIDATES = ["fifo+first-fit", "easy+fifo+best-fit", "passing+fifo+best-fit"]
TRUTH = "easy+fifo+best-fit"


def nodes_of(gpus: int) -> tuple[Node, ...]:
    return tuple(Node(f"n{at}", 8) for at in range(max(1, -(-gpus // 8))))


def tested(real: Waits, replays: Mapping[str, Waits], days: bool) -> Backtest:
    """The back-test of weeks, or of days: each day is stretched to a week."""
    if not days:
        return backtest(real, replays)
    longer = {name: Waits(7 * waits.submit_ms, waits.wait_s) for name, waits in replays.items()}
    return backtest(Waits(7 * real.submit_ms, real.wait_s), longer, first=7)


def replays_of(jobs: tuple[Job, ...], nodes: tuple[Node, ...]) -> Mapping[str, Waits]:
    under = conditions_of({"knowledge": "oracle"}, nodes)
    return {name: replayed_waits(jobs, nodes, name, under) for name in CANDIDATES}


def simulated(jobs: list[Job], nodes: tuple[Node, ...], days: bool) -> Backtest:
    frozen = tuple(jobs)
    under = conditions_of({"knowledge": "history"}, nodes)
    return tested(replayed_waits(frozen, nodes, TRUTH, under), replays_of(frozen, nodes), days)


def philly(days: bool) -> Iterator[Backtest]:
    jobs = list(traces.read(data_folder() / "philly" / "sia_philly.csv.gz", nodes=()))
    for pool in sorted({job.virtual_cluster for job in jobs}):
        mine = [job for job in jobs if job.virtual_cluster == pool]
        if len(mine) < 300:
            continue
        first_ms = mine[0].submit_ms
        held = sum(job.gpus * (job.work_ms or 0) for job in mine)
        span_ms = max(1, mine[-1].submit_ms - first_ms)
        gpus = max(round(held / span_ms / 0.8), max(job.gpus for job in mine))
        try:
            yield simulated(mine, nodes_of(gpus), days)
        except SettingError:
            continue  # a virtual cluster of too few weeks


def helios(days: bool) -> Iterator[Backtest]:
    trace = traces.read_trace(data_folder() / "helios" / "helios_venus_2vc_sept.csv.gz")
    yield simulated(list(trace), trace.nodes or (), days)


def graham_jobs() -> tuple[tuple[Job, ...], Waits, int]:
    """Graham's GPU jobs, how long each really waited, and the most GPUs that they held at once."""
    path = data_folder() / "drac" / "drac_graham_submitday.parquet"
    rows = duckdb.execute(
        "SELECT job_unique_id, epoch_ms(min(eligible_time)::TIMESTAMP), epoch_ms(min(start_time)::TIMESTAMP),"
        " any_value(elapsed_time), any_value(account_id), any_value(time_limit_sec),"
        " regexp_extract(any_value(req_tres), 'gres/gpu=(\\d+)', 1)::INTEGER AS gpus"
        " FROM read_parquet(?) WHERE req_tres LIKE '%gres/gpu=%' AND start_time IS NOT NULL"
        " GROUP BY job_unique_id ORDER BY 2",
        [str(path)],
    ).fetchall()
    origin_ms = rows[0][1]
    jobs = tuple(
        Job(
            str(name), submit - origin_ms, max(1000, 1000 * ran), str(account), gpus=gpus, nodes=0,
            time_limit_ms=max(1000 * limit, 1000 * ran, 1000),
        )
        for name, submit, _, ran, account, limit, gpus in rows
    )  # fmt: skip
    start_ms = np.array([row[2] for row in rows])
    cards = np.array([row[6] for row in rows])
    changes = sorted(
        [(start, each) for start, each in zip(start_ms, cards, strict=True)]
        + [(start + 1000 * row[3], -row[6]) for start, row in zip(start_ms, rows, strict=True)]
    )
    most = int(np.cumsum([each for _, each in changes]).max())
    submit_ms = np.array([job.submit_ms for job in jobs])
    return jobs, Waits(submit_ms, (start_ms - origin_ms - submit_ms) / 1000.0), most


def graham(days: bool) -> Iterator[Backtest]:
    jobs, real, most = graham_jobs()
    yield tested(real, replays_of(jobs, nodes_of(most)), days)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("philly", "helios", "graham"))
    parser.add_argument(
        "--unknown", action="store_true", help="leave the policy that ran out of the candidates"
    )
    parser.add_argument("--days", action="store_true", help="predict each day, rather than each week")
    given = parser.parse_args()
    if given.unknown:
        CANDIDATES.remove(TRUTH)
    rows = []
    for name, clusters in (("helios", helios), ("graham", graham), ("philly", philly)):
        if given.only not in (None, name):
            continue
        found = list(clusters(given.days))
        for measure in MEASURES:
            weeks = [week for each in found for week in each.of(measure)]
            held = [week.held for week in weeks if week.held is not None]
            row = {
                "cluster": name,
                "measure": measure,
                "days" if given.days else "weeks": len(weeks),
                "error_pct": round(median(week.error_pct for week in weeks), 1),
                "last_error_pct": round(median(week.last_week_error_pct for week in weeks), 1),
                "intervals": len(held),
                "held_pct": round(100 * fmean(held), 1) if held else None,
            }
            rows.append(row)
            print(row, flush=True)
    save(
        "backtest_clusters",
        {"load": round(os.getloadavg()[0], 1), "unknown": given.unknown, "days": given.days, "rows": rows},
    )


if __name__ == "__main__":
    main()
