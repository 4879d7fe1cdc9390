"""What ran on one machine, replayed: the replay of what happened is what happened."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from berth.errors import SettingError
from berth.experiments.recorded_run import keep_machine, recorded_run
from berth.gpu_models import GPU_MODELS
from berth.history.importing.simulated import import_records
from berth.history.store.folder import open_history
from berth.history.store.import_result import Options
from berth.history.store.record_files import write_records
from berth.model import Node, Record, RecordState, Share
from tests.command import berth

HERE = Node("here", 1, GPU_MODELS["A100-80"], 8000, 64_000)


def record(
    job_id: str, submit_ms: int, start_ms: int | None, end_ms: int, milli: int = 1000, attempt: int = 1
) -> Record:
    state = RecordState.COMPLETED if start_ms is not None else RecordState.CANCELLED
    return Record(
        job_id=job_id, attempt=attempt, user="ann", application="train", virtual_cluster="", submit_ms=submit_ms,
        queued_ms=submit_ms + attempt - 1, start_ms=start_ms, end_ms=end_ms, state=state, gpus=1,
        share=Share(milli, 1024), cpu_milli=1000, mem_mib=0, nodes=("here",), gpu_model="A100-80", work_ms=None,
    )  # fmt: skip


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Two jobs one after the other on one GPU by fifo, and one that was cancelled; the second ran twice."""
    origin = 1_700_000_000_000
    records = [
        record("1", origin, origin, origin + 10_000),
        record("2", origin + 1000, origin + 10_000, origin + 11_000),
        record("2", origin + 1000, origin + 11_000, origin + 31_000, attempt=2),
        record("3", origin + 2000, None, origin + 3000),
    ]
    write_records(records, tmp_path / "records.parquet")
    folder = tmp_path / "history"
    import_records(open_history(folder), tmp_path / "records.parquet", Options(cluster="here"))
    keep_machine(folder, [HERE], [(0, "fgd"), (origin - 5, "fifo"), (origin + 10**9, "sjf")])
    return folder


def test_jobs_work_as_long_as_their_last_attempt_and_are_beside_what_happened(history: Path) -> None:
    real = recorded_run(open_history(history))
    assert [(job.id, job.submit_ms, job.work_ms) for job in real.jobs] == [
        ("1", 0, 10_000),
        ("2", 1000, 20_000),
        ("3", 2000, 15_000),  # it was cancelled while it waited: its work is what is usual
    ]
    assert [job.patience_ms for job in real.jobs] == [None, None, 1000]
    assert (real.nodes, real.policy, real.left_out, real.gave_up) == ((HERE,), "fifo", 0, 1)
    assert (real.makespan_s, real.wait_mean_s) == (31.0, 5.0)


@pytest.mark.parametrize(
    ("gpus", "nodes", "parts"), [(16, ("a", "b"), 2), (16, ("a",), 1), (3, ("a", "b"), 0), (0, (), 0)]
)
def test_a_job_of_several_nodes_is_replayed_on_as_many(
    gpus: int, nodes: tuple[str, ...], parts: int, tmp_path: Path
) -> None:
    origin = 1_700_000_000_000
    ran = replace(record("1", origin, origin, origin + 10_000), gpus=gpus, nodes=nodes)
    write_records([ran], tmp_path / "records.parquet")
    import_records(open_history(tmp_path / "history"), tmp_path / "records.parquet", Options(cluster="here"))
    (job,) = recorded_run(open_history(tmp_path / "history"), nodes=[HERE]).jobs
    assert (job.gpus, job.nodes) == (gpus, parts)


def test_a_job_counts_from_when_it_could_have_started(history: Path, tmp_path: Path) -> None:
    origin = 1_700_000_000_000
    later = replace(
        record("4", origin, origin + 36_000, origin + 46_000), queued_ms=origin + 35_000
    )  # --begin
    write_records([later], tmp_path / "later.parquet")
    import_records(open_history(history), tmp_path / "later.parquet", Options(cluster="here"))
    real = recorded_run(open_history(history))
    assert [(job.id, job.submit_ms) for job in real.jobs] == [
        ("1", 0), ("2", 1000), ("3", 2000), ("4", 35_000),
    ]  # fmt: skip
    assert real.wait_mean_s == pytest.approx((0 + 10 + 1) / 3)


def test_what_a_start_takes_counts_as_work_and_what_a_job_waits_for_otherwise_does_not(
    tmp_path: Path,
) -> None:
    """Of two that start when one GPU becomes free, that which began last ends last, as it did."""
    origin = 1_700_000_000_000
    records = [
        record("1", origin, origin, origin + 10_000),
        record("2", origin, origin + 10_020, origin + 20_027, 500),
        record("3", origin, origin + 10_033, origin + 20_034, 500),
        record("4", origin, origin + 22_000, origin + 25_000),
    ]
    write_records(records, tmp_path / "records.parquet")
    folder = tmp_path / "history"
    import_records(open_history(folder), tmp_path / "records.parquet", Options(cluster="here"))
    keep_machine(folder, [HERE], [(0, "fifo")])
    real = recorded_run(open_history(folder))
    assert [(job.id, job.work_ms) for job in real.jobs] == [
        ("1", 10_000), ("2", 10_027), ("3", 10_034), ("4", 3_000),
    ]  # fmt: skip


def test_the_replay_of_what_ran_is_close_and_the_gap_of_others_is_told(history: Path) -> None:
    words = [
        "compare",
        "--from-history",
        "--history",
        str(history),
        "--since",
        "2023-01-01",
        "--policies",
        "fifo",
    ]
    told = json.loads(berth(*words, "--json").stdout)
    assert told["real"]["apart"] == [
        {"policy": "fifo", "makespan_pct": pytest.approx(-3.2, abs=0.1), "wait_pct": -10.0}
    ]
    shown = berth(*words).stdout
    assert "What really happened under fifo: makespan 31.0 s, mean wait 5.0 s." in shown
    assert "replay of fifo (the policy that ran): makespan 30.0 s (-3.2 %), mean wait 4.5 s (-0.5 s)" in shown


def test_the_policy_that_ran_is_always_replayed_and_short_jobs_are_told(history: Path) -> None:
    words = ["compare", "--from-history", "--since", "2023-01-01", "--policies", "sjf"]
    environment = {**os.environ, "BERTH_HISTORY": str(history)}
    done = berth(*words, env=environment)
    assert "replay of sjf:" in done.stdout
    assert "replay of fifo (the policy that ran):" in done.stdout
    assert "-0.0" not in done.stdout
    assert "of 2 jobs ran for less than 10 s" not in done.stderr


def test_the_policy_of_an_import_is_what_its_user_wrote_down(history: Path) -> None:
    (history / "policies.json").unlink()
    assert recorded_run(open_history(history)).policy == ""
    (history / "policies.json").write_text('[[0, "easy+fifo+best-fit"]]')
    assert recorded_run(open_history(history)).policy == "easy+fifo+best-fit"


def test_a_period_without_jobs_and_an_unknown_machine_are_refused(history: Path) -> None:
    with pytest.raises(SettingError, match="so there is nothing to replay: its jobs that ran are of"):
        recorded_run(open_history(history), since_ms=10**14)
    (history / "cluster.csv").unlink()
    with pytest.raises(SettingError, match="say with --cluster"):
        recorded_run(open_history(history))


def test_a_history_of_which_no_job_ran_is_refused_without_advice_on_periods(tmp_path: Path) -> None:
    write_records([record("1", 0, None, 1000)], tmp_path / "records.parquet")
    history = open_history(tmp_path / "history")
    import_records(history, tmp_path / "records.parquet", Options(cluster="here"))
    with pytest.raises(SettingError) as refused:
        recorded_run(history, nodes=[HERE])
    told = "the history has no job that ran, so there is nothing to replay; fill it with `berth import`"
    assert str(refused.value) == told


def test_a_trace_and_the_history_are_not_compared_at_once() -> None:
    done = berth("compare", "x.csv", "--from-history")
    assert done.returncode == 2
    assert (
        "compare replays either a TRACE or, with --from-history, what ran on this machine; got" in done.stderr
    )


def test_only_jobs_of_the_machine_are_replayed_and_not_those_imported_beside_them(
    history: Path, tmp_path: Path
) -> None:
    origin = 1_700_000_000_000
    others = [
        replace(record(name, origin, origin, origin + day, 1000), nodes=("far",), gpus=8)
        for name, day in (("1", 86_400_000), ("9", 1000))
    ]
    write_records(others, tmp_path / "others.parquet")
    import_records(open_history(history), tmp_path / "others.parquet", Options(cluster="made"))
    real = recorded_run(open_history(history))
    assert ([job.id for job in real.jobs], real.left_out, real.elsewhere) == (["1", "2", "3"], 0, 2)
    assert real.gpu_allocation_pct <= 100
    words = ["compare", "--from-history", "--since", "2023-01-01", "--policies", "fifo"]
    environment = {**os.environ, "BERTH_HISTORY": str(history)}
    told = berth(*words, env=environment)
    assert "2 jobs of other clusters are left out: only jobs of this machine are replayed." in told.stderr
    (history / "cluster.csv").write_text(
        (history / "cluster.csv").read_text(encoding="utf-8").replace("here", "gone"), encoding="utf-8"
    )
    with pytest.raises(SettingError, match="ran on none of the nodes of this machine"):
        recorded_run(open_history(history))
