"""`berth trace`: look at a trace, convert it, fetch a public one, list the formats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from berth.cli.files import checked_place
from berth.cli.output import JsonOrCsv, console, printed
from berth.cli.progress import progress_bar
from berth.cli.run_options import Columns, joined
from berth.counts import counted
from berth.errors import ClusterError, FetchError
from berth.history.values.durations import duration_text, hours_text
from berth.traces import read_trace, write, write_nodes

if TYPE_CHECKING:
    from berth.errors import TraceError
    from berth.traces import Trace
    from berth.traces.description import Description
    from berth.traces.fetch import RemoteFile

app = typer.Typer(no_args_is_help=True, help="Describe, convert and fetch traces of GPU jobs.")

TraceArgument = Annotated[
    str, typer.Argument(metavar="TRACE", help="A trace file, or synthetic:NAME?setting=value&…")
]
SkipBad = Annotated[
    bool,
    typer.Option("--skip-bad", help="Skip bad rows and list them; by default the first one is an error."),
]

_LISTED_PROBLEMS = 20
_LISTED_VALUES = 12


@app.command()
def describe(
    trace: TraceArgument,
    columns: Columns = None,
    skip_bad: SkipBad = False,
    as_json: JsonOrCsv = None,
) -> None:
    """Summarise a trace: jobs, users, GPU-hours, distributions, and the load on its cluster."""
    from berth.traces.description import describe_jobs

    source = read_trace(trace, columns=joined(columns))
    bad: list[TraceError] = []
    description = describe_jobs(source.jobs(skip_bad=bad if skip_bad else None), source.nodes)
    answer = {"path": source.path, "format": source.format, **asdict(description)}
    if printed(as_json, [{**answer, "bad_rows": len(bad)}], {**answer, "bad_rows": _problems(bad)}):
        return
    _print_description(source, description)
    _list_problems(bad)


@app.command()
def convert(
    trace: TraceArgument,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Output file: .csv, .csv.gz or .parquet.")],
    columns: Columns = None,
    skip_bad: SkipBad = False,
    compress: Annotated[
        float, typer.Option(metavar="F", min=0.001, help="Divide submission times by this factor.")
    ] = 1.0,
    nodes: Annotated[
        Path | None,
        typer.Option(metavar="NODES", help="Write the trace's cluster to this file, as CSV."),
    ] = None,
    as_json: JsonOrCsv = None,
) -> None:
    """Write a trace as berth's own table of jobs, which `berth simulate` reads fastest and exactly."""
    for path in filter(None, (out, nodes)):
        checked_place(path)
    bad: list[TraceError] = []
    source = read_trace(trace, columns=joined(columns))
    if nodes is not None and source.nodes is None:
        raise ClusterError(f"{trace} brings no cluster to write to {nodes}")
    numbers = count()
    jobs = source.jobs(skip_bad=bad if skip_bad else None, compress=compress)
    write((job for job, _ in zip(jobs, numbers, strict=False)), out)
    number = next(numbers)
    if nodes is not None and source.nodes is not None:
        write_nodes(source.nodes, nodes)
    answer = {"out": str(out), "jobs": number}
    if printed(as_json, [{**answer, "bad_rows": len(bad)}], {**answer, "bad_rows": _problems(bad)}):
        return
    typer.echo(f"{counted(number, 'job')} written to {out}")
    _list_problems(bad)


@app.command()
def fetch(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="openb, philly, pai, helios, acme, dlrm, spot, asi or asi-hours."
        ),
    ],
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to put it in; by default ./NAME.")
    ] = None,
    only: Annotated[str, typer.Option(metavar="TEXT", help="Only files with this in their name.")] = "",
    as_json: JsonOrCsv = None,
) -> None:
    """Download a public trace from its publisher; resumes, and verifies the download."""
    from berth.traces.fetch import public_trace

    trace = public_trace(name)
    folder = to or Path(name)
    files = [file for file in trace.files if only in file.name]
    if not files:
        there = ", ".join(file.name for file in trace.files)
        raise FetchError(f"'{name}' has no file with '{only}' in its name; there are {there}")
    if as_json is None:
        typer.echo(f"{trace.name}: {trace.summary}\nfrom {trace.publisher}")
        typer.echo(f"licence: {trace.licence}\ncite: {trace.cite}")
    paths = [_fetched(file, folder) for file in files]
    answer = {"name": trace.name, "licence": trace.licence}
    if printed(as_json, [{**answer, "file": path} for path in paths], {**answer, "files": paths}):
        return
    typer.echo(f"{counted(len(paths), 'file')} in {folder}")
    if not trace.readable:
        typer.echo("berth does not read these files as they are; `berth trace formats` lists what it reads")


def _fetched(file: RemoteFile, folder: Path) -> str:
    from berth.traces.fetch import fetch_file

    with progress_bar(file.name) as update:

        def advance(done: int, total: int | None) -> None:
            if update is not None:
                update(done, total or file.size_bytes or done)

        return str(fetch_file(file, folder, progress=advance))


@app.command()
def formats(as_json: JsonOrCsv = None) -> None:
    """List the formats that are recognised, the synthetic workloads and the public traces."""
    from berth.traces.fetch import PUBLIC_TRACES
    from berth.traces.formats import FORMATS
    from berth.traces.synthetic import WORKLOADS, defaults_of

    known: dict[str, list[dict[str, Any]]] = {
        "formats": [
            {"name": f.name, "summary": f.summary, "header": list(f.header), "more": list(f.more)}
            for f in FORMATS.values()
        ],
        "synthetic": [{"name": name, "settings": defaults_of(name)} for name in WORKLOADS],
        "public": [
            {"name": t.name, "summary": t.summary, "licence": t.licence, "files": [f.name for f in t.files]}
            for t in PUBLIC_TRACES.values()
        ],
    }
    rows = [{"kind": kind, **row} for kind, listed in known.items() for row in listed]
    if printed(as_json, rows, known):
        return
    for entry in FORMATS.values():
        typer.echo(f"{entry.name}: {entry.summary}\n    {', '.join(entry.header)}")
        if entry.more:
            typer.echo(f"    optional: {', '.join(entry.more)}")
    for name in WORKLOADS:
        settings = "&".join(f"{key}={value}" for key, value in defaults_of(name).items())
        typer.echo(f"synthetic:{name}?{settings}")
    for trace in PUBLIC_TRACES.values():
        typer.echo(f"berth trace fetch {trace.name}: {trace.summary}; {trace.licence}")


def _problems(bad: list[TraceError]) -> list[dict[str, object]]:
    return [
        {"path": b.path, "line": b.line, "column": b.column, "value": b.value, "expected": b.expected}
        for b in bad
    ]


def _list_problems(bad: list[TraceError]) -> None:
    if not bad:
        return
    typer.echo(f"{len(bad)} bad rows left out:", err=True)
    for problem in bad[:_LISTED_PROBLEMS]:
        typer.echo(f"  {problem}", err=True)
    if len(bad) > _LISTED_PROBLEMS:
        typer.echo(f"  and {len(bad) - _LISTED_PROBLEMS} more; --json lists all", err=True)


def _print_description(source: Trace, description: Description) -> None:
    from rich.table import Table

    table = Table(title=f"{source.path} ({source.format})", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for what, value in _lines(description):
        table.add_row(what, value)
    console().print(table)


def _lines(description: Description) -> Iterator[tuple[str, str]]:
    d = description
    yield "jobs", f"{d.jobs:,}" + (f", of which {d.endless_jobs:,} never end" if d.endless_jobs else "")
    if d.first_submit_ms is not None and d.last_submit_ms is not None:
        first, last = _duration(d.first_submit_ms), _duration(d.last_submit_ms)
        yield "submitted", f"from {first} to {last}, over {_duration(d.last_submit_ms - d.first_submit_ms)}"
    yield "users", f"{d.users:,}" if d.users else "not told"
    yield "virtual clusters", f"{d.virtual_clusters:,}" if d.virtual_clusters else "not told"
    yield "GPU-hours", hours_text(d.gpu_hours)
    yield "jobs by GPUs", _distribution(d.jobs_by_gpus, d.jobs)
    yield (
        "jobs by part of a GPU",
        _distribution({f"{k / 10:g} %": v for k, v in d.jobs_by_milli.items()}, d.jobs),
    )
    if d.jobs_by_model:
        yield "jobs by model", _distribution(d.jobs_by_model, d.jobs)
    yield "run time", ", ".join(f"p{p} {_duration(v)}" for p, v in d.work_ms.items()) or "no job ends"
    known = {"time limit": d.with_time_limit, "estimate": d.with_estimate, "patience": d.with_patience}
    yield "jobs that state a", ", ".join(f"{name}: {number:,}" for name, number in known.items())
    if d.nodes is None:
        yield "its cluster", "not told; name one with --cluster"
    else:
        load = "unknown" if d.load is None else f"{100 * d.load:.1f} %"
        size = f"{counted(d.nodes, 'node')}, {counted(d.cluster_gpus or 0, 'GPU')}"
        yield "its cluster", f"{size}; load while jobs arrive {load}"


def _distribution(numbers: Mapping[Any, int], total: int) -> str:
    largest = sorted(numbers.items(), key=lambda item: -item[1])[:_LISTED_VALUES]
    shown = [f"{value}: {number:,} ({100 * number / total:.1f} %)" for value, number in largest]
    left = len(numbers) - len(shown)
    return ", ".join(shown) + (f", {left} other values" if left else "") or "none"


def _duration(time_ms: int) -> str:
    return duration_text(time_ms / 1000)
