"""What every format must do: a contract over the registry, so that a new one is tested by being there."""

from __future__ import annotations

import csv
import gzip
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from berth import traces
from berth.errors import TraceError
from berth.history.store.record_files import records, write_records
from berth.model import Event, EventKind, GpuSlot, Job, Node, Reason
from berth.traces import formats
from berth.traces.table import Table

SAMPLES: dict[str, str] = {
    "openb": "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time\n"
    + "".join(f"p{i},{i},1024,1,500,{(i * 37) % 100},500,200\n" for i in range(60)),
    "philly": "timestamp,duration,num_gpus,gpu_time,cluster\n"
    + "".join(
        f"2017-10-{1 + (i * 7) % 28:02d} 07:01:{i % 60:02d},{i}.5,{1 + i % 8},1,c{i % 3}\n" for i in range(60)
    ),
    "pai": "job_id,num_inst,submit_time,num_cpu,num_gpu,gpu_type,duration,user\n"
    + "".join(f"{i},1,{(i * 37) % 100},6.0,0.5,T4,{i}.0,u{i % 3}\n" for i in range(60)),
    "pai-tasks": "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n"
    + "".join(
        f"j{i},worker,2.0,Terminated,{(i * 37) % 100},{200 + i}.0,600.0,29.3,50.0,MISC\n" for i in range(60)
    ),
    "helios": "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
    + "".join(
        f"{i},u,vcA,{8 * (1 + i % 2)},4,{1 + i % 2},COMPLETED,2020-06-09 18:{(i * 37) % 60:02d}:00,,,{i},0\n"
        for i in range(60)
    ),
    "fleetsim": "job_id,user,tenant,class,submit_time,num_chips,chip_type,num_nodes,duration_s,walltime_limit_s\n"
    + "".join(f"{i},u,vcA,finetune,{(i * 37) % 100}000000,8,,1,{i}.5,60.0\n" for i in range(60)),
    "acme": "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time\n"
    + "".join(
        f"{i},u,1,8,128,Eval,FAILED,2023-03-01 00:{(i * 37) % 60:02d}:00+08:00,2023-03-01 01:00:00+08:00,"
        f"2023-03-01 02:00:{i:02d}+08:00,0,0,0.0\n"
        for i in range(60)
    ),
    "spot": "job_name,organization,gpu_model,cpu_request,gpu_request,worker_num,submit_time,duration,job_type\n"
    + "".join(
        f"{i},13,A10,20,1,{1 + i % 3},{(i * 37) % 100},{i},{('HP', 'Spot')[i % 2]}\n" for i in range(60)
    ),
    "dlrm": "instance_sn,role,app_name,cpu_request,gpu_request,memory_request,creation_time,scheduled_time,"
    "deletion_time\n"
    + "".join(f"i{i},HN,app_0,12,1,120.0,{(i * 37) % 100}.0,200.0,{300 + i}.0\n" for i in range(60)),
    "asi-spans": "pod_id,workload_id,gpu_spec_public,priority_class,job_type_public,gpu_request,duration_hours\n"
    + "".join(f"p{i},w{i % 3},A10,LP,dev,0.5,{i}.5\n" for i in range(60)),
    "swf": "; Version: 2.2\n"
    + "".join(f"{i + 1} {(i * 37) % 100} 0 {i} 2 -1 -1 4 90 -1 1 3 1 -1 1 -1 -1 -1\n" for i in range(60)),
    "berth": "id,submit_ms,work_ms,gpus,share_milli\n"
    + "".join(f"j{i},{(i * 37) % 100},{i},1,{1000 - i}\n" for i in range(60)),
}


def _hours(folder: Path, jobs: int = 60) -> None:
    """A folder of hours, as ASI is published, of pods that each ran for one."""
    for index in range(max(jobs, 1)):
        part = folder / f"day={index % 5}" / f"hour={index // 5:02d}"
        part.mkdir(parents=True)
        duckdb.sql(
            f"SELECT 'p{index}' AS pod_id, 'Succeeded' AS state_public, 1.0 AS gpu_request, 1.0 AS used_gpu_hours,"
            f" 50.0 AS avg_gpu_sm_util, {ASI_MORE} LIMIT {min(jobs, 1)}"
        ).write_parquet(str(part / "part-000.parquet"))


ASI_MORE = (
    "'w' AS workload_id, 's' AS server_id, 'c' AS cluster_id, 'A10' AS gpu_spec_public, 'HP' AS priority_class,"
    " 'training' AS job_type_public, 4.0 AS cpu_request_cores, 12.0 AS avg_gpu_mem_gib, 60 AS schedule_delay_sec"
)


def _history(path: Path) -> None:
    nodes = (Node("n0", 8, None),)
    events = []
    for index in range(60):
        job = Job(f"j{index}", (index * 37) % 100, index)
        for time_ms, kind in (
            (job.submit_ms, EventKind.SUBMIT),
            (150, EventKind.START),
            (300, EventKind.FINISH),
        ):
            slots = () if kind is EventKind.SUBMIT else (GpuSlot(0, 0),)
            events.append(Event(time_ms, kind, job, 1, slots, job.share, Reason.NONE))
    write_records(records(events, nodes), path)


@pytest.fixture(params=formats.FORMATS)
def sample(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """A file of sixty jobs out of order, under a name that tells nothing."""
    name: str = request.param
    path = tmp_path / "some-file"
    if name == "history":
        _history(path)
    elif name == "asi":
        _hours(path)
    else:
        path.write_text(SAMPLES[name], "utf-8")
    return name, path


@pytest.fixture(params=SAMPLES)
def csv_sample(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """Like `sample`, for the formats that a CSV file can have."""
    path = tmp_path / "some-file"
    path.write_text(SAMPLES[request.param], "utf-8")
    return request.param, path


def test_the_format_is_known_by_its_header(sample: tuple[str, Path]) -> None:
    name, path = sample
    assert traces.read_trace(path).format == name


def test_jobs_come_in_order_of_submission_each_once(sample: tuple[str, Path]) -> None:
    _, path = sample
    jobs = list(traces.read(path))
    assert len({job.id for job in jobs}) == len(jobs) == 60
    assert [job.submit_ms for job in jobs] == sorted(job.submit_ms for job in jobs)


def test_the_file_order_can_be_had_and_holds_the_same_jobs(sample: tuple[str, Path]) -> None:
    name, path = sample
    in_file = list(traces.read(path, file_order=True))
    assert sorted(in_file, key=lambda job: job.submit_ms) == list(traces.read(path))
    if name not in ("history", "asi", "asi-spans"):  # the last has no times of submission
        assert in_file != list(traces.read(path))


def test_reading_twice_gives_the_same_jobs(sample: tuple[str, Path]) -> None:
    _, path = sample
    trace = traces.read_trace(path)
    assert list(trace.jobs()) == list(trace.jobs())


def test_a_table_has_the_same_jobs_however_often_it_is_asked(sample: tuple[str, Path]) -> None:
    trace = traces.read_trace(sample[1])
    table = trace.table(compress=2)
    assert list(table) == list(table) == list(trace.jobs(compress=2))


def test_gzip_is_known_by_its_first_bytes(csv_sample: tuple[str, Path]) -> None:
    _, path = csv_sample
    packed = path.with_name("packed")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert list(traces.read(packed)) == list(traces.read(path))


def test_every_column_of_the_header_is_needed(csv_sample: tuple[str, Path]) -> None:
    name, path = csv_sample
    rows = list(csv.reader(path.read_text("utf-8").splitlines()))
    if name == "swf":
        pytest.skip("its columns have no names in the file")
    for column in formats.FORMATS[name].header:
        at = rows[0].index(column)
        less = path.with_name("less")
        less.write_text("\n".join(",".join(row[:at] + row[at + 1 :]) for row in rows), "utf-8")
        with pytest.raises(TraceError):
            list(traces.read(less))


def test_a_header_without_rows_is_a_trace_without_jobs(sample: tuple[str, Path]) -> None:
    name, path = sample
    if name == "history":
        write_records((), path)
    elif name == "asi":
        path = path.with_name("empty")
        _hours(path, jobs=0)
    else:
        path.write_text(SAMPLES[name].splitlines()[0], "utf-8")
    assert list(traces.read(path)) == []


def test_a_converted_trace_holds_the_same_jobs(sample: tuple[str, Path]) -> None:
    _, path = sample
    out = path.with_name("converted.parquet")
    traces.write(traces.read(path), out)
    assert list(traces.read(out)) == list(traces.read(path))


def test_jobs_come_in_order_of_submission_and_those_of_one_time_as_the_file_has_them(tmp_path: Path) -> None:
    rows = [f"j{index},{index // 3},1" for index in range(7000)]
    path = tmp_path / "trace.csv"
    path.write_text("id,submit_ms,work_ms\n" + "\n".join(rows), "utf-8")
    assert [job.id for job in traces.read(path)] == [f"j{index}" for index in range(7000)]
    shuffled = rows[:600] + random.Random(1).sample(rows[600:], k=6400)
    path.write_text("id,submit_ms,work_ms\n" + "\n".join(shuffled), "utf-8")
    in_file_order = list(traces.read(path, file_order=True))
    assert [job.id for job in in_file_order] == [row.partition(",")[0] for row in shuffled]
    assert list(traces.read(path)) == sorted(in_file_order, key=lambda job: job.submit_ms)


def test_the_documentation_names_every_format(documentation: Callable[[str], str]) -> None:
    page = documentation("traces.md")
    for entry in formats.FORMATS.values():
        assert f"`{entry.name}`" in page
        assert ", ".join(entry.header) in page


def test_a_trace_is_recognised_once_and_opened_once_more_for_each_reading(
    sample: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, path = sample
    opened: list[str] = []
    recognised: list[str] = []
    open_file, recognise = Path.open, formats.format_of

    def opening(self: Path, *arguments: Any, **more: Any) -> Any:
        opened.append(str(self))
        return open_file(self, *arguments, **more)

    def recognising(table: Table) -> formats.Format:
        recognised.append(table.path)
        return recognise(table)

    monkeypatch.setattr(Path, "open", opening)
    monkeypatch.setattr(formats, "format_of", recognising)
    once = 0 if name == "asi" else 1  # DuckDB opens the files of a folder
    alone = list(traces.read(path))
    assert (opened.count(str(path)), len(recognised)) == (once, 1)
    trace = traces.read_trace(path)
    assert (trace.format, opened.count(str(path)), len(recognised)) == (name, 2 * once, 2)
    assert list(trace.jobs()) == list(traces.read(trace)) == alone
    assert (opened.count(str(path)), len(recognised)) == (4 * once, 2)


def test_a_file_that_has_become_one_of_another_format_is_told(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    path.write_text(SAMPLES["philly"])
    trace = traces.read_trace(path)
    path.write_text(SAMPLES["pai"])
    with pytest.raises(TraceError, match="the columns of 'philly', as it had when it was looked up"):
        list(trace.jobs())
