"""The inflation experiment against the published curves, and that it is the ordinary simulation."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from berth.errors import SettingError, TraceError
from berth.model import Job, Node, Share
from berth.traces import read, read_nodes
from berth_papers.inflate import Arrivals, inflate, own_arrivals, read_arrivals
from berth_papers.inflate import inflation as module

RealData = Callable[[str], Path]

PUBLISHED = {
    "dot-product": "02-DotProd",
    "gpu-clustering": "03-GpuClustering",
    "gpu-packing": "04-GpuPacking",
    "best-fit": "05-BestFit",
    "fgd": "06-FGD",
}
WORKLOADS = ("default", "cpu050", "gpuspec10", "gpushare40", "multigpu20")


def published(path: Path) -> dict[tuple[str, str, int], NDArray[np.float64]]:
    with path.open() as file:
        rows = csv.reader(file)
        first = next(rows).index("0")
        return {(row[0], row[1], int(row[3])): np.array(row[first:], dtype=float) for row in rows}


@pytest.mark.parametrize(
    ("policy", "workload"),
    [
        pytest.param(policy, workload, marks=[] if each == other else [pytest.mark.slow])
        for each, policy in enumerate(PUBLISHED)
        for other, workload in enumerate(WORKLOADS)
    ],
)
def test_every_point_of_both_curves_is_the_published_one(
    policy: str, workload: str, real_data: RealData
) -> None:
    """Seed 42 here; one pair in five runs without `slow`. bench/fgd_exactness.py checks all ten seeds."""
    name = f"openb_pod_list_{workload}"
    nodes = read_nodes(real_data("openb_v2023/openb_node_list_gpu_node.csv.gz"))
    pods = list(read(real_data(f"openb_v2023/{name}.csv.gz"), nodes=nodes, file_order=True))
    arrivals = read_arrivals(real_data(f"fgd_orders/{name}.npz"), 42)
    curve = inflate(nodes, pods, policy, seed=42, arrivals=arrivals).curve
    allocation = published(real_data("fgd_expected/analysis_allo_discrete.csv"))
    fragmentation = published(real_data("fgd_expected/analysis_frag_ratio_discrete.csv"))
    key = (name, PUBLISHED[policy], 42)
    assert curve.allocation_pct.tolist() == allocation[key].tolist()
    assert curve.fragmentation_ratio_pct.round(9).tolist() == fragmentation[key].round(9).tolist()


NODES = (Node("b", gpus=2, cpu_milli=4000), Node("a", gpus=1, cpu_milli=4000))
PODS = [Job("half", 0, 1, share=Share(500), cpu_milli=1000), Job("whole", 0, 1), Job("cpu", 0, 1, gpus=0)]


def test_the_experiment_goes_through_the_one_simulate(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def watched(*arguments: object, **more: object) -> Iterator[object]:
        calls.append(arguments)
        return simulate(*arguments, **more)  # type: ignore[arg-type]

    simulate = module.simulate
    monkeypatch.setattr(module, "simulate", watched)
    result = inflate(NODES, PODS, "best-fit", seed=1)
    timed = calls[-1]
    assert [job.submit_ms for job in timed[0]] == list(range(result.arrivals))  # type: ignore[attr-defined]


def test_curves_by_hand() -> None:
    # 3000 milli in all: 500, 500, 1000, 1000 arrive and fit, then 1000 that does not.
    order = Arrivals(np.array([0, 0, 1, 1, 1]))
    curve = inflate(NODES, PODS, "best-fit", seed=0, arrivals=order).curve
    steps = {17: 16.67, 33: 33.33, 67: 66.67, 100: 100.0, 130: 100.0}
    assert {at: curve.allocation_pct[at] for at in steps} == steps
    # After the first arrival: 500 are left on one GPU and 1000 on each of the others, 2500 in all. Of the
    # typical requests "half" (1/3) can use everything, "whole" (1/3) not the 500, "cpu" (1/3) nothing.
    assert curve.fragmentation_ratio_pct[17] == round(100 * (500 / 3 + 2500 / 3) / 2500, 2)


def test_ones_own_arrivals_are_all_jobs_and_then_more_until_130_per_cent() -> None:
    nodes = [Node("a", gpus=4)]
    pods = [Job(str(number), 0, 1, share=Share(100)) for number in range(10)]
    order = own_arrivals(pods, nodes, seed=3).order.tolist()
    assert (sorted(order[:10]), len(order)) == (list(range(10)), 52)
    assert order == own_arrivals(pods, nodes, seed=3).order.tolist()
    assert order != own_arrivals(pods, nodes, seed=4).order.tolist()


def test_ties_go_to_the_smaller_rank() -> None:
    first = Arrivals(np.array([1]), rank=np.array([0, 1]))  # nodes sorted by name: a, b
    last = Arrivals(np.array([1]), rank=np.array([1, 0]))
    nodes = (Node("b", gpus=1), Node("a", gpus=1))
    chosen = []
    for arrivals in (first, last):
        cluster, jobs = module._stage(nodes, PODS, arrivals)
        events = list(module.simulate(jobs, cluster, "best-fit"))
        chosen.append(nodes[events[-1].slots[0].node].name)
    assert chosen == ["a", "b"]


def test_an_order_may_reach_its_load_before_all_rows_have_come(tmp_path: Path) -> None:
    np.savez(tmp_path / "o.npz", order_42=np.array([1, 0]), noderank_42=np.arange(2), n_base_42=2)
    result = inflate(NODES, PODS, "fgd", seed=42, arrivals=read_arrivals(tmp_path / "o.npz", 42))
    assert (result.arrivals, result.placed) == (2, 2)


def test_what_cannot_be_inflated_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="the cluster has no GPUs"):
        inflate([Node("a")], PODS, "fgd", seed=0)
    with pytest.raises(SettingError, match="the workload asks for no GPUs"):
        inflate(NODES, [PODS[2]], "fgd", seed=0)
    with pytest.raises(SettingError, match="names row 7; the workload has rows 0…2"):
        inflate(NODES, PODS, "fgd", seed=0, arrivals=Arrivals(np.array([7])))
    with pytest.raises(SettingError, match="names row -1; the workload has rows 0…2"):
        inflate(NODES, PODS, "fgd", seed=0, arrivals=Arrivals(np.array([1, -1])))
    with pytest.raises(SettingError, match="after 4 different rows; this one has 3"):
        inflate(NODES, PODS, "fgd", seed=0, arrivals=Arrivals(np.array([1]), base=4))
    with pytest.raises(SettingError, match="after 2 different rows; this one has 3"):
        inflate(NODES, PODS, "fgd", seed=0, arrivals=Arrivals(np.array([0, 1, 1]), base=2))
    with pytest.raises(SettingError, match="the cluster has no GPUs"):
        inflate([Node("a")], PODS, "fgd", seed=0, arrivals=Arrivals(np.array([1])))
    with pytest.raises(SettingError, match="ranks 3 nodes; the cluster has 2"):
        inflate(NODES, PODS, "fgd", seed=0, arrivals=Arrivals(np.array([0]), np.arange(3)))
    np.savez(tmp_path / "o.npz", order_42=np.arange(3), noderank_42=np.arange(2))
    with pytest.raises(TraceError, match="'order_43' for seed 43; there are noderank_42, order_42"):
        read_arrivals(tmp_path / "o.npz", 43)
    np.save(tmp_path / "array.npy", np.arange(3))
    (tmp_path / "text.npz").write_bytes(b"no zip")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "o.npz").read_bytes()[:200])
    for name in ("array.npy", "text.npz", "cut.npz"):
        with pytest.raises(TraceError, match=rf"{name}.*readable \.npz"):
            read_arrivals(tmp_path / name, 42)


def test_nodes_of_many_gpus_are_inflated_too() -> None:
    curve = inflate([Node("big", gpus=100)], PODS, "fgd", seed=1).curve
    assert curve.allocation_pct[130] == 100.0


def test_nodes_without_gpus_may_come_first() -> None:
    plain = [Node(f"plain{number}", 0) for number in range(8)]
    assert inflate([*plain, Node("gpus", gpus=8)], PODS, "fgd", seed=1).curve.allocation_pct[130] > 0
