"""One run of each application without a profile comes first, alone; then those with a profile; then the rest."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from berth.cluster import Cluster
from berth.engine import simulate
from berth.interference import make_interference
from berth.knowledge import History
from berth.model import EventKind, GpuSlot, Job, Node
from berth.policies import Setting, make_policy
from berth.profiles import THESIS_GPU, run_time_ms, thesis_profiles

PROFILES = thesis_profiles()
MPS = make_interference("mps")


def job(name: str, application: str, submit_ms: int) -> Job:
    return Job(name, submit_ms, run_time_ms(PROFILES[application]), application=application)


def run(
    policy: str, jobs: Sequence[Job], gpus: int, known: Sequence[str] = ()
) -> tuple[dict[str, tuple[int, GpuSlot]], dict[str, int]]:
    """When and where each job starts, and when it ends; of `known` applications there are profiles at first."""
    knowledge = History(
        profiles={name: PROFILES[name] for name in known},
        recorder=PROFILES,
        speeds=MPS.speeds,  # type: ignore[attr-defined]
    )
    made = make_policy(policy, Setting(0, knowledge=knowledge))
    begun, ended = {}, {}
    for event in simulate(
        jobs, Cluster([Node("n", gpus, THESIS_GPU)]), made, knowledge=knowledge, interference=MPS
    ):
        if event.kind is EventKind.START:
            begun[event.job.id] = event.time_ms, event.slots[0]
        elif event.kind is EventKind.FINISH:
            ended[event.job.id] = event.time_ms
    assert len(ended) == len(jobs)
    return begun, ended


@pytest.mark.parametrize("policy", ["pairs", "learned"])
def test_the_first_gpu_that_is_empty_runs_an_application_that_nobody_knows(policy: str) -> None:
    jobs = [*(job(f"a{at}", "alexnet", 0) for at in range(12)), job("new", "vgg11", 40_000)]
    begun, ended = run(policy, jobs, gpus=4)
    assert begun["new"][0] == min(ended.values()), "eight jobs were before it"


@pytest.mark.parametrize("policy", ["pairs", "learned"])
def test_what_runs_for_the_first_time_is_alone(policy: str) -> None:
    jobs = [job(f"j{at}", name, 100 * at) for at, name in enumerate(sorted(PROFILES) * 2)]
    begun, ended = run(policy, jobs, gpus=6)
    first = {one.application: one.id for one in sorted(jobs, key=lambda one: (begun[one.id], one.id))[::-1]}
    for name in first.values():
        since, slot = begun[name]
        beside = [
            other
            for other, (at, there) in begun.items()
            if other != name and there == slot and at < ended[name] and ended[other] > since
        ]
        assert beside == []


@pytest.mark.parametrize("policy", ["pairs", "learned"])
def test_a_job_that_waits_for_a_profile_holds_up_no_job_with_one(policy: str) -> None:
    jobs = [
        job("unknown", "vgg16", 0), job("light", "GROMACS", 0), job("waits", "vgg16", 1), job("known", "GROMACS", 2),
    ]  # fmt: skip
    begun, ended = run(policy, jobs, gpus=2, known=["GROMACS"])
    assert begun["known"][0] < min(ended.values())
    assert begun["waits"][0] >= min(ended.values())


@pytest.mark.parametrize("policy", ["pairs", "learned"])
def test_jobs_that_wait_for_a_profile_put_no_others_together(policy: str) -> None:
    """How much sharing may cost depends on how many jobs wait; those without a profile cannot share, so they do not
    count."""
    names = ["resnet152", "vgg16", "HOOMD"]
    known = [job(f"k{at}", name, 1000 * at + 1) for at, name in enumerate(names)]
    waiting = [job(f"w{at}", "LAMMPS", 2) for at in range(15)]
    first, last = [job("first", "LAMMPS", 0), known[0]], known[1:]
    alone, _ = run(policy, [*first, *last], gpus=2, known=names)
    beside, _ = run(policy, [*first, *waiting, *last], gpus=2, known=names)
    assert [beside[one.id] for one in known] == [alone[one.id] for one in known]


def test_an_application_that_stays_unknown_is_served_in_its_turn() -> None:
    """One run tells nothing of it where nobody records: its jobs then wait as others do, and all end."""
    jobs = sorted(
        [*(Job(f"x{at}", 50_000 * at, 60_000, application="unheard-of") for at in range(6)),
         *(job(f"k{at}", "GROMACS", 20_000 * at + 1) for at in range(12))],
        key=lambda one: one.submit_ms,
    )  # fmt: skip
    begun, _ = run("pairs", jobs, gpus=2, known=["GROMACS"])
    assert len(begun) == len(jobs)
