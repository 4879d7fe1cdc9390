"""How far a back-test's predictions are from what happened, and how often intervals hold.

Graham's table has real waits, of the GPU jobs that waited at a noon. Philly's and Helios's have none: what "happened"
there is a replay under `easy+fifo+best-fit` that knows run times only from what has ended, as a cluster does, and the
candidates are replays of other policies, or of the same one with the true run times. Each virtual cluster of Philly is
a cluster by itself, on as few nodes of eight GPUs as a load of 0.8 and its largest job need. Graham's GPUs are those
that its jobs held at most at once. Helios has 26 days, which is two predictions without an interval: `--days` predicts
each day from the days before instead, after a week. Hardly a job waits there, so `busy-helios` lets all its jobs run
anywhere on its 22 nodes, and on 20 and 18, without their time limits, which are their run times. `synthetic` are
clusters of 64 GPUs whose load changes from day to day, and of which the replays see four jobs of five.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import fmean, median

import duckdb
import numpy as np

from berth import traces
from berth.errors import SettingError
from berth.experiments.backtest import MEASURES, Backtest, backtest
from berth.experiments.compare.conditions import conditions_of
from berth.experiments.weeks import LEAST_WAIT_S, Waits
from berth.experiments.what_if import replayed_waits
from berth.model import Job, Node
from harness import data_folder, save

CANDIDATES = ["fifo+first-fit", "easy+fifo+best-fit", "passing+fifo+best-fit"]
TRUTH = "easy+fifo+best-fit"
DAY_MS = 24 * 3_600_000
BUSY_NODES = (22, 20, 18)
SYNTHETIC_GPUS, SYNTHETIC_DAYS = 64, 112


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


def busy_helios(days: bool) -> Iterator[Backtest]:
    jobs = list(traces.read(data_folder() / "helios" / "helios_venus_2vc_sept.csv.gz", nodes=()))
    free = [replace(job, labels=(), time_limit_ms=None) for job in jobs]
    for nodes in BUSY_NODES:
        yield simulated(free, nodes_of(8 * nodes), days)


def synthetic(days: bool) -> Iterator[Backtest]:
    nodes = nodes_of(SYNTHETIC_GPUS)
    for seed in range(100, 108):
        jobs = drawn_jobs(seed)
        real = replayed_waits(jobs, nodes, TRUTH, conditions_of({"knowledge": "history"}, nodes))
        seen = np.arange(len(jobs)) % 5 < 4
        some = tuple(job for job, is_seen in zip(jobs, seen.tolist(), strict=True) if is_seen)
        replays = replays_of(some, nodes_of(SYNTHETIC_GPUS * 4 // 5))
        yield tested(Waits(real.submit_ms[seen], real.wait_s[seen]), replays, days)


def drawn_jobs(seed: int) -> tuple[Job, ...]:
    """Jobs of 1 to 8 GPUs and 3 hours on average, at a mean load of about 0.85."""
    draw = np.random.default_rng(seed)
    sizes, often, mean_ms, spread = np.array([1, 2, 4, 8]), [0.6, 0.18, 0.14, 0.08], 3 * 3_600_000, 1.4
    a_day = 0.85 * SYNTHETIC_GPUS * DAY_MS / (mean_ms * float(sizes @ often))
    found, level = [], 0.0
    for day in range(SYNTHETIC_DAYS):
        level = 0.8 * level + draw.normal(0, 0.24)
        count = draw.poisson(a_day * np.exp(level - 0.08))
        submit_ms = np.sort(draw.integers(day * DAY_MS, (day + 1) * DAY_MS, count))
        work_ms = np.minimum(draw.lognormal(np.log(mean_ms) - spread**2 / 2, spread, count), 5 * DAY_MS)
        gpus, user = draw.choice(sizes, count, p=often), draw.integers(0, 12, count)
        found += [
            Job(
                f"{day}-{at}", int(submit_ms[at]), 1000 + int(work_ms[at]), f"u{user[at]}", gpus=int(gpus[at])
            )
            for at in range(count)
        ]
    return tuple(found)


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
    clusters = {
        each.__name__.replace("_", "-"): each for each in (helios, busy_helios, graham, synthetic, philly)
    }
    parser.add_argument("--only", choices=tuple(clusters))
    parser.add_argument(
        "--unknown", action="store_true", help="leave the policy that ran out of the candidates"
    )
    parser.add_argument("--days", action="store_true", help="predict each day, rather than each week")
    given = parser.parse_args()
    if given.unknown:
        CANDIDATES.remove(TRUTH)
    rows = []
    for name, backtests in clusters.items():
        if given.only not in (None, name):
            continue
        found = list(backtests(given.days))
        for measure in MEASURES:
            weeks = [week for each in found for week in each.of(measure)]
            held = [week.held for week in weeks if week.held is not None]
            factors = [
                max(week.high_s, LEAST_WAIT_S) / max(week.low_s, LEAST_WAIT_S)
                for week in weeks
                if week.low_s is not None and week.high_s is not None
            ]
            row = {
                "cluster": name,
                "measure": measure,
                "days" if given.days else "weeks": len(weeks),
                "error_pct": round(median(week.error_pct for week in weeks), 1),
                "last_error_pct": round(median(week.last_week_error_pct for week in weeks), 1),
                "intervals": len(held),
                "held_pct": round(100 * fmean(held), 1) if held else None,
                "high_over_low": round(median(factors), 2) if factors else None,
                "high_over_low_mean": round(float(np.exp(fmean(map(np.log, factors)))), 2)
                if factors
                else None,
            }
            rows.append(row)
            print(row, flush=True)
    save(
        "backtest_clusters",
        {"load": round(os.getloadavg()[0], 1), "unknown": given.unknown, "days": given.days, "rows": rows},
    )


if __name__ == "__main__":
    main()
