"""The rows of a trace file with their line numbers, from CSV (plain or gzip) and from Parquet alike.

What kind of file it is shows in its first bytes, never in its name. Every field is a text, whatever the file;
a NULL is an empty one. Bytes that are not UTF-8 pass as lone surrogates, so that the field they are in can be
named.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from glob import escape
from itertools import accumulate, chain, islice
from typing import IO, BinaryIO, NamedTuple, cast

from berth.errors import TraceError

_BLOCK_ROWS = 2048
_SHOWN = 300
_NEWLINE = re.compile("\r\n|\r|\n")


class Block(NamedTuple):
    """Some rows that follow each other."""

    rows: list[list[str]]
    """The fields of each; none for a blank line."""
    last_lines: Sequence[int]
    """The line on which each ends; the first line of a file is 1."""


def line_of(fields: Sequence[str], last_line: int) -> int:
    """The line on which a row begins: a quoted field may hold line ends."""
    return last_line - _line_ends(fields)


def _line_ends(fields: Sequence[str]) -> int:
    return sum(len(_NEWLINE.findall(field)) for field in fields)


class Table(ABC):
    """An open trace file: its header, its rows and where they are."""

    path: str
    header: tuple[str, ...]
    header_line: int | None = None

    @cached_property
    def columns(self) -> dict[str, int]:
        """Where each column is; the first of a name that comes twice."""
        return {name: index for index, name in reversed(list(enumerate(self.header)))}

    @property
    def header_text(self) -> str:
        """The header to show in a message, cut where it is long, as that of a file of another kind may be."""
        text = ", ".join(self.header)
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"

    @abstractmethod
    def blocks(self, skip_bad: list[TraceError] | None = None) -> Iterator[Block]:
        """All rows in order, some at a time. What cannot be read is raised, or listed in `skip_bad`."""

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Each row's line and fields; blank lines are left out."""
        for block in self.blocks():
            yield from ((line_of(*row), row[0]) for row in zip(*block, strict=True) if row[0])

    @abstractmethod
    def close(self) -> None:
        """Close the file."""

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def error(
        self, line: int, expected: str, *, column: str | None = None, value: str | None = None
    ) -> TraceError:
        """What is wrong with the row on this line."""
        return TraceError(self.path, expected, line=line, column=column, value=value)


class CsvTable(Table):
    """A CSV file. Lines that begin with `#` before the header are comments; blank lines count but say
    nothing.

    Where a file beside it, of the same name but ending on `.header`, has the names of its columns, it may have
    no header line of its own.
    """

    def __init__(
        self, path: str, stream: IO[bytes], *beneath: IO[bytes], named: tuple[str, ...] = ()
    ) -> None:
        self.path = path
        self._text = io.TextIOWrapper(
            cast(BinaryIO, stream), "utf-8-sig", errors="surrogateescape", newline=""
        )
        self._beneath = beneath
        self._lines_before = 0
        self.header = ()
        comments: list[str] = []
        first = ""
        with Readable(path):
            for line in self._text:
                self._lines_before += 1
                if line.startswith("#"):
                    comments.append(line.strip())
                elif line.strip():
                    first = line
                    self.header = tuple(name.strip() for name in next(csv.reader([line])))
                    break
        self.comments = tuple(comments)
        """Those above the header."""
        if not self.header:
            raise TraceError(path, "a header line with rows below it, but the file is empty")
        self.header_line = self._lines_before
        rows: Iterator[str] = self._text
        if named and self.header != named:
            self.header, self.header_line = named, None
            self._lines_before -= 1
            rows = chain([first], self._text)
        self._reader = csv.reader(rows, strict=True)

    def close(self) -> None:
        self._text.close()
        for stream in self._beneath:
            stream.close()

    def blocks(self, skip_bad: list[TraceError] | None = None) -> Iterator[Block]:
        reader = self._reader
        while True:
            before = self.last_line
            rows: list[list[str]] = []
            problem, whole = None, True
            try:
                with Readable(self.path, self):
                    rows.extend(islice(reader, _BLOCK_ROWS))  # those before an error stay
            except csv.Error as error:
                problem = TraceError(self.path, f"a well-formed CSV row ({error})", line=self.last_line)
            except TraceError as error:
                problem, whole = error, False
            if rows:
                yield Block(rows, _last_lines(rows, before, self.last_line))
            if problem is not None:
                if skip_bad is None:
                    raise problem
                skip_bad.append(problem)
            if not whole or (problem is None and len(rows) < _BLOCK_ROWS):
                return

    @property
    def last_line(self) -> int:
        """The line that was read last."""
        return self._lines_before + self._reader.line_num


def _last_lines(rows: list[list[str]], before: int, after: int) -> Sequence[int]:
    """The line on which each of some rows ends, that stand behind line `before` and up to line `after`."""
    if after - before == len(rows):
        return range(before + 1, after + 1)
    return list(accumulate((1 + _line_ends(fields) for fields in rows), initial=before))[1:]


class ParquetTable(Table):
    """A Parquet file or those of a folder, or what a query makes of them, read in chunks. A list is one text, joined by
    `|`.

    Its first row counts as line 2, as if there were a header above it.
    """

    def __init__(self, path: str, parts: str = "") -> None:
        import duckdb

        self.path = path
        self._query = "SELECT * FROM read_parquet(?)"
        self._pattern = escape(path) + parts
        self._database = duckdb.connect()
        try:
            self._describe()
        except TraceError:
            self._database.close()
            raise

    def through(self, query: str) -> ParquetTable:
        """This table as what a query makes of the file."""
        self._query = query
        self._describe()
        return self

    def _describe(self) -> None:
        import duckdb

        try:
            columns = self._database.execute(f"DESCRIBE {self._query}", [self._pattern]).fetchall()
        except duckdb.Error as error:
            raise self._damaged(error, None) from error
        self._kinds = {str(column[0]): str(column[1]) for column in columns}
        self.header = tuple(self._kinds)

    def close(self) -> None:
        self._database.close()

    def blocks(self, skip_bad: list[TraceError] | None = None) -> Iterator[Block]:
        import duckdb

        texts = ", ".join(_as_text(name, kind) for name, kind in self._kinds.items())
        line = 1
        try:
            chosen = self._database.execute(f"SELECT {texts} FROM ({self._query})", [self._pattern])
            while chunk := chosen.fetchmany(_BLOCK_ROWS):
                yield Block([list(row) for row in chunk], list(range(line + 1, line + len(chunk) + 1)))
                line += len(chunk)
        except duckdb.Error as error:
            problem = self._damaged(error, line + 1)
            if skip_bad is None:
                raise problem from error
            skip_bad.append(problem)

    def _damaged(self, error: Exception, line: int | None) -> TraceError:
        return TraceError(self.path, f"a whole Parquet file ({str(error).splitlines()[0]})", line=line)


def _as_text(name: str, kind: str) -> str:
    quoted = '"' + name.replace('"', '""') + '"'
    text = f"array_to_string({quoted}, '|')" if kind.endswith("[]") else f"{quoted}::VARCHAR"
    return f"coalesce({text}, '')"


class Readable:
    """Turns what can go wrong while a file is read into a TraceError."""

    def __init__(self, path: str, table: CsvTable | None = None) -> None:
        self._path = path
        self._table = table

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        line = None if self._table is None else self._table.last_line + 1
        if isinstance(error, EOFError | zlib.error | gzip.BadGzipFile):
            expected = f"a whole gzip file, but it is cut short or damaged ({error})"
            raise TraceError(self._path, expected, line=line) from error
        if isinstance(error, OSError):
            raise TraceError.unreadable(self._path, error, line) from error
