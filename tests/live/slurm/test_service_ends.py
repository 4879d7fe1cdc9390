"""What berth says and does of jobs that have begun or ended, beside a fake Slurm: each start and end once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from berth.errors import LiveError
from berth.live.driver.driver import Round
from berth.live.slurm.controller import forgotten_after_s
from berth.live.slurm.decisions import read_decisions
from berth.live.slurm.measured_use import Result, keep
from berth.live.slurm.service import DECISIONS
from tests.live.slurm.fake_slurm import FakeSlurm
from tests.live.slurm.services import NOTE, events, service


def test_a_job_that_ran_out_of_gpu_memory_is_queued_again_with_what_it_needs_and_then_told(
    tmp_path: Path,
) -> None:
    slurm = FakeSlurm()
    slurm.held("1", "gres:gpu:1", Comment="gpu_mem=200M")
    ours = service(slurm, tmp_path, retries=1, card_mib={"v100": 1000})
    for attempt, needs in ((1, 300), (2, 400)):
        ours.step()
        ours.step()
        slurm.end("1", "FAILED")
        keep(tmp_path / "results", Result("1", "node1", 250, 1, needs))
        ours.step()
        if attempt == 1:
            assert slurm.commands[-3:] == [
                "requeuehold 1", "hold 1",
                f"update JobId=1 ReqNodeList= AdminComment={NOTE};retries=1;needs=337 StartTime=now+125",
            ]  # fmt: skip
    assert any(";share=330:337:1;retries=1;needs=337" in line for line in slurm.commands)
    told = [each for each in read_decisions(tmp_path / DECISIONS) if each.event == "given-up"]
    assert [each.why for each in told] == [
        "it ran out of GPU memory 2 times, and needs 400 MiB of each GPU: ask for gpu_mem=400M"
    ]
    assert list((tmp_path / "results").iterdir()) == []


def test_a_job_that_is_queued_again_begins_only_when_its_nodes_have_forgotten_it_and_holds_no_gpu_meanwhile(
    tmp_path: Path,
) -> None:
    """slurmd runs no Prolog for a job whose credential it still knows, so that it would have no partition."""
    slurm = FakeSlurm(
        nodes={"node1": "IDLE"}, now_s=int(time.time()), auth_info="socket=/run/munge,cred_expire=30"
    )
    slurm.held("1", "gres:gpu:2")
    ours = service(slurm, tmp_path, card_mib={"v100": 1000})
    ours.step()
    ours.step()
    slurm.end("1", "FAILED")
    keep(tmp_path / "results", Result("1", "node1", 250, 1, 300))
    slurm.held("2", "gres:gpu:2")
    ours.step()
    assert slurm.jobs["1"]["StartTime"] == str(slurm.now_s + 35)
    assert slurm.jobs["2"]["State"] == "RUNNING"
    slurm.end("2")
    ours.step()
    begins = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(slurm.now_s + 35))
    assert ours.why["1"] == (
        f"BeginTime: it begins at {begins} at the earliest; it was queued again, and Slurm runs no Prolog for it on a"
        " node that still knows the attempt before"
    )
    assert ours.driver.scheduler.cluster.running == {}
    slurm.jobs["1"]["StartTime"] = "N/A"  # what Slurm shows when that time has come
    ours.step()
    assert slurm.jobs["1"]["State"] == "RUNNING"


def test_a_job_that_a_slurmctld_forgot_to_have_ended_is_told_once_for_its_one_start(tmp_path: Path) -> None:
    """What slurmctld had not saved when it was killed is told otherwise by the one that takes over."""
    slurm = FakeSlurm()
    slurm.held("1", NumNodes="2", request="gres:gpu:2")
    ours = service(slurm, tmp_path)
    for _ in range(2):
        ours.step()
    ran = dict(slurm.jobs["1"])
    slurm.end("1")
    ours.step()
    slurm.jobs["1"] = ran | {"State": "COMPLETING"}
    slurm.held("2")
    for _ in range(2):
        ours.step()
    assert (
        slurm.jobs["2"].get("State", "PENDING") == "PENDING"
    )  # as long as Slurm says so the job has its GPUs
    slurm.end("1")
    for _ in range(2):
        ours.step()
    assert sorted(ours.driver.scheduler.cluster.running) == ["2"]
    # A task that has to run again has another start, and is told.
    slurm.jobs["1"] |= {"State": "RUNNING", "StartTime": "3000", "EndTime": "N/A"}
    ours.step()
    told = [(each.event, each.job, each.start_ms) for each in read_decisions(tmp_path / DECISIONS)]
    assert [each for each in told if each[0] in ("started", "ended") and each[1] == "1"] == [
        ("started", "1", 2_000_000), ("ended", "1", 2_000_000), ("started", "1", 3_000_000),
    ]  # fmt: skip


def test_a_job_whose_prolog_could_not_make_its_partition_is_told(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.held("1")
    ours = service(slurm, tmp_path)
    ours.step()
    ours.step()
    slurm.end("1", "FAILED")
    keep(tmp_path / "results", Result("1", "node1", 0, 0, 0, closed=True))
    ours.step()
    (ended,) = (each for each in read_decisions(tmp_path / DECISIONS) if each.event == "ended")
    assert ended.why == "a Prolog could not make its GPU partition, so that it got no GPU there"
    assert not any(line.startswith("requeuehold") for line in slurm.commands)


@pytest.mark.parametrize(
    ("auth_info", "after_s"),
    [
        ("(null)", 125),
        ("socket=/run/munge/munge.socket.2", 125),
        ("cred_expire=5", 10),
        ("ttl=60,cred_expire=600", 605),
        ("cred_expire=4", 125),  # which Slurm refuses, and takes its default for
    ],
)
def test_an_attempt_is_forgotten_when_its_credential_has_expired(auth_info: str, after_s: int) -> None:
    assert forgotten_after_s({"AuthInfo": auth_info}) == after_s


def test_a_job_that_began_and_ended_between_two_looks_is_told_all_the_same(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.jobs["1"] = {"JobID": "1", "tres_per_node": "gres:gpu:1", "Reason": "Resources"}
    slurm.jobs["2"] = {"JobID": "2", "tres_per_node": "gres:gpu:1", "Reason": "Resources"}
    ours = service(slurm, tmp_path, places=False, partitions=frozenset())
    ours.step()
    slurm.jobs["1"] |= {"NodeList": "node2", "StartTime": "1800"}
    slurm.end("1")
    slurm.end("2", "CANCELLED")
    ours.step()
    told = [
        (each.event, each.job, each.start_ms, each.state) for each in read_decisions(tmp_path / DECISIONS)
    ]
    assert told[2:] == [
        ("started", "1", 1_800_000, ""), ("ended", "1", 1_800_000, "COMPLETED"), ("ended", "2", None, "CANCELLED"),
    ]  # fmt: skip


def test_a_stranger_that_began_and_ended_between_two_looks_is_told_once_and_by_the_query_of_the_look(
    tmp_path: Path,
) -> None:
    slurm = FakeSlurm()
    slurm.jobs["1"] = {
        "JobID": "1",
        "State": "COMPLETED",
        "NodeList": "node1",
        "StartTime": "1",
        "EndTime": "2",
    }
    slurm.jobs["2"] = {"JobID": "2", "State": "RUNNING", "NodeList": "node1", "StartTime": "1"}
    ours = service(slurm, tmp_path, places=False)
    ours.step()
    slurm.jobs["3"] = {
        "JobID": "3",
        "State": "FAILED",
        "NodeList": "node2",
        "StartTime": "1990",
        "EndTime": "1995",
    }
    slurm.end("2")
    before = ours._controller.queries
    for _ in range(3):
        ours.step()
    assert ours._controller.queries == before + 3
    assert [(each.event, each.job, each.state) for each in read_decisions(tmp_path / DECISIONS)] == [
        ("ended", "2", "COMPLETED"), ("started", "3", ""), ("ended", "3", "FAILED"),
    ]  # fmt: skip
    slurm.jobs["3"] |= {
        "State": "RUNNING",
        "StartTime": "2000",
        "EndTime": "N/A",
    }  # queued again, and as short
    slurm.jobs["3"] |= {"State": "FAILED", "EndTime": "2001"}
    ours.step()
    starts = [each.start_ms for each in read_decisions(tmp_path / DECISIONS) if each.event == "started"]
    assert starts == [1_990_000, 2_000_000]


@pytest.mark.parametrize("first", [False, True])
def test_an_end_is_told_once_and_lost_by_no_exception_that_comes_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    slurm = FakeSlurm()
    slurm.held("1")
    ours = service(slurm, tmp_path)
    ours.step()
    ours.step()
    slurm.end("1", "FAILED")
    keep(tmp_path / "results", Result("1", "node1", 1000, 3, 2000))
    if first:  # a berth that begins again
        ours = service(slurm, tmp_path)
    step, fails = ours.driver.step, [True]

    def fails_once(now_ms: int, *, out_of_time: Callable[[], bool], for_real: bool) -> Round:
        if fails.pop() if fails else False:
            raise LiveError("this once")
        return step(now_ms, out_of_time=out_of_time, for_real=for_real)

    monkeypatch.setattr(ours.driver, "step", fails_once)
    with pytest.raises(LiveError, match="this once"):
        ours.step()
    ours.step()
    ours.step()
    assert [event for event, *_ in events(tmp_path)].count("ended") == 1
    (ended,) = [each for each in read_decisions(tmp_path / DECISIONS) if each.event == "ended"]
    assert (ended.peak_mib, ended.refused) == (1000, 3)
    assert slurm.commands.count("requeuehold 1") == 1


def test_what_began_and_ended_while_berth_was_away_is_told_by_the_next_one_and_nothing_twice(
    tmp_path: Path,
) -> None:
    slurm = FakeSlurm(now_s=int(time.time()))
    slurm.held("1")
    slurm.held("2")
    ours = service(slurm, tmp_path)
    ours.step()
    ours.step()  # killed here
    slurm.end("1")
    slurm.jobs["4"] = slurm.jobs["1"] | {"JobID": "4"}
    service(slurm, tmp_path).step()
    told = [(each.event, each.job) for each in read_decisions(tmp_path / DECISIONS) if each.event != "placed"]
    assert told == [("started", "1"), ("started", "2"), ("ended", "1"), ("started", "4"), ("ended", "4")]


def test_a_job_that_slurm_does_not_queue_again_is_told(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.held("1", no_requeue=True)
    ours = service(slurm, tmp_path, card_mib={"v100": 1000})
    ours.step()
    ours.step()
    slurm.end("1", "FAILED")
    keep(tmp_path / "results", Result("1", "node1", 250, 1, 300))
    ours.step()
    assert [each.why for each in read_decisions(tmp_path / DECISIONS) if each.event == "given-up"] == [
        "Slurm does not queue it again: Requested operation is presently disabled for job 1"
    ]


def test_what_ran_out_of_memory_while_berth_was_away_is_queued_again(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.held("1")
    ours = service(slurm, tmp_path)
    ours.step()
    ours.step()
    slurm.end("1", "FAILED")
    keep(tmp_path / "results", Result("1", "node1", 250, 1, 300))
    keep(tmp_path / "results", Result("77", "node1", 1, 0, 0))
    os.utime(tmp_path / "results" / "77-node1", (1, 1))
    service(slurm, tmp_path, card_mib={"v100": 1000}).step()
    assert "requeuehold 1" in slurm.commands
    assert list((tmp_path / "results").iterdir()) == []


def test_a_start_is_logged_where_slurm_made_it(tmp_path: Path) -> None:
    slurm = FakeSlurm(elsewhere="node2")
    slurm.held("1")
    ours = service(slurm, tmp_path)
    ours.step()
    ours.step()
    (start,) = (each for each in read_decisions(tmp_path / DECISIONS) if each.event == "started")
    assert (start.planned, start.where) == ("node1:0", "node2:0")


def test_what_an_epilog_leaves_brings_the_next_look_forward_while_looks_are_left_to_borrow(
    tmp_path: Path,
) -> None:
    ours = service(FakeSlurm(), tmp_path, interval_s=100.0)
    ours.step()

    def is_early(left_s: float) -> bool:
        asked = iter(range(4))
        ours._wait(time.monotonic() + left_s, lambda: next(asked, None) is None, works=True)
        return next(asked, None) is not None

    assert not is_early(50.0)
    keep(tmp_path / "results", Result("7", "node1", 100, 0, 0))
    assert not is_early(350.0)  # three intervals are borrowed already
    assert is_early(250.0)
    ours.step()
    assert not is_early(50.0)
