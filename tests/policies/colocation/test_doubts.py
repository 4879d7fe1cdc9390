"""What is not started where beliefs may be wrong, though it fits by what is expected."""

from __future__ import annotations

import math

import numpy as np
import pytest

from berth.cluster import Cluster, Running
from berth.engine import simulate
from berth.interference.profiled import ProfiledInterference
from berth.interference.speeds import unhindered
from berth.knowledge import Oracle, Spread
from berth.model import EventKind, GpuModel, Job, Node, Profile
from berth.policies import Setting
from berth.policies.colocation.doubts import Doubts
from berth.policies.colocation.forecast import Candidate, Forecaster, Offer
from berth.policies.colocation.learned import Learned
from berth.policies.colocation.pairs import Pairs
from berth.profiles import Profiles

CARD = GpuModel("card", "", 1_000, 1_000, 1_000)


def profile(name: str, *mem_mib: int) -> Profile:
    """One that uses so much memory, a second each."""
    return Profile(name, "", 0, "", CARD, 1000, np.array([[0.1, mib / 1000, 0.05, 0.0] for mib in mem_mib]))


STEADY = profile("steady", *[600] * 10)
GROWS = profile("grows", *[300] * 5, *[600] * 10)
SHRINKS = profile("shrinks", 200, *[700] * 5, *[300] * 20)
PROFILES = Profiles([STEADY, GROWS, SHRINKS])
MODEL = ProfiledInterference(PROFILES, unhindered)


class Doubtful(Oracle):
    """Expects the same of all jobs of an application, which run up to three tenths longer."""

    certain = False

    def __init__(self, jobs: list[Job], expected_ms: dict[str, int]) -> None:
        super().__init__(jobs, MODEL)
        self.expected_ms = expected_ms
        self.ran_out: set[str] = set()

    def run_ms(self, job: Job) -> Spread:
        expected_ms = self.expected_ms[job.application]
        return Spread(expected_ms, expected_ms * 7 // 10, expected_ms * 13 // 10)

    def ran_out_last(self, application: str) -> bool:
        return application in self.ran_out


@pytest.mark.parametrize("policy", ["greedy", "learned?plans=0", "random-sharing"])
def test_memory_is_not_free_at_the_end_that_is_expected_of_a_neighbour(policy: str) -> None:
    """`grows` needs 600 MiB five seconds after it starts. If it starts at 8 s, the 600 of `steady`, which is expected
    to end at 11 s and runs until 14, are still held then."""
    jobs = [Job("steady", 0, 14_000, application="steady"), Job("grows", 8_000, 15_000, application="grows")]
    known = Doubtful(jobs, {"steady": 11_000, "grows": 15_000})
    events = list(
        simulate(jobs, Cluster([Node("node", 1, CARD)]), policy, interference=MODEL, knowledge=known)
    )
    assert [event.job.id for event in events if event.kind is EventKind.FAIL] == []
    starts = {event.job.id: event.time_ms for event in events if event.kind is EventKind.START}
    assert starts["steady"] == 0
    assert 9_000 <= starts["grows"] <= 14_000  # it loads while the other may still run, but not all of it


def allowed(known: Doubtful, tenant_done_ms: int) -> list[bool]:
    """Whether `shrinks` may start beside another `shrinks` that has done so much of its 26 s."""
    forecaster = Forecaster(PROFILES, unhindered)
    left_us = 26_000_000 - 1000 * tenant_done_ms
    tenants = (Candidate("shrinks", left_us, 26_000_000, tenant_done_ms),)
    forecasts = forecaster.forecasts([Offer(tenants, (Candidate("shrinks", 26_000_000, 26_000_000),))], CARD)
    job = Job("there", 0, 26_000, application="shrinks")
    run = Running(job, 1, (), job.share, 0, left_us, tenant_done_ms, 1000, 0, job.share, 26_000_000)
    Doubts(known).rule_out(forecasts, [((run.job,), (job,))], forecaster, CARD)
    return [bool(one) for one in forecasts.fits[0]]


def test_after_it_ran_out_of_memory_an_application_waits_until_its_neighbour_is_past_its_peak() -> None:
    known = Doubtful([], {"shrinks": 26_000})
    assert allowed(known, 5_500) == [
        True,
        True,
    ]  # 700 MiB for half a second more, and the other loads after one
    known.ran_out.add("shrinks")
    assert allowed(known, 5_500) == [True, False]
    assert allowed(known, 6_000) == [True, True]  # 300 MiB to its end


def test_jobs_that_may_run_as_long_as_one_another_are_not_taken_for_the_same() -> None:
    """A chooser may start either of two that are expected to run 10 and 12 s, of both of which the limit is 13."""
    jobs = [Job("short", 0, 10_000, application="steady"), Job("long", 0, 12_000, application="steady")]

    class Limits(Doubtful):
        def run_ms(self, job: Job) -> Spread:
            return Spread(job.work_ms or 0, 0, 13_000)

    forecaster = Forecaster(PROFILES, unhindered)
    window = (Candidate("steady", 10_000_000, 10_000_000), Candidate("steady", 12_000_000, 12_000_000))
    forecasts = forecaster.forecasts([Offer((), window)], CARD)
    Doubts(Limits(jobs, {})).rule_out(forecasts, [((), jobs)], forecaster, CARD)
    assert forecasts.fits[0].tolist() == [True, True, True, False]


def test_learned_trusts_the_length_of_a_profile_where_the_believed_run_time_is_wide() -> None:
    """`steady` was recorded for 10 s. Its run time is believed to be 100 s, and up to 160 or 1,900 in nine of ten."""
    job = Job("one", 0, 10_000, application="steady")

    class Wide(Doubtful):
        def run_ms(self, job: Job) -> Spread:
            return spread

    policy = Learned(Setting(0, knowledge=Wide([job], {})))
    spread = Spread(100_000, 60_000, 160_000)
    assert policy.work_us(job) == 100_000_000
    spread = Spread(100_000, 5_000, 1_900_000)
    mean_us = policy.work_us(job)
    assert 10_000_000 < mean_us < 20_000_000
    assert Pairs(Setting(0, knowledge=Wide([job], {}))).work_us(job) == 100_000_000
    assert policy.work_us(job, done_us=9_999_999) == mean_us
    assert policy.work_us(job, done_us=10_000_000) == 100_000_000  # it runs for longer than its profile
    spread = Spread(100_000, 5_000, 1_900_000, "history")
    assert policy.work_us(job) == 100_000_000
    spread = Spread(1_000, 50, 19_000)
    assert policy.work_us(job) == 10_000_000


@pytest.mark.parametrize("high", [-5, 1 << 2000, math.inf, math.nan])
def test_a_mean_of_run_times_makes_sense_whatever_the_upper_tenth(high: float) -> None:
    job = Job("one", 0, 10_000, application="steady")

    class Nonsense(Doubtful):
        def run_ms(self, job: Job) -> Spread:
            return Spread(15_000, 0, high)  # type: ignore[arg-type]

    work_us = Learned(Setting(0, knowledge=Nonsense([job], {}))).work_us(job)
    assert 10_000_000 <= work_us <= 15_000_000


@pytest.mark.parametrize("high", [-5, 1 << 80, math.inf, math.nan])
def test_an_upper_tenth_that_makes_no_sense_counts_for_nothing(high: float) -> None:
    job = Job("one", 0, 15_000, application="grows")

    class Nonsense(Doubtful):
        def run_ms(self, job: Job) -> Spread:
            return Spread(15_000, 0, high)  # type: ignore[arg-type]

    forecaster = Forecaster(PROFILES, unhindered)
    forecasts = forecaster.forecasts([Offer((), (Candidate("grows", 15_000_000, 15_000_000),))], CARD)
    Doubts(Nonsense([job], {})).rule_out(forecasts, [((), (job,))], forecaster, CARD)
    assert forecasts.fits[0].tolist() == [True, True]
