"""What a history knows of the things that a question names, so that a slip is told from an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import duckdb

from berth.history.store.database import quoted_name

LISTED: Final = 20


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that no attempt of the history has."""

    column: str
    """Of a record."""
    value: str
    known: tuple[str, ...]
    """What there is instead, those of most attempts first; at most LISTED of them."""
    more: int
    """How many there are besides."""


def unknown_values(database: duckdb.DuckDBPyConnection, asked: Mapping[str, str]) -> tuple[Unknown, ...]:
    """Which of these values, by column, no attempt of the view `records` has; nothing asked for is no value."""
    found = []
    for column, value in asked.items():
        name = quoted_name(column)
        if (
            not value
            or database.execute(f"SELECT 1 FROM records WHERE {name} = ? LIMIT 1", [value]).fetchone()
        ):
            continue
        rows = database.execute(
            f"SELECT {name} FROM records WHERE {name} <> '' GROUP BY 1 ORDER BY count(*) DESC, 1"
        ).fetchall()
        known = tuple(row[0] for row in rows[:LISTED])
        found.append(Unknown(column, value, known, len(rows) - len(known)))
    return tuple(found)


def most_gpus(database: duckdb.DuckDBPyConnection) -> int:
    """The most GPUs that an attempt of the view `records` had; 0 for no attempt."""
    row = database.execute("SELECT max(gpus) FROM records").fetchone()
    return int(row[0] or 0) if row else 0
