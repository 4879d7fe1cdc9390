"""`berth cost`: what users, accounts and applications cost by a price list."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from berth.cli.importing import AsJson, HistoryFolder
from berth.cli.stats import By, From, Only, To, tables_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from berth.statistics.cost import Cost

COLUMNS = ("gpu_hours", "cpu_hours", "energy_kwh", "co2_kg", "cost")


def cost(
    prices: Annotated[
        Path, typer.Option("--prices", metavar="FILE.toml", help="The price list; see docs/accounting.md.")
    ],
    by: By = "account,user",
    begin: From = "",
    end: To = "",
    only: Only = None,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write the table for chargeback here, too.")
    ] = None,
    history: HistoryFolder = Path("history"),
    as_json: AsJson = False,
) -> None:
    """Say what groups of jobs cost: GPU-hours by model, CPU-hours, and energy and CO₂ where they were measured."""
    from berth.statistics.accounting import check_dimensions
    from berth.statistics.cost import costs, read_prices

    names = [name.strip() for name in by.split(",") if name.strip()]
    check_dimensions(names)
    listed = read_prices(prices)
    with tables_of(history, begin, end, only) as tables:
        rows = costs(tables.held(names), listed)
    if csv_file is not None:
        _write(csv_file, names, rows, listed.currency)
    if as_json:
        told = [
            {**dict(zip(names, row.keys, strict=True)), **{name: getattr(row, name) for name in COLUMNS}}
            for row in rows
        ]
        print(json.dumps({"by": names, "currency": listed.currency, "rows": told}, ensure_ascii=False))
        return
    _show(names, rows, listed.currency)


def _write(path: Path, names: Sequence[str], rows: Sequence[Cost], currency: str) -> None:
    from berth.files import whole_file

    with whole_file(path) as aside, aside.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*names, *COLUMNS[:-1], f"cost_{currency}" if currency else "cost"])
        for row in rows:
            values = asdict(row)
            writer.writerow([*map(_plain, row.keys), *(values[name] for name in COLUMNS)])


def _plain(text: str) -> str:
    """A name that no spreadsheet takes for a formula."""
    return f"'{text}" if text[:1] in "=+-@\t\r" and text else text


def _show(names: Sequence[str], rows: Sequence[Cost], currency: str) -> None:
    import sys

    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from berth.cli.usage_table import FILE_WIDTH

    console = Console(width=None if sys.stdout.isatty() else FILE_WIDTH)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in names:
        table.add_column(name, overflow="fold")
    for heading in ("GPU-hours", "CPU-hours", "kWh", "kg CO₂", f"cost {currency}".strip()):
        table.add_column(heading, justify="right")
    for row in rows:
        numbers = [row.gpu_hours, row.cpu_hours, row.energy_kwh, row.co2_kg, row.cost]
        table.add_row(*map(Text, row.keys), *("–" if value is None else f"{value:,.2f}" for value in numbers))
    console.print(table)
    console.print(
        f"{sum(row.cost for row in rows):,.2f} {currency} in all".replace("  ", " "), highlight=False
    )
