"""What sacct's text tells of steps, which belongs to their jobs."""

from __future__ import annotations

from pathlib import Path

from berth.history.importing.sacct import import_text
from berth.history.store.folder import open_history
from berth.history.store.import_result import Options
from tests.history import exports


def test_what_slurm_measured_of_steps_is_their_jobs(tmp_path: Path) -> None:
    header = exports.HEADER + "|TotalCPU|TRESUsageInTot|ConsumedEnergyRaw"
    requeued = {"Submit": "2026-01-02T00:00:00", "Start": "2026-01-02T00:10:00", "End": "2026-01-02T01:10:00"}
    a100 = "cpu=8,gres/gpu:a100-40=2,gres/gpu=2,mem=16G,node=1"
    usage = "cpu=00:00:07,energy=0,gres/gpumem={}M,gres/gpuutil={},mem={}K"
    rows = [
        exports.line(State="NODE_FAIL", AllocTRES=a100) + "|01:00:00.500||77",
        exports.line(JobIDRaw="1.batch") + "|1-00:00:00|" + usage.format(40960, 120, 10 * 1024 + 1) + "|0",
        exports.line(JobIDRaw="1.0") + "|10:00|" + usage.format(1024, 7, 1024) + "|0",
        exports.line(**requeued, AllocTRES=a100) + "|||18446744073709551614",
        exports.line(JobIDRaw="1.batch", **requeued) + "|10:00|" + usage.format(2048, 300, 5) + "|0",
    ]
    history = open_history(tmp_path / "h")
    import_text(history, exports.write(tmp_path / "f", rows, header), Options())
    assert [
        (r.cpu_used_ms, r.mem_peak_mib, r.energy_j, r.gpu_use_peak, r.gpu_mem_peak) for r in history.records()
    ] == [(3_600_500, 11, 77, 0.6, 0.5), (600_000, 1, None, 1.0, 0.025)]


def test_the_comment_of_a_step_is_that_of_its_job_if_the_job_has_none(tmp_path: Path) -> None:
    later = {"Submit": "2026-01-02T00:00:00", "Start": "2026-01-02T00:10:00", "End": "2026-01-02T01:10:00"}
    rows = [
        exports.line(JobIDRaw=1, Comment="", JobName="run.sh", State="NODE_FAIL"),
        exports.line(JobIDRaw="1.0", Comment="pytorch"),
        exports.line(JobIDRaw=1, Comment="", JobName="run.sh", **later),
        exports.line(JobIDRaw="1.0", Comment="vasp", **later),
        exports.line(JobIDRaw=2, Comment="own", JobName="run.sh"),
        exports.line(JobIDRaw="2.batch", Comment="vasp"),
        exports.line(JobIDRaw=3, Comment="", JobName="run.sh"),
    ]
    history = open_history(tmp_path / "h")
    result = import_text(history, exports.write(tmp_path / "f", rows), Options())
    assert (result.imported, result.rejected_count) == (4, 3)
    assert sorted((r.job_id, r.comment, r.application) for r in history.records()) == [
        ("1", "pytorch", "pytorch"),
        ("1", "vasp", "vasp"),
        ("2", "own", ""),
        ("3", "", ""),
    ]
