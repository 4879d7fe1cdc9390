"""PAI, Helios and fleetsim's columns: what their rows mean, their clusters, and what is wrong with bad ones."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from berth import traces
from berth.errors import TraceError
from berth.gpu_models import gpu_model
from berth.model import FOREVER_MS, Job, Node, Share
from berth.traces.published_clusters import pai_nodes

PAI = "job_id,num_inst,submit_time,num_cpu,num_gpu,gpu_type,duration,user\n"
TASKS = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n"
HELIOS = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
FLEETSIM = "job_id,user,tenant,class,submit_time,num_chips,chip_type,num_nodes,duration_s,walltime_limit_s\n"


def jobs(path: Path, text: str) -> list[Job]:
    path.write_text(text, "utf-8")
    return list(traces.read(path))


def test_a_pai_job_of_several_instances_is_one_job_on_as_few_nodes_as_hold_it(tmp_path: Path) -> None:
    header = PAI.replace("user\n", "user,group,user_dur,group_dur\n")
    rows = "7,1,5,6.0,0.25,T4,33.0,ann,g,10.5,\n8,3,6,2.0,1.5,V100,4.0,bob,,1,2\n9,2,7,4,0,CPU,1,,,,\n"
    assert jobs(tmp_path / "x", header + rows) == [
        Job("7", 5000, 33_000, "ann", "g", share=Share(250), cpu_milli=6000, models=("T4",), estimate_ms=10_500),
        Job("8", 6000, 4000, "bob", gpus=6, share=Share(750), nodes=0, cpu_milli=6000,
            models=("V100", "V100M32"), estimate_ms=2000),
        Job("9", 7000, 1000, gpus=0, nodes=2, cpu_milli=8000),
    ]  # fmt: skip


def test_the_real_pai_rows_are_read_and_their_machines_are_those_published(
    real_data: Callable[[str], Path],
) -> None:
    path = real_data("pai_v2020/pai2020_subset_via_plebiscitotest.csv.gz")
    trace = traces.read_trace(path)
    found = list(trace.jobs())
    assert trace.format == "pai"
    assert trace.nodes is not None
    assert (len(trace.nodes), sum(node.gpus for node in trace.nodes)) == (1897, 6742)
    assert len(found) == 1990
    assert found[1] == Job(
        "139", 0, 79_000, "58540f191766", share=Share(100), cpu_milli=6000, models=("MISC",)
    )
    assert {model for job in found for model in job.models} == {"MISC", "T4", "P100", "V100", "V100M32"}


def test_a_task_works_while_its_instances_run_and_counts_from_the_first_launch(
    tmp_path: Path, real_data: Callable[[str], Path]
) -> None:
    for name in ("pai_task_table", "pai_instance_table", "pai_machine_spec"):
        shutil.copy(real_data(f"pai_v2020/{name}.header"), tmp_path / f"{name}.header")
    shutil.unpack_archive(real_data("pai_v2020/pai_machine_spec.tar.gz"), tmp_path, filter="data")
    (tmp_path / "pai_task_table.csv").write_text(
        "a,ps,1.0,Terminated,100.0,200.0,600.0,29.296875,,\n"
        "a,worker,2.0,Terminated,100.5,200.0,400.0,10.0,50.0,MISC\n"
        "b,worker,1.0,Running,90.0,,400.0,10.0,200.0,V100\n"
    )
    (tmp_path / "pai_instance_table.csv").write_text(
        "a,worker,i1,w1,x,Terminated,110.0,150.0,m\na,worker,i2,w2,x,Terminated,120.0,180.0,m\n"
        "a,ps,i3,w3,x,Running,105.0,,m\n"
    )
    (tmp_path / "pai_job_table.header").write_text("job_name,inst_id,user,status,start_time,end_time\n")
    (tmp_path / "pai_job_table.csv").write_text("a,x,ann,Terminated,1.0,2.0\n")
    path = tmp_path / "pai_task_table.csv"
    machines = traces.read_trace(path).nodes
    assert machines is not None
    assert Counter(replace(node, name="") for node in machines) == Counter(
        replace(node, name="") for node in pai_nodes()
    )
    assert list(traces.read(path)) == [
        Job("b/worker", 0, FOREVER_MS, "", "worker", gpus=2, cpu_milli=4000, mem_mib=10_240,
            models=("V100", "V100M32")),
        Job("a/ps", 10_000, 100_000, "ann", "ps", gpus=0, cpu_milli=6000, mem_mib=30_000),
        Job("a/worker", 10_500, 70_000, "ann", "worker", gpus=2, share=Share(500), nodes=0, cpu_milli=8000,
            mem_mib=20_480, models=("MISC",)),
    ]  # fmt: skip
    path.write_text("a,ps,1.0,Terminated,100.0,xyz,600.0,29.3,,\n")
    with pytest.raises(TraceError, match="line 1, column 'end_time': 'xyz'"):
        list(traces.read(path))


def test_helios_has_nodes_of_each_virtual_cluster_and_its_jobs_ask_for_them(tmp_path: Path) -> None:
    (tmp_path / "cluster_gpu_number.csv").write_text(
        "date,vcA,vcB,total\n2020-09-01,8,9,17\n2020-09-02,16,0,16\n"
    )
    rows = "2,u,vcA,16,4,2,FAILED,2020-06-09 18:41:02,,,30,0\n1,w,vcC,9,0,2,COMPLETED,2020-06-09 18:41:01,,,2.5,0\n"
    assert jobs(tmp_path / "log.csv", HELIOS + rows) == [
        Job("1", 0, 2500, "w", gpus=9, nodes=0, virtual_cluster="vcC"),
        Job("2", 1000, 30_000, "u", gpus=16, nodes=2, cpu_milli=4000, labels=("vcA",), virtual_cluster="vcA"),
    ]
    model = gpu_model("HELIOS")
    assert traces.nodes_of(tmp_path / "log.csv") == tuple(
        Node(name, 8, model, labels=(name[:3],)) for name in ("vcA-000", "vcA-001", "vcB-000", "vcB-001")
    )


def test_the_real_slice_of_helios_has_its_pools_from_its_comments(real_data: Callable[[str], Path]) -> None:
    trace = traces.read_trace(real_data("helios/helios_venus_2vc_sept.csv.gz"))
    found = list(trace.jobs())
    assert trace.format == "fleetsim"
    assert trace.nodes is not None
    assert [sum(label in node.labels for node in trace.nodes) for label in ("vcvGl", "vcvlY")] == [20, 2]
    assert len(found) == 1867
    assert found[0] == Job(
        "765563", 5_835_000, 24_000, "uH3om", "finetune", gpus=128, nodes=16, labels=("vcvGl",),
        time_limit_ms=24_000, virtual_cluster="vcvGl",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "line", "column", "value"),
    [
        (PAI + "1,1,0,6,0.5,T4,-3,u\n", 2, "duration", "-3"),
        (PAI + "1,1,0,6,nan,T4,3,u\n", 2, "num_gpu", "nan"),
        (PAI + "1,0,0,6,1,T4,3,u\n", 2, "num_inst", "0"),
        (PAI + "1,1,0,6,1,H9,3,u\n", 2, "gpu_type", "H9"),
        (PAI + "1,1,0,6,9,T4,3,u\n", 2, "num_gpu", "9"),
        (PAI + "1,1,0,6,1,T4,3,u\n1,1,0,6,1,T4,3,u\n", 3, "job_id", "1"),
        (PAI + "1,1,0\n", 2, "num_cpu", None),
        (TASKS + "a,w,1,T,9,5,0,0,0,\n", 2, "end_time", "5"),
        (TASKS + "a,w,1,T,,5,0,0,0,\n", 2, "start_time", ""),
        (HELIOS + "1,u,v,8,1,1,C,2020-06-31 18:41:02,,,3,0\n", 2, "submit_time", "2020-06-31 18:41:02"),
        (FLEETSIM + "1,u,v,x,-1,8,,1,3,3\n", 2, "submit_time", "-1"),
        (FLEETSIM + "1,u,v,x,1,eight,,1,3,3\n", 2, "num_chips", "eight"),
        ("# one\n" + FLEETSIM + "1,u,v,x,1,8,,0.5,3,3\n", 3, "num_nodes", "0.5"),
    ],
)
def test_a_bad_row_is_named_and_can_be_skipped(
    text: str, line: int, column: str, value: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        list(traces.read(path))
    assert (caught.value.line, caught.value.column, caught.value.value) == (line, column, value)
    skipped: list[TraceError] = []
    list(traces.read(path, skip_bad=skipped))
    assert [(error.line, error.column, error.value) for error in skipped] == [(line, column, value)]


@pytest.mark.slow
def test_the_slice_of_helios_gives_the_ratio_that_fleetsim_finds_with_its_definition(
    real_data: Callable[[str], Path],
) -> None:
    trace = real_data("helios/helios_venus_2vc_sept.csv.gz")
    policies = ["--policies", "fifo+best-fit,sjf+best-fit", "--round", "60"]
    command = [Path(sys.executable).with_name("berth"), "compare", trace, *policies, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=400)
    means = [run["completion_time_s"]["mean"] for run in json.loads(done.stdout)["runs"]]
    assert [round(mean) for mean in means] == [28_557, 10_373]
    assert round(means[0] / means[1], 2) == 2.75
