"""What users read of a job that has ended, by berth's own log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from berth.cli.app import app
from berth.errors import LiveError
from berth.history.jobs.job_report import Wait, job_reports
from berth.live.slurm.decisions import ENDED, PLACED, STARTED, TAKEN_BACK, Decision, append
from berth.live.slurm.job_log import LoggedJobs, ending_lines, waits_of
from berth.live.slurm.measured_use import Result, keep, taken
from berth.live.slurm.service import DECISIONS
from berth.model import RecordState, Share

BEGIN_MS = 1_767_225_600_000


def job(raw: str, at_s: int = 0, **end: object) -> list[Decision]:
    """A job that is placed after 60 s, taken back, placed again on half a GPU, and runs for 1000 s."""
    at_ms = BEGIN_MS + 1000 * at_s
    plain = Decision(at_ms, "", raw, raw, submit_ms=at_ms, user="ann", application="train", gpus=1)
    run = replace(plain, start_ms=at_ms + 100_000)
    half = replace(plain, event=PLACED, milli=500, mem_mib=20480, where="n1:0")
    return [
        replace(half, at_ms=at_ms + 60_000),
        replace(plain, event=TAKEN_BACK, at_ms=at_ms + 90_000, why="Slurm: Licenses"),
        replace(half, at_ms=at_ms + 95_000),
        replace(run, event=STARTED, milli=500, where="n1:0", partition="gpu", limit_ms=7_200_000),
        replace(run, event=ENDED, end_ms=at_ms + 1_100_000, where="n1", state="COMPLETED", peak_mib=9000,
                card_mib=81920, **end),
    ]  # fmt: skip


def endings(lines: list[Decision], name: str) -> list[str]:
    jobs = LoggedJobs(lines)
    (report,) = job_reports(jobs, name)
    return list(ending_lines(jobs, report))


def test_a_user_reads_what_a_job_waited_for_used_and_would_have_needed() -> None:
    lines = job("7", gpu_ms=200_000) + job("8", at_s=500, gpu_ms=None)
    assert endings(lines, "7") == [
        "It waited:",
        "  60 s for room on GPUs, until berth placed it",
        "  30 s for Slurm to start it",
        "  5 s for another place, after Slurm: Licenses",
        "  5 s for Slurm to start it",
        "Its GPUs (#: used, :: promised):",
        "  memory  |###:::::......................| 8.8 GiB of 20.0 GiB, card 80.0 GiB",
        "  time    |######:::::::::...............| 20 % of 50 %",
        '0.3 of a GPU and 11 GiB of GPU memory would have done: sbatch --gres=gpu:1 --comment "gpu_mem=11G gpu_pct=30"',
        "When the next would start is not known: of such jobs 2 have started, and 20 must.",
    ]  # fmt: skip
    assert "Its compute was not measured, as it was not limited." in endings(lines, "8")


def test_no_more_compute_is_recommended_than_was_promised() -> None:
    """450 s of kernels in 1000 s, with a margin, are more than half a GPU."""
    (enough,) = [line for line in endings(job("7", gpu_ms=450_000), "7") if "would have done" in line]
    assert (enough.split(" and ")[0], enough.split()[-1]) == ("0.5 of a GPU", 'gpu_pct=50"')
    full = [
        replace(line, peak_mib=20000) if line.event == ENDED else line for line in job("7", gpu_ms=450_000)
    ]
    assert "What it was promised was about what it used." in endings(full, "7")


def test_the_next_start_is_estimated_by_such_jobs_alone() -> None:
    lines = [line for at in range(20) for line in job(str(at), at_s=2000 * at)]
    other = [replace(line, partition="other" if line.event == STARTED else "") for line in job("99")]
    assert endings(lines + other, "3")[-1] == (
        "Of the last 20 such jobs half started within 100 s, and 9 of 10 within 100 s."
    )
    assert "of such jobs 1 have started" in endings(lines + other, "99")[-1]


def test_a_job_that_ran_out_of_memory_has_two_attempts_and_a_neighbour() -> None:
    first = job("7")
    first[-1] = replace(first[-1], state="FAILED", refused=2)
    again = [replace(line, submit_ms=BEGIN_MS) for line in job("7", at_s=2000)]
    jobs = LoggedJobs([*first, *job("8", at_s=500), *again])
    (report,) = job_reports(jobs, "7")
    one, two = report.attempts
    assert (one.state, two.state) == (RecordState.OUT_OF_MEMORY, RecordState.COMPLETED)
    assert (one.attempt, two.attempt, two.queued_ms) == (1, 2, one.end_ms)
    assert (two.share, two.gpu_slots, two.gpu_use_mean) == (Share(500, 20480), ("n1:0",), None)
    assert (report.refused, [each.job for each in report.neighbours]) == (2, ["8"])
    assert waits_of(jobs.of("7")[1])[0] == Wait(960.0, "room on GPUs, until berth placed it")


def test_the_command_prints_the_report_or_says_where_else_to_look(tmp_path: Path) -> None:
    append(tmp_path / DECISIONS, job("7", gpu_ms=200_000))
    words = ["slurm", "report", "7", "--state", str(tmp_path)]
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 0
    assert said.stdout.startswith("Job 7: completed")
    assert "11 GiB of GPU memory would have done" in said.stdout
    assert '"gpu_use_mean": 0.2' in CliRunner().invoke(app, [*words, "--json"]).stdout
    with pytest.raises(LiveError, match="has no end of job 9"):
        CliRunner().invoke(app, ["slurm", "report", "9", "--state", str(tmp_path)], catch_exceptions=False)


def test_kernel_time_of_all_nodes_is_summed_and_absent_if_one_did_not_measure_it(tmp_path: Path) -> None:
    for raw, times in (("1", (5, 7)), ("2", (5, None))):
        for node, gpu_ms in zip("ab", times, strict=True):
            keep(tmp_path, Result(raw, node, 100, 0, 0, gpu_ms=gpu_ms))
    found = taken(tmp_path, ("1", "2"))
    assert {raw: result.gpu_ms for raw, result in found.items()} == {"1": 12, "2": None}
