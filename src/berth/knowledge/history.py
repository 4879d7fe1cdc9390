"""What was seen before as knowledge: run times, memory and profiles of applications, learned from what ends."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace

import numpy as np

from berth.gpu_models import GPU_MODELS
from berth.interference import Speeds
from berth.interference.speeds import unhindered
from berth.knowledge.belief import CAUTIOUS_MS, DEFAULT, LONGEST_MS, OTHERS, Spread
from berth.knowledge.out_of_memory import EIGHTHS, MemoryNeed, need_after
from berth.knowledge.user import User
from berth.model import FIRST_LOOK_MS, GpuModel, Job, Profile, Record, RecordState
from berth.profiles import BEGUN, RUNNING, is_steady, peak_mem_mib, run_time_ms

REMEMBERED = 64
"""Attempts of a kind that are remembered."""
FADES = 0.9
"""What an attempt weighs beside the next one of its kind."""
ENOUGH = 3
"""A kind with fewer attempts is asked about only where no wider kind has as many."""

BEGUN_RUNS = 2
"""The run time that is expected of a begun run, over what was seen of it: what has run for long goes on for long. Of
drawn applications (`drawn_profiles`, seeds 700,000 to 700,099) the median is 3.7 after half a minute, 2.6 after one,
1.6 after two. At most four times count as possible, or the time limit."""
BEGUN_PEAK = 0.5
"""By which part the highest memory of a run may be above that of its first half minute; half of that after a minute, a
quarter after two. Of those drawn applications, in nine of ten it is by 0.28, 0.22 and 0.06 at most."""

_log = logging.getLogger(__name__)


class History:
    """Knows what it has seen: run times and memory by application, user and request, profiles as they were recorded.

    Where a job's own kind was seen too seldom, a wider one of its application counts. Where none was, other jobs of its
    user that ask for the same tell its run time; then the user's limits, and else a cautious default. Which it was, a
    belief tells (`Spread.basis`). An application is recorded when it ran with whole GPUs to itself, and from
    its first half minute on where runs are sampled. Running out of memory raises what it is believed to need; a profile
    that stays wrong is widened further, which is logged as a warning, and the application runs beside fewer others, at
    last alone.
    """

    certain = False
    learns = True

    def __init__(
        self,
        records: Iterable[Record] = (),
        profiles: Mapping[str, Profile] | None = None,
        *,
        recorder: Mapping[str, Profile] | None = None,
        speeds: Speeds = unhindered,
    ) -> None:
        """`records` and `profiles` are what it begins with; `recorder` has what a recorder would write down of an
        application that runs alone. In a simulation that is the truth, which nothing else here may see."""
        self.speeds = speeds
        self._recorder = recorder or {}
        self.first_look_ms: int | None = None
        self._recorded: dict[str, Profile] = dict(profiles or {})
        self._profiles = dict(self._recorded)
        self.profiles: Mapping[str, Profile] = self._profiles
        self._run_ms: dict[tuple[object, ...], _Seen] = {}
        self._peak_mib: dict[tuple[object, ...], _Seen] = {}
        self._needs_mib: dict[
            str, int
        ] = {}  # application -> what it needs at least, since it ran out of memory
        self._out_of_memory: dict[str, int] = {}
        self._ran_out_last: set[str] = set()
        self._ran_ms: dict[str, int] = {}  # job -> it has run at least this long
        self._user = User()
        self._warned: set[str] = set()  # applications, or jobs without one, of unknown run time
        for record in records:
            self._user.observe(record)
            if record.state is RecordState.COMPLETED and record.start_ms is not None:
                run_ms = record.work_ms if record.work_ms is not None else record.end_ms - record.start_ms
                self._note(self._run_ms, _kinds(record), run_ms)
            card = GPU_MODELS.get(record.gpu_model)
            if record.gpu_mem_peak is not None and card is not None:
                peak_mib = round(record.gpu_mem_peak * card.mem_mib)
                self._note(self._peak_mib, _kinds(record), peak_mib)

    def run_ms(self, job: Job) -> Spread | None:
        """The mean of its kind, and between which times four in five were; of those alone that ran longer than it has
        by now, where it has outlived what was expected. Where none was seen, the user's estimate, then the run time of
        its application's profile, as uncertain as an estimate, then the time limit."""
        ran_ms = self._ran_ms.get(job.id, 0)
        seen, basis = self._seen(self._run_ms, job, like=True), "history"
        if seen is None and job.application:
            seen, basis = self._seen(self._run_ms, job), OTHERS
        if seen is not None:
            spread = seen.spread(above=ran_ms)
            if spread is not None:
                return spread._replace(basis=basis)
            return Spread(2 * ran_ms, ran_ms, 4 * ran_ms, "outlived")
        recorded = self._recorded.get(job.application)
        if recorded is not None and recorded.kind != RUNNING and job.estimate_ms is None:
            longer = BEGUN_RUNS if recorded.kind == BEGUN else 1
            estimated = self._user.run_ms(replace(job, estimate_ms=longer * run_time_ms(recorded)))
            if estimated is not None:
                return estimated._replace(basis="profile" if estimated.basis == "user" else estimated.basis)
        estimated = self._user.run_ms(job)
        if estimated is not None and (estimated.basis == "user" or ran_ms >= CAUTIOUS_MS):
            return estimated
        if job.application not in self._warned:  # once of all jobs that name none
            self._warned.add(job.application)
            named = f"'{job.application}'" if job.application else "a job that names no application"
            _log.warning(
                "the run time of %s is unknown, and it has no time limit: %d h are assumed",
                *(named, CAUTIOUS_MS // 3_600_000),
            )
        return Spread(CAUTIOUS_MS, ran_ms, CAUTIOUS_MS, DEFAULT)

    def profile(self, job: Job, gpu: GpuModel | None) -> Profile | None:
        """As it was recorded, with the memory that it is believed to need by now."""
        return self.profiles.get(job.application)

    def show_no_profiles(self) -> None:
        """Have policies see no profile, so that a job gets what it asks for; what was recorded still tells run times
        and memory."""
        self.profiles = {}

    def recorded_profile(self, application: str) -> Profile | None:
        """What was recorded of an application, even if policies see no profiles."""
        return self._recorded.get(application)

    def peak_mem_mib(self, job: Job, gpu: GpuModel | None = None) -> Spread | None:
        """The median of its application and its recorded peak, no less than what it ran out of; else what the job asks
        for, else the whole card."""
        needs_mib = self._needs_mib.get(job.application, 0)
        seen = self._seen(self._peak_mib, job, like=True)
        recorded = self._recorded.get(job.application)
        recorded_mib = 0 if recorded is None else peak_mem_mib(recorded)
        if seen is not None or recorded_mib:  # a profile without GPU memory tells of none
            peaks = _Seen() if seen is None else seen
            low, median, high = peaks.memory(recorded_mib)
            if recorded is not None and recorded.kind == BEGUN:
                high = max(
                    high, round(recorded_mib * (1 + BEGUN_PEAK * FIRST_LOOK_MS / run_time_ms(recorded)))
                )
            return Spread(max(median, needs_mib), min(low, median), max(high, needs_mib), "history")
        if job.share.mem_mib > 0:
            asked_mib = max(job.share.mem_mib, needs_mib)
            return Spread(asked_mib, 0, asked_mib, "user")
        if needs_mib:
            return Spread(needs_mib, 0, needs_mib, "history")
        if gpu is None or not gpu.mem_mib:
            return None
        return Spread(gpu.mem_mib, 0, gpu.mem_mib, DEFAULT)

    def company(self, application: str) -> int | None:
        """How many jobs may be on its GPU, itself included; None: as many as fit."""
        return MemoryNeed(self._out_of_memory.get(application, 0)).company

    def usual_requests(self) -> Sequence[Job]:
        """What the jobs that have ended asked for."""
        return self._user.usual_requests()

    def observe(self, record: Record) -> None:
        """Remember what it asked for; what was learned of this attempt is forgotten. If it did not complete, so is the
        profile of a begun run: another run alone is to show more."""
        self._user.observe(record)
        self._ran_ms.pop(record.job_id, None)
        if record.state is RecordState.COMPLETED:
            self._ran_out_last.discard(record.application)
        elif record.start_ms is not None and self._is_begun(record.application):
            del self._recorded[record.application], self._profiles[record.application]

    def worked(self, job: Job, work_ms: int, *, alone: bool) -> None:
        """Remember its run time; one that was alone on its GPUs was recorded, and is believed as it was seen."""
        name = job.application
        if alone and job.gpus and (seen := self._recorder.get(name)) is not None:
            self._recorded[name] = self._profiles[name] = seen
            self._needs_mib.pop(name, None)
            self._out_of_memory.pop(name, None)
        self._note(self._run_ms, _kinds(job), work_ms)

    def measured(self, job: Job, peak_mib: int) -> None:
        """Remember the peak of a live job, which its partition kept to the byte."""
        self._note(self._peak_mib, _kinds(job), peak_mib)

    def wants_to_see(self, job: Job) -> bool:
        """Whether no whole run of its application was recorded."""
        name = job.application
        return bool(name) and (name not in self._recorded or self._is_begun(name))

    def _is_begun(self, application: str) -> bool:
        """Whether no more is known of it than the first part of a run."""
        known = self._recorded.get(application)
        return known is not None and known.kind == BEGUN

    def recorded(self, profile: Profile) -> None:
        """Believe a profile that was recorded from life; what was learned since it ran out of memory stays. One of a
        begun run counts once its memory has loaded, until there is a longer or a whole one."""
        name = profile.application
        if profile.kind == BEGUN:
            known = self._recorded.get(name)
            longer = known is None or (known.kind == BEGUN and run_time_ms(known) < run_time_ms(profile))
            if not longer or not is_steady(profile):
                return
        self._recorded[name] = self._profiles[name] = profile
        if name in self._needs_mib:
            self._widen(name)

    def renew(self, seen: History) -> None:
        """Believe what another has seen, which was made of the same history later on. Kinds of jobs that it has not
        seen, and what was learned since an application ran out of memory, stay."""
        for name, profile in seen._recorded.items():
            if not _same(profile, self._recorded.get(name)):
                self.recorded(profile)
        self._run_ms |= seen._run_ms
        self._peak_mib |= seen._peak_mib

    def ran_out_of_memory(self, job: Job, held_mib: int) -> None:
        """Believe that the application needs more than it held, and after the second time that it needs room."""
        name = job.application
        if not name:
            return  # jobs without a name have nothing else in common
        self._ran_out_last.add(name)
        if 0 < job.share.mem_mib < held_mib <= self._needs_mib.get(name, 0):
            return  # it began with less than is believed by now, which may well be right
        believed = self.peak_mem_mib(job)
        before_mib = believed.expected if believed and believed.basis == "history" else 0
        before = MemoryNeed(self._out_of_memory.get(name, 0), before_mib)
        times, self._needs_mib[name] = need_after(before, held_mib)
        self._out_of_memory[name] = times
        self._widen(name)
        if times > 1:
            most = self.company(name)
            limit_text = "" if most is None else f"; at most {most} on its GPU from now on"
            _log.warning(
                "'%s' has run out of memory %d times: what is known of it is wrong, and it is taken to need %d MiB%s",
                *(name, times, self._needs_mib[name], limit_text),
            )

    def ran_out_last(self, application: str) -> bool:
        """Whether a job of it ran out of memory, and none has completed since."""
        return application in self._ran_out_last

    def neighbour_ran_out(self, job: Job, held_mib: int) -> None:
        """Believe that a neighbour which held more than was believed needs an eighth more than that: it was the cause,
        and did not fail itself."""
        believed = self.peak_mem_mib(job) if job.application else None
        if believed is not None and held_mib > believed.expected:
            self._needs_mib[job.application] = held_mib + held_mib // EIGHTHS
            self._widen(job.application)

    def outlived(self, job: Job, ran_ms: int) -> None:
        """Expect it anew, as one of those that run longer."""
        self._ran_ms[job.id] = max(ran_ms, 1)
        self._user.outlived(job, ran_ms)

    def _widen(self, name: str) -> None:
        """Let the profile of an application reach what it is believed to need."""
        profile = self._recorded.get(name)
        if profile is not None and (peak_mib := peak_mem_mib(profile)) > 0:
            factor = max(1.0, self._needs_mib[name] / peak_mib)
            self._profiles[name] = replace(profile, usage=profile.usage * np.array([1.0, factor, 1.0, 1.0]))

    def _note(
        self, where: dict[tuple[object, ...], _Seen], kinds: Iterable[tuple[object, ...]], value: int
    ) -> None:
        if 0 < value < LONGEST_MS:
            for kind in kinds:
                where.setdefault(kind, _Seen()).add(value)

    def _seen(
        self, where: Mapping[tuple[object, ...], _Seen], job: Job, *, like: bool = False
    ) -> _Seen | None:
        """What was seen of the job's kind, or of the narrowest wider one of which enough was seen; with `like`, of no
        other application."""
        kinds = list(_kinds(job))
        if like and job.application:
            kinds = [kind for kind in kinds if kind[0] == "application"]
        there = [seen for kind in kinds if (seen := where.get(kind)) is not None]
        return next((seen for seen in there if len(seen.values) >= ENOUGH), there[0] if there else None)


class _Seen:
    """Numbers that were seen of one kind, the last at the end: those count most."""

    def __init__(self) -> None:
        self.values: deque[int] = deque(maxlen=REMEMBERED)
        self._of_all: Spread | None = None

    def add(self, value: int) -> None:
        self.values.append(value)
        self._of_all = None

    def spread(self, above: int = 0) -> Spread | None:
        """Of the values above this the mean and the outer tenths, further out where few were seen; None for none."""
        if above:
            return self._spread(above)
        if self._of_all is None:  # asked for each job that starts
            self._of_all = self._spread(0)
        return self._of_all

    def _spread(self, above: int) -> Spread | None:
        values, weights = self._weighted(above)
        if not len(values):
            return None
        reach = 1 + 1 / _as_many_as(weights)
        low, high = _quantiles(values, weights, (0.1, 0.9))
        expected = max(1, round(float((values * weights).sum() / weights.sum())))
        return Spread(
            expected,
            min(expected, max(above, round(low / reach))),
            max(expected, round(high * reach)),
            "history",
        )

    def memory(self, recorded_mib: int) -> tuple[int, int, int]:
        """Lower tenth, median and upper tenth; a recorded peak counts as one more that was seen, and is never cut."""
        values, weights = self._weighted(0)
        if recorded_mib:
            values, weights = np.append(values, recorded_mib), np.append(weights, 1.0)
        reach = 1 + 1 / (16 * _as_many_as(weights))
        low, median, high = _quantiles(values, weights, (0.1, 0.5, 0.9))
        return round(low / reach), round(max(median, recorded_mib)), round(max(high, recorded_mib) * reach)

    def _weighted(self, above: int) -> tuple[np.ndarray, np.ndarray]:
        values = np.array(self.values, dtype=np.float64)
        weights = FADED[REMEMBERED - len(values) :]
        return (values, weights) if above <= 0 else (values[values > above], weights[values > above])


def _same(profile: Profile, other: Profile | None) -> bool:
    """Whether they say the same: policies plan anew by each profile that is another."""
    return other is not None and all(
        np.array_equal(getattr(profile, each.name), getattr(other, each.name))
        if each.name == "usage"
        else getattr(profile, each.name) == getattr(other, each.name)
        for each in fields(Profile)
    )


FADED = FADES ** np.arange(REMEMBERED - 1, -1, -1)
"""Weights of values, the last with 1."""


def _as_many_as(weights: np.ndarray) -> float:
    """How many values of one weight tell as much (Kish's effective sample size)."""
    return float(weights.sum() ** 2 / (weights**2).sum())


def _quantiles(values: np.ndarray, weights: np.ndarray, parts: Sequence[float]) -> list[float]:
    """The smallest value that this part of the weight does not exceed, for each part."""
    order = values.argsort(kind="stable")
    summed = weights[order].cumsum()
    ordered, total, last = values[order], summed[-1], len(values) - 1
    return [float(ordered[min(summed.searchsorted(part * total), last)]) for part in parts]


def _kinds(one: Job | Record) -> Iterator[tuple[object, ...]]:
    """From the narrowest to the widest; users and applications without a name make no kind."""
    request = one.gpus, one.share.milli
    if one.application:
        yield "application", one.application, one.user, request
        yield "application", one.application, one.user
        yield "application", one.application
    if one.user:
        yield "user", one.user, request
