"""Every policy of the registry: found by name, documented, deterministic, and placing where it says."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from berth.cluster import Cluster, Queue
from berth.engine import simulate
from berth.errors import MissingExtraError, PolicyError
from berth.knowledge import Oracle
from berth.model import NO_GPU, EventKind, GpuModel, GpuSlot, Job, Node, Placement, Share
from berth.policies import ORDERS, PLACEMENTS, Ordered, Setting, describe, make_policy, names
from berth.policies.placements.by_score import typical_requests
from berth.policies.protocol import GivesMore, Place
from berth.policies.schemes.strict import Giving

V100, T4 = GpuModel("V100"), GpuModel("T4")


ANY = (Job("any", 0, 1),)
MIXED = [
    Node("a", gpus=3, gpu_model=T4),
    Node("b", gpus=4, gpu_model=V100),
    Node("c"),
    Node("d", gpus=2, gpu_model=T4),
]


def place(
    name: str, job: Job, cluster: Cluster, workload: tuple[Job, ...] = ANY
) -> tuple[GpuSlot, ...] | None:
    return placement(name, Setting(0, knowledge=Oracle(workload)))(job, cluster)


def occupy(cluster: Cluster, number: int, slot: tuple[int, int], milli: int, gpus: int = 1) -> None:
    slots = tuple(GpuSlot(slot[0], slot[1] + offset) for offset in range(gpus))
    job = Job(f"tenant{number}", 0, 1, gpus=gpus, share=Share(milli))
    cluster.place(Placement(job, slots, job.share))


def placement(name: str, setting: Setting | None = None) -> Place:
    """The placement of this name, out of the policy that it makes."""
    policy = make_policy(name, setting)
    policy = policy.inner if isinstance(policy, Giving) else policy
    assert isinstance(policy, Ordered)
    return policy.place


@pytest.mark.parametrize("name", names())
def test_every_policy_is_made_by_its_name_and_says_what_it_does(name: str) -> None:
    assert callable(make_policy(name))
    assert len(describe(name)) > 20


@pytest.mark.parametrize("name", PLACEMENTS)
def test_every_placement_names_its_source_or_needs_none(name: str) -> None:
    text = inspect.getdoc(type(placement(name))) or ""
    assert any(word in text for word in ("ATC 2023", "PhD thesis", "NSDI", "SIGCOMM", "OSDI", "JIIBC")), text


@pytest.mark.parametrize("name", PLACEMENTS)
def test_every_placement_takes_the_only_place_there_is(name: str) -> None:
    nodes = [Node("a", gpus=2, gpu_model=T4), Node("b", gpus=2, gpu_model=V100), Node("c", cpu_milli=1000)]
    cluster = Cluster(nodes)
    occupy(cluster, 1, (1, 0), 1000)
    occupy(cluster, 2, (0, 0), 600)
    assert place(name, Job("v", 0, 1, models=("V100",)), cluster) == ((1, 1),)
    assert place(name, Job("t", 0, 1, gpus=2), cluster) is None
    assert set(place(name, Job("g", 0, 1, gpus=2, nodes=2), cluster) or ()) == {(0, 1), (1, 1)}
    assert set(place(name, Job("s", 0, 1, gpus=2, nodes=0), cluster) or ()) == {(0, 1), (1, 1)}
    cpu = Job("cpu", 0, 1, gpus=0, cpu_milli=500)
    assert (place(name, cpu, cluster) or ())[0].index == NO_GPU
    cluster.lose(1)
    assert place(name, Job("v", 0, 1, models=("V100",)), cluster) is None


@pytest.mark.parametrize("name", [*PLACEMENTS, "genetic"])
def test_a_job_without_gpus_starts_anywhere_whatever_models_it_names(name: str) -> None:
    nodes = [Node("full", 1, V100, cpu_milli=400), Node("other", 1, T4, cpu_milli=1000)]
    asked = Job("cpu", 0, 7, gpus=0, cpu_milli=500, models=("V100",))
    cpu, gpu = [
        [(event.kind, event.slots) for event in simulate([job], Cluster(nodes), name)]
        for job in (asked, replace(asked, gpus=1))
    ]
    there = (GpuSlot(1, NO_GPU),)
    assert cpu == [(EventKind.SUBMIT, ()), (EventKind.START, there), (EventKind.FINISH, there)]
    assert gpu == [(EventKind.SUBMIT, ()), (EventKind.REJECT, ())]  # with a GPU the models count


@pytest.mark.parametrize("name", PLACEMENTS)
def test_a_placement_succeeds_whenever_enough_nodes_fit(name: str) -> None:
    draw = random.Random(19)
    for nodes in ([Node("a", gpus=2), Node("b", gpus=2)], MIXED):
        cluster = Cluster(nodes)
        found = placement(name, Setting(0, knowledge=Oracle(ANY)))
        for number in range(400):
            gpus, parts = draw.choice(((1, 1), (1, 1), (2, 1), (0, 1), (2, 2), (4, 2), (3, 3), (3, 0)))
            job = Job(
                f"j{number}", 0, 1, gpus=gpus, nodes=parts,
                share=Share(draw.choice((1000, 300))) if gpus == 1 else Share(),
                models=draw.choice(((), (), ("T4",))) if nodes is MIXED else (),
            )  # fmt: skip
            job = found.given(job) if isinstance(found, GivesMore) else job
            enough = len(cluster.fitting_nodes(job)) >= max(1, parts)
            enough = enough or (parts == 0 and cluster.spread(job) is not None)
            slots = found(job, cluster)
            assert (slots is not None) == enough, (job, cluster.free.milli)
            if slots is not None:
                cluster.place(Placement(job, slots, job.share))  # refuses what cannot be
            while cluster.running and draw.random() < 0.4:
                cluster.release(draw.choice(list(cluster.running)))


def test_a_gang_starts_under_round_robin_though_its_turn_stands_in_the_middle_of_a_node() -> None:
    jobs = [
        Job("first", 0, 2000),
        Job("long", 1, 86_400_000),
        Job("third", 2, 1000),
        Job("fourth", 3, 1000),
        Job("again", 3000, 1000),  # on the first GPU: the turn stands at the second, which is taken
        Job("gang", 5000, 1000, gpus=2, nodes=2),
    ]
    events = simulate(jobs, Cluster([Node("a", gpus=2), Node("b", gpus=2)]), "fifo+round-robin")
    assert [event.time_ms for event in events if (event.kind, event.job.id) == (EventKind.START, "gang")] == [
        5000
    ]


@pytest.mark.parametrize("name", PLACEMENTS)
def test_a_placement_that_served_one_cluster_sees_the_next_as_it_is(name: str) -> None:
    found = placement(name, Setting(0, knowledge=Oracle((Job("w", 0, 1),))))
    full = Cluster([Node("a", gpus=1)])
    occupy(full, 1, (0, 0), 1000)
    assert found(Job("j", 0, 1), full) is None
    assert found(Job("j", 0, 1), Cluster([Node("a", gpus=1)])) == ((0, 0),)


def test_placements_differ_where_their_formulas_do() -> None:
    nodes = [
        Node("empty", gpus=4, gpu_model=V100, cpu_milli=64_000),
        Node("roomy", gpus=4, gpu_model=V100, cpu_milli=64_000),
        Node("tight", gpus=4, gpu_model=V100, cpu_milli=64_000),
    ]
    cluster = Cluster(nodes)
    occupy(cluster, 1, (1, 1), 500)
    occupy(cluster, 2, (2, 0), 1000, gpus=3)
    occupy(cluster, 3, (2, 3), 100)
    part = Job("part", 0, 1, share=Share(400), cpu_milli=1000)
    workload = (part, Job("whole", 0, 1))
    assert {name: place(name, part, cluster, workload) for name in PLACEMENTS if name != "random"} == {
        "first-fit": ((0, 0),),
        "best-fit": ((2, 3),),  # the least left
        "dot-product": ((2, 3),),  # the smallest product with what is left
        "gpu-packing": ((1, 1),),  # the tightest shared GPU
        "gpu-clustering": ((1, 1),),  # the node with shared jobs alone
        # Half of the requests want a whole GPU. On node 2 they lose nothing (900 stranded milli become 500, for
        # half: 200 less), on node 1 they gain less (500 become 100, 100 of which "part" cannot use: 150 less).
        "fgd": ((2, 3),),
        "worst-fit": ((0, 0),),  # the most left
        "fastest-fit": ((0, 0),),  # the first, as all cards are alike
        "round-robin": ((0, 0),),  # the first in turn
        "tetris": ((0, 0),),  # the largest product with what is left
        "whole-gpus": ((1, 0),),  # the node that is left with the least of those with a free GPU
    }


def test_a_spread_takes_as_few_nodes_as_will_hold_it() -> None:
    cluster = Cluster([Node("a", gpus=2), Node("b", gpus=8), Node("c", gpus=4), Node("d", gpus=3)])
    spread = Job("s", 0, 1, gpus=11, nodes=0)
    slots = place("first-fit", spread, cluster)
    assert slots is not None
    assert sorted({slot.node for slot in slots}) == [
        1,
        3,
    ]  # eight, then the tightest that gives the other three


def test_typical_requests_cover_the_workload_by_frequency() -> None:
    jobs = [Job(f"a{n}", 0, 1, share=Share(500)) for n in range(97)]
    jobs += [Job("rare", 0, 1, gpus=2), Job("cpu", 0, 1, gpus=0), Job("v", 0, 1, models=("V100",))]
    typical = typical_requests(jobs, Cluster([Node("a", gpus=1, gpu_model=T4)]))
    assert (typical.requests.tolist(), typical.weight.tolist()) == (
        [[1, 500, 0, 1, 2**32 - 1]],  # any model, each by its bit
        [1.0],
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fofi", "no policy 'fofi' (did you mean 'fifo'?); there are fifo, priority, sjf, "),
        (
            "sjf+bestfit",
            "no placement 'bestfit' in 'sjf+bestfit' (did you mean 'best-fit'?); there are first-fit,",
        ),
        (
            "best-fit+sjf",
            "no order 'best-fit' in 'best-fit+sjf' (did you mean 'largest-first'?); there are fifo,",
        ),
        ("a+b+c", "a policy is NAME or ORDER+PLACEMENT"),
        ("", "a policy is NAME or ORDER+PLACEMENT"),
        ("no.such.module:thing", "module 'no.such.module' cannot be imported"),
        ("berth.model:nothing", "module 'berth.model' has no 'nothing'; it has "),
        ("berth.model:FOREVER_MS", "cannot be called"),
        (
            "berth.policies.orders:fifo",
            "a policy is called with (queue, cluster, now_ms): too many positional",
        ),
        ("fifo+berth.policies.orders:fifo", "a placement is called with (job, cluster): too many positional"),
        ("berth.model:Share", "a policy is called with (queue, cluster, now_ms)"),
    ],
)
def test_a_policy_that_is_not_there_is_named_with_the_choices(name: str, message: str) -> None:
    with pytest.raises(PolicyError) as refusal:
        make_policy(name)
    assert message in str(refusal.value)


def test_a_policy_of_ones_own_is_found_by_its_import_string(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "last_of_a_test.py").write_text(
        "def last(queue):\n    return iter(list(queue)[::-1])\n\n"
        "def here(job, cluster):\n    nodes = cluster.fitting_nodes(job)\n"
        "    return cluster.slots_on(nodes[-1], job) if len(nodes) else None\n"
    )
    (tmp_path / "needs_jax.py").write_text("raise ModuleNotFoundError('no jax', name='jax.numpy')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    policy = make_policy("last_of_a_test:last+last_of_a_test:here")
    queue = Queue()
    for number in range(3):
        queue.add(Job(str(number), 0, 1))
    cluster = Cluster([Node("a", gpus=1), Node("b", gpus=1)])
    assert [(decision.job.id, decision.slots) for decision in policy(queue, cluster, 0)] == [  # type: ignore[union-attr]
        (identity, ((1, 0),)) for identity in "210"
    ]
    with pytest.raises(MissingExtraError, match=r"pip install .*\[learn\]'"):
        make_policy("needs_jax:thing")


def test_the_registry_names_what_is_there() -> None:
    assert list(ORDERS) == [
        *("fifo", "priority", "sjf", "sjf-requested", "sjf-estimated", "sjf-expected"),
        "longest-expected",
        *("largest-first", "deadline-first", "fair-share", "least-attained-service", "gavel"),
    ]


def test_orders_by_limit_and_by_estimate_put_the_unknown_last() -> None:
    queue = Queue()
    for job in (
        Job("none", 0, 1),
        Job("limit", 0, 9, time_limit_ms=20, estimate_ms=3),
        Job("short", 0, 5, time_limit_ms=10, estimate_ms=4),
    ):
        queue.add(job)

    def order(name: str) -> Iterator[str]:
        policy = make_policy(name)
        assert isinstance(policy, Ordered)
        return (job.id for job in policy.order(queue, Cluster([Node("a")]), 0))

    static = [name for name in ORDERS if name not in ("least-attained-service", "gavel")]
    assert {name: "".join(f"{identity} " for identity in order(name)) for name in static} == {
        "fifo": "none limit short ",
        "priority": "none limit short ",
        "sjf": "none short limit ",
        "sjf-requested": "short limit none ",
        "sjf-estimated": "limit short none ",
        "sjf-expected": "none short limit ",
        "longest-expected": "limit short none ",
        "largest-first": "none limit short ",
        "deadline-first": "none limit short ",
        "fair-share": "none limit short ",
    }
