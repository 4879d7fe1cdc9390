"""The comparison as a table, for a terminal and for Python."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from io import StringIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from berth.statistics import Run
from berth.statistics.comparison import Cell, Row, answers, in_sentence, table_rows


class TextTable(str):
    """Text that shows itself as it is, also where Python prints its representation."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def rich_table(runs: Sequence[Run], only: Sequence[str] = ()) -> Table:
    """Metrics down, policies across: the mean, half of its 95 % interval over seeds, and * for the best of all.

    Rows that are the same for all policies are in the caption, and those that no policy has are left out. With `only`,
    the columns of these policies.
    """
    policies = list(dict.fromkeys(run.policy for run in runs))
    wanted = list(only) or policies
    table = Table(box=SIMPLE_HEAD, pad_edge=False, caption_justify="left")
    table.add_column("metric", no_wrap=True)
    table.add_column("unit", style="dim", no_wrap=True)
    labels = {run.policy: run.label for run in runs}
    for policy in wanted:
        table.add_column(labels[policy], justify="right", no_wrap=True)
    marked = False
    rows = [row for row in table_rows(runs) if not row.undefined]
    differ = [row for row in rows if not row.same]
    same = _same_for_all(rows) if differ else ""
    for row in differ or rows:
        cells = []
        for policy, cell in zip(policies, row.cells, strict=True):
            if policy not in wanted:
                continue
            half = f" ±{cell.half}" if cell.half else ""
            star = {"best": " *", "like best": " ~"}.get(cell.mark, "  " if len(policies) > 1 else "")
            marked = marked or bool(cell.mark)
            cells.append(f"{cell.mean}{half}{star}")
        table.add_row(f"{row.metric} {row.better}".rstrip(), row.unit, *cells)
    captions = []
    if same and wanted[-1] == policies[-1]:
        captions.append(same)
    if marked:
        captions.append(
            "↑ more is better, ↓ less; * best; ~ not significantly worse;"
            " ± half of the 95 % interval over seeds"
        )
    table.caption = "\n".join(captions)
    return table


def _same_for_all(rows: Sequence[Row]) -> str:
    """The rows that are the same for all policies, in a sentence; empty if there are none."""
    same = [f"{in_sentence(row.metric)} {row.cells[0].mean} {row.unit}".rstrip() for row in rows if row.same]
    return f"The same for all: {'; '.join(same)}." if same else ""


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
    """What was found, and the table, as plain text."""
    return plain(answers(runs), rich_table(runs))


def plain(sentences: Iterable[str], table: Table) -> TextTable:
    """Sentences and a table as plain text, as wide as it needs to be."""
    out = StringIO()
    console = Console(file=out, width=400, color_system=None)
    for sentence in sentences:
        console.print(sentence, markup=False)
    console.print(table)
    return TextTable("\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip("\n"))


def html_table(runs: Sequence[Run]) -> str:
    """What was found and the table, as notebooks show it; every text is escaped."""
    rows = [row for row in table_rows(runs) if not row.undefined]
    differ = [row for row in rows if not row.same]
    same = _same_for_all(rows) if differ else ""
    head = "".join(f"<th>{escape(label)}</th>" for label in dict.fromkeys(run.label for run in runs))
    body = "".join(
        f'<tr><th title="{escape(row.definition)}">{escape(f"{row.metric} {row.better}".rstrip())}</th>'
        f"<td>{escape(row.unit)}</td>" + "".join(_html_cell(cell) for cell in row.cells) + "</tr>"
        for row in differ or rows
    )
    found = "".join(f"<p>{escape(sentence)}</p>" for sentence in answers(runs))
    table = f"<table><thead><tr><th>metric</th><th>unit</th>{head}</tr></thead><tbody>{body}</tbody></table>"
    return found + table + (f"<p>{escape(same)}</p>" if same else "")


def _html_cell(cell: Cell) -> str:
    half = f" ± {escape(cell.half)}" if cell.half else ""
    text = f"{escape(cell.mean)}{half}"
    return f"<td><b>{text}</b></td>" if cell.mark == "best" else f"<td>{text}</td>"
