"""Whose use of a GPU is whose, and how a process is tied to its job."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth.sampling.readings import GpuReading, JobUse, ProcessReading, uses
from berth.sampling.sampler import allotments, job_of_process, jobs_present

GIB = 2**30


def gpu(
    *processes: ProcessReading, index: int = 0, use: float | None = 50.0, used_gib: float = 8
) -> GpuReading:
    return GpuReading(
        index, f"GPU-{index}", 16 * GIB, round(used_gib * GIB), use, 20.0, 1000.0, 200_000.0, processes
    )


def test_a_job_alone_on_a_gpu_has_what_the_card_shows() -> None:
    (found,) = uses([gpu(ProcessReading(10, 7 * GIB, 30.0))], {10: "1"}, {})
    assert found == JobUse("1", 1, 0.5, 0.5, 0.2, 1000.0, 200_000.0, 0.5, 0.5)


def test_jobs_that_share_a_gpu_have_each_their_own_part() -> None:
    processes = (
        ProcessReading(10, 4 * GIB, 30.0),
        ProcessReading(11, 2 * GIB, 0.0),
        ProcessReading(20, GIB, 10.0),
    )
    one, other = uses([gpu(*processes, use=80.0)], {10: "1", 11: "1", 20: "2"}, {})
    assert (one.job_id, one.gpus, one.use, one.mem) == ("1", 1, pytest.approx(0.6), 6 / 16)
    assert (other.job_id, other.gpus, other.use, other.mem) == ("2", 1, pytest.approx(0.2), 1 / 16)
    assert one.power_mw == pytest.approx(150_000.0)


def test_a_gpu_that_a_job_was_given_and_leaves_idle_counts() -> None:
    readings = [gpu(ProcessReading(10, GIB, 50.0)), gpu(index=1, use=0.0, used_gib=0)]
    (found,) = uses(readings, {10: "1"}, {"1": (0, 1)})
    assert (found.gpus, found.use, found.mem) == (2, 0.5, 0.5)


def test_what_nobody_tells_is_absent_and_processes_of_nobody_take_their_part() -> None:
    (silent,) = uses([gpu(ProcessReading(10), use=None)], {10: "1"}, {})
    assert (silent.use, silent.use_peak, silent.mem) == (None, None, 0.5)
    (found,) = uses([gpu(ProcessReading(10, GIB, 20.0), ProcessReading(99, GIB, 20.0))], {10: "1"}, {})
    assert (found.use, found.mem) == (pytest.approx(0.25), 1 / 16)
    assert uses([], {}, {}, present={"7"}) == [JobUse("7", 0, None, None, None, None, None, None, None)]


def test_a_process_that_holds_nothing_on_another_gpu_adds_no_gpu() -> None:
    both = [gpu(ProcessReading(10, GIB, 50.0)), gpu(ProcessReading(10, 0, 0.0), index=1, use=0.0)]
    (found,) = uses(both, {10: "1"}, {})
    assert (found.gpus, found.use, found.mem) == (1, 0.5, 0.5)
    (told,) = uses(both, {10: "1"}, {"1": (0, 1)})
    assert told.gpus == 2  # it was given both
    untold = [gpu(ProcessReading(10, 0)), gpu(ProcessReading(10, 0), index=1)]
    (found,) = uses(untold, {10: "1"}, {})
    assert found.gpus == 2  # a driver that tells 0 bytes of everything tells nothing


@given(
    use=st.floats(0, 100),
    parts=st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 100), st.integers(0, 4)), max_size=6),
)
def test_parts_never_add_up_to_more_than_the_card(use: float, parts: list[tuple[str, float, int]]) -> None:
    processes = tuple(ProcessReading(pid, mem * GIB // 2, sm) for pid, (_, sm, mem) in enumerate(parts))
    found = uses(
        [gpu(*processes, use=use, used_gib=16)], {pid: job for pid, (job, _, _) in enumerate(parts)}, {}
    )
    assert sum(each.use or 0 for each in found) <= use / 100 + 1e-9
    assert sum(each.mem or 0 for each in found) <= 1 + 1e-9
    assert {each.job_id for each in found} == {job for job, _, _ in parts}


@pytest.mark.parametrize(
    ("cgroup", "environment", "job"),
    [
        ("0::/system.slice/slurmstepd.scope/job_123/step_0/user/task_0\n", b"", "123"),
        ("5:devices:/slurm/uid_1000/job_77/step_batch\n4:cpu:/\n", b"", "77"),
        ("0::/pbs_jobs.service/jobid/12.server\n", b"", "12.server"),
        ("0::/user.slice\n", b"A=1\0SLURM_JOB_ID=9\0B=2", "9"),
        ("0::/user.slice\n", b"XSLURM_JOB_ID=9\0", ""),
    ],
)
def test_a_process_is_tied_to_its_job(tmp_path: Path, cgroup: str, environment: bytes, job: str) -> None:
    (tmp_path / "42").mkdir()
    (tmp_path / "42" / "cgroup").write_text(cgroup)
    (tmp_path / "42" / "environ").write_bytes(environment)
    assert job_of_process(42, tmp_path) == job
    assert job_of_process(43, tmp_path) == ""


def test_a_prolog_and_cgroups_tell_who_is_there(tmp_path: Path) -> None:
    (tmp_path / "12").write_text("gpus=0,3\nuser=ann\n")
    (tmp_path / "13").write_text("gpus=\n")
    (tmp_path / "bad name").write_text("gpus=1\n")
    assert allotments(tmp_path) == {"12": (0, 3), "13": ()}
    assert allotments(tmp_path / "none") == allotments(None) == {}
    for folder in ("system.slice/slurmstepd.scope/job_1/step_0", "memory/slurm/uid_5/job_2", "user.slice"):
        (tmp_path / "cgroup" / folder).mkdir(parents=True)
    assert jobs_present(tmp_path / "cgroup") == {"1", "2"}
