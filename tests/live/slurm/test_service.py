"""What berth does beside a fake Slurm: holds, places, takes back, gives back, advises, and begins anew."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from berth.errors import LiveError, PolicyError, SchedulerError
from berth.live.slurm.claim import lock
from berth.live.slurm.controller import Controller, forgotten_after_s
from berth.live.slurm.decisions import read_decisions
from berth.live.slurm.results import Result, keep
from berth.live.slurm.service import DECISIONS, Service, Settings
from berth.model import Job
from berth.scheduler import Scheduler
from tests.live.slurm.fake_slurm import FakeSlurm

NOTE = "berth:1;node=gres:gpu:1;job=;task=;socket="


def service(slurm: FakeSlurm, state: Path, **settings: object) -> Service:
    plain = {
        "places": True,
        "partitions": frozenset({"gpu"}),
        "policy": "priority+first-fit",
        "patience_s": 0.0,
    }
    return Service(Settings(state, **{**plain, **settings}), Controller(slurm))  # type: ignore[arg-type]


def events(state: Path) -> list[tuple[str, str, str]]:
    return [(each.event, each.job, each.where) for each in read_decisions(state / DECISIONS)]


def test_a_held_job_gets_its_gpu_and_is_released_after_the_update_alone(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.held("1")
    slurm.held("2", "gres:gpu:2", NumNodes="2")
    ours = service(slurm, tmp_path)
    ours.step()
    assert slurm.told == [
        "hold 2",
        f"update JobId=1 ReqNodeList=node1 TresPerNode=gres:gpu:v100_0:1 AdminComment={NOTE};share=1000:0:0",
        "release 1",
    ]
    ours.step()
    slurm.end("1")
    ours.step()
    assert slurm.told[3:] == [
        "update JobId=2 ReqNodeList=node1,node2 TresPerNode=gres:gpu:v100_0:1,gres:gpu:v100_1:1"
        " AdminComment=berth:1;node=gres:gpu:2;job=;task=;socket=;share=1000:0:0",
        "release 2",
    ]
    assert events(tmp_path) == [
        ("placed", "1", "node1:0"), ("started", "1", "node1:0"), ("ended", "1", "node1"),
        ("placed", "2", "node1:0+1,node2:0+1"),
    ]  # fmt: skip


def test_what_slurm_does_not_take_is_not_released(tmp_path: Path) -> None:
    slurm = FakeSlurm(refuses={"update JobId=1": "Invalid generic resource (gres) specification for job 1"})
    slurm.held("1")
    ours = service(slurm, tmp_path, patience_s=60.0)
    ours.step()
    assert not any(line.startswith("release") for line in slurm.told)
    told = [(line.event, line.why) for line in read_decisions(tmp_path / DECISIONS)]
    assert told == [
        ("placed", ""), ("taken-back", "Invalid generic resource (gres) specification for job 1"),
    ]  # fmt: skip
    ours.step()
    assert (
        ours.why["1"]
        == "Slurm: Invalid generic resource (gres) specification for job 1; it is tried again later"
    )


def test_two_parts_share_a_card_and_a_whole_job_does_not(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    for job_id, request in (("1", "gres:shard:2"), ("2", "gres:shard:2"), ("3", "gres:gpu:1")):
        slurm.held(job_id, request)
    ours = service(slurm, tmp_path)
    ours.step()
    assert [line.split()[3] for line in slurm.told if line.startswith("update")] == [
        "TresPerNode=gres:shard:v100_0:2", "TresPerNode=gres:shard:v100_0:2", "TresPerNode=gres:gpu:v100_1:1",
    ]  # fmt: skip


def test_a_placed_job_that_slurm_keeps_back_is_held_again_and_its_gpu_is_free(tmp_path: Path) -> None:
    slurm = FakeSlurm(starts=False)
    slurm.held("1")
    ours = service(slurm, tmp_path)
    ours.step()
    slurm.jobs["1"]["Reason"] = "AssocGrpGRES"
    ours.step()
    assert slurm.told[-2:] == ["hold 1", f"update JobId=1 ReqNodeList= AdminComment={NOTE}"]
    assert ours.why["1"] == "Slurm: AssocGrpGRES"
    assert ours.world.scheduler.cluster.running == {}


def test_a_job_of_berths_that_waits_unheld_is_held_again(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.held("1", Reason="None", PriorityLong="100", tres_per_node="gres:gpu:v100_0:1")
    service(slurm, tmp_path).step()
    assert slurm.told == ["hold 1", f"update JobId=1 ReqNodeList= AdminComment={NOTE}"]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"OverSubscribe": "NO"}, "it asks for whole nodes (--exclusive), which berth leaves to Slurm"),
        ({"Reservation": "maint"}, "it asks for the reservation maint, which berth leaves to Slurm"),
        ({"HetJobID": "7"}, "it is a component of a heterogeneous job, which berth leaves to Slurm"),
        ({"Feature": "a|b"}, "its features are a|b, which berth leaves to Slurm"),
    ],
)
def test_what_berth_cannot_decide_on_is_given_back_with_its_request(
    tmp_path: Path, fields: dict[str, object], why: str
) -> None:
    slurm = FakeSlurm()
    slurm.held("1", **fields)
    service(slurm, tmp_path).step()
    assert slurm.told == [
        "update JobId=1 ReqNodeList= TresPerNode=gres:gpu:1", "release 1", "update JobId=1 AdminComment=",
    ]  # fmt: skip
    assert [(each.event, each.why) for each in read_decisions(tmp_path / DECISIONS)] == [("given-back", why)]


def test_slurms_own_rules_come_first(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.held("1", Dependency="afterok:9(unfulfilled)")
    slurm.held("2", StartTime="99999999999")
    slurm.held("3", Feature="big")
    slurm.jobs["4"] = {
        "JobID": "4",
        "admin_comment": "of the site",
        "Reason": "JobHeldAdmin",
        "PriorityLong": "0",
    }
    ours = service(slurm, tmp_path)
    ours.step()
    assert [line for line in slurm.told if "ReqNodeList" in line] == [
        f"update JobId=3 ReqNodeList=node2 TresPerNode=gres:gpu:v100_0:1 AdminComment={NOTE};share=1000:0:0"
    ]
    assert "afterok:9(unfulfilled)" in ours.why["1"]
    begins = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(99_999_999_999))
    assert ours.why["2"] == f"BeginTime: it begins at {begins} at the earliest"
    assert ours.why["4"] == "Slurm decides: berth has not taken it"


def test_a_drained_node_gets_nothing_and_one_that_is_down_loses_what_ran(tmp_path: Path) -> None:
    slurm = FakeSlurm(nodes={"node1": "IDLE+DRAIN", "node2": "IDLE"})
    slurm.held("1")
    service(slurm, tmp_path).step()
    assert "ReqNodeList=node2" in slurm.told[0]
    slurm = FakeSlurm()
    slurm.held("1")
    ours = service(slurm, tmp_path)
    ours.step()
    ours.step()
    assert set(ours.world.scheduler.cluster.running) == {"1"}
    slurm.nodes = {"node1": "DOWN*", "node2": "DOWN"}
    slurm.end("1", "NODE_FAIL")
    slurm.held("2")
    slurm.told.clear()
    for _ in range(4):  # nodes are queried on every fourth look
        ours.step()
    assert ours.world.scheduler.cluster.running == {}
    assert [(e.job, e.state) for e in read_decisions(tmp_path / DECISIONS) if e.event == "ended"] == [
        ("1", "NODE_FAIL")
    ]
    assert not any(line.startswith("release") for line in slurm.told[2:])


def test_a_job_that_ran_out_of_gpu_memory_is_queued_again_with_what_it_needs_and_then_told(
    tmp_path: Path,
) -> None:
    slurm = FakeSlurm()
    slurm.held("1", "gres:gpu:1")
    ours = service(slurm, tmp_path, retries=1, card_mib={"v100": 1000})
    for attempt, needs in ((1, 300), (2, 400)):
        ours.step()
        ours.step()
        slurm.end("1", "FAILED")
        keep(tmp_path / "results", Result("1", "node1", 250, 1, needs))
        ours.step()
        if attempt == 1:
            assert slurm.told[-3:] == [
                "requeuehold 1", "hold 1",
                f"update JobId=1 ReqNodeList= AdminComment={NOTE};retries=1;needs=337 StartTime=now+125",
            ]  # fmt: skip
    assert any(";share=1000:337:0;retries=1;needs=337" in line for line in slurm.told)
    told = [each for each in read_decisions(tmp_path / DECISIONS) if each.event == "given-up"]
    assert [each.why for each in told] == [
        "it ran out of GPU memory 2 times, and needs 400 MiB: ask for gpu_mem=400M"
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
    assert ours.world.scheduler.cluster.running == {}
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
    assert not any(line.startswith("requeuehold") for line in slurm.told)


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


def test_a_berth_that_begins_anew_takes_up_what_runs(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    for job_id in "12345":
        slurm.held(job_id)
    service(slurm, tmp_path).step()
    again = service(slurm, tmp_path)
    again.step()
    running = again.world.scheduler.cluster.running
    assert sorted((job_id, tuple(run.slots)) for job_id, run in running.items()) == [
        ("1", ((0, 0),)), ("2", ((0, 1),)), ("3", ((1, 0),)), ("4", ((1, 1),)),
    ]  # fmt: skip
    assert again.world.unplaced == {}
    slurm.end("3")
    again.step()
    assert slurm.told[-1] == "release 5"
    assert "TresPerNode=gres:gpu:v100_0:1" in slurm.told[-2]


def test_advice_is_given_once_a_job_and_changes_nothing(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    for number in range(1, 7):
        slurm.jobs[str(number)] = {"JobID": number, "tres_per_node": "gres:gpu:1", "Reason": "Resources"}
    slurm.jobs["6"]["Reason"] = "QOSMaxGRESPerUser"
    ours = service(slurm, tmp_path, places=False, partitions=frozenset())
    ours.step()
    ours.step()
    assert slurm.told == []
    assert events(tmp_path) == [
        ("advised", "1", "node1:0"), ("advised", "2", "node1:1"), ("advised", "3", "node2:0"),
        ("advised", "4", "node2:1"),
    ]  # fmt: skip
    assert ours.why["6"] == "QOSMaxGRESPerUser"
    # A job that Slurm runs with no GPU told by type takes one all the same.
    slurm.jobs["1"] |= {"State": "RUNNING", "NodeList": "node1", "StartTime": "1500", "Reason": "None"}
    ours.step()
    assert [(job_id, tuple(run.slots)) for job_id, run in ours.world.scheduler.cluster.running.items()] == [
        ("1", ((0, 0),))
    ]


def test_a_job_that_never_fits_holds_up_nobody_and_says_why(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.held("1", "gres:gpu:9")
    slurm.held("2")
    ours = service(slurm, tmp_path)
    ours.step()
    ours.step()
    assert "asks for 9 GPUs" in ours.why["1"]
    assert slurm.jobs["2"]["State"] == "RUNNING"


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
    assert first is not None
    assert lock(tmp_path) is None
    first.close()
    third = lock(tmp_path)
    assert third is not None
    third.close()


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


def test_a_slurm_that_writes_requests_otherwise_is_told_them_so(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.held("1", "gres/gpu:1")
    service(slurm, tmp_path).step()
    assert slurm.told == [
        "update JobId=1 ReqNodeList=node1 TresPerNode=gres/gpu:v100_0:1"
        " AdminComment=berth:1;node=gres/gpu:1;job=;task=;socket=;share=1000:0:0",
        "release 1",
    ]


def test_a_request_in_another_form_is_the_same_one(tmp_path: Path) -> None:
    slurm = FakeSlurm(changes={"1": "gres/gpu:v100_0:1"})  # what a later Slurm shows of gres:gpu:v100_0:1
    slurm.held("1")
    service(slurm, tmp_path).step()
    assert slurm.told[-1] == "release 1"


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
    take, fails = ours.world.take, [True]

    def take_once_more(*words: object) -> None:
        if fails.pop() if fails else False:
            raise LiveError("this once")
        take(*words)  # type: ignore[arg-type]

    monkeypatch.setattr(ours.world, "take", take_once_more)
    with pytest.raises(LiveError, match="this once"):
        ours.step()
    ours.step()
    ours.step()
    assert [event for event, *_ in events(tmp_path)].count("ended") == 1
    (ended,) = [each for each in read_decisions(tmp_path / DECISIONS) if each.event == "ended"]
    assert (ended.peak_mib, ended.refused) == (1000, 3)
    assert slurm.told.count("requeuehold 1") == 1


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


def test_a_job_that_a_limit_kept_back_is_tried_again_when_another_of_its_user_has_ended(
    tmp_path: Path,
) -> None:
    slurm = FakeSlurm()
    slurm.held("1")
    ours = service(slurm, tmp_path, patience_s=60.0)
    ours.step()
    ours.step()
    slurm.refuses["update JobId=2 "] = "Job violates accounting/QOS policy"
    slurm.held("2")
    ours.step()
    ours.step()
    assert "Job violates accounting/QOS policy" in ours.why["2"]
    slurm.refuses.clear()
    slurm.end("1")
    ours.step()
    ours.step()
    assert slurm.jobs["2"]["State"] == "RUNNING"


def test_a_controller_that_goes_away_in_the_middle_of_changes_leaks_no_gpu(tmp_path: Path) -> None:
    slurm = FakeSlurm(gone_after=1)
    for job_id in "123":
        slurm.held(job_id)
    ours = service(slurm, tmp_path)
    ours.step()
    assert ours.world.scheduler.cluster.running == {}
    told = [(each.event, each.job) for each in read_decisions(tmp_path / DECISIONS)]
    assert [job for event, job in told if event == "placed"] == ["1", "2", "3"]
    assert sorted(job for event, job in told if event == "taken-back") == ["1", "2", "3"]
    slurm.gone_after = None
    ours._refused.clear()  # as after its patience
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
        patch.setattr("berth.live.slurm.service.append", full)
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
    assert slurm.told == ["hold 1", f"update JobId=1 ReqNodeList= AdminComment={NOTE}"]
    assert (
        slurm.jobs["1"]["admin_comment"] == f"{NOTE};share=300:500:0"
    )  # Slurm takes all of an update or nothing


def test_a_start_is_logged_where_slurm_made_it(tmp_path: Path) -> None:
    slurm = FakeSlurm(elsewhere="node2")
    slurm.held("1")
    ours = service(slurm, tmp_path)
    ours.step()
    ours.step()
    (start,) = (each for each in read_decisions(tmp_path / DECISIONS) if each.event == "started")
    assert (start.told, start.where) == ("node1:0", "node2:0")


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
    assert len([line for line in slurm.told if line.startswith("update")]) == 1
    assert slurm.jobs["1"]["admin_comment"] == NOTE  # by which the watchdog finds it


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
    assert "requeuehold 1" in slurm.told
    assert list((tmp_path / "results").iterdir()) == []


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
    policy = ours.world.scheduler.policy

    def fails(queue: object, cluster: object, now_ms: int) -> Iterator[object]:
        yield from policy(queue, cluster, now_ms)  # type: ignore[arg-type]
        raise RuntimeError("of the policy")

    slurm.held("4")
    ours.world.scheduler.policy = fails  # type: ignore[assignment]
    with pytest.raises(PolicyError, match="of the policy"):
        ours.step()
    assert slurm.jobs["4"]["State"] == "RUNNING"


def test_a_job_that_makes_no_sense_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = FakeSlurm()
    slurm.held("1")
    slurm.held("2")
    ours = service(slurm, tmp_path)
    submit = Scheduler.submit

    def odd(scheduler: Scheduler, job: Job) -> bool:
        if job.id == "1":
            raise SchedulerError("a job makes no sense: it is odd")
        return submit(scheduler, job)

    monkeypatch.setattr(Scheduler, "submit", odd)
    ours.step()
    assert slurm.jobs["2"]["State"] == "RUNNING"
    assert ours.why["1"] == "a job makes no sense: it is odd"


def test_a_gpu_that_slurm_says_is_used_is_not_free_whatever_is_known_of_the_job(tmp_path: Path) -> None:
    slurm = FakeSlurm(
        used={"node1": "gpu:v100_0:1(IDX:0),shard:v100_0:0(0/4),bandwidth:lustre:no_consume:4G"}
    )
    slurm.jobs["1"] = {
        "JobID": "1", "State": "RUNNING", "NodeList": "node1", "StartTime": "1500", "Partition": "other",
        "tres_alloc": "cpu=1,mem=500M,node=1,gres/nic=1", "tres_per_node": "gres:gpu:1g.5gb:1,gres:NIC:1",
    }  # fmt: skip
    slurm.held("2")
    ours = service(slurm, tmp_path)
    ours.step()
    assert "ReqNodeList=node1 TresPerNode=gres:gpu:v100_1:1" in next(
        line for line in slurm.told if "JobId=2" in line
    )
    slurm.used = {}
    slurm.end("1")
    slurm.held("3")
    for _ in range(5):
        ours.step()
    assert "TresPerNode=gres:gpu:v100_0:1" in next(line for line in slurm.told if "JobId=3" in line)


def test_shards_of_a_job_that_berth_does_not_know_are_used(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.jobs["1"] = {
        "JobID": "1", "State": "RUNNING", "NodeList": "node1", "StartTime": "1500", "Reservation": "r",
        "tres_alloc": "cpu=1,mem=500M,node=1,gres/shard=3", "tres_per_node": "gres:shard:v100_0:3",
    }  # fmt: skip
    slurm.held("2", "gres:shard:2")
    ours = service(slurm, tmp_path, card_mib={"v100": 1000})
    ours.step()
    assert "TresPerNode=gres:shard:v100_1:2" in next(line for line in slurm.told if "JobId=2" in line)


def test_a_berth_that_places_tells_the_watchdog_whose_jobs_and_one_that_advises_does_not(
    tmp_path: Path,
) -> None:
    slurm = FakeSlurm()
    slurm.held("1", Partition="other")
    ours = service(slurm, tmp_path, qos=frozenset({"fast"}))
    ours.step()
    assert (tmp_path / "scope").read_text() == "partition gpu\nqos fast\n"
    said: list[str] = []
    looks = iter((False, True, True))
    ours.run(said.append, until=lambda: next(looks))
    assert said == [
        "1 jobs are held for berth that this one does not place, job 1 first; name their partition or QoS, or let"
        " the watchdog give them back"
    ]
    service(slurm, tmp_path, places=False).step()
    assert not (tmp_path / "scope").exists()


def test_a_job_whose_gpus_somebody_changed_before_its_release_is_not_released(tmp_path: Path) -> None:
    slurm = FakeSlurm(changes={"1": "gres:gpu:v100_1:2"})
    slurm.held("1")
    slurm.held("2")
    service(slurm, tmp_path).step()
    assert [line for line in slurm.told if line.startswith("release")] == ["release 2"]
    told = [(each.event, each.why) for each in read_decisions(tmp_path / DECISIONS) if each.job == "1"]
    assert told == [
        ("placed", ""), ("taken-back", "its GPUs were changed before its release: gres:gpu:v100_1:2"),
    ]  # fmt: skip


def test_a_job_placed_on_other_gpus_than_before_has_those_alone(tmp_path: Path) -> None:
    """Slurm adds GPUs of another type to those that were told before."""
    slurm = FakeSlurm()
    slurm.jobs["9"] = {
        "JobID": "9", "State": "RUNNING", "NodeList": "node1", "StartTime": "1500", "tres_per_node": "gres:gpu:v100_0:1"
    }  # fmt: skip
    slurm.held("1", tres_per_node="gres:gpu:v100_0:1", Feature="(null)")
    slurm.nodes = {"node1": "IDLE"}
    service(slurm, tmp_path).step()
    assert slurm.told == [
        "update JobId=1 TresPerNode=",
        f"update JobId=1 ReqNodeList=node1 TresPerNode=gres:gpu:v100_1:1 AdminComment={NOTE};share=1000:0:0",
        "release 1",
    ]  # fmt: skip
    assert slurm.jobs["1"]["tres_per_node"] == "gres:gpu:v100_1:1"


def test_a_partition_that_goes_down_or_comes_up_is_seen_within_four_looks(tmp_path: Path) -> None:
    slurm = FakeSlurm(partition="DOWN")
    slurm.held("1")
    ours = service(slurm, tmp_path)
    ours.step()
    assert ours.why["1"] == "its partition gpu is not up"
    slurm.partition = "UP"
    for _ in range(4):
        ours.step()
    assert slurm.jobs["1"]["State"] == "RUNNING"
