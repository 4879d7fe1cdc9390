"""Gangs under every policy of the registry: all or nothing, in order, and never starved where a plain job is not."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

import pytest

from berth.cluster import Cluster
from berth.engine import simulate
from berth.knowledge import Oracle
from berth.model import Event, EventKind, Job, Node, Outage, Share, gang_of
from berth.policies import ORDERS, Setting, make_policy
from berth.profiles import THESIS_GPU, thesis_profiles
from tests.every_policy import some
from tests.policies.test_live_contract import EVERY, EVICTING, quick

MINUTE_MS = 60_000
ENDS = (EventKind.FINISH, EventKind.FAIL, EventKind.EVICT, EventKind.CANCEL)


def nodes() -> list[Node]:
    return [Node(f"n{at}", 2, THESIS_GPU, 16_000, 64_000) for at in range(3)]


def workload(seed: int) -> list[Job]:
    """Plain jobs, and gangs of like and unlike tasks, some of which start later."""
    draw = random.Random(seed)
    names = sorted(thesis_profiles())
    jobs: list[Job] = []
    for at in range(24):
        job = Job(
            f"j{at}", at * 1500, draw.randrange(5_000, 60_000), user=f"u{at % 3}",
            virtual_cluster=("even", "odd")[at % 2], application=draw.choice((*names, "unheard-of")),
            priority=draw.randrange(3), mem_mib=1000, keeps_work=bool(at % 2),
        )  # fmt: skip
        kind = draw.choice(("plain", "plain", "like", "unlike", "further", "apart"))
        if kind == "plain":
            jobs.append(replace(job, gpus=draw.choice((1, 1, 2)), cpu_milli=1000))
            continue
        tasks = [
            replace(job, id=f"{job.id}.{number}", cpu_milli=1000) for number in range(draw.choice((2, 3)))
        ]
        if kind == "unlike":
            tasks[0] = replace(tasks[0], gpus=0, cpu_milli=4000)
            tasks[1] = replace(tasks[1], gpus=draw.choice((1, 2)))
            tasks[2:] = [replace(task, share=Share(500, 3000)) for task in tasks[2:]]
        elif kind == "apart":
            tasks = [replace(task, share=Share(400, 3000), apart=True) for task in tasks]
        least = 1 if kind == "further" else None
        jobs.append(gang_of(tasks, least))
    return jobs


def run(name: str, jobs: list[Job], cluster: list[Node], outages: tuple[Outage, ...] = ()) -> list[Event]:
    knowledge = Oracle(jobs, thesis_profiles())
    policy = make_policy(quick(name), Setting(3, knowledge=knowledge))
    return list(simulate(jobs, Cluster(cluster), policy, knowledge=knowledge, outages=outages))


def gangs_start_whole(events: list[Event], jobs: list[Job]) -> None:
    """Whenever tasks of a gang run, as many run or have ended as start together, on nodes of their own if they ask."""
    running: dict[str, set[str]] = defaultdict(set)
    where: dict[str, set[int]] = {}
    ended: dict[str, set[str]] = defaultdict(set)
    least = {job.gang: job.min_tasks for job in jobs if job.tasks}
    for at, event in enumerate(events):
        gang = event.job.gang
        if not gang:
            continue
        if event.kind is EventKind.START:
            running[gang].add(event.job.id)
            where[event.job.id] = {slot.node for slot in event.slots}
            others = (where[each] for each in running[gang] - {event.job.id})
            assert not event.job.apart or where[event.job.id].isdisjoint(set().union(*others)), event
        elif event.kind in ENDS:
            running[gang].discard(event.job.id)
            if event.kind is EventKind.FINISH:
                ended[gang].add(event.job.id)
        last_of_instant = at + 1 == len(events) or events[at + 1].time_ms > event.time_ms
        if last_of_instant:
            for name, there in running.items():
                assert not there or len(there) + len(ended[name]) >= least[name], (name, event)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", EVERY)
def test_every_policy_starts_gangs_whole_and_every_task_ends(name: str, seed: int) -> None:
    jobs = workload(seed)
    events = run(name, jobs, nodes())
    gangs_start_whole(events, jobs)
    finished = sorted(event.job.id for event in events if event.kind is EventKind.FINISH)
    assert finished == sorted(task.id for job in jobs for task in job.tasks or (job,))


@pytest.mark.parametrize("name", some(EVERY))
def test_gangs_are_queued_again_whole_when_nodes_are_lost(name: str) -> None:
    jobs = workload(3)
    events = run(name, jobs, nodes(), (Outage(1, 9_000, 30_000), Outage(0, 50_000, 55_000)))
    gangs_start_whole(events, jobs)
    finished = sorted(event.job.id for event in events if event.kind is EventKind.FINISH)
    assert finished == sorted(task.id for job in jobs for task in job.tasks or (job,))


def starving(small: list[Job], large: Job) -> list[Job]:
    """Two GPUs, a job that wants both, and others of one GPU for 10 minutes every 5 minutes."""
    return sorted([*small, large], key=lambda job: job.submit_ms)


@pytest.mark.parametrize("name", ["fifo+best-fit", "fifo+first-fit", "easy+priority+best-fit"])
def test_a_large_task_does_not_take_the_only_node_of_another_that_must_be_apart_from_it(name: str) -> None:
    large = Job("large", 0, MINUTE_MS, gpus=2, apart=True)
    bound = Job("bound", 0, MINUTE_MS, gpus=1, labels=("zone=a",), apart=True)
    first = Job("first", 0, MINUTE_MS, gpus=1, labels=("zone=a",), estimate_ms=MINUTE_MS)
    there = [Node("a", 2, labels=("zone=a",)), Node("b", 2)]
    events = run(name, [first, gang_of([large, bound], name="g")], there)
    where = {(each.job.id, each.slots[0].node) for each in events if each.kind is EventKind.START}
    assert where == {("first", 0), ("large", 1), ("bound", 0)}
    full = Job("full", 0, MINUTE_MS, gpus=2, labels=("zone=a",), estimate_ms=MINUTE_MS)
    events = run(
        name, [full, gang_of([large, bound], name="g")], there
    )  # it starts when its only node is free
    began = {each.job.id: each.time_ms for each in events if each.kind is EventKind.START}
    assert began == {"full": 0, "large": MINUTE_MS, "bound": MINUTE_MS}


EASY = [order for order in ORDERS if order not in EVICTING]


@pytest.mark.parametrize(
    "name", [*(f"{order}+best-fit" for order in ORDERS), *(f"easy+{order}+best-fit" for order in EASY)]
)
def test_small_jobs_as_gangs_starve_a_large_one_no_more_than_as_plain_jobs(name: str) -> None:
    """A gang of one is the plain job, event by event; a large gang waits no longer than a large plain job."""
    small = [
        Job(f"s{at}", at * 5 * MINUTE_MS, 10 * MINUTE_MS, user=f"u{at % 2}", estimate_ms=10 * MINUTE_MS)
        for at in range(60)
    ]
    large = Job("large", 5 * MINUTE_MS + 1, 10 * MINUTE_MS, user="large", gpus=2, estimate_ms=10 * MINUTE_MS)
    plain = run(name, starving(small, large), [Node("n", 2)])
    assert run(name, starving([gang_of([job]) for job in small], large), [Node("n", 2)]) == plain
    parts = [replace(large, id="large", gpus=1), replace(large, id="large.1", gpus=1)]
    as_gang = run(name, starving(small, gang_of(parts)), [Node("n", 2)])

    def start_ms(events: list[Event]) -> int:
        return next(
            event.time_ms for event in events if event.kind is EventKind.START and event.job.id == "large"
        )

    assert start_ms(as_gang) == start_ms(plain)
    # Small jobs as gangs of two halves on one GPU each: none passes the large job that a plain one would not.
    halves = [
        gang_of([replace(job, share=Share(500)), replace(job, id=f"{job.id}.1", share=Share(500))])
        for job in small
    ]
    assert start_ms(run(name, starving(halves, large), [Node("n", 2)])) == start_ms(plain)
