"""Opens a trace file as the table that its first bytes say it is, the Standard Workload Format among them."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import IO, BinaryIO, Final, cast

from berth.errors import TraceError
from berth.traces.table import Block, CsvTable, ParquetTable, Readable, Table


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


COLUMNS: Final = (
    *("job_number", "submit_time", "wait_time", "run_time", "allocated_processors", "average_cpu_time"),
    *("used_memory_kib", "requested_processors", "requested_time", "requested_memory_kib", "status", "user"),
    *("group", "executable", "queue", "partition", "preceding_job", "think_time"),
)
"""The eighteen fields of a row, by their order in the format's definition."""


def looks_like_swf(beginning: bytes) -> bool:
    """Whether a file that begins so has SWF's comments, or eighteen numbers in its first line."""
    line = beginning.lstrip().split(b"\n", 1)[0]
    if line.startswith(b";"):
        return True
    fields = line.split()
    return len(fields) == len(COLUMNS) and all(
        field.lstrip(b"-").replace(b".", b"", 1).isdigit() for field in fields
    )


class SwfTable(CsvTable):
    """An SWF file; its columns have the format's own names, as there is no header line."""

    def __init__(self, path: str, stream: IO[bytes], *beneath: IO[bytes]) -> None:
        self.path = path
        self.header = COLUMNS
        self._text = io.TextIOWrapper(cast(BinaryIO, stream), "utf-8", errors="surrogateescape")
        self._beneath = beneath
        self._lines_before = 0
        self._plain = []
        above: list[str] = []
        with Readable(path):
            for text in self._text:
                above.append(text)
                if text.strip() and not _is_comment(text):
                    break
        self.comments = tuple(text.strip() for text in above if _is_comment(text))
        rows = chain(above, self._text)
        words = ("" if _is_comment(text) else " ".join(text.split()) for text in rows)
        self._reader = csv.reader(words, delimiter=" ", quoting=csv.QUOTE_NONE)

    def blocks(self, skip_bad: list[TraceError] | None = None) -> Iterator[Block]:
        return self._blocks_by_csv(skip_bad)


def _is_comment(text: str) -> bool:
    return text.lstrip().startswith(";")
