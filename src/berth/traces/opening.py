"""Opens a trace file as the table that its first bytes say it is."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import IO, cast

from berth.errors import TraceError
from berth.traces.swf_table import SwfTable, looks_like_swf
from berth.traces.table import CsvTable, ParquetTable, Readable, Table


def open_table(path: str) -> Table:
    """Open a trace file up to the end of its header; a TraceError where there is none that can be read.

    A folder is a Parquet table in parts, such as `day=0/hour=00/part-000.parquet`, whose names are columns too.
    """
    if Path(path).is_dir():
        if next(Path(path).rglob("*.parquet"), None) is None:
            raise TraceError(path, "a file, or a folder with Parquet files in it")
        return ParquetTable(path, parts="/**/*.parquet")
    try:
        stream = Path(path).open("rb")  # noqa: SIM115  the table closes it
        magic = stream.read(4)
        stream.seek(0)
    except OSError as error:
        raise TraceError.unreadable(path, error) from error
    if magic == b"PAR1":
        stream.close()
        return ParquetTable(path)
    try:
        if magic[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise TraceError(path, "text in UTF-8, but the file begins as UTF-16 does", line=1)
        opened: IO[bytes] = stream
        beneath: tuple[IO[bytes], ...] = ()
        if magic[:2] == b"\x1f\x8b":
            opened, beneath = cast(IO[bytes], gzip.GzipFile(fileobj=stream)), (stream,)
        with Readable(path):
            beginning = cast(io.BufferedReader, opened).peek(4096)
        if looks_like_swf(beginning):
            return SwfTable(path, opened, *beneath)
        return CsvTable(path, opened, *beneath, named=_header_file(path))
    except BaseException:
        stream.close()
        raise


def _header_file(path: str) -> tuple[str, ...]:
    """The names of the columns, from `NAME.header` beside `NAME.csv`; none where there is no such file."""
    header_file = Path(path).parent / (Path(path).name.partition(".")[0] + ".header")
    if not header_file.is_file():
        return ()
    return tuple(name.strip() for name in header_file.read_text("utf-8").strip().split(","))
