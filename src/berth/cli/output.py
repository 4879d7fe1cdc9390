"""What a command prints: for people a table, for programs the same rows as CSV or JSON."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from berth.files import plain_cell

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

FILE_WIDTH = 400
"""Columns of a table that goes to a file or a pipe, where COLUMNS does not say otherwise."""


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output, and nothing else.")]
JsonOrCsv = Annotated[
    bool | None,
    typer.Option("--json/--csv", help="Print JSON or CSV on standard output, instead of a table."),
]
"""True: JSON; False: CSV; None: a table."""


def printed(as_json: bool | None, rows: Sequence[Mapping[str, object]], answer: object | None = None) -> bool:
    """Print rows as a `JsonOrCsv` asks for them; False if that is a table, which the command draws.

    JSON is the whole `answer`, by default the rows.
    """
    if as_json:
        print(json.dumps(rows if answer is None else answer, ensure_ascii=False, allow_nan=False))
    elif as_json is not None:
        _print_csv(rows)
    return as_json is not None


def console(*, soft_wrap: bool = False) -> Console:
    """Standard output as Rich draws on it: as wide as COLUMNS says, and without any style under NO_COLOR.

    What is between brackets or colons is no markup: names and messages are users'.
    """
    from rich.console import Console

    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() and int(columns) > 0 else None
    if width is None and not sys.stdout.isatty():
        width = FILE_WIDTH
    return Console(
        width=width,
        soft_wrap=soft_wrap and not sys.stdout.isatty(),
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        highlight=False,
        markup=False,
        emoji=False,
    )


def plain_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> Table:
    """A table without frames. The first `left` columns are texts, which a narrow terminal folds and never cuts off;
    the others are numbers, set to the right and kept whole."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    listed = list(rows)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for at, heading in enumerate(headings):
        widest = max(map(len, (*heading.split(), *(row[at] for row in listed))), default=0)
        number = at >= left
        table.add_column(
            heading,
            justify="right" if number else "left",
            overflow="fold",
            min_width=widest if number else None,
        )
    for row in listed:
        table.add_row(*map(Text, row))
    return table


def _flat(value: object) -> object:
    """A value that a cell can hold: lists and the like as JSON."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def _print_csv(rows: Sequence[Mapping[str, object]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        values = (_flat(row.get(name)) for name in names)
        writer.writerow([plain_cell(value) if isinstance(value, str) else value for value in values])
