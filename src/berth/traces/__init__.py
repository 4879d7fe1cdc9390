"""Traces of GPU jobs: files of known formats, or made up by a seed, as Jobs in order of submission.

Where a path is asked for, `synthetic:NAME?jobs=…&seed=…` names a generated workload instead. The format of a
file is known by its header. Nothing is read before the first job is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from berth.counts import counted
from berth.errors import SettingError, TraceError, check_kind
from berth.frames import Framed
from berth.model import Job, Node

if TYPE_CHECKING:
    from berth.traces.fields import Limits
    from berth.traces.format import Format
    from berth.traces.table import Table

_SYNTHETIC = "synthetic:"


@dataclass(frozen=True, repr=False)
class Trace(Framed):
    """A trace that can be iterated any number of times: where it is, its format and its cluster."""

    path: str
    format: str
    """A name of `berth trace formats`, `synthetic` or `map:FIELD=COLUMN,…`."""
    nodes: tuple[Node, ...] | None
    """The cluster that the trace brings; None where it brings none."""

    def __iter__(self) -> Iterator[Job]:
        return self.jobs()

    def __len__(self) -> int:
        """How many jobs there are; reads the whole trace once."""
        return self._length

    def __bool__(self) -> bool:
        return True  # what it is does not depend on how many jobs are in it

    @cached_property
    def _length(self) -> int:
        return sum(1 for _ in self.jobs())

    def __repr__(self) -> str:
        nodes = self.nodes or ()
        gpus = sum(node.gpus for node in nodes)
        cluster = f"{counted(len(nodes), 'node')} with {counted(gpus, 'GPU')}" if nodes else "no cluster"
        return f"Trace({self.path!r}, {self.format}, {cluster})"

    def rows(self) -> list[dict[str, object]]:
        """A row for each job, with the columns of berth's own traces; `to_pandas` and its kin make frames of them."""
        return [
            {
                "id": job.id, "user": job.user, "application": job.application, "submit_ms": job.submit_ms,
                "work_ms": job.work_ms, "gpus": job.gpus, "gpu_milli": job.share.milli,
                "gpu_mem_mib": job.share.mem_mib, "cpu_milli": job.cpu_milli, "mem_mib": job.mem_mib,
                "nodes": job.nodes, "time_limit_ms": job.time_limit_ms,
            }
            for job in self
        ]  # fmt: skip

    def jobs(
        self,
        *,
        nodes: Sequence[Node] | None = None,
        skip_bad: list[TraceError] | None = None,
        compress: float = 1.0,
    ) -> Iterator[Job]:
        """The jobs in order of submission; see `read`. `nodes` is asked where the trace brings no cluster."""
        return iter(self.table(nodes=nodes, skip_bad=skip_bad, compress=compress))

    def table(
        self,
        *,
        nodes: Sequence[Node] | None = None,
        skip_bad: list[TraceError] | None = None,
        compress: float = 1.0,
    ) -> Sequence[Job]:
        """The jobs of `jobs`, all read now. Those of a file are kept as columns, and made each time they are asked
        for."""
        return _table(self, None if self.nodes else nodes, skip_bad, compress=compress)

    def with_seed(self, seed: int) -> Trace:
        """A synthetic trace that names no seed, with this one; any other as it is."""
        _, asked, query = self.path.partition("?")
        if self.format != "synthetic" or any(part.startswith("seed=") for part in query.split("&")):
            return self
        return replace(self, path=f"{self.path}{'&' if asked else '?'}seed={seed}")


def read_trace(path: str | os.PathLike[str], *, columns: str | Mapping[str, str] = "") -> Trace:
    """The trace at this path: format and cluster are looked up now, jobs are read when they are iterated.

    `columns` says what the columns of an unknown table are: `{"id": "job_name", "submit": "submitted", …}`, or the same
    as `id=job_name,submit=submitted,…`.
    """
    check_kind(path, str | os.PathLike, "read_trace takes the path of a trace, or synthetic:NAME")
    check_kind(columns, str | Mapping, "read_trace takes columns as a text or a mapping of fields to columns")
    name = os.fspath(path)
    if name.startswith(_SYNTHETIC) and not columns:
        return Trace(name, "synthetic", nodes_of(name))
    from berth.traces import formats
    from berth.traces.opening import open_table
    from berth.traces.readers.mapped import spec_of

    with open_table(name) as table:  # a missing file is told before a wrong --map
        entry = formats.format_named(spec_of(columns)) if columns else formats.format_of(table)
        entry.check(table)
        return Trace(name, entry.name, entry.nodes_of(table))


def read(
    trace: Trace | str | os.PathLike[str],
    *,
    nodes: Sequence[Node] | None = None,
    skip_bad: list[TraceError] | None = None,
    file_order: bool = False,
    compress: float = 1.0,
) -> Iterator[Job]:
    """Yield the jobs of a trace in order of submission; those of the same time in the order of the file.

    Rows are checked against `nodes` (GPU models that there are, most GPUs of a node), by default against the
    cluster that the trace brings; with `nodes=()`, or where it brings none, any model and any number of GPUs
    is accepted. A bad row raises TraceError, or, with a list as `skip_bad`, is appended to it and left out.
    With `file_order` jobs come as the file has them. Times of submission are divided by `compress`: with 6
    the same jobs arrive in a sixth of the time. What `read_trace` has looked up is not looked up again.
    """
    yield from _table(trace, nodes, skip_bad, file_order=file_order, compress=compress)


def _table(
    trace: Trace | str | os.PathLike[str],
    nodes: Sequence[Node] | None,
    skip_bad: list[TraceError] | None,
    *,
    file_order: bool = False,
    compress: float,
) -> Sequence[Job]:
    """The jobs that `read` yields."""
    from berth.traces.job_table import compressed

    check_kind(trace, Trace | str | os.PathLike, "read takes a Trace or its path")
    name = trace.path if isinstance(trace, Trace) else os.fspath(trace)
    found: Sequence[Job]
    if name.startswith(_SYNTHETIC):
        from berth.traces.synthetic import workload_of

        found = tuple(workload_of(name).jobs())
    else:
        from berth.traces.formats import job_table

        found = job_table(*_opened(trace, nodes), skip_bad, file_order=file_order)
    return compressed(found, compress)


def _opened(
    trace: Trace | str | os.PathLike[str], nodes: Sequence[Node] | None
) -> tuple[Table, Format, Limits]:
    """The open table of a trace file, its format, and what its rows are checked against."""
    from berth.traces.fields import Limits
    from berth.traces.formats import format_named, open_trace

    known = trace if isinstance(trace, Trace) else None
    name = trace.path if isinstance(trace, Trace) else os.fspath(trace)
    table, entry = open_trace(name, format_named(known.format) if known else None)
    try:
        if nodes is None:
            nodes = known.nodes if known else entry.nodes_of(table)
        return table, entry, Limits.of(nodes)
    except BaseException:
        table.close()
        raise


def nodes_of(path: str | os.PathLike[str]) -> tuple[Node, ...] | None:
    """The cluster that a trace brings; None where it brings none."""
    name = os.fspath(path)
    if name.startswith(_SYNTHETIC):
        from berth.traces.synthetic import workload_of

        return workload_of(name).nodes
    return read_trace(name).nodes


def read_nodes(cluster: str | os.PathLike[str], columns: str | Mapping[str, str] = "") -> tuple[Node, ...]:
    """The nodes of a CSV file, of a spec such as `10x8:V100:96c:512g`, or of a `synthetic:` workload.

    `columns` names the columns of a list with another header: `name=host,gpus=cards,model=card`.
    """
    from berth.traces.nodes import nodes_from_csv, nodes_from_spec

    check_kind(cluster, str | os.PathLike, "read_nodes takes a file, or a cluster such as 10x8:V100")
    name = os.fspath(cluster)
    if columns or Path(name).exists():
        return nodes_from_csv(name, columns)
    return nodes_of(name) or () if name.startswith(_SYNTHETIC) else nodes_from_spec(name)


def write(jobs: Iterable[Job], path: str | os.PathLike[str]) -> None:
    """Write jobs as berth's own table; what the name ends in says how: `.csv`, `.csv.gz` or `.parquet`."""
    from berth.traces.readers.native import write_csv, write_parquet

    target = Path(path)
    if target.name.endswith((".csv", ".csv.gz")):
        write_csv(jobs, target)
    elif target.suffix == ".parquet":
        write_parquet(jobs, target)
    else:
        raise TraceError(str(target), "a name that ends in .csv, .csv.gz or .parquet")


def write_nodes(nodes: Sequence[Node], path: str | os.PathLike[str]) -> None:
    """Write nodes as a CSV file that `read_nodes` reads."""
    from berth.traces.nodes import write_nodes as write

    write(nodes, Path(path))
