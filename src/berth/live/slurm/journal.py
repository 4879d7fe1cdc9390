"""The lines of `decisions.jsonl`: what berth decided and what Slurm did, built from jobs and kept until written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from berth.live.slurm.attempts import EndedAttempt
from berth.live.slurm.decisions import ENDED, STARTED, Decision, append
from berth.live.slurm.jobs import SlurmJob
from berth.live.slurm.measured_use import Result
from berth.model import Job, Share

NO_PARTITION = "a Prolog could not make its GPU partition, so that it got no GPU there"


class Journal:
    """The log of one berth."""

    def __init__(self, path: Path, policy: str) -> None:
        self._path, self._policy = path, policy
        self._lines: list[Decision] = []

    def save(self) -> None:
        """Write the lines that are not written yet; LiveError leaves them for the next time."""
        append(self._path, self._lines)
        self._lines.clear()

    def withdraw(self, lines: list[Decision]) -> None:
        """Take lines out that are not written yet."""
        self._lines = [line for line in self._lines if line not in lines]

    def add(self, now_ms: int, event: str, job: SlurmJob, why: str) -> None:
        """Something happened to a job, for this reason."""
        self._line(now_ms, event, job, why=why)

    def decided(
        self,
        now_ms: int,
        event: str,
        job: SlurmJob,
        ours: Job,
        share: Share,
        where: str,
        *,
        best_effort: bool = False,
    ) -> Decision:
        """A job is placed, or would be."""
        return self._line(
            now_ms,
            event,
            job,
            policy=self._policy,
            gpus=ours.gpus,
            milli=share.milli,
            mem_mib=share.mem_mib,
            where=where,
            application=ours.application,
            best_effort=best_effort,
        )

    def started(self, now_ms: int, job: SlurmJob, ours: Job, where: str, planned: str) -> None:
        """Slurm has started a job; `planned` is where berth had placed it."""
        self._line(
            now_ms,
            STARTED,
            job,
            start_ms=job.start_ms,
            gpus=ours.gpus,
            milli=ours.share.milli,
            mem_mib=ours.share.mem_mib,
            application=ours.application,
            where=where,
            planned=planned,
            partition=job.partition,
            limit_ms=job.time_limit_ms,
        )

    def ended(self, now_ms: int, end: EndedAttempt, card_mib: int) -> None:
        """An attempt has ended on GPUs of this size."""
        job, result = end.job, end.result or Result("", "", 0, 0, 0)
        self._line(
            now_ms,
            ENDED,
            job,
            state=end.state,
            start_ms=job.start_ms,
            end_ms=end.end_ms,
            where=job.node_list,
            peak_mib=result.peak_mib,
            refused=result.refused,
            gpu_ms=result.gpu_ms,
            card_mib=card_mib if end.result is not None else 0,
            why=NO_PARTITION if result.closed else "",
        )

    def _line(self, now_ms: int, event: str, job: SlurmJob, **more: Any) -> Decision:
        line = Decision(now_ms, event, job.id, job.raw_id, submit_ms=job.submit_ms, user=job.user, **more)
        self._lines.append(line)
        return line
