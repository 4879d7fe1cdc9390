"""`berth cost`: what users, accounts and applications cost by a price list."""

from __future__ import annotations

import csv
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from berth.cli.comma_separated import names_of
from berth.cli.importing import HistoryFolder
from berth.cli.output import AsJson, Form, Format, console, printed
from berth.cli.stats import By, From, Only, To, tables_of
from berth.files import plain_cell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from berth.statistics.cost import Cost

COLUMNS = ("gpu_hours", "cpu_hours", "energy_kwh", "co2_kg", "cost")


def cost(
    prices: Annotated[
        Path | None,
        typer.Option("--prices", metavar="FILE.toml", help="The price list; see docs/accounting.md."),
    ] = None,
    by: By = "account,user",
    begin: From = "",
    end: To = "",
    only: Only = None,
    csv_file: Annotated[
        Path | None,
        typer.Option("--csv", metavar="FILE", help="Also write the table to this file, for chargeback."),
    ] = None,
    history: HistoryFolder = Path("history"),
    as_json: AsJson = False,
    form: Format = Form.TABLE,
) -> None:
    """Show what groups of jobs cost: GPU-hours by model, CPU-hours, and energy and CO₂ where measured."""
    from berth.statistics.accounting import check_dimensions
    from berth.statistics.cost import costs, read_prices

    if prices is None:
        from berth.errors import SettingError

        raise SettingError(
            "berth cost needs prices: name a list with --prices FILE.toml; docs/accounting.md shows one"
        )
    names = names_of(by)
    check_dimensions(names)
    listed = read_prices(prices)
    with tables_of(history, begin, end, only) as tables:
        rows = costs(tables.held(names), listed)
    if csv_file is not None:
        _write(csv_file, names, rows, listed.currency)
    cost_rows = [
        {**dict(zip(names, row.keys, strict=True)), **{name: getattr(row, name) for name in COLUMNS}}
        for row in rows
    ]
    if printed(form, as_json, cost_rows, {"by": names, "currency": listed.currency, "rows": cost_rows}):
        return
    _show(names, rows, listed.currency)


def _write(path: Path, names: Sequence[str], rows: Sequence[Cost], currency: str) -> None:
    from berth.files import whole_file

    with whole_file(path) as part_file, part_file.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*names, *COLUMNS[:-1], f"cost_{currency}" if currency else "cost"])
        for row in rows:
            values = asdict(row)
            writer.writerow([*map(plain_cell, row.keys), *(values[name] for name in COLUMNS)])


def _show(names: Sequence[str], rows: Sequence[Cost], currency: str) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    screen = console()
    whole = sum(row.cost for row in rows)
    answer = f"{whole:,.2f} {currency}".strip() + " in all"
    if whole > 0:
        first = max(rows, key=lambda row: row.cost)
        answer += f", {first.cost / whole * 100:.0f} % of it for {' / '.join(first.keys)}"
    screen.print(f"{answer}.", highlight=False, markup=False, style="bold")
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in names:
        table.add_column(name, overflow="fold")
    for heading in ("GPU-hours", "CPU-hours", "kWh", "kg CO₂", f"cost {currency}".strip()):
        table.add_column(heading, justify="right")
    for row in rows:
        numbers = [row.gpu_hours, row.cpu_hours, row.energy_kwh, row.co2_kg, row.cost]
        table.add_row(*map(Text, row.keys), *("–" if value is None else f"{value:,.2f}" for value in numbers))
    screen.print(table)
