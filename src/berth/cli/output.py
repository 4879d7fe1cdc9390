"""What a command prints: for people a table, for programs the same rows as CSV or JSON."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from berth.errors import SettingError
from berth.files import plain_cell

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

FILE_WIDTH = 400
"""Columns of a table that goes to a file or a pipe, where COLUMNS does not say otherwise."""


class Form(StrEnum):
    """How rows are printed."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


def _refuse(context: typer.Context, value: Form | bool) -> Form | bool:
    """Refuse before the work two forms that contradict each other."""
    form = value if isinstance(value, Form) else Form(context.params.get("form") or Form.TABLE)
    as_json = value is True or context.params.get("as_json", False)
    if as_json and form not in (Form.TABLE, Form.JSON):
        raise SettingError(f"--json is short for --format json and does not go with --format {form.value}")
    return value


AsJson = Annotated[
    bool,
    typer.Option("--json", callback=_refuse, help="Print JSON on standard output, and nothing else."),
]
Format = Annotated[
    Form,
    typer.Option(
        "--format",
        callback=_refuse,
        help="Print a table, or its rows as CSV or JSON; --json is short for the last.",
    ),
]


def printed(
    form: Form, as_json: bool, rows: Sequence[Mapping[str, object]], answer: object | None = None
) -> bool:
    """Print rows as they are asked for; False if that is a table, which the command draws.

    JSON is the whole `answer`, by default the rows.
    """
    if form is Form.CSV:
        _print_csv(rows)
    elif as_json or form is Form.JSON:
        print(json.dumps(rows if answer is None else answer, ensure_ascii=False, allow_nan=False))
    else:
        return False
    return True


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
