"""A job of a partition of a higher tier takes the place of jobs that berth started, and of no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from berth.live.slurm.agent import BY_BERTH, BY_USER, order, orders
from berth.live.slurm.decisions import GIVEN_UP, PLACED
from berth.live.slurm.service import Service
from tests.live.slurm.fake_slurm import FakeSlurm
from tests.live.slurm.real_slurm import needs_root, needs_slurm, tell
from tests.live.slurm.services import events, service
from tests.live.slurm.test_growth import report


def two_cards(folder: Path, **changed: object) -> tuple[FakeSlurm, Service]:
    """One node with two cards: job 1 of berth's has one, and job 2 the other, as `changed` has it."""
    slurm = FakeSlurm(nodes={"node1": "IDLE"}, tiers={"urgent": 10})
    slurm.held("1")
    ours = service(slurm, folder, policy="preempt+fifo+best-fit", partitions=frozenset({"gpu", "urgent"}))
    ours.step()
    slurm.now_s += 10
    slurm.held("2")
    ours.step()
    slurm.jobs["2"] |= changed
    assert states(slurm) == {"1": "RUNNING", "2": "RUNNING"}
    return slurm, ours


def states(slurm: FakeSlurm) -> dict[str, object]:
    return {job_id: job.get("State", "PENDING") for job_id, job in slurm.jobs.items()}


def test_an_urgent_job_takes_the_place_of_the_last_that_berth_started(tmp_path: Path) -> None:
    slurm, ours = two_cards(tmp_path)
    slurm.held("3", Partition="urgent")
    for _ in range(3):
        ours.step()
    assert states(slurm) == {"1": "RUNNING", "2": "PENDING", "3": "RUNNING"}
    assert "share=" not in str(slurm.jobs["2"]["admin_comment"])
    assert slurm.jobs["2"]["RestartCnt"] == "1"
    slurm.end("3")
    slurm.jobs["2"]["StartTime"] = "N/A"  # Slurm has forgotten the attempt before
    for _ in range(3):
        ours.step()
    assert states(slurm) == {"1": "RUNNING", "2": "RUNNING", "3": "COMPLETED"}


def test_a_job_that_made_room_is_not_released_onto_the_gpu_of_the_next_urgent_job(tmp_path: Path) -> None:
    slurm, ours = two_cards(tmp_path)
    for job_id in "345":
        slurm.held(job_id, Partition="urgent")
    for _ in range(3):
        ours.step()
    assert states(slurm) == {"1": "PENDING", "2": "PENDING", "3": "RUNNING", "4": "RUNNING", "5": "PENDING"}
    for job_id in "12":
        slurm.jobs[job_id]["StartTime"] = "N/A"  # Slurm has forgotten the attempt before
    slurm.end("3")
    for _ in range(3):
        ours.step()
    assert states(slurm) == {"1": "PENDING", "2": "PENDING", "3": "COMPLETED", "4": "RUNNING", "5": "RUNNING"}
    assert [job for event, job, _ in events(tmp_path) if event == PLACED] == ["1", "2", "3", "4", "5"]


def test_a_stranger_stays_and_what_berth_started_leaves_though_it_began_before(tmp_path: Path) -> None:
    slurm, ours = two_cards(tmp_path, admin_comment="ticket 7")
    slurm.held("3", Partition="urgent")
    slurm.held("4", Partition="urgent")
    for _ in range(3):
        ours.step()
    assert states(slurm) == {"1": "PENDING", "2": "RUNNING", "3": "RUNNING", "4": "PENDING"}
    assert not [line for line in slurm.commands if line.endswith(" 2") and "requeue" in line]


def test_no_job_takes_the_place_of_one_of_its_own_tier(tmp_path: Path) -> None:
    slurm, ours = two_cards(tmp_path)
    slurm.held("3", PriorityLong="4000000000")
    ours.step()
    assert states(slurm) == {"1": "RUNNING", "2": "RUNNING", "3": "PENDING"}


def test_a_job_that_slurm_does_not_queue_again_runs_on_and_another_leaves(tmp_path: Path) -> None:
    slurm, ours = two_cards(tmp_path, no_requeue=True)
    slurm.starts = False  # as long as the card is not free
    slurm.held("3", Partition="urgent")
    ours.step()
    slurm.starts = True
    for _ in range(6):
        ours.step()
    assert states(slurm) == {"1": "PENDING", "2": "RUNNING", "3": "RUNNING"}
    assert [job for event, job, _ in events(tmp_path) if event == GIVEN_UP] == ["2"]


def test_no_component_is_released_if_a_job_keeps_the_gpu_of_another(tmp_path: Path) -> None:
    slurm = FakeSlurm(tiers={"urgent": 10})
    ours = service(slurm, tmp_path, policy="preempt+fifo+best-fit", partitions=frozenset({"gpu", "urgent"}))
    for job_id in "1234":
        slurm.held(job_id)
        ours.step()
        slurm.now_s += 10
    slurm.jobs["3"]["no_requeue"] = True
    slurm.held_components("gres:gpu:1", "gres:gpu:1", first=20, Partition="urgent")
    del slurm.commands[:]
    ours.step()
    assert states(slurm) == dict.fromkeys("134", "RUNNING") | dict.fromkeys(("2", "20", "21"), "PENDING")
    assert not [line for line in slurm.commands if line.endswith("release 20") or "TresPerNode" in line]
    for _ in range(3):
        ours.step()
    assert {job_id: states(slurm)[job_id] for job_id in ("3", "20", "21")} == dict.fromkeys(
        ("3", "20", "21"), "RUNNING"
    )


def test_the_agent_follows_slurms_own_suspensions_and_leaves_users_orders_alone(tmp_path: Path) -> None:
    slurm, ours = two_cards(tmp_path)
    report(tmp_path, {"1": 250, "2": 250})
    order(tmp_path, "1", BY_USER)
    slurm.jobs["2"]["State"] = "SUSPENDED"
    ours.step()
    assert orders(tmp_path) == {"1": BY_USER, "2": BY_BERTH}
    slurm.jobs["2"]["State"] = "RUNNING"
    ours.step()
    assert orders(tmp_path) == {"1": BY_USER}


URGENT = r"""
chmod 777 .
install_berth --partitions gpu,urgent
place --partitions gpu,urgent --policy preempt+fifo+best-fit --card v100=1G
stranger=$(submit -p plain --gres=gpu:1 --wrap "sleep 600")
until_is $stranger RUNNING
low=$(submit --requeue --gres=gpu:1 --wrap 'echo $SLURM_RESTART_COUNT; [ -n "$SLURM_RESTART_COUNT" ] || sleep 600')
until_is $low RUNNING
urgent=$(submit -p urgent --gres=gpu:1 --wrap "sleep 1")
until_is $urgent COMPLETED
until_is $low COMPLETED
scontrol show job $stranger | grep -o "JobState=[A-Z]* \|Restarts=[0-9]*" >stranger.txt
scontrol show job $low | grep -o "Restarts=[0-9]*" >low.txt
"""


@pytest.mark.slow
@needs_slurm
@needs_root
def test_slurm_queues_what_makes_room_again_and_leaves_strangers_alone(open_folder: Path) -> None:
    setup = open_folder / "setup.sh"
    plain = "PartitionName=plain Nodes=ALL MaxTime=60 DefMemPerCPU=500"
    setup.write_text(
        f"printf '{plain}\\n{plain.replace('plain', 'urgent')} PriorityTier=10\\n' >>$DIR/slurm.conf\n"
    )
    folder = tell(open_folder / "slurm", URGENT, CLUSTER_NODES="1", CLUSTER_SETUP=str(setup))
    assert (folder / "stranger.txt").read_text().split() == ["JobState=RUNNING", "Restarts=0"]
    assert (folder / "low.txt").read_text() == "Restarts=1\n"
