"""Knowledge that learns: from what ended before, and on the way."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from berth.cluster import Cluster
from berth.engine import simulate
from berth.engine.suspension import Suspension
from berth.errors import HistoryError, SettingError
from berth.interference import make_interference, make_speeds, no_interference
from berth.knowledge import (
    History,
    Knowledge,
    KnowsSurprises,
    LearnsFromNeighbours,
    LearnsWork,
    LimitsCompany,
    Oracle,
    Spread,
    check_knowledge,
    make_knowledge,
)
from berth.knowledge.history import CAUTIOUS_MS
from berth.model import (
    FIRST_LOOK_MS,
    FOREVER_MS,
    Event,
    EventKind,
    Job,
    Node,
    Profile,
    Reason,
    Record,
    RecordState,
    Share,
)
from berth.policies import Setting, make_policy
from berth.profiles import BEGUN, THESIS_GPU, begun, peak_mem_mib, run_time_ms, thesis_profiles, workload_jobs
from berth.scheduler import Refused, Scheduler
from tests.history.histories import history_of

ONE = Cluster([Node("gpu", gpus=1, gpu_model=THESIS_GPU)])
MODEL = make_interference("mps")
HOUR = 3_600_000


def flat(name: str, mem_mib: int, seconds: int = 100) -> Profile:
    usage = np.tile([0.3, mem_mib / THESIS_GPU.mem_mib, 0.2, 0.0], (seconds // 5, 1))
    return Profile(name, "", 0, "", THESIS_GPU, 5_000, usage)


def job(application: str = "a", user: str = "u", **more: object) -> Job:
    return Job("j", 0, None, application=application, user=user, **more)  # type: ignore[arg-type]


def record(application: str, user: str, run_ms: int, **more: object) -> Record:
    known = {
        "job_id": "r", "attempt": 1, "virtual_cluster": "", "submit_ms": 0, "queued_ms": 0, "start_ms": 5,
        "end_ms": 5 + run_ms, "state": RecordState.COMPLETED, "gpus": 1, "share": Share(1000, 0), "cpu_milli": 0,
        "mem_mib": 0, "nodes": (), "gpu_model": "", "work_ms": None,
    }  # fmt: skip
    return Record(application=application, user=user, **(known | more))  # type: ignore[arg-type]


def test_with_nothing_known_the_users_limits_count_and_then_a_default_that_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    known = History()
    assert known.run_ms(job(time_limit_ms=9 * HOUR)) == Spread(9 * HOUR, 0, 9 * HOUR, "user")
    assert known.run_ms(job(estimate_ms=HOUR, time_limit_ms=9 * HOUR)) == Spread(HOUR, 0, 9 * HOUR, "user")
    assert not caplog.records
    assert known.run_ms(job()) == Spread(CAUTIOUS_MS, 0, CAUTIOUS_MS, "default")
    assert "the run time of 'a' is unknown, and it has no time limit: 24 h are assumed" in caplog.text
    for job_id in ("x", "y", "z"):  # jobs that name no application are many: it is said once
        known.run_ms(replace(job(), id=job_id, application=""))
    assert len(caplog.records) == 2
    assert known.peak_mem_mib(job(share=Share(1000, 700))) == Spread(700, 0, 700, "user")
    whole = Spread(THESIS_GPU.mem_mib, 0, THESIS_GPU.mem_mib, "default")
    assert known.peak_mem_mib(job(), THESIS_GPU) == whole
    assert known.peak_mem_mib(job()) is None


def test_what_neighbours_cost_may_be_told_where_there_is_no_simulation_to_know_it() -> None:
    usage = np.array([[900, 1000, 500, 0], [600, 1000, 500, 0]])
    present, slowed = np.ones(2, dtype=bool), make_speeds("time-sliced")

    def believed(name: str) -> list[int]:
        return list(make_knowledge(name).speeds(usage, present, 12_288))

    assert believed("history") == [1000, 1000]
    assert (
        believed("history?interference=time-sliced") == list(slowed(usage, present, 12_288)) != [1000, 1000]
    )
    for wrong in ("interference=no-such", "interference=mps&interference=mps", "slowed=1"):
        with pytest.raises(SettingError):
            make_knowledge(f"history?{wrong}")
        with pytest.raises(SettingError):
            check_knowledge(f"history?{wrong}")


def test_until_a_run_was_seen_the_run_time_of_a_profile_counts_before_a_limit_and_after_an_estimate() -> None:
    profile = thesis_profiles()["vgg16"]
    long_ms = run_time_ms(profile)
    known = History(profiles={"vgg16": profile})
    assert known.run_ms(job("vgg16")) == Spread(long_ms, 0, 2 * long_ms, "profile")
    assert known.run_ms(job("vgg16", time_limit_ms=9 * HOUR)) == Spread(long_ms, 0, 9 * HOUR, "profile")
    assert known.run_ms(job("vgg16", estimate_ms=HOUR)) == Spread(HOUR, 0, 2 * HOUR, "user")
    known.outlived(job("vgg16"), 2 * long_ms)
    assert known.run_ms(job("vgg16")) == Spread(4 * long_ms, 2 * long_ms, 8 * long_ms, "profile")
    known.worked(job("vgg16"), 1000, alone=False)
    assert known.run_ms(replace(job("vgg16"), id="other")) == Spread(1000, 500, 2000, "history")


def test_a_recorded_profile_without_gpu_memory_tells_of_none() -> None:
    known = History(profiles={"a": flat("a", 0)})
    assert known.peak_mem_mib(job(share=Share(1000, 700))) == Spread(700, 0, 700, "user")
    assert known.peak_mem_mib(job()) is None


def test_a_kind_is_application_user_and_request_and_wider_where_too_few_were_seen() -> None:
    records = [record("a", "u", 100), record("a", "u", 100), record("a", "u", 100), record("a", "v", 900)]
    known = History([*records, record("b", "v", 50)])

    def expected(one: Job, basis: str = "history") -> int:
        spread = known.run_ms(one)
        assert spread is not None
        assert spread.basis == basis
        return spread.expected

    assert expected(job("a", "u")) == 100
    assert 100 < expected(job("a", "v")) < 900  # of his own too few: all of the application
    assert expected(job("b", "v")) == 50  # few are better than none
    assert 50 < expected(job("new", "v"), "other jobs") < 900  # the user's with the same request
    assert known.run_ms(job("new", "w")) == Spread(CAUTIOUS_MS, 0, CAUTIOUS_MS, "default")


def test_recent_attempts_weigh_more_and_the_spread_holds_four_in_five() -> None:
    was = [record("a", "u", 100)] * 20
    now = [record("a", "u", 200)] * 20
    rising, falling = (History(of).run_ms(job()) for of in (was + now, now + was))
    assert rising is not None
    assert falling is not None
    assert falling.expected < 120 < 180 < rising.expected
    draw = np.random.default_rng(1)
    many = History([record("a", "u", int(ms)) for ms in draw.lognormal(10, 0.5, 64)])
    spread = many.run_ms(job())
    assert spread is not None
    inside = [spread.low <= ms <= spread.high for ms in draw.lognormal(10, 0.5, 2000)]
    assert 0.7 < np.mean(inside) < 0.95
    assert History([record("a", "u", 100)]).run_ms(job()) == Spread(100, 50, 200, "history")


def test_who_did_not_complete_tells_nothing_of_its_run_time() -> None:
    known = History([record("a", "u", 100, state=RecordState.FAILED)])
    assert known.run_ms(job()) == Spread(CAUTIOUS_MS, 0, CAUTIOUS_MS, "default")


def test_a_job_that_outlives_its_expectation_is_expected_anew() -> None:
    known = History([record("a", "u", ms) for ms in (100, 100, 100, 1000)])
    first = known.run_ms(job())
    assert first is not None
    assert 100 < first.expected < 1000
    known.outlived(job(), first.expected)
    assert known.run_ms(job()) == Spread(1000, 500, 2000, "history")  # one of those that run longer
    known.outlived(job(), 1000)
    assert known.run_ms(job()) == Spread(2000, 1000, 4000, "outlived")
    known.observe(record("a", "u", 5, job_id="j"))
    assert known.run_ms(job()) == first  # the next job is another one


def test_memory_is_a_median_and_an_upper_quantile() -> None:
    records = [
        record("a", "u", 9, gpu_model="V100", gpu_mem_peak=part / 16_384)
        for part in (*[1000] * 8, 1200, 1200)
    ]
    spread = History(records).peak_mem_mib(job())
    assert spread is not None
    assert (spread.expected, spread.basis) == (1000, "history")
    assert 1200 <= spread.high < 1220


def test_an_application_that_ran_alone_is_recorded_and_one_that_shared_is_not() -> None:
    truth = {"a": flat("a", 3000)}
    known = History(recorder=truth)
    assert known.profile(job(), THESIS_GPU) is None
    known.worked(job(), 100_000, alone=False)
    assert known.profile(job(), THESIS_GPU) is None
    known.worked(job(), 100_000, alone=True)
    assert known.profile(job(), THESIS_GPU) is truth["a"]
    spread = known.run_ms(job())
    assert spread is not None
    assert spread.expected == 100_000


def test_running_out_of_memory_teaches_then_needs_room_then_runs_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    known = History(profiles={"a": flat("a", 6100)}, recorder={"a": flat("a", 6200)})

    def believed() -> int:
        spread, profile = known.peak_mem_mib(job()), known.profile(job(), THESIS_GPU)
        assert spread is not None
        assert profile is not None
        assert abs(peak_mem_mib(profile) - spread.expected) <= 1
        return spread.expected

    assert (believed(), known.company("a")) == (6100, None)
    known.ran_out_of_memory(job(), 6200)
    assert (believed(), known.company("a")) == (6975, None)  # what it held and an eighth
    assert not caplog.records
    known.ran_out_of_memory(job(), 6200)  # wrong again: wider, and said
    assert (believed(), known.company("a")) == (6975 + 6975 * 2 // 8, 2)
    assert "'a' has run out of memory 2 times" in caplog.text
    known.ran_out_of_memory(job(), 0)
    assert known.company("a") == 1
    known.worked(job(), 100_000, alone=True)  # recorded anew
    assert (believed(), known.company("a")) == (6200, None)
    assert known.company("other") is None


def test_an_attempt_that_began_with_less_than_is_believed_by_now_says_nothing_new() -> None:
    """Four that ran side by side all had too little. What the first of them taught may well be enough."""
    known = History()
    began, taught = job(share=Share(100, 4000)), job(share=Share(100, 9000))
    for _ in range(4):
        known.ran_out_of_memory(began, 8000)
        assert (known.peak_mem_mib(began), known.company("a")) == (Spread(9000, 0, 9000, "user"), None)
    known.ran_out_of_memory(taught, 9500)  # it was not enough
    assert known.company("a") == 2
    known.ran_out_of_memory(taught, 9500)
    assert known.company("a") == 2


def test_the_memory_of_other_applications_says_nothing_of_one_that_was_seen_or_asks() -> None:
    known = History()
    for _ in range(5):
        known.measured(job("small"), 3000)
    asks = job("new", share=Share(100, 20_000))
    assert known.peak_mem_mib(asks) == Spread(20_000, 0, 20_000, "user")
    known.measured(job("big"), 26_000)
    believed = known.peak_mem_mib(job("big"))
    assert believed is not None
    assert believed.expected == 26_000


def test_a_neighbour_that_held_more_than_was_believed_is_believed_to_need_more() -> None:
    known = History(profiles={"a": flat("a", 6100)}, recorder={"a": flat("a", 6200)})

    def believed() -> int:
        spread = known.peak_mem_mib(job())
        assert spread is not None
        return spread.expected

    known.neighbour_ran_out(job(), 6100)  # no more than was believed: it was not the cause
    assert believed() == 6100
    known.neighbour_ran_out(job(), 6200)
    assert believed() == 6975
    assert known.company("a") is None  # it did not fail itself


@pytest.mark.parametrize(
    "known", [History(profiles={"a": flat("a", 6100)}), make_knowledge("noisy?memory=0.03", (), MODEL)]
)
def test_which_applications_ran_out_of_memory_is_remembered_until_one_completes(known: Knowledge) -> None:
    assert isinstance(known, KnowsSurprises)
    known.ran_out_of_memory(job("a"), 100)
    known.observe(record("a", "u", 100, state=RecordState.OUT_OF_MEMORY))
    known.observe(record("other", "u", 100))
    assert (known.ran_out_last("a"), known.ran_out_last("other")) == (True, False)
    known.observe(record("a", "u", 100))
    assert not known.ran_out_last("a")


def test_it_says_what_else_it_can() -> None:
    assert isinstance(History(), LearnsWork)
    assert isinstance(History(), LearnsFromNeighbours)
    assert isinstance(History(), LimitsCompany)
    assert not isinstance(Oracle(), LearnsWork | LimitsCompany)


@pytest.mark.parametrize("name", ["history?end=1", "history?begin=a&begin=b", "history?begin"])
def test_settings_that_mean_nothing_are_refused(name: str) -> None:
    with pytest.raises((SettingError, HistoryError)):
        make_knowledge(name)


def test_a_folder_that_is_no_history_is_told(tmp_path: Path) -> None:
    with pytest.raises(HistoryError):
        make_knowledge(f"history?begin={tmp_path / 'none'}")


def run(policy: str, knowledge: Knowledge, jobs: list[Job], model: object = MODEL) -> list[Event]:
    made = make_policy(policy, Setting(knowledge=knowledge))
    return list(simulate(jobs, ONE, made, knowledge=knowledge, interference=model))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "policy", ["greedy", "tetris-sharing", "sjf-expected+best-fit", "easy+fifo+best-fit"]
)
def test_begun_empty_every_job_is_done_and_applications_share_once_they_were_seen(policy: str) -> None:
    jobs = list(workload_jobs("random", 40, 3))
    events = run(policy, make_knowledge("history?begin=empty", jobs, MODEL), jobs)
    assert sorted(e.job.id for e in events if e.kind is EventKind.FINISH) == sorted(one.id for one in jobs)
    shared = [e for e in events if e.kind is EventKind.START and e.shared]
    if policy in ("greedy", "tetris-sharing"):
        alone = Counter(e.job.application for e in events if e.kind is EventKind.START and not e.shared)
        assert shared
        assert min(alone[e.job.application] for e in shared) >= 1
    else:
        assert not shared


@pytest.mark.slow
def test_its_run_times_come_to_be_those_of_the_applications() -> None:
    jobs = list(workload_jobs("random", 60, 5))
    known = make_knowledge("history?begin=empty", jobs, MODEL)
    run("greedy", known, jobs)
    for one in jobs[:20]:
        spread = known.run_ms(one)
        assert spread is not None
        assert one.work_ms is not None
        assert spread.expected == pytest.approx(one.work_ms, rel=0.1)


def test_a_profile_that_lies_costs_three_tries_at_most_and_no_job() -> None:
    """Believed to need 4,000 MiB, and half as much again in truth: three fit by belief, two do not in truth."""
    truth = {"liar": flat("liar", 8000)}
    model = make_interference("mps", truth)
    known = History(profiles={"liar": flat("liar", 4000)}, recorder=truth, speeds=Oracle((), model).speeds)
    jobs = [Job(f"j{at}", 0, 100_000, application="liar", retries=20) for at in range(8)]
    events = run("greedy", known, jobs, model)
    assert len([e for e in events if e.kind is EventKind.FINISH]) == len(jobs)
    assert 1 <= len([e for e in events if e.reason is Reason.OUT_OF_MEMORY]) <= 3


class Wide(Oracle):
    """Has doubts of memory that make no sense."""

    certain = False
    high = 0

    def peak_mem_mib(self, job: Job, gpu: object = None) -> Spread | None:
        spread = super().peak_mem_mib(job)
        return None if spread is None else Spread(spread.expected, -5, self.high)


@pytest.mark.parametrize("high", [-(10**9), 0, 10**15])
def test_a_spread_that_makes_no_sense_counts_for_nothing(high: int) -> None:
    jobs = list(workload_jobs("GPU_light", 8, 1))
    knowledge = Wide(jobs, MODEL)
    knowledge.high = high
    events = run("greedy", knowledge, jobs)
    assert len([e for e in events if e.kind is EventKind.FINISH]) == len(jobs)


def test_policies_leave_room_for_the_upper_quantile_of_memory() -> None:
    """Two that fit by what is expected, and not by what is possible, run one after the other."""
    truth = {"a": flat("a", 6000)}
    model = make_interference("mps", truth)
    jobs = [Job(f"j{at}", 0, 100_000, application="a") for at in range(2)]
    sure = Oracle(jobs, model)
    doubts = Wide(jobs, model)
    doubts.high = 6200
    starts = [
        {e.job.id: e.time_ms for e in run("greedy", knowledge, jobs, model) if e.kind is EventKind.START}
        for knowledge in (sure, doubts)
    ]
    assert starts[0]["j1"] == 0
    assert starts[1]["j1"] > 0


def test_a_history_folder_is_where_it_begins(tmp_path: Path) -> None:
    ended = [Job(str(at), 0, 1000, user="u", application="a") for at in range(5)]
    known = make_knowledge(f"history?begin={history_of(ended, tmp_path).folder}")
    spread = known.run_ms(job())
    assert spread is not None
    assert (spread.expected, spread.basis) == (1000, "history")
    assert len(known.usual_requests()) == 5


def test_what_a_begun_run_shows_counts_with_a_wide_spread_until_a_whole_run_is_seen() -> None:
    known, whole = History(), flat("a", 4000, seconds=200)
    assert known.wants_to_see(job())
    known.recorded(begun(whole, 30_000))
    assert known.profiles["a"].kind == BEGUN
    assert run_time_ms(known.profiles["a"]) == 30_000
    assert known.run_ms(job()) == Spread(60_000, 0, 120_000, "profile")
    first = known.peak_mem_mib(job())
    assert first == Spread(4000, 3765, 6000, "history")
    known.recorded(begun(whole, 60_000))
    assert known.run_ms(job()) == Spread(120_000, 0, 240_000, "profile")
    assert known.peak_mem_mib(job()) == Spread(4000, 3765, 5000, "history")
    known.recorded(begun(whole, 30_000))  # a shorter look tells less
    assert run_time_ms(known.profiles["a"]) == 60_000
    assert known.wants_to_see(job())
    known.recorded(whole)
    assert known.profiles["a"] is whole
    assert known.peak_mem_mib(job()) == Spread(4000, 3765, 4250, "history")
    known.recorded(begun(whole, 120_000))
    assert known.profiles["a"] is whole
    assert not known.wants_to_see(job())
    assert not known.wants_to_see(job(""))


@pytest.mark.parametrize("mem", [[0] * 6, [100, 100, 100, 500, 500, 500]])
def test_a_begun_run_whose_memory_has_not_loaded_tells_nothing(mem: list[int]) -> None:
    rows = np.array([[0.3, mib / THESIS_GPU.mem_mib, 0.2, 0.0] for mib in mem])
    known = History()
    known.recorded(Profile("a", BEGUN, 0, "", THESIS_GPU, 5000, rows))
    assert "a" not in known.profiles
    assert known.wants_to_see(job())


def test_what_a_begun_run_showed_is_forgotten_if_a_run_does_not_complete() -> None:
    known = History()
    known.recorded(begun(flat("a", 4000), FIRST_LOOK_MS))
    known.ran_out_of_memory(job(), 7000)
    assert peak_mem_mib(known.profiles["a"]) >= 7000
    known.observe(record("a", "u", 40_000, start_ms=None, state=RecordState.CANCELLED))  # it never ran
    known.observe(record("a", "u", 40_000))
    assert known.profiles["a"].kind == BEGUN
    known.observe(record("a", "u", 40_000, state=RecordState.FAILED))
    assert "a" not in known.profiles
    assert known.wants_to_see(job())
    known.recorded(flat("a", 4000))
    known.observe(record("a", "u", 40_000, state=RecordState.FAILED))
    assert known.profiles["a"].kind != BEGUN


def test_once_a_begun_run_died_the_next_job_runs_alone_when_none_like_it_share() -> None:
    known, truth = History(), flat("a", 3000, seconds=300)
    known.first_look_ms = FIRST_LOOK_MS
    two = [Node(f"n{at}", gpus=1, gpu_model=THESIS_GPU) for at in range(2)]
    scheduler = Scheduler(Cluster(two), make_policy("pairs", Setting(knowledge=known)), known)
    for at in range(6):
        scheduler.submit(Job(f"j{at}", 0, None, application="a"))

    def sharing(now_ms: int) -> dict[str, bool]:
        assert not [each for each in scheduler.decide(now_ms) if isinstance(each, Refused)]
        return {name: run.best_effort for name, run in scheduler.cluster.running.items()}

    assert sharing(0) == {"j0": False}
    scheduler.sampled(scheduler.cluster.running["j0"], begun(truth, FIRST_LOOK_MS), FIRST_LOOK_MS)
    assert sharing(FIRST_LOOK_MS) == {"j0": False, "j1": True, "j2": True}
    scheduler.ended("j0", RecordState.FAILED, 40_000)
    assert sharing(40_000) == {
        "j1": True,
        "j2": True,
        "j3": True,
        "j4": True,
    }  # forecasts of it are still made
    for name in ("j1", "j2", "j3", "j4"):
        scheduler.ended(name, RecordState.FAILED, 50_000)
    assert sharing(50_000) == {"j5": False}


def test_a_service_is_looked_at_until_its_whole_profile_was_seen_and_anew_after_a_suspension(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is suspended from 40 to 50 s: looks at 30, 80 and 160 s."""
    monkeypatch.setattr("berth.engine.run.IN_VAIN", 1000)
    looks: list[int] = []

    class Watched(History):
        def recorded(self, profile: Profile) -> None:
            super().recorded(profile)
            looks.append(run_time_ms(profile))

    model = make_interference("time-sliced", {"a": flat("a", 4000), "b": flat("b", 4000)})
    jobs = [
        Job("service", 0, FOREVER_MS, application="a"),
        Job("urgent", 40_000, 10_000, application="b", priority=1),
    ]
    free = Suspension(mbps=10**9, back_mbps=10**9, setup_ms=0)
    events = simulate(
        jobs, ONE, "preempt+fifo+first-fit", knowledge=Watched(), interference=model, suspension=free
    )
    kinds = [(each.job.id, each.kind.name) for each in events if each.kind is not EventKind.SUBMIT]
    assert kinds == [
        ("service", "START"),
        ("service", "SUSPEND"),
        ("urgent", "START"),
        ("urgent", "FINISH"),
        ("service", "RESUME"),
    ]
    assert looks == [30_000, 65_000, 100_000]  # in rows of 5 s; it takes a moment to be copied back


def test_jobs_alike_wait_for_no_look_where_runs_are_not_sampled() -> None:
    jobs = [Job(f"j{at}", 0, 300_000, application="a") for at in range(2)]
    two = [Node(f"n{at}", gpus=1, gpu_model=THESIS_GPU) for at in range(2)]
    for interference in (no_interference, make_interference("time-sliced", {})):
        known = make_knowledge("history?begin=empty", jobs, interference)
        chosen = make_policy("pairs", Setting(knowledge=known))
        events = simulate(jobs, Cluster(two), chosen, knowledge=known, interference=interference)
        assert [each.time_ms for each in events if each.kind is EventKind.START] == [0, 0]


@pytest.mark.parametrize("policy", ["pairs", "learned"])
def test_jobs_like_one_that_runs_share_before_it_ends(policy: str) -> None:
    """Four of one application on two cards: the others share the second card from the first look on, the last one once
    the doubt about its memory is less."""
    truth = {"a": flat("a", 2500, seconds=300)}
    model = make_interference("time-sliced", truth)
    two = [Node(f"n{at}", gpus=1, gpu_model=THESIS_GPU) for at in range(2)]
    jobs = [Job(f"j{at}", 0, 300_000, application="a") for at in range(4)]
    known = make_knowledge("history?begin=empty", jobs, model)
    chosen = make_policy(policy, Setting(knowledge=known))
    events = list(simulate(jobs, Cluster(two), chosen, knowledge=known, interference=model))
    starts = {each.job.id: each.time_ms for each in events if each.kind is EventKind.START}
    ends = {each.job.id: each.time_ms for each in events if each.kind is EventKind.FINISH}
    assert starts == {"j0": 0, "j1": FIRST_LOOK_MS, "j2": FIRST_LOOK_MS, "j3": 2 * FIRST_LOOK_MS}
    assert ends.keys() == starts.keys()
    assert ends["j0"] == 300_000
    assert not [each for each in events if each.kind is EventKind.FAIL]
    assert known.profiles["a"] == truth["a"]
    promised = [each.share.mem_mib for each in events if each.kind is EventKind.START and each.job.id != "j0"]
    assert promised == [4219, 4219, 3516]  # the upper end of what is believed, and an eighth
