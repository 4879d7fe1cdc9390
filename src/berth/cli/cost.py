"""`berth cost`: what users, accounts and applications cost by a price list."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from berth.cli.comma_separated import names_of
from berth.cli.history_folder import HistoryFolder
from berth.cli.output import JsonOrCsv, console, plain_table, printed
from berth.cli.stats import By, From, Only, To, tables_of
from berth.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from berth.statistics.cost import Cost

COLUMNS = ("gpu_hours", "cpu_hours", "energy_kwh", "co2_kg", "cost")


def cost(
    prices: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", help="The price list; see docs/accounting.md."),
    ] = None,
    by: By = "account,user",
    begin: From = "",
    end: To = "",
    only: Only = None,
    history: HistoryFolder = Path("history"),
    as_json: JsonOrCsv = None,
) -> None:
    """Show what groups of jobs cost: GPU-hours by model, CPU-hours, and energy and CO₂ where measured."""
    from berth.statistics.accounting import check_dimensions
    from berth.statistics.cost import costs, read_prices

    if prices is None:
        raise SettingError(
            "berth cost needs prices: name a list with --prices FILE.toml; docs/accounting.md shows one"
        )
    names = names_of(by)
    check_dimensions(names)
    listed = read_prices(prices)
    with tables_of(history, begin, end, only) as tables:
        rows = costs(tables.held(names), listed)
    cost_rows = [
        {**dict(zip(names, row.keys, strict=True)), **{name: getattr(row, name) for name in COLUMNS}}
        for row in rows
    ]
    if printed(as_json, cost_rows, {"by": names, "currency": listed.currency, "rows": cost_rows}):
        return
    _show(names, rows, listed.currency)


def _show(names: Sequence[str], rows: Sequence[Cost], currency: str) -> None:
    screen = console()
    whole = sum(row.cost for row in rows)
    answer = f"{whole:,.2f} {currency}".strip() + " in all"
    if whole > 0:
        first = max(rows, key=lambda row: row.cost)
        answer += f", {first.cost / whole * 100:.0f} % of it for {' / '.join(first.keys)}"
    screen.print(f"{answer}.", style="bold")
    headings = ("GPU-hours", "CPU-hours", "kWh", "kg CO₂", f"cost {currency}".strip())
    table_rows = []
    for row in rows:
        numbers = [row.gpu_hours, row.cpu_hours, row.energy_kwh, row.co2_kg, row.cost]
        table_rows.append((*row.keys, *("–" if value is None else f"{value:,.2f}" for value in numbers)))
    screen.print(plain_table((*names, *headings), table_rows, left=len(names)))
