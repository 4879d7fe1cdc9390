"""A DuckDB in memory that keeps to its bounds, and texts of ours as literals of SQL."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path

import duckdb

MEMORY_MIB = 512


@contextmanager
def connect(folder: Path | None) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database in memory that keeps to a bounded part of the memory; it spills into the folder if there is one."""
    with duckdb.connect() as database:
        database.execute(f"SET memory_limit = '{MEMORY_MIB}MiB'")
        database.execute("SET preserve_insertion_order = false")
        database.execute("SET enable_progress_bar = false")  # it would stand among the answer
        database.execute("SET temp_directory = ?", ["" if folder is None else str(folder)])
        database.execute("SET TimeZone = 'UTC'")
        yield database


def count(database: duckdb.DuckDBPyConnection, query: str) -> int:
    """The one number that a query asks for."""
    found = database.execute(query).fetchone()
    return int(found[0]) if found else 0


def first_line(error: Exception) -> str:
    """What an error says, without where in the SQL; of the system's errors only the cause."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    message = str(error).splitlines()[0]
    number = re.search(
        r'"errno":"(\d+)"', message
    )  # DuckDB tells it as JSON, after the name of the unfinished file
    return os.strerror(int(number[1])) if number else message


def literal(value: object) -> str:
    """A text as a literal of SQL: for paths and settings of ours, where DuckDB takes no parameters."""
    return "'" + str(value).replace("'", "''") + "'"


def at(path: Path) -> str:
    """A file to read as a literal of SQL, whatever characters its name has."""
    return literal(escape(str(path)))


def read_parquet(paths: Iterable[Path]) -> str:
    """Parquet files as a table that SQL selects from."""
    return f"read_parquet([{', '.join(map(at, paths))}])"


def storable(text: str) -> str:
    """A text of one line that DuckDB can store: other systems' texts may hold line ends and lone surrogates."""
    clean = text if text.isprintable() else text.translate(_BLANKS)
    return clean if clean.isascii() else clean.encode("utf-8", "replace").decode("utf-8")


_BLANKS = dict.fromkeys(map(ord, "\x00\n\r\x1f"), " ")


def quoted_name(name: str) -> str:
    """A column's name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'
