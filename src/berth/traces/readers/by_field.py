"""A reader of rows that is told its columns: the fields of each, and what a row of their values means.

For formats whose rows are read one at a time. A subclass names its columns, each with what stands in for it
where the file has none, and makes a job of a row's values; where they contradict each other it raises
`Contradiction`, which becomes the TraceError of that line and column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from berth.model import WHOLE_GPU, Job, Share
from berth.traces.fields import Field, Limits
from berth.traces.job_table import submitted_at
from berth.traces.table import Block, Table

_Row = tuple[int, Job]


class Contradiction(ValueError):  # noqa: N818  the name is what one would say
    """The values of a row do not go together: the column at fault, its value, and what was expected."""

    def __init__(self, column: str, value: object, expected: str) -> None:
        super().__init__(expected)
        self.column = column
        self.value = str(value)
        self.expected = expected


class FieldReader:
    """Rows as jobs by a list of columns; a row's tuple is its submit time and its job."""

    counts_from_first = False

    def __init__(self, table: Table, fields: Sequence[tuple[Field[Any], Any]]) -> None:
        """`fields` are the columns in the order of `make`'s arguments, each with its value where the file has
        no such column."""
        at = table.columns
        self._table = table
        self._here = [field for field, _ in fields if field.name in at]
        self._places = [(at.get(field.name), field.remembered(), default) for field, default in fields]
        self._seen: set[str] = set()

    def make(self, *values: Any) -> Job:
        """The job of a row's values, its submit time as the row has it."""
        raise NotImplementedError

    def row(self, fields: list[str]) -> _Row:
        """The row's submit time and job."""
        job = self.make(
            *[default if at is None else known[fields[at]] for at, known, default in self._places]
        )
        if job.id in self._seen:
            raise Contradiction(self.id_column, job.id, "an id that no row above has")
        self._seen.add(job.id)
        return job.submit_ms, job

    id_column = "job_id"
    """Where the id of a job stands."""

    def columns(self, block: Block) -> None:
        """Rows are read one at a time."""

    def diagnose(self, line: int, fields: Sequence[str]) -> None:
        for field in self._here:
            field.check(self._table, line, fields)
        try:
            self.row(list(fields))
        except Contradiction as problem:
            at = self._table.columns.get(problem.column)
            # As the file has it: a moment that was worked out to seconds is not what its reader would look for.
            value = problem.value if at is None else fields[at]
            raise self._table.error(line, problem.expected, column=problem.column, value=value) from None

    def job(self, row: _Row) -> Job:
        submit_ms, job = row
        return job if job.submit_ms == submit_ms else submitted_at(job, submit_ms)


def requested(instances: int, gpus: float, column: str, limits: Limits) -> dict[str, Any]:
    """GPUs, share and nodes of a job of `instances` instances with the same GPUs each."""
    whole = -(-round(gpus * 1000) // 1000)
    if limits.gpus_per_node is not None and whole > limits.gpus_per_node:
        most = limits.gpus_per_node
        raise Contradiction(column, gpus, f"up to {most} GPUs for an instance; no node has more")
    if limits.gpus is not None and whole * instances > limits.gpus:
        raise Contradiction(
            column, gpus, f"up to {limits.gpus} GPUs in all {instances} instances, as the cluster has"
        )
    if not whole:
        return {"gpus": 0, "nodes": instances}
    milli = max(1, round(gpus * 1000 / whole))
    share = WHOLE_GPU if milli == 1000 else Share(milli)
    return {"gpus": whole * instances, "share": share, "nodes": 1 if instances == 1 else 0}
