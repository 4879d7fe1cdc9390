"""What there are few different values of in a table of jobs, looked up once for each value and not for each row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import duckdb

from berth.history.store.database import make_table
from berth.history.store.pseudonyms import PSEUDONYMISED, pseudonym
from berth.history.values.applications import Rules
from berth.history.values.hostlist import expand
from berth.history.values.tres import NO_RESOURCES, resources

_LOOKED_UP_AT_ONCE = 50_000
LOOKUPS: Final = {
    "tres": {
        "text": "VARCHAR",
        **{
            name: "VARCHAR" if isinstance(value, str) else "BIGINT"
            for name, value in NO_RESOURCES._asdict().items()
        },
    },
    "hosts": {"text": "VARCHAR", "names": "VARCHAR[]", "gpu_model": "VARCHAR"},
    "hidden": {"kind": "VARCHAR", "text": "VARCHAR", "pseudonym": "VARCHAR"},
}
"""The columns of each table of lookups but those of applications."""
_APPLICATIONS: Final = dict.fromkeys(("name", "comment", "command", "application"), "VARCHAR")


def look_up(
    database: duckdb.DuckDBPyConnection, rows: str, tres_names: Mapping[str, str], models: Mapping[str, str]
) -> None:
    """Fill the tables `tres` and `hosts`, a row for each different text in `rows`, a relation of SQL."""
    _look_up_each(
        database,
        "tres",
        f"SELECT DISTINCT alloc FROM {rows} UNION SELECT DISTINCT req FROM {rows}",
        lambda row: (row[0], *resources(row[0], tres_names)),
    )
    _look_up_each(
        database,
        "hosts",
        f"SELECT DISTINCT node_list FROM {rows}",
        lambda row: (row[0], *hosts_row(host_names(row[0]), models)),
    )


def applications_of(database: duckdb.DuckDBPyConnection, table: str, source: str, rules: Rules) -> None:
    """Fill a table with the application of each different name, comment and command of a source."""
    _look_up_each(
        database,
        table,
        f"SELECT DISTINCT name, comment, command FROM {source}",
        lambda row: (*row, rules.application(row[1], row[0], row[2])),
    )


def hide(database: duckdb.DuckDBPyConnection, source: str, key: bytes) -> None:
    """Fill the table `hidden`, a row for each user, account and name; empty without a key."""
    kinds = PSEUDONYMISED if key else ()
    query = " UNION ALL ".join(f"SELECT DISTINCT '{kind}', {kind} FROM {source}" for kind in kinds)
    _look_up_each(
        database,
        "hidden",
        query or "SELECT '', '' WHERE false",
        lambda row: (row[0], row[1], pseudonym(key, row[0], row[1])),
    )


def hosts_row(names: Sequence[str], models: Mapping[str, str]) -> tuple[str, str]:
    """The names of nodes as one text, and the GPU model of the first of them that has a known one."""
    return "|".join(names), next((models[name] for name in names if name in models), "")


def host_names(text: str) -> tuple[str, ...]:
    """The names of a list; none if it cannot be read, since the number of nodes is known all the same."""
    try:
        return tuple(name for name in expand(text) if "|" not in name)
    except ValueError:
        return ()


def _look_up_each(
    database: duckdb.DuckDBPyConnection,
    name: str,
    query: str,
    make: Callable[[tuple[Any, ...]], tuple[object, ...]],
) -> None:
    """Make a table with what `make` gives for each row of a query."""
    with database.cursor() as reader:
        found = reader.execute(query)
        rows = chain.from_iterable(iter(lambda: found.fetchmany(_LOOKED_UP_AT_ONCE), []))
        make_table(database, name, LOOKUPS.get(name, _APPLICATIONS), map(make, rows))
