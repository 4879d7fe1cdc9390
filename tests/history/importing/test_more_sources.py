"""Sources beside Slurm's accounting and PBS: what they become, and what stays out with which reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from berth.cli.app import app
from berth.errors import HistoryError
from berth.history.importing import lsf, pods
from berth.history.importing.job_row import JobRow
from berth.history.importing.sacct import import_jobs, import_text
from berth.history.importing.series import import_series
from berth.history.store.folder import History, open_history
from berth.history.store.import_result import ImportResult, Options, Rejections
from berth.model import RecordState

BEGIN = 1_767_225_600  # 2026-01-01
Reader = Callable[[Path, Rejections], Iterator[JobRow]]


def taken(
    tmp_path: Path, reader: Reader, absent: tuple[str, ...], source: Path
) -> tuple[History, ImportResult]:
    history, rejections = open_history(tmp_path / "h"), Rejections()
    jobs = reader(source, rejections)
    return history, import_jobs(history, jobs, Options("c"), "it", rejections, absent)


def whys(result: ImportResult) -> list[str]:
    return [row.why for row in result.rejected]


def acct(
    job: int, *, status: int, exit_status: int, start: int, task: int = 0, gpus: str = "", name: str = ""
) -> str:
    """A JOB_FINISH of LSF 10.1, its fields as the configuration reference orders them."""
    head = f'"JOB_FINISH" "10.108" {BEGIN + 4000} {job} 1501 33554450 8 {BEGIN} 0 0 {start} "ann" "gpu" '
    asked = '"select[type == any]" "" "" "login" "/home/ann" "" "out" "" "1767225600.1" 0 2 "n1" "n1" '
    rest = (
        f'{status} 100.0 "{name}" "python ""train"".py" 60.5 2.5 112800 0 -1 0 0 1 4 0 9 3 -1 0 0 0 87 2 -1 '
    )
    return (
        head
        + asked
        + rest
        + f'"" "lab" {exit_status} 8 "" "" {task} 108544 0 "" "" "" "" 0 "rusage[{gpus}]" 0'
    )


def test_lsfs_accounting_file_becomes_records(tmp_path: Path) -> None:
    lines = [
        acct(1, status=64, exit_status=0, start=BEGIN + 400, gpus="ngpus_physical=2.00:mem=1", name="a b"),
        acct(2, status=32, exit_status=256, start=BEGIN + 400, task=3),
        acct(2, status=32, exit_status=9, start=0, task=4),
        acct(3, status=7, exit_status=0, start=BEGIN),
        acct(4, status=64, exit_status=0, start=BEGIN).replace(f"{BEGIN + 4000}", "soon"),
        '"JOB_FINISH" "10.1" 5',
        '"EVENT_ADRSV_FINISH" "10.1" 5',
        "something else",
    ]
    (tmp_path / "lsb.acct").write_text("\n".join(lines) + "\n")
    history, result = taken(tmp_path, lsf.lsf_rows, lsf.ABSENT, tmp_path / "lsb.acct")
    done, failed, never = sorted(history.records(), key=lambda each: each.job_id)
    assert (done.job_id, done.user, done.account, done.name, done.command) == (
        *("1", "ann", "lab", "a b", 'python "train".py'),
    )
    assert (done.gpus, done.cpu_milli, done.nodes, done.state) == (2, 8000, ("n1",), RecordState.COMPLETED)
    assert (done.queued_ms, done.start_ms, done.end_ms) == tuple(1000 * (BEGIN + at) for at in (0, 400, 4000))
    assert (done.cpu_used_ms, done.mem_peak_mib) == (63_000, 106)
    assert (failed.job_id, failed.state, failed.exit_code) == ("2_3", RecordState.FAILED, 1)
    assert (never.state, never.start_ms) == (RecordState.CANCELLED, None)
    assert result.rejected_count == 4
    assert "jStatus is 7; expected 32 or 64" in whys(result)[0]
    assert whys(result)[1].endswith("cannot be read: field 3 is 'soon'; expected a whole number")
    assert whys(result)[2] == "this JOB_FINISH has only 3 fields; the line may be cut off"
    assert whys(result)[3] == "not a record of lsb.acct, such as JOB_FINISH"


def pod(
    name: str,
    *,
    phase: str = "Succeeded",
    gpus: object = "2",
    cpu: str = "1500m",
    memory: str = "2Gi",
    **terminated: object,
) -> dict[str, Any]:
    ended = {
        "startedAt": "2026-01-01T00:10:00Z",
        "finishedAt": "2026-01-01T01:10:00Z",
        "exitCode": 0,
        **terminated,
    }
    resources = {
        "limits": {"nvidia.com/gpu": gpus},
        "requests": {"cpu": cpu, "memory": memory, "nvidia.com/gpu": gpus},
    }
    return {
        "metadata": {
            "name": name,
            "namespace": "lab",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"user": "ann"},
        },
        "spec": {"nodeName": "n1", "containers": [{"image": "pytorch:2", "resources": resources}]},
        "status": {"phase": phase, "containerStatuses": [{"state": {"terminated": ended}}]},
    }


def test_finished_pods_with_gpus_become_records_and_series_find_them_by_their_labels(tmp_path: Path) -> None:
    items = [
        pod("train"),
        pod("oom", phase="Failed", exitCode=137, reason="OOMKilled"),
        pod("runs", phase="Running"),
        pod("cpu", gpus="0"),
        pod("odd", gpus="many"),
        {"metadata": {"name": "x", "namespace": "y"}},
        "text",
    ]
    (tmp_path / "pods.json").write_text(json.dumps({"kind": "List", "items": items}))
    history, result = taken(tmp_path, pods.pod_rows, pods.ABSENT, tmp_path / "pods.json")
    assert (result.imported, result.rejected_count) == (2, 5)
    labels = 'gpu="0",Hostname="n1",namespace="monitoring",pod="dcgm-x",exported_namespace="lab",exported_pod="train"'
    lines = [f"DCGM_FI_DEV_GPU_UTIL{{{labels}}} 50 {1000 * (BEGIN + 600 + at)}" for at in range(0, 3600, 30)]
    (tmp_path / "series.txt").write_text("\n".join(lines) + "\n")
    import_series(history, [tmp_path / "series.txt"])
    killed, done = sorted(history.records(), key=lambda each: each.job_id)
    assert (done.job_id, done.name, done.user, done.account, done.nodes) == (
        *("lab/train", "train", "ann", "lab", ("n1",)),
    )
    assert (done.gpus, done.mem_mib, done.queued_ms, done.start_ms) == (
        2,
        2048,
        1000 * BEGIN,
        1000 * (BEGIN + 600),
    )
    assert done.gpu_use_mean == pytest.approx(0.5, abs=0.01)
    assert (killed.state, killed.exit_code, killed.gpu_use_mean) == (RecordState.OUT_OF_MEMORY, 137, None)
    (tmp_path / "pods.json").write_text('{"jobs": []}')
    with pytest.raises(HistoryError, match="holds no list 'items'"):
        taken(tmp_path, pods.pod_rows, pods.ABSENT, tmp_path / "pods.json")


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        ({"memory": "1e999"}, "something in it is of another kind than Kubernetes writes"),
        ({"memory": "1e99"}, "asks for more than any node has"),
        ({"cpu": "3G"}, "asks for more than any node has"),
        ({"gpus": 1e30}, "asks for more than any node has"),
        ({"gpus": 3_000_000_000}, "asks for more than any node has"),
    ],
)
def test_a_pod_of_an_impossible_quantity_stays_out_alone(
    tmp_path: Path, odd: dict[str, Any], why: str
) -> None:
    (tmp_path / "pods.json").write_text(json.dumps({"items": [pod("train"), pod("odd", **odd)]}))
    history, result = taken(tmp_path, pods.pod_rows, pods.ABSENT, tmp_path / "pods.json")
    assert ([each.job_id for each in history.records()], whys(result)) == (["lab/train"], [why])


def test_sacct_s_own_columns_tell_no_times_and_are_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_text(
        "JobID|JobName|Partition|Account|AllocCPUS|State|ExitCode\n7|a|p|b|1|COMPLETED|0:0\n"
    )
    with pytest.raises(
        HistoryError, match=r"the header has no column submit, start, end; .* Export with `sacct -P"
    ):
        import_text(open_history(tmp_path / "h"), tmp_path / "f", Options())


def test_a_dry_run_says_what_would_come_and_changes_nothing(tmp_path: Path) -> None:
    done = [acct(job, status=64, exit_status=0, start=BEGIN + 400) for job in (1, 2)]
    (tmp_path / "f").write_text("\n".join([*done, "half of a li", "ne"]) + "\n")
    words = ["import", "lsf", str(tmp_path / "f"), "--cluster", "c", "--history", str(tmp_path / "h")]
    dry = CliRunner().invoke(app, [*words, "--dry-run"])
    assert dry.exit_code == 0, dry.output
    assert not (tmp_path / "h").exists()
    assert dry.stdout.splitlines()[:3] == [
        "A dry run: this is what an import would do, and nothing was changed.",
        "read 4, imported 2, updated 0, unchanged 0, left out 2",
        "left out      2: not a record of lsb.acct, such as JOB_FINISH",
    ]
    assert CliRunner().invoke(app, words).exit_code == 0
    before = {path: path.read_bytes() for path in (tmp_path / "h").rglob("*") if path.is_file()}
    more = acct(3, status=64, exit_status=0, start=BEGIN + 400)
    (tmp_path / "f").write_text("\n".join([*done, more]) + "\n")
    again = CliRunner().invoke(app, [*words, "--dry-run", "--json"])
    assert (json.loads(again.stdout)["imported"], json.loads(again.stdout)["unchanged"]) == (1, 2)
    assert {path: path.read_bytes() for path in (tmp_path / "h").rglob("*") if path.is_file()} == before
    key = CliRunner().invoke(app, [*words, "--dry-run", "--pseudonymise", str(tmp_path / "key")])
    assert (key.exit_code, (tmp_path / "key").exists()) == (1, False)
