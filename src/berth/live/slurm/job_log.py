"""What berth's own log tells of one job, at its end: the log as a source of job reports, and what only it knows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import quantiles

from berth.history.jobs.job_report import JobReport, Neighbour, UsePoint, Wait, enough_share
from berth.history.store.usage import UsageRow
from berth.history.values.durations import duration_text
from berth.history.values.hostlist import expand
from berth.live.slurm.decisions import ADVISED, ENDED, PLACED, STATES, Decision, attempts_of
from berth.model import Record, RecordState, Share

LEAST_STARTS = 20
"""Starts of such jobs without which no estimate is made."""
MOST_STARTS = 500
BAR = 30
"""Letters of a bar."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a job in the log."""

    record: Record
    placed: tuple[Decision, ...]
    """What berth decided of it before it started, and took back, in order."""
    end: Decision

    @property
    def best_effort(self) -> bool:
        """Whether it took the compute that others left."""
        return bool(self.placed) and self.placed[-1].best_effort


class LoggedJobs:
    """Jobs by berth's log: a source of `job_reports`."""

    def __init__(self, lines: Iterable[Decision]) -> None:
        self._attempts = list(_attempts(lines))

    def attempts(self, job: str) -> Sequence[Record]:
        """All ended attempts of the jobs of this id."""
        return [each.record for each in self.of(job)]

    def of(self, job: str) -> Sequence[Attempt]:
        """All ended attempts of the jobs of this id, with what was decided of them."""
        return [each for each in self._attempts if job in (each.record.job_id, each.record.label)]

    def series(self, attempts: Sequence[Record]) -> Sequence[UsePoint]:
        """Nothing: an Epilog measures a job as a whole."""
        return ()

    def refused(self, attempts: Sequence[Record]) -> int | None:
        """How many allocations were refused at its limit of GPU memory; None if no Epilog said."""
        ends = [each.end for each in self._attempts if each.record in attempts]
        return sum(end.refused for end in ends) if any(end.card_mib for end in ends) else None

    def neighbours(self, attempts: Sequence[Record]) -> Sequence[Neighbour]:
        """Ended attempts of other jobs that ran on GPUs of these while they did."""
        ours = {record.job_id for record in attempts}
        found = [
            Neighbour(r.label or r.job_id, r.user, r.start_ms, r.end_ms, r.gpu_slots)
            for r in (each.record for each in self._attempts)
            if r.start_ms is not None
            and r.job_id not in ours
            and any(_meet(r, record) for record in attempts)
        ]
        return sorted(found, key=lambda each: each.start_ms)

    def waits_of_such(self, record: Record) -> Sequence[float]:
        """How long the last jobs of this partition with as many GPUs waited for their start, in seconds."""
        such = [
            (each.record.start_ms - each.record.queued_ms) / 1000
            for each in self._attempts
            if each.record.start_ms is not None
            and (each.record.virtual_cluster, each.record.gpus) == (record.virtual_cluster, record.gpus)
        ]
        return such[-MOST_STARTS:]


def _meet(one: Record, other: Record) -> bool:
    if one.start_ms is None or other.start_ms is None or not {*one.gpu_slots} & {*other.gpu_slots}:
        return False
    return one.start_ms < other.end_ms and other.start_ms < one.end_ms


def _attempts(lines: Iterable[Decision]) -> Iterator[Attempt]:
    """The attempts that have ended, in the order of their ends."""
    done: dict[str, list[Record]] = {}
    for decided, start, end in attempts_of(lines):
        if end is None or end.start_ms is None or end.end_ms is None:
            continue
        placed = tuple(line for line in decided if line.event != ADVISED)
        before = done.setdefault(end.raw, [])
        record = _record(end, start or end, placed, len(before) + 1)
        if before:
            record = replace(record, queued_ms=before[-1].end_ms)
        before.append(record)
        yield Attempt(record, placed, end)


def _record(end: Decision, start: Decision, placed: Sequence[Decision], attempt: int) -> Record:
    state = STATES.get(end.state, RecordState.CANCELLED)
    if end.refused and state is RecordState.FAILED:
        state = RecordState.OUT_OF_MEMORY
    promise = next((each for each in reversed(placed) if each.event == PLACED), start)
    slots = tuple(
        f"{node}:{index}"
        for node, _, at in (each.partition(":") for each in start.where.split(","))
        for index in at.split("+")
        if index
    )
    assert end.start_ms is not None
    assert end.end_ms is not None
    ran_ms = max(1, end.end_ms - end.start_ms)
    use = None if end.gpu_ms is None or not start.gpus else min(1.0, end.gpu_ms / ran_ms / start.gpus)
    return Record(
        job_id=end.raw,
        attempt=attempt,
        user=end.user,
        application=start.application,
        virtual_cluster=start.partition,
        submit_ms=end.submit_ms,
        queued_ms=end.submit_ms,
        start_ms=end.start_ms,
        end_ms=end.end_ms,
        state=state,
        gpus=start.gpus,
        share=Share(promise.milli, promise.mem_mib),
        cpu_milli=0,
        mem_mib=0,
        nodes=expand(end.where),
        gpu_model="",
        work_ms=None,
        gpu_use_mean=use,
        gpu_mem_peak=min(1.0, end.peak_mib / end.card_mib) if end.card_mib and end.peak_mib else None,
        time_limit_ms=start.limit_ms,
        end_reason=end.why,
        label="" if end.job == end.raw else end.job,
        gpu_slots=slots,
    )


def waits_of(attempt: Attempt) -> Sequence[Wait]:
    """How long an attempt waited for what: for berth to place it, and then for Slurm to start it."""
    found: list[Wait] = []
    at_ms, cause = attempt.record.queued_ms, "room on GPUs, until berth placed it"
    for line in (*attempt.placed, None):
        until_ms = attempt.record.start_ms if line is None else line.at_ms
        if until_ms is not None and until_ms > at_ms:
            found.append(Wait((until_ms - at_ms) / 1000, cause))
            at_ms = until_ms
        if line is not None and line.event == PLACED:
            cause = "Slurm to start it"
        elif line is not None:
            cause = f"another place, after {line.why}"
    return found


def ending_lines(jobs: LoggedJobs, report: JobReport) -> Iterator[str]:
    """What only berth's log knows of a job that has ended: waits by cause, its memory in a picture, what would have
    been enough, and when such a job would start now."""
    last = jobs.of(report.attempts[-1].job_id)[-1]
    record, end = last.record, last.end
    waits = waits_of(last)
    if waits:
        yield "It waited:"
        yield from (f"  {duration_text(each.seconds)} for {each.cause}" for each in waits)
    if end.card_mib and end.peak_mib:
        promise = record.share.mem_mib or end.card_mib
        yield "Its GPUs (#: used, :: promised):"
        bar = _bar(end.peak_mib / end.card_mib, promise / end.card_mib)
        yield f"  memory  |{bar}| {_gib(end.peak_mib)} of {_gib(promise)}, card {_gib(end.card_mib)}"
    if record.gpu_use_mean is not None:
        part = 0.0 if last.best_effort else record.share.milli / 1000
        of = "best effort" if last.best_effort else f"of {100 * part:.0f} %"
        yield f"  time    |{_bar(record.gpu_use_mean, part)}| {100 * record.gpu_use_mean:.0f} % {of}"
    yield from _enough(record, end, best_effort=last.best_effort)
    such = jobs.waits_of_such(record)
    if len(such) < LEAST_STARTS:
        yield (
            f"When the next would start is not known: of such jobs {len(such)} have started, and {LEAST_STARTS} must."
        )
    else:
        half, most = quantiles(such, n=2)[0], quantiles(such, n=10)[8]
        yield (
            f"Of the last {len(such)} such jobs half started within {duration_text(half)}, and 9 of 10 within"
            f" {duration_text(most)}."
        )


def _enough(record: Record, end: Decision, *, best_effort: bool) -> Iterator[str]:
    """What to ask for next time, if it is less than was promised."""
    promise = record.share.mem_mib or end.card_mib
    if record.state is not RecordState.COMPLETED or not end.peak_mib or not promise:
        return
    used = None if best_effort else record.gpu_use_mean
    enough = enough_share(Share(record.share.milli, promise), used, end.peak_mib)
    mem_mib, promise_pct = enough.mem_mib, record.share.milli // 10
    pct = None if used is None else enough.milli // 10
    if mem_mib >= promise and pct in (None, promise_pct):
        yield "What it was promised was about what it used."
        return
    part = f"{pct / 100:g} of a GPU and " if pct is not None and pct < 100 else ""
    pct_word = f" gpu_pct={pct}" if part else ""
    word, text = (
        (f"{mem_mib}M", f"{mem_mib} MiB") if mem_mib % 1024 else (f"{mem_mib >> 10}G", f"{mem_mib >> 10} GiB")
    )
    asked = f'sbatch --gres=gpu:{record.gpus} --comment "gpu_mem={word}{pct_word}"'
    yield f"{part}{text} of GPU memory would have done: {asked}"
    if record.gpu_use_mean is None:
        yield "Its compute was not measured, as it was not limited."


def _bar(used: float, promised: float) -> str:
    used_at, promised_at = min(BAR, round(used * BAR)), min(BAR, round(promised * BAR))
    return f"{'#' * used_at}{':' * max(0, promised_at - used_at)}".ljust(BAR, ".")


def _gib(mib: int) -> str:
    return f"{mib / 1024:.1f} GiB"


def measured(decisions: Iterable[Decision], cluster: str = "") -> list[UsageRow]:
    """What Epilogs measured of each job, for the history: its peak of GPU memory as a part of its GPU's."""
    return [
        UsageRow(
            "sampled",
            f"slurm-{line.raw}-{line.start_ms}",
            line.where,
            cluster,
            line.raw,
            line.start_ms,
            line.end_ms,
            0,
            0.0,
            1.0,
            mem_peak=min(1.0, line.peak_mib / line.card_mib),
        )
        for line in decisions
        if line.event == ENDED and line.peak_mib and line.card_mib and line.start_ms and line.end_ms
    ]
