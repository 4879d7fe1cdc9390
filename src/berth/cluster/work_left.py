"""What is left of the work of jobs that were stopped, and which of them get nowhere."""

from __future__ import annotations

from berth.card_speeds import CardSpeeds, card_us
from berth.cluster.cluster import Cluster
from berth.cluster.outages import Recovery
from berth.cluster.running import Running
from berth.model import FOREVER_MS, work_of


class WorkLeft:
    """The work that stopped jobs have left, in time alone on the GPU that they asked for."""

    def __init__(self, cluster: Cluster, recovery: Recovery, speeds: CardSpeeds) -> None:
        self._cluster = cluster
        self._recovery = recovery
        self._speeds = speeds
        self._lost_in_vain: dict[str, int] = {}  # job -> attempts lost with nodes since it last kept any work
        self.left_ms: dict[str, int] = {}
        """Of jobs that are queued again, by id: the work that was left then."""

    def begin(self, run: Running) -> None:
        """An attempt starts, with the work that earlier ones left, in time on its cards; to load what it needs and to
        write checkpoints take as long on every card."""
        job = run.job
        left_ms = self.left_ms.get(job.id)
        if left_ms is not None:
            run.left_us = left_ms * 1000
        milli = self._milli_on(run)
        if milli != 1000:
            run.work_us, run.left_us = card_us(run.work_us, milli), card_us(run.left_us, milli)
        if work_of(job) >= FOREVER_MS:
            return
        if job.keeps_work and self._recovery.write_ms:
            writing_us = self._recovery.writing_ms(work_of(job) if left_ms is None else left_ms) * 1000
            run.work_us, run.left_us = run.work_us + writing_us, run.left_us + writing_us
        if left_ms is not None:
            run.left_us += self._recovery.restart_ms * 1000

    def stop(self, run: Running) -> None:
        """An attempt was stopped and its job is queued again."""
        self.left_ms[run.job.id] = self._left_ms_of(run)

    def is_given_up(self, run: Running) -> bool:
        """Whether too many attempts in a row, this one included, were lost with their nodes and kept nothing."""
        job = run.job
        if self._left_ms_of(run) < self.left_ms.get(job.id, work_of(job)):
            self._lost_in_vain.pop(job.id, None)
            return False
        lost = self._lost_in_vain[job.id] = self._lost_in_vain.get(job.id, 0) + 1
        return lost >= self._recovery.most_lost

    def forget(self, job_id: str) -> None:
        """A job has ended for good."""
        self.left_ms.pop(job_id, None)

    def _left_ms_of(self, run: Running) -> int:
        """The work that is left of a job that was taken off its GPUs, with what it keeps."""
        job = run.job
        work_ms = work_of(job)
        if not job.keeps_work or work_ms >= FOREVER_MS:
            return work_ms
        before_ms = self.left_ms.get(job.id, work_ms)
        milli = self._milli_on(run)
        recovery = self._recovery
        if recovery.write_ms:
            all_us = card_us(before_ms * 1000, milli) + recovery.writing_ms(before_ms) * 1000
            return before_ms - recovery.written_ms(all_us - run.left_us, milli)
        # One that was still loading has done nothing.
        left_ms = -(-run.left_ms * milli // 1000)
        return work_ms - recovery.saved_ms(work_ms - min(left_ms, before_ms))

    def _milli_on(self, run: Running) -> int:
        job = run.job
        return self._speeds.on(job, run.slots, self._cluster.nodes) if job.elastic or self._speeds else 1000
