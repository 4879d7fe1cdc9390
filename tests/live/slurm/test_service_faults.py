"""What berth does beside a fake Slurm if something fails, is refused, or is changed behind its back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from berth.errors import LiveError, PolicyError, SchedulerError
from berth.live.driver.site import Gpu
from berth.live.slurm.controller import Controller
from berth.live.slurm.decisions import read_decisions
from berth.live.slurm.service import DECISIONS, lock
from berth.live.slurm.site import leaked_shards
from berth.model import Job
from berth.scheduler import Scheduler
from tests.live.slurm.fake_slurm import FakeSlurm
from tests.live.slurm.services import NOTE, events, service


def test_a_controller_that_is_away_changes_nothing(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.held("1")
    ours = service(slurm, tmp_path)
    ours.step()
    slurm.gone = True
    with pytest.raises(LiveError, match="does not answer"):
        ours.step()
    slurm.gone = False
    ours.step()
    assert [event for event, _, _ in events(tmp_path)] == ["placed", "started"]


def test_the_second_berth_gets_no_lock(tmp_path: Path) -> None:
    first = lock(tmp_path)
    with pytest.raises(LiveError, match="another berth runs with the state"):
        lock(tmp_path)
    first.close()
    lock(tmp_path).close()


def test_a_controller_that_goes_away_in_the_middle_of_changes_leaks_no_gpu(tmp_path: Path) -> None:
    slurm = FakeSlurm(gone_after=1)
    for job_id in "123":
        slurm.held(job_id)
    ours = service(slurm, tmp_path)
    ours.step()
    assert ours.driver.scheduler.cluster.running == {}
    told = [(each.event, each.job) for each in read_decisions(tmp_path / DECISIONS)]
    assert [job for event, job in told if event == "placed"] == ["1", "2", "3"]
    assert sorted(job for event, job in told if event == "taken-back") == ["1", "2", "3"]
    slurm.gone_after = None
    ours.step()
    ours.step()
    assert [slurm.jobs[job_id]["State"] for job_id in "123"] == ["RUNNING"] * 3


def test_a_log_that_cannot_be_written_places_nothing_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = FakeSlurm()
    slurm.held("1")
    ours = service(slurm, tmp_path)
    ours.step()
    ours.step()
    slurm.end("1")
    slurm.held("2")

    def full(path: Path, lines: object) -> None:
        raise LiveError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("berth.live.slurm.attempts.append", full)
        with pytest.raises(LiveError, match="No space"):
            ours.step()
    assert slurm.jobs["2"].get("State", "PENDING") == "PENDING"
    ours.step()
    assert events(tmp_path)[2:] == [("ended", "1", "node1"), ("placed", "2", "node1:0")]


def test_a_job_that_slurm_starts_by_itself_keeps_what_it_runs_with(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.held("1", Reason="None", PriorityLong="100", tres_per_node="gres:gpu:v100_0:1")
    slurm.jobs["1"]["admin_comment"] = f"{NOTE};share=300:500:0"
    slurm.begins["1"] = "hold"
    service(slurm, tmp_path).step()
    assert slurm.commands == ["hold 1", f"update JobId=1 ReqNodeList= AdminComment={NOTE}"]
    assert (
        slurm.jobs["1"]["admin_comment"] == f"{NOTE};share=300:500:0"
    )  # Slurm takes all of an update or nothing


def test_a_change_that_slurm_refuses_is_logged_once_and_tried_later(tmp_path: Path) -> None:
    slurm = FakeSlurm(refuses={"update JobId=1 ReqNodeList= TresPerNode": "Invalid gres"})
    slurm.held("1", OverSubscribe="NO")
    ours = service(slurm, tmp_path, patience_s=60.0)
    for _ in range(3):
        ours.step()
    told = [each for each in read_decisions(tmp_path / DECISIONS) if each.event == "given-up"]
    assert [each.why for each in told] == [
        "its request cannot be given back, and it is tried again later: Invalid gres"
    ]
    assert len([line for line in slurm.commands if line.startswith("update")]) == 1
    assert slurm.jobs["1"]["admin_comment"] == NOTE  # by which the watchdog finds it


def test_a_policy_that_runs_out_of_time_or_fails_loses_nothing_that_it_has_placed(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.held("1")
    slurm.held("2")
    ours = service(slurm, tmp_path, decide_s=0.0)
    for _ in range(3):
        ours.step()
    assert {slurm.jobs[job_id].get("State") for job_id in "12"} == {"RUNNING"}
    ours = service(slurm, tmp_path)
    slurm.held("3")
    ours.step()
    policy = ours.driver.scheduler.policy

    def fails(queue: object, cluster: object, now_ms: int) -> Iterator[object]:
        yield from policy(queue, cluster, now_ms)  # type: ignore[arg-type]
        raise RuntimeError("of the policy")

    slurm.held("4")
    ours.driver.scheduler.policy = fails  # type: ignore[assignment]
    with pytest.raises(PolicyError, match="of the policy"):
        ours.step()
    assert slurm.jobs["4"]["State"] == "RUNNING"


def test_a_job_that_makes_no_sense_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = FakeSlurm()
    slurm.held("1")
    slurm.held("2")
    ours = service(slurm, tmp_path)
    submit = Scheduler.submit

    def odd(scheduler: Scheduler, job: Job, *, ahead_of: Job | None = None) -> bool:
        if job.id == "1":
            raise SchedulerError("a job makes no sense: it is odd")
        return submit(scheduler, job, ahead_of=ahead_of)

    monkeypatch.setattr(Scheduler, "submit", odd)
    ours.step()
    assert slurm.jobs["2"]["State"] == "RUNNING"
    assert ours.why["1"] == "a job makes no sense: it is odd"


def test_a_job_whose_gpus_somebody_changed_before_its_release_is_not_released(tmp_path: Path) -> None:
    slurm = FakeSlurm(changes={"1": "gres:gpu:v100_1:2"})
    slurm.held("1")
    slurm.held("2")
    service(slurm, tmp_path).step()
    assert [line for line in slurm.commands if line.startswith("release")] == ["release 2"]
    told = [(each.event, each.why) for each in read_decisions(tmp_path / DECISIONS) if each.job == "1"]
    assert told == [
        ("placed", ""), ("taken-back", "its GPUs were changed before its release: gres:gpu:v100_1:2"),
    ]  # fmt: skip


def test_what_slurm_does_not_take_is_not_released(tmp_path: Path) -> None:
    slurm = FakeSlurm(refuses={"update JobId=1": "Invalid generic resource (gres) specification for job 1"})
    slurm.held("1")
    ours = service(slurm, tmp_path, patience_s=60.0)
    ours.step()
    assert not any(line.startswith("release") for line in slurm.commands)
    told = [(line.event, line.why) for line in read_decisions(tmp_path / DECISIONS)]
    assert told == [
        ("placed", ""), ("taken-back", "Invalid generic resource (gres) specification for job 1"),
    ]  # fmt: skip
    ours.step()
    assert ours.why["1"] == "it could not be started: Invalid generic resource (gres) specification for job 1"


def test_a_berth_that_begins_anew_takes_up_what_runs(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    for job_id in "12345":
        slurm.held(job_id)
    service(slurm, tmp_path).step()
    again = service(slurm, tmp_path)
    again.step()
    running = again.driver.scheduler.cluster.running
    assert sorted((job_id, tuple(run.slots)) for job_id, run in running.items()) == [
        ("1", ((0, 0),)), ("2", ((0, 1),)), ("3", ((1, 0),)), ("4", ((1, 1),)),
    ]  # fmt: skip
    assert again.driver.unplaced == {}
    slurm.end("3")
    again.step()
    assert slurm.commands[-1] == "release 5"
    assert "TresPerNode=gres:gpu:v100_0:1" in slurm.commands[-2]


def test_a_job_that_never_fits_holds_up_nobody_and_says_why(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.held("1", "gres:gpu:9")
    slurm.held("2")
    ours = service(slurm, tmp_path)
    ours.step()
    ours.step()
    assert "asks for 9 GPUs" in ours.why["1"]
    assert slurm.jobs["2"]["State"] == "RUNNING"


def test_a_gpu_of_which_slurm_counts_a_shard_that_no_job_has_is_left_to_jobs_that_take_a_part(
    tmp_path: Path,
) -> None:
    slurm = FakeSlurm(nodes={"node1": "IDLE"})
    for job_id in "12":
        slurm.held(job_id, "gres:shard:1")
    ours = service(slurm, tmp_path, card_mib={"v100": 1000})
    ours.step()
    slurm.used["node1"] = "gpu:v100_0:0(IDX:N/A),shard:v100_0:2(2/4)"
    for _ in range(5):
        ours.step()
    assert not ours.site.leaked, "two jobs have two shards"
    slurm.end("1")
    slurm.end("2")
    slurm.used, slurm.leaked = {}, {("node1", "v100_0")}
    for _ in range(4):
        ours.step()
    slurm.held("3")
    slurm.held("4", "gres:shard:2")
    slurm.held("5", "gres:gpu:2")
    ours.step()
    assert [slurm.jobs[job_id].get("tres_per_node") for job_id in "345"] == [
        "gres:gpu:v100_1:1", "gres:shard:v100_0:2", None,
    ]  # fmt: skip
    slurm.leaked.clear()
    slurm.end("3")
    slurm.end("4")
    for _ in range(5):
        ours.step()
    assert slurm.jobs["5"]["State"] == "RUNNING"


def test_a_shard_is_no_jobs_only_where_all_jobs_say_of_which_gpu_theirs_are(tmp_path: Path) -> None:
    slurm = FakeSlurm(nodes={"node1": "IDLE"}, leaked={("node1", "v100_0")})
    slurm.jobs["1"] = {
        "JobID": "1", "State": "RUNNING", "NodeList": "node1", "StartTime": "1500", "Partition": "other",
        "tres_alloc": "cpu=1,mem=500M,node=1,gres/shard=1", "tres_per_node": "gres:shard:1",
    }  # fmt: skip
    ours = service(slurm, tmp_path)
    ours.step()
    assert not ours.site.leaked


@pytest.mark.parametrize("gres", ["shard:v100_0:1", "gpu:t4:4,shard:v100_0:1,shard:v100_1:0"])
def test_a_node_with_fewer_shards_than_gpus_has_none_that_are_counted_by_gpu(gres: str) -> None:
    slurm = FakeSlurm(nodes={"node1": "IDLE"}, leaked={("node1", "v100_0")})

    def few(words: list[str], lines: str) -> str:
        return slurm(words, lines).replace("shard:v100_0:4,shard:v100_1:4", gres)

    nodes = Controller(few).nodes()  # type: ignore[arg-type]
    assert [(node.shards, len(node.used)) for node in nodes] == [(1, 2)]
    assert leaked_shards(nodes, ()) == {}


def test_a_gpu_whose_shards_slurm_has_lost_gets_no_job(tmp_path: Path) -> None:
    slurm = FakeSlurm(nodes={"node1": "IDLE"})

    def lost(words: list[str], lines: str) -> str:
        return slurm(words, lines).replace("shard:v100_0:4", "shard:v100_0:0")

    for job_id in "12":
        slurm.held(job_id, "gres:shard:2")
    slurm.held("3", "gres:shard:1")
    ours = service(lost, tmp_path, card_mib={"v100": 1000})  # type: ignore[arg-type]
    ours.step()
    assert ours.site.leaked == {Gpu("node1", 0): 4}
    assert [slurm.jobs[job_id].get("tres_per_node") for job_id in "123"] == [
        "gres:shard:v100_1:2", "gres:shard:v100_1:2", None,
    ]  # fmt: skip
