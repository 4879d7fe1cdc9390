"""Jobs that leave their GPUs and run on later, on one machine: real processes on fake GPUs."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from berth.errors import LiveError
from berth.live.driver import suspending
from berth.live.driver.suspending import Suspending
from berth.live.local.entry import End, Entry
from berth.live.local.host import BookHost
from berth.live.local.protocol import Connection
from berth.live.local.request import Request, Tasks
from berth.live.local.snapshot import jobs_of
from berth.partition.checkpoint import Outcome
from tests.live.local.asking_storm import movers
from tests.live.local.fake_world import FakeWorld
from tests.live.local.world import World, berth

JOB = Path(__file__).with_name("gpu_job.py")


@pytest.fixture
def world() -> Iterator[World]:
    """A queue of one fake GPU of 80 GiB."""
    made = World(gpus="1xA100-80G")
    try:
        made.up()
        yield made
    finally:
        made.close()


def holds(world: World, mib: int, until: str, *, unkind: str = "", **flags: Any) -> str:
    """A job that holds GPU memory until a file is there, and runs."""
    told = f"BERTH_FAKE_CHECKPOINT={unkind} " if unkind else ""
    job = world.submit(f"{told}exec {sys.executable} {JOB} {mib} {world.folder / until}", **flags)
    world.until(
        lambda: f"holds {mib}" in said(world, job) and world.state_of(job) == "running",
        f"job {job} runs and holds {mib} MiB",
    )
    return job


def said(world: World, job: str) -> str:
    try:
        return world.output(job)
    except OSError:
        return ""


def shown(world: World, job: str) -> tuple[str, str, str]:
    """State, GPUs and reason of a job, as `berth queue` has them."""
    (found,) = jobs_of(world.ask("queue", ids=[job]))
    return found.state, found.where, found.why


def used_mib(world: World) -> int | None:
    status = world.status()
    used: int | None = (status or {})["gpus"][0]["used_mib"]
    return used


def pid_of(world: World, job: str) -> int:
    return int((world.state / "runs" / f"{job}-1" / "began").read_text().split()[0])


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_suspended_job_lends_its_gpu_and_runs_on_with_all_it_held(world: World) -> None:
    job = holds(world, 60_000, "go")
    done = berth(world, "suspend", job)
    assert (done.returncode, done.stdout) == (0, f"job {job}: suspended\n")
    by_user = f"suspended by its user; after `berth resume {job}` it runs on when GPU 0 has room"
    assert shown(world, job) == ("suspended", "", by_user)
    assert by_user.removeprefix("suspended") in berth(world, "why", job).stdout
    world.until(lambda: is_stopped(pid_of(world, job)), "its processes stand still")
    world.until(lambda: used_mib(world) == 0, "the card is seen to be free")
    status = world.status()
    assert status is not None
    assert (status["jobs"]["suspended"], status["jobs"]["running"], status["gpus"][0]["tenants"]) == (
        1,
        0,
        [],
    )
    other = holds(world, 70_000, "other")
    assert berth(world, "resume", job).stdout == (
        f"job {job}: suspended (it runs on as soon as its GPUs have room)\n"
    )
    assert shown(world, job) == ("suspended", "", "suspended; it runs on when GPU 0 has room")
    (world.folder / "other").touch()
    assert world.wait(other) == {other: ("completed", 0)}
    world.until(lambda: world.state_of(job) == "running", "it runs on")
    (world.folder / "go").touch()
    assert world.wait(job) == {job: ("completed", 0)}
    (attempt,) = world.job(job)["attempts"]
    assert (attempt["attempt"], attempt["peak_mib"]) == (1, 60_000)
    assert 0 < attempt["suspended_ms"] < attempt["end_ms"] - attempt["start_ms"]


@pytest.mark.slow
@pytest.mark.parametrize("unkind", ["no-lock", "shares"])
def test_a_job_that_cannot_be_suspended_runs_on_and_its_user_is_told_why(world: World, unkind: str) -> None:
    job = holds(world, 1000, "go", unkind=unkind)
    done = berth(world, "suspend", job)
    assert done.returncode != 0
    assert f"job {job} could not be suspended: process {pid_of(world, job)} cannot be" in done.stderr
    assert "it runs on" in done.stderr
    assert world.state_of(job) == "running"
    (world.folder / "go").touch()
    assert world.wait(job) == {job: ("completed", 0)}


def test_what_the_machine_has_no_memory_for_is_said_before_it_begins() -> None:
    world = World(gpus="1xA100-80G")
    world.environment["BERTH_FAKE_HOST_MIB"] = "500"
    try:
        world.up()
        job = holds(world, 1000, "go")
        waiting = world.submit("true")
        with pytest.raises(
            LiveError, match="it holds 1000 MiB of GPU memory, and the machine has 500 MiB free"
        ):
            world.ask("suspend", ids=[job])
        with pytest.raises(LiveError, match="only a running job can be suspended"):
            world.ask("suspend", ids=[waiting])
        with pytest.raises(LiveError, match="only a suspended job can be resumed"):
            world.ask("resume", ids=[job])
        assert (world.state_of(job), is_stopped(pid_of(world, job))) == ("running", False)
    finally:
        world.close()


def test_a_suspended_job_can_be_cancelled(world: World) -> None:
    job = holds(world, 1000, "go")
    world.ask("suspend", ids=[job])
    world.ask("cancel", ids=[job])
    assert world.wait(job)[job][0] == "cancelled"
    (attempt,) = world.job(job)["attempts"]
    assert attempt["suspended_ms"] > 0
    assert world.wait(world.submit("true"))


def fake_world(tmp_path: Path) -> FakeWorld:
    return FakeWorld(tmp_path / "queue.db", cards=1, policy="preempt+priority+best-fit")


def job_of(made: FakeWorld, **asked: Any) -> Entry:
    return made.submit(Request(("true",), gpus=1, milli=1000, mem_mib=0, **asked), Tasks(None, ((),)))[0]


def test_a_time_limit_does_not_run_while_a_job_is_suspended(tmp_path: Path) -> None:
    made = fake_world(tmp_path)
    job = job_of(made, time_limit_ms=5000)
    made.commit()
    made.now_ms += 2000
    made.book.suspend(job, made.now_ms)
    made.commit()
    made.now_ms += 60_000
    made.book.expire(job, made.now_ms)
    assert (job.shown_state, job.stop, job.ran_ms(made.now_ms)) == ("suspended", "", 2000)
    made.book.let_resume(job, made.now_ms)
    made.commit()
    made.commit()
    made.now_ms += 1000
    assert (job.shown_state, job.suspended_ms, job.ran_ms(made.now_ms)) == ("running", 60_000, 3000)


def test_a_job_that_its_shim_ended_at_its_limit_has_reached_it_unless_it_was_done(tmp_path: Path) -> None:
    made = fake_world(tmp_path)
    for end, state in ((End(143, expired=True), "timeout"), (End(0, expired=True), "completed")):
        job = job_of(made, time_limit_ms=5000)
        made.commit()
        made.end(job, end)
        made.commit()
        assert job.state == state


def test_an_urgent_job_gets_its_gpu_by_suspending_the_one_that_matters_least(tmp_path: Path) -> None:
    made = fake_world(tmp_path)
    low = job_of(made)
    made.commit()
    assert low.state == "running"
    made.now_ms += 1000
    urgent, later = job_of(made, priority=5), job_of(made)
    for _ in range(3):
        made.commit()
    assert (low.shown_state, low.resumes, urgent.state, later.state) == (
        "suspended",
        True,
        "running",
        "waiting",
    )
    made.crash()
    low, urgent, later = (made.book.jobs[each.id] for each in (low, urgent, later))
    made.commit()
    assert (low.shown_state, urgent.state) == ("suspended", "running"), "the next broker knows"
    made.now_ms += 9000
    made.end(urgent, End(0))
    for _ in range(3):
        made.commit()
    assert (low.shown_state, low.suspended_ms, later.state) == ("running", 9000, "waiting")
    assert low.attempt == 1


def test_a_job_that_cannot_make_room_by_suspension_is_stopped_as_before(tmp_path: Path) -> None:
    made = fake_world(tmp_path)
    made.moved = lambda entry: made.book.stayed(entry, made.now_ms)  # type: ignore[method-assign]
    low = job_of(made)
    made.commit()
    urgent = job_of(made, priority=5)
    made.commit()
    assert (low.suspension, low.stop) == ("", "preempted")
    made.end(low, End(143))
    for _ in range(3):
        made.commit()
    assert (low.state, low.attempt, urgent.state) == ("waiting", 2, "running")


def test_a_job_is_told_to_come_back_only_after_it_has_left(tmp_path: Path) -> None:
    """The urgent job is cancelled while the other is still leaving for it."""
    made = fake_world(tmp_path)
    made.moved = lambda entry: None  # type: ignore[method-assign]
    low = job_of(made)
    made.commit()
    urgent = job_of(made, priority=5)
    made.book.cancel(urgent, made.now_ms)
    made.book.ended(urgent, End(None, never_ran=True), made.now_ms)
    made.commit()
    assert low.shown_state == "suspending"
    made.book.left_gpus(low, 5000)
    made.commit()
    assert low.shown_state == "resuming"
    made.book.came_back(low, made.now_ms)
    made.commit()
    assert low.shown_state == "running"


def test_a_job_that_is_to_leave_again_while_it_comes_back_leaves_again(tmp_path: Path) -> None:
    made = fake_world(tmp_path)
    low = job_of(made)
    made.commit()
    urgent = job_of(made, priority=5)
    made.commit()
    made.commit()
    made.moved = lambda entry: None  # type: ignore[method-assign]
    made.now_ms += 9000
    made.end(urgent, End(0))
    made.commit()
    assert low.shown_state == "resuming"
    second = job_of(made, priority=5)
    made.commit()
    assert low.shown_state == "suspending"
    made.book.came_back(low, made.now_ms)
    made.commit()
    assert low.shown_state == "suspending", "that it came back is no news any more"
    made.book.left_gpus(low, 5000)
    made.commit()
    made.end(second, End(0))
    made.commit()
    made.now_ms += 1000
    made.book.came_back(low, made.now_ms)
    made.commit()
    assert (low.shown_state, low.suspended_ms, low.attempt) == ("running", 10_000, 1)


def test_a_job_that_its_user_suspends_is_stopped_if_it_stays_and_others_wait_for_its_gpu(
    tmp_path: Path,
) -> None:
    made = fake_world(tmp_path)
    made.moved = lambda entry: None  # type: ignore[method-assign]
    low = job_of(made)
    made.commit()
    made.book.suspend(low, made.now_ms)
    urgent = job_of(made, priority=5)
    made.commit()
    made.book.stayed(low, made.now_ms)
    assert low.stop == "preempted"
    made.end(low, End(143))
    for _ in range(3):
        made.commit()
    assert (low.state, urgent.state) == ("waiting", "running")


def test_one_that_left_for_another_resumes_when_that_is_suspended_by_its_user(tmp_path: Path) -> None:
    made = fake_world(tmp_path)
    parts = Request(("true",), gpus=1, milli=500, mem_mib=100)
    desk, batch = (made.submit(parts, Tasks(None, ((),)))[0] for _ in range(2))
    made.commit()
    assert [desk.state, batch.state] == ["running", "running"]
    book = made.book
    book.suspend_idle(desk, made.now_ms)
    book.left_gpus(desk, 700)
    book.let_resume(desk, made.now_ms)
    book.lend(batch, desk, made.now_ms)
    book.left_gpus(batch, 700)
    assert not batch.resumes
    book.suspend(desk, made.now_ms)
    assert (desk.resumes, batch.resumes) == (False, True)


def test_an_idle_job_whose_gpu_the_brain_wants_too_leaves_though_it_calls(tmp_path: Path) -> None:
    made = fake_world(tmp_path)
    job = job_of(made)
    made.commit()
    made.book.suspend_idle(job, made.now_ms)
    made.book.suspended_by_brain(job.id, made.now_ms)
    assert (job.idle, job.resumes, job.suspension) == (False, True, "suspending")


class Moves:
    """Suspending over a fake world, with a driver that is the test's."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = fake_world(tmp_path)
        self.entry = job_of(self.made)
        self.made.commit()
        self.signals: list[int] = []
        self.asked: list[str] = []
        runner: Any = SimpleNamespace(
            keep_limit=lambda entry: None,
            partition_of=lambda entry: "p",
            signal=lambda entry, number: self.signals.append(number),
        )
        monkeypatch.setattr(suspending, "AGAIN_S", 0.0)
        monkeypatch.setattr(Suspending, "why_not", lambda *_: "")
        monkeypatch.setattr(Suspending, "_held_mib", lambda *_: 700)
        monkeypatch.setattr(Suspending, "_run", lambda _, what, partition: self.run(what, partition))
        monkeypatch.setattr(suspending, "_trouble", lambda **_: "")
        host = BookHost(
            self.made.book, (), runner, None, lambda *_, **__: None, lambda: self.made.now_ms, lambda: None,
            lambda: None, fake=True,
        )  # type: ignore[arg-type]  # fmt: skip
        self.suspending = Suspending(host, leaves=lambda entry: True, runs_on=lambda entry: None)

    async def run(self, what: str, partition: str) -> Outcome:
        self.asked.append(what)
        return Outcome(True)

    async def until(self, state: str) -> None:
        for _ in range(10_000):
            if self.entry.shown_state == state and not self.suspending._moves:
                return
            await asyncio.sleep(0)
        raise AssertionError(f"it is {self.entry.shown_state}, not {state}")


def test_a_move_that_breaks_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moves = Moves(tmp_path, monkeypatch)
    held: Iterator[int | OSError] = iter([OSError("gone"), 700])

    def held_mib(*_: Any) -> int:
        if isinstance(found := next(held), int):
            return found
        raise found

    monkeypatch.setattr(Suspending, "_held_mib", held_mib)

    async def run() -> None:
        moves.made.book.suspend(moves.entry, 0)
        moves.suspending.move(moves.entry)
        await moves.until("suspended")

    asyncio.run(run())
    assert (moves.asked, moves.signals) == (["suspending"], [signal.SIGSTOP])


def test_one_that_ends_while_it_is_moved_is_not_moved_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a node's tenant, of which nobody notes that: its name may be another's by then."""
    moves = Moves(tmp_path, monkeypatch)

    async def driver(what: str, partition: str) -> Outcome:
        moves.asked.append(what)
        moves.made.book.active.pop(moves.entry.id, None)
        return Outcome(True)

    monkeypatch.setattr(Suspending, "_run", lambda _, what, partition: driver(what, partition))

    async def run() -> None:
        moves.made.book.suspend(moves.entry, 0)
        moves.suspending.move(moves.entry)
        for _ in range(100):
            await asyncio.sleep(0)

    asyncio.run(run())
    assert (moves.asked, moves.suspending._moves) == (["suspending"], {})


@pytest.mark.parametrize(("silent", "stop"), [(9, ""), (10, "node-fail")])
def test_processes_that_move_a_job_may_be_killed_often_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent: int, stop: str
) -> None:
    moves = Moves(tmp_path, monkeypatch)

    async def driver(what: str, partition: str) -> Outcome | None:
        moves.asked.append(what)
        return None if len(moves.asked) <= silent else Outcome(True)

    monkeypatch.setattr(Suspending, "_run", lambda _, what, partition: driver(what, partition))

    async def run() -> None:
        moves.made.book.suspend(moves.entry, 0)
        moves.suspending.move(moves.entry)
        await moves.until("running" if stop else "suspended")

    asyncio.run(run())
    assert (moves.entry.stop, len(moves.asked)) == (stop, 10)


@pytest.mark.parametrize("room", [True, False])
def test_what_became_of_a_move_is_no_answer_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    """The brain wants the GPU back while the job comes back to it."""
    moves = Moves(tmp_path, monkeypatch)
    book, entry = moves.made.book, moves.entry

    async def driver(what: str, partition: str) -> Outcome:
        moves.asked.append(what)
        if what == "resuming":
            book.suspended_by_brain(entry.id, 0)
            return Outcome(room, no_room=not room)
        return Outcome(True)

    async def run() -> None:
        book.suspend(entry, 0)
        moves.suspending.move(entry)
        await moves.until("suspended")
        monkeypatch.setattr(Suspending, "_run", lambda _, what, partition: driver(what, partition))
        book.let_resume(entry, 0)
        book.resumed_by_brain(entry.id, 0)
        moves.suspending.move(entry)
        await moves.until("suspended")

    asyncio.run(run())
    assert moves.asked == ["suspending", "resuming", *(["suspending"] if room else [])]
    assert (moves.signals[-1], entry.resumes, entry.parked_mib) == (signal.SIGSTOP, True, 700)


@pytest.mark.parametrize("killed", ["the mover", "the broker"])
def test_a_suspension_that_may_have_begun_is_carried_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    """If it were given up instead, its calls would hang in the driver."""
    moves = Moves(tmp_path, monkeypatch)
    book, entry = moves.made.book, moves.entry
    refused = iter(["", "it holds more than the machine has free"])

    async def driver(what: str, partition: str) -> Outcome | None:
        moves.asked.append(what)
        return Outcome(True) if len(moves.asked) > 1 or killed == "the broker" else None

    monkeypatch.setattr(Suspending, "_run", lambda _, what, partition: driver(what, partition))

    async def run() -> None:
        book.suspend_idle(entry, 0)
        if killed == "the broker":
            next(refused)
            moves.suspending.go_on()
        monkeypatch.setattr(Suspending, "why_not", lambda *_: next(refused))
        calls = iter([True, False] if killed == "the mover" else [False])
        moves.suspending._leaves = lambda entry: next(calls)
        moves.suspending.move(entry)
        await moves.until("suspended")
        assert not moves.suspending._begun

    asyncio.run(run())
    assert (entry.idle, entry.resumes) == (True, False)


def test_a_machine_that_restarts_has_lost_what_was_suspended(tmp_path: Path) -> None:
    made = fake_world(tmp_path)
    job = job_of(made, rerun=True)
    made.commit()
    made.book.suspend(job, made.now_ms)
    made.commit()
    made.reboot()
    for _ in range(3):
        made.commit()
    again = made.book.jobs[job.id]
    assert (again.shown_state, again.attempt, again.suspended_ms) == ("running", 2, 0)


def test_a_job_that_dies_while_it_is_suspended_is_over(world: World) -> None:
    job = holds(world, 1000, "go")
    world.ask("suspend", ids=[job])
    os.kill(pid_of(world, job), signal.SIGKILL)
    assert world.wait(job)[job][0] == "failed"
    assert world.wait(world.submit("true"))


@pytest.mark.slow
def test_what_the_driver_has_lost_ends_and_runs_again_if_its_user_said_so(world: World) -> None:
    job = holds(world, 1000, "go", unkind="fails", rerun=True, grace="1s")
    world.ask("suspend", ids=[job])
    world.ask("resume", ids=[job])
    world.until(lambda: world.job(job)["attempt"] == 2, "it runs again")
    assert world.job(job)["attempts"][0]["state"] == "node-fail"
    (world.folder / "go").touch()
    assert world.wait(job)[job][0] == "completed"


@pytest.mark.slow
def test_a_broker_that_is_killed_at_any_step_loses_nothing(world: World) -> None:
    storm(world, kills=4, seed=3)


@pytest.mark.slow
def test_many_kills_lose_nothing() -> None:
    for seed in range(3):
        world = World(gpus="1xA100-80G")
        try:
            world.up()
            storm(world, kills=12, seed=seed)
        finally:
            world.close()


def storm(world: World, kills: int, seed: int) -> None:
    """Suspend and resume a job while brokers and the processes that move it are killed; then nothing is lost."""
    draw = random.Random(seed)
    job = holds(world, 1000, "go", unkind="slow", mem="2G")
    for _ in range(kills):
        what = draw.choice(("suspend", "resume"))
        asked(world, what, job)
        if draw.random() < 0.7:
            pause(draw.random() * 0.6)
            world.kill_broker()
            world.up(ready=False)
        else:
            pause(draw.random() * 0.4)
            for pid in movers(world):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    world.until(lambda: asked(world, "suspend", job) or world.state_of(job) == "suspended", "it is suspended")
    world.until(lambda: asked(world, "resume", job) or world.state_of(job) == "running", "it runs on")
    (world.folder / "go").touch()
    assert world.wait(job) == {job: ("completed", 0)}
    (attempt,) = world.job(job)["attempts"]
    assert (attempt["attempt"], attempt["peak_mib"]) == (1, 1000)
    world.until(lambda: used_mib(world) == 0, "nothing is held at the end")
    root = Path(world.environment["BERTH_ROOT"])
    world.until(lambda: not list(root.glob("job-*")), "no partition is left")


def pause(seconds: float) -> None:
    """Until a random moment, at which something is killed."""
    signal.sigtimedwait([signal.SIGUSR2], seconds)


def asked(world: World, what: str, job: str) -> bool:
    """Ask without waiting for what comes of it; False, so that it can be asked again and again."""
    with suppress(LiveError):
        connection = Connection(world.places.socket, timeout_s=0.05)
        try:
            connection.ask({"do": what, "ids": [job]})
        finally:
            connection.close()
    return False
