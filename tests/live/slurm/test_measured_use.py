"""What Epilogs measured decides what the next job of an application counts for."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from berth.live.slurm import measured_use
from berth.live.slurm.decisions import ENDED, STARTED, Decision
from berth.live.slurm.measured_use import Kind, Measured, MeasuredUse, Result, keep
from berth.live.slurm.snapshot import read_status
from berth.model import Job, Share
from tests.live.slurm.fake_slurm import FakeSlurm
from tests.live.slurm.services import service

KIND = Kind("app", "ann", 8000)
JOB = Job("j", 0, None, user="ann", application="app", share=Share(200, 8000))


def measured(*attempts: tuple[int, int | None], memory: bool = True) -> MeasuredUse:
    """Attempts of `app` on one GPU that ran for 99 s: peak in MiB, and kernel time in ms."""
    use = MeasuredUse(memory=memory)
    for peak_mib, gpu_ms in attempts:
        use.ended(KIND, 99_000, peak_mib, gpu_ms, completed=True)
    return use


@pytest.mark.parametrize(
    ("attempts", "share"),
    [
        ((), Share(330, 8000)),  # half a GPU, of the 150 % that a GPU may be promised
        (((3200, None),), Share(330, 4032)),
        (((3200, 30_000),), Share(200, 4032)),  # 30 % of 150 %
        (((3200, 30_000),) * 4, Share(200, 3712)),  # the margin shrinks as measurements agree
        (((3200, 30_000), (1600, 60_000)), Share(400, 3840)),  # the most of each
        (((7900, 99_000),), Share(660, 8000)),  # never more memory than is asked for
        (((100, 0),), Share(10, 128)),
    ],
)
def test_a_job_counts_for_what_was_measured_of_its_application(
    attempts: tuple[tuple[int, int | None], ...], share: Share
) -> None:
    assert measured(*attempts).share(JOB) == share


def test_the_kinds_that_ended_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured_use, "MOST_KINDS", 2)
    use = MeasuredUse()
    for name in ("a", "b", "a", "c"):
        use.ended(KIND._replace(application=name), 99_000, 500, None, completed=True)
    assert [(each.application, each.attempts) for each in use.all()] == [("a", 2), ("c", 1)]
    assert [each.application for each in use.all(1)] == ["c"]


def test_memory_stays_as_asked_where_the_operator_says_so() -> None:
    assert measured((3200, 30_000), memory=False).share(JOB) == Share(200, 8000)


def test_an_attempt_that_failed_tells_its_memory_and_nothing_of_compute() -> None:
    use = MeasuredUse()
    use.ended(KIND, 99_000, 500, 90_000, completed=False)
    assert use.all() == [Measured(*KIND, 1, 500, None)]


def test_jobs_that_ask_for_other_memory_or_are_of_another_user_are_no_guide() -> None:
    use = measured((3200, 30_000))
    for other in (replace(JOB, share=Share(500, 20_000)), replace(JOB, user="bob")):
        assert use.share(other) == Share(330, other.share.mem_mib)


def test_a_berth_that_begins_anew_reads_what_was_measured_in_its_log() -> None:
    use = MeasuredUse()
    use.read([
        Decision(0, STARTED, "7", "7", user="ann", start_ms=0, gpus=1, mem_mib=8000, application="app"),
        Decision(0, STARTED, "8", "8", start_ms=0, gpus=2, application="other"),
        Decision(0, ENDED, "7", "7", start_ms=0, end_ms=99_000, state="COMPLETED", peak_mib=3200, gpu_ms=30_000),
        Decision(0, ENDED, "8", "8", start_ms=0, end_ms=99_000, state="COMPLETED", peak_mib=1, gpu_ms=1),
    ])  # fmt: skip
    assert use.all() == [Measured(*KIND, 1, 3200, 30)]


def test_the_next_job_of_an_application_is_placed_by_what_the_first_took(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.held("1", "gres:gpu:1", Comment="app gpu_mem=800M")
    ours = service(slurm, tmp_path, card_mib={"v100": 1000})
    ours.step()
    slurm.jobs["1"]["StartTime"] = str(slurm.now_s)
    ours.step()
    slurm.now_s += 99
    slurm.end("1")
    keep(tmp_path / "results", Result("1", "node1", 256, 0, 0, gpu_ms=30_000))
    slurm.held("2", "gres:gpu:1", Comment="app gpu_mem=800M")
    slurm.held("3", "gres:gpu:1", Comment="app gpu_mem=800M gpu_pct=50")
    ours.step()
    assert ours.site.use.all() == [Measured("wrap", "ann", 800, 1, 256, 30)]
    placed = {line.split()[1]: line for line in slurm.commands if "share=" in line}
    assert ";share=200:320:1" in placed["JobId=2"]
    assert ";share=500:800:0" in placed["JobId=3"]  # compute is promised, and memory with it
    shown = read_status(tmp_path)
    assert shown["counts"] == {
        "2": "320 MiB and 20 % of a GPU; such jobs took 256 MiB, 30 % of a GPU (the most of 1 attempt)"
    }
    assert shown["measured"] == [asdict(measured) for measured in ours.site.use.all()]
