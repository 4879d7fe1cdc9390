"""EASY backfilling, held against a naive one that knows nodes only as numbers of free GPUs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.cluster import Cluster, Key, Queue
from berth.engine import simulate
from berth.knowledge import Oracle
from berth.model import Event, EventKind, GpuSlot, Job, Node, Placement, placement_of
from berth.policies import Ordered, make_policy
from berth.policies.placements.by_score import BestFit
from berth.policies.placements.first_fit import FirstFit, RoundRobin
from berth.policies.protocol import Order, Place
from berth.policies.schemes.easy import Easy
from berth.policies.sort_keys import key_of
from tests.engine.examples import clusters, outages, workloads
from tests.every_policy import some
from tests.examples import examples

NODES, GPUS = 4, 8


def draw_trace(seed: int, load: float) -> list[Job]:
    """200 jobs of whole GPUs on single nodes, in gangs too, that ask for `load` times what the nodes give."""
    draw = random.Random(seed)
    shapes = [
        draw.choice(((1, 1),) * 4 + ((2, 1), (2, 1), (4, 1), (8, 1), (8, 2), (16, 2))) for _ in range(200)
    ]
    works = [max(1, round(draw.lognormvariate(7, 1.3))) for _ in range(200)]
    span_ms = sum(gpus * work for (gpus, _), work in zip(shapes, works, strict=True)) / (load * NODES * GPUS)
    submits = sorted(round(draw.random() * span_ms) for _ in range(200))
    return [
        Job(
            f"j{n}", submits[n], works[n], gpus=gpus, nodes=nodes,
            estimate_ms=round(works[n] * draw.choice((1, 1, 2, 5))),
        )
        for n, (gpus, nodes) in enumerate(shapes)
    ]  # fmt: skip


def naive_easy(jobs: list[Job], shortest_first: bool) -> dict[str, int]:
    """When each job starts under EASY, with every decision found anew from the beginning."""
    free = [GPUS] * NODES
    running: list[tuple[int, int, Job, list[int]]] = []  # end, expected end, job, nodes
    waiting: list[Job] = []
    started: dict[str, int] = {}
    to_come = list(jobs)

    def room(job: Job, there: list[int]) -> list[int] | None:
        part = job.gpus // job.nodes
        nodes = [node for node in range(NODES) if there[node] >= part][: job.nodes]
        return nodes if len(nodes) == job.nodes else None

    def change(there: list[int], job: Job, nodes: list[int], sign: int) -> list[int]:
        for node in nodes:
            there[node] += sign * (job.gpus // job.nodes)
        return there

    def start(job: Job, nodes: list[int], now_ms: int) -> None:
        change(free, job, nodes, -1)
        waiting.remove(job)
        started[job.id] = now_ms
        running.append((now_ms + (job.work_ms or 0), now_ms + (job.estimate_ms or 0), job, nodes))

    while to_come or running:
        now_ms = min([end for end, *_ in running] + [job.submit_ms for job in to_come[:1]])
        for run in [run for run in running if run[0] == now_ms]:
            running.remove(run)
            change(free, run[2], run[3], 1)
        while to_come and to_come[0].submit_ms == now_ms:
            waiting.append(to_come.pop(0))
        if shortest_first:
            waiting.sort(key=lambda job: job.work_ms or 0)
        while waiting and (nodes := room(waiting[0], free)):
            start(waiting[0], nodes, now_ms)
        if not waiting:
            continue
        head = waiting[0]
        then, shadow_ms = list(free), now_ms + 1
        for _, expected_ms, job, nodes in sorted(running, key=lambda run: run[1]):
            change(then, job, nodes, 1)
            if room(head, then):
                shadow_ms = max(expected_ms, shadow_ms)
                break
        then = list(free)
        for _, expected_ms, job, nodes in running:
            if expected_ms <= shadow_ms:
                change(then, job, nodes, 1)
        for job in waiting[1:]:
            if now_ms + (job.estimate_ms or 0) <= shadow_ms:
                if nodes := room(job, free):
                    start(job, nodes, now_ms)
                continue
            part, chosen = job.gpus // job.nodes, []
            there = list(free)
            for _ in range(job.nodes):
                for node in range(NODES):
                    left = change(list(then), job, [*chosen, node], -1)
                    if node not in chosen and there[node] >= part and room(head, left):
                        chosen.append(node)
                        break
            if len(chosen) == job.nodes:
                start(job, chosen, now_ms)
                change(then, job, chosen, -1)
    return started


def mean_wait_ms(jobs: list[Job], started: dict[str, int]) -> float:
    assert len(started) == len(jobs)
    return fmean(started[job.id] - job.submit_ms for job in jobs)


@pytest.mark.parametrize("order", ["fifo", "sjf"])
def test_easy_waits_as_a_naive_one_does(order: str) -> None:
    """Within 0.5 % of its mean wait over 20 random traces at loads from 0.7 to 1.5."""
    ours, naive = [], []
    for seed in range(20):
        jobs = draw_trace(seed, 0.7 + 0.8 * seed / 19)
        events = simulate(jobs, Cluster([Node(f"n{n}", GPUS) for n in range(NODES)]), f"easy+{order}")
        found = {event.job.id: event.time_ms for event in events if event.kind is EventKind.START}
        ours.append(mean_wait_ms(jobs, found))
        naive.append(mean_wait_ms(jobs, naive_easy(jobs, order == "sjf")))
    assert fmean(ours) == pytest.approx(fmean(naive), rel=0.005)


def test_easy_keeps_no_idle_gpu_which_the_head_does_not_need() -> None:
    """The head needs 2 GPUs of one node at 100: those of b are enough, so that the free one of a is nobody's."""
    nodes = [Node("a", 2), Node("b", 2)]
    jobs = [
        Job("a-busy", 0, 100),
        Job("b-busy", 0, 100, gpus=2),
        Job("head", 1, 50, gpus=2),
        Job("long", 2, 5000),
    ]
    events = simulate(jobs, Cluster(nodes), "easy")
    found = {event.job.id: event.time_ms for event in events if event.kind is EventKind.START}
    assert (found["head"], found["long"]) == (100, 2)


def test_the_first_job_has_a_reservation_though_nothing_could_start_behind_it() -> None:
    """It is found when it is asked for, and not after the nodes have changed."""
    queue, cluster, easy = Queue(), Cluster([Node("a", 1)]), easy_of("fifo")
    cluster.place(placement_of(Job("runs", 0, 100), (GpuSlot(0, 0),)))
    queue.add(Job("head", 0, 100))
    queue.add(Job("next", 0, 100))
    for now_ms in (0, 1):
        assert list(easy(queue, cluster, now_ms)) == []
        assert easy.reserved_ms == {"head": 100}
    cluster.nodes_changed([Node("a", 1), Node("b", 1)])
    assert easy.reserved_ms == {}
    assert next(iter(easy(queue, cluster, 2))).job.id == "head"


class OneOfEachUser(BestFit):
    """A placement of one's own: best fit, but one running job a user."""

    def __call__(self, job: Job, cluster: Cluster) -> tuple[GpuSlot, ...] | None:
        if any(run.job.user == job.user for run in cluster.running.values()):
            return None
        return super().__call__(job, cluster)


@pytest.mark.parametrize("scheme", ["easy", "passing"])
def test_a_placement_that_refuses_for_reasons_of_its_own_is_asked_again(scheme: str) -> None:
    """The GPUs that the second job takes are idle all the time."""
    jobs = [
        Job("a", 0, 100, user="ann"),
        Job("b", 1, 50, user="ann", gpus=2),
        Job("c", 1, 50, user="bob", gpus=2),
    ]
    nodes = [Node("small", gpus=1), Node("large", gpus=2)]
    events = list(simulate(jobs, Cluster(nodes), f"{scheme}+fifo+{__name__}:OneOfEachUser"))
    started = {event.job.id: event.time_ms for event in events if event.kind is EventKind.START}
    assert started == {"easy": {"a": 0, "c": 1, "b": 100}, "passing": {"a": 0, "b": 100, "c": 150}}[scheme]


class Fresh:
    """EASY that keeps nothing from one decision to the next."""

    def __init__(self, order: str) -> None:
        self.order = order

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Placement]:
        yield from easy_of(self.order)(queue, cluster, now_ms)


def easy_of(order: str) -> Easy:
    parts = make_policy(f"{order}+first-fit")
    assert isinstance(parts, Ordered)
    return Easy(parts.order, parts.place, Oracle())


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data(), order=st.sampled_from(("fifo", "sjf", "largest-first")))
def test_what_easy_keeps_between_decisions_changes_none_of_them(data: st.DataObject, order: str) -> None:
    nodes = data.draw(clusters())
    jobs, lost = data.draw(workloads()), data.draw(outages(nodes))

    def events(policy: object) -> list[Event]:
        return list(simulate(jobs, Cluster(nodes), policy, outages=lost))  # type: ignore[arg-type]

    assert events(easy_of(order)) == events(Fresh(order))


class ByTuple:
    """An order whose key is a tuple, which kernels cannot sort by."""

    def __init__(self, key: Key) -> None:
        def in_a_tuple(job: Job) -> tuple[int]:
            return (key(job),)

        self.key = in_a_tuple

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Job]:
        return queue.by(self.key)


def test_round_robin_goes_on_by_answers_that_easy_cannot_use() -> None:
    jobs = [
        Job("on-n0", 0, 100, gpus=2),
        Job("on-n1", 0, 1000, gpus=2),
        Job("first", 1, 50, gpus=4),  # has n0 from 100 on
        Job("late", 1, 500, gpus=2),  # is offered n0, and would keep it from the first
        Job("short", 1, 10, gpus=1),
    ]
    nodes = [Node("n0", gpus=4), Node("n1", gpus=3)]
    events = simulate(jobs, Cluster(nodes), "easy+fifo+round-robin")
    started = {each.job.id: each.slots for each in events if each.kind is EventKind.START}
    assert started["short"] == (GpuSlot(1, 2),)


class Tired:
    """A placement of one's own: first fit, but every fifth question is refused."""

    def __init__(self) -> None:
        self._asked = 0

    def __call__(self, job: Job, cluster: Cluster) -> tuple[GpuSlot, ...] | None:
        self._asked += 1
        return None if self._asked % 5 == 0 else cluster.slots_for(job, cluster.fitting_nodes(job)) or None


PLACES: dict[str, Callable[[], Place]] = {
    "best-fit": BestFit,
    "first-fit": FirstFit,
    "round-robin": RoundRobin,  # its turn moves on though its answer is not used
    "one-of-each-user": OneOfEachUser,
    "tired": Tired,
}


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data(), order=st.sampled_from(("fifo", "sjf", "largest-first", "priority")))
@pytest.mark.parametrize("place", some(PLACES))
def test_waiting_jobs_are_found_alike_by_kernels_and_in_turn(
    place: str, data: st.DataObject, order: str
) -> None:
    nodes = data.draw(clusters())
    jobs, lost = data.draw(workloads()), data.draw(outages(nodes))
    parts = make_policy(f"{order}+first-fit")
    assert isinstance(parts, Ordered)
    key = key_of(parts.order)
    assert key is not None

    def events(order: Order) -> list[Event]:
        policy = Easy(order, PLACES[place](), Oracle())
        return list(simulate(jobs, Cluster(nodes), policy, outages=lost))

    assert events(parts.order) == events(ByTuple(key))
