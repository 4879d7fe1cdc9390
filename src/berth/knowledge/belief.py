"""What is believed of jobs: the questions that policies ask, and what those that answer are told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from numbers import Real
from typing import NamedTuple, Protocol, runtime_checkable

from berth.errors import KnowledgeError
from berth.interference import Speeds
from berth.model import GpuModel, Job, Profile, Record

DEFAULT = "default"
"""The basis of a belief if nothing is known: a cautious number stands for it."""
OTHERS = "other jobs"
"""The basis of a belief if no job of the application was seen, but others of its user."""
CAUTIOUS_MS = 24 * 3_600_000
"""The run time that is believed of a job of which nothing is known and whose user set no limit."""
LONGEST_MS = 1 << 50
"""A believed run time beyond this, some 35,000 years, tells nothing; forecasts count no more work than this."""

MOST_MIB = 1 << 30
"""A believed need of more GPU memory than this, a pebibyte, tells nothing."""


class Spread(NamedTuple):
    """A believed number: what is expected, and between which values four in five are."""

    expected: int
    """The mean for a run time, the median for memory."""
    low: int
    """The 10 % quantile."""
    high: int
    """The 90 % quantile."""
    basis: str = ""
    """What it rests on, where the kind of knowledge tells: `history`, `other jobs`, `user`, `profile`, `outlived` or
    `default`."""

    @property
    def certain(self) -> bool:
        """Whether there is no doubt about it."""
        return self.low == self.high

    @classmethod
    def exactly(cls, value: int) -> Spread:
        """A number that is known."""
        return cls(value, value, value)


class Knowledge(Protocol):
    """What policies and the scheduler believe of jobs; the truth is the simulator's and the world's alone.

    An answer of None means that nothing is known. Answers about a job may change whenever something was told.
    """

    certain: bool
    """Whether run times, profiles and speeds are the truth: then the simulator's progress is what is believed."""
    learns: bool
    """Whether it wants to be told what happened."""
    profiles: Mapping[str, Profile]
    """What is recorded of applications, by name, each on the card that it was recorded on."""
    speeds: Speeds
    """How fast jobs on one GPU are believed to advance, from what each uses at one moment."""

    def run_ms(self, job: Job) -> Spread | None:
        """Run time alone on the GPUs that the job asks for, ms."""

    def profile(self, job: Job, gpu: GpuModel | None) -> Profile | None:
        """What the job is believed to use of a GPU over its run."""

    def peak_mem_mib(self, job: Job, gpu: GpuModel | None = None) -> Spread | None:
        """The most memory that it is believed to use on each of its GPUs at any time, MiB."""

    def usual_requests(self) -> Sequence[Job]:
        """Jobs like those that usually come, for policies that plan for them; empty where none are known."""

    def observe(self, record: Record) -> None:
        """An attempt has ended."""

    def ran_out_of_memory(self, job: Job, held_mib: int) -> None:
        """A job ran out of GPU memory while it held `held_mib`."""

    def outlived(self, job: Job, ran_ms: int) -> None:
        """A job has done `ran_ms` of work, as run time alone, and has not ended: what was expected of it is over."""


@runtime_checkable
class LearnsWork(Protocol):
    """What else a knowledge has that learns run times from jobs that shared GPUs."""

    def worked(self, job: Job, work_ms: int, *, alone: bool) -> None:
        """A job has ended that did this much work, as run time alone, at the speeds that it is believed to have had;
        `alone` if no other job shared its GPUs."""


@runtime_checkable
class LearnsMemory(Protocol):
    """What else a knowledge has that learns from what partitions and samplers measured of live jobs."""

    def measured(self, job: Job, peak_mib: int) -> None:
        """A job has ended that held at most this much GPU memory on each of its GPUs."""

    def recorded(self, profile: Profile) -> None:
        """An application's profile was recorded, or brought up to date."""


@runtime_checkable
class LearnsUnderWay(Protocol):
    """What else a knowledge has that learns from runs before they end."""

    first_look_ms: int | None
    """After how long a run is looked at first; None: runs are not sampled. The simulator or the driver sets it."""

    def wants_to_see(self, job: Job) -> bool:
        """Whether what was sampled of a run of this job alone would tell something before it ends."""

    def recorded(self, profile: Profile) -> None:
        """An application's profile was recorded, or what is there of it while its first run goes on."""


@runtime_checkable
class LearnsFromNeighbours(Protocol):
    """What else a knowledge has that learns from jobs whose neighbours ran out of memory."""

    def neighbour_ran_out(self, job: Job, held_mib: int) -> None:
        """A job held `held_mib` of a GPU when another job there ran out of memory."""


@runtime_checkable
class KnowsSurprises(Protocol):
    """What else a knowledge has that remembers which applications ran out of memory."""

    def ran_out_last(self, application: str) -> bool:
        """Whether a job of it ran out of memory, and none has completed since."""


@runtime_checkable
class LimitsCompany(Protocol):
    """What else a knowledge has that does not trust every profile."""

    def company(self, application: str) -> int | None:
        """How many jobs may be on a GPU that one of this application shares, itself included; None: as many as fit,
        1: it runs alone."""


def believed_run_ms(job: Job, knowledge: Knowledge) -> int | None:
    """The run time that is expected of a job, ms; None where nothing is known of it, or nothing that makes sense.

    Raises KnowledgeError for an answer that is no Spread of numbers.
    """
    spread = believed_run(job, knowledge)
    return None if spread is None else int(spread.expected)


def believed_run(job: Job, knowledge: Knowledge) -> Spread | None:
    """The run time that is believed of a job, ms; None where nothing is known of it, or nothing that makes sense.

    Raises KnowledgeError for an answer that is no Spread of numbers.
    """
    spread = knowledge.run_ms(job)
    if spread is None:
        return None
    _check(spread, knowledge, "run time", job, "ms")
    return spread if 0 < spread.expected < LONGEST_MS else None


def believed_peak_mib(job: Job, knowledge: Knowledge, gpu: GpuModel | None = None) -> int | None:
    """The upper tenth of the memory that a job is believed to use of each of its GPUs, MiB, rounded up; None where
    nothing is known of it, or nothing that makes sense.

    Raises KnowledgeError for an answer that is no Spread of numbers.
    """
    spread = knowledge.peak_mem_mib(job, gpu)
    if spread is None:
        return None
    _check(spread, knowledge, "GPU memory", job, "MiB")
    return ceil(spread.high) if 0 < spread.high <= MOST_MIB else None


def promised_mib(job: Job, knowledge: Knowledge, quantile: float) -> int | None:
    """The memory that a job's use of each GPU stays below with this probability, MiB; None if nothing is known.

    Between the three quantiles of the belief, and beyond them up to the outer two, lines are drawn.
    Raises KnowledgeError for an answer that is no Spread of numbers.
    """
    spread = knowledge.peak_mem_mib(job)
    if spread is None:
        return None
    _check(spread, knowledge, "GPU memory", job, "MiB")
    if not 0 < spread.high <= MOST_MIB:
        return None
    below, above, left = (
        (spread.low, spread.expected, (quantile - 0.1) / 0.4)
        if quantile < 0.5
        else (spread.expected, spread.high, (quantile - 0.5) / 0.4)
    )
    return max(1, ceil(below + (above - below) * min(max(left, 0.0), 1.0)))


def _check(spread: object, knowledge: Knowledge, what: str, job: Job, unit: str) -> None:
    if type(spread) is Spread and type(spread[0]) is type(spread[1]) is type(spread[2]) is int:
        return  # as nearly always
    if not isinstance(spread, Spread) or not all(isinstance(value, Real) for value in spread[:3]):
        raise KnowledgeError(
            f"knowledge {type(knowledge).__qualname__} tells {spread!r} as the {what} of job '{job.id}'; expected"
            f" a Spread of numbers, {unit}, or None"
        )
