"""The table of `berth stats`: who used what, in a terminal or a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from berth.cli.output import console, plain_table
from berth.counts import counted
from berth.history.values.durations import hours, hours_of, hours_text

if TYPE_CHECKING:
    from rich.table import Table

    from berth.statistics.accounting import Usage
    from berth.statistics.tables import JobUse, Totals


def usage_table(names: Sequence[str], measure: str, rows: Sequence[Usage], whole: float) -> Table:
    """A row for each group; a name that the terminal is too narrow for goes on in the next line, never cut off."""
    headings = (
        *names,
        *("GPU-hours", "run-hours", "jobs", "users"),
        *([f"share of {measure}"] if whole else []),
        "failed GPU-hours",
        *(_USES[name] for name in _measured(rows)),
    )
    cells = [(*row.keys, *_cells(row, measure, whole, _measured(rows))) for row in rows]
    return plain_table(headings, cells, left=len(names))


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


def _use_cell(row: Usage, name: str) -> str:
    value = row.known(name)
    if value is None:
        return "–"
    return f"{value:,.2f}" if name == "idle-gpu-hours" else f"{value * 100:.1f} %"


def show_jobs(measure: str, rows: Sequence[JobUse]) -> None:
    """Print a line for each job, those first that are first by the measure."""
    screen = console()
    if not rows:
        screen.print(_UNKNOWN.get(measure, "no jobs"))
        return
    uses = _measured([row.use for row in rows])
    names = ("job", "cluster", "user", "application", "state")
    numbers = ("attempts", "GPU-hours", "failed GPU-hours", *(_USES[name] for name in uses))
    cells = [
        (
            *(row.use.keys[0], row.cluster, row.user, row.application, row.state, f"{row.attempts:,}"),
            *(hours_text(hours, 2) for hours in (row.use.gpu_hours, row.use.wasted_gpu_hours)),
            *(_use_cell(row.use, name) for name in uses),
        )
        for row in rows
    ]
    screen.print(plain_table((*names, *numbers), cells, left=len(names)))


def _cells(row: Usage, measure: str, whole: float, uses: Sequence[str]) -> tuple[str, ...]:
    return (
        hours_text(row.gpu_hours, 2),
        hours_text(row.run_hours, 2),
        f"{row.jobs:,}",
        f"{row.users:,}",
        *([f"{row.measure(measure) / whole * 100:.2f} %"] if whole else []),
        hours_text(row.wasted_gpu_hours, 2),
        *(_use_cell(row, name) for name in uses),
    )


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
            f"waited: median {totals.wait_s[0]:,.0f} s, 90 % within {totals.wait_s[1]:,.0f} s; "
            f"ran: median {totals.run_s[0]:,.0f} s"
        )
    for cause, waited_h in sorted(waits.items(), key=lambda item: -item[1]):
        screen.print(f"  {' '.join(hours(waited_h, 2))} waited for {cause}")
