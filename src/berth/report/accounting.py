"""The page of a history: what its tables say, and how it is to be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from berth.history.values.durations import duration_text, hours_of, hours_text
from berth.plots import accounting as plots
from berth.report.digest import Figure
from berth.report.filters import Filters, filters_of
from berth.report.page import write_page
from berth.report.sections import Plot, Section, plot_of
from berth.statistics.accounting import UNKNOWN, VARIABLES, Usage
from berth.statistics.accounting import largest_first as by_measure
from berth.statistics.spread import Cdf
from berth.statistics.tables import JobUse, ListedJob, Tables, Totals
from berth.waiting import Evaluation
from berth.waiting.plots import calibration

IDLE_LISTED = 20
"""At most this many users, and as many jobs, are named with the GPU-hours that they left idle."""
LATEST_LISTED = 20
"""At most this many attempts are listed, those that ended last."""
USAGE_LISTED = 200
"""At most this many rows of usage are in the page."""
USAGE_SHOWN = 20
"""At most this many are shown at first; a box shows the others, and paper has all."""
APPLICATIONS = 6
"""At most this many applications, those with most GPU-hours, have distributions."""
WITH_LINES = 4
"""Of them, those that have lines: each takes three of the sixteen drawing contexts that a browser gives a page."""


@dataclass(frozen=True, slots=True, eq=False)
class Accounting:
    """Everything that the page says."""

    title: str
    period: str
    command: str
    created: str
    version: str
    by: tuple[str, ...]
    measure: str
    totals: Totals
    usage: Sequence[Usage]
    applications: Sequence[Usage]
    servers: Sequence[Usage]
    months: Sequence[Usage]
    """By month and application."""
    days: Mapping[str, tuple[NDArray[np.int64], NDArray[np.float64]]]
    heat: tuple[NDArray[np.int64], NDArray[np.float64]]
    waits: Mapping[str, float]
    multi_node: Mapping[str, float]
    cdfs: Mapping[str, Mapping[str, Cdf]]
    lines: Mapping[str, tuple[NDArray[np.float64], NDArray[np.int64]]]
    """Of the largest applications, the one with most attempts first."""
    capacity: Mapping[str, int]
    models: Sequence[Usage] = ()
    """By GPU model; where several are known they are shown."""
    idle_users: Sequence[Usage] = ()
    """Those whose GPUs stood idle for most hours, as far as was measured."""
    idle_jobs: Sequence[JobUse] = ()
    latest: Sequence[ListedJob] = ()
    """The attempts that ended last."""
    answers: Sequence[str] = ()
    """What was found, in sentences: the first thing on the page."""
    figures: Sequence[Figure] = ()
    """The five that matter, beside those of the period before."""
    compared: str = ""
    """Which periods they are of."""
    filters: Filters | None = None
    predictions: Evaluation | None = None
    """How well waits were predicted, if that was judged."""


def collect(
    tables: Tables,
    *,
    title: str,
    period: str,
    command: str,
    created: str,
    version: str,
    by: Sequence[str] = ("application",),
    measure: str = "gpu-hours",
    capacity: Mapping[str, int] | None = None,
    answers: Sequence[str] = (),
    figures: Sequence[Figure] = (),
    compared: str = "",
    predictions: Evaluation | None = None,
) -> Accounting:
    """Ask the tables for all that the page needs."""

    applications = by_measure(tables.usage(("application",)), measure)
    largest = [row.keys[0] for row in applications[:APPLICATIONS]]
    lines = {name: tables.lines(name) for name in largest[:WITH_LINES]}
    return Accounting(
        title=title,
        period=period,
        command=command,
        created=created,
        version=version,
        by=tuple(by),
        measure=measure,
        totals=tables.totals(),
        usage=applications if tuple(by) == ("application",) else by_measure(tables.usage(by), measure),
        applications=applications,
        servers=tables.usage(("server",)),
        months=tables.usage(("month", "application")),
        days=tables.daily_gpu_hours(),
        heat=tables.heat(),
        waits=tables.waits_by_cause(),
        multi_node=tables.multi_node_shares(),
        cdfs=tables.cdfs(largest),
        lines=dict(sorted(lines.items(), key=lambda item: -int(item[1][1].sum()))),
        capacity=capacity or {},
        models=tables.usage(("gpu",)),
        idle_users=[row for row in largest_users(tables) if row.idle_gpu_hours][:IDLE_LISTED],
        idle_jobs=[row for row in tables.jobs("idle-gpu-hours", IDLE_LISTED) if row.use.idle_gpu_hours],
        latest=tables.latest(LATEST_LISTED),
        answers=answers,
        figures=figures,
        compared=compared,
        filters=filters_of(tables),
        predictions=predictions,
    )


def largest_users(tables: Tables) -> list[Usage]:
    """Users by idle GPU-hours, the most first."""
    return by_measure(tables.usage(("user",)), "idle-gpu-hours")


def sections(page: Accounting) -> tuple[Section, ...]:
    """The sections that there is something to show in."""
    return tuple(_sections(page)) if page.totals.tries else ()


def _sections(page: Accounting) -> Iterator[Section]:
    yield Section(
        "Who used what",
        "A bar is a group’s part of all that was used in the period. A GPU held for an hour is a GPU-hour, whether "
        "it was busy or not.",
        tuple(_bars(page)),
    )
    if page.latest:
        yield Section(
            "The last jobs",
            f"The {len(page.latest)} attempts that ended last, as sacct lists them; times are in UTC.",
            (),
            ("job", "name", "user", "partition", "GPUs", "start", "end", "state"),
            tuple(_listed(job) for job in page.latest),
            words=True,
        )
    if page.days:
        yield Section(
            "GPU servers over time",
            "Hours count on the day on which they passed, in UTC. The calendar counts a job on the day on which "
            "it ended."
            + (
                " The share of capacity is that of the time from the first submission to the last end."
                if page.capacity
                else ""
            ),
            (
                *_capacity_used(page),
                plot_of(
                    "servers",
                    "GPUs held of each server type over time",
                    plots.gpus_over_time(page.days, page.capacity),
                ),
                plot_of("calendar", "GPU-hours of each day", plots.calendar(*page.heat)),
            ),
        )
    if len([hours for hours in page.waits.values() if hours]) > 1:
        yield Section(
            "Why jobs waited",
            "From submission to start, split where the job became eligible: what lies before is a dependency’s, a "
            "begin time’s, a hold’s or an array limit’s; what lies after is that of resources, priority or "
            "the limit named.",
            (plot_of("waits", "Hours waited by cause", plots.waiting_by_cause(page.waits)),),
        )
    if page.predictions is not None and page.predictions.bins:
        yield Section(
            "Predicted waits",
            "The last fifth of the history by time, predicted by what had been learned from the waits that had ended "
            "before it. Jobs are put into ten parts by their predicted wait; a part’s 10 %, 50 % and 90 % as they came "
            f"stand against those predicted. The 80 % interval held {page.predictions.coverage_80 * 100:.1f} % of "
            f"{page.predictions.tested:,} waits; the mean squared error of log10(1 + s) is "
            f"{page.predictions.mse_log10:.3f}, that of a constant {page.predictions.baseline_mse_log10:.3f}.",
            (
                plot_of(
                    "calibration",
                    "Calibration of predicted waits",
                    calibration(
                        [each.predicted_s for each in page.predictions.bins],
                        [each.came_s for each in page.predictions.bins],
                        [each.count for each in page.predictions.bins],
                    ),
                ),
            ),
        )
    yield Section(
        "How jobs run",
        "A line is an attempt, its colour the number of nodes. Drag along an axis to pick lines, drag a name to move "
        "its axis, click beside a picked part to let go. Where there are very many, one line stands for those like it, "
        "none that is unlike the others is left out, and the axis `attempts` says for how many it stands. nNODE and "
        "nGPU are its nodes and GPUs, WAIT_h and RUN_h hours; uGPUcore is the mean use of its GPUs and uGPUmem of "
        "their memory, from 0 to 1, absent where nobody measured them.",
        tuple(_lines(page)),
    )
    yield Section(
        "Distributions",
        "The share of attempts that have at most a given value. Click a name to hide it, twice to see it alone.",
        tuple(
            plot_of(
                f"cdf-{variable.name}",
                f"Distribution of {variable.name}",
                plots.variable_cdfs(page.cdfs, variable.name),
            )
            for variable in VARIABLES
            if any(variable.name in each for each in page.cdfs.values())
        ),
    )


def _listed(job: ListedJob) -> tuple[str, ...]:
    def moment(ms: int | None) -> str:
        return "–" if ms is None else f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"

    return (
        *(job.name, job.title or UNKNOWN, job.user or UNKNOWN, job.server or UNKNOWN),
        *(f"{job.gpus:g}", moment(job.start_ms), moment(job.end_ms), job.state),
    )


def _capacity_used(page: Accounting) -> Iterator[Plot]:
    """Where it is known how many GPUs there are: the part of them that was held."""
    first_ms, last_ms = page.totals.first_ms, page.totals.last_ms
    if page.capacity and first_ms is not None and last_ms is not None and last_ms > first_ms:
        hours = {name: float(held.sum()) for name, (_, held) in page.days.items()}
        figure = plots.capacity_used(hours, page.capacity, (last_ms - first_ms) / 3_600_000)
        yield plot_of("capacity", "Share of its capacity that was held of each server type", figure)


def _bars(page: Accounting) -> Iterator[Plot]:
    """Bars of what there is more than one of; of one alone the table above says all."""
    measure = page.measure
    for rows, name, what in (
        (page.applications, "by-application", "application"),
        (page.servers, "by-server", "server type"),
        (page.models, "by-gpu", "GPU"),
    ):
        known = [row for row in rows if row.keys[0] != UNKNOWN] if name == "by-gpu" else rows
        if len(known) > 1:
            yield plot_of(name, f"{measure} by {what}", plots.usage_bars(rows, measure, what))
    if len({row.keys[0] for row in page.months}) > 1:
        yield plot_of(
            "by-month", f"{measure} by month and application", plots.share_of_usage(page.months, measure)
        )


def _lines(page: Accounting) -> Iterator[Plot]:
    for at, (name, (lines, counts)) in enumerate(page.lines.items()):
        if len(lines):
            label = f"Parallel coordinates of {name}"
            yield plot_of(f"pcc-{at}", label, plots.parallel_coordinates(lines, counts, name))


def write_accounting(page: Accounting, path: Path) -> None:
    """Write the page as one HTML file that needs no other."""
    write_page(
        "accounting.html",
        path,
        then=("filter",),
        page=page,
        sections=sections(page),
        facts=_facts(page),
        **_tables(page),
    )


def _facts(page: Accounting) -> tuple[tuple[str, str], ...]:
    totals = page.totals
    measured = totals.measured_gpu_hours
    idle = (
        f"{hours_text(totals.idle_gpu_hours)} of {hours_of('GPU', measured)} measured"
        if measured
        else "not measured"
    )
    share = totals.wasted_gpu_hours / totals.gpu_hours * 100 if totals.gpu_hours else 0.0
    return (
        ("Jobs", f"{totals.jobs:,} in {totals.tries:,} attempts, of {totals.users:,} users"),
        ("GPU-hours", hours_text(totals.gpu_hours)),
        ("Run-hours", hours_text(totals.run_hours)),
        ("Failed GPU-hours", f"{hours_text(totals.wasted_gpu_hours)} ({share:.1f} %)"),
        ("Idle while held", idle),
        ("On several nodes", _percent(totals.multi_node_share)),
        ("Waiting", _spread(totals.wait_s)),
        ("Run time", _spread(totals.run_s)),
        ("Slowdown", _spread(totals.slowdown, "")),
    )


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share * 100:.1f} %"


def _spread(values: tuple[float | None, ...], unit: str = "s") -> str:
    if any(value is None for value in values):
        return "–"
    median, p90, _, longest = (
        (duration_text(value or 0.0) if unit else f"{value or 0.0:,.1f}") for value in values
    )
    return f"median {median}, 90 % within {p90}, longest {longest}"


@dataclass(frozen=True, slots=True)
class _UsageRow:
    """A row of the table of usage, as texts."""

    keys: Sequence[str]
    gpu_hours: str
    run_hours: str
    jobs: str
    users: str
    share: str
    part: str
    """The share as a part of the largest one: how long its bar is."""
    failed: str
    several: str


def _tables(page: Accounting) -> dict[str, object]:
    whole = sum(row.measure(page.measure) for row in page.usage) or 1.0
    largest = max((row.measure(page.measure) for row in page.usage), default=0.0) or 1.0
    rows = [
        _UsageRow(
            row.keys,
            hours_text(row.gpu_hours, 2),
            hours_text(row.run_hours, 2),
            f"{row.jobs:,}",
            f"{row.users:,}",
            f"{row.measure(page.measure) / whole * 100:.2f} %",
            f"{row.measure(page.measure) / largest:.3f}",
            hours_text(row.wasted_gpu_hours, 2),
            _percent(page.multi_node.get(row.keys[0])) if page.by == ("application",) else "",
        )
        for row in page.usage[:USAGE_LISTED]
    ]
    return {
        "rows": rows,
        "shown": USAGE_SHOWN,
        "more": max(len(page.usage) - USAGE_LISTED, 0),
        "idle_users": [(row.keys[0], *_idle(row)) for row in page.idle_users],
        "idle_jobs": [
            (row.use.keys[0], row.user, row.application, row.state, *_idle(row.use)) for row in page.idle_jobs
        ],
    }


def _idle(row: Usage) -> tuple[str, ...]:
    """Idle and held GPU-hours, and the parts of GPUs, CPUs and memory that were used."""
    uses = (_percent(row.known(name)) for name in ("gpu-use", "cpu-use", "mem-use"))
    return (hours_text(row.idle_gpu_hours, 2), hours_text(row.gpu_hours, 2), *uses)
