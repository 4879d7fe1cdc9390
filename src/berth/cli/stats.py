"""`berth stats`, `berth report` and `berth applications`: what is in the history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from berth.cli.comma_separated import names_of
from berth.cli.files import checked_place, command_line
from berth.cli.history_folder import HistoryFolder
from berth.cli.output import JsonOrCsv, console, plain_table, printed
from berth.counts import counted
from berth.errors import HistoryError, SettingError
from berth.history.values.durations import day_text, duration_text, hours, hours_column, hours_of, moment_ms

if TYPE_CHECKING:
    from rich.table import Table

    from berth.statistics.accounting import Usage
    from berth.statistics.tables import JobUse, Tables, Totals

By = Annotated[
    str,
    typer.Option(
        metavar="A[,B]",
        help="application, user, account, server, gpu, qos, cluster, state, month or day; stats also job.",
    ),
]
Measure = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="gpu-hours, run-hours, jobs, idle-gpu-hours or failed-gpu-hours; stats also gpu-use, cpu-use or mem-use.",
    ),
]
From = Annotated[
    str, typer.Option("--from", metavar="DATE", help="Only attempts that ended on or after this date.")
]
To = Annotated[str, typer.Option("--to", metavar="DATE", help="Only attempts that ended before this date.")]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="A=VALUE", help="Only this application, user, …; repeatable."),
]


@contextmanager
def tables_of(history: Path, begin: str, end: str, only: list[str] | None) -> Iterator[Tables]:
    from berth.history.store.folder import open_history
    from berth.statistics.tables import Period, Tables

    pairs = []
    for text in only or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise SettingError(f"--only {text}: expected NAME=VALUE, such as application=pytorch")
        pairs.append((name, value))
    if begin and end and moment_ms(begin, "--from") >= moment_ms(end, "--to"):
        raise SettingError(f"--from {begin} is not before --to {end}; --to is the day after the last one")
    period = Period(
        moment_ms(begin, "--from") if begin else None, moment_ms(end, "--to") if end else None, tuple(pairs)
    )
    with open_history(history, must_exist=True).database() as database:
        yield Tables(database, period)


def _groups(by: str, measure: str, *, summed: bool = True) -> tuple[str, ...]:
    """The dimensions; with `summed` the measure must be one that adds up, as bars and shares need it."""
    from berth.statistics.accounting import MEASURES, USES, check_dimensions

    names = names_of(by)
    check_dimensions(names)
    if measure not in MEASURES:
        raise SettingError(f"no measure '{measure}'; there are {', '.join(MEASURES)}")
    if summed and measure in USES:
        amounts = ", ".join(name for name in MEASURES if name not in USES)
        raise SettingError(
            f"'{measure}' is a part and does not add up; `berth stats` lists it, here choose one of {amounts}"
        )
    return names


def stats(
    by: By = "application",
    measure: Measure = "gpu-hours",
    begin: From = "",
    end: To = "",
    only: Only = None,
    top: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Only the first N rows; 0: all, or 50 when grouped by job."),
    ] = 0,
    history: HistoryFolder = Path("history"),
    as_json: JsonOrCsv = None,
) -> None:
    """Show usage, waste, waits and their causes, and lost work."""
    from berth.statistics.accounting import USES, largest_first

    if by.strip() == "job":
        _groups("", measure, summed=False)
        with tables_of(history, begin, end, only) as tables:
            found = tables.jobs(measure, top or JOBS_LISTED)
        listed = [
            {
                "job": row.use.keys[0],
                "cluster": row.cluster,
                "user": row.user,
                "application": row.application,
                "state": row.state,
                "attempts": row.attempts,
                **{name: getattr(row.use, name) for name in ("gpu_hours", "run_hours", "wasted_gpu_hours")},
                **_uses(row.use),
            }
            for row in found
        ]
        if not printed(as_json, listed, {"by": ["job"], "measure": measure, "rows": listed}):
            show_jobs(measure, found)
        return
    names = _groups(by, measure, summed=False)
    with tables_of(history, begin, end, only) as tables:
        rows = largest_first(tables.usage(names), measure)
        totals, waits, several = tables.totals(), tables.waits_by_cause(), tables.multi_node_shares()
        if (begin or end or only) and not totals.tries:
            raise _nothing(history, begin, end, only)
        adds_up = measure not in USES and any(row.known(measure) is not None for row in rows)
        whole = (sum(row.measure(measure) for row in rows) or 1.0) if adds_up else 0.0
        rows = rows[: top or None]
        if as_json is not None:
            answer: dict[str, Any] = {
                "by": names,
                "measure": measure,
                "rows": [
                    {
                        **dict(zip(names, row.keys, strict=True)),
                        "gpu_hours": row.gpu_hours,
                        "run_hours": row.run_hours,
                        "jobs": row.jobs,
                        "users": row.users,
                        "share": row.measure(measure) / whole if whole else None,
                        "wasted_gpu_hours": row.wasted_gpu_hours,
                        "measured_gpu_hours": row.measured_gpu_hours,
                        **_uses(row),
                    }
                    for row in rows
                ],
                "totals": totals.to_dict(),
                "waiting_hours_by_cause": waits,
                "multi_node_share": several,
            }
            printed(as_json, answer["rows"], answer)
            return
    show_usage(names, measure, rows, whole, totals, waits)


JOBS_LISTED = 50
"""Rows that are listed by job unless --top says otherwise."""


def _uses(row: Usage) -> dict[str, float | None]:
    """What was measured of a row's use; None for what was not measured."""
    return {
        name.replace("-", "_"): row.known(name)
        for name in ("idle-gpu-hours", "gpu-use", "cpu-use", "mem-use")
    }


def report(
    out: Annotated[Path, typer.Argument(metavar="OUT.html", help="The page, in one file.")],
    by: By = "application",
    measure: Measure = "gpu-hours",
    begin: From = "",
    end: To = "",
    only: Only = None,
    history: HistoryFolder = Path("history"),
) -> None:
    """Write the history, or a period of it, as one self-contained page."""
    from berth.report.accounting import Head, write_accounting
    from berth.report.digest import answers_and_figures, sentences

    checked_place(out, ".html")
    names = _groups(by, measure)
    with tables_of(history, begin, end, only) as tables:
        jobs = tables.totals().jobs
        if not jobs:
            raise _nothing(history, begin, end, only)
        first_ms, last_ms = _ends(tables, begin, end)
        compared_ms = first_ms if begin else last_ms - COMPARED_DAYS * DAY_MS
        length_ms = last_ms - compared_ms
        answers, figures = answers_and_figures(
            tables.of(compared_ms, last_ms), tables.of(compared_ms - length_ms, compared_ms)
        )
        days = counted(length_ms / DAY_MS, "day")
        head = Head(
            title="GPU accounting",
            period=f"{day_text(first_ms)} to {day_text(last_ms - 1)}"
            + (f", only {', '.join(only)}" if only else ""),
            command=command_line(),
            answers=answers if begin else sentences(tables),
            figures=figures,
            compared=("this period" if begin else f"the last {days}", f"the {days} before"),
        )
        write_accounting(out, tables, head, by=names, measure=measure)
    print(f"wrote {out}: {counted(jobs, 'job')}")


DAY_MS = 86_400_000
COMPARED_DAYS = 28
"""A report of the whole history compares its last four weeks with those before."""


def _ends(tables: Tables, begin: str, end: str) -> tuple[int, int]:
    """When the period of a report begins and ends, ms since 1970: as asked, else with the first and the last day."""
    totals = tables.totals()
    end_ms = moment_ms(end, "--to") if end else ((totals.last_ms or 0) // DAY_MS + 1) * DAY_MS
    begin_ms = moment_ms(begin, "--from") if begin else (totals.first_ms or 0)
    return begin_ms, max(end_ms, begin_ms + DAY_MS)


def _nothing(history: Path, begin: str, end: str, only: list[str] | None) -> HistoryError:
    """That there is nothing to show under these conditions."""
    conditions = [
        *([f"--from {begin}"] if begin else []),
        *([f"--to {end}"] if end else []),
        *(f"--only {text}" for text in only or []),
    ]
    under = f" under {', '.join(conditions)}" if conditions else ""
    return HistoryError(
        f"{history} has nothing to show{under}; `berth stats --by application,month` lists what it has"
    )


def applications(
    history: HistoryFolder = Path("history"),
    limit: Annotated[int, typer.Option(min=1, help="Number of names to list.")] = 30,
    as_json: JsonOrCsv = None,
) -> None:
    """List the job names that match no rule, those with the most GPU-hours first."""
    with tables_of(history, "", "", None) as tables:
        rows = tables.unknown(limit)
    listed = [{"name": n, "comment": c, "gpu_hours": h, "jobs": j} for n, c, h, j in rows]
    if printed(as_json, listed):
        return
    for name, comment, amount, jobs in rows:
        print(f"{amount:12,.2f} GPU-hours {jobs:8,} jobs  {name}" + (f"  ({comment})" if comment else ""))


def usage_table(names: Sequence[str], measure: str, rows: Sequence[Usage], whole: float) -> Table:
    """A row for each group; a name that the terminal is too narrow for goes on in the next line, never cut off."""
    share = []
    if whole:
        share = [(f"share of {measure}", [f"{row.measure(measure) / whole * 100:.2f} %" for row in rows])]
    columns = [
        hours_column("GPU-hours", [row.gpu_hours for row in rows]),
        hours_column("run-hours", [row.run_hours for row in rows]),
        ("jobs", [f"{row.jobs:,}" for row in rows]),
        ("users", [f"{row.users:,}" for row in rows]),
        *share,
        hours_column("failed GPU-hours", [row.wasted_gpu_hours for row in rows]),
        *_use_columns(rows),
    ]
    return _table(names, [row.keys for row in rows], columns)


def _table(
    names: Sequence[str], keys: Sequence[Sequence[str]], columns: Sequence[tuple[str, list[str]]]
) -> Table:
    """The names of each row on the left, then columns of numbers."""
    numbers = zip(*(cells for _, cells in columns), strict=True)
    rows = [(*key, *cells) for key, cells in zip(keys, numbers, strict=True)]
    return plain_table((*names, *(heading for heading, _ in columns)), rows, left=len(names))


_USES = {
    "idle-gpu-hours": "idle GPU-hours",
    "gpu-use": "GPU use",
    "cpu-use": "CPU use",
    "mem-use": "memory use",
}


_OF_GPUS = (
    "the GPU use of these jobs was not measured; `berth import samples` and `berth import series` bring it"
)
_OF_STEPS = (
    "the {} of these jobs was not measured; `berth import slurmdbd`, or sacct's text with steps, brings it"
)
_UNKNOWN = {
    "idle-gpu-hours": _OF_GPUS,
    "gpu-use": _OF_GPUS,
    "cpu-use": _OF_STEPS.format("CPU use"),
    "mem-use": _OF_STEPS.format("memory use"),
}
"""What to say if a measure is known of no row."""


def _measured(rows: Sequence[Usage]) -> list[str]:
    """The uses that were measured in at least one row."""
    return [name for name in _USES if any(row.known(name) is not None for row in rows)]


def _use_columns(rows: Sequence[Usage]) -> list[tuple[str, list[str]]]:
    """A column of each use that was measured."""
    columns = []
    for name in _measured(rows):
        known = [row.known(name) for row in rows]
        if name == "idle-gpu-hours":
            columns.append(hours_column(_USES[name], known))
        else:
            columns.append((_USES[name], ["–" if part is None else f"{part * 100:.1f} %" for part in known]))
    return columns


def show_jobs(measure: str, rows: Sequence[JobUse]) -> None:
    """Print a line for each job, those first that are first by the measure."""
    screen = console()
    if not rows:
        screen.print(_UNKNOWN.get(measure, "no jobs"))
        return
    used = [row.use for row in rows]
    keys = [(row.use.keys[0], row.cluster, row.user, row.application, row.state) for row in rows]
    columns = [
        ("attempts", [f"{row.attempts:,}" for row in rows]),
        hours_column("GPU-hours", [each.gpu_hours for each in used]),
        hours_column("failed GPU-hours", [each.wasted_gpu_hours for each in used]),
        *_use_columns(used),
    ]
    screen.print(_table(("job", "cluster", "user", "application", "state"), keys, columns))


def show_usage(
    names: Sequence[str],
    measure: str,
    rows: Sequence[Usage],
    whole: float,
    totals: Totals,
    waits: Mapping[str, float],
) -> None:
    """Print the table, and what all of its jobs were and waited for."""

    screen = console()
    screen.print(usage_table(names, measure, rows, whole))
    if rows and measure in _UNKNOWN and measure not in _measured(rows):
        screen.print(_UNKNOWN[measure])
    screen.print(
        f"{counted(totals.jobs, 'job')} in {counted(totals.tries, 'attempt')} of {counted(totals.users, 'user')},"
        f" {hours_of('GPU', totals.gpu_hours, 2)}",
    )
    if totals.wait_s[0] is not None:
        screen.print(
            f"waited: median {duration_text(totals.wait_s[0])}, 90 % within {duration_text(totals.wait_s[1] or 0)}; "
            f"ran: median {duration_text(totals.run_s[0] or 0)}"
        )
    for cause, waited_h in sorted(waits.items(), key=lambda item: -item[1]):
        screen.print(f"  {' '.join(hours(waited_h, 2))} waited for {cause}")
