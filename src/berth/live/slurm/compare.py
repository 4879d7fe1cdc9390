"""What berth decided compared with what Slurm did, for the same jobs: waits, and use of the GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import mean, median

from berth.live.slurm.decisions import ADVISED, ENDED, PLACED, STARTED, TAKEN_BACK, Decision
from berth.model import Record


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of a job by Slurm, with what berth had decided before it."""

    job: str
    raw: str
    submit_ms: int
    decided_ms: int | None
    """When berth first would have started it, or placed it; None: it never did."""
    where: str
    placed: bool
    """Whether berth placed it; else it only advised."""
    start_ms: int
    end_ms: int | None
    gpus: int
    milli: int
    state: str
    policy: str


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


def attempts_of(decisions: Iterable[Decision]) -> list[Attempt]:
    """The starts in the log, in their order."""
    decided: dict[str, Decision] = {}
    open_: dict[str, Attempt] = {}
    found: list[Attempt] = []
    for line in decisions:
        if line.event in (ADVISED, PLACED):
            if line.event == PLACED or line.job not in decided:
                decided[line.job] = line
        elif line.event == TAKEN_BACK:
            decided.pop(line.job, None)
        elif line.event == STARTED:
            said = decided.pop(line.job, None)
            start_ms = line.start_ms or line.at_ms
            open_[line.job] = Attempt(
                line.job,
                line.raw,
                line.submit_ms,
                None if said is None else said.at_ms,
                "" if said is None else said.where,
                said is not None and said.event == PLACED,
                start_ms,
                None,
                line.gpus,
                line.milli,
                "RUNNING",
                "" if said is None else said.policy,
            )
        elif line.event == ENDED and line.job in open_:
            found.append(replace(open_.pop(line.job), end_ms=line.end_ms, state=line.state))
    return sorted([*found, *open_.values()], key=lambda attempt: (attempt.start_ms, attempt.job))


def compare(decisions: Iterable[Decision], gpus: int) -> Comparison:
    """Side by side, over the jobs of the log; `gpus` is how many the cluster has."""
    decisions = list(decisions)
    attempts = attempts_of(decisions)
    both = [each for each in attempts if each.decided_ms is not None]
    slurm = [(each.start_ms - each.submit_ms) / 1000 for each in both]
    berth = [max(0, (each.decided_ms or 0) - each.submit_ms) / 1000 for each in both]
    ends = [each.end_ms for each in attempts if each.end_ms is not None]
    span_ms = max(ends, default=0) - min((each.submit_ms for each in attempts), default=0)
    busy_ms = sum(
        (each.end_ms - each.start_ms) * each.gpus * each.milli / 1000
        for each in attempts
        if each.end_ms is not None
    )
    return Comparison(
        len(attempts),
        _mean(slurm),
        _median(slurm),
        _mean(berth),
        _median(berth),
        sum(ours < theirs - 1 for ours, theirs in zip(berth, slurm, strict=True)),
        len(attempts) - len(both),
        busy_ms / (span_ms * gpus) if span_ms > 0 and gpus else 0.0,
        gpus,
        sum(line.event == TAKEN_BACK for line in decisions),
    )


def _mean(values: list[float]) -> float:
    return mean(values) if values else 0.0


def _median(values: list[float]) -> float:
    return median(values) if values else 0.0


def joined(records: Iterable[Record], attempts: Iterable[Attempt]) -> list[tuple[Record, Attempt | None]]:
    """Each record of the accounting with the start in berth's log that is the same: the job's number, and its start to
    the second, for a job may have been started several times."""
    by_start = {(each.raw, each.start_ms // 1000): each for each in attempts}
    return [
        (record, None if record.start_ms is None else by_start.get((record.job_id, record.start_ms // 1000)))
        for record in records
    ]
