"""All that is known of one job, as text and as JSON."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from berth.counts import counted
from berth.history.values.durations import duration_text, hours_of, moment_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from berth.history.jobs.job_report import JobReport, RightSize
    from berth.model import Record

MOST_POINTS = 24
"""The most lines of use that are printed; JSON has all."""
MOST_NAMES = 10
"""Jobs that shared GPUs with an attempt; JSON has all."""


def print_job_report(job_id: str, cluster: str, history: Path, as_json: bool) -> None:
    """Print what the history knows of a job; HistoryError if there is none, or it has no such id."""
    from berth.errors import HistoryError
    from berth.history.jobs.history_source import HistoryJobs
    from berth.history.jobs.job_report import job_reports, report_json
    from berth.history.store.reader import HistoryReader, history_is_there

    history_is_there(history)
    found = [
        each
        for each in job_reports(HistoryJobs(HistoryReader(history)), job_id)
        if not cluster or each.attempts[0].cluster == cluster
    ]
    if not found:
        slurm = ", or in Slurm's `squeue`" if shutil.which("squeue") else ""
        of = f" of cluster '{cluster}'" if cluster else ""
        raise HistoryError(
            f"{history} has no job '{job_id}'{of} that has ended; give its id, its label, such as 12_3 for a task of"
            f" an array, or its name; what waits or runs is in `berth queue`{slurm}"
        )
    if as_json:
        print(json.dumps([*map(report_json, found)], ensure_ascii=False, allow_nan=False))
        return
    print("\n\n".join("\n".join(report_lines(each)) for each in found))


def report_lines(report: JobReport) -> Iterator[str]:
    last = report.attempts[-1]
    where = f" of {last.cluster}" if last.cluster else ""
    number = f" (id {last.job_id})" if report.name != last.job_id else ""
    yield f"Job {report.name}{number}{where}: {last.state.value}"
    fields = (
        ("name", last.name),
        ("user", " / ".join(filter(None, (last.user, last.account)))),
        ("application", last.application or "unknown"),
        ("partition", " / ".join(filter(None, (last.virtual_cluster, last.qos)))),
        ("asked for", _requested(last)),
        ("comment", last.comment),
        ("command", last.command),
    )
    yield from (f"  {name + ':':<13}{' '.join(value.split())}" for name, value in fields if value)
    for record in report.attempts:
        yield ""
        yield from _attempt(record, report)
    yield ""
    yield from _cost(report)
    if report.series:
        yield ""
        yield "Use of its GPUs (mean, peak):"
        yield from _series(report)
    yield ""
    yield from _verdict(report)


def _requested(record: Record) -> str:
    gpus = counted(record.gpus, "GPU")
    if record.gpus and record.share.milli < 1000:
        gpus = f"{record.share.milli / 10:g} % of {gpus}"
    parts = [
        f"{gpus} {record.gpu_model}".strip(),
        f"{_mib(record.share.mem_mib)} of GPU memory" if record.gpus and record.share.mem_mib else "",
        counted(record.cpu_milli / 1000, "CPU") if record.cpu_milli else "",
        f"{_mib(record.mem_mib)}" if record.mem_mib else "",
        f"{duration_text(record.time_limit_ms / 1000)} at most" if record.time_limit_ms else "",
    ]
    return ", ".join(filter(None, parts))


def _attempt(record: Record, report: JobReport) -> Iterator[str]:
    from berth.history.jobs.job_report import cpu_use, mem_use, waits_of

    exit_code = "" if record.exit_code is None else f", exit code {record.exit_code}"
    differs = record.end_reason and record.end_reason != record.state.value
    reason = f", {record.end_reason}" if differs else ""
    yield f"Attempt {record.attempt} of {len(report.attempts)}: {record.state.value}{exit_code}{reason}"
    yield f"  queued       {moment_text(record.queued_ms)}"
    for wait in waits_of(record):
        yield f"  waited       {duration_text(wait.seconds)} for {wait.cause}"
    if record.start_ms is None:
        yield f"  left         {moment_text(record.end_ms)}, never started"
        return
    where = ", ".join(record.gpu_slots or record.nodes) or (
        counted(record.node_count, "node") if record.node_count else "nodes unknown"
    )
    yield f"  ran          {moment_text(record.start_ms)} to {moment_text(record.end_ms)}, on {where}"
    yield from _neighbours(report, record)
    suspended = f", suspended for {duration_text(record.suspended_ms / 1000)}" if record.suspended_ms else ""
    yield f"  for          {duration_text((record.end_ms - record.start_ms) / 1000)}{suspended}"
    uses = (
        ("GPU", record.gpu_use_mean, record.gpu_use_peak),
        ("GPU memory", record.gpu_mem_mean, record.gpu_mem_peak),
        ("CPU", cpu_use(record), None),
        ("memory", None, mem_use(record)),
    )
    for name, mean, peak in uses:
        if mean is not None or peak is not None:
            yield f"  {name + ' use':<15}{_mean_and_peak(mean, peak)}"


def _neighbours(report: JobReport, record: Record) -> Iterator[str]:
    """With which jobs an attempt shared its GPUs; nothing of a job without GPUs."""
    found = report.neighbours_of(record)
    if found is None:
        yield "  shared with  not known: its GPUs were not recorded"
    elif record.gpus:
        names = list(dict.fromkeys(f"{each.job} ({each.user})" for each in found))
        more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
        yield f"  shared with  {', '.join(names[:MOST_NAMES]) or 'no other job'}{more}"


def _mean_and_peak(mean: float | None, peak: float | None) -> str:
    return ", ".join(
        f"{value * 100:.1f} % {what}" for what, value in (("mean", mean), ("peak", peak)) if value is not None
    )


def _energy(kwh: float) -> str:
    return f"{kwh * 1000:.1f} Wh" if 0 < kwh < 0.1 else f"{kwh:,.2f} kWh"


def _cost(report: JobReport) -> Iterator[str]:
    energy = "" if report.energy_kwh is None else f", {_energy(report.energy_kwh)}"
    cpus = "CPU-hours not recorded" if report.cpu_hours is None else hours_of("CPU", report.cpu_hours, 2)
    yield f"It cost {hours_of('GPU', report.gpu_hours, 2)}, {cpus}{energy}."
    if report.failed_gpu_hours:
        yield f"  {hours_of('GPU', report.failed_gpu_hours, 2)} were held by attempts that failed."
    if report.idle_gpu_hours is not None:
        yield f"  {hours_of('GPU', report.idle_gpu_hours, 2)} were held and not used."
    elif report.gpu_hours:
        yield "  The use of its GPUs was not measured."
    if report.refused is not None:
        yield f"It was refused {report.refused:,} allocations of GPU memory."


def _series(report: JobReport) -> Iterator[str]:
    step = -(-len(report.series) // MOST_POINTS)
    for at in range(0, len(report.series), step):
        points = report.series[at : at + step]
        lasts = [max(point.end_ms - point.begin_ms, 1) for point in points]

        def mean(values: list[float | None], lasts: list[int] = lasts) -> float | None:
            known = [(value, last) for value, last in zip(values, lasts, strict=True) if value is not None]
            return sum(v * last for v, last in known) / sum(last for _, last in known) if known else None

        peaks = [point.gpu_use_peak for point in points if point.gpu_use_peak is not None]
        memory = [point.gpu_mem_peak for point in points if point.gpu_mem_peak is not None]
        use = mean([point.gpu_use for point in points])
        nodes = ", ".join(dict.fromkeys(point.node for point in points))
        bar = "#" * round(20 * (use or 0.0))
        yield (
            f"  {moment_text(points[0].begin_ms)}  {bar:<20}  GPU {_percent(use)}, "
            f"{_percent(max(peaks, default=None))}; "
            f"memory {_percent(mean([point.gpu_mem for point in points]))}, {_percent(max(memory, default=None))}"
            f"  {nodes}"
        )


def _verdict(report: JobReport) -> Iterator[str]:
    from berth.history.jobs.job_report import little_used, right_sizes
    from berth.model import RecordState

    found = right_sizes(report)
    use = little_used(report)
    if found:
        yield "It could have asked for less:"
        yield from (f"  {_right_size(each)}" for each in found)
    elif not any(record.state is RecordState.COMPLETED for record in report.attempts):
        yield "No attempt completed, so what it needs is unknown."
    elif use is None:
        yield "Nothing that was measured shows that it could have asked for much less time, host memory or CPUs."
    if use is not None:
        yield (
            f"Its GPUs were {use * 100:.0f} % in use: see what they wait for (data, CPUs, other GPUs), or let it share "
            "one with other jobs."
        )


def _right_size(each: RightSize) -> str:
    def shown(value: float) -> str:
        if each.unit == "min":
            return duration_text(value * 60)
        return _mib(value) if each.unit == "MiB" else f"{value:,.1f}".removesuffix(".0")

    return (
        f"{each.what}: {shown(each.enough)} instead of {shown(each.asked)} (used at most {shown(each.used)})"
    )


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value * 100:.0f} %"


def _mib(value: float) -> str:
    return f"{value / 1024:,.1f} GiB" if value >= 1024 else f"{value:,.0f} MiB"
