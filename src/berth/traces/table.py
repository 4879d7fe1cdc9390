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
from typing import IO, TYPE_CHECKING, BinaryIO, cast

from berth.errors import TraceError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_BLOCK_ROWS = 8192
_SHOWN = 300
_NEWLINE = re.compile("\r\n|\r|\n")
_DIGITS = 18
"""A number of at most this many digits has 64 bits."""


class Block(ABC):
    """Some rows that follow each other."""

    last_lines: Sequence[int]
    """The line on which each ends; the first line of a file is 1."""

    @property
    @abstractmethod
    def rows(self) -> list[list[str]]:
        """The fields of each; none for a blank line."""

    @abstractmethod
    def is_even(self, width: int) -> bool:
        """Whether every row has this many fields, so that there are columns."""

    @abstractmethod
    def texts(self, column: int) -> Sequence[str]:
        """The field of each row in this column."""

    def whole_numbers(self, column: int) -> NDArray[np.int64] | None:
        """The numbers in this column; None where one is not of 1 to 18 digits alone."""
        import numpy as np  # commands that read no trace start without it

        texts = self.texts(column)
        digits = "".join(texts)
        if digits.isascii() and digits.isdigit() and all(texts) and max(map(len, texts)) <= _DIGITS:
            return np.fromiter(map(int, texts), np.int64, len(texts))
        return None


class RowBlock(Block):
    """Rows that were read one by one."""

    def __init__(self, rows: list[list[str]], last_lines: Sequence[int]) -> None:
        self._rows, self.last_lines = rows, last_lines

    @property
    def rows(self) -> list[list[str]]:
        return self._rows

    def is_even(self, width: int) -> bool:
        return {*map(len, self._rows)} == {width}

    def texts(self, column: int) -> Sequence[str]:
        return self._columns[column]

    @cached_property
    def _columns(self) -> list[tuple[str, ...]]:
        return list(zip(*self._rows, strict=True))


class PlainBlock(Block):
    """Lines without quotes, all with the same number of fields, whose ends are found in one pass.

    A million rows of four columns take 0.5 s so, and 1.7 s through `csv`: readers of a long trace feel it.
    """

    def __init__(self, text: str, data: NDArray[np.uint8], ends: NDArray[np.int64], first_line: int) -> None:
        self._text = text
        self._data = data  # (B,), the same in bytes
        self._ends = ends  # (rows, width), where each field ends
        self.last_lines = range(first_line, first_line + len(ends))

    @classmethod
    def of(cls, lines: list[str], width: int, first_line: int) -> PlainBlock | None:
        """The block of these lines; None where some have quotes, or another number of fields."""
        import numpy as np

        text = "".join(lines).replace("\r\n", "\n")
        if '"' in text or "\r" in text or width < 2:
            return None
        if not text.endswith("\n"):
            text += "\n"
        data = np.frombuffer(text.encode("utf-8", "surrogateescape"), np.uint8)
        ends = np.flatnonzero((data == ord(",")) | (data == ord("\n")))
        if len(ends) != len(lines) * width or np.diff(ends, prepend=-1).max() > csv.field_size_limit():
            return None
        if (data[ends[width - 1 :: width]] != ord("\n")).any():
            return None  # else no other column has one: there are as many as lines
        return cls(text, data, ends.reshape(-1, width), first_line)

    @property
    def rows(self) -> list[list[str]]:
        return [line.split(",") for line in self._text.split("\n")[:-1]]

    def is_even(self, width: int) -> bool:
        return len(self._ends.T) == width

    def texts(self, column: int) -> Sequence[str]:
        return self._fields[column : self._ends.size : self._ends.shape[1]]

    @cached_property
    def _fields(self) -> list[str]:
        return self._text.replace("\n", ",").split(",")

    def whole_numbers(self, column: int) -> NDArray[np.int64] | None:
        import numpy as np

        ends = self._ends[:, column]
        before = self._ends[:, column - 1] if column else np.append(-1, self._ends[:-1, -1])
        lengths = ends - before - 1
        longest = int(lengths.max())
        if not lengths.min() or longest > _DIGITS:
            return None
        numbers = np.zeros(len(ends), np.int64)
        for place in range(longest, 0, -1):
            digits = self._data[np.maximum(ends - place, 0)] - np.uint8(ord("0"))  # wraps below "0"
            digits[lengths < place] = 0
            if digits.max() > 9:
                return None
            numbers *= 10
            numbers += digits
        return numbers


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
            rows = zip(block.rows, block.last_lines, strict=True)
            yield from ((line_of(*row), row[0]) for row in rows if row[0])

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
        self._plain: list[str] = []
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
        self._lines: Iterator[str] = self._text
        if named and self.header != named:
            self.header, self.header_line = named, None
            self._lines_before -= 1
            self._lines = chain([first], self._text)
        self._reader = csv.reader(self._lines, strict=True)

    def close(self) -> None:
        self._text.close()
        for stream in self._beneath:
            stream.close()

    def blocks(self, skip_bad: list[TraceError] | None = None) -> Iterator[Block]:
        problem: TraceError | None = None
        while problem is None:
            self._lines_before += len(self._plain)
            self._plain = []
            try:
                with Readable(self.path, self):
                    self._plain.extend(islice(self._lines, _BLOCK_ROWS))  # those before an error stay
            except TraceError as error:
                problem = error
            if not self._plain and problem is None:
                return
            block = PlainBlock.of(self._plain, len(self.header), self._lines_before + 1)
            if block is None:
                lines, self._plain = self._plain, []
                self._reader = csv.reader(_onwards(lines, problem, self._lines), strict=True)
                yield from self._blocks_by_csv(skip_bad)
                return
            yield block
        if skip_bad is None:
            raise problem
        skip_bad.append(problem)

    def _blocks_by_csv(self, skip_bad: list[TraceError] | None) -> Iterator[Block]:
        """The remaining rows, read by `csv`: some have quotes, are blank or have another number of fields."""
        reader = self._reader
        while True:
            before = self.last_line
            rows: list[list[str]] = []
            problem, whole = None, True
            try:
                with Readable(self.path, self):
                    rows.extend(islice(reader, _BLOCK_ROWS))  # those before an error stay
            except csv.Error as error:
                why = "a quote in it never closes" if "unexpected end" in str(error) else error
                begins = before + sum(1 + _line_ends(fields) for fields in rows) + 1
                problem = TraceError(self.path, f"a well-formed CSV row ({why})", line=begins)
            except TraceError as error:
                problem, whole = error, False
            if rows:
                yield RowBlock(rows, _last_lines(rows, before, self.last_line))
            if problem is not None:
                if skip_bad is None:
                    raise problem
                skip_bad.append(problem)
            if not whole or (problem is None and len(rows) < _BLOCK_ROWS):
                return

    @property
    def last_line(self) -> int:
        """The line that was read last."""
        return self._lines_before + len(self._plain) + self._reader.line_num


def _onwards(lines: list[str], problem: TraceError | None, more: Iterator[str]) -> Iterator[str]:
    """Lines that were read already, and those behind them or what is wrong there."""
    yield from lines
    if problem is not None:
        raise problem
    yield from more


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
                yield RowBlock([list(row) for row in chunk], range(line + 1, line + len(chunk) + 1))
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
