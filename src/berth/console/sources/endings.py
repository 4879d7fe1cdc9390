"""What a source tells of a job that has ended: use against the promise, waits by cause, cost, what was enough."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import quantiles
from typing import Any

from berth.history.jobs.job_report import JobReport, Wait, enough_share
from berth.live.slurm.job_log import LEAST_STARTS, LoggedJobs, waits_of
from berth.model import RecordState, Share


def ending(
    *,
    promised: Share,
    card_mib: int | None,
    peak_mib: int | None,
    use: float | None,
    completed: bool,
    waits: Sequence[Wait],
    gpu_hours: float,
    best_effort: bool = False,
) -> dict[str, Any]:
    """As `EndingAnswer` has it. `use` is the mean use of each of its GPUs as a fraction of the whole GPU.

    With `best_effort` it was promised memory alone, and took the compute that others left.
    What would have been enough is told of a run that completed: what was cut off may have needed more.
    """
    promise_mib = promised.mem_mib or card_mib
    enough = None
    if completed and peak_mib and promise_mib:
        enough = enough_share(Share(promised.milli, promise_mib), None if best_effort else use, peak_mib)
        if enough == Share(promised.milli, promise_mib):
            enough = None
    return {
        "waits": [{"seconds": each.seconds, "cause": each.cause} for each in waits],
        "used_mib": peak_mib,
        "promised_mib": promise_mib,
        "card_mib": card_mib,
        "use_pct": None if use is None else round(100 * use, 1),
        "promised_pct": None if best_effort else promised.milli / 10,
        "enough_gpu": None if enough is None or use is None or best_effort else enough.milli / 1000,
        "enough_mib": None if enough is None else enough.mem_mib,
        "gpu_hours": gpu_hours,
        "idle_gpu_hours": (
            None if use is None or best_effort else max(0.0, gpu_hours * (1 - 1000 * use / promised.milli))
        ),
    }


def logged_ending(jobs: LoggedJobs, report: JobReport) -> dict[str, Any]:
    """The same of a job of Slurm, from berth's log, with how long such jobs waited lately."""
    last = jobs.of(report.attempts[-1].job_id)[-1]
    record = last.record
    shown = ending(
        promised=record.share,
        card_mib=last.end.card_mib or None,
        peak_mib=last.end.peak_mib or None,
        use=record.gpu_use_mean,
        completed=record.state is RecordState.COMPLETED,
        waits=waits_of(last),
        gpu_hours=report.gpu_hours,
        best_effort=last.best_effort,
    )
    such = jobs.waits_of_such(record)
    if len(such) >= LEAST_STARTS:
        half_s, most_s = quantiles(such, n=2)[0], quantiles(such, n=10)[8]
        shown |= {"such_jobs": len(such), "half_start_s": half_s, "most_start_s": most_s}
    return shown
