"""Lower bounds on total time: below every schedule there is, and near where one can work it out by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from berth.cluster import Cluster
from berth.engine import simulate
from berth.errors import SettingError
from berth.interference import make_interference, make_speeds
from berth.interference.profiled import ProfiledInterference
from berth.model import EventKind, Job, Node, Profile
from berth.profiles import THESIS_GPU, WORKLOADS, run_time_ms, thesis_profiles, workload_jobs
from berth_papers.bounds import least_total_time, time_bound
from berth_papers.bounds.configurations import LATE_MS, configurations

pytest.importorskip("highspy", reason="the bound needs the extra 'optimum'")

PROFILES = thesis_profiles()
MODELS = ("mps", "time-sliced")


def flat(name: str, gpu: float, mem: float, seconds: int) -> Profile:
    return Profile(name, "", 0, "", THESIS_GPU, 1000, np.full((seconds, 4), [gpu, mem, gpu / 2, 0.0]))


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_the_bound_is_below_the_shortest_schedule_of_all(workload: str, model: str) -> None:
    for seed, count in ((0, 2), (1, 3), (2, 4), (3, 5), (4, 1)):
        jobs = workload_jobs(workload, count, seed)
        bound = time_bound(jobs, PROFILES, make_speeds(model), THESIS_GPU)
        exact = least_total_time(jobs, make_interference(model), THESIS_GPU)
        often = (
            exact
            if count > 3
            else least_total_time(jobs, make_interference(model), THESIS_GPU, every_row=True)
        )
        assert bound.longest_ms <= bound.total_ms <= often.total_ms <= exact.total_ms <= bound.alone_ms


def test_the_shortest_schedule_of_all_is_that_of_trying_every_order_in_the_simulator() -> None:
    """Lists: each job starts as soon as those before it have started and it is its turn after k ends."""
    jobs = workload_jobs("GPU_light", 3, 4)
    interference = make_interference("mps")
    cluster = Cluster([Node("gpu", gpus=1, gpu_model=THESIS_GPU)])
    best = None
    for order in itertools.permutations(jobs):
        for turns in itertools.product(range(3), repeat=3):

            def policy(queue, cluster, now_ms, order=order, turns=turns):  # type: ignore[no-untyped-def]
                from berth.model import GpuSlot, Placement, Share

                ended = len(jobs) - len(queue) - len(cluster.running)
                for job, turn in zip(order, turns, strict=True):
                    if job in queue and turn <= ended:
                        yield Placement(job, (GpuSlot(0, 0),), Share(100, 0))

            events = list(simulate(jobs, cluster, policy, interference=interference))
            ends = [event.time_ms for event in events if event.kind == EventKind.FINISH]
            if len(ends) == 3 and not any(event.kind == EventKind.FAIL for event in events):
                best = max(ends) if best is None else min(best, max(ends))
    assert least_total_time(jobs, interference, THESIS_GPU).total_ms == best


def test_two_that_share_perfectly_are_bounded_by_what_they_do_together() -> None:
    profiles = {"a": flat("a", 0.5, 0.3, 100)}
    jobs = [Job(str(at), 0, 100_000, application="a") for at in range(6)]
    speeds = make_speeds("time-sliced")
    usage = np.array([[[500, 3686, 250, 0]] * 3], dtype=np.int32)
    three = int(speeds(usage, np.ones((1, 3), bool), THESIS_GPU.mem_mib)[0, 0])
    two = int(speeds(usage[:, :2], np.ones((1, 2), bool), THESIS_GPU.mem_mib)[0, 0])
    bound = time_bound(jobs, profiles, speeds, THESIS_GPU)
    assert bound.work_ms == pytest.approx(600_000_000 / max(3 * three, 2 * two, 1000), rel=1e-6)
    assert time_bound(jobs, profiles, speeds, THESIS_GPU, gpus=3).work_ms == pytest.approx(bound.work_ms / 3)


def test_where_nobody_fits_beside_another_the_bound_is_all_work() -> None:
    profiles = {"a": flat("a", 0.1, 0.6, 50), "b": flat("b", 0.1, 0.7, 70)}
    jobs = [Job(str(at), 0, 1000 * (50 if at % 2 else 70), application="ba"[at % 2]) for at in range(5)]
    bound = time_bound(jobs, profiles, make_speeds("mps"), THESIS_GPU)
    assert bound.total_ms == pytest.approx(sum(job.work_ms for job in jobs))


def test_what_nobody_can_do_at_the_begin_and_the_end_is_added() -> None:
    """Who loads, alone on the GPU's memory, for 10 s before it works: that much of a pair of others is lost."""
    usage = np.repeat(
        [[0.1, 0.2, 0.1, 0.0], [0.9, 0.2, 0.9, 0.0], [0.1, 0.2, 0.1, 0.0]], [10, 30, 20], axis=0
    )
    profiles = {"a": Profile("a", "", 0, "", THESIS_GPU, 1000, usage)}
    jobs = [Job(str(at), 0, 60_000, application="a") for at in range(4)]
    bound = time_bound(jobs, profiles, make_speeds("time-sliced"), THESIS_GPU)
    exact = least_total_time(jobs, ProfiledInterference(profiles, make_speeds("time-sliced")), THESIS_GPU)
    # Nobody works in the first 10 s, nor in the last 20.
    assert bound.ramps_ms > 10_000
    assert bound.work_ms + bound.ramps_ms == bound.total_ms <= exact.total_ms


def test_merging_segments_only_lowers_the_bound() -> None:
    jobs = workload_jobs("random", 8, 1)
    values = [
        time_bound(jobs, PROFILES, make_speeds("mps"), THESIS_GPU, segments=segments).work_ms
        for segments in (6, 10, 16)
    ]
    assert values[0] <= values[1] * 1.0001 <= values[2] * 1.0002


def test_a_configuration_takes_no_more_jobs_than_there_are() -> None:
    jobs = [
        Job(str(at), 0, run_time_ms(PROFILES[name]), application=name)
        for at, name in enumerate(("GROMACS", "alexnet", "GROMACS"))
    ]
    listed = configurations(PROFILES, jobs, make_speeds("mps"), THESIS_GPU)
    assert (listed.tenants < len(listed.usage)).sum(axis=1).max() == 3
    rows = 2 * len(PROFILES["GROMACS"].usage) + len(PROFILES["alexnet"].usage)
    work_ms = sum(job.work_ms for job in jobs)
    assert work_ms - LATE_MS * rows <= listed.work_ms.sum() <= work_ms


def test_a_job_shorter_than_its_profile_counts_as_what_it_does() -> None:
    jobs = [Job(str(at), 0, 10_000, application="GROMACS") for at in range(3)]
    bound = time_bound(jobs, PROFILES, make_speeds("mps"), THESIS_GPU)
    exact = least_total_time(jobs, make_interference("mps"), THESIS_GPU)
    assert 10_000 <= bound.total_ms <= exact.total_ms < 11_000


def test_a_job_longer_than_its_profile_stays_in_the_last_row() -> None:
    profiles = {"a": flat("a", 0.1, 0.6, 50)}
    jobs = [Job(str(at), 0, 100_000, application="a") for at in range(3)]  # too large to share
    assert time_bound(jobs, profiles, make_speeds("mps"), THESIS_GPU).work_ms == pytest.approx(300_000)


def test_memory_that_a_shorter_job_never_comes_to_does_not_count() -> None:
    grows = Profile("a", "", 0, "", THESIS_GPU, 1000, np.array([[0.1, 0.1, 0.1, 0.0], [0.1, 2.0, 0.1, 0.0]]))
    job = Job("x", 0, 1000, application="a")
    assert time_bound([job], {"a": grows}, make_speeds("mps"), THESIS_GPU).total_ms == 1000


def test_what_cannot_be_bounded_is_refused() -> None:
    unknown = [Job("x", 0, 1000, application="nobody")]
    with pytest.raises(SettingError, match="no profile of nobody"):
        time_bound(unknown, PROFILES, make_speeds("mps"), THESIS_GPU)
    big = {"big": flat("big", 0.1, 1.5, 10)}
    with pytest.raises(SettingError, match="big takes"):
        time_bound([Job("x", 0, 10_000, application="big")], big, make_speeds("mps"), THESIS_GPU)
    with pytest.raises(SettingError, match=r"expected 1…8"):
        least_total_time(workload_jobs("random", 9), make_interference("mps"), THESIS_GPU)
    interference = ProfiledInterference(big, make_speeds("mps"))
    with pytest.raises(SettingError, match="does not fit"):
        least_total_time([Job("x", 0, 10_000, application="big")], interference, THESIS_GPU)
