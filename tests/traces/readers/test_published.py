"""Traces of 2025 and 2026 by the headers and rows that their publishers show, and rows made up by their schemas."""

# ruff: noqa: E501  rows are as they were published

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest

import berth
from berth.errors import SettingError, TraceError
from berth.gpu_models import gpu_model
from berth.history.store.folder import open_history
from berth.model import FOREVER_MS, Job, Node, Share
from berth.traces import read_nodes
from tests.command import berth as command

SPOT = """job_name,organization,gpu_model,cpu_request,gpu_request,worker_num,submit_time,duration,job_type
239255,13,A10,20,1,1,0,2764799,HP
437261,57,A100-SXM4-80GB,15,1,94,9589663,71718,Spot
half,57,A10,4,0.5,2,9589664,60,Spot
"""
SPOT_NODES = """gpu_model,gpu_capacity_num,cpu_num,node_name
GPU-series-1,4,192,0
A10,1,128,2
A100-SXM4-80GB,8,128,3
"""
SEREN = """job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time
5778432,u5907,1,8,128,Other,FAILED,2023-03-01 00:18:22+08:00,2023-03-01 00:18:54+08:00,2023-03-01 00:20:51+08:00,117,32,936.0
5778433,u5907,2,3,16,Eval,CANCELLED,2023-03-01 00:18:23+08:00,,2023-03-01 00:19:23+08:00,0,60,0.0
"""
KALOS = """job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,submit_time,start_time,end_time,fail_time,stop_time,duration,queue,gpu_time
dlctk696s0jbvitv,uf794,8,64,960,1000,100.0,Other,FAILED,2023-05-17 11:00:58+00:00,2023-05-17 11:01:08+00:00,2023-05-17 11:01:16+00:00,2023-05-17 11:01:16+00:00,,18,10.0,1152.0
"""
DLRM = """instance_sn,role,app_name,cpu_request,cpu_limit,gpu_request,gpu_limit,rdma_request,rdma_limit,memory_request,memory_limit,disk_request,disk_limit,max_instance_per_node,creation_time,scheduled_time,deletion_time
instance_7185,HN,app_0,12,12,1,1,25,25,120.0,120.0,680.0,800.0,8,,,
instance_13574,CN,app_130,64,64,0,0,1,1,320.0,320.0,255.0,300.0,-1,1435629.0,1435629.0,1435760.0
before,HN,app_0,12,12,1,1,25,25,120.0,120.0,680.0,800.0,8,,,50.0
after,HN,app_0,12,12,1,1,25,25,120.0,120.0,680.0,800.0,8,40.0,45.5,
"""


def _trace(tmp_path: Path, text: str, name: str = "jobs.csv") -> berth.Trace:
    (tmp_path / name).write_text(text)
    return berth.read_trace(tmp_path / name)


def test_spot_jobs_have_the_gpus_of_all_workers_and_the_priority_of_their_tier(tmp_path: Path) -> None:
    trace = _trace(tmp_path, SPOT)
    assert (trace.format, trace.nodes) == ("spot", None)
    one, many, half = trace
    assert one == Job(
        "239255", 0, 2_764_799_000, "13",
        cpu_milli=20_000, models=("A10",), priority=10, virtual_cluster="HP",
    )  # fmt: skip
    assert (many.gpus, many.nodes, many.cpu_milli, many.priority) == (94, 0, 94 * 15_000, 0)
    assert (half.gpus, half.share) == (2, Share(500))


def test_spot_brings_the_node_list_of_its_folder_which_is_a_cluster_too(tmp_path: Path) -> None:
    (tmp_path / "node_info_df.csv").write_text(SPOT_NODES)
    nodes = (
        Node("0", 4, gpu_model("GPU-series-1"), 192_000),
        Node("2", 1, gpu_model("A10"), 128_000),
        Node("3", 8, gpu_model("A100-SXM4-80GB"), 128_000),
    )
    assert _trace(tmp_path, SPOT.replace(",94,", ",8,")).nodes == nodes
    assert read_nodes(tmp_path / "node_info_df.csv") == nodes


def test_acme_runs_from_start_to_end_and_one_cancelled_in_the_queue_is_patience(tmp_path: Path) -> None:
    seren = _trace(tmp_path, SEREN)
    assert seren.nodes is not None
    assert (seren.format, len(seren.nodes), seren.nodes[0].mem_mib) == ("acme", 286, 1024 * 1024)
    ran, left = seren
    assert ran == Job("5778432", 0, 117_000, "u5907", "Other", gpus=8, cpu_milli=128_000)
    # three GPUs on two nodes do not divide evenly: on as few nodes as hold them
    assert (left.submit_ms, left.work_ms, left.patience_ms, left.nodes) == (1000, 60_000, 60_000, 0)
    kalos = _trace(tmp_path, KALOS)
    assert kalos.nodes is not None
    (job,) = kalos
    assert len(kalos.nodes) == 302
    # its `duration` of 18 s counts the queue
    assert (job.work_ms, job.gpus, job.nodes, job.mem_mib) == (8_000, 64, 8, 8 * 1000 * 1024)


def test_dlrm_instances_of_before_and_after_the_window_are_kept(tmp_path: Path) -> None:
    trace = _trace(tmp_path, DLRM)
    assert trace.format == "dlrm"
    assert [(job.id, job.submit_ms, job.work_ms, job.gpus) for job in trace] == [
        ("instance_7185", 0, FOREVER_MS, 1),
        ("before", 0, 50_000, 1),
        ("after", 40_000, FOREVER_MS, 1),
        ("instance_13574", 1_435_629_000, 131_000, 0),
    ]


def _pods(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """ASI's hours, as they are published."""
    lacking = {
        "workload_id": "w", "server_id": "s1", "cluster_id": "c", "gpu_spec_public": "A100-80",
        "priority_class": "HP", "job_type_public": "training", "gpu_request": 2.0, "used_gpu_hours": 2.0,
        "avg_gpu_sm_util": 50.0, "avg_gpu_mem_gib": 80.0, "cpu_request_cores": 8.0, "schedule_delay_sec": 60,
    }  # fmt: skip
    for number, row in enumerate(rows):
        part = folder / f"day={row.pop('day')}" / f"hour={row.pop('hour'):02d}"
        part.mkdir(parents=True, exist_ok=True)
        values = lacking | row
        columns = ", ".join(f"? AS {name}" for name in values)
        duckdb.execute(
            f"COPY (SELECT {columns}) TO '{part}/part-{number:03d}.parquet' (FORMAT parquet)",
            [*values.values()],
        )
    return folder


@pytest.fixture
def hours(tmp_path: Path) -> Path:
    return _pods(
        tmp_path / "pods",
        [
            {"pod_id": "a", "state_public": "Running", "day": 0, "hour": 22},
            {"pod_id": "a", "state_public": "Succeeded", "day": 0, "hour": 23, "used_gpu_hours": 1.0,
             "avg_gpu_sm_util": 80.0},
            {"pod_id": "q", "state_public": "Pending", "day": 1, "hour": 0, "used_gpu_hours": 0.0},
            {"pod_id": "cpu", "state_public": "Running", "day": 1, "hour": 0, "gpu_request": 0.0},
            {"pod_id": "s", "state_public": "Running", "day": 1, "hour": 1, "gpu_request": 0.25,
             "used_gpu_hours": 0.25, "priority_class": "LP", "job_type_public": "online_inference"},
        ],
    )  # fmt: skip


def test_the_hours_of_asi_are_one_job_a_pod(hours: Path) -> None:
    trace = berth.read_trace(hours)
    assert trace.format == "asi"
    ran, queued, service = trace
    hour_ms = 3_600_000
    assert ran == Job(
        "a", 22 * hour_ms, 3 * hour_ms // 2, application="w", gpus=2, cpu_milli=8_000,
        models=("A100-80",), priority=10, virtual_cluster="training",
    )  # fmt: skip
    assert (queued.id, queued.submit_ms, queued.patience_ms) == ("q", 24 * hour_ms, hour_ms)
    assert (service.id, service.work_ms, service.share, service.priority) == ("s", FOREVER_MS, Share(250), 0)


def test_the_hours_of_asi_are_records_with_the_use_that_was_measured(hours: Path, tmp_path: Path) -> None:
    done = command("import", "asi", hours, "--history", tmp_path / "history", "--json")
    assert '"imported": 2' in done.stdout, done.stderr
    records = {record.job_id: record for record in open_history(tmp_path / "history").records()}
    ran = records["a"]
    assert (ran.start_ms, ran.end_ms) == (22 * 3_600_000 + 60_000, 22 * 3_600_000 + 60_000 + 5_400_000)
    assert ran.gpu_use_mean == pytest.approx((2 * 0.5 + 0.8) / 3)
    assert ran.gpu_mem_mean == pytest.approx(0.5)
    assert (ran.gpu_use_peak, ran.gpu_mem_peak) == (None, None)
    assert records["q"].start_ms is None


def test_hours_of_asi_that_were_not_measured_do_not_count_as_idle(tmp_path: Path) -> None:
    folder = _pods(
        tmp_path / "pods",
        [
            {"pod_id": "a", "state_public": "Running", "day": 0, "hour": 0},
            {"pod_id": "a", "state_public": "Succeeded", "day": 0, "hour": 1, "avg_gpu_sm_util": None,
             "avg_gpu_mem_gib": None},
            {"pod_id": "held none", "state_public": "Failed", "day": 0, "hour": 1, "used_gpu_hours": 0.0},
            {"pod_id": "last", "state_public": "Running", "day": 0, "hour": 2},
        ],
    )  # fmt: skip
    command("import", "asi", folder, "--history", tmp_path / "history")
    use = {
        record.job_id: (record.gpu_use_mean, record.gpu_mem_mean)
        for record in open_history(tmp_path / "history").records()
    }
    assert use == {"a": (0.5, 0.5), "held none": (None, None)}


def test_spans_of_asi_take_hours_and_number_pods_that_come_again(tmp_path: Path) -> None:
    path = tmp_path / "spans.parquet"
    duckdb.sql(
        "SELECT 'p' AS pod_id, NULL::VARCHAR AS workload_id, 's' AS server_id, 'A10' AS gpu_spec_public,"
        " 'LP' AS priority_class, 'dev' AS job_type_public, 1.5::DOUBLE AS gpu_request, d AS duration_hours"
        " FROM (VALUES (0.5::DOUBLE), (2.0)) AS spans(d)"
    ).write_parquet(str(path))
    first, again = berth.read_trace(path)
    assert (first.id, first.work_ms, first.gpus, first.share) == ("p", 1_800_000, 2, Share(750))
    assert (again.id, again.work_ms, again.submit_ms) == ("p#2", 7_200_000, 0)


TIERS = """name,at,took,cards,hosts,tier,started,ended
a,100,7200,2,3,HP,100,200
b,101,,1,1,Spot,,161
"""
TIER_MAP = (
    "id=name,submit=at:ms,run=took:ms,gpus_per_node=cards,nodes=hosts,priority=tier:HP=10,Spot=-5"
    ",start=started:ms,end=ended:ms,never-started=patience"
)


def test_a_map_tells_gpus_per_node_tiers_units_and_patience(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text(TIERS)
    columns = dict(part.split("=", 1) for part in TIER_MAP.replace(",Spot", ";Spot").split(","))
    for spec in (TIER_MAP, {field: column.replace(";", ",") for field, column in columns.items()}):
        ran, left = berth.read_trace(path, columns=spec)
        assert (ran.submit_ms, ran.work_ms, ran.gpus, ran.nodes, ran.priority) == (0, 7200, 6, 3, 10)
        assert (left.submit_ms, left.patience_ms, left.work_ms, left.priority) == (1, 60, 60, -5)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (",gpus=cards", "gpus and gpus_per_node"),
        (",no-end=maybe", "expected no-end=endless"),
        (",no-submit=soon", "--map no-submit=soon; expected seconds, or a day"),
    ],
)
def test_a_map_whose_rules_cannot_be_is_refused(tmp_path: Path, more: str, said: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(TIERS)
    with pytest.raises(SettingError, match=said):
        berth.read_trace(path, columns=TIER_MAP + more)
    with pytest.raises(SettingError, match="nodes"):
        berth.read_trace(path, columns="id=i,submit=s,run=r,gpus_per_node=g")
    with pytest.raises(SettingError, match=r"no column for start \(which never-started needs\)"):
        berth.read_trace(path, columns="id=i,submit=s,run=r,end=e,never-started=patience")
    with pytest.raises(SettingError, match="NAME=NUMBER"):
        berth.read_trace(path, columns="id=i,submit=s,run=r,priority=p:HP=high")


def test_a_tier_that_the_map_does_not_name_and_a_row_that_never_started_are_bad_rows(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text(TIERS.replace("HP", "LP"))
    with pytest.raises(TraceError, match="line 2, column 'tier': 'LP'; expected one of HP, Spot"):
        list(berth.read_trace(path, columns=TIER_MAP))
    path.write_text(TIERS)
    spec = "id=name,submit=at,start=started,end=ended"
    with pytest.raises(
        TraceError, match=r"line 3, column 'started'.*expected a start, or never-started=patience"
    ):
        list(berth.read_trace(path, columns=spec))


def test_a_node_list_of_ones_own_is_mapped(tmp_path: Path) -> None:
    path = tmp_path / "hosts.csv"
    path.write_text("host,cards,card,ram\nn1,4,V100,0.5\nn2,0,,1\n")
    columns = "name=host,gpus=cards,model=card,mem_gib=ram"
    assert read_nodes(path, columns) == (
        Node("n1", 4, gpu_model("V100"), None, 512),
        Node("n2", 0, None, None, 1024),
    )
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("id,submit,run,gpus\na,0,60,4\n")
    spec = "id=id,submit=submit,run=run,gpus=gpus"
    named = ("--map", spec, "--map-nodes", columns)
    done = command("compare", jobs, "--policies", "fifo+first-fit", *named, "--cluster", path, "--json")
    assert '"finished": 1' in done.stdout, done.stderr
    with pytest.raises(SettingError, match="needs name and gpus"):
        read_nodes(path, "name=host")
    with pytest.raises(
        TraceError, match="a column 'cpu' for cpus, as --map-nodes says; there are host, cards"
    ):
        read_nodes(path, "name=host,gpus=cards,cpus=cpu")
    with pytest.raises(TraceError, match="no such file"):
        read_nodes("synthetic:demo", columns)
    assert (
        "name the list with --cluster FILE"
        in command("compare", jobs, "--policies", "fifo+first-fit", *named).stderr
    )
