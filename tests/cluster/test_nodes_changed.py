"""Nodes that come, change and go under running jobs, and strangers on GPUs: the accounts stay exact."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth.cluster import Amounts, Cluster, NodeChanges, Queue
from berth.cluster.shadow import Shadow
from berth.errors import ClusterError, DoesNotFit, NotAllowed, PlacementError
from berth.model import NO_GPU, GpuModel, GpuSlot, Job, Node, Placement, Share
from berth.policies import make_policy
from berth.policies.schemes.strict import Ordered

V100 = GpuModel("V100", mem_mib=16_000)
T4 = GpuModel("T4", mem_mib=8_000)
UNKNOWN = GpuModel("G2")
TWO = (
    Node("a", gpus=2, gpu_model=V100, cpu_milli=4_000, mem_mib=1_000, labels=("x",)),
    Node("b", gpus=1, gpu_model=T4, cpu_milli=4_000, mem_mib=1_000),
)


def job(name: str = "j", **wants: object) -> Job:
    return Job(id=name, submit_ms=0, work_ms=1000, **wants)  # type: ignore[arg-type]


def start(cluster: Cluster, asked: Job, *where: tuple[int, int]) -> None:
    cluster.place(Placement(asked, tuple(GpuSlot(*slot) for slot in where), asked.share))


def test_a_node_that_comes_gets_a_row_behind_the_others() -> None:
    cluster = Cluster(TWO)
    start(cluster, job(), (0, 1))
    more = Node("c", gpus=4, gpu_model=T4)
    assert cluster.nodes_changed((more, *TWO)) == NodeChanges(added=(2,))
    assert [node.name for node in cluster.nodes] == ["a", "b", "c"]
    assert cluster.free.milli.tolist() == [[1000, 0, -1, -1], [1000, -1, -1, -1], [1000] * 4]
    assert (cluster.free_total_milli, cluster.up.tolist()) == (6000, [True] * 3)
    assert cluster.fitting_nodes(job("k", gpus=4)).tolist() == [2]
    cluster.release("j")
    assert cluster.free.milli[0].tolist() == [1000, 1000, -1, -1]


def test_nothing_happens_when_the_nodes_are_what_they_were() -> None:
    cluster = Cluster(TWO)
    cluster.memo["policy"] = 1
    before = cluster.digest()
    assert cluster.nodes_changed([replace(node) for node in reversed(TWO)]) == NodeChanges()
    assert (cluster.digest(), cluster.memo) == (before, {"policy": 1})


def test_a_node_that_vanishes_holds_who_runs_there_and_nothing_fits() -> None:
    cluster = Cluster(TWO)
    start(cluster, job(share=Share(600, 5_000), cpu_milli=1_000), (0, 0))
    assert cluster.nodes_changed(TWO[1:]) == NodeChanges(vanished=(0,))
    assert cluster.fitting_nodes(job("k", gpus=0)).tolist() == [1]
    assert not cluster.fits_when_empty(job("k", models=("V100",)))
    assert (cluster.capacity.milli[0].tolist(), cluster.free_total_milli) == ([-1, -1], 1000)
    assert cluster.owed().milli.tolist() == [[600, 0], [0, 0]]
    with pytest.raises(NotAllowed, match="which has 0 GPUs"):
        start(cluster, job("k"), (0, 1))
    with pytest.raises(NotAllowed, match="node 'a': it is lost"):
        start(cluster, job("k", gpus=0), (0, NO_GPU))
    cluster.restore(0)  # an outage that ends too late
    assert cluster.up.tolist() == [False, True]
    cluster.release("j")
    assert not cluster.is_indebted
    assert (cluster.free.milli.tolist(), cluster.free.cpu_milli.tolist()) == (
        [[-1, -1], [1000, -1]],
        [0, 4000],
    )


def test_a_node_that_comes_back_has_its_row_and_its_jobs() -> None:
    cluster = Cluster(TWO)
    start(cluster, job(share=Share(600, 5_000)), (0, 0))
    cluster.nodes_changed(TWO[1:])
    assert cluster.nodes_changed(TWO) == NodeChanges(added=(0,))
    assert cluster.free_on(GpuSlot(0, 0)) == Share(400, 11_000)
    assert not cluster.is_indebted


def test_an_empty_row_is_used_again_and_one_with_jobs_is_not() -> None:
    cluster = Cluster((*TWO, Node("c", gpus=1)))
    start(cluster, job(gpus=0), (0, NO_GPU))  # takes nothing, and yet runs there
    cluster.nodes_changed(TWO[:0])
    assert cluster.up.tolist() == [False, False, False]
    cluster.nodes_changed((Node("d", gpus=2), Node("b", gpus=1)))
    assert [node.name for node in cluster.nodes] == ["a", "b", "d"]
    cluster.release("j")
    cluster.nodes_changed((Node("d", gpus=2), Node("b", gpus=1), Node("e")))
    assert [node.name for node in cluster.nodes] == ["e", "b", "d"]


def test_what_a_node_lost_under_a_job_is_paid_back_before_anything_is_free() -> None:
    cluster = Cluster((Node("a", gpus=2, gpu_model=V100, cpu_milli=4_000),))
    start(cluster, job("one", share=Share(500, 9_000), cpu_milli=3_000), (0, 0))
    start(cluster, job("two", share=Share(500, 5_000), cpu_milli=1_000), (0, 0))
    cluster.nodes_changed((Node("a", gpus=1, gpu_model=T4, cpu_milli=500),))
    assert (cluster.free.cpu_milli[0], cluster.free_on(GpuSlot(0, 0))) == (0, Share(0, 0))
    assert (cluster.owed().cpu_milli[0], cluster.owed().gpu_mem_mib[0, 0]) == (3_500, 6_000)
    cluster.release("one")
    assert (cluster.free.cpu_milli[0], cluster.free_on(GpuSlot(0, 0))) == (0, Share(500, 3_000))
    assert cluster.owed().cpu_milli[0] == 500
    cluster.release("two")
    assert (cluster.free.cpu_milli[0], cluster.free_on(GpuSlot(0, 0))) == (500, Share(1000, 8_000))
    assert (cluster.free_total_milli, cluster.is_indebted) == (1000, False)


def test_new_models_and_labels_are_known_to_requests_that_named_them_before() -> None:
    cluster = Cluster(TWO)
    wants = job(models=("H100",), labels=("fast",))
    assert (cluster.fitting_nodes(wants).tolist(), cluster.fits_when_empty(wants)) == ([], False)
    h100 = Node("c", gpus=1, gpu_model=GpuModel("H100"), labels=("fast",))
    cluster.nodes_changed((*TWO, h100))
    assert (cluster.fitting_nodes(wants).tolist(), cluster.fits_when_empty(wants)) == ([2], True)
    assert [cluster.allows(wants, node) for node in range(3)] == [False, False, True]
    assert cluster.with_model(wants).tolist() == cluster.with_labels(wants).tolist() == [False, False, True]
    cluster.nodes_changed((replace(TWO[0], labels=("fast",), gpu_model=GpuModel("H100")), *TWO[1:]))
    assert cluster.fitting_nodes(wants).tolist() == [0]


def test_any_number_of_labels_and_models_is_told_apart_and_those_that_have_gone_are_forgotten() -> None:
    cluster = Cluster([Node(f"n{at}", labels=(f"old{at}", "all")) for at in range(200)])
    assert cluster.fitting_nodes(job(gpus=0, labels=("all", "old161"))).tolist() == [161]
    assert len(cluster.fitting_nodes(job(gpus=0, labels=("all",)))) == 200
    for round_ in range(4):  # kinds of nodes that are gone do not add up
        cluster.nodes_changed(
            [
                Node("n161", labels=("old161",)),
                *(
                    Node(f"m{at}", 1, GpuModel(f"g{round_}-{at}"), labels=(f"new{round_}-{at}",))
                    for at in range(150)
                ),
            ]
        )
    assert len(cluster._kinds) <= 2 * 151
    (row,) = cluster.fitting_nodes(job(gpus=1, models=("g3-149",)))
    assert cluster.nodes[row].name == "m149"
    assert cluster.with_model(job(gpus=1, models=("g3-149",))).nonzero()[0].tolist() == [row]
    assert len(cluster.fitting_nodes(job(gpus=0, models=("g3-149",)))) == 151  # no GPU is asked for
    assert cluster.fitting_nodes(job(gpus=1, models=("g0-149",))).tolist() == []
    for label, name in (("old161", "n161"), ("new3-0", "m0"), ("new3-149", "m149")):
        (row,) = cluster.fitting_nodes(job(gpus=0, labels=(label,)))
        assert cluster.nodes[row].name == name
    assert cluster.fitting_nodes(job(gpus=0, labels=("old0",))).tolist() == []


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ([Node("a"), Node("a")], "two nodes are called 'a'"),
        ([Node("a"), Node("c", gpus=-1)], "node 'c' has -1 GPUs"),
    ],
)
def test_nodes_that_make_no_cluster_are_refused_and_nothing_changes(nodes: list[Node], says: str) -> None:
    cluster = Cluster(TWO)
    cluster.memo["policy"] = 1
    before = cluster.digest()
    with pytest.raises(ClusterError, match=says):
        cluster.nodes_changed(nodes)
    assert (cluster.digest(), cluster.nodes, cluster.memo) == (before, TWO, {"policy": 1})


def test_strangers_take_what_is_free_and_never_more() -> None:
    cluster = Cluster(TWO)
    slot = GpuSlot(0, 0)
    start(cluster, job(share=Share(600, 10_000)), slot)
    openings, losses = cluster.openings, cluster.losses
    cluster.strangers(slot, 700, 4_000)
    assert (cluster.free_on(slot), cluster.strangers_on(slot)) == (Share(0, 2_000), Share(700, 4_000))
    assert (cluster.owed().milli[0, 0], cluster.free_total_milli) == (300, 2000)
    assert (cluster.openings, cluster.losses) == (openings, losses + 1)
    with pytest.raises(DoesNotFit, match="which has 0 left"):
        start(cluster, job("k", share=Share(1)), slot)
    cluster.release("j")
    assert cluster.free_on(slot) == Share(300, 12_000)
    cluster.strangers(slot, 0, 0)
    assert (cluster.free_on(slot), cluster.free_total_milli) == (Share(1000, 16_000), 3000)
    assert cluster.openings == openings + 2


@pytest.mark.parametrize(
    ("slot", "milli", "mem_mib"),
    [
        *((slot, 1, 1) for slot in ((0, 2), (2, 0), (0, -1), (1, 1))),
        *(((0, 0), *amounts) for amounts in ((1001, 0), (-1, 0), (0, -1))),
    ],
)
def test_strangers_that_cannot_be_are_refused(slot: tuple[int, int], milli: int, mem_mib: int) -> None:
    cluster = Cluster(TWO)
    before = cluster.digest()
    with pytest.raises(NotAllowed, match="strangers"):
        cluster.strangers(GpuSlot(*slot), milli, mem_mib)
    assert cluster.digest() == before


@pytest.mark.parametrize("opens", ["stranger", "card", "node"])
@pytest.mark.parametrize("policy", ["fifo+first-fit", "easy+fifo+best-fit", "preempt+fifo+first-fit"])
def test_policies_look_again_when_something_opens(policy: str, opens: str) -> None:
    small = replace(TWO[1], gpu_model=GpuModel("T4", mem_mib=1_000))
    cluster, queue, waits = Cluster((small,)), Queue(), job(share=Share(1000, 1_000))
    if opens == "card":
        waits = job(share=Share(1000, 8_000))
    if opens == "node":
        waits = job(models=("V100",))
    if opens == "stranger":
        cluster.strangers(GpuSlot(0, 0), 1, 0)
    queue.add(waits)
    decides = make_policy(policy)
    assert list(decides(queue, cluster, 0)) == []
    if opens == "stranger":
        cluster.strangers(GpuSlot(0, 0), 0, 0)
    else:
        cluster.nodes_changed(TWO)
    assert [
        placement.job for placement in decides(queue, cluster, 1) if isinstance(placement, Placement)
    ] == [waits]


def test_ordered_asks_its_placement_again_when_a_caller_says_so() -> None:
    asked: list[str] = []

    def as_queued_order(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Job]:
        return iter(queue)

    def nowhere(wants: Job, cluster: Cluster) -> None:
        asked.append(wants.id)

    cluster, queue, decides = Cluster(TWO), Queue(), Ordered(as_queued_order, nowhere)
    queue.add(job())
    for _ in range(2):
        assert list(decides(queue, cluster, 0)) == []
    assert asked == ["j"]
    cluster.reopen()
    assert (list(decides(queue, cluster, 0)), asked) == ([], ["j", "j"])


def test_what_would_be_free_counts_what_is_owed_first() -> None:
    cluster = Cluster((Node("a", gpus=2, gpu_model=V100),))
    for at in range(2):
        start(cluster, job(str(at)), (0, at))
    cluster.strangers(GpuSlot(0, 0), 500, 0)
    cluster.nodes_changed((Node("a", gpus=1, gpu_model=V100),))
    then = Shadow(cluster)
    for run in cluster.running.values():
        then.end(run)
    assert then.milli.tolist() == [[500, -1]]
    assert then.slots(job("k", share=Share(500))) == (GpuSlot(0, 0),)
    assert then.slots(job("k", share=Share(501))) is None


def test_an_empty_copy_has_the_nodes_that_are_there() -> None:
    cluster = Cluster(TWO)
    cluster.nodes_changed(TWO[1:])
    assert cluster.emptied().nodes == TWO[1:]


# Whatever happens

NODE = st.builds(
    Node,
    st.sampled_from("abcd"),
    gpus=st.integers(0, 3),
    gpu_model=st.sampled_from([V100, T4, UNKNOWN, None]),
    cpu_milli=st.sampled_from([None, 0, 3_000, 9_000]),
    mem_mib=st.sampled_from([None, 500, 2_000]),
    labels=st.sampled_from([(), ("x",), ("x", "y")]),
)
NODES = st.lists(NODE, max_size=4, unique_by=lambda node: node.name)
JOB = st.fixed_dictionaries(
    {
        "gpus": st.integers(0, 4),
        "nodes": st.sampled_from([0, 1, 1, 2]),
        "share": st.builds(Share, st.sampled_from([300, 500, 1000]), st.sampled_from([0, 4_000, 9_000])),
        "cpu_milli": st.sampled_from([0, 1_500, 2_500]),
        "mem_mib": st.sampled_from([0, 100, 700]),
        "models": st.sampled_from([(), (), ("V100",), ("T4", "G2")]),
        "labels": st.sampled_from([(), (), ("x",), ("y",)]),
    }
)
ROW = st.integers(0, 99)
STEP = st.one_of(
    st.tuples(st.just("place"), JOB),
    st.tuples(st.just("place"), JOB),
    st.tuples(st.just("release"), ROW),
    st.tuples(st.just("lose"), ROW),
    st.tuples(st.just("restore"), ROW),
    st.tuples(st.just("nodes"), NODES),
    st.tuples(
        st.just("strangers"), ROW, st.integers(0, 2), st.sampled_from([0, 400]), st.sampled_from([0, 7_000])
    ),
)


def held(cluster: Cluster) -> Amounts:
    """What jobs and strangers use, reckoned one by one."""
    found = Amounts(*(np.zeros_like(array) for array in cluster.free))
    for run in cluster.running.values():
        for part in run.parts:
            found.cpu_milli[part.node] += part.cpu_milli
            found.mem_mib[part.node] += part.mem_mib
        for slot in run.slots:
            if slot.index != NO_GPU:
                found.milli[slot] += run.share.milli
                found.gpu_mem_mib[slot] += run.share.mem_mib
    for node, index in np.argwhere(cluster.capacity.milli >= 0).tolist():
        used = cluster.strangers_on(GpuSlot(node, index))
        found.milli[node, index] += used.milli
        found.gpu_mem_mib[node, index] += used.mem_mib
    return found


def check_accounts(cluster: Cluster) -> None:
    for free, owed, used, most in zip(
        cluster.free, cluster.owed(), held(cluster), cluster.capacity, strict=True
    ):
        there = np.maximum(most, 0)
        assert (np.maximum(free, 0) + used - owed == there).all()
        assert ((free == 0) | (owed == 0) | (most < 0)).all()
        assert ((free < 0) == (most < 0)).all()
        assert (free <= most).all()
    assert cluster.free_total_milli == np.maximum(cluster.free.milli, 0).sum()


@given(NODES.filter(len), st.lists(STEP, max_size=30))
def test_accounts_are_exact_whatever_happens(nodes: list[Node], steps: list[tuple]) -> None:  # type: ignore[type-arg]
    cluster, there = Cluster(nodes), {node.name: node for node in nodes}
    lost: set[str] = set()
    for number, (what, *how) in enumerate(steps):
        cluster.memo["policy"] = 1
        changes = False
        if what == "place":
            wants = how[0]
            if wants["nodes"] > 1 and wants["gpus"] % 2:
                continue
            asked = job(str(number), **wants)
            where = cluster.slots_for(asked, cluster.fitting_nodes(asked).tolist())
            if where is not None:
                cluster.place(Placement(asked, where, asked.share))
        elif what == "release" and cluster.running:
            cluster.release(list(cluster.running)[how[0] % len(cluster.running)])
        elif what in ("lose", "restore"):
            row = how[0] % len(cluster.nodes)
            getattr(cluster, what)(row)
            (lost.add if what == "lose" else lost.discard)(cluster.nodes[row].name)
        elif what == "nodes":
            now = {node.name: node for node in how[0]}
            changes = now != there
            lost = {name for name in lost if name in now and name in there}
            told = cluster.nodes_changed(how[0])
            assert bool(told.added or told.changed or told.vanished) == changes
            there = now
        elif what == "strangers":
            row, index, milli, mem_mib = how
            try:
                cluster.strangers(GpuSlot(row % len(cluster.nodes), index), milli, mem_mib)
            except PlacementError:
                assert index >= cluster.nodes[row % len(cluster.nodes)].gpus
        assert cluster.memo == ({} if changes else {"policy": 1})
        check_accounts(cluster)
        assert {
            node.name for node, up in zip(cluster.nodes, cluster.up, strict=True) if up
        } == there.keys() - lost
        assert {node.name: node for node in cluster.nodes if node.name in there} == there

    for name in list(cluster.running):
        cluster.release(name)
    for row, node in enumerate(cluster.nodes):
        for index in range(node.gpus):
            cluster.strangers(GpuSlot(row, index), 0, 0)
        cluster.restore(row)
    check_accounts(cluster)
    assert not cluster.is_indebted
    if not there:
        assert not cluster.up.any()
        return
    fresh = Cluster([*there.values()])
    assert cluster.emptied().free_total_milli == fresh.free_total_milli == cluster.free_total_milli
    rows = [[node.name for node in cluster.nodes].index(name) for name in there]
    width = fresh.free.milli.shape[1]
    for now, then in zip(cluster.free, fresh.free, strict=True):
        mine = now[rows]
        assert (mine == then if mine.ndim == 1 else mine[:, :width] == then).all()
        assert mine.ndim == 1 or (mine[:, width:] == -1).all()
    for wants in (
        {},
        {"gpus": 0, "labels": ("x",)},
        {"gpus": 2, "models": ("T4",)},
        {"share": Share(9, 9_000)},
    ):
        asked = job("last", **wants)
        assert sorted(cluster.nodes[row].name for row in cluster.fitting_nodes(asked)) == sorted(
            fresh.nodes[row].name for row in fresh.fitting_nodes(asked)
        )
        assert cluster.fits_when_empty(asked) == fresh.fits_when_empty(asked)
