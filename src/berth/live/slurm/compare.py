"""What berth decided compared with what Slurm did, for the same jobs: waits, and use of the GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

from berth.live.slurm.decisions import PLACED, TAKEN_BACK, Attempt, Decision, attempts_of


@dataclass(frozen=True, slots=True)
class Comparison:
    """Waits of the jobs that both have started, s, and how far the GPUs were in use."""

    jobs: int
    slurm_wait_mean_s: float
    slurm_wait_median_s: float
    berth_wait_mean_s: float
    berth_wait_median_s: float
    earlier: int
    """Jobs that berth would have started more than a second earlier."""
    never: int
    """Jobs that Slurm started and berth would not have until then."""
    slurm_use: float
    """GPU time that jobs had of the time from the first submission to the last end, as a fraction of `gpus`."""
    gpus: int
    taken_back: int


def decided_ms(attempt: Attempt) -> int | None:
    """When berth placed a job, or else first would have started it; None: it never did, or took it back."""
    found: Decision | None = None
    for line in attempt.decided:
        if line.event == TAKEN_BACK:
            found = None
        elif line.event == PLACED or found is None:
            found = line
    return None if found is None else found.at_ms


def compare(decisions: Sequence[Decision], gpus: int) -> Comparison:
    """Side by side, over the jobs of the log; `gpus` is how many the cluster has."""
    started = [(each, each.start) for each in attempts_of(decisions) if each.start is not None]
    both = [
        (_start_ms(start) - start.submit_ms, max(0, at_ms - start.submit_ms))
        for each, start in started
        if (at_ms := decided_ms(each)) is not None
    ]
    slurm, berth = [theirs / 1000 for theirs, _ in both], [ours / 1000 for _, ours in both]
    ends = [
        (each.end.end_ms, start)
        for each, start in started
        if each.end is not None and each.end.end_ms is not None
    ]
    span_ms = max((end_ms for end_ms, _ in ends), default=0)
    span_ms -= min((start.submit_ms for _, start in started), default=0)
    busy_ms = sum((end_ms - _start_ms(start)) * start.gpus * start.milli / 1000 for end_ms, start in ends)
    return Comparison(
        len(started),
        mean(slurm or [0.0]),
        median(slurm or [0.0]),
        mean(berth or [0.0]),
        median(berth or [0.0]),
        sum(ours < theirs - 1000 for theirs, ours in both),
        len(started) - len(both),
        busy_ms / (span_ms * gpus) if span_ms > 0 and gpus else 0.0,
        gpus,
        sum(line.event == TAKEN_BACK for line in decisions),
    )


def _start_ms(start: Decision) -> int:
    return start.start_ms or start.at_ms
