"""The comparison as a table, for a terminal and for Python."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from berth.statistics import Run
from berth.statistics.table import table_rows

__all__ = ["TextTable", "rich_table", "rich_tables", "text_table"]


class TextTable(str):
    """Text that shows itself as it is, also where Python prints its representation."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def rich_table(runs: Sequence[Run], only: Sequence[str] = ()) -> Table:
    """Metrics down, policies across: the mean, half of its 95 % interval over seeds, and * for the best of all.

    With `only`, the columns of these policies.
    """
    policies = list(dict.fromkeys(run.policy for run in runs))
    wanted = list(only) or policies
    table = Table(box=SIMPLE_HEAD, pad_edge=False, caption_justify="left")
    table.add_column("metric", no_wrap=True)
    table.add_column("unit", style="dim", no_wrap=True)
    for policy in wanted:
        table.add_column(policy, justify="right", no_wrap=True)
    marked = False
    for row in table_rows(runs):
        cells = []
        for policy, cell in zip(policies, row.cells, strict=True):
            if policy not in wanted:
                continue
            half = f" ±{cell.half}" if cell.half else ""
            star = {"best": " *", "like best": " ~"}.get(cell.mark, "  " if len(policies) > 1 else "")
            marked = marked or bool(cell.mark)
            cells.append(f"{cell.mean}{half}{star}")
        table.add_row(row.metric, row.unit, *cells)
    if marked:
        table.caption = (
            "* best; ~ the seeds do not tell it from the best; ± half of the 95 % interval over seeds"
        )
    return table


def rich_tables(runs: Sequence[Run], console: Console) -> list[Table]:
    """The table, or where it is too wide for the console one for the first policies, one for the next, and so on."""
    policies = list(dict.fromkeys(run.policy for run in runs))
    tables: list[Table] = []
    shown: list[str] = []
    for policy in policies:
        if shown and not _fits(rich_table(runs, [*shown, policy]), console):
            tables.append(rich_table(runs, shown))
            shown = []
        shown.append(policy)
    return [*tables, rich_table(runs, shown)]


def _fits(table: Table, console: Console) -> bool:
    return console.measure(table, options=console.options.update(width=10_000)).maximum <= console.width


def text_table(runs: Sequence[Run]) -> TextTable:
    """The table as plain text, as wide as it needs to be."""
    out = StringIO()
    console = Console(file=out, width=400, color_system=None)
    console.print(rich_table(runs))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    return TextTable("\n".join(lines).strip("\n"))
