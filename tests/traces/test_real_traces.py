"""The published files, read whole, against what is known of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from berth import traces
from berth.errors import TraceError
from berth.model import FOREVER_MS, WHOLE_GPU, Job, Share
from berth.traces.description import describe_jobs

Find = Callable[[str], Path]


def test_openb_default_is_8152_pods_of_which_897_never_ran(real_data: Find) -> None:
    path = real_data("openb_v2023/openb_pod_list_default.csv.gz")
    trace = traces.read_trace(path)
    jobs = list(trace.jobs())
    assert (trace.format, len(jobs)) == ("openb", 8152)
    assert jobs[1] == Job(
        "openb-pod-0001",
        427_061_000,
        (12_902_960 - 427_061) * 1000,
        share=Share(460),
        cpu_milli=6000,
        mem_mib=12288,
        virtual_cluster="LS",
    )
    assert Counter((job.gpus, job.share == WHOLE_GPU) for job in jobs) == {
        (0, True): 1088,
        (1, True): 3911,
        (1, False): 3078,
        (2, True): 16,
        (4, True): 15,
        (8, True): 44,
    }
    never_ran = [job for job in jobs if job.patience_ms is not None]
    assert len(never_ran) == 897
    assert all(job.work_ms == job.patience_ms for job in never_ran)


def test_openb_brings_the_cluster_that_lies_beside_it(real_data: Find) -> None:
    nodes = traces.nodes_of(real_data("openb_v2023/openb_pod_list_default.csv.gz"))
    assert nodes is not None
    assert (len(nodes), sum(node.gpus for node in nodes)) == (1523, 6212)
    gpu_nodes = traces.read_nodes(real_data("openb_v2023/openb_node_list_gpu_node.csv.gz"))
    assert (len(gpu_nodes), sum(node.gpus for node in gpu_nodes)) == (1213, 6212)
    assert Counter(node.gpu_model.name for node in gpu_nodes if node.gpu_model) == {
        "G2": 549,
        "T4": 404,
        "P100": 134,
        "V100M16": 55,
        "G3": 39,
        "V100M32": 30,
        "A10": 2,
    }


def test_openb_keeps_the_alternatives_of_a_model_as_the_file_has_them(real_data: Find) -> None:
    jobs = traces.read(real_data("openb_v2023/openb_pod_list_gpuspec10.csv.gz"))
    models = Counter("|".join(job.models) for job in jobs)
    assert models["V100M16|V100M32"] == 55
    assert models["V100M16|V100M32|V100M32"] == 6
    assert sum(number for name, number in models.items() if name) == 732


def test_openb_out_of_order_is_sorted_and_can_be_had_as_it_is(real_data: Find) -> None:
    path = real_data("openb_v2023/openb_pod_list_cpu050.csv.gz")
    in_file = list(traces.read(path, file_order=True))
    assert [job.id for job in in_file] == [f"openb-pod-{index:04d}" for index in range(7439)]
    assert list(traces.read(path)) == sorted(in_file, key=lambda job: job.submit_ms)


def test_openb_without_times_submits_all_at_once_for_ever(real_data: Find) -> None:
    jobs = list(traces.read(real_data("openb_v2023/openb_pod_list_multigpu20.csv.gz")))
    assert {(job.submit_ms, job.work_ms) for job in jobs} == {(0, FOREVER_MS)}
    assert [job.id for job in jobs] == [f"openb-pod-{index:04d}" for index in range(8324)]


@pytest.mark.slow
def test_openb_on_another_cluster_is_checked_against_that(real_data: Find) -> None:
    path = real_data("openb_v2023/openb_pod_list_gpuspec10.csv.gz")
    skipped: list[TraceError] = []
    jobs = list(traces.read(path, nodes=traces.read_nodes("10x4:T4"), skip_bad=skipped))
    assert len(jobs) + len(skipped) == 8152
    assert {error.column for error in skipped} == {"num_gpu", "gpu_spec"}
    assert len(list(traces.read(path, nodes=()))) == 8152


def test_philly_is_82247_jobs_that_ask_for_15_percent_of_2490_gpus(real_data: Find) -> None:
    path = real_data("philly/sia_philly.csv.gz")
    trace = traces.read_trace(path)
    jobs = list(trace.jobs())
    assert len(jobs) == 82_247
    assert jobs[0] == Job("philly-31567", 0, 2_240_194_000, gpus=8, nodes=0, virtual_cluster="7f04ca")
    assert [job.submit_ms for job in jobs] == sorted(job.submit_ms for job in jobs)
    assert trace.nodes is not None
    assert Counter(node.gpus for node in trace.nodes) == {2: 321, 8: 231}
    description = describe_jobs(jobs, trace.nodes)
    assert description.cluster_gpus == 2490
    assert description.load == pytest.approx(0.15, abs=0.005)
    assert description.jobs_by_gpus == {
        1: 76627, 2: 1818, 4: 1870, 8: 1643, 12: 7, 16: 199, 24: 7, 32: 67, 64: 6, 128: 3
    }  # fmt: skip


@pytest.mark.slow
def test_a_real_trace_converted_is_the_same_trace(real_data: Find, tmp_path: Path) -> None:
    jobs = list(traces.read(real_data("openb_v2023/openb_pod_list_gpuspec10.csv.gz")))
    for name in ("jobs.csv.gz", "jobs.parquet"):
        traces.write(jobs, tmp_path / name)
        assert list(traces.read(tmp_path / name)) == jobs
