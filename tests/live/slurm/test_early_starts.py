"""Jobs that are handed to Slurm to start when others end: which, where, and what becomes of them otherwise."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from berth.errors import PolicyError
from berth.live.slurm.decisions import read_decisions
from berth.live.slurm.service import DECISIONS
from tests.live.slurm.fake_slurm import FakeSlurm
from tests.live.slurm.services import NOTE, service

WHOLE = f"AdminComment={NOTE};share=1000:0:0"


def soon(**settings: object) -> tuple[FakeSlurm, dict[str, object]]:
    """A cluster of one node, on which jobs may run for a minute, which is soon enough."""
    slurm = FakeSlurm(nodes={"node1": "IDLE"}, now_s=int(time.time()))
    plain = {"start_early_s": 120.0, "policy": "fifo+first-fit", "knowledge": "user", "patience_s": 30.0}
    return slurm, {**plain, **settings}


def running(slurm: FakeSlurm) -> list[str]:
    return [job for job, fields in slurm.jobs.items() if fields.get("State") == "RUNNING"]


def test_a_job_takes_a_gpu_over_from_the_next_to_end_and_slurm_starts_it(tmp_path: Path) -> None:
    slurm, settings = soon()
    for job in "123":
        slurm.held(job, TimeLimit="1:00")
    ours = service(slurm, tmp_path, **settings)
    ours.step()
    ours.step()
    assert running(slurm) == ["1", "2"]
    assert slurm.commands[-2:] == [
        f"update JobId=3 ReqNodeList=node1 TresPerNode=gres:gpu:v100_0:1 {WHOLE} Dependency=afterany:1", "release 3",
    ]  # fmt: skip
    assert ours.why["3"] == "placed on node1:0, to start when job 1 has ended"
    told = len(slurm.commands)
    for _ in range(3):  # nothing more to tell, and none is started where another runs
        ours.step()
    assert (len(slurm.commands), sorted(ours.driver.scheduler.cluster.running)) == (told, ["1", "2"])
    slurm.now_s += 30
    slurm.end("1")
    assert running(slurm) == ["2", "3"]  # before berth has looked
    slurm.held("4", TimeLimit="1:00:00")
    ours.step()
    ours.step()
    events = [(each.event, each.job, each.where, each.after) for each in read_decisions(tmp_path / DECISIONS)]
    assert events[5:] == [
        ("ended", "1", "node1", ""), ("started", "3", "node1:0", ""), ("placed", "4", "node1:1", "2"),
    ]  # fmt: skip


def test_no_job_waits_for_one_that_ends_late(tmp_path: Path) -> None:
    slurm, settings = soon()
    for job in "123":
        slurm.held(job, TimeLimit="1:00:00")
    ours = service(slurm, tmp_path, **settings)
    for _ in range(3):
        ours.step()
    assert not any("JobId=3" in line for line in slurm.commands)
    slurm.jobs["2"]["State"] = "COMPLETING"
    ours.step()
    assert "TresPerNode=gres:gpu:v100_1:1" in slurm.commands[-2]
    assert slurm.commands[-2].endswith(" Dependency=afterany:2")


def test_parts_that_fit_beside_what_runs_start_at_once_and_larger_ones_wait(tmp_path: Path) -> None:
    slurm, settings = soon(policy="priority+first-fit")
    for job, shards in (("1", 3), ("2", 3), ("3", 2), ("4", 1)):
        slurm.held(job, f"gres:shard:{shards}", TimeLimit="1:00")
    ours = service(slurm, tmp_path, **settings)
    ours.step()
    ours.step()
    told = [line for line in slurm.commands if line.startswith("update")]
    assert sorted(running(slurm)) == ["1", "2", "4"]
    assert [line.rpartition(" ")[2] for line in told if "JobId=3" in line] == ["Dependency=afterany:1"]
    assert not any("Dependency" in line for line in told if "JobId=4" in line)
    slurm.held("5", "gres:shard:2", TimeLimit="1:00")  # the first card is job 3's and job 4's to be
    ours.step()
    assert slurm.commands[-2].endswith(" Dependency=afterany:2")


def test_a_job_is_taken_back_if_the_one_before_it_does_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm, settings = soon(start_early_s=120.0, patience_s=0.0)
    for job in "123":
        slurm.held(job, TimeLimit="1:00")
    ours = service(slurm, tmp_path, **settings)
    ours.step()
    ours.step()
    later_s = time.time() + 121
    monkeypatch.setattr(time, "time", lambda: later_s)
    ours.step()
    note = f"{NOTE};failures=1;until={int(1000 * later_s)};why=it%20could%20not%20be%20started%3A%20job%201%20runs%20on"
    assert slurm.commands[-2:] == ["hold 3", f"update JobId=3 ReqNodeList= AdminComment={note} Dependency="]
    assert sorted(ours.driver.scheduler.cluster.running) == ["1", "2"]


@pytest.mark.parametrize("gone", ["3", "node"])
def test_a_job_that_is_cancelled_or_whose_node_drains_while_it_waits_leaves_the_other_where_it_runs(
    tmp_path: Path, gone: str
) -> None:
    slurm, settings = soon()
    for job in "123":
        slurm.held(job, TimeLimit="1:00")
    ours = service(slurm, tmp_path, **settings)
    ours.step()
    ours.step()
    if gone == "3":
        slurm.end("3", "CANCELLED")
    else:
        slurm.nodes["node1"] = "MIXED+DRAIN"
    for _ in range(4):
        ours.step()
    assert sorted(ours.driver.scheduler.cluster.running) == ["1", "2"]
    slurm.end("1")
    ours.step()
    assert [e.job for e in read_decisions(tmp_path / DECISIONS) if e.event == "ended" and e.start_ms] == ["1"]
    assert running(slurm) == ["2"]


def test_a_berth_that_begins_anew_takes_back_what_waits_for_an_end(tmp_path: Path) -> None:
    slurm, settings = soon()
    for job in "123":
        slurm.held(job, TimeLimit="1:00")
    ours = service(slurm, tmp_path, **settings)
    ours.step()
    ours.step()
    slurm.jobs["3"]["Dependency"] = "afterany:1(unfulfilled)"
    service(slurm, tmp_path, **settings).step()
    assert slurm.commands[-2:] == ["hold 3", f"update JobId=3 ReqNodeList= AdminComment={NOTE} Dependency="]


def test_what_waits_for_an_end_is_taken_back_if_the_policy_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm, settings = soon()
    for job in "123":
        slurm.held(job, TimeLimit="1:00")
    ours = service(slurm, tmp_path, **settings)
    ours.step()
    ours.step()
    slurm.jobs["3"]["Dependency"] = "afterany:1(unfulfilled)"

    def fails(now_ms: int, **more: object) -> None:
        raise PolicyError("of the policy")

    monkeypatch.setattr(ours.driver, "step", fails)
    said: list[str] = []
    over = iter((False, True, True))
    ours.run(said.append, until=lambda: next(over))
    assert said == ["of the policy"]
    ours.step()
    assert slurm.commands[-2:] == ["hold 3", f"update JobId=3 ReqNodeList= AdminComment={NOTE} Dependency="]
    assert sorted(ours.driver.scheduler.cluster.running) == ["1", "2"]


def test_a_job_that_its_user_lets_wait_for_another_is_not_made_to_wait_for_a_third(tmp_path: Path) -> None:
    slurm, settings = soon()
    for job in "12":
        slurm.held(job, TimeLimit="1:00")
    slurm.held("3", TimeLimit="1:00", Dependency="singleton(unfulfilled)")
    slurm.held("4", TimeLimit="1:00", Dependency="singleton(fulfilled)")
    ours = service(slurm, tmp_path, **settings)
    for _ in range(3):
        ours.step()
    assert not any("JobId=3" in line or "JobId=4" in line for line in slurm.commands)
