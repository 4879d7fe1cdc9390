"""Rows of a trace in order of submission, whatever the order of the file, or in the order of the file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from berth.errors import TraceError
from berth.traces.fields import Limits
from berth.traces.format import Format, RowReader
from berth.traces.job_table import JobTable, columns_of
from berth.traces.table import Block, Table, line_of

_Row = tuple[Any, ...]


def job_table(
    table: Table,
    entry: Format,
    limits: Limits,
    skip_bad: list[TraceError] | None,
    *,
    file_order: bool = False,
) -> JobTable:
    """The table's jobs by submit time, or as the file has them, all read and held as columns; closes the table."""
    with table, entry.prepared(table) as table:
        reader = entry.reader_of(table, limits)
        columns = columns_of(_rows(table, reader, skip_bad), in_order=not file_order)
        jobs = JobTable(columns, reader.job)
        if not (columns and reader.counts_from_first):
            return jobs
        origin_ms = min(columns[0])
        return jobs.submitted(lambda submit_ms: submit_ms - origin_ms)


def _rows(table: Table, reader: RowReader, skip_bad: list[TraceError] | None) -> Iterator[_Row]:
    width = len(table.header)
    for block in table.blocks(skip_bad):
        try:
            rows = reader.rows(block.rows) if max(map(len, block.rows)) <= width else None
        except (ValueError, LookupError):
            rows = None
        yield from _one_by_one(table, reader, block, skip_bad) if rows is None else rows


def _one_by_one(
    table: Table, reader: RowReader, block: Block, skip_bad: list[TraceError] | None
) -> Iterator[_Row]:
    parse = reader.row
    width = len(table.header)
    for fields, last_line in zip(*block, strict=True):
        try:
            if len(fields) > width and any(fields[width:]):
                raise ValueError(fields)
            yield parse(fields)
        except (ValueError, LookupError):
            if not fields:
                continue
            problem = _problem(table, reader, line_of(fields, last_line), fields)
            if skip_bad is None:
                raise problem from None
            skip_bad.append(problem)


def _problem(table: Table, reader: RowReader, line: int, fields: list[str]) -> TraceError:
    """What is wrong with a row that the reader refused."""
    width = len(table.header)
    if len(fields) > width:
        return table.error(line, f"{width} columns, as the header has", value=",".join(fields))
    try:
        reader.diagnose(line, fields)
    except TraceError as problem:
        return problem
    return table.error(line, "a row that can be read", value=",".join(fields))
