"""A table whose columns a map names: `id=job_name,submit=submitted,run=seconds,gpus=cards`.

`--map` gives such a map by hand; the published traces that need no more than one have theirs in `formats`.

Times are seconds or days and times (`2026-11-22 08:30:00`, `2026-11-22T08:30:00`), all of one kind in a file, and count
from the earliest submission. A job runs for `run`, or from `start` to `end`. GPUs may be a part of one, such as 0.5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from berth.errors import SettingError
from berth.model import FOREVER_MS, WHOLE_GPU, Job, Share
from berth.traces.fields import (
    Field,
    Limits,
    amount,
    count,
    decimal,
    integer,
    names,
    read_map,
    seconds,
    text,
)
from berth.traces.format import Format
from berth.traces.job_table import draft, finished, setter
from berth.traces.readers.by_field import Contradiction, FieldReader, requested
from berth.traces.table import Table

PREFIX: Final = "map:"
UNITS_MS: Final = {"us": 0.001, "ms": 1.0, "min": 60_000.0, "h": 3_600_000.0}
"""What may follow a column of times after a colon, in ms; without one, seconds."""
FIELDS: Final = {
    "id": "text that no other row has; needed",
    "submit": "when it was submitted; needed",
    "run": "how long it runs, s; COLUMN:h, :min, :ms or :us for another unit, here and in other times",
    "start": "when it started",
    "end": "when it ended",
    "user": "text",
    "application": "text: jobs of one behave alike",
    "virtual_cluster": "text: queue, partition or account",
    "gpus": "number, also a part of one; 1 by default",
    "gpus_per_node": "number of GPUs on each of its nodes, in place of gpus",
    "gpus_per_worker": "number of GPUs of each worker, in place of gpus; workers may share a node",
    "workers": "whole number; cpus and mem_gib are then those of one worker",
    "gpu_mem_gib": "memory of each GPU that it needs, GiB",
    "nodes": "whole number; as few as will hold it by default",
    "cpus": "number of CPU cores",
    "mem_gib": "memory of the node, GiB",
    "mem_gib_per_node": "memory on each of its nodes, GiB, in place of mem_gib",
    "model": "GPU models that it may use, split by |",
    "priority": "whole number, or names with their numbers: COLUMN:HP=10,Spot=0",
    "time_limit": "what the user asked for, s",
    "estimate": "what the user expects, s",
}
"""What a map may name, and what stands in such a column."""
RULES: Final = {
    "never-started": ("patience", "a job without a start left the queue unserved at its end"),
    "no-submit": ("TIME", "a job without a submission was submitted then, and ran already"),
    "no-end": ("endless", "a job without an end never ends"),
    "repeated": ("new", "an id that comes again is another job, ID#2"),
}
"""What a map may say of rows that lack something, with its choice."""
_NEEDS: Final = {
    "gpus_per_node": ("nodes",),
    "mem_gib_per_node": ("nodes",),
    "never-started": ("start", "end"),
    "no-end": ("end",),
}
_ABSENT: Final = frozenset(("", "None", "NaN", "nan", "NULL", "Unknown"))


def spec_of(columns: str | Mapping[str, str]) -> str:
    """The format that these columns make, `map:FIELD=COLUMN,…`. Raises SettingError for an impossible map."""
    found = read_map(columns, {**FIELDS, **RULES})
    for rule in RULES.keys() & found.keys():
        choice = RULES[rule][0]
        if choice != "TIME" and found[rule] != choice:
            raise SettingError(f"--map {rule}={found[rule]}; expected {rule}={choice}: {RULES[rule][1]}")
    if "no-submit" in found:
        try:
            _moment("no-submit").parse(found["no-submit"])
        except ValueError:
            raise SettingError(
                f"--map no-submit={found['no-submit']}; expected {_moment('').expected}"
            ) from None
    _tiers(found.get("priority", ""))
    lacking = [] if "id" in found else ["id"]
    if not {"submit", "no-submit"} & found.keys():
        lacking.append("submit")
    if "run" not in found and not {"start", "end"} <= found.keys():
        lacking.append("run (or start and end)")
    for needs, others in _NEEDS.items():
        lacking += [
            f"{other} (which {needs} needs)" for other in others if needs in found and other not in found
        ]
    if lacking:
        raise SettingError(
            f"--map names no column for {', '.join(lacking)}; a job needs id, submit, and run or start and end"
        )
    sizes = [name for name in ("gpus", "gpus_per_node", "gpus_per_worker") if name in found]
    if len(sizes) > 1:
        raise SettingError(f"--map names {' and '.join(sizes)}; one of them says how many GPUs a job has")
    return PREFIX + ",".join(f"{field}={column}" for field, column in found.items())


@dataclass(frozen=True)
class MappedFormat(Format):
    """The format of a table whose columns a map names."""

    columns: tuple[tuple[str, str], ...] = ()

    def reader_of(self, table: Table, limits: Limits) -> MappedReader:
        return MappedReader(table, limits, dict(self.columns), published=not self.name.startswith(PREFIX))

    def check(self, table: Table) -> None:
        if not self.name.startswith(PREFIX):
            super().check(table)
            return
        for field, column in self.columns:
            name = _column(field, column)
            if field not in RULES and name not in table.header:
                raise table.error(
                    table.header_line or 1,
                    f"a column '{name}' for {field}, as --map says; there are {table.header_text}"
                    f"{split_otherwise(table.header)}",
                )


def split_otherwise(header: Sequence[str]) -> str:
    """A hint where the whole header was read as one column because commas do not split it."""
    marks = {"\t": "tabs (a TSV file)", ";": "semicolons", "|": "'|'"}
    for mark, words in marks.items() if len(header) == 1 else ():
        if mark in header[0]:
            return f". Its columns are split by {words}, and a trace's by commas: save it as CSV"
    return ""


def mapped_format(spec: str) -> MappedFormat:
    """The format of a spec of `spec_of`."""
    columns = read_map(spec.removeprefix(PREFIX), {**FIELDS, **RULES})
    return MappedFormat(
        spec,
        "columns that --map names, one row a job",
        tuple(_column(field, column) for field, column in columns.items() if field not in RULES),
        (),
        "",
        columns=tuple(columns.items()),
    )


def published(name: str, summary: str, needed: int, spec: str, nodes: str | None = None) -> MappedFormat:
    """The format of a published trace that a map reads; the first columns of the map tell it from the others.

    Its rows are taken as they are where a map by hand is strict: GPUs that do not divide by the nodes run on as few
    nodes as will hold them, and a job asks for the label of its virtual cluster where the trace's nodes carry it.
    """
    columns = read_map(spec, {**FIELDS, **RULES})
    named = (_column(field, column) for field, column in columns.items() if field not in RULES)
    header = list(dict.fromkeys(named))
    return MappedFormat(
        name,
        summary,
        tuple(header[:needed]),
        tuple(header[needed:]),
        "",
        nodes,
        columns=tuple(columns.items()),
    )


class MappedReader(FieldReader):
    """Rows of such a table."""

    def __init__(
        self, table: Table, limits: Limits, columns: Mapping[str, str], *, published: bool = False
    ) -> None:
        self._columns = {field: _column(field, column) for field, column in columns.items()}
        self._limits = limits
        self._published = published
        own_clock = "no-submit" in columns or columns.get("submit", "") != self._columns.get("submit", "")
        self.counts_from_first = not (
            published and own_clock
        )  # rounds of a replay count from the same moment
        self._patient = "never-started" in columns
        self._endless = "no-end" in columns
        self._renumbers = "repeated" in columns
        self._submitted_ms = (
            _moment("no-submit").parse(columns["no-submit"]) if "no-submit" in columns else None
        )
        self._sizes: dict[tuple[Any, ...], dict[str, int]] = {}
        self._put_id = setter("id")

        def at(field: str) -> str:
            return self._columns.get(field, f"--map {field}")  # no column has such a name

        def time(field: str) -> Field[int]:
            return _in_unit(at(field), columns.get(field, ""), _moment(at(field)))

        def span(field: str) -> Field[int]:
            return _in_unit(at(field), columns.get(field, ""), seconds(at(field)))

        tiers = _tiers(columns.get("priority", ""))
        submit = time("submit")
        fields: list[tuple[Field[Any], Any]] = [
            (text(at("id"), empty=False), None),
            (submit if self._submitted_ms is None else _or_none(submit), None),
            (_or_none(span("run")) if self._patient else span("run"), None),
            (_or_none(time("start")), None),
            (_or_none(time("end")), None),
            (text(at("user")), ""),
            (text(at("application")), ""),
            (text(at("virtual_cluster")), ""),
            (decimal(at("gpus")).or_else(1.0), 1.0),
            (decimal(at("gpus_per_node")).or_else(1.0), None),
            (decimal(at("gpus_per_worker")).or_else(1.0), None),
            (count(at("workers"), at_least=1), 1),
            (decimal(at("gpu_mem_gib")).or_else(0.0), 0.0),
            (amount(at("nodes")), None),
            (decimal(at("cpus")).or_else(0.0), 0.0),
            (decimal(at("mem_gib")).or_else(0.0), 0.0),
            (decimal(at("mem_gib_per_node")).or_else(0.0), 0.0),
            (names(at("model"), among=limits.models, what="GPU models"), ()),
            (_tier(at("priority"), tiers) if tiers else integer(at("priority")).or_else(0), 0),
            (_or_none(span("time_limit")), None),
            (_or_none(span("estimate")), None),
        ]
        super().__init__(table, fields)
        self.id_column = columns["id"]

    def make(self, *values: Any) -> Job:
        job_id, submit_ms, run_ms, start_ms, end_ms, user, application, pool, *size_and_limits = values
        gpus, per_node, per_worker, workers, gpu_gib, nodes, cores, gib, node_gib, *limits = size_and_limits
        models, priority, limit_ms, estimate_ms = limits
        if submit_ms is None:
            submit_ms = self._submitted_ms
            start_ms = submit_ms if start_ms is None else start_ms
        work_ms, patience_ms = self._times(submit_ms, run_ms, start_ms, end_ms, limit_ms)
        size = gpus, per_node, per_worker, workers, nodes
        if (placed := self._sizes.get(size)) is None:
            placed = self._sizes[size] = self._placed(*size)
        gib = gib * workers + node_gib * max(placed["nodes"], 1)
        for field, size in (("cpus", cores * workers), ("mem_gib", gib), ("gpu_mem_gib", gpu_gib)):
            if size * 1024 >= FOREVER_MS:
                raise Contradiction(self._columns[field], f"{size:g}", "less than 10¹⁵")
        job: Job = finished(
            draft(
                job_id,
                submit_ms,
                work_ms,
                user,
                application,
                gpus=placed["gpus"],
                share=Share(placed["milli"], round(gpu_gib * 1024)),
                nodes=placed["nodes"],
                cpu_milli=round(cores * 1000) * workers,
                mem_mib=round(gib * 1024),
                models=models,
                labels=(pool,) if self._published and pool in self._limits.labels else (),
                priority=priority,
                time_limit_ms=limit_ms,
                estimate_ms=estimate_ms,
                patience_ms=patience_ms,
                virtual_cluster=pool,
            )
        )
        if self._renumbers and job_id in self._seen:
            number = 2
            while f"{job_id}#{number}" in self._seen:
                number += 1
            self._put_id(job, f"{job_id}#{number}")
        return job

    def _times(
        self,
        submit_ms: int,
        run_ms: int | None,
        start_ms: int | None,
        end_ms: int | None,
        limit_ms: int | None,
    ) -> tuple[int, int | None]:
        """How long it works, and how long it waits for that before it leaves; ms."""
        has_span = "end" in self._columns
        if has_span and start_ms is None and (run_ms is None or self._patient):
            if not self._patient:
                raise Contradiction(
                    self._columns["start"], "", "a start, or never-started=patience in the map"
                )
            if end_ms is None:
                raise Contradiction(self._columns["end"], "", "an end, as there is no start")
            if end_ms < submit_ms:
                raise Contradiction(
                    self._columns["end"], end_ms // 1000, "an end that is not before the submission"
                )
            left_ms = end_ms - submit_ms
            return run_ms or limit_ms or left_ms, left_ms
        if run_ms is not None:
            return run_ms, None
        if end_ms is None:
            if not self._endless:
                raise Contradiction(
                    self._columns.get("end", self._columns.get("run", "")),
                    "",
                    "an end, or no-end=endless in the map",
                )
            return FOREVER_MS, None
        assert start_ms is not None  # without a start there is a run time
        if end_ms < start_ms:
            raise Contradiction(self._columns["end"], end_ms // 1000, "an end that is not before the start")
        return end_ms - start_ms, None

    def _placed(
        self, gpus: float, per_node: float | None, per_worker: float | None, workers: int, nodes: int | None
    ) -> dict[str, int]:
        """GPUs, per mille of each, and nodes."""
        limits, columns = self._limits, self._columns
        if per_node is not None or per_worker is not None:
            column = columns["gpus_per_worker" if per_node is None else "gpus_per_node"]
            found = requested(
                workers if per_node is None else nodes or 1, per_node or per_worker or 0.0, column, limits
            )
            share = found.get("share", WHOLE_GPU)
            return {
                "gpus": found["gpus"],
                "milli": share.milli,
                "nodes": found["nodes"] if per_node is None else nodes or 1,
            }
        if gpus > 1 and gpus != int(gpus):
            raise Contradiction(columns["gpus"], gpus, "a whole number of GPUs, or a part of one")
        if limits.gpus is not None and gpus > limits.gpus:
            raise Contradiction(
                columns["gpus"], f"{gpus:g}", f"at most {limits.gpus} GPUs, the cluster has no more"
            )
        milli = 1000 if gpus >= 1 or gpus == 0 else max(1, round(gpus * 1000))
        whole = int(gpus) if gpus >= 1 else int(gpus > 0)
        if self._published and nodes is not None and (not whole or not 0 < nodes <= whole or whole % nodes):
            nodes = None
        if nodes is None:
            nodes = 1 if gpus <= 1 else 0
        if (expected := limits.gpus_expected(whole, nodes)) is not None:
            raise Contradiction(columns["gpus" if "gpus" in columns else "nodes"], f"{gpus:g}", expected)
        return {"gpus": whole, "milli": milli, "nodes": nodes}


def _column(field: str, column: str) -> str:
    """The name of the column, without the unit or the numbers of names that follow it."""
    name, colon, rest = column.rpartition(":")
    if field == "priority":
        name, colon, rest = column.partition(":")
        return name if "=" in rest else column
    return name if colon and rest in UNITS_MS else column


def _in_unit(name: str, column: str, otherwise: Field[int]) -> Field[int]:
    """A time in the unit that the map names; without one, as `otherwise` reads it."""
    unit = column.rpartition(":")[2]
    if column == name or unit not in UNITS_MS:
        return otherwise
    factor = UNITS_MS[unit]
    number = decimal(name, FOREVER_MS / factor)
    return Field(name, lambda text: int(number.parse(text) * factor), f"a number of 0 or more, in {unit}")


def _or_none(known: Field[int]) -> Field[int | None]:
    """Like this field, or None for a text that says that there is no value."""
    return Field(
        known.name,
        lambda text: None if text in _ABSENT else known.parse(text),
        f"{known.expected}, or nothing",
    )


def _tiers(column: str) -> dict[str, int]:
    """The priority of each name in `COLUMN:HP=10,Spot=0`; none where the column has numbers."""
    names = column.partition(":")[2]
    if "=" not in names:
        return {}
    try:
        pairs = [part.rpartition("=") for part in names.split(",")]
        return {name: int(number) for name, _, number in pairs}
    except ValueError:
        raise SettingError(
            f"--map priority={column}; expected COLUMN:NAME=NUMBER,…, such as tier:HP=10,Spot=0"
        ) from None


def _tier(name: str, tiers: Mapping[str, int]) -> Field[int]:
    def parse(value: str) -> int:
        if value not in tiers:
            raise ValueError(value)
        return tiers[value]

    return Field(name, parse, f"one of {', '.join(tiers)}")


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
