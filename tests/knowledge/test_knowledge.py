"""What is believed of jobs."""

from __future__ import annotations

import math
from statistics import fmean, pstdev

import numpy as np
import pytest

from berth.cluster import Cluster
from berth.engine import simulate
from berth.errors import SettingError
from berth.experiments.compare.comparison import compare
from berth.interference import make_interference, make_speeds
from berth.interference.profiled import ProfiledInterference
from berth.interference.speeds import unhindered
from berth.knowledge import KINDS, Noise, Noisy, Oracle, Spread, User, make_knowledge, promised_mib
from berth.knowledge.noisy import NoisySpeeds
from berth.model import FOREVER_MS, Event, EventKind, GpuModel, Job, Node, Profile, Reason, Share
from berth.policies import Setting, make_policy
from berth.profiles import THESIS_GPU, Profiles, peak_mem_mib, thesis_profiles, workload_jobs

ONE = Cluster([Node("gpu", gpus=1, gpu_model=THESIS_GPU)])
MODEL = make_interference("mps")


@pytest.mark.parametrize(
    "kind", sorted(KINDS.keys() - {"history"})
)  # that has a cautious default, and says so
def test_every_kind_says_nothing_of_a_job_of_which_nothing_is_known(kind: str) -> None:
    knowledge = make_knowledge(kind)
    job = Job("a", 0, None, application="unheard-of")
    assert knowledge.run_ms(job) is None
    assert knowledge.profile(job, THESIS_GPU) is None
    assert knowledge.peak_mem_mib(job, THESIS_GPU) is None
    assert list(knowledge.usual_requests()) == []


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("oracel", "no knowledge 'oracel'; there are oracle, user, history, noisy"),
        ("oracle?run=1", "knowledge 'oracle' has no settings; got 'run=1'"),
        ("noisy?rum=1", "no setting 'rum' of noisy knowledge; there are run, memory, pair, seed"),
        ("noisy?run=x", "noisy knowledge: run is 'x'; expected a number"),
        ("noisy?run=-1", "noise of run is -1; expected from 0 to 3"),
        ("noisy?run=nan", "noise of run is nan; expected from 0 to 3"),
        ("noisy?run=1&run=2", "noisy knowledge: run is set twice; expected it once"),
        ("noisy?run", "settings of knowledge are written KEY=VALUE&KEY=VALUE, not 'run'"),
        ("no.such.module:thing", "No module named 'no'"),
        ("berth.knowledge:KINDS", "cannot be called"),
        ("builtins:dict", ""),
    ],
)
def test_a_name_that_means_nothing_is_refused(name: str, why: str) -> None:
    with pytest.raises((SettingError, TypeError)) as caught:
        make_knowledge(name)
    assert why in str(caught.value)


def test_noise_is_as_large_as_asked_and_the_same_whenever_it_is_asked() -> None:
    jobs = [Job(f"j{at}", 0, 1_000_000) for at in range(4000)]
    knowledge = Noisy(Oracle(jobs), Noise(run=0.3, seed=5))
    spreads = [knowledge.run_ms(job) for job in jobs]
    logs = [math.log(spread.expected / 1_000_000) for spread in spreads if spread is not None]
    assert fmean(logs) == pytest.approx(0, abs=0.02)
    assert pstdev(logs) == pytest.approx(0.3, abs=0.02)
    held = [spread.low <= 1_000_000 <= spread.high for spread in spreads if spread is not None]
    assert fmean(held) == pytest.approx(0.8, abs=0.03)  # four in five
    assert [knowledge.run_ms(job) for job in jobs] == spreads
    assert Noisy(Oracle(jobs), Noise(run=0.3, seed=6)).run_ms(jobs[0]) != spreads[0]


@pytest.mark.parametrize("memory", [0.0, 0.001, 0.05, 0.5])
def test_an_application_that_ran_out_of_memory_is_believed_to_need_more_than_it_held(memory: float) -> None:
    """However little that is, and however it is rounded."""
    card = GpuModel("card", mem_mib=100)
    profiles = [
        Profile(f"a{mib}", "", 0, "", card, 1000, np.tile([0.1, mib / 100, 0.05, 0.0], (9, 1)))
        for mib in range(1, 51)
    ]
    knowledge = Noisy(
        Oracle(interference=ProfiledInterference(Profiles(profiles), unhindered)), Noise(memory=memory)
    )
    for name in knowledge.profiles:
        for _ in range(9):
            held_mib = peak_mem_mib(knowledge.profiles[name])
            knowledge.ran_out_of_memory(Job("j", 0, 9_000, application=name), held_mib)
            assert peak_mem_mib(knowledge.profiles[name]) > held_mib


def test_a_service_stays_one() -> None:
    knowledge = Noisy(Oracle(), Noise(run=0.5))
    assert knowledge.run_ms(Job("s", 0, FOREVER_MS)) == Spread.exactly(FOREVER_MS)


def test_noisy_speeds_are_never_above_alone_and_do_not_go_by_the_order_of_tenants() -> None:
    draw = np.random.default_rng(1)
    usage = draw.integers(0, 1000, (200, 4, 4)).astype(np.int32)
    present = draw.random((200, 4)) < 0.7
    true = make_speeds("mps")
    noisy = NoisySpeeds(true, 0.4, 3)
    found, exact = noisy(usage, present, 12_288), true(usage, present, 12_288)
    assert (found[present] >= 1).all()
    assert (found[present] <= 1000).all()
    assert (found[~present] == 0).all()
    assert (found[exact == 1000] == 1000).all()
    order = [2, 0, 3, 1]
    assert np.array_equal(noisy(usage[:, order], present[:, order], 12_288), found[:, order])
    slowed = present & (exact < 900) & (exact > 100)
    errors = np.log((1000 / found[slowed] - 1) / (1000 / exact[slowed] - 1))
    assert float(errors.std()) == pytest.approx(0.4, abs=0.05)
    assert np.array_equal(NoisySpeeds(true, 0.0, 3)(usage, present, 12_288), exact)


def test_a_seed_gives_the_same_wrong_speeds_on_every_machine() -> None:
    usage = np.array([[600, 8000, 300, 20], [700, 4000, 200, 10], [500, 9000, 0, 0]], np.int32)
    noisy = NoisySpeeds(make_speeds("time-sliced"), 0.5, 7)
    assert noisy(usage, np.array([True, True, False]), 80_000).tolist() == [622, 374, 0]


def test_users_estimates_go_before_limits_and_nonsense_counts_as_nothing() -> None:
    user = User()
    both = Job("a", 0, None, estimate_ms=100, time_limit_ms=300)
    assert user.run_ms(both) == Spread(100, 0, 300, "user")
    assert user.run_ms(Job("b", 0, None, time_limit_ms=300)) == Spread(300, 0, 300, "user")
    for bad in (0, -7, 2**60):
        assert user.run_ms(Job("c", 0, None, estimate_ms=bad, time_limit_ms=bad)) is None
    user.outlived(both, 400)
    spread = user.run_ms(both)
    assert spread is not None
    assert spread.expected == 800


def events_of(policy: str, knowledge_name: str, jobs: list[Job]) -> list[Event]:
    knowledge = make_knowledge(knowledge_name, jobs, MODEL)
    made = make_policy(policy, Setting(knowledge=knowledge))
    return list(simulate(jobs, ONE, made, knowledge=knowledge, interference=MODEL))


class TenTimesTooShort(Oracle):
    """Knows profiles and speeds, and believes that all is over ten times sooner than it is."""

    certain = False

    def run_ms(self, job: Job) -> Spread | None:
        spread = super().run_ms(job)
        return None if spread is None else Spread(spread.expected // 10, 0, spread.expected // 5)


@pytest.mark.parametrize("policy", ["learned", "greedy"])
def test_a_forecast_of_memory_is_not_cut_at_a_guessed_run_time(policy: str) -> None:
    jobs = workload_jobs("GPUmemory_heavy", 12, 4)
    knowledge = TenTimesTooShort(jobs, MODEL)
    made = make_policy(policy, Setting(knowledge=knowledge))
    events = list(simulate(jobs, ONE, made, knowledge=knowledge, interference=MODEL))
    assert not [event for event in events if event.reason is Reason.OUT_OF_MEMORY]
    assert len([event for event in events if event.kind is EventKind.FINISH]) == len(jobs)


def test_a_shared_gpu_enforces_the_request_or_the_believed_peak_and_a_margin() -> None:
    profiles = thesis_profiles()
    name = min(profiles, key=lambda one: peak_mem_mib(profiles[one]))
    asks = Job("asks", 0, 10_000, application=name, share=Share(1000, 3000))
    silent = Job("silent", 0, 10_000, application=name)
    shares = {
        event.job.id: (event.share, event.shared)
        for event in events_of("greedy", "oracle", [asks, silent])
        if event.kind is EventKind.START
    }
    peak = peak_mem_mib(profiles[name])
    assert shares["asks"] == (Share(1000, 3000), True)
    assert shares["silent"] == (Share(1000, min(peak + -(-peak // 8), THESIS_GPU.mem_mib)), True)


def test_memory_that_was_believed_too_small_is_learned() -> None:
    jobs = workload_jobs("random", 20, 1)
    few, many = ([e for e in events_of("greedy", name, jobs) if e.reason is Reason.OUT_OF_MEMORY]
                 for name in ("oracle", "noisy?memory=0.3&seed=2"))  # fmt: skip
    assert few == []
    failures: dict[str, int] = {}
    for event in many:
        failures[event.job.application] = failures.get(event.job.application, 0) + 1
    assert max(failures.values(), default=0) <= 6


def test_the_neighbour_that_held_too_much_is_learned_from_and_not_who_failed_beside_it() -> None:
    """`small` fails at 500 MiB of 1,000, which it was believed to need, since `large` holds 600 and not 400."""
    card = GpuModel("card", "", 1_000, 1_000, 1_000)

    def profile(name: str, mem_mib: int) -> Profile:
        return Profile(name, "", 0, "", card, 1000, np.tile([0.1, mem_mib / 1000, 0.05, 0.0], (9, 1)))

    model, believed = (
        ProfiledInterference(Profiles([profile("large", mem_mib), profile("small", 500)]), unhindered)
        for mem_mib in (600, 400)
    )
    large, small = (Job(name, 0, 9_000, application=name, retries=9) for name in ("large", "small"))

    class Known(Noisy):
        def ran_out_of_memory(self, job: Job, held_mib: int) -> None:
            told.append(("failed", job.id, held_mib))
            super().ran_out_of_memory(job, held_mib)

        def neighbour_ran_out(self, job: Job, held_mib: int) -> None:
            told.append(("beside", job.id, held_mib))
            super().neighbour_ran_out(job, held_mib)

    told: list[tuple[str, str, int]] = []
    known = Known(Oracle([large, small], believed), Noise(run=0.001, memory=0.01))
    nodes = Cluster([Node("node", 1, card)])
    events = list(simulate([large, small], nodes, "greedy", interference=model, knowledge=known))
    assert told == [("failed", "small", 500), ("beside", "large", 600)]
    assert peak_mem_mib(known.profiles["large"]) == 604  # what it held and half of the error, rounded up
    assert [e.job.id for e in events if e.kind is EventKind.FINISH] == ["large", "small"]


@pytest.mark.parametrize(
    ("policy", "seed"),
    [("sjf-expected+best-fit", 0), ("easy+sjf-expected+best-fit", 1), ("greedy", 2), ("learned", 1)],
)
def test_no_job_is_lost_whatever_is_believed(policy: str, seed: int) -> None:
    jobs = [Job(job.id, job.submit_ms, job.work_ms, application=job.application, retries=50)
            for job in workload_jobs("random", 20, seed)]  # fmt: skip
    events = events_of(policy, f"noisy?run=1&memory=0.2&pair=0.5&seed={seed}", jobs)
    assert sorted(e.job.id for e in events if e.kind is EventKind.FINISH) == sorted(job.id for job in jobs)


def test_sjf_expected_goes_by_what_is_believed_and_sjf_by_the_truth() -> None:
    jobs = [Job("first", 0, 50), Job("long", 1, 900, estimate_ms=10), Job("short", 1, 10, estimate_ms=900)]
    cluster = Cluster([Node("a", 1)])

    def order(policy: str, knowledge: str) -> list[str]:
        return [
            e.job.id
            for e in simulate(jobs, cluster, policy, knowledge=knowledge)
            if e.kind is EventKind.START
        ]

    assert order("sjf", "user") == ["first", "short", "long"]
    assert order("sjf-expected", "user") == ["first", "long", "short"]
    assert order("sjf-expected", "oracle") == ["first", "short", "long"]


def test_each_seed_of_a_run_has_errors_of_its_own_and_the_same_ones_again() -> None:
    job = Job("a", 0, 1_000_000, application=sorted(thesis_profiles())[0])
    name = "noisy?run=0.3&memory=0.2&pair=0.2&seed=5"

    def believed(seed: int, name: str = name) -> tuple[object, object, object]:
        known = make_knowledge(name, [job], MODEL, seed)
        return known.run_ms(job), known.peak_mem_mib(job), known.speeds

    found = [believed(seed) for seed in range(20)]
    assert [believed(seed) for seed in range(20)] == found
    assert [len({*column}) for column in zip(*found, strict=True)] == [20, 20, 20]
    assert believed(1, name.replace("seed=5", "seed=6")) != found[1]  # nor is one noise another's next run
    assert believed(0, name.replace("seed=5", "seed=6")) != found[1]


def test_a_comparison_draws_other_errors_with_each_seed() -> None:
    jobs = [Job(f"j{at}", 0, 1_000 * (at + 1)) for at in range(30)]
    found = compare(jobs, "sjf-expected+first-fit", cluster=[Node("n", 1)], seeds=4, knowledge="noisy?run=1")
    waits = [run.summary for run in found.runs]
    assert (
        len({str(summary) for summary in waits}) == 4
    )  # policies that do not draw have a run a seed here, too
    again = compare(jobs, "sjf-expected+first-fit", cluster=[Node("n", 1)], seeds=4, knowledge="noisy?run=1")
    assert [str(run.summary) for run in again.runs] == [str(summary) for summary in waits]
    assert len(compare(jobs, "sjf-expected+first-fit", cluster=[Node("n", 1)], seeds=4).runs) == 1
    nothing = compare(
        jobs, "sjf-expected+first-fit", cluster=[Node("n", 1)], seeds=4, knowledge="noisy?run=0"
    )
    assert len(nothing.runs) == 1


class Peaks(User):
    """Believes what it is told to."""

    def __init__(self, spread: Spread | None) -> None:
        super().__init__()
        self.spread = spread

    def peak_mem_mib(self, job: Job, gpu: GpuModel | None = None) -> Spread | None:
        return self.spread


@pytest.mark.parametrize(
    ("quantile", "mib"), [(0.0, 100), (0.1, 100), (0.3, 150), (0.5, 200), (0.6, 300), (0.9, 600), (1.0, 600)]
)
def test_a_promise_is_a_quantile_of_the_believed_peak(quantile: float, mib: int) -> None:
    job = Job("a", 0, None, gpus=1)
    assert promised_mib(job, Peaks(Spread(200, 100, 600)), quantile) == mib
    assert promised_mib(job, Peaks(None), quantile) is None
    assert promised_mib(job, Peaks(Spread(0, 0, 0)), quantile) is None
