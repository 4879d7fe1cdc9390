"""A table of any columns as jobs: `--map id=job_name,submit=submitted,run=seconds,gpus=cards`.

Times are seconds or days and times (`2026-11-22 08:30:00`, `2026-11-22T08:30:00`), all of one kind in a file, and count
from the earliest submission. A job runs for `run`, or from `start` to `end`. GPUs may be a part of one, such as 0.5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from berth.errors import SettingError
from berth.model import FOREVER_MS, Job, Share
from berth.traces.fields import (
    Field,
    Limits,
    amount,
    decimal,
    integer,
    names,
    optional_seconds,
    seconds,
    text,
)
from berth.traces.format import Format
from berth.traces.readers.by_field import Contradiction, FieldReader
from berth.traces.table import Table

PREFIX: Final = "map:"
FIELDS: Final = {
    "id": "text that no other row has; needed",
    "submit": "when it was submitted; needed",
    "run": "how long it runs, s",
    "start": "when it started",
    "end": "when it ended",
    "user": "text",
    "application": "text: jobs of one behave alike",
    "virtual_cluster": "text: queue, partition or account",
    "gpus": "number, also a part of one; 1 by default",
    "gpu_mem_gib": "memory of each GPU that it needs, GiB",
    "nodes": "whole number; as few as will hold it by default",
    "cpus": "number of CPU cores",
    "mem_gib": "memory of the node, GiB",
    "model": "GPU models that it may use, split by |",
    "priority": "whole number",
    "time_limit": "what the user asked for, s",
    "estimate": "what the user expects, s",
}
"""What a map may name, and what stands in such a column."""


def spec_of(columns: str | Mapping[str, str]) -> str:
    """The format that these columns make, `map:FIELD=COLUMN,…`. Raises SettingError for an impossible map."""
    parts = columns.split(",") if isinstance(columns, str) else [f"{k}={v}" for k, v in columns.items()]
    found: dict[str, str] = {}
    for part in parts:
        field, equals, column = part.strip().partition("=")
        if not equals or field not in FIELDS or not column:
            raise SettingError(
                f"--map '{part.strip()}'; expected FIELD=COLUMN with a field of {', '.join(FIELDS)}"
            )
        if field in found:
            raise SettingError(f"--map names the column of {field} twice: {found[field]} and {column}")
        if "," in column:  # only a mapping can have it
            raise SettingError(
                f"the column '{column}' for {field} has a comma in its name; rename it in the table"
            )
        found[field] = column
    lacking = [name for name in ("id", "submit") if name not in found]
    if "run" not in found and not {"start", "end"} <= found.keys():
        lacking.append("run (or start and end)")
    if lacking:
        raise SettingError(
            f"--map names no column for {', '.join(lacking)}; a job needs id, submit, and run or start and end"
        )
    return PREFIX + ",".join(f"{field}={column}" for field, column in found.items())


@dataclass(frozen=True)
class MappedFormat(Format):
    """The format of a table whose columns were named by hand."""

    columns: tuple[tuple[str, str], ...] = ()

    def reader_of(self, table: Table, limits: Limits) -> MappedReader:
        return MappedReader(table, limits, dict(self.columns))

    def check(self, table: Table) -> None:
        for field, column in self.columns:
            if column not in table.header:
                raise table.error(
                    table.header_line or 1,
                    f"a column '{column}' for {field}, as --map says; there are {table.header_text}"
                    f"{_split_otherwise(table.header)}",
                )


def _split_otherwise(header: Sequence[str]) -> str:
    """A hint where the whole header was read as one column because commas do not split it."""
    marks = {"\t": "tabs (a TSV file)", ";": "semicolons", "|": "'|'"}
    for mark, said in marks.items() if len(header) == 1 else ():
        if mark in header[0]:
            return f". Its columns are split by {said}, and a trace's by commas: save it as CSV"
    return ""


def mapped_format(spec: str) -> MappedFormat:
    """The format of a spec of `spec_of`."""
    pairs = [part.partition("=") for part in spec.removeprefix(PREFIX).split(",")]
    columns = tuple((field, column) for field, _, column in pairs)
    return MappedFormat(
        spec,
        "columns that --map names, one row a job",
        tuple(column for _, column in columns),
        (),
        "",
        columns=columns,
    )


class MappedReader(FieldReader):
    """Rows of such a table."""

    counts_from_first = True

    def __init__(self, table: Table, limits: Limits, columns: Mapping[str, str]) -> None:
        self._columns = columns
        self._limits = limits

        def at(field: str) -> str:
            return columns.get(field, f"--map {field}")  # no column has such a name

        fields: list[tuple[Field[Any], Any]] = [
            (text(at("id"), empty=False), None),
            (_moment(at("submit")), None),
            (seconds(at("run")), None),
            (_moment(at("start")), None),
            (_moment(at("end")), None),
            (text(at("user")), ""),
            (text(at("application")), ""),
            (text(at("virtual_cluster")), ""),
            (decimal(at("gpus")).or_else(1.0), 1.0),
            (decimal(at("gpu_mem_gib")).or_else(0.0), 0.0),
            (amount(at("nodes")), None),
            (decimal(at("cpus")).or_else(0.0), 0.0),
            (decimal(at("mem_gib")).or_else(0.0), 0.0),
            (names(at("model"), among=limits.models, what="GPU models"), ()),
            (integer(at("priority")).or_else(0), 0),
            (optional_seconds(at("time_limit")), None),
            (optional_seconds(at("estimate")), None),
        ]
        super().__init__(table, fields, at("submit"))
        self.id_column = columns["id"]

    def make(self, *values: Any) -> Job:
        (
            job_id,
            submit_ms,
            run_ms,
            start_ms,
            end_ms,
            user,
            application,
            pool,
            gpus,
            gpu_gib,
            nodes,
            cores,
            gib,
            models,
            priority,
            limit_ms,
            estimate_ms,
        ) = values
        if run_ms is None:
            run_ms = end_ms - start_ms
            if run_ms < 0:
                raise Contradiction(
                    self._columns["end"], end_ms // 1000, "an end that is not before the start"
                )
        if gpus > 1 and gpus != int(gpus):
            raise Contradiction(self._columns["gpus"], gpus, "a whole number of GPUs, or a part of one")
        if self._limits.gpus is not None and gpus > self._limits.gpus:
            raise Contradiction(
                self._columns["gpus"],
                f"{gpus:g}",
                f"at most {self._limits.gpus} GPUs, the cluster has no more",
            )
        milli = 1000 if gpus >= 1 or gpus == 0 else max(1, round(gpus * 1000))
        whole = int(gpus) if gpus >= 1 else int(gpus > 0)
        if nodes is None:
            nodes = 1 if gpus <= 1 else 0
        if (expected := self._limits.gpus_expected(whole, nodes)) is not None:
            raise Contradiction(
                self._columns["gpus" if "gpus" in self._columns else "nodes"], f"{gpus:g}", expected
            )
        for field, size in (("cpus", cores), ("mem_gib", gib), ("gpu_mem_gib", gpu_gib)):
            if size * 1024 >= FOREVER_MS:
                raise Contradiction(self._columns[field], f"{size:g}", "less than 10¹⁵")
        return Job(
            job_id,
            submit_ms,
            run_ms,
            user,
            application,
            gpus=whole,
            share=Share(milli, round(gpu_gib * 1024)),
            nodes=nodes,
            cpu_milli=round(cores * 1000),
            mem_mib=round(gib * 1024),
            models=models,
            priority=priority,
            time_limit_ms=limit_ms,
            estimate_ms=estimate_ms,
            virtual_cluster=pool,
        )

    def job(self, row: tuple[int, Job], origin_ms: int) -> Job:
        return replace(row[1], submit_ms=row[0] - origin_ms)


def _moment(name: str) -> Field[int]:
    """A day and time, or seconds from any origin, as milliseconds."""
    number = seconds(name)

    def parse(value: str) -> int:
        if "-" not in value:
            return number.parse(value)
        found = datetime.fromisoformat(value.strip())
        if found.tzinfo is None:
            found = found.replace(tzinfo=UTC)
        return round(found.timestamp() * 1000)

    return Field(name, parse, "seconds, or a day and time such as 2026-11-22 08:30:00")
