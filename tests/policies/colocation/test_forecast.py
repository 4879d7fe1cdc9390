"""Forecasts are the simulator's own future: ends to the millisecond, and who runs out of memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.cluster import Cluster, Queue
from berth.engine import simulate
from berth.errors import SettingError
from berth.interference import Speeds, make_speeds
from berth.interference.profiled import ProfiledInterference
from berth.model import EventKind, GpuModel, GpuSlot, Job, Node, Placement, Profile, Share
from berth.network.forecast_network import new_network
from berth.policies.colocation.forecast import MOST, Candidate, Forecaster, Forecasts, Offer
from berth.policies.colocation.forecast_scores import ForecastScores
from berth.policies.colocation.scene import Scene, best_of
from berth.profiles import THESIS_GPU, WORKLOADS, run_time_ms, series, thesis_profiles
from tests.examples import examples

PROFILES = thesis_profiles()
SLOT = GpuSlot(0, 0)
ONE = Cluster([Node("gpu", gpus=1, gpu_model=THESIS_GPU)])


def job(number: int, application: str, submit_ms: int) -> Job:
    return Job(str(number), submit_ms, run_time_ms(PROFILES[application]), application=application, retries=0)


def candidate(application: str) -> Candidate:
    work_us = 1000 * run_time_ms(PROFILES[application])
    return Candidate(application, work_us, work_us)


def scene_of(forecasts: Forecasts) -> Scene:
    return Scene(forecasts, THESIS_GPU, 700, 70_000_000, ())


class Together:
    """Starts everybody as they come, and forecasts at the second coming what will become of all."""

    def __init__(self, forecaster: Forecaster) -> None:
        self.forecaster = forecaster
        self.found: tuple[int, tuple[str, ...], Forecasts] | None = None

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Placement]:
        if now_ms > 0 and self.found is None:
            tenants = cluster.jobs_on(SLOT)
            there = tuple(
                Candidate(
                    run.job.application,
                    run.left_us - (now_ms - run.as_of_ms) * run.speed_milli,
                    run.job.work_ms * 1000,
                )
                for run in tenants
            )
            window = list(queue)
            offer = Offer(there, tuple(candidate(one.application) for one in window))
            names = (*(run.job.id for run in tenants), *(one.id for one in window))
            self.found = now_ms, names, self.forecaster.forecasts([offer], THESIS_GPU)
        for one in queue:
            yield Placement(one, (SLOT,), Share(100, 0))


applications = st.sampled_from(WORKLOADS["random"])


@pytest.mark.parametrize("model", ["mps", "time-sliced"])
@given(
    first=st.lists(applications, min_size=1, max_size=3),
    second=st.lists(applications, min_size=1, max_size=3, unique=True),
    later_ms=st.integers(1, 50_000),
)
@settings(max_examples=examples(25))
def test_a_forecast_is_what_the_simulator_then_does(
    model: str, first: list[str], second: list[str], later_ms: int
) -> None:
    speeds = make_speeds(model)
    policy = Together(Forecaster(PROFILES, speeds))
    jobs = [job(at, name, 0) for at, name in enumerate(first)]
    jobs += [job(len(first) + at, name, later_ms) for at, name in enumerate(second)]
    interference = ProfiledInterference(PROFILES, speeds)
    events = list(simulate(jobs, ONE, policy, interference=interference))
    assert policy.found is not None
    now_ms, names, forecasts = policy.found
    everybody = (1 << len(second)) - 1
    after = [event for event in events if event.time_ms >= now_ms]
    failed = [event for event in after if event.kind == EventKind.FAIL]
    assert bool(forecasts.fits[0, everybody]) == (not failed)
    if not failed:
        ends = {event.job.id: event.time_ms - now_ms for event in after if event.kind == EventKind.FINISH}
        forecast = dict(zip(names, forecasts.ends_ms[0, everybody].tolist(), strict=True))
        assert {name: ms for name, ms in forecast.items() if ms} == {
            name: ms for name, ms in ends.items() if ms
        }


def test_the_pairs_that_the_thesis_names_run_out_of_memory_and_no_others_of_its_figure() -> None:
    forecaster = Forecaster(PROFILES, make_speeds("mps"))
    names = ("LAMMPS", "GROMACS", "googlenet", "CNN", "vgg16")
    full = set()
    for one in names:
        for other in names:
            found = forecaster.forecasts([Offer((), (candidate(one), candidate(other)))], THESIS_GPU)
            if not found.fits[0, 3]:
                full.add(frozenset((one, other)))
    assert full == {frozenset(pair) for pair in (("LAMMPS",), ("vgg16", "CNN"), ("vgg16",))}


def test_of_equal_combinations_the_first_is_offered_and_places_are_counted() -> None:
    forecaster = Forecaster(PROFILES, make_speeds("mps"))
    window = tuple(candidate(name) for name in ("GROMACS", "alexnet", "GROMACS"))
    found = forecaster.forecasts([Offer((), window), Offer((), window, largest=1)], THESIS_GPU)
    assert np.flatnonzero(found.fits[0]).tolist() == [0b000, 0b001, 0b010, 0b011, 0b101, 0b111]
    assert np.flatnonzero(found.fits[1]).tolist() == [0b000, 0b001, 0b010]
    idle = Profile("idle", "", 0, "", THESIS_GPU, 1000, np.full((3, 4), 0.01))
    many = Forecaster({"idle": idle}, make_speeds("time-sliced"))
    tenants = tuple(Candidate("idle", 3_000_000 - at, 3_000_000) for at in range(MOST - 1))
    found = many.forecasts(
        [Offer(tenants, tuple(Candidate("idle", 3_000_000 + at, 3_000_000) for at in (1, 2)))], None
    )
    assert found.fits[0].tolist() == [True, True, True, False]


def test_more_waiting_jobs_than_can_be_combined_are_refused() -> None:
    forecaster = Forecaster(PROFILES, make_speeds("mps"))
    with pytest.raises(SettingError, match=r"^13 waiting jobs to combine; expected at most 12$"):
        forecaster.forecasts([Offer((), (candidate("CNN"),) * 13)], THESIS_GPU)
    found = forecaster.forecasts([Offer((candidate("CNN"),) * 11, (candidate("CNN"),) * 12)], THESIS_GPU)
    assert not found.fits.any()


def test_a_series_of_very_many_different_rows_is_rounded_up_and_still_fits_where_it_did() -> None:
    draw = np.random.default_rng(5)
    usage = draw.random((6000, 4)) * [0.3, 0.2, 0.3, 0.1]
    big = GpuModel("big", "", 1_000_000, 4000, 32_000)
    profile = Profile("noisy", "", 0, "", big, 1000, usage)
    forecaster = Forecaster({"noisy": profile}, make_speeds("time-sliced"))
    one = Candidate("noisy", 6_000_000_000, 6_000_000_000)
    found = forecaster.forecasts([Offer((), (one, one._replace(left_us=5_000_000_000)))], big)
    assert found.fits[0].tolist() == [True] * 4
    assert found.ends_ms[0, 1, 0] == 6_000_000
    assert found.ends_ms[0, 3].min() >= 5_000_000


def many_offers(seed: int) -> list[Offer]:
    """Idle GPUs, some whose tenants begin just now, and some with a tenant in the middle of its run."""
    draw = np.random.default_rng(seed)
    offers = []
    for number in range(200):
        jobs = [candidate(WORKLOADS["random"][at]) for at in draw.integers(0, len(WORKLOADS["random"]), 7)]
        window, tenants = tuple(jobs[: 3 + number % 3]), tuple(jobs[5 : 5 + max(0, number % 5 - 2)])
        if number % 8 == 0:
            tenants = (jobs[6]._replace(left_us=jobs[6].left_us // 2, ran_ms=9_000),)
        offers.append(Offer(tenants, window))
    return offers


@pytest.mark.parametrize("model", ["mps", "time-sliced"])
def test_many_gpus_at_once_are_forecast_and_scored_as_one_after_the_other(model: str) -> None:
    speeds = make_speeds(model)
    scores = ForecastScores(new_network(1), PROFILES, lambda job: job.work_ms * 1000)
    for seed in (3, 4):  # the second time some of what the first left is known
        offers = many_offers(seed)
        together = Forecaster(PROFILES, speeds).forecasts(offers, THESIS_GPU)
        scored = scores(scene_of(together), together.fits)
        best = best_of(scored, together.fits, together)
        for number, offer in enumerate(offers):
            alone = Forecaster(PROFILES, speeds).forecasts([offer], THESIS_GPU)
            places, count = len(offer.tenants) + len(offer.window), 1 << len(offer.window)
            assert (together.fits[number, :count] == alone.fits[0]).all()
            assert (together.ends_ms[number, :count, :places] == alone.ends_ms[0]).all()
            assert together.next_ms[number] == alone.next_ms[0]
            one = scores(scene_of(alone), alone.fits)
            np.testing.assert_allclose(scored[number, :count], one[0], rtol=1e-4, atol=1e-4)
            assert best[number] == best_of(one, alone.fits, alone)[0]


@given(st.lists(applications, min_size=1, max_size=3), st.lists(applications, min_size=1, max_size=4))
@settings(max_examples=examples(40), deadline=None)
def test_what_is_kept_of_tenants_that_begin_is_what_is_followed_to_the_end(
    tenants: list[str], window: list[str]
) -> None:
    forecaster = Forecaster(PROFILES, make_speeds("mps"))
    running, waiting = tuple(map(candidate, tenants)), tuple(map(candidate, window))
    late = tuple(one._replace(ran_ms=1) for one in running)  # nothing is kept of these
    followed = forecaster.forecasts([Offer(late, waiting)], THESIS_GPU)
    for _ in range(2):
        found = forecaster.forecasts([Offer(running, waiting)], THESIS_GPU)
        assert (found.fits == followed.fits).all()
        assert (found.ends_ms == followed.ends_ms).all()
        assert found.next_ms == followed.next_ms


def test_speeds_that_could_not_be_told_are_asked_for_again() -> None:
    measured = make_speeds("mps")
    broken = [True]

    def speeds(usage, present, capacity_mem_mib, *, xp=np):  # type: ignore[no-untyped-def]
        if broken[0]:
            raise ArithmeticError("not now")
        return measured(usage, present, capacity_mem_mib, xp=xp)

    forecaster = Forecaster(PROFILES, speeds)
    offer = Offer((), (candidate("LAMMPS"), candidate("GROMACS")))
    with pytest.raises(ArithmeticError, match="not now"):
        forecaster.forecasts([offer], THESIS_GPU)
    broken[0] = False
    expected = Forecaster(PROFILES, measured).forecasts([offer], THESIS_GPU)
    found = forecaster.forecasts([offer], THESIS_GPU)
    assert (found.ends_ms == expected.ends_ms).all()
    assert (found.fits == expected.fits).all()


def plain_next_ms(offer: Offer, speeds: Speeds) -> int:
    """How long until a tenant ends or enters a new row, at the speeds of now; 0 if memory runs out at once."""
    scaled = [series(PROFILES[one.application], THESIS_GPU) for one in offer.tenants]
    rows = [
        one.row_at((job.work_us - job.left_us) // 1000)
        for one, job in zip(scaled, offer.tenants, strict=True)
    ]
    usage = np.array([[one.usage[row] for one, row in zip(scaled, rows, strict=True)]])
    if usage[0, :, 1].sum() > THESIS_GPU.mem_mib:
        return 0
    pace = speeds(usage, np.ones((1, len(rows)), bool), THESIS_GPU.mem_mib)[0]
    soonest = []
    for one, job, row, speed in zip(scaled, offer.tenants, rows, pace.tolist(), strict=True):
        ends = job.left_us
        if row < len(one.usage) - 1:
            ends = min(ends, (row + 1) * one.interval_ms * 1000 - (job.work_us - job.left_us))
        soonest.append(-(-ends // speed))
    return min(soonest)


@given(st.lists(st.tuples(applications, st.floats(0.001, 1)), min_size=1, max_size=4))
def test_a_forecast_says_when_the_first_tenant_ends_or_enters_a_new_row(
    jobs: list[tuple[str, float]],
) -> None:
    tenants = []
    for name, part in jobs:
        whole = candidate(name)
        tenants.append(whole._replace(left_us=max(1, int(whole.work_us * part)), ran_ms=1))
    offer, speeds = Offer(tuple(tenants), ()), make_speeds("mps")
    found = Forecaster(PROFILES, speeds).forecasts([offer], THESIS_GPU)
    assert found.next_ms.tolist() == [plain_next_ms(offer, speeds)]
