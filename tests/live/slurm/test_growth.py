"""The scheduler beside Slurm counts what jobs have grown by, as the nodes' agents report it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from berth.live.driver.idling import Need
from berth.live.driver.node_tenants import Shown
from berth.live.slurm.agent import REPORTS, SILENT_S, STATUS, Wanted
from berth.live.slurm.service import Service
from berth.tenants import SUSPENDED
from tests.live.slurm.fake_slurm import FakeSlurm
from tests.live.slurm.services import service

CARD_MIB = 1000


def report(
    state: Path, limits_mib: dict[str, int], suspension: str = "", age_s: float = 0.0, *, idle: bool = False
) -> None:
    """What node1's agent says of jobs that were promised 250 MiB."""
    shown = [
        Shown(f"{job_id}-node1", (0,), 250, limit_mib, CARD_MIB, 0, 0, 0, 0, suspension, None, 0, "", idle)
        for job_id, limit_mib in limits_mib.items()
    ]
    (state / REPORTS).mkdir(exist_ok=True)
    path = state / REPORTS / "node1"
    path.write_text(json.dumps([each._asdict() for each in shown]))
    then_s = time.time() - age_s
    os.utime(path, (then_s, then_s))


def one_of_two_cards_shared(state: Path) -> tuple[FakeSlurm, Service]:
    """Job 1 has 250 MiB of the first card of the only node, and job 2 the second card."""
    slurm = FakeSlurm(nodes={"node1": "IDLE"})
    slurm.held("1", Comment="gpu_mem=250M")
    slurm.held("2")
    ours = service(slurm, state, card_mib={"v100": CARD_MIB})
    ours.step()
    assert {job_id: job.get("State") for job_id, job in slurm.jobs.items()} == {
        "1": "RUNNING",
        "2": "RUNNING",
    }
    return slurm, ours


def has_of_card(ours: Service) -> dict[str, int]:
    return {job_id: run.share.mem_mib for job_id, run in ours.driver.scheduler.cluster.running.items()}


@pytest.mark.parametrize("restarted", [False, True])
def test_a_job_waits_for_what_another_has_grown_by(tmp_path: Path, restarted: bool) -> None:
    slurm, ours = one_of_two_cards_shared(tmp_path)
    report(tmp_path, {"1": 700})
    slurm.held("3", Comment="gpu_mem=500M")
    if restarted:
        ours = service(slurm, tmp_path, card_mib={"v100": CARD_MIB})
    ours.step()
    assert (has_of_card(ours)["1"], slurm.jobs["3"].get("State", "PENDING")) == (700, "PENDING")
    report(tmp_path, {})
    slurm.end("1")
    ours.step()
    assert slurm.jobs["3"]["State"] == "RUNNING"


@pytest.mark.parametrize(
    ("limit_mib", "suspension", "age_s"),
    [(250, "", 0.0), (100, "", 0.0), (700, SUSPENDED, 0.0), (700, "", 2 * SILENT_S)],
    ids=["not grown", "less than promised", "suspended", "no agent lives"],
)
def test_else_a_job_counts_as_it_was_promised(
    tmp_path: Path, limit_mib: int, suspension: str, age_s: float
) -> None:
    slurm, ours = one_of_two_cards_shared(tmp_path)
    report(tmp_path, {"1": limit_mib}, suspension, age_s)
    slurm.held("3", Comment="gpu_mem=500M")
    ours.step()
    ours.step()
    assert (has_of_card(ours)["1"], slurm.jobs["3"]["State"]) == (250, "RUNNING")


def test_what_an_idle_job_has_left_is_for_others_until_its_next_call(tmp_path: Path) -> None:
    slurm, ours = one_of_two_cards_shared(tmp_path)
    slurm.held("3", Comment="gpu_mem=900M")
    ours.step()
    wanted = Wanted(tmp_path)
    assert (wanted.on({"node1"}), wanted.on({"node2"})) == ([Need(1, (), 0, 900)], [])
    report(tmp_path, {"1": 250}, SUSPENDED, idle=True)
    ours.step()
    assert (has_of_card(ours)["1"], slurm.jobs["3"]["State"]) == (1, "RUNNING")
    report(tmp_path, {"1": 250})
    ours.step()
    assert "1" in ours.driver.unplaced, "it is back, and its agent has job 3 make room"
    slurm.end("3")
    ours.step()
    assert (has_of_card(ours)["1"], ours.driver.unplaced) == (250, {})
    then_s = time.time() - 2 * SILENT_S
    os.utime(tmp_path / STATUS, (then_s, then_s))
    assert wanted.on({"node1"}) == []


def test_what_jobs_want_counts_while_the_status_cannot_be_read_but_not_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / STATUS).write_text(json.dumps({"wanted": {"node1": [[0, 900]]}}))
    wanted = Wanted(tmp_path)
    assert wanted.on({"node1"}) == [Need(1, (), 0, 900)]
    (tmp_path / STATUS).unlink()
    assert wanted.on({"node1"}) == [Need(1, (), 0, 900)]
    then_s = time.time() + 2 * SILENT_S
    monkeypatch.setattr(time, "time", lambda: then_s)
    assert wanted.on({"node1"}) == []


def test_growth_takes_no_room_that_another_was_promised(tmp_path: Path) -> None:
    slurm, ours = one_of_two_cards_shared(tmp_path)
    slurm.held("3", Comment="gpu_mem=500M")
    ours.step()
    report(tmp_path, {"1": 900, "3": 100})  # job 3 began with what was left
    ours.step()
    assert {job_id: mem_mib for job_id, mem_mib in has_of_card(ours).items() if job_id != "2"} == {
        "1": 500,
        "3": 500,
    }
    again = service(slurm, tmp_path, card_mib={"v100": CARD_MIB})
    again.step()
    assert (has_of_card(again), again.driver.unplaced) == (has_of_card(ours), {})
