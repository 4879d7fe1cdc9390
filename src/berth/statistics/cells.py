"""Sums of a history by date and by user, account, server and application: what a page is filtered by."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import duckdb
import numpy as np
from numpy.typing import NDArray

from berth.statistics.attempts import WAIT_SQL

FACETS: Final = ("user", "account", "server", "application")
"""What a page is filtered by, beside dates."""
_DAY_MS: Final = 24 * 3_600_000
_TRUNCATED: Final = f"epoch_ms(date_trunc('{{}}', make_timestamp(day * {_DAY_MS} * 1000))) // {_DAY_MS}"
_BEGINS: Final = {
    "day": "day",
    "week": "(day + 3) // 7 * 7 - 3",
    **{unit: _TRUNCATED.format(unit) for unit in ("month", "year")},
}
"""The first day of a day's day, week (from Monday), month and year, as a number of days since 1970."""

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Sums of N cells of C combinations of the facets, and S attempts of which the wait is known."""

    unit: str
    """`day`, `week`, `month` or `year`."""
    names: Mapping[str, Sequence[str]]
    """The values of each facet, in order; "" where it is not known."""
    combinations: Mapping[str, Ints]
    """The places (C,) in `names` of each facet's value."""
    group: Ints  # (N,)
    """Which combination a cell is of, ascending."""
    day: Ints  # (N,)
    """The first day of its unit since 1970, ascending within a combination."""
    sums: Mapping[str, Ints]
    """Sums (N,): `tries`, and `held`, `wasted`, `measured` and `idle` in ms and per mille of a GPU."""
    sample_group: Ints  # (S,)
    sample_day: Ints  # (S,)
    sample_wait_ms: Ints  # (S,)


def cells_of(
    database: duckdb.DuckDBPyConnection,
    source: str,
    values: Sequence[Any],
    facets: Mapping[str, str],
    sums: Sequence[str],
    sampled: int,
) -> Generator[Cells, None, None]:
    """Yield the cells of a source of SQL by day, then by week, month and year.

    The source is `FROM … WHERE …` with its values; `facets` and `sums` are expressions of it. The sample has at most
    `sampled` attempts that started, the same ones each time.
    """
    try:
        yield from _units(database, source, values, facets, sums, sampled)
    finally:
        for table in ("cell_days", "cell_groups", "cell_sums", "cell_sample"):
            database.execute(f"DROP TABLE IF EXISTS {table}")


def _units(
    database: duckdb.DuckDBPyConnection,
    source: str,
    values: Sequence[Any],
    facets: Mapping[str, str],
    sums: Sequence[str],
    sampled: int,
) -> Generator[Cells, None, None]:
    """The cells of each unit, by way of temporary tables."""
    # A join finds no NULL, and an attempt of an unknown account would be lost.
    facet_columns = ", ".join(f"coalesce({facets[name]}, '') AS \"{name}\"" for name in FACETS)
    names = ", ".join(f'"{name}"' for name in FACETS)
    kinds = ("tries", "held", "wasted", "measured", "idle")
    database.execute(
        f"CREATE OR REPLACE TEMP TABLE cell_days AS SELECT end_ms // {_DAY_MS} AS day, {facet_columns}, "
        f"count(*) AS tries, {', '.join(sums)} {source} GROUP BY ALL",
        list(values),
    )
    database.execute(
        f"CREATE OR REPLACE TEMP TABLE cell_groups AS SELECT {names}, row_number() OVER (ORDER BY {names}) - 1 AS g "
        f"FROM (SELECT DISTINCT {names} FROM cell_days)"
    )
    database.execute(
        f"CREATE OR REPLACE TEMP TABLE cell_sums AS SELECT g, day, {', '.join(kinds)} "
        f"FROM cell_days JOIN cell_groups USING ({names})"
    )
    groups = database.execute(f"SELECT {names} FROM cell_groups ORDER BY g").fetchnumpy()
    places = {name: np.unique(groups[name].astype(str), return_inverse=True) for name in FACETS}
    database.execute(
        f"CREATE OR REPLACE TEMP TABLE cell_sample AS SELECT g, day, wait_ms FROM (SELECT end_ms // {_DAY_MS} AS day, "
        f"{facet_columns}, {WAIT_SQL} AS wait_ms {source} AND start_ms IS NOT NULL "
        f"ORDER BY hash(cluster, job_id, attempt) LIMIT {int(sampled)}) JOIN cell_groups USING ({names})",
        list(values),
    )
    added = ", ".join(f"round(coalesce(sum({name}), 0))::BIGINT AS {name}" for name in kinds)
    for unit, begins in _BEGINS.items():
        found = database.execute(
            f"SELECT g, {begins} AS begins, {added} FROM cell_sums GROUP BY ALL ORDER BY g, begins"
        ).fetchnumpy()
        sample = database.execute(
            f"SELECT g, {begins} AS begins, wait_ms FROM cell_sample ORDER BY ALL"
        ).fetchnumpy()
        yield Cells(
            unit,
            {name: known.tolist() for name, (known, _) in places.items()},
            {name: place.astype(np.int64) for name, (_, place) in places.items()},
            found["g"].astype(np.int64),
            found["begins"].astype(np.int64),
            {name: found[name].astype(np.int64) for name in kinds},
            sample["g"].astype(np.int64),
            sample["begins"].astype(np.int64),
            sample["wait_ms"].astype(np.int64),
        )
