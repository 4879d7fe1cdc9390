"""Rows of a trace in order of submission, whatever the order of the file.

A file of up to 262,144 rows is held and sorted. A longer one is looked through once for its times alone: if
they are in order it is streamed, and only otherwise held as a whole. Jobs submitted at the same time keep the
file's order.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice, pairwise
from operator import itemgetter
from typing import Any

from berth.errors import TraceError
from berth.model import Job
from berth.traces.fields import Limits
from berth.traces.format import Format, RowReader
from berth.traces.formats import open_trace
from berth.traces.job_table import JobTable, columns_of
from berth.traces.table import Block, Table, line_of

_HELD_ROWS = 1 << 18
_Row = tuple[Any, ...]


def job_table(table: Table, entry: Format, limits: Limits, skip_bad: list[TraceError] | None) -> JobTable:
    """The table's jobs by submit time, all read and held as columns; closes the table."""
    with table, entry.prepared(table) as table:
        reader = entry.reader_of(table, limits)
        columns = columns_of(_rows(table, reader, skip_bad))
        origin_ms = columns[0][0] if columns and reader.counts_from_first else 0
        make = reader.job
        return JobTable(columns, lambda row: make(row, origin_ms))


def jobs_in_order(
    table: Table, entry: Format, limits: Limits, skip_bad: list[TraceError] | None, *, file_order: bool
) -> Iterator[Job]:
    """The table's jobs by submit time, or as the file has them; closes the table."""
    with table, entry.prepared(table) as table:
        reader = entry.reader_of(table, limits)
        job = reader.job
        rows = _rows(table, reader, skip_bad)
        first = list(islice(rows, _HELD_ROWS))
        as_it_is = file_order and not reader.counts_from_first
        if len(first) == _HELD_ROWS and (as_it_is or (_sorted(first) and _in_order(table.path, entry))):
            ordered: Iterator[_Row] = chain(first, rows)
            origin_ms = first[0][0]
        else:
            first.extend(rows)
            if file_order:
                origin_ms = min(first, key=itemgetter(0))[0] if first else 0
            else:
                first.sort(key=itemgetter(0))
                origin_ms = first[0][0] if first else 0
            ordered = iter(first)
        if not reader.counts_from_first:
            origin_ms = 0
        for row in ordered:
            yield job(row, origin_ms)


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


def _sorted(rows: list[_Row]) -> bool:
    return all(before[0] <= after[0] for before, after in pairwise(rows))


def _in_order(path: str, entry: Format) -> bool:
    """Whether the whole file is, by a look at its times alone; bad rows are left to the reading."""
    table, _ = open_trace(path, entry)
    with table, entry.prepared(table) as table:
        submit_ms = entry.reader_of(table, Limits()).submit_ms
        last_ms = -1
        for block in table.blocks([]):
            for fields in block.rows:
                try:
                    time_ms = submit_ms(fields)
                except (ValueError, LookupError):
                    continue
                if time_ms < last_ms:
                    return False
                last_ms = time_ms
    return True
