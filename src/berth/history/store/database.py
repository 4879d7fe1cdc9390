"""A DuckDB in memory that keeps to its bounds, texts of ours as literals of SQL, and writers of files and tables.

`ParquetWriter`, `write_rows` and `add_rows` write columns or rows to one Parquet file or table a chunk at a time,
through DuckDB and with NumPy alone. A file is written aside, under its name with `.part` after it, and renamed when it
is whole: a reader that finds it under its name can read it. A file of one chunk is written at once; the chunks of a
longer one go to a folder beside it first, so that memory stays bounded by the chunk.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from glob import escape
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import duckdb

from berth.errors import HistoryError

if TYPE_CHECKING:  # what only reads, such as `berth job`, needs no NumPy
    from numpy.typing import NDArray

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


@contextmanager
def named_errors(where: object) -> Iterator[None]:
    """What DuckDB raises within becomes a HistoryError that says where."""
    try:
        yield
    except duckdb.Error as error:
        raise HistoryError(f"{where}: {first_line(error)}") from error


@contextmanager
def readable(where: object) -> Iterator[None]:
    """What the system raises within becomes a HistoryError of what cannot be read."""
    try:
        yield
    except OSError as error:
        raise HistoryError(f"{where} cannot be read: {first_line(error)}") from error


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


def read_parquet(paths: Iterable[Path], schema: Mapping[str, str] | None = None) -> str:
    """Parquet files as a table that SQL selects from; without files, an empty table with the columns of `schema`."""
    files = ", ".join(map(at, paths))
    if files or schema is None:
        return f"read_parquet([{files}])"
    none = ", ".join(f"NULL::{kind} AS {quoted_name(name)}" for name, kind in schema.items())
    return f"(SELECT {none} WHERE false)"


def storable(text: str) -> str:
    """A text of one line that DuckDB can store: other systems' texts may hold line ends and lone surrogates."""
    clean = text if text.isprintable() else text.translate(_BLANKS)
    return clean if clean.isascii() else clean.encode("utf-8", "replace").decode("utf-8")


_BLANKS = dict.fromkeys(map(ord, "\x00\n\r\x1f"), " ")


def quoted_name(name: str) -> str:
    """A column's name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


_COPY = "(FORMAT parquet, COMPRESSION zstd)"


def copy_rows(database: duckdb.DuckDBPyConnection, query: str, target: Path, how: str = _COPY) -> None:
    """Write the rows of a query to a Parquet file; without rows there is no file."""
    written = database.execute(f"COPY ({query}) TO {literal(target)} {how}").fetchone()
    if not written or not written[0]:
        target.unlink(missing_ok=True)


_CHUNK_ROWS = 50_000


class ParquetWriter:
    """Writes one Parquet file of a fixed schema; a context manager that leaves no file behind where it
    fails."""

    def __init__(self, path: str | Path, schema: Mapping[str, str]) -> None:
        self.path = Path(path)
        self._select = ", ".join(typed(name, kind) for name, kind in schema.items())
        self._schema = schema
        self._temporary = self.path.with_name(self.path.name + ".part")
        self._folder: Path | None = None
        self._waiting: dict[str, NDArray[Any]] | None = None
        self._spilled: list[Path] = []
        self._database = duckdb.connect()

    def write(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Add rows: for each column of the schema an array (N,); masked or None where there is no value."""
        if self._waiting is not None:
            self._spill(self._waiting)
        self._waiting = dict(columns)

    def __enter__(self) -> ParquetWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._database.close()
            self._temporary.unlink(missing_ok=True)
            if self._folder is not None:
                import shutil

                shutil.rmtree(self._folder, ignore_errors=True)

    def _finish(self) -> None:
        import numpy as np

        last = self._waiting
        if last is None:
            last = {name: np.empty(0, dtype=object) for name in self._schema}
        if not self._spilled:
            self._copy(last, self._temporary)
        else:
            self._spill(last)
            self._run(f"COPY (FROM {read_parquet(self._spilled)}) TO {literal(self._temporary)} {_COPY}")
        try:
            self._temporary.replace(self.path)
        except OSError as error:
            raise HistoryError(f"{self.path} cannot be written: {error.strerror or error}") from error

    def _spill(self, columns: Mapping[str, NDArray[Any]]) -> None:
        if self._folder is None:
            from tempfile import mkdtemp  # here, as shutil above, because `berth job` does without it

            self._folder = Path(mkdtemp(prefix=f".{self.path.name}.", dir=self.path.parent))
        chunk = self._folder / f"{len(self._spilled):06d}.parquet"
        self._copy(columns, chunk)
        self._spilled.append(chunk)

    def _copy(self, columns: Mapping[str, NDArray[Any]], to: Path) -> None:
        self._database.register("chunk", dict(columns))
        self._run(f"COPY (SELECT {self._select} FROM chunk) TO {literal(to)} {_COPY}")
        self._database.unregister("chunk")

    def _run(self, statement: str) -> None:
        try:
            self._database.execute(statement)
        except duckdb.Error as error:
            raise HistoryError(f"{self.path} cannot be written: {first_line(error)}") from error


def write_rows(path: Path, schema: Mapping[str, str], rows: Iterable[Sequence[object]]) -> None:
    """Write rows, their values in the order of the schema, to a Parquet file."""
    remaining = iter(rows)
    with ParquetWriter(path, schema) as writer:
        while chunk := list(islice(remaining, _CHUNK_ROWS)):
            writer.write(rows_to_columns(chunk, tuple(schema)))


def make_table(
    database: duckdb.DuckDBPyConnection,
    name: str,
    schema: Mapping[str, str],
    rows: Iterable[Sequence[object]] = (),
) -> None:
    """Make a table of this schema, in the place of one of that name, with rows in the order of its columns."""
    columns = ", ".join(f'"{column}" {kind}' for column, kind in schema.items())
    database.execute(f"CREATE OR REPLACE TABLE {name} ({columns})")
    add_rows(database, name, schema, rows)


def add_rows(
    database: duckdb.DuckDBPyConnection,
    name: str,
    schema: Mapping[str, str],
    rows: Iterable[Sequence[object]],
) -> None:
    """Add rows to a table of this schema."""
    chosen = ", ".join(typed(column, kind) for column, kind in schema.items())
    remaining = iter(rows)
    while chunk := list(islice(remaining, _CHUNK_ROWS)):
        database.register("chunk", rows_to_columns(chunk, tuple(schema)))
        database.execute(f"INSERT INTO {name} SELECT {chosen} FROM chunk")
        database.unregister("chunk")


def rows_to_columns(rows: Sequence[Sequence[object]], names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Rows (N) as an array (N,) for each column: of whole numbers, masked if there is none, or of objects."""
    return {name: _column([row[index] for row in rows]) for index, name in enumerate(names)}


def _column(values: list[object]) -> NDArray[Any]:
    import numpy as np

    kinds = set(map(type, values))
    if int in kinds and kinds <= {int, type(None)}:
        # Of objects DuckDB looks at some, and takes a column of small numbers for one without large ones.
        filled: list[Any] = [0 if value is None else value for value in values]
        with contextlib.suppress(OverflowError):
            return np.ma.masked_array(
                np.array(filled, dtype=np.int64),
                [value is None for value in values] if None in values else False,
            )
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def typed(name: str, kind: str) -> str:
    """The column as its type; a list comes as one text, split by `|`."""
    if kind == "VARCHAR[]":
        return (
            f"""CASE WHEN "{name}" = '' THEN [] ELSE string_split("{name}"::VARCHAR, '|') END AS "{name}\""""
        )
    return f'"{name}"::{kind} AS "{name}"'
