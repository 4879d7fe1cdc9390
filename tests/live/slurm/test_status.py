"""`berth slurm status`: Slurm's GPUs and jobs, as every site shows its own."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from berth.cli.slurm import app
from berth.errors import LiveError
from berth.live.driver.snapshot import Snapshot
from berth.live.slurm import controller
from berth.live.slurm.agent import STATUS
from berth.live.slurm.decisions import Decision, append
from berth.live.slurm.service import DECISIONS
from berth.live.slurm.snapshot import read_status
from tests.live.slurm.fake_slurm import FakeSlurm
from tests.live.slurm.services import NOTE, service

HELD = {"State": "PENDING", "Reason": "JobHeldAdmin", "PriorityLong": "0", "admin_comment": NOTE}


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """A Slurm with one job, on which berth has decided once."""
    found = FakeSlurm(nodes={"node1": "IDLE"})
    found.jobs = {"8": {"JobID": "8", **HELD}}
    service(found, tmp_path, places=False).step()
    asked = controller.Controller(found)
    monkeypatch.setattr("berth.cli.slurm.Controller", lambda: asked)
    return found


def shown(state: Path, *words: str) -> str:
    done = CliRunner().invoke(app, ["status", "--state", str(state), *words])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_json_is_the_snapshot_of_every_site_with_what_berth_says_of_itself(
    slurm: FakeSlurm, tmp_path: Path
) -> None:
    told = json.loads(shown(tmp_path, "--json"))
    assert set(told) == {field.name for field in fields(Snapshot)} | {"service"}
    assert [(job["id"], job["state"], job["gpus"]) for job in told["jobs"]] == [("8", "waiting", 1)]
    assert {gpu["node"] for gpu in told["gpus"]} == {"node1"}
    assert told["service"]["mode"] == "advise"


def test_the_table_names_each_gpu_and_the_jobs_that_wait(slurm: FakeSlurm, tmp_path: Path) -> None:
    text = shown(tmp_path)
    gpus = len(json.loads(shown(tmp_path, "--json"))["gpus"])
    assert f"{gpus} GPUs on 1 node; jobs: 0 running, 1 waiting" in text
    assert text.count("node1 ") == gpus


def test_a_user_who_may_not_read_what_berth_says_is_told_so(slurm: FakeSlurm, tmp_path: Path) -> None:
    (tmp_path / STATUS).chmod(0)
    own = os.geteuid()
    try:
        if own == 0:
            os.seteuid(65534)
        with pytest.raises(LiveError, match="permission denied; if Slurm has PrivateData=jobs"):
            read_status(tmp_path)
    finally:
        os.seteuid(own)


def test_cards_have_the_memory_that_the_service_was_told(slurm: FakeSlurm, tmp_path: Path) -> None:
    service(slurm, tmp_path, places=False, card_mib={"v100": 5120}).step()
    assert {gpu["mem_mib"] for gpu in json.loads(shown(tmp_path, "--json"))["gpus"]} == {5120}


def test_a_slurm_that_does_not_answer_is_a_note(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.gone = True
    told = json.loads(shown(tmp_path, "--json"))
    assert (told["gpus"], told["notes"]) == ([], ["Slurm does not answer: slurmctld does not answer"])


def test_a_job_that_waits_has_its_start_interval(slurm: FakeSlurm, tmp_path: Path) -> None:
    status = json.loads((tmp_path / STATUS).read_text(encoding="utf-8"))
    far_ms = 1000 * round(time.time() + 1_000_000)
    for from_ms, to_ms in ((far_ms, far_ms + 60_000), (61_000, far_ms)):
        status["starts"] = {"8": [from_ms, to_ms]}
        (tmp_path / STATUS).write_text(json.dumps(status), encoding="utf-8")
        told = json.loads(shown(tmp_path, "--json"))
        (job,) = told["jobs"]
        begins_ms = max(from_ms, told["at_ms"])  # no start is in the past
        assert (job["starts_from_ms"], job["starts_to_ms"]) == (begins_ms, to_ms)


def test_shards_that_slurm_counts_and_no_job_has_are_a_note(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.leaked = {("node1", "v100_1")}
    service(slurm, tmp_path, places=False).step()
    (note,) = json.loads(shown(tmp_path, "--json"))["notes"]
    assert note.startswith("Slurm counts shards that no job has (1 of node1:1)")


def test_an_adviser_that_ends_prints_the_waits_of_slurm_and_its_own(slurm: FakeSlurm, tmp_path: Path) -> None:
    append(tmp_path / DECISIONS, [
        Decision(11_000, "advised", "1", submit_ms=10_000, where="node1:0"),
        Decision(21_000, "started", "1", "1", submit_ms=10_000, start_ms=20_000, gpus=1),
        Decision(30_000, "ended", "1", "1", end_ms=30_000, state="COMPLETED"),
    ])  # fmt: skip
    before = signal.getsignal(signal.SIGTERM)
    try:
        done = CliRunner().invoke(
            app, ["run", "--state", str(tmp_path), "--for", "0"], catch_exceptions=False
        )
    finally:
        signal.signal(signal.SIGTERM, before)
    assert done.stdout.splitlines() == [
        "                             Slurm       berth",
        "wait, mean                  10.0 s       1.0 s",
        "wait, median                10.0 s       1.0 s",
        "1 starts; berth would have started 1 more than a second earlier, and",
        "0 not before Slurm did; 0 placements were taken back",
        "GPUs in use: 25.0 % of 2",
    ]
