"""Gangs under both genetic policies: every node of it at once, or none; and jobs that no node could hold."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.cluster import Cluster, Queue
from berth.engine import simulate
from berth.errors import SettingError
from berth.knowledge import Oracle
from berth.model import Event, EventKind, GpuModel, Job, Node, Outage, Placement, Share
from berth.policies import Setting, make_policy, names
from berth.policies.genetic.batch import batch_of, shortage_of
from tests.examples import examples

T4 = GpuModel("T4", mem_mib=16_000)
POLICIES = [name for name in ("genetic", "genetic-paper") if name in names()]
"""The latter is of berth-papers."""


def nodes(*gpus: int, cpu_milli: int = 32_000) -> list[Node]:
    return [Node(f"n{at}", count, T4, cpu_milli, 64_000) for at, count in enumerate(gpus)]


def gang(
    name: str, over: int, each: int, *, submit_ms: int = 0, work_ms: int = 1_000, milli: int = 1000
) -> Job:
    return Job(name, submit_ms, work_ms, gpus=over * each, nodes=over, share=Share(milli))


def replay(jobs: list[Job], cluster: list[Node], policy: str) -> list[Event]:
    return list(simulate(jobs, Cluster(cluster), make_policy(policy, Setting(1, knowledge=Oracle(jobs)))))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_gang_gets_all_of_its_nodes_and_the_rest_goes_beside_it(policy: str) -> None:
    queue, cluster = Queue(), Cluster(nodes(2, 2, 2))
    for job in (gang("three", 3, 1), Job("whole", 0, 1, gpus=1), gang("half", 2, 1, milli=500)):
        queue.add(job)
    for decision in make_policy(policy)(queue, cluster, 0):
        assert isinstance(decision, Placement)
        cluster.place(decision)  # refuses a gang on fewer nodes, or not the same on each
        queue.remove(decision.job)
    assert set(cluster.running) == {"three", "whole", "half"}
    assert {slot.node for slot in cluster.running["three"].slots} == {0, 1, 2}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_gang_waits_whole_until_there_are_nodes_enough(policy: str) -> None:
    jobs = [Job("first", 0, 60_000, gpus=2), gang("pair", 2, 2, submit_ms=1)]
    events = replay(jobs, nodes(2, 2), policy)
    assert [
        (event.kind, event.job.id, event.time_ms) for event in events if event.kind is not EventKind.SUBMIT
    ] == [
        (EventKind.START, "first", 0),
        (EventKind.FINISH, "first", 60_000),
        (EventKind.START, "pair", 60_000),
        (EventKind.FINISH, "pair", 61_000),
    ]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_that_no_node_could_hold_is_spread(policy: str) -> None:
    jobs = [Job("wide", 0, 1_000, gpus=5, nodes=0), Job("small", 0, 1_000)]
    events = replay(jobs, nodes(2, 2, 2), policy)
    assert sorted(event.job.id for event in events if event.kind is EventKind.FINISH) == ["small", "wide"]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_is_spread_only_while_the_node_that_could_hold_it_is_lost(policy: str) -> None:
    jobs = [
        Job("meanwhile", 1_000, 5_000, gpus=4, nodes=0),
        Job("blocker", 30_000, 100_000, gpus=3),
        Job("after", 50_000, 5_000, gpus=4, nodes=0),
    ]
    lost = [Outage(0, 0, 20_000)]
    made = make_policy(policy, Setting(1, knowledge=Oracle(jobs)))
    found = {
        event.job.id: sorted({slot.node for slot in event.slots})
        for event in simulate(jobs, Cluster(nodes(4, 2, 2)), made, outages=lost)
        if event.kind is EventKind.START
    }
    assert found == {"meanwhile": [1, 2], "blocker": [0], "after": [0]}


@pytest.mark.parametrize("policy", POLICIES)
def test_nodes_of_more_gpus_than_can_be_told_apart_are_refused(policy: str) -> None:
    jobs = [Job("whole", 0, 1_000, gpus=63)]
    assert [event.slots[-1].index for event in replay(jobs, nodes(63), policy) if event.slots] == [62, 62]
    with pytest.raises(SettingError, match=r"a node has 64 GPUs; .* at most 63 per node"):
        replay(jobs, nodes(64), policy)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@given(seed=st.integers(0, 10_000))
@settings(max_examples=examples(25), deadline=None)
def test_everybody_is_served_in_the_end_with_gangs_among_them(policy: str, seed: int) -> None:
    draw = random.Random(seed)
    cluster = nodes(*(draw.choice([1, 2, 4]) for _ in range(draw.randint(2, 5))))
    jobs, at_ms = [], 0
    for number in range(draw.randint(1, 25)):
        at_ms += draw.choice([0, 0, 500, 20_000])
        jobs.append(
            gang(
                f"j{number}", draw.randint(1, 3), draw.choice([0, 1, 1, 2]), submit_ms=at_ms,
                work_ms=draw.randint(1, 60_000), milli=draw.choice([300, 1000]),
            )
        )  # fmt: skip
    events = replay(jobs, cluster, policy)
    possible = {job.id for job in jobs if Cluster(cluster).fits_when_empty(job)}
    assert {event.job.id for event in events if event.kind is EventKind.FINISH} == possible


def test_a_gang_that_too_few_nodes_have_room_for_is_named() -> None:
    cluster = Cluster(nodes(2, 1, 1))
    job = gang("pair", 2, 2)
    assert [str(shortage_of(lost, cluster)) for lost in batch_of([job], cluster).lost] == [
        "job 'pair' fits on no node: 2 nodes wanted at once; only 1 with room for its part"
    ]
