"""Policies that co-locate: who shares, who runs alone, and what no network can talk them into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from berth.cluster import Cluster, Queue
from berth.engine import simulate
from berth.errors import ModelError, PolicyError, SettingError
from berth.interference import make_interference, make_speeds
from berth.interference.profiled import ProfiledInterference
from berth.knowledge import Oracle, make_knowledge
from berth.model import Event, EventKind, GpuModel, Job, Node, Placement, Profile, Reason, Share
from berth.network.forecast_network import new_network
from berth.network.model_file import Model
from berth.policies import Setting, make_policy
from berth.policies.colocation.colocating import Colocating
from berth.policies.colocation.forecast import Candidate, Forecaster, Offer
from berth.policies.colocation.greedy import best_progress, joint_progress
from berth.policies.colocation.learned import Learned, LearnedSettings
from berth.profiles import THESIS_GPU, WORKLOADS, run_time_ms, thesis_profiles, workload_jobs
from tests.every_policy import some

PROFILES = thesis_profiles()
ONE = Cluster([Node("gpu", gpus=1, gpu_model=THESIS_GPU)])
MODEL = Model(new_network(0), "test", ())
"""A network that has learned nothing."""
COLOCATING = ("greedy", "tetris-sharing", "learned?model=untrained")


def named(application: str, number: int, **others: object) -> Job:
    return Job(
        f"{application}-{number}", 0, run_time_ms(PROFILES[application]), application=application, **others
    )  # type: ignore[arg-type]


def run(jobs: Sequence[Job], cluster: Cluster, policy: object, model: str = "mps") -> list[Event]:
    return list(simulate(jobs, cluster, policy, interference=make_interference(model)))  # type: ignore[arg-type]


def total_ms(events: Sequence[Event]) -> int:
    return max(event.time_ms for event in events if event.kind == EventKind.FINISH)


@pytest.mark.parametrize("model", ["mps", "time-sliced"])
@pytest.mark.parametrize("workload", some(WORKLOADS))
def test_no_network_makes_a_set_end_later_than_one_after_the_other_or_out_of_memory(
    workload: str, model: str
) -> None:
    jobs = workload_jobs(workload, 8, 7)
    for seed in range(2):
        policy = make_policy(
            "learned?model=untrained", Setting(seed, knowledge=Oracle((), make_interference(model)))
        )
        events = run(jobs, ONE, policy, model)
        assert [event.reason for event in events if event.kind == EventKind.FAIL] == []
        assert total_ms(events) <= sum(job.work_ms for job in jobs)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mps", "time-sliced"])
def test_where_no_two_of_all_that_wait_fit_together_dqn_starts_whom_greedy_starts(model: str) -> None:
    jobs = workload_jobs("GPUmemory_heavy", 8, 7)
    assert run(jobs, ONE, "learned", model) == run(jobs, ONE, "greedy", model)
    alone = run(jobs, ONE, "learned?model=untrained", model)  # what the network alone does is to be seen
    assert total_ms(alone) > total_ms(run(jobs, ONE, "learned", model))


def test_without_its_shield_a_network_that_loves_company_is_later_than_one_after_the_other() -> None:
    crowd = thesis_profiles()["vgg16"]
    small = replace(crowd, usage=np.array(crowd.usage) * [1, 0.1, 1, 1])
    profiles = {"vgg16": small}
    interference = ProfiledInterference(profiles, make_speeds("time-sliced"))
    jobs = [Job(f"j{at}", 0, run_time_ms(small), application="vgg16") for at in range(5)]

    def total(shield: int) -> int:
        policy = Learned(Setting(knowledge=Oracle((), interference)), LearnedSettings(shield=shield), MODEL)
        policy.choose = lambda scene: np.array(  # type: ignore[assignment]
            [np.flatnonzero(policy.allowed(scene)[0]).max()]
        )
        return total_ms(list(simulate(jobs, ONE, policy, interference=interference)))

    assert total(0) > sum(job.work_ms for job in jobs) >= total(1)


@pytest.mark.parametrize("name", COLOCATING)
def test_an_application_without_a_profile_runs_alone_once_and_then_shares(name: str) -> None:
    policy = make_policy(name, Setting(0, knowledge=Oracle((), make_interference("mps"))))
    assert isinstance(policy, Colocating)
    if name.startswith("learned"):
        policy.choose = best_progress  # a network that has learned nothing may combine nothing
    policy.known.pop("alexnet")
    policy.whole.recorded = PROFILES.get
    jobs = [named("alexnet", 0), named("alexnet", 1), *(named("GROMACS", at) for at in range(4))]
    events = run(jobs, ONE, policy)
    spans = {
        event.job.id: [
            other.time_ms for other in events if other.job.id == event.job.id and other.kind != "submit"
        ]
        for event in events
    }
    first = spans["alexnet-0"]
    assert first[1] - first[0] == jobs[0].work_ms
    assert not any(first[0] < begin < first[1] or first[0] < end < first[1] for begin, end in spans.values())
    second = spans["alexnet-1"]
    assert any(
        begin < second[1] and second[0] < end for who, (begin, end) in spans.items() if who != "alexnet-1"
    )


@pytest.mark.parametrize("name", ["greedy", "learned"])
def test_a_history_that_begins_empty_lets_each_application_run_alone_once(name: str) -> None:
    jobs = [named(app, at) for at in range(4) for app in ("alexnet", "GROMACS")]
    truth = make_interference("mps")
    knowledge = make_knowledge("history?begin=empty", jobs, truth)
    policy = make_policy(name, Setting(0, knowledge=knowledge))
    ran = simulate(jobs, ONE, policy, knowledge=knowledge, interference=truth)
    events = [event for event in ran if event.kind in (EventKind.START, EventKind.FINISH)]
    assert [event.job.id for event in events[:4]] == ["alexnet-0", "alexnet-0", "GROMACS-0", "GROMACS-0"]
    assert total_ms(events) < sum(job.work_ms for job in jobs)


@pytest.mark.parametrize("name", COLOCATING)
def test_a_job_larger_than_any_gpu_is_reported_at_once_and_the_rest_goes_on(name: str) -> None:
    big = Job("big", 0, 1000, application="huge", share=Share(1000, 20_000))
    jobs = [big, *(named("GROMACS", at) for at in range(3))]
    events = run(jobs, ONE, name)
    assert [(e.time_ms, e.job.id, e.reason) for e in events if e.kind == EventKind.REJECT] == [
        (0, "big", Reason.NEVER_FITS)
    ]
    assert sum(event.kind == EventKind.FINISH for event in events) == 3


@pytest.mark.parametrize("name", ["sjf+first-fit", *COLOCATING])
def test_a_job_whose_profile_is_larger_than_any_gpu_it_may_run_on_is_reported_when_it_comes(
    name: str,
) -> None:
    small = GpuModel("small", "", 8_000, 3_840, 32_000)
    cluster = Cluster([Node("small", gpus=1, gpu_model=small), Node("large", gpus=1, gpu_model=THESIS_GPU)])
    lammps = named("LAMMPS", 0)  # up to 8,499 MiB
    jobs = [
        named("GROMACS", 0),
        named("alexnet", 0),
        replace(lammps, id="nowhere", submit_ms=3_000, models=("small",)),
        replace(lammps, id="large", submit_ms=3_000, models=(THESIS_GPU.name,)),
        # It ends before its memory has grown so much.
        replace(lammps, id="short", submit_ms=3_000, work_ms=5_000, models=("small",)),
    ]
    events = run(jobs, cluster, name)
    assert [(e.time_ms, e.job.id, e.reason) for e in events if e.kind == EventKind.REJECT] == [
        (3_000, "nowhere", Reason.NEVER_FITS)
    ]
    finished = {event.job.id for event in events if event.kind == EventKind.FINISH}
    assert finished == {"GROMACS-0", "large", "short", "alexnet-0"}


@pytest.mark.parametrize("name", COLOCATING)
def test_a_profile_that_fits_on_one_of_the_gpus_goes_there(name: str) -> None:
    small = GpuModel("small", "", 6_144, 1_920, 16_000)
    cluster = Cluster([Node("small", gpus=1, gpu_model=small), Node("large", gpus=1, gpu_model=THESIS_GPU)])
    jobs = [named("vgg16", 0), named("vgg16", 1), named("alexnet", 0), named("alexnet", 1)]
    events = run(jobs, cluster, name)
    starts = {event.job.id: event.slots[0].node for event in events if event.kind == EventKind.START}
    assert {starts["vgg16-0"], starts["vgg16-1"]} == {1}
    assert len(starts) == 4
    assert sum(event.kind == EventKind.FINISH for event in events) == 4


@pytest.mark.parametrize("name", ["greedy", "learned?model=untrained"])
def test_who_forecasts_the_series_of_all_tenants_runs_out_of_memory_on_no_gpu(name: str) -> None:
    """Tetris adds up series as if nobody were slowed, and may."""
    small = GpuModel("small", "", 6_144, 1_920, 16_000)
    cluster = Cluster([Node("small", gpus=1, gpu_model=small), Node("large", gpus=1, gpu_model=THESIS_GPU)])
    jobs = [named("vgg16", 0), named("vgg16", 1), named("alexnet", 0), named("alexnet", 1)]
    assert [event for event in run(jobs, cluster, name) if event.kind == EventKind.FAIL] == []


def test_while_gpus_are_idle_jobs_spread_before_they_share() -> None:
    cluster = Cluster([Node("n", gpus=4, gpu_model=THESIS_GPU)])
    jobs = [named("GROMACS", at) for at in range(4)]
    events = run(jobs, cluster, "greedy")
    assert len({event.slots for event in events if event.kind == EventKind.START}) == 4
    assert total_ms(events) == jobs[0].work_ms


def test_a_job_on_several_gpus_is_not_overtaken_for_ever() -> None:
    cluster = Cluster([Node("n", gpus=2, gpu_model=THESIS_GPU)])
    jobs = [*(named("GROMACS", at) for at in range(6)), Job("both", 1, 10_000, gpus=2)]
    jobs += [replace(named("GROMACS", 10 + at), submit_ms=2 + at) for at in range(20)]
    events = run(jobs, cluster, "greedy")
    started = [event.job.id for event in events if event.kind == EventKind.START]
    assert started.index("both") == 6


@pytest.mark.parametrize("name", COLOCATING)
def test_a_gpu_is_offered_jobs_that_fit_however_far_behind_they_wait(name: str) -> None:
    small = GpuModel("small", "", 6_144, 1_920, 16_000)
    cluster = Cluster([Node("small", gpus=1, gpu_model=small), Node("large", gpus=1, gpu_model=THESIS_GPU)])
    jobs = [*(named("vgg16", at) for at in range(12)), named("HOOMD", 0), named("HOOMD", 1)]
    starts = [event for event in run(jobs, cluster, name) if event.kind == EventKind.START]
    assert min(event.time_ms for event in starts if event.slots[0].node == 0) == 0


@pytest.mark.parametrize("name", COLOCATING)
def test_applications_without_a_profile_do_not_overtake_those_that_have_one(name: str) -> None:
    strangers = [Job(f"s{at}", 50_000 * at, 60_000, application="stranger") for at in range(8)]
    known = [replace(named("alexnet", at), submit_ms=1_000) for at in range(2)]
    jobs = sorted([*strangers, *known], key=lambda job: job.submit_ms)
    starts = [event.job.id for event in run(jobs, ONE, name) if event.kind == EventKind.START]
    assert set(starts[1:3]) == {"alexnet-0", "alexnet-1"}
    assert [one for one in starts if one[0] == "s"] == [job.id for job in strangers]


@pytest.mark.parametrize("name", ["greedy", "learned?model=untrained"])
def test_a_combination_is_started_whole_or_not_at_all(name: str) -> None:
    """Three fit together and two of them do not: where there is CPU for two alone, they are not started."""
    random = np.random.default_rng(0)
    speeds, seen = make_speeds("time-sliced"), 0
    for _ in range(400):
        profiles = {}
        for application in "abc":
            steps = int(random.integers(10, 40))
            usage = np.full((steps, 4), 0.0)
            usage[:, 0] = random.random() * 0.9 + 0.1
            usage[:, 1] = 0.1
            begin = int(random.integers(2, steps - 4))
            usage[begin : begin + 4, 1] = 0.7
            profiles[application] = Profile(application, "", 0, "", THESIS_GPU, 1000, usage)
        work = {name: run_time_ms(profile) for name, profile in profiles.items()}
        offer = Offer((), tuple(Candidate(name, 1000 * ms, 1000 * ms) for name, ms in work.items()))
        fits = Forecaster(profiles, speeds).forecasts([offer], THESIS_GPU).fits[0]
        if not fits[7] or fits[3]:
            continue
        seen += 1
        jobs = [Job(one, 0, ms, application=one, cpu_milli=1000) for one, ms in work.items()]
        cluster = Cluster([Node("g", gpus=1, gpu_model=THESIS_GPU, cpu_milli=2000)])
        interference = ProfiledInterference(profiles, speeds)
        events = list(simulate(jobs, cluster, name, interference=interference))
        assert [event.reason for event in events if event.kind == EventKind.FAIL] == []
        assert sum(event.kind == EventKind.FINISH for event in events) == 3
    assert seen > 5


@pytest.mark.parametrize("name", COLOCATING)
def test_gpus_of_one_node_share_its_cpus(name: str) -> None:
    cluster = Cluster([Node("n", gpus=3, gpu_model=THESIS_GPU, cpu_milli=4000)])
    jobs = [replace(named("alexnet", at), cpu_milli=1000) for at in range(9)]
    events = run(jobs, cluster, name)
    assert sum(event.kind == EventKind.FINISH for event in events) == 9
    assert 3 <= sum(event.kind == EventKind.START and event.time_ms == 0 for event in events) <= 4


@pytest.mark.parametrize("name", ["greedy?window=10", "learned"])
def test_up_to_ten_share_and_no_more(name: str) -> None:
    tiny = Profile("tiny", "", 0, "", THESIS_GPU, 1000, np.full((30, 4), 0.02))
    interference = ProfiledInterference({"tiny": tiny}, make_speeds("mps"))
    jobs = [Job(str(at), 0, 30_000, application="tiny") for at in range(25)]
    there: set[str] = set()
    most = 0
    for event in simulate(jobs, ONE, name, interference=interference):
        if event.kind == EventKind.START:
            there.add(event.job.id)
            most = max(most, len(there))
        elif event.kind == EventKind.FINISH:
            there.discard(event.job.id)
    assert most == 10


def test_jobs_worth_more_unslowed_are_slowed_less() -> None:
    jobs = workload_jobs("random", 15, 3)

    def slowed(unslowed: float) -> int:
        policy = Learned(
            Setting(knowledge=Oracle((), make_interference("mps"))),
            LearnedSettings(unslowed=unslowed),
            MODEL,
        )
        policy.scores = lambda scene, allowed: np.where(allowed, joint_progress(scene.forecasts), -np.inf)
        began: dict[str, int] = {}
        count = 0
        for event in run(jobs, ONE, policy):
            if event.kind == EventKind.START:
                began[event.job.id] = event.time_ms
            elif event.kind == EventKind.FINISH:
                count += event.time_ms - began[event.job.id] > 1.02 * event.job.work_ms
        return count

    assert slowed(1000) == 0 < slowed(0)


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("learned?model=no-such-file.npz", ModelError, "no model 'no-such-file.npz'; expected a file"),
        ("learned?model=", ModelError, "no model ''; expected a file"),
        ("learned?window=11", SettingError, "^window is 11; expected from 1 to 10$"),
        ("learned?unslowed=-1", SettingError, "^unslowed is -1 s; expected from 0 to 1,000,000$"),
        ("learned?shield=2", SettingError, "^shield is 2; expected 0 or 1$"),
        (
            "learned?speed=3",
            SettingError,
            "^no setting 'speed'; there are model, pairs, window, unslowed, shield, plans$",
        ),
        ("greedy?window=0", SettingError, "window is 0"),
        ("tetris-sharing?demand=most", SettingError, "demand is 'most'"),
        ("tetris-sharing?shortest=1", SettingError, "no setting 'shortest'; there are demand, within$"),
        ("greedy?speed=3", SettingError, "no setting 'speed'"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_with_what_can(
    name: str, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message.replace("?", r"\?")):
        make_policy(name)
    assert not issubclass(kind, PolicyError)


def test_an_untrained_network_is_shown_what_its_policy_is_shown() -> None:
    policy = make_policy("learned?model=untrained")
    assert isinstance(policy, Learned)
    assert policy.model.demand == "series"


@pytest.mark.parametrize("name", ["greedy", "learned", "tetris-sharing"])
def test_what_is_kept_of_a_cluster_lies_on_its_memo_alone(name: str) -> None:
    policy = make_policy(name, Setting(0, knowledge=Oracle((), make_interference("mps"))))
    assert isinstance(policy, Colocating)
    before = {key for key, value in vars(policy).items() if isinstance(value, dict | list | set) and value}
    cluster, queue = Cluster([Node(f"n{at}", 2, THESIS_GPU) for at in range(2)]), Queue()
    for at, application in enumerate(sorted(thesis_profiles())):
        queue.add(Job(f"j{at}", 0, 100_000, application=application))
    for now_ms in (0, 1000):
        for decision in policy(queue, cluster, now_ms):
            if isinstance(decision, Placement):
                cluster.place(decision, now_ms=now_ms)
                queue.remove(decision.job)
    kept = cluster.memo[policy]
    assert kept.may
    own = {key for key, value in vars(policy).items() if isinstance(value, dict | list | set) and value}
    assert own - before <= {"_pairs", "_demands"}  # of profiles, whatever the cluster
    cluster.memo.clear()  # as when a node changes
    list(policy(queue, cluster, 2000))
    assert cluster.memo[policy] is not kept
