"""The cluster: what fits, what is refused, and that refusing changes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth.cluster import Cluster
from berth.cluster.kernels import arrays_of
from berth.errors import ClusterError, DoesNotFit, NotAllowed, NotRunning
from berth.model import FOREVER_MS, NO_GPU, GpuModel, GpuSlot, Job, Node, Placement, Share

V100 = GpuModel("V100", mem_mib=16_384)
T4 = GpuModel("T4")
NODES = (
    Node("a", gpus=4, gpu_model=V100, cpu_milli=32_000, mem_mib=100_000, labels=("rack=1",)),
    Node("b", gpus=2, gpu_model=T4, cpu_milli=8_000, mem_mib=50_000),
    Node("c", cpu_milli=16_000, mem_mib=20_000),
)


def job(identity: str = "j", **wants: object) -> Job:
    return Job(id=identity, submit_ms=0, work_ms=1000, **wants)  # type: ignore[arg-type]


def slots(*pairs: tuple[int, int]) -> tuple[GpuSlot, ...]:
    return tuple(GpuSlot(*pair) for pair in pairs)


def test_place_takes_what_the_job_asks_for_and_release_gives_it_back() -> None:
    cluster = Cluster(NODES)
    before = cluster.free.milli.tolist(), cluster.free.cpu_milli.tolist(), cluster.free.gpu_mem_mib.tolist()
    shared = job(share=Share(300, 4000), cpu_milli=2000, mem_mib=500)
    run = cluster.place(Placement(shared, slots((0, 2)), shared.share), now_ms=7)
    assert cluster.free.milli[0].tolist() == [1000, 1000, 700, 1000]
    assert cluster.free.gpu_mem_mib[0].tolist() == [16384, 16384, 12384, 16384]
    assert (cluster.free.cpu_milli[0], cluster.free.mem_mib[0]) == (30_000, 99_500)
    assert cluster.jobs_on(GpuSlot(0, 2)) == (run,)
    assert (run.start_ms, run.left_ms, run.end_ms()) == (7, 1000, 1007)
    assert cluster.free_total_milli == 5700
    cluster.release("j")
    after = cluster.free.milli.tolist(), cluster.free.cpu_milli.tolist(), cluster.free.gpu_mem_mib.tolist()
    assert (after, arrays_of(cluster.block).held.sum(), cluster.free_total_milli) == (before, 0, 6000)


def test_a_gang_gives_each_node_its_part_rounded_up() -> None:
    cluster = Cluster(NODES)
    gang = job(gpus=3, nodes=0, cpu_milli=1000, mem_mib=100)
    cluster.place(Placement(gang, slots((0, 0), (0, 1), (1, 0)), gang.share))
    assert (cluster.free.cpu_milli[0], cluster.free.cpu_milli[1]) == (32_000 - 667, 8_000 - 334)
    assert (cluster.free.mem_mib[0], cluster.free.mem_mib[1]) == (100_000 - 67, 50_000 - 34)


@pytest.mark.parametrize(
    ("wants", "where", "error", "message"),
    [
        (
            {"share": Share(800)},
            [(0, 0)],
            DoesNotFit,
            "takes 800 milli of GPU 0 of node 'a', which has 700 left",
        ),
        ({"share": Share(100, 20_000)}, [(0, 1)], DoesNotFit, "takes 20000 MiB of GPU 1 of node 'a'"),
        ({"cpu_milli": 9000}, [(1, 0)], DoesNotFit, "takes 9000 CPU milli of node 'b', which has 8000 left"),
        ({"mem_mib": 60_000}, [(1, 0)], DoesNotFit, "takes 60000 MiB of node 'b', which has 50000 left"),
        (
            {"models": ("A100", "H100")},
            [(1, 0)],
            NotAllowed,
            "may run on A100 or H100; node 'b' has GPU model 'T4'",
        ),
        (
            {"labels": ("rack=1",)},
            [(1, 0)],
            NotAllowed,
            "asks for label 'rack=1', which node 'b' does not carry",
        ),
        ({"gpus": 2}, [(0, 1)], NotAllowed, "asks for 2 GPUs, not for slots (0, 1)"),
        ({"gpus": 2}, [(0, 1), (0, 1)], NotAllowed, "names the same slot twice"),
        ({"gpus": 2}, [(0, 1), (1, 1)], NotAllowed, "asks for 2 GPUs on exactly 1 nodes"),
        ({"gpus": 4, "nodes": 2}, [(0, 1), (0, 2), (0, 3), (1, 1)], NotAllowed, "the placement gives [3, 1]"),
        ({}, [(1, 3)], NotAllowed, "GPU 3 of node 'b', which has 2 GPUs"),
        ({}, [(3, 0)], NotAllowed, "there is no slot (3, 0) in a cluster of 3 nodes"),
        ({}, [(-1, 0)], NotAllowed, "there is no slot (-1, 0)"),
        ({}, [(0, NO_GPU)], NotAllowed, "asks for 1 GPUs"),
        ({"gpus": 0}, [(0, 1)], NotAllowed, "asks for 0 GPUs"),
        ({"gpus": 0, "nodes": 2}, [(0, NO_GPU), (1, 1)], NotAllowed, "are GPUs in part and in part none"),
        ({}, [], NotAllowed, "cannot be placed on no slots"),
    ],
)
def test_what_cannot_be_is_refused_by_name_and_changes_nothing(
    wants: dict[str, object], where: list[tuple[int, int]], error: type[Exception], message: str
) -> None:
    cluster = Cluster(NODES)
    tenant = job("tenant", share=Share(300))
    cluster.place(Placement(tenant, slots((0, 0)), tenant.share))
    before = cluster.digest()
    asked = job(**wants)
    with pytest.raises(error) as refusal:
        cluster.place(Placement(asked, slots(*where), asked.share))
    assert message in str(refusal.value)
    assert cluster.digest() == before


@pytest.mark.parametrize(
    "share", [Share(0, 10), Share(1001, 10), Share(400, 101), Share(-1, 0), Share(400, -1)]
)
def test_a_job_is_given_at_most_a_whole_gpu_and_the_memory_that_it_asks_for(share: Share) -> None:
    cluster = Cluster(NODES)
    asks = job(share=Share(400, 100))
    with pytest.raises(NotAllowed, match=r"may be given 1…1000 milli and 0…100 MiB"):
        cluster.place(Placement(asks, slots((0, 0)), share))
    cluster.place(Placement(asks, slots((0, 0)), Share(1, 0)))
    assert cluster.free.milli[0, 0] == 999
    cluster.place(Placement(job("more", share=Share(400)), slots((0, 1)), Share(1000)))
    assert cluster.free.milli[0, 1] == 0
    cluster.release("more")
    assert cluster.free.milli[0, 1] == 1000


def test_nobody_can_write_to_what_the_cluster_shows() -> None:
    cluster = Cluster(NODES)
    for shown in (
        cluster.free.milli,
        cluster.free.cpu_milli,
        cluster.up,
        cluster.capacity.milli,
    ):
        with pytest.raises(ValueError, match="read-only"):
            shown[0] = 5
    with pytest.raises(AttributeError, match="clear"):
        cluster.running.clear()  # type: ignore[attr-defined]


def test_nothing_fits_on_a_lost_node_until_it_is_back() -> None:
    cluster = Cluster(NODES)
    cluster.lose(1)
    wants = job(models=("T4",))
    assert cluster.fitting_nodes(wants).tolist() == []
    with pytest.raises(NotAllowed, match="node 'b': it is lost"):
        cluster.place(Placement(wants, slots((1, 0)), wants.share))
    cluster.restore(1)
    assert cluster.fitting_nodes(wants).tolist() == [1]


def test_a_job_is_placed_once_and_released_once() -> None:
    cluster = Cluster(NODES)
    once = Placement(job(), slots((0, 0)), Share())
    cluster.place(once)
    with pytest.raises(NotAllowed, match="running already"):
        cluster.place(once)
    cluster.release("j")
    with pytest.raises(NotRunning, match="job 'j' cannot be released: it is not running"):
        cluster.release("j")


@pytest.mark.parametrize(
    ("wants", "fits"),
    [
        ({"gpus": 4}, True),
        ({"gpus": 5}, False),
        ({"gpus": 5, "nodes": 0}, True),
        ({"gpus": 7, "nodes": 0}, False),
        ({"gpus": 4, "nodes": 2}, True),
        ({"gpus": 6, "nodes": 2}, False),
        ({"gpus": 0, "cpu_milli": 32_000}, True),
        ({"gpus": 0, "cpu_milli": 32_001}, False),
        ({"models": ("H100",)}, False),
        ({"labels": ("rack=2",)}, False),
        ({"share": Share(500, 16_384)}, True),
        ({"share": Share(500, 16_385)}, True),  # on the T4, whose memory nobody tells
        ({"share": Share(500, 16_385), "models": ("V100",)}, False),
    ],
)
def test_fits_when_empty_tells_who_could_ever_start(wants: dict[str, object], fits: bool) -> None:
    assert Cluster(NODES).fits_when_empty(job(**wants)) is fits


def test_work_left_is_rounded_up_to_the_next_millisecond_but_none_is_lost() -> None:
    cluster = Cluster(NODES)
    run = cluster.place(Placement(job(), slots((0, 0)), Share()), now_ms=0)
    run.advance(0, 333)
    assert run.end_ms() == 3004  # 1000 / 0.333 = 3003.003…
    for now_ms in range(1, 11):
        run.advance(now_ms, 333)
    run.advance(10, 1000)
    assert (run.left_us, run.left_ms, run.end_ms()) == (996_670, 997, 1007)  # 3.33 ms were done


def test_a_service_never_ends() -> None:
    cluster = Cluster(NODES)
    service = Job("s", 0, FOREVER_MS)
    assert cluster.place(Placement(service, slots((0, 0)), Share())).end_ms() == FOREVER_MS


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ((), "at least one node"),
        ((Node("a"), Node("a")), "two nodes are called 'a' (the second is number 2)"),
        ((Node("a", gpus=-1),), "expected whole numbers, 0 or more"),
        ((Node("a", gpus=1.5),), "1.5 GPUs"),  # type: ignore[arg-type]
    ],
)
def test_a_cluster_that_cannot_be_is_refused(nodes: tuple[Node, ...], message: str) -> None:
    with pytest.raises(ClusterError) as refusal:
        Cluster(nodes)
    assert message in str(refusal.value)


@pytest.mark.parametrize("rank", [[0, 1, 1], [0, 1], [0, 1, 2, 3]])
def test_a_rank_must_be_a_permutation(rank: list[int]) -> None:
    with pytest.raises(ClusterError, match="permutation of 0…2"):
        Cluster(NODES, rank=rank)


def test_numbers_beyond_64_bits_are_refused_as_others_are() -> None:
    cluster = Cluster(NODES)
    before = cluster.digest()
    for far in (slots((0, 2**70)), slots((2**70, 0))):
        with pytest.raises(NotAllowed):
            cluster.place(Placement(job(), far, Share(1000, 0)))
    for huge in ({"cpu_milli": 2**62}, {"mem_mib": 2**62}, {"cpu_milli": 2**70}):
        with pytest.raises(DoesNotFit):
            cluster.place(
                Placement(job(gpus=4, **huge), slots(*((0, at) for at in range(4))), Share(1000, 0))
            )
    assert cluster.digest() == before
    for huge in (job(gpus=2**70), job(gpus=2**70, nodes=2**70), job(gpus=1, share=Share(1000, 2**70))):
        assert not cluster.fits_when_empty(huge)


@pytest.mark.slow
@pytest.mark.parametrize("number", ["2**70", "2**63", "0.0", "None"])
def test_the_first_placement_of_all_may_be_one_that_cannot_be(number: str) -> None:
    """In a process of its own and without kept kernels: the first call settles what the kernel is compiled for."""
    script = f"""if True:
        from berth.cluster import Cluster
        from berth.errors import NotAllowed
        from berth.model import GpuSlot, Job, Node, Placement, Share
        cluster, one = Cluster([Node("a", gpus=1)]), Job("j", 0, 1000)
        for slot in (GpuSlot(0, {number}), GpuSlot({number}, 0)):
            try:
                cluster.place(Placement(one, (slot,), Share()))
            except NotAllowed as error:
                print("refused:", error)
        cluster.place(Placement(one, (GpuSlot(0, 0),), Share()))
    """
    with TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "NUMBA_CACHE_DIR": folder},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["refused", "refused"]


def test_a_job_whose_slots_somebody_wrote_over_is_not_given_back_elsewhere() -> None:
    cluster = Cluster(NODES)
    run = cluster.place(Placement(job(), slots((0, 0)), Share(1000, 0)))
    run.slots = slots((10**6, 0))
    with pytest.raises(ClusterError, match="which this cluster never gave"):
        cluster.release("j")


def could_be(asked: Job, where: tuple[GpuSlot, ...], share: Share, running: list[Placement]) -> bool:
    """Whether a placement beside others can be, reckoned slot by slot and node by node."""
    here = [slot.node for slot in where]
    parts = {node: here.count(node) for node in here}
    if not where or len(set(where)) < len(where):
        return False
    if asked.gpus and not (0 < share.milli <= 1000 and 0 <= share.mem_mib <= asked.share.mem_mib):
        return False
    if asked.gpus and len(where) != asked.gpus:
        return False
    if asked.nodes and (len(parts) != asked.nodes or len(set(parts.values())) > 1):
        return False
    for slot in where:
        if not 0 <= slot.node < len(NODES) or (slot.index == NO_GPU) != (asked.gpus == 0):
            return False
        node = NODES[slot.node]
        if (
            asked.models
            and asked.gpus
            and (node.gpu_model is None or node.gpu_model.name not in asked.models)
        ):
            return False
        if not set(asked.labels) <= set(node.labels) or not -1 <= slot.index < node.gpus:
            return False
        beside = [other.share for other in running if other.job.gpus and slot in other.slots]
        card = node.gpu_model.mem_mib if node.gpu_model and node.gpu_model.mem_mib else 2**40
        if asked.gpus and (
            share.milli + sum(other.milli for other in beside) > 1000
            or share.mem_mib + sum(other.mem_mib for other in beside) > card
        ):
            return False
    for number in parts:
        takers = [*running, Placement(asked, where, share)]
        for has, wants in (("cpu_milli", "cpu_milli"), ("mem_mib", "mem_mib")):
            taken = sum(
                -(
                    -getattr(taker.job, wants)
                    * sum(slot.node == number for slot in taker.slots)
                    // len(taker.slots)
                )
                for taker in takers
            )
            if taken > getattr(NODES[number], has):
                return False
    return True


REAL = [*((0, index) for index in (0, 1, 2, 3)), (1, 0), (1, 1), *((node, NO_GPU) for node in (0, 1, 2))]
SLOTS = st.sampled_from([GpuSlot(*pair) for pair in REAL * 3 + [(1, 3), (2, 0), (3, 0), (-1, 0), (0, -2)]])
WANTS = st.fixed_dictionaries(
    {
        "nodes": st.sampled_from([0, 0, 1, 1, 2]),
        "share": st.builds(Share, st.sampled_from([300, 500, 1000]), st.sampled_from([0, 0, 4000, 9000])),
        "cpu_milli": st.sampled_from([0, 0, 1500, 9000]),
        "mem_mib": st.sampled_from([0, 0, 100, 30_000]),
        "models": st.sampled_from([(), (), ("V100",), ("T4", "V100")]),
        "labels": st.sampled_from([(), (), (), ("rack=1",)]),
    }
)
GIVEN = st.sampled_from(
    [None, None, None, Share(200), Share(1000), Share(1000, 9000), Share(0), Share(300, -1)]
)


@given(
    st.lists(st.tuples(WANTS, st.lists(SLOTS, max_size=3), st.sampled_from([0, 0, 0, 1]), GIVEN), max_size=16)
)
def test_what_can_be_is_taken_and_nothing_else(
    steps: list[tuple[dict[str, Any], list[GpuSlot], int, Share | None]],
) -> None:
    cluster = Cluster(NODES)
    empty = cluster.free.milli.tolist(), cluster.free.cpu_milli.tolist(), cluster.free.gpu_mem_mib.tolist()
    running: list[Placement] = []
    for number, (wants, where, more, given_share) in enumerate(steps):
        gpus = more + sum(slot.index != NO_GPU for slot in where)
        if wants["nodes"] and gpus % wants["nodes"]:
            continue
        asked = job(str(number), gpus=gpus, **wants)
        placement = Placement(asked, tuple(where), given_share or asked.share)
        before = cluster.digest()
        if could_be(asked, placement.slots, placement.share, running):
            cluster.place(placement)
            running.append(placement)
        else:
            with pytest.raises((NotAllowed, DoesNotFit)):
                cluster.place(placement)
            assert cluster.digest() == before
    for other in running:
        cluster.release(other.job.id)
    after = cluster.free.milli.tolist(), cluster.free.cpu_milli.tolist(), cluster.free.gpu_mem_mib.tolist()
    assert (after, arrays_of(cluster.block).held.sum(), cluster.free_total_milli) == (empty, 0, 6000)


def test_best_effort_names_no_more_memory_than_the_card_has() -> None:
    cluster = Cluster([Node("a", 1, GpuModel("T4", mem_mib=1000), 8000, 8000)])
    over = Placement(job("j"), slots((0, 0)), Share(1000, 1001), True, True)
    with pytest.raises(DoesNotFit, match="may use 1001 MiB of GPU 0 of node 'a', which has 1000 in all"):
        cluster.place(over)
    assert cluster.place(over._replace(share=Share(1000, 1000))).share.mem_mib == 1000


@pytest.mark.parametrize("amounts", [(0.5, 0), (0, 1.5), (1001, 0), (-1, 0)])
def test_strangers_use_whole_amounts(amounts: tuple[int, int]) -> None:
    cluster = Cluster(NODES)
    before = cluster.digest()
    with pytest.raises(NotAllowed, match="whole numbers"):
        cluster.strangers(GpuSlot(0, 0), *amounts)
    assert cluster.digest() == before
