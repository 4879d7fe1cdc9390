"""What is not started because beliefs may be wrong: jobs run longer than is expected of them, and progress slower."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from berth.interference.known_speeds import MOST
from berth.knowledge import LONGEST_MS, Knowledge, KnowsSurprises, LimitsCompany, believed_run
from berth.model import GpuModel, Job
from berth.policies.colocation.forecast import Candidate, Forecaster, Forecasts, Offer

BEHIND = 0.04
"""The part of its work by which a tenant that neighbours slow may be behind what is believed of it."""


class Doubts:
    """Rules out combinations that fit only if all comes as expected.

    Memory is not taken to be free at the end that is expected of a job: it is held until the upper tenth of what is
    believed of its run time, and a tenant among others may be `BEHIND`. Beside an application of which a job ran out of
    memory last, each counts with the most that it has still to come, whenever that is.
    """

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge
        self._company = knowledge if isinstance(knowledge, LimitsCompany) else None
        self._surprises = knowledge if isinstance(knowledge, KnowsSurprises) else None

    def most_together(self, application: str) -> int:
        """How many jobs may be on its GPU, itself included."""
        most = None if self._company is None else self._company.company(application)
        return MOST if most is None else most

    def rule_out(
        self,
        forecasts: Forecasts,
        jobs: Sequence[tuple[Sequence[Job], Sequence[Job]]],
        forecaster: Forecaster,
        gpu: GpuModel | None,
    ) -> None:
        """Mark combinations in doubt as not fitting; `jobs` are the tenants and the window of each offer."""
        fits = forecasts.fits
        if self._company is not None:
            for row, (tenants, window) in enumerate(jobs):
                fits[row] &= self.trusted(tenants, window, fits.shape[1])
        if self._knowledge.certain:
            return
        starts = np.flatnonzero(fits[:, 1:].any(axis=1)).tolist()
        if not starts:
            return
        offers = [self._late(forecasts.offers[row], *jobs[row]) for row in starts]
        late = forecaster.forecasts(offers, gpu).fits
        late[:, 0] = True
        fits[starts, : late.shape[1]] &= late
        if self._surprises is not None:
            for row, offer in zip(starts, offers, strict=True):
                fits[row] &= self._by_peaks(offer, forecaster, gpu, fits.shape[1])

    def trusted(self, tenants: Sequence[Job], window: Sequence[Job], count: int) -> NDArray[np.bool_]:
        """(C,): which combinations are of no more jobs than each of them is trusted to run beside."""
        member = np.arange(count)[:, None] >> np.arange(len(window)) & 1  # (C, M)
        together = len(tenants) + member.sum(axis=1)
        most = [self.most_together(job.application) for job in window]
        least = np.where(member.astype(bool), most, MOST).min(axis=1, initial=MOST)
        least = np.minimum(least, min((self.most_together(job.application) for job in tenants), default=MOST))
        return np.asarray((together <= least) | (np.arange(count) == 0))

    def _late(self, offer: Offer, tenants: Sequence[Job], window: Sequence[Job]) -> Offer:
        """The same jobs with all the work that they may have, those that run less far than is believed."""
        running = []
        for job, one in zip(tenants, offer.tenants, strict=True):
            work_us = self._most_us(job, one)
            done_us = one.work_us - one.left_us
            if len(tenants) > 1:  # one that is alone is slowed by nothing
                done_us = max(0, done_us - int(BEHIND * one.work_us))
            running.append(Candidate(one.application, work_us - done_us, work_us, one.ran_ms))
        waiting: list[Candidate] = []
        differ: dict[tuple[str, int], int] = {}
        for job, one in zip(window, offer.window, strict=True):
            work_us = self._most_us(job, one)
            while differ.setdefault((one.application, work_us), one.work_us) != one.work_us:
                work_us += 1  # of jobs that are the same only the first is forecast, and these are not
            waiting.append(Candidate(one.application, work_us, work_us))
        return Offer(tuple(running), tuple(waiting), offer.largest)

    def _most_us(self, job: Job, one: Candidate) -> int:
        """The work that a job may have, μs; a spread that makes no sense adds none."""
        spread = believed_run(job, self._knowledge)
        if spread is None or not 0 < spread.high <= LONGEST_MS:
            return one.work_us
        return max(one.work_us, int(spread.high) * 1000)

    def _by_peaks(
        self, offer: Offer, forecaster: Forecaster, gpu: GpuModel | None, count: int
    ) -> NDArray[np.bool_]:
        """(C,): whether the most that each has still to come fits together, of combinations with an application that
        ran out of memory last; others do."""
        assert self._surprises is not None
        known: dict[str, bool] = {}
        for one in (*offer.tenants, *offer.window):
            if one.application not in known:
                known[one.application] = self._surprises.ran_out_last(one.application)
        if gpu is None or not gpu.mem_mib or not any(known.values()):
            return np.ones(count, dtype=np.bool_)
        member = np.arange(count)[:, None] >> np.arange(len(offer.window)) & 1  # (C, M)
        peaks = np.array([forecaster.peak_to_come_mib(one, gpu) for one in offer.window])
        mem_mib = sum(forecaster.peak_to_come_mib(one, gpu) for one in offer.tenants) + member @ peaks
        doubted = member @ np.array([known[one.application] for one in offer.window]) > 0
        doubted |= any(known[one.application] for one in offer.tenants)
        together = len(offer.tenants) + member.sum(axis=1) > 1
        return np.asarray((mem_mib <= gpu.mem_mib) | ~(doubted & together) | (np.arange(count) == 0))
