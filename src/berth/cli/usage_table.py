"""The table of `berth stats`: who used what, in a terminal or a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from berth.cli.output import console, plain_table
from berth.counts import counted
from berth.history.values.durations import duration_text, hours, hours_column, hours_of

if TYPE_CHECKING:
    from rich.table import Table

    from berth.statistics.accounting import Usage
    from berth.statistics.tables import JobUse, Totals


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
