"""Heterogeneous jobs beside a fake Slurm: their components wait and start as one, on different nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from berth.live.slurm.measured_use import Result, keep
from tests.live.slurm.fake_slurm import FakeSlurm
from tests.live.slurm.services import events, service

NOTE = "berth:1;node={};job=;task=;share={};part={}"


def started(slurm: FakeSlurm) -> dict[str, tuple[object, object]]:
    return {
        str(job["JobArrayID"]): (job["NodeList"], job.get("tres_per_node"))
        for job in slurm.jobs.values()
        if job.get("State") == "RUNNING"
    }


def test_components_start_together_on_different_nodes_with_their_own_gpus(tmp_path: Path) -> None:
    slurm = FakeSlurm(nodes={"node1": "IDLE", "node2": "IDLE", "node3": "IDLE"})
    slurm.held_components("", "gres:gpu:2", "gres:gpu:1")
    ours = service(slurm, tmp_path)
    ours.step()
    found = started(slurm)
    assert sorted(str(node) for node, _ in found.values()) == ["node1", "node2", "node3"]
    assert [gres for _, gres in found.values()] == [
        "", "gres:gpu:v100_0:1,gres:gpu:v100_1:1", "gres:gpu:v100_0:1",
    ]  # fmt: skip
    assert [slurm.jobs[number]["admin_comment"] for number in "123"] == [
        NOTE.format("", "1000:0:0", 0), NOTE.format("gres:gpu:2", "1000:0:0", 1),
        NOTE.format("gres:gpu:1", "1000:0:0", 2),
    ]  # fmt: skip
    # All are changed before any is released, the first one before the others: Slurm changes these with it.
    changes = [line.split()[:2] for line in slurm.commands if not line.startswith("hold")]
    assert changes == [["update", f"JobId={number}"] for number in "123"] + [["release", "1"]]
    ours.step()
    assert {job for event, job, _ in events(tmp_path) if event == "started"} == {"1+0", "1+1", "1+2"}


def test_components_wait_as_one_gang_for_nodes_of_their_own(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.held("9", "gres:gpu:2")
    ours = service(slurm, tmp_path)
    ours.step()
    slurm.held_components("gres:gpu:1", "gres:gpu:1", SubmitTime="3000")
    ours.step()
    assert {ours.why[job_id] for job_id in ("1+0", "1+1")} == {"waits for room for 2 tasks of gang 1"}
    slurm.end("9")
    ours.step()
    assert sorted(str(node) for node, _ in started(slurm).values()) == ["node1", "node2"]
    slurm.end("1")
    slurm.held_components("gres:gpu:1", "gres:gpu:1", "gres:gpu:1", first=20, SubmitTime="3000")
    ours.step()
    assert "on different nodes, and the nodes could not hold them if nothing else ran" in ours.why["20+1"]


def test_no_component_is_released_if_one_is_refused_its_gpus(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.held_components("gres:gpu:1", "gres:gpu:1")
    slurm.refuses["update JobId=2 ReqNodeList=node"] = "Invalid generic resource"
    ours = service(slurm, tmp_path)
    ours.step()
    assert not any(line.startswith("release") for line in slurm.commands)
    ours.step()
    assert not ours.driver.scheduler.cluster.running
    assert ours.why["1+0"] == ours.why["1+1"] == "it could not be started: Invalid generic resource"
    slurm.refuses.clear()
    for _ in range(3):
        slurm.now_s += 1
        ours.step()
    assert set(started(slurm)) == {"1+0", "1+1"}


def test_components_that_slurm_does_not_start_are_all_held_again(tmp_path: Path) -> None:
    slurm = FakeSlurm(starts=False)
    slurm.held_components("gres:gpu:1", "gres:gpu:1")
    ours = service(slurm, tmp_path)
    ours.step()
    del slurm.commands[:]
    for job in slurm.jobs.values():
        job["Reason"] = "AssocMaxJobsLimit"
    ours.step()
    assert {job_id: (job["PriorityLong"], job["Reason"]) for job_id, job in slurm.jobs.items()} == {
        "1": ("0", "JobHeldAdmin"), "2": ("0", "JobHeldAdmin"),
    }  # fmt: skip
    assert slurm.jobs["1"]["excluded"] == slurm.jobs["2"]["excluded"] == slurm.jobs["2"]["ReqNodes"] == ""


@pytest.mark.parametrize("last", ["1", "2"])
def test_a_component_that_runs_out_of_memory_has_all_queued_again_and_gets_more(
    tmp_path: Path, last: str
) -> None:
    slurm = FakeSlurm()
    slurm.held_components("gres:gpu:1", "gres:gpu:1", Comment="gpu_mem=200M gpu_pct=30")
    ours = service(slurm, tmp_path, card_mib={"v100": 1000})
    for _ in range(2):
        ours.step()
    keep(tmp_path / "results", Result("2", "node2", 200, 1, 300))
    slurm.end("1", "FAILED")
    slurm.jobs[last]["State"] = "COMPLETING"  # they do not end at the same moment
    ours.step()
    if slurm.jobs[last]["State"] == "COMPLETING":
        slurm.jobs[last]["State"] = "FAILED"
    ours.step()
    assert [line for line in slurm.commands if line.startswith("requeue")] == ["requeuehold 1"]
    assert "retries=1;needs=" in str(slurm.jobs["2"]["admin_comment"])
    assert "retries" not in str(slurm.jobs["1"]["admin_comment"])
    slurm.now_s += 1000
    for job in slurm.jobs.values():
        job["StartTime"] = "N/A"
    for _ in range(2):
        ours.step()
    assert set(started(slurm)) == {"1+0", "1+1"}


def test_a_heterogeneous_job_that_berth_does_not_hold_whole_is_slurms(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.held_components("gres:gpu:1", "gres:gpu:1")
    slurm.jobs["2"] |= {"admin_comment": "", "Reason": "None", "PriorityLong": "100", "Partition": "other"}
    slurm.held_components("", "", first=5)
    ours = service(slurm, tmp_path)
    ours.step()
    given = {job: event for event, job, _ in events(tmp_path)}
    assert given == dict.fromkeys(("1+0", "5+0", "5+1"), "given-back")
    assert "release 1" in slurm.commands
    assert "release 5" in slurm.commands
    assert slurm.jobs["1"]["tres_per_node"] == "gres:gpu:1"


def test_a_component_that_another_berth_holds_gets_its_gpus_back_before_all_are_released(
    tmp_path: Path,
) -> None:
    slurm = FakeSlurm()
    slurm.held_components("gres:gpu:1", "gres:gpu:2")
    slurm.jobs["2"]["Partition"] = "other"
    service(slurm, tmp_path).step()
    assert [slurm.jobs[number]["tres_per_node"] for number in "12"] == ["gres:gpu:1", "gres:gpu:2"]
    updates = [
        line.split()[1] for line in slurm.commands if line.startswith("update") and "TresPerNode" in line
    ]
    assert updates == ["JobId=1", "JobId=2"]
    assert [line for line in slurm.commands if line.startswith("release")] == ["release 1"]


def test_components_that_are_queued_again_unheld_are_held_and_placed_anew(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.held_components("gres:gpu:1", "gres:gpu:1")
    ours = service(slurm, tmp_path)
    for _ in range(2):
        ours.step()
    for job in slurm.jobs.values():  # as after the loss of a node
        job |= {"State": "PENDING", "Reason": "None", "NodeList": "", "StartTime": "N/A", "RestartCnt": "1"}
    del slurm.commands[:]
    ours.step()
    assert [line.split()[:2] for line in slurm.commands] == [
        ["hold", "1"], ["update", "JobId=1"], ["hold", "2"], ["update", "JobId=2"],
    ]  # fmt: skip
    ours.step()
    assert set(started(slurm)) == {"1+0", "1+1"}
    assert [(job, event) for event, job, _ in events(tmp_path) if event == "taken-back"] == [
        ("1+0", "taken-back"), ("1+1", "taken-back"),
    ]  # fmt: skip
