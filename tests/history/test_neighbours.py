"""With whom a job shared its GPUs, told long after it has ended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from berth.cluster import Cluster
from berth.engine import simulate
from berth.gpu_models import GPU_MODELS
from berth.history.importing.simulated import import_records
from berth.history.jobs.history_source import HistoryJobs
from berth.history.jobs.job_report import JobReport, job_reports, report_json
from berth.history.store.folder import open_history
from berth.history.store.import_result import Options
from berth.history.store.record_files import recorded, records, write_records
from berth.model import Job, Node, Record, RecordState, Share
from tests.history.histories import read_records

HERE = Node("n1", 2, GPU_MODELS["A100-80"], 8000, 64_000)


def record(job: str, start_ms: int, end_ms: int, *slots: str, attempt: int = 1) -> Record:
    return Record(
        job_id=job, attempt=attempt, user=f"user-{job}", application="", virtual_cluster="", submit_ms=0,
        queued_ms=attempt - 1, start_ms=start_ms, end_ms=end_ms, state=RecordState.COMPLETED, gpus=max(1, len(slots)),
        share=Share(500, 0), cpu_milli=0, mem_mib=0, nodes=("n1",), gpu_model="A100-80", work_ms=None,
        gpu_slots=slots,
    )  # fmt: skip


RECORDS = [
    record("1", 100, 200, "n1:0", "n1:1"),
    record("2", 0, 150, "n1:1"),  # began before it
    record("3", 199, 400, "n1:0"),  # began before its end
    record("4", 200, 300, "n1:0"),  # began at its end, beside 3
    record("5", 120, 180, "n2:0"),  # elsewhere
    record("6", 120, 180),  # its place is not known
]


@pytest.fixture(params=["one import", "an old file first"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A history of RECORDS; in one of the two, job 6 came from a berth that recorded no GPUs."""
    old, new = RECORDS[5:], RECORDS[:5]
    if request.param == "one import":
        old, new = [], RECORDS
    history = open_history(tmp_path / "history")
    for name, each in (("old", old), ("new", new)):
        if each:
            path = tmp_path / f"{name}.parquet"
            write_records(each, path)
            if name == "old":
                without = tmp_path / "without.parquet"
                duckdb.sql(f"COPY (SELECT * EXCLUDE gpu_slots FROM '{path}') TO '{without}'")
                path = without
            import_records(history, path, Options(cluster="here"))
    return tmp_path / "history"


def report(folder: Path, job: str) -> JobReport:
    (found,) = job_reports(HistoryJobs(open_history(folder)), job)
    return found


def beside(folder: Path, job: str) -> list[list[str] | None]:
    return [
        None
        if each["neighbours"] is None
        else [f"{other['job']}@{'+'.join(other['gpus'])}" for other in each["neighbours"]]
        for each in report_json(report(folder, job))["attempts"]
    ]


@pytest.mark.slow
def test_those_on_its_gpus_while_it_ran_were_beside_it(folder: Path) -> None:
    assert {job: beside(folder, job) for job in "123456"} == {
        "1": [["2@n1:1", "3@n1:0"]],
        "2": [["1@n1:1"]],
        "3": [["1@n1:0", "4@n1:0"]],
        "4": [["3@n1:0"]],
        "5": [[]],
        "6": [None],
    }


def test_each_attempt_has_its_own_company(tmp_path: Path) -> None:
    again = [record("1", 0, 10, "n1:0"), record("1", 20, 30, "n1:1", attempt=2)]
    others = [record("2", 0, 30, "n1:1"), record("3", 5, 6, "n1:0")]
    write_records([*again, *others], tmp_path / "made.parquet")
    import_records(open_history(tmp_path / "h"), tmp_path / "made.parquet", Options(cluster="here"))
    assert beside(tmp_path / "h", "1") == [["3@n1:0"], ["2@n1:1"]]


def test_a_simulation_records_the_gpus(tmp_path: Path) -> None:
    job = Job("1", 0, 1000, gpus=2)
    cpu_only = replace(job, id="2", gpus=0, cpu_milli=1000)
    events = list(simulate([job, cpu_only], Cluster([HERE]), "fifo"))

    found = {each.job_id: each.gpu_slots for each in records(events, [HERE])}
    assert found == {"1": ("n1:0", "n1:1"), "2": ()}
    for _ in recorded(iter(events), [HERE], tmp_path / "made.parquet"):
        pass
    assert {each.job_id: each.gpu_slots for each in read_records(tmp_path / "made.parquet")} == found
