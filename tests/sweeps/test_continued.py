"""Sweeps: what is finished is kept, an interruption loses nothing, a second call goes on, and Ray gives the same."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import pytest

from berth.errors import SettingError
from berth.experiments import sweep
from berth.experiments.compare import compare
from berth.experiments.kept import KeptRuns, digest
from berth.experiments.sweep import Task
from berth.outages import Recovery
from berth.traces import read_trace

BERTH = Path(sys.executable).parent / "berth"
TRACE = "synthetic:demo?jobs=60"
POLICIES = ["fifo+first-fit", "sjf+best-fit", "random"]


def test_a_kept_run_is_the_run(tmp_path: Path) -> None:
    first = compare(TRACE, POLICIES, seeds=2, keep=tmp_path)
    again = compare(TRACE, POLICIES, seeds=2, keep=tmp_path)
    assert again.to_dict() == first.to_dict()
    for one, other in zip(first.runs, again.runs, strict=True):
        assert one.timeline.waiting_mean.tolist() == other.timeline.waiting_mean.tolist()
        assert [seen.used_milli.tolist() for seen in one.occupancies] == [
            seen.used_milli.tolist() for seen in other.occupancies
        ]


def test_duckdb_reads_the_runs_as_one_dataset(tmp_path: Path) -> None:
    result = compare(TRACE, POLICIES, seeds=2, keep=tmp_path)
    rows = duckdb.sql(
        f"SELECT policy, seed, finished, waiting_time_s_mean FROM '{tmp_path}/runs/*.parquet' ORDER BY ALL"
    ).fetchall()
    assert rows == sorted(
        (run.policy, run.seed, run.summary.finished, run.summary.waiting_time_s.mean) for run in result.runs
    )


def test_only_what_is_missing_or_under_other_conditions_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[str, int]] = []
    original = sweep.run_task

    def counted(task: Task, *rest: object) -> object:
        ran.append((task.policy, task.seed))
        return original(task, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(sweep, "run_task", counted)
    compare(TRACE, POLICIES[:2], keep=tmp_path)
    compare(TRACE, POLICIES, seeds=2, keep=tmp_path)
    assert ran == [
        ("fifo+first-fit", 0),
        ("sjf+best-fit", 0),
        ("random", 0),
        *((name, 1) for name in POLICIES),
    ]
    ran.clear()
    compare(TRACE, POLICIES[:1], compress=2, keep=tmp_path)
    compare(TRACE, POLICIES[:1], compress=2, recovery=Recovery(1000), keep=tmp_path)
    assert len(ran) == 2
    (tmp_path / "runs" / next((tmp_path / "runs").iterdir()).name).write_bytes(b"damaged")
    compare(TRACE, POLICIES, seeds=2, keep=tmp_path)
    assert len(ran) > 2


def test_the_digest_tells_conditions_and_files_apart(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("id,submit_ms,work_ms\na,0,1\n")
    task = Task(read_trace(path), (), "fifo", 0)
    before = digest(task)
    path.write_text("id,submit_ms,work_ms\na,0,12\n")
    assert digest(task) != before
    assert KeptRuns(tmp_path).load(task) is None


@pytest.mark.slow
def test_an_interrupted_sweep_is_continued(tmp_path: Path) -> None:
    command = [
        *(
            str(BERTH),
            "compare",
            "synthetic:philly-like?jobs=8000&load=1.3",
            "--out",
            str(tmp_path),
            "--json",
        ),
        *("--policies", "fifo+first-fit,sjf+best-fit", "--seeds", "4", "--jobs", "2"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    give_up = time.monotonic() + 120
    while not list(tmp_path.glob("runs/*.parquet")) and time.monotonic() < give_up:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=30)
    kept = len(list(tmp_path.glob("runs/*.parquet")))
    assert (process.returncode, out) == (130, "")
    assert f"{kept} finished runs are in" in errors
    assert 1 <= kept < 8
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*.parquet")}
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert len(json.loads(done.stdout)["runs"]) == 8
    assert len(list(tmp_path.glob("runs/*.parquet"))) == 8
    assert {path: path.stat().st_mtime_ns for path in times} == times


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "nowhere.invalid:6379"])
def test_a_ray_address_that_does_not_answer_is_told_within_ten_seconds(address: str) -> None:
    begin = time.monotonic()
    with pytest.raises(SettingError, match="no Ray cluster answers at"):
        compare(TRACE, "fifo", ray=address)
    assert time.monotonic() - begin < 10
    with pytest.raises(SettingError, match="is no address of a Ray cluster"):
        compare(TRACE, "fifo", ray="here")


@pytest.mark.slow
def test_ray_gives_what_one_process_gives(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed; pip install 'berth[ray]'")
    command = [str(BERTH), "compare", TRACE, "--policies", ",".join(POLICIES), "--seeds", "2", "--json"]
    here = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200)
    there = subprocess.run(
        [*command, "--ray", "local"], capture_output=True, text=True, check=True, timeout=200
    )
    assert json.loads(there.stdout) == json.loads(here.stdout)
