"""What there are few different values of in a table of jobs, looked up once for each value and not for each row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb

from berth.history.store.database import at
from berth.history.store.parquet import rows_to_columns, typed
from berth.history.store.pseudonyms import PSEUDONYMISED, pseudonym
from berth.history.values.applications import Rules
from berth.history.values.hostlist import expand
from berth.history.values.tres import resources

__all__ = ["applications_of", "hide", "look_up", "on_hosts"]

_LOOKED_UP_AT_ONCE = 50_000


def look_up(
    database: duckdb.DuckDBPyConnection,
    raw: Path,
    rules: Rules,
    tres_names: Mapping[str, str],
    models: Mapping[str, str],
) -> None:
    """Fill the tables `tres`, `hosts` and `apps`, a row for each different value."""
    file = f"read_parquet({at(raw)})"
    _table(
        database,
        "tres",
        ("text", "gpus", "gpu_model", "shards", "cpus", "mem_mib", "a_node", "nodes", "unknown"),
        "VARCHAR, BIGINT, VARCHAR, BIGINT, BIGINT, BIGINT, BIGINT, BIGINT, VARCHAR",
        f"SELECT DISTINCT alloc FROM {file} UNION SELECT DISTINCT req FROM {file}",
        lambda row: (row[0], *resources(row[0], tres_names)),
    )
    _table(
        database,
        "hosts",
        ("text", "names", "gpu_model"),
        "VARCHAR, VARCHAR[], VARCHAR",
        f"SELECT DISTINCT node_list FROM {file}",
        lambda row: (row[0], *on_hosts(row[0], models)),
    )
    applications_of(database, "apps", file, rules)


def applications_of(database: duckdb.DuckDBPyConnection, table: str, source: str, rules: Rules) -> None:
    """Fill a table with the application of each different name, comment and command of a source."""
    _table(
        database,
        table,
        ("name", "comment", "command", "application"),
        "VARCHAR, VARCHAR, VARCHAR, VARCHAR",
        f"SELECT DISTINCT name, comment, command FROM {source}",
        lambda row: (*row, rules.application(row[1], row[0], row[2])),
    )


def hide(database: duckdb.DuckDBPyConnection, source: str, key: bytes) -> None:
    """Fill the table `hidden`, a row for each user, account and name; empty without a key."""
    kinds = PSEUDONYMISED if key else ()
    query = " UNION ALL ".join(f"SELECT DISTINCT '{kind}', {kind} FROM {source}" for kind in kinds)
    _table(
        database,
        "hidden",
        ("kind", "text", "pseudonym"),
        "VARCHAR, VARCHAR, VARCHAR",
        query or "SELECT '', '' WHERE false",
        lambda row: (row[0], row[1], pseudonym(key, row[0], row[1])),
    )


def on_hosts(text: str, models: Mapping[str, str]) -> tuple[str, str]:
    """The names of a list, and the GPU model of the first of them that has a known one."""
    names = _hosts(text)
    return "|".join(names), next((models[name] for name in names if name in models), "")


def _hosts(text: str) -> tuple[str, ...]:
    """The names of a list; none where it cannot be read, for the number of nodes is known all the same."""
    try:
        return tuple(name for name in expand(text) if "|" not in name)
    except ValueError:
        return ()


def _table(
    database: duckdb.DuckDBPyConnection,
    name: str,
    columns: Sequence[str],
    types: str,
    query: str,
    make: Callable[[tuple[Any, ...]], tuple[object, ...]],
) -> None:
    kinds = dict(zip(columns, types.split(", "), strict=True))
    database.execute(f"CREATE TABLE {name} ({', '.join(f'{column} {kinds[column]}' for column in columns)})")
    chosen = ", ".join(typed(column, kinds[column]) for column in columns)
    with database.cursor() as reader:
        found = reader.execute(query)
        while rows := found.fetchmany(_LOOKED_UP_AT_ONCE):
            database.register("chunk", rows_to_columns([make(row) for row in rows], columns))
            database.execute(f"INSERT INTO {name} SELECT {chosen} FROM chunk")
            database.unregister("chunk")
