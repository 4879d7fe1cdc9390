"""What a page shows as a file: CSV or Parquet."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import duckdb
from fastapi import HTTPException
from fastapi.responses import StreamingResponse

from berth.files import plain_cell
from berth.history.store.database import literal
from berth.history.store.parquet import ParquetWriter, rows_to_columns

MOST_ROWS: Final = 1_000_000
"""A file of attempts has at most this many rows."""
_PIECE_BYTES: Final = 1 << 18


class Format(StrEnum):
    """How an answer is given."""

    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


def checked(text: str) -> Format:
    """The format of this name, or 422 in words."""
    if text not in list(Format):
        raise HTTPException(422, f"no format={text!r}; there are {', '.join(Format)}")
    return Format(text)


def table_as_file(
    name: str, form: Format, schema: Mapping[str, str], rows: Sequence[Sequence[object]]
) -> StreamingResponse:
    """Rows whose columns have these types of DuckDB, as a file of this name."""
    with tempfile.TemporaryDirectory(prefix="berth-export-") as folder:
        path = Path(folder) / "rows"
        if form is Format.CSV:
            _write_csv(path, list(schema), rows)
        else:
            with ParquetWriter(path, schema) as writer:
                writer.write(rows_to_columns(rows, tuple(schema)))
        return _answer(path, name, form)


def rows_as_file(
    name: str, form: Format, database: duckdb.DuckDBPyConnection, query: str, values: Sequence[Any]
) -> StreamingResponse:
    """All rows of a query, as a file of this name."""
    with tempfile.TemporaryDirectory(prefix="berth-export-") as folder:
        path = Path(folder) / "rows"
        if form is Format.PARQUET:
            database.execute(
                f"COPY ({query}) TO {literal(path)} (FORMAT parquet, COMPRESSION zstd)", list(values)
            )
        else:
            found = database.execute(query, list(values))
            heads = [column[0] for column in found.description]

            def all_rows() -> Iterable[Sequence[object]]:
                while rows := found.fetchmany(4096):
                    yield from rows

            _write_csv(path, heads, all_rows())
        return _answer(path, name, form)


def _write_csv(path: Path, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(heads)
        writer.writerows(
            [plain_cell(value) if isinstance(value, str) else value for value in row] for row in rows
        )


def _answer(path: Path, name: str, form: Format) -> StreamingResponse:
    """The file as an answer, which keeps it open: its name may go, and nothing stays if the reader goes away."""
    file = path.open("rb")

    def pieces() -> Iterator[bytes]:
        with file:
            while piece := file.read(_PIECE_BYTES):
                yield piece

    kinds = {Format.CSV: "text/csv; charset=utf-8", Format.PARQUET: "application/vnd.apache.parquet"}
    return StreamingResponse(
        pieces(),
        media_type=kinds[form],
        headers={
            "Content-Disposition": f'attachment; filename="{name}.{form.value}"',
            "Content-Length": str(path.stat().st_size),
        },
    )
