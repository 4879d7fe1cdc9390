"""Nobody starves among those that share GPUs; orders stand before policies that share; parts of GPUs are honoured."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from berth.cluster import Cluster
from berth.engine import simulate
from berth.errors import PolicyError
from berth.interference import make_interference
from berth.model import Event, EventKind, Job, Node, Share
from berth.policies import make_policy
from berth.policies.colocation.overtaking import MOST_OVERTAKEN
from berth.profiles import THESIS_GPU, run_time_ms, thesis_profiles

PROFILES = thesis_profiles()
MODEL = make_interference("mps")
ONE = (Node("gpu", 1, THESIS_GPU),)


def job(name: str, application: str, submit_ms: int, **more: object) -> Job:
    return Job(name, submit_ms, run_time_ms(PROFILES[application]), application=application, **more)  # type: ignore[arg-type]


def starts(jobs: Sequence[Job], policy: str, nodes: Sequence[Node] = ONE) -> list[Event]:
    events = list(simulate(jobs, Cluster(nodes), policy, interference=MODEL))
    assert sum(event.kind is EventKind.FINISH for event in events) == len(jobs)
    return [event for event in events if event.kind is EventKind.START]


def stream(count: int = 240) -> list[Job]:
    """Small jobs that fit beside one another come all the time, and one that fits beside none of them pairwise."""
    small = [job(f"j{at:03}", "alexnet", 25_000 * at) for at in range(count)]
    return sorted([*small, job("large", "resnet152", 30_000)], key=lambda one: one.submit_ms)


@pytest.mark.parametrize(
    "policy", ["greedy", pytest.param("learned", marks=pytest.mark.slow), "pairs", "tetris-sharing"]
)
def test_a_job_that_fits_beside_nobody_is_overtaken_so_often_at_most(policy: str) -> None:
    later = 0
    for event in simulate(stream(), Cluster(ONE), policy, interference=MODEL):
        if event.kind is EventKind.START:
            if event.job.id == "large":
                break
            later += event.job.submit_ms > 30_000
    else:
        pytest.fail("it never starts")
    assert later <= MOST_OVERTAKEN


def test_a_full_queue_is_nobody_s_turn() -> None:
    """Of jobs that were submitted at once none is late, whatever is started first."""
    jobs = [job(f"j{at}", "GROMACS" if at else "LAMMPS", 0) for at in range(40)]
    assert len(starts(jobs, "greedy")) >= 40


def test_an_order_stands_before_policies_that_share() -> None:
    names = ("vgg16", "vgg11", "LAMMPS", "alexnet")
    jobs = [job(name, name, 0, user=f"u{at % 2}") for at, name in enumerate(names)]
    first = {
        policy: starts(jobs, policy)[0].job.id
        for policy in ("sjf-expected+greedy?window=1", "greedy?window=1")
    }
    assert first == {"sjf-expected+greedy?window=1": "alexnet", "greedy?window=1": "vgg16"}
    for policy in ("sjf-expected+learned", "fair-share+greedy", "largest-first+tetris-sharing"):
        assert {event.job.id for event in starts(jobs, policy)} == set(names)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("easy+fifo+learned", "learned decides by itself what is stopped"),
        ("sjf+genetic", "genetic decides by itself which job is next"),
        ("least-attained-service+greedy", "the order evicts by itself"),
        ("slowest+greedy", "no order 'slowest'"),
    ],
)
def test_what_cannot_stand_before_them_is_refused(name: str, why: str) -> None:
    with pytest.raises(PolicyError, match=why):
        make_policy(name)


@pytest.mark.parametrize("policy", ["greedy", "learned", "best-fit"])
def test_a_part_of_a_gpu_that_an_unknown_application_asks_for_is_honoured(policy: str) -> None:
    jobs = [Job(f"j{at}", 0, 60_000, application="unheard-of", share=Share(250, 0)) for at in range(4)]
    events = list(simulate(jobs, Cluster(ONE), policy))
    assert events[-1].time_ms == 60_000
