"""What berth does beside a fake Slurm: holds, places, takes back, gives back and advises."""

from __future__ import annotations

import re
import time
from pathlib import Path
from urllib.parse import quote_plus

import pytest

from berth.errors import LiveError
from berth.experiments.recorded_run import kept_policies
from berth.live.slurm.controller import Controller
from berth.live.slurm.decisions import read_decisions
from berth.live.slurm.requests import Note, note_of
from berth.live.slurm.service import DECISIONS, NODES_EVERY, STARTS
from berth.live.slurm.snapshot import is_held_by_berth, why_of
from berth.traces import read_nodes
from tests.live.slurm.fake_slurm import FakeSlurm
from tests.live.slurm.services import NOTE, events, service


def test_a_held_job_gets_its_gpu_and_is_released_after_the_update_alone(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.held("1")
    slurm.held("2", "gres:gpu:2", NumNodes="2")
    ours = service(slurm, tmp_path)
    ours.step()
    assert slurm.commands == [
        "hold 2",
        f"update JobId=1 ReqNodeList=node1 TresPerNode=gres:gpu:v100_0:1 AdminComment={NOTE};share=1000:0:0",
        "release 1",
    ]
    ours.step()
    slurm.end("1")
    ours.step()
    assert slurm.commands[3:] == [
        "update JobId=2 ReqNodeList=node1,node2 TresPerNode=gres:gpu:v100_0:1,gres:gpu:v100_1:1"
        " AdminComment=berth:1;node=gres:gpu:2;job=;task=;share=1000:0:0",
        "release 2",
    ]
    assert events(tmp_path) == [
        ("placed", "1", "node1:0"), ("started", "1", "node1:0"), ("ended", "1", "node1"),
        ("placed", "2", "node1:0+1,node2:0+1"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("comment", "share", "gres"),
    [
        ("gpu_mem=250M", "330:250:1", "shard:v100_0:1"),  # memory alone: compute is what others leave
        ("gpu_mem=250M gpu_pct=50", "500:250:0", "shard:v100_0:2"),
        ("gpu_mem=250M gpu_pct=100", "1000:250:0", "gpu:v100_0:1"),
        ("torch", "1000:0:0", "gpu:v100_0:1"),
    ],
)
def test_compute_is_best_effort_unless_a_job_asks_for_it(
    tmp_path: Path, comment: str, share: str, gres: str
) -> None:
    slurm = FakeSlurm()
    slurm.held("1", "gres:gpu:1", Comment=comment)
    service(slurm, tmp_path, card_mib={"v100": 1000}).step()
    assert f"TresPerNode=gres:{gres} AdminComment={NOTE};share={share}" in slurm.commands[0]


def test_two_parts_share_a_card_and_a_whole_job_does_not(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    for job_id, request in (("1", "gres:shard:2"), ("2", "gres:shard:2"), ("3", "gres:gpu:1")):
        slurm.held(job_id, request)
    ours = service(slurm, tmp_path)
    ours.step()
    assert [line.split()[3] for line in slurm.commands if line.startswith("update")] == [
        "TresPerNode=gres:shard:v100_0:2", "TresPerNode=gres:shard:v100_0:2", "TresPerNode=gres:gpu:v100_1:1",
    ]  # fmt: skip


def test_a_berth_that_begins_again_goes_on_with_what_start_intervals_had_learned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    slurm = FakeSlurm(nodes={"node1": "IDLE"})
    for job_id in ("1", "2", "3"):
        slurm.held(job_id)
    ours = service(slurm, tmp_path)
    ours.step()
    assert set(ours.driver.starts) == {"3"}
    slurm.end("1")
    ours.step()
    now_ms = int(1000 * time.time())
    assert ours.driver.forecasts_held(now_ms).of == 1

    again = service(slurm, tmp_path)
    again.step()
    assert again.driver.forecasts_held(now_ms) == ours.driver.forecasts_held(now_ms)

    (tmp_path / STARTS).write_bytes(b"\xff{")
    anew = service(slurm, tmp_path)
    anew.step()
    assert anew.driver.forecasts_held(now_ms).of == 0
    assert [line.partition(": ")[0] for line in caplog.messages] == ["start intervals begin anew"]


def test_a_placed_job_that_slurm_keeps_back_is_held_again_and_its_gpu_is_free(tmp_path: Path) -> None:
    slurm = FakeSlurm(starts=False)
    slurm.held("1")
    ours = service(slurm, tmp_path)
    ours.step()
    slurm.jobs["1"]["Reason"] = "AssocGrpGRES"
    ours.step()
    held, update = slurm.commands[-2:]
    assert held == "hold 1"
    note = rf"{NOTE};failures=1;until=\d+;why=it\+could\+not\+be\+started:\+AssocGrpGRES"
    assert re.fullmatch(f"update JobId=1 ReqNodeList= AdminComment={note}", update)
    assert ours.why["1"] == "it could not be started: AssocGrpGRES"
    assert ours.driver.scheduler.cluster.running == {}


def test_why_no_node_can_hold_a_job_stands_in_its_comment_until_one_can(tmp_path: Path) -> None:
    slurm = FakeSlurm(nodes={"node1": "IDLE"}, starts=False)
    for job_id in ("1", "7_1", "7_2"):
        slurm.held(job_id, "gres:gpu:2", Feature="big")
    ours = service(slurm, tmp_path, patience_s=60.0)
    ours.step()
    ours.step()
    plain = "berth:1;node=gres:gpu:2;job=;task="
    why = ours.driver.misfits["1"]
    noted = f"{plain};why={quote_plus(why, safe=':,/')}"
    updates = [line for line in slurm.commands if line.startswith("update")]
    assert updates == [
        f"update JobId={job_id} AdminComment={noted.replace('%271%27', f'%27{job_id}%27')}"
        for job_id in ("1", "7_1")
    ]
    assert note_of(noted) == Note("gres:gpu:2", why=why)
    slurm.nodes["node2"] = "IDLE"
    slurm.commands.clear()
    for _ in range(NODES_EVERY):
        ours.step()
    notes = [line.rpartition("AdminComment=")[2] for line in slurm.commands if "AdminComment" in line]
    assert notes == [plain, f"{plain};share=1000:0:0"]


def test_a_job_of_berths_that_waits_unheld_is_held_again(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.held("1", Reason="None", PriorityLong="100", tres_per_node="gres:gpu:v100_0:1")
    service(slurm, tmp_path).step()
    assert slurm.commands == ["hold 1", f"update JobId=1 ReqNodeList= AdminComment={NOTE}"]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"OverSubscribe": "NO"}, "it asks for whole nodes (--exclusive), which berth leaves to Slurm"),
        ({"Reservation": "maint"}, "it asks for the reservation maint, which berth leaves to Slurm"),
        ({"Feature": "a|b"}, "its features are a|b, which berth leaves to Slurm"),
    ],
)
def test_what_berth_cannot_decide_on_is_given_back_with_its_request(
    tmp_path: Path, fields: dict[str, object], why: str
) -> None:
    slurm = FakeSlurm()
    slurm.held("1", **fields)
    service(slurm, tmp_path).step()
    assert slurm.commands == [
        "update JobId=1 ReqNodeList= TresPerNode=gres:gpu:1", "release 1", "update JobId=1 AdminComment=berth:0;",
    ]  # fmt: skip
    assert [(each.event, each.why) for each in read_decisions(tmp_path / DECISIONS)] == [("given-back", why)]


@pytest.mark.parametrize(
    ("dependency", "released"),
    [
        ("afterok:1(unfulfilled)", True),  # Slurm does not look at it while the job is held
        ("afterok:1_*(unfulfilled),afterany:1_3(unfulfilled)", True),
        ("afterok:1(unfulfilled)?afterok:2(unfulfilled)", False),
        ("afterok:2_7(unfulfilled)", False),
        ("after:1+5(unfulfilled)", False),
        ("after:1(unfulfilled)", True),
        ("after:2(unfulfilled)", False),  # which has not begun
        ("aftercorr:1_*(unfulfilled)", True),
        ("aftercorr:2_*(unfulfilled)", False),
        ("singleton(unfulfilled)", False),  # 2 has its name
        ("afterok:1(failed)", False),
    ],
)
def test_a_held_job_is_placed_once_all_that_it_waits_for_has_ended(
    tmp_path: Path, dependency: str, released: bool
) -> None:
    slurm = FakeSlurm()
    slurm.held("2", "gres:gpu:9")
    slurm.held("3", Dependency=dependency)
    ours = service(slurm, tmp_path)
    ours.step()
    assert ("release 3" in slurm.commands) == released


def test_one_at_a_time_is_placed_once_none_of_its_name_is_before_it(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.held("3", Dependency="singleton(unfulfilled)", Name="one")
    slurm.held("4", Dependency="singleton(unfulfilled)", Name="one")
    ours = service(slurm, tmp_path)
    ours.step()
    assert ("release 3" in slurm.commands, "release 4" in slurm.commands) == (True, False)
    slurm.jobs["3"]["State"] = "COMPLETED"
    ours.step()
    assert "release 4" in slurm.commands


def test_slurms_own_rules_come_first(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.held("1", Dependency="afterok:4(unfulfilled)")
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
    assert [line for line in slurm.commands if "ReqNodeList" in line] == [
        f"update JobId=3 ReqNodeList=node2 TresPerNode=gres:gpu:v100_0:1 AdminComment={NOTE};share=1000:0:0"
    ]
    assert "afterok:4(unfulfilled)" in ours.why["1"]
    begins = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(99_999_999_999))
    assert ours.why["2"] == f"BeginTime: it begins at {begins} at the earliest"
    assert ours.why["4"] == "Slurm decides: berth has not taken it"


def test_a_drained_node_gets_nothing_and_one_that_is_down_loses_what_ran(tmp_path: Path) -> None:
    slurm = FakeSlurm(nodes={"node1": "IDLE+DRAIN", "node2": "IDLE"})
    slurm.held("1")
    service(slurm, tmp_path).step()
    assert "ReqNodeList=node2" in slurm.commands[0]
    slurm = FakeSlurm()
    slurm.held("1")
    ours = service(slurm, tmp_path)
    ours.step()
    ours.step()
    assert set(ours.driver.scheduler.cluster.running) == {"1"}
    slurm.nodes = {"node1": "DOWN*", "node2": "DOWN"}
    slurm.end("1", "NODE_FAIL")
    slurm.held("2")
    slurm.commands.clear()
    for _ in range(4):  # nodes are queried on every fourth look
        ours.step()
    assert ours.driver.scheduler.cluster.running == {}
    assert [(e.job, e.state) for e in read_decisions(tmp_path / DECISIONS) if e.event == "ended"] == [
        ("1", "NODE_FAIL")
    ]
    assert not any(line.startswith("release") for line in slurm.commands[2:])


def test_advice_is_given_once_a_job_and_changes_nothing(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    for number in range(1, 7):
        slurm.jobs[str(number)] = {"JobID": number, "tres_per_node": "gres:gpu:1", "Reason": "Resources"}
    slurm.jobs["6"]["Reason"] = "QOSMaxGRESPerUser"
    ours = service(slurm, tmp_path, places=False, partitions=frozenset())
    ours.step()
    ours.step()
    assert slurm.commands == []
    assert events(tmp_path) == [
        ("advised", "1", "node1:0"), ("advised", "2", "node1:1"), ("advised", "3", "node2:0"),
        ("advised", "4", "node2:1"),
    ]  # fmt: skip
    assert ours.why["6"] == "QOSMaxGRESPerUser"
    # A job that Slurm runs with no GPU told by type takes one all the same.
    slurm.jobs["1"] |= {"State": "RUNNING", "NodeList": "node1", "StartTime": "1500", "Reason": "None"}
    ours.step()
    assert [(job_id, tuple(run.slots)) for job_id, run in ours.driver.scheduler.cluster.running.items()] == [
        ("1", ((0, 0),))
    ]


def test_a_slurm_that_writes_requests_otherwise_is_told_them_so(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.held("1", "gres/gpu:1")
    service(slurm, tmp_path).step()
    assert slurm.commands == [
        "update JobId=1 ReqNodeList=node1 TresPerNode=gres/gpu:v100_0:1"
        " AdminComment=berth:1;node=gres/gpu:1;job=;task=;share=1000:0:0",
        "release 1",
    ]


def test_a_request_in_another_form_is_the_same_one(tmp_path: Path) -> None:
    slurm = FakeSlurm(changes={"1": "gres/gpu:v100_0:1"})  # what a later Slurm shows of gres:gpu:v100_0:1
    slurm.held("1")
    service(slurm, tmp_path).step()
    assert slurm.commands[-1] == "release 1"


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
        line for line in slurm.commands if "JobId=2" in line
    )
    slurm.used = {}
    slurm.end("1")
    slurm.held("3")
    for _ in range(5):
        ours.step()
    assert "TresPerNode=gres:gpu:v100_0:1" in next(line for line in slurm.commands if "JobId=3" in line)


def test_shards_of_a_job_that_berth_does_not_know_are_used(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    slurm.jobs["1"] = {
        "JobID": "1", "State": "RUNNING", "NodeList": "node1", "StartTime": "1500", "Reservation": "r",
        "tres_alloc": "cpu=1,mem=500M,node=1,gres/shard=3", "tres_per_node": "gres:shard:v100_0:3",
    }  # fmt: skip
    slurm.held("2", "gres:shard:2")
    ours = service(slurm, tmp_path, card_mib={"v100": 1000})
    ours.step()
    assert "TresPerNode=gres:shard:v100_1:2" in next(line for line in slurm.commands if "JobId=2" in line)


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


@pytest.mark.parametrize("request_", ["gres:gpu:v100_0:1", "gres:shard:v100_0:2"])
def test_a_job_placed_before_waits_for_a_gpu_of_that_type(tmp_path: Path, request_: str) -> None:
    """Slurm adds GPUs of another type to those that it was given before, and takes none of them back."""
    slurm = FakeSlurm()
    slurm.jobs["9"] = {
        "JobID": "9", "State": "RUNNING", "NodeList": "node1", "StartTime": "1500", "tres_per_node": "gres:gpu:v100_0:1"
    }  # fmt: skip
    slurm.held("1", request_.replace("v100_0:", ""), tres_per_node=request_, Feature="(null)")
    slurm.nodes = {"node1": "IDLE"}
    ours = service(slurm, tmp_path, card_mib={"v100": 1000})
    ours.step()
    assert slurm.commands == ["hold 1"]
    slurm.end("9")
    slurm.now_s += 1
    ours.step()
    assert (
        slurm.jobs["1"] | {"State": "RUNNING", "ReqNodes": "node1", "tres_per_node": request_}
        == slurm.jobs["1"]
    )


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


def test_a_history_keeps_nodes_with_their_partitions_and_every_policy_that_decided(tmp_path: Path) -> None:
    history = tmp_path / "history"
    for policy in ("priority+first-fit", "priority+first-fit", "fifo+first-fit"):
        ours = service(FakeSlurm(), tmp_path, policy=policy)
        ours.step()
        ours.keep_history(history)
    assert {node.labels for node in read_nodes(history / "cluster.csv")} == {("partition:gpu",)}
    assert [name for _, name in kept_policies(history)] == ["priority+first-fit", "fifo+first-fit"]


def test_why_names_nodes_that_take_no_jobs_and_knows_parts_of_heterogeneous_jobs(tmp_path: Path) -> None:
    slurm = FakeSlurm(nodes={"node1": "IDLE+DRAIN", "node2": "DOWN*"})
    slurm.held("7", JobArrayID="7+1", HetJobID="7")
    slurm.jobs["7"]["admin_comment"] = "ticket 12"  # somebody else's
    service(slurm, tmp_path).step()
    job, said, nodes = why_of(Controller(slurm), tmp_path, "7+1")
    assert (job.id, is_held_by_berth(job)) == ("7+1", False)
    assert said == "Slurm decides: berth has not taken it"
    assert nodes == "2 of 2 with GPUs take no jobs: node1 is IDLE+DRAIN, node2 is DOWN*"
    with pytest.raises(LiveError, match="Slurm knows no job 9"):
        why_of(Controller(slurm), tmp_path, "9")


def test_why_tells_of_an_array_what_keeps_its_first_task_and_of_a_new_job_that_it_is_new(
    tmp_path: Path,
) -> None:
    slurm = FakeSlurm(nodes={"node1": "IDLE"}, partition="DOWN")
    slurm.held("4", JobArrayID="4_[2-3]")
    service(slurm, tmp_path).step()
    assert why_of(Controller(slurm), tmp_path, "4")[1] == "its partition gpu is not up"
    slurm.held("5")
    assert why_of(Controller(slurm), tmp_path, "5")[1] == "berth has not looked at it yet"
