"""A job's page: of the live queue first, else of the history, and to whom its command and output are shown."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from berth.console.roles import Role
from berth.console.schemas import AttemptAnswer
from berth.console.sources import local
from berth.console.sources.slurm import SlurmSource
from berth.history.importing.simulated import import_records
from berth.history.store.folder import open_history
from berth.history.store.import_result import Options
from berth.history.store.record_files import write_records
from berth.live.driver.snapshot import Gpu, LiveJob, Snapshot, Tenant
from berth.live.slurm.decisions import ENDED, PLACED, STARTED, Decision, append
from berth.live.slurm.service import DECISIONS
from berth.model import Record, RecordState, Share
from tests.console.values import ValuesSource, look_of
from tests.console.world import World
from tests.live.slurm.fake_slurm import FakeSlurm


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, sources=[ValuesSource(look_of(gpus=8, waiting=12))], actions=True)


def test_its_owner_sees_command_output_and_use(world: World) -> None:
    job = world.program("ann").get("/api/v1/jobs/1").json()
    assert (job["user"], job["command"], job["output"]) == (
        "ann",
        "python train.py --name train-0",
        "epoch 1\nepoch 2\n",
    )
    assert len(job["series"]) == 50
    page = world.browser("ann").get("/job/1").text
    assert "epoch 2" in page
    assert 'data-action="cancel"' in page


@pytest.mark.parametrize(("user", "role"), [("bob", Role.USER), ("ann", Role.VIEWER)])
def test_nobody_else_sees_them_or_gets_a_button(world: World, user: str, role: Role) -> None:
    job = world.program(user, role).get("/api/v1/jobs/1").json()
    assert (job["command"], job["output"], job["name"], job["series"]) == (None, None, "", [])
    page = world.browser(user, role).get("/job/1").text
    assert "epoch" not in page
    assert "train.py" not in page
    assert "data-action" not in page


def test_an_output_is_followed_by_its_owner_until_the_job_ends(world: World) -> None:
    (source,) = (seen.source for seen in world.app.state.hub.seen.values())
    source.written["1"] = "epoch 1\n"
    ann = world.program("ann")
    first = ann.get("/api/v1/output/1", params={"source": "local"}).json()
    assert first == {"text": "epoch 1\n", "next": 8, "skipped": 0, "ended": False}
    source.written["1"] += "epoch 2\n"
    look = source.value
    source.value = replace(
        look, jobs=tuple(replace(job, end_ms=9) if job.id == "1" else job for job in look.jobs)
    )
    after = ann.get("/api/v1/output/1", params={"source": "local", "after": first["next"]}).json()
    assert (after["text"], after["ended"]) == ("epoch 2\n", True)
    assert ann.get("/api/v1/output/1", params={"source": "other"}).status_code == 404
    assert world.program("bob").get("/api/v1/output/1", params={"source": "local"}).status_code == 403
    assert 'data-address="/api/v1/output/1?source=local"' in world.browser("ann").get("/job/1").text
    assert "data-address" not in world.browser("bob").get("/job/1").text


def test_jobs_are_chosen_together_by_who_may_change_them(world: World) -> None:
    mine = world.browser("ann").get("/queue?size=1000").text
    look = look_of(gpus=8, waiting=12)
    own = [job.id for job in look.jobs if job.user == "ann"]
    assert [job.id for job in look.jobs if f'<input type="checkbox" value="{job.id}"' in mine] == own
    assert "berth requeue 1&#34;" in mine
    assert "checkbox" not in world.browser("ann", Role.VIEWER).get("/queue").text


def test_a_waiting_job_says_why_and_can_be_held_by_its_owner_alone(world: World) -> None:
    page = world.browser("ann").get("/job/100000").text
    assert "waits for room" in page
    assert 'data-command="berth hold 100000"' in page
    assert "data-action" not in world.browser("bob").get("/job/100000").text


def test_a_job_that_nobody_knows_is_not_found_with_what_each_said(world: World) -> None:
    answer = world.program("ann").get("/api/v1/jobs/none")
    assert answer.status_code == 404
    assert answer.json()["detail"] == "no job 'none'; there is no job 'none'"


def test_a_wait_counts_from_when_the_job_could_start(tmp_path: Path) -> None:
    source = ValuesSource(look_of(gpus=8, waiting=12))
    ann = World(tmp_path, sources=[source]).browser("ann")
    page = " ".join(ann.get("/job/100009").text.split())
    assert "It cannot start yet: held by its user It was submitted" in page
    assert "It has waited" not in page
    day_ms = 86_400_000
    waits = next(job for job in source.value.jobs if job.id == "100000")
    now_ms = time.time_ns() // 1_000_000
    waits = replace(waits, submit_ms=now_ms - 9 * day_ms, ready_ms=now_ms - 5 * day_ms)
    source.value = replace(source.value, jobs=(waits,))
    assert "It has waited 5.0 d: waits for room" in ann.get("/job/100000").text


def ended(job: str, user: str, start_ms: int, *slots: str) -> Record:
    return Record(
        job_id=job, attempt=1, user=user, application="", virtual_cluster="", submit_ms=1000, queued_ms=1000,
        start_ms=start_ms, end_ms=start_ms + 5000, state=RecordState.COMPLETED, gpus=1, share=Share(300, 0),
        cpu_milli=0, mem_mib=0, nodes=("n1",), gpu_model="", work_ms=None, gpu_slots=slots,
    )  # fmt: skip


@pytest.fixture
def shared(tmp_path: Path) -> World:
    """A GPU on which jobs 1 and 2 have ended and job 3 still runs, and job 4, whose place is not known."""
    records = [ended("1", "ann", 2000, "n1:0"), ended("2", "bob", 4000, "n1:0"), ended("4", "ann", 2000)]
    write_records(records, tmp_path / "made.parquet")
    import_records(open_history(tmp_path / "h"), tmp_path / "made.parquet", Options(cluster="n1"))
    gone = [
        LiveJob(each.job_id, each.user, "", "completed", 1, 300, 0, 1000, 1000, each.start_ms)
        for each in records
    ]
    tenant = Tenant("3", "chae", "", 300, 0, since_ms=3000)
    look = Snapshot(9000, (Gpu("n1", 0, "A100", 81_920, (tenant,)),), tuple(gone), 0, 1)
    return World(tmp_path / "state", sources=[ValuesSource(look)], history=tmp_path / "h")


def test_an_ended_attempt_says_with_whom_it_shared_and_whether_that_is_known(shared: World) -> None:
    def beside(user: str, job: str) -> object:
        (story,) = (
            shared.program(user).get(f"/api/v1/jobs/{job}", params={"source": "local"}).json()["history"]
        )
        return story["attempts"][0]["neighbours"]

    assert beside("ann", "1") == [
        {"job": "2", "user": "bob", "gpus": ["n1:0"]},
        {"job": "3", "user": "chae", "gpus": ["n1:0"]},
    ]
    assert (beside("ann", "4"), beside("bob", "1")) == (None, None)
    page = shared.browser("ann")
    assert '<a href="/job/2">2</a> (bob), <a href="/job/3">3</a> (chae)' in page.get("/job/1").text
    assert "not known: its GPUs were not recorded" in page.get("/job/4").text
    assert "not known" not in page.get("/job/2").text  # it is hidden from ann, which is something else


def test_of_a_name_each_user_finds_the_last_job_of_their_own(tmp_path: Path) -> None:
    records = [
        replace(ended(job, user, 2000), queued_ms=queued_ms, name="train")
        for job, user, queued_ms in (("5", "ann", 1000), ("6", "ann", 1001), ("7", "bob", 1002))
    ]
    write_records(records, tmp_path / "made.parquet")
    import_records(open_history(tmp_path / "h"), tmp_path / "made.parquet", Options(cluster="n1"))
    world = World(tmp_path / "state", sources=[], history=tmp_path / "h")

    def found(user: str, role: Role = Role.USER) -> list[str] | int:
        answer = world.program(user, role).get("/api/v1/jobs/train")
        if answer.status_code != 200:
            return int(answer.status_code)
        return [each["job"] for each in answer.json()["history"]]

    assert (found("ann"), found("bob"), found("chae")) == (["6"], ["7"], 404)
    assert (found("ann", Role.VIEWER), found("chae", Role.OPERATOR)) == (404, ["7"])


def line(event: str, raw: str = "7", at_s: int = 0, **values: Any) -> Decision:
    at_ms = 1_767_225_600_000
    return Decision(
        at_ms + 1000 * at_s, event, raw, raw, submit_ms=at_ms, user="ann", gpus=1, milli=500, **values
    )


@pytest.fixture
def beside_slurm(tmp_path: Path) -> World:
    """Job 7 of ann has ended, and Slurm has forgotten it; job 8 has ended and Slurm still knows it."""
    for raw in ("7", "8"):
        began_ms = line(PLACED).at_ms + 100_000
        lines = [
            line(PLACED, raw, 60, mem_mib=20_480, where="n1:0"),
            line(STARTED, raw, 100, start_ms=began_ms, where="n1:0", partition="gpu"),
            line(ENDED, raw, 1100, start_ms=began_ms, end_ms=began_ms + 1_000_000, where="n1", state="COMPLETED",
                 peak_mib=9000, card_mib=81_920, gpu_ms=200_000),
        ]  # fmt: skip
        append(tmp_path / DECISIONS, lines)
    slurm = FakeSlurm()
    slurm.jobs = {"8": {"JobID": "8", "State": "COMPLETED", "UserName": "ann", "Account": "vision"}}

    def run(words: Sequence[str], told: str) -> str:
        if words[0] == "sacctmgr":
            return "vision,speech\n" if "carol" in words else "\n"
        return slurm(words, told)

    return World(tmp_path / "state", sources=[SlurmSource(tmp_path, run)])


def test_a_job_of_slurm_tells_its_use_waits_and_what_was_enough(beside_slurm: World) -> None:
    found = beside_slurm.program("ann").get("/api/v1/jobs/7").json()["ending"]
    assert found == {
        "waits": [
            {"seconds": 60.0, "cause": "room on GPUs, until berth placed it"},
            {"seconds": 40.0, "cause": "Slurm to start it"},
        ],
        "used_mib": 9000, "promised_mib": 20_480, "card_mib": 81_920, "use_pct": 20.0, "promised_pct": 50.0,
        "enough_gpu": 0.3, "enough_mib": 11_264, "gpu_hours": pytest.approx(500 / 3600),
        "idle_gpu_hours": pytest.approx(300 / 3600), "such_jobs": 0, "half_start_s": None, "most_start_s": None,
    }  # fmt: skip
    page = beside_slurm.browser("ann").get("/job/7").text
    assert "0.3 of a GPU and 11 GiB of GPU memory would have been enough." in page
    assert "8.8 of 20.0 GiB promised" in page
    assert "40 s for Slurm to start it" in page
    assert beside_slurm.program("bob").get("/api/v1/jobs/7").json()["ending"] is None


def test_a_job_that_took_the_compute_that_others_left_was_promised_none(tmp_path: Path) -> None:
    began_ms = line(PLACED).at_ms + 100_000
    append(tmp_path / DECISIONS, [
        line(PLACED, "9", 60, mem_mib=20_480, where="n1:0", best_effort=True),
        line(STARTED, "9", 100, start_ms=began_ms, where="n1:0", partition="gpu"),
        line(ENDED, "9", 1100, start_ms=began_ms, end_ms=began_ms + 1_000_000, where="n1", state="COMPLETED",
             peak_mib=9000, card_mib=81_920, gpu_ms=200_000),
    ])  # fmt: skip
    world = World(tmp_path / "state", sources=[SlurmSource(tmp_path, FakeSlurm())])
    found = world.program("ann").get("/api/v1/jobs/9").json()["ending"]
    assert (found["use_pct"], found["promised_pct"], found["enough_gpu"], found["idle_gpu_hours"]) == (
        20.0,
        None,
        None,
        None,
    )
    page = world.browser("ann").get("/job/9").text
    assert "11 GiB of GPU memory would have been enough." in page
    assert '<span class="value">20 %</span>' in page


@pytest.mark.parametrize(("user", "sees"), [("ann", True), ("carol", True), ("bob", False)])
def test_coordinators_of_an_account_see_its_jobs(beside_slurm: World, user: str, sees: bool) -> None:
    found = beside_slurm.program(user).get("/api/v1/jobs/8").json()
    assert (found["own"], found["ending"] is not None, found["controls"]) == (sees, sees, user == "ann")


@pytest.mark.slow
def test_a_waiting_job_has_its_start_interval(tmp_path: Path) -> None:
    look = look_of(gpus=8, waiting=2)
    jobs = tuple(replace(each, starts_from_ms=5000, starts_to_ms=9000) for each in look.jobs)
    world = World(tmp_path, sources=[ValuesSource(replace(look, jobs=jobs))])
    found = world.program("ann").get("/api/v1/jobs/100000").json()
    assert (found["starts_from_ms"], found["starts_to_ms"]) == (5000, 9000)
    assert 'Expected start: <time data-ms="5000">' in world.browser("ann").get("/job/100000").text
    assert world.program("ann").get("/api/v1/jobs/1").json()["starts_from_ms"] is None


def test_a_job_of_this_machine_tells_what_was_enough() -> None:
    attempt = {
        "start_ms": 30_000, "end_ms": 3_630_000, "share": (1000, 40_960), "slots": [0], "peak_mib": 9000.0,
        "exit_code": 0,
    }  # fmt: skip
    job = {
        "state": "completed", "attempts": [attempt], "submit_ms": 0, "ready_ms": 10_000, "milli": 1000, "gpus": 2,
    }  # fmt: skip
    status = {"gpus": [], "jobs": [], "waiting": 0}
    found = local.ending_of(job, [{"use_pct": 30.0}, {"use_pct": None}, {"use_pct": 40.0}], status)
    assert found is not None
    assert (found["enough_gpu"], found["enough_mib"], found["gpu_hours"]) == (0.5, 11_264, 2.0)
    assert found["waits"] == [
        {"seconds": 10.0, "cause": "not eligible"},
        {"seconds": 20.0, "cause": "resources"},
    ]
    assert local.ending_of({**job, "state": "running"}, [], status) is None
    failed = local.ending_of({**job, "attempts": [{**attempt, "exit_code": 1}]}, [], status)
    assert failed is not None
    assert (failed["enough_mib"], failed["use_pct"], failed["idle_gpu_hours"]) == (None, None, None)


@pytest.mark.parametrize(
    ("own", "detail"), [(True, (1, "out of memory", 9000.0, 2)), (False, (None, "", None, None))]
)
def test_an_attempt_of_this_machine_has_what_the_answer_names_and_nothing_else(
    own: bool, detail: tuple[object, ...]
) -> None:
    attempt = {
        "job": "7", "attempt": 1, "queued_ms": 0, "state": "failed", "start_ms": 5, "end_ms": 9, "exit_code": 1,
        "reason": "out of memory", "slots": [0], "share": (1000, 40_960), "peak_mib": 9000.0, "refused": 2,
        "cpu_ms": 4, "mem_peak_mib": 3, "request_key": "key", "submit_ms": 0, "user": "ann", "index": 0,
        "params": "secret", "run": "7-1", "suspended_ms": 0,
    }  # fmt: skip
    found = local.attempt_of(attempt, "here", own)
    assert found.keys() == AttemptAnswer.model_fields.keys()
    assert tuple(found[name] for name in ("exit_code", "reason", "peak_mib", "refused")) == detail
    assert (found["state"], found["given_mib"], found["where"]) == ("failed", 40_960, "here GPU 0")


def test_a_reason_leaves_the_start_to_its_own_column(tmp_path: Path) -> None:
    look = look_of(gpus=8, waiting=2)
    why = "waits for room; 3 jobs before it; expected to start from 2026-11-24 08:00:00 to 09:00:00 (Slurm: Priority)"
    jobs = tuple(
        replace(
            each, starts_from_ms=5000, starts_to_ms=9000, why=why if each.state == "waiting" else each.why
        )
        for each in look.jobs
    )
    client = World(tmp_path, sources=[ValuesSource(replace(look, jobs=jobs))]).browser("ann")
    for address in ("/queue", "/job/100000"):
        page = client.get(address).text
        assert "waits for room; 3 jobs before it (Slurm: Priority)" in page
        assert "expected to start" not in page
        assert page.count("Expected start") == 1
