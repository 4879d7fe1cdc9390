"""The page of a history: what its tables say, and how it is to be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import plotly.graph_objects as go

from berth.counts import counted
from berth.history.values.durations import (
    HOURS_NAMES,
    duration_text,
    hours,
    hours_column,
    hours_of,
    hours_text,
)
from berth.plots import accounting as plots
from berth.report.digest import Figure
from berth.report.report import Chapter, made_at, sections_of, write_page
from berth.statistics.accounting import NO_GPU, UNKNOWN, VARIABLES, Usage
from berth.statistics.accounting import largest_first as by_measure
from berth.statistics.tables import Tables, Totals
from berth.version import __version__

IDLE_LISTED = 20
"""At most this many users, and as many jobs, are named with the GPU-hours that they left idle."""
USAGE_LISTED = 200
"""At most this many rows of usage are in the page."""
USAGE_SHOWN = 20
"""At most this many are shown at first; a box shows the others, and paper has all."""
CALENDAR_DAYS = 28
"""A calendar of a shorter time would be an empty year with a few cells."""
APPLICATIONS = 6
"""At most this many applications, those with most GPU-hours, have distributions."""
WITH_LINES = 4
"""Of them, those that have lines: each takes three of the sixteen drawing contexts that a browser gives a page."""
Named = tuple[str, str, go.Figure]
"""A figure with its name on the page, and what it shows."""


@dataclass(frozen=True, slots=True)
class Head:
    """What the page begins with."""

    title: str
    period: str
    command: str
    created: str = field(default_factory=made_at)
    version: str = __version__
    answers: Sequence[str] = ()
    """What was found, in sentences: the first thing on the page."""
    figures: Sequence[Figure] = ()
    """The five that matter, beside those of the period before."""
    compared: tuple[str, str] = ("this period", "before")
    """Which periods they are of."""


def write_accounting(
    path: Path,
    tables: Tables,
    head: Head,
    *,
    by: Sequence[str] = ("application",),
    measure: str = "gpu-hours",
) -> None:
    """Write the page as one HTML file that needs no other."""
    totals = tables.totals()
    chapters = chapters_of(tables, measure) if totals.tries else ()
    write_page(
        "accounting.html",
        path,
        page=head,
        by=tuple(by),
        measure=plots.measure_text(measure),
        sections=sections_of(tuple(chapters)),
        facts=_facts(totals),
        **_tables(tables, tuple(by), measure),
    )


def chapters_of(tables: Tables, measure: str = "gpu-hours") -> Iterator[Chapter]:
    """Yield the chapters that there is something to show in."""
    applications = by_measure(tables.usage(("application",)), measure)
    yield _chapter(
        "Who used what",
        "A bar is a group’s part of all that was used in the period. A GPU held for an hour is a GPU-hour, whether "
        "it was busy or not.",
        _bars(tables, applications, measure),
    )
    if days := tables.daily_gpu_hours():
        figures = [("servers", "GPUs held of each server type over time", plots.gpus_over_time(days))]
        hint = "Hours count on the day on which they passed, in UTC."
        ended, hours = tables.heat()
        if np.ptp(ended) + 1 >= CALENDAR_DAYS:
            figures.append(("calendar", "GPU-hours of each day", plots.calendar(ended, hours)))
            hint += " The calendar counts a job on the day on which it ended."
        yield _chapter("GPU servers over time", hint, figures)
    waits = tables.waits_by_cause()
    if len([hours for hours in waits.values() if hours]) > 1:
        yield _chapter(
            "Why jobs waited",
            "From submission to start, split where the job became eligible: what lies before is a dependency’s, a "
            "begin time’s, a hold’s or an array limit’s; what lies after is that of resources, priority or "
            "the limit named.",
            [("waits", "Hours waited by cause", plots.waiting_by_cause(waits))],
        )
    largest = [row.keys[0] for row in applications[:APPLICATIONS]]
    yield _chapter(
        "How jobs run",
        "Each line is an attempt; its colour is the number of nodes. Drag along an axis to select lines, or drag a "
        "name to move its axis. Click the axis outside a selection to clear it. If there are very many attempts, one "
        "line stands for several similar ones, and the axis `attempts` gives their number. No unusual attempt is left "
        "out. nNODE and nGPU are the attempt’s nodes and GPUs, WAIT_h and RUN_h hours; uGPUcore is the mean use of its "
        "GPUs and uGPUmem of their memory, from 0 to 1, absent if not measured.",
        _lines(tables, largest[:WITH_LINES]),
    )
    cdfs = tables.cdfs(largest)
    yield _chapter(
        "Distributions",
        "The share of attempts that have at most a given value. Click a name to hide it, twice to see it alone.",
        [
            (
                f"cdf-{variable.name}",
                f"Distribution of {variable.name}",
                plots.variable_cdfs(cdfs, variable.name),
            )
            for variable in VARIABLES
            if any(variable.name in each for each in cdfs.values())
        ],
    )


def _chapter(title: str, hint: str, figures: Iterable[Named]) -> Chapter:
    named = tuple(figures)
    return Chapter(
        title, hint, [(label, figure) for _, label, figure in named], names=[name for name, _, _ in named]
    )


def _bars(tables: Tables, applications: Sequence[Usage], measure: str) -> Iterator[Named]:
    """Bars where more than one group used something; the table above says all of a single one."""
    for rows, name, what in (
        (applications, "by-application", "application"),
        (tables.usage(("server",)), "by-server", "server type"),
        (tables.usage(("gpu",)), "by-gpu", "GPU"),
    ):
        rows = [row for row in rows if row.measure(measure)]
        known = [row for row in rows if row.keys[0] not in (UNKNOWN, NO_GPU)] if name == "by-gpu" else rows
        if len(known) > 1:
            yield name, f"{plots.measure_text(measure)} by {what}", plots.usage_bars(rows, measure, what)
    months = tables.usage(("month", "application"))
    if len({row.keys[0] for row in months}) > 1:
        text = f"{plots.measure_text(measure)} by month and application"
        yield "by-month", text, plots.share_of_usage(months, measure)


def _lines(tables: Tables, names: Sequence[str]) -> Iterator[Named]:
    """Lines of these applications, the one with most attempts first."""
    found = {name: tables.lines(name) for name in names}
    ordered = sorted(found.items(), key=lambda item: -int(item[1][1].sum()))
    for at, (name, (lines, counts)) in enumerate(ordered):
        if len(lines) and (at == 0 or counts.sum() > 1):  # one attempt is a line in an empty frame
            figure = plots.parallel_coordinates(lines, counts, name)
            yield f"pcc-{at}", f"Parallel coordinates of {name}", figure


def _facts(totals: Totals) -> tuple[tuple[str, str], ...]:
    measured = totals.measured_gpu_hours
    idle = (
        f"{hours_text(totals.idle_gpu_hours)} of {hours_of('GPU', measured)} measured"
        if measured
        else "not measured"
    )
    run, unit = hours(totals.run_hours)
    share = totals.wasted_gpu_hours / totals.gpu_hours * 100 if totals.gpu_hours else 0.0
    return (
        (
            "Jobs",
            f"{totals.jobs:,} in {counted(totals.tries, 'attempt')}, of {counted(totals.users, 'user')}",
        ),
        ("Held", hours_of("GPU", totals.gpu_hours)),
        ("Run for", f"{run} {HOURS_NAMES[unit]}"),
        ("Failed", f"{hours_of('GPU', totals.wasted_gpu_hours)} ({share:.1f} %)"),
        ("Idle while held", idle),
        ("On several nodes", _percent(totals.multi_node_share)),
        ("Waiting", _spread(totals.wait_s)),
        ("Run time", _spread(totals.run_s)),
        ("Slowdown", _spread(totals.slowdown, "", "largest")),
    )


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share * 100:.1f} %"


def _spread(values: tuple[float | None, ...], unit: str = "s", most: str = "longest") -> str:
    if any(value is None for value in values):
        return "–"
    median, p90, _, top = (
        (duration_text(value or 0.0) if unit else f"{value or 0.0:,.1f}") for value in values
    )
    return f"median {median}, 90 % within {p90}, {most} {top}"


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


def _tables(tables: Tables, by: tuple[str, ...], measure: str) -> dict[str, object]:
    usage = by_measure(tables.usage(by), measure)
    users = by_measure(tables.usage(("user",)), "idle-gpu-hours")
    several = tables.multi_node_shares() if by == ("application",) else {}
    whole = sum(row.measure(measure) for row in usage) or 1.0
    largest = max((row.measure(measure) for row in usage), default=0.0) or 1.0
    listed = usage[:USAGE_LISTED]
    held_head, held = hours_column("GPU-hours", [row.gpu_hours for row in listed])
    run_head, run = hours_column("run-hours", [row.run_hours for row in listed])
    failed_head, failed = hours_column("failed GPU-hours", [row.wasted_gpu_hours for row in listed])
    rows = [
        _UsageRow(
            row.keys,
            held[at],
            run[at],
            f"{row.jobs:,}",
            f"{row.users:,}",
            f"{row.measure(measure) / whole * 100:.2f} %",
            f"{row.measure(measure) / largest:.3f}",
            failed[at],
            _percent(several.get(row.keys[0])),
        )
        for at, row in enumerate(listed)
    ]
    idle_users = [row for row in users[:IDLE_LISTED] if row.idle_gpu_hours]
    idle_jobs = [row for row in tables.jobs("idle-gpu-hours", IDLE_LISTED) if row.use.idle_gpu_hours]
    return {
        "rows": rows,
        "hours": (held_head, run_head, failed_head),
        "shown": USAGE_SHOWN,
        "more": max(len(usage) - USAGE_LISTED, 0),
        "idle_users": _idle(("user",), [(row.keys[0],) for row in idle_users], idle_users),
        "idle_jobs": _idle(
            ("job", "user", "application", "state"),
            [(row.use.keys[0], row.user, row.application, row.state) for row in idle_jobs],
            [row.use for row in idle_jobs],
        ),
    }


def _idle(
    names: tuple[str, ...], keys: Sequence[tuple[str, ...]], rows: Sequence[Usage]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Head and rows: idle and held GPU-hours, and the used parts of GPUs, CPUs and memory, each only if some row was
    measured."""
    idle_head, idle = hours_column("idle GPU-hours", [row.idle_gpu_hours for row in rows])
    held_head, held = hours_column("GPU-hours", [row.gpu_hours for row in rows])
    measures = (("GPU use", "gpu-use"), ("CPU use", "cpu-use"), ("memory use", "mem-use"))
    measured = {head: name for head, name in measures if any(row.known(name) is not None for row in rows)}
    cells = [
        (*key, idle[at], held[at], *(_percent(row.known(name)) for name in measured.values()))
        for at, (key, row) in enumerate(zip(keys, rows, strict=True))
    ]
    return (*names, idle_head, held_head, *measured), cells
