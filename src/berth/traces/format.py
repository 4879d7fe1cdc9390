"""What a format of traces is: its columns, and the reader that turns its rows into jobs.

A reader is a class `Reader(table, limits)` with the five members of `RowReader`. It is named by an import
string, so that a command that reads no trace imports none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from berth.errors import TraceError
from berth.model import Job, Node
from berth.traces.fields import Limits
from berth.traces.job_table import Values
from berth.traces.table import Block, Table


class RowReader(Protocol):
    """Turns a table's rows into jobs, in two steps, so that what waits to be sorted stays small."""

    counts_from_first: bool
    """Whether times count from the earliest submission of the file."""

    def row(self, fields: list[str]) -> tuple[Any, ...]:
        """A valid row as a tuple that begins with its submit time, else ValueError or LookupError."""

    def columns(self, block: Block) -> Sequence[Values] | None:
        """The columns of the tuples of many rows of even length, where that is faster, or None; leaves no trace where
        it raises ValueError or LookupError."""

    def diagnose(self, line: int, fields: Sequence[str]) -> None:
        """Raise the TraceError of the row on this line, which `row` refused."""

    @property
    def job(self) -> Callable[[tuple[Any, ...]], Job]:
        """Makes the job of a row, whose submit time may have been changed since; FromFields, where a row has values of
        fields."""


@dataclass(frozen=True)
class Format:
    """A kind of trace file, and where its reader is."""

    name: str
    summary: str
    header: tuple[str, ...]
    """The columns that tell this format from the others and that every file of it has."""
    more: tuple[str, ...]
    """Columns that are read where they are there."""
    reader: str
    """Import string of the RowReader."""
    nodes: str | None = None
    """Import string of a function from the file's table to the cluster that the trace brings, or None."""
    prepare: str | None = None
    """Import string of a function from the file's table to the one that the reader reads."""

    def reader_of(self, table: Table, limits: Limits) -> RowReader:
        reader: RowReader = _imported(self.reader)(table, limits)
        return reader

    def nodes_of(self, table: Table) -> tuple[Node, ...] | None:
        """The cluster that the trace brings; reads nothing below the table's header."""
        if self.nodes is None:
            return None
        found: tuple[Node, ...] | None = _imported(self.nodes)(table)
        return found

    def prepared(self, table: Table) -> Table:
        """The table that the reader reads, in place of that of the file."""
        if self.prepare is None:
            return table
        found: Table = _imported(self.prepare)(table)
        return found

    def check(self, table: Table) -> None:
        """Raise TraceError where the file has another header than when this format was recognised."""
        if not set(table.header).issuperset(self.header):
            raise TraceError(
                table.path,
                f"the columns of '{self.name}', as it had when it was looked up; look it up again",
                line=table.header_line,
                value=table.header_text,
            )


def _imported(where: str) -> Any:
    module, _, name = where.partition(":")
    return getattr(import_module(module), name)
