"""Interactive jobs that idle leave their GPUs for others, and come back with their next call of CUDA."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth import partition as partitions
from berth.errors import LiveError
from berth.live.driver.idling import AWAY_MS, LEAST_GAPS, TRUST, Idling, cost_of, reclaim_s
from berth.live.local.entry import SUSPENDED, Entry
from berth.live.local.link import BRAIN
from berth.live.local.request import Request, Tasks, request_of
from berth.partition import Watching
from tests.examples import examples
from tests.live.local.asking_storm import storm
from tests.live.local.test_growth import Machine, leaves
from tests.live.local.test_suspend import is_stopped, pid_of
from tests.live.local.world import PLAIN, World, berth

JOB = str(Path(__file__).with_name("growing_job.py"))
COMES_BACK = partitions.Wish(0, 1, 1, (1 << 64) - 1, 0)
MOVE_S = 2.0
COST_S = cost_of(2 * MOVE_S)


# When to leave

GAPS = st.lists(st.floats(0.1, 1000), max_size=40)
COSTS = st.floats(1, 100)


def paid(gap_s: float, time_s: float, cost_s: float) -> float:
    return gap_s if gap_s <= time_s else time_s + cost_s


@given(GAPS, COSTS, st.floats(0.1, 10_000))
@settings(max_examples=examples(100), deadline=None)
def test_what_was_learned_costs_no_more_on_its_gaps_and_is_bounded_on_any(
    gaps_s: list[float], cost_s: float, gap_s: float
) -> None:
    time_s = reclaim_s(gaps_s, cost_s)
    learned, even = (sum(paid(each, at, cost_s) for each in gaps_s) for at in (time_s, cost_s))
    assert learned <= even * (1 + 1e-9)
    assert paid(gap_s, time_s, cost_s) <= (1 + TRUST) * min(gap_s, cost_s) * (1 + 1e-9)
    assert len(gaps_s) >= LEAST_GAPS or time_s == cost_s


def test_short_gaps_teach_to_wait_and_long_ones_to_leave_early() -> None:
    assert reclaim_s([25.0] * 20, 20.0) == 25.0
    assert reclaim_s([500.0] * 20, 20.0) == 20.0 / TRUST


# Who leaves: one process, with calls and time that are the test's


class Office:
    """A card of 16 GiB with interactive jobs of 4 GiB each, a clock, and a driver that moves each in `MOVE_S`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, jobs: int, **changed: Any) -> None:
        self.machine = Machine(monkeypatch, jobs, interactive=True, **changed)
        self.busy = set[str]()
        self.why_not: dict[str, str] = {}
        self.machine.watch.is_busy = lambda entry: entry.id in self.busy
        machine = self.machine
        driver = SimpleNamespace(
            moves_s=lambda entry: 2 * MOVE_S * entry.share[1] / 4096,
            why_not=lambda entry: self.why_not.get(entry.id, ""),
        )
        self.idling = Idling(machine.host, machine.growth, driver)  # type: ignore[arg-type]
        self.idling.look(0)

    @property
    def jobs(self) -> list[Entry]:
        return self.machine.jobs

    def waits(self, mem_mib: int, **changed: Any) -> Entry:
        request = Request(argv=("true",), milli=100, mem_mib=mem_mib, **changed)
        (entry,) = self.machine.book.draft(request, Tasks(None, ((),)), key=2, uid=1, user="bo", now_ms=0)
        self.machine.book.add([entry], self.machine.now_ms)
        return entry

    def after(self, seconds: float) -> list[str]:
        """What becomes of the jobs when nothing but time has passed."""
        self.machine.now_ms += round(seconds * 1000)
        self.idling.look(self.machine.now_ms / 1000)
        return [job.suspension for job in self.jobs]

    def calls(self, at: int) -> None:
        self.machine.granter(at).calls += 1


def test_one_that_idles_leaves_once_that_costs_as_much_as_leaving_and_only_if_others_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        office = Office(monkeypatch, 1)
        assert office.after(10 * COST_S) == [""]
        office.calls(0)
        office.waits(14_000)
        assert office.after(1) == [""]
        assert office.after(COST_S - 1) == [""]
        office.busy.add(office.jobs[0].id)
        assert office.after(1) == [""]
        office.busy.clear()
        assert office.after(COST_S - 1) == [""]
        assert office.after(1) == ["suspending"]
        assert (office.jobs[0].idle, office.jobs[0].left_gpus) == (True, False)

    asyncio.run(run())


def test_nobody_leaves_for_what_has_room_or_never_would(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        office = Office(monkeypatch, 1)
        fits = office.waits(12_000)
        assert office.after(10 * COST_S) == [""]
        office.machine.book.cancel(fits, office.machine.now_ms)
        office.machine.others_mib = 4096
        office.waits(12_289)
        assert office.after(1) == [""]

    asyncio.run(run())


def test_of_several_that_idle_the_one_leaves_that_pays_most_and_no_more_than_are_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        office = Office(monkeypatch, 3)
        office.after(5)
        office.calls(0)
        office.after(1)
        office.waits(8000)
        assert office.after(10 * COST_S) == ["", "suspending", ""], "job 0 has idled for less long"
        assert office.after(10) == ["", "suspending", ""], "one after another"
        leaves(office.machine, 1)
        office.waits(12_288)
        assert office.after(1) == ["", "suspended", "suspending"]

    asyncio.run(run())


def test_several_leave_together_for_one_that_needs_what_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        office = Office(monkeypatch, 3)
        office.waits(12_288)
        assert office.after(2 * COST_S) == ["suspending", "suspending", ""]

    asyncio.run(run())


def test_one_that_cannot_be_suspended_is_asked_once_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        office = Office(monkeypatch, 1)
        office.waits(16_000)
        office.why_not[office.jobs[0].id] = "it uses MPS"
        assert office.after(2 * COST_S) == [""]
        office.why_not.clear()
        assert office.after(1) == [""]
        office.calls(0)
        office.after(1)
        assert office.after(2 * COST_S) == ["suspending"]

    asyncio.run(run())


def test_one_that_the_driver_does_not_suspend_is_left_alone_until_it_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        office = Office(monkeypatch, 1)
        office.waits(16_000)
        assert office.after(2 * COST_S) == ["suspending"]
        office.machine.book.stayed(office.jobs[0], office.machine.now_ms)
        assert office.after(1) == office.after(10 * COST_S) == [""]
        office.calls(0)
        office.after(1)
        assert office.after(2 * COST_S) == ["suspending"]

    asyncio.run(run())


def test_a_call_that_waits_for_memory_is_no_idling(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        office = Office(monkeypatch, 1)
        office.waits(16_000)
        growing = office.machine.growth.jobs[office.jobs[0].id]
        growing.waits = True
        assert office.after(10 * COST_S) == office.after(1) == [""]
        growing.waits = False
        assert office.after(COST_S - 1) == [""]
        assert office.after(1) == ["suspending"]
        assert not any(office.idling._gaps_s.values())

    asyncio.run(run())


def test_one_that_is_back_idles_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        office = Office(monkeypatch, 1)
        away(office)
        (job, other), book = office.jobs, office.machine.book
        office.after(AWAY_MS / 1000)
        assert job.resumes
        book.cancel(other, office.machine.now_ms)
        del book.active[other.id]
        office.waits(16_000)
        book.resumed_by_brain(job.id, office.machine.now_ms)
        assert office.after(60) == ["resuming", ""]
        book.came_back(job, office.machine.now_ms)
        office.machine.growth.go_on(job)
        assert office.after(COST_S - 1) == ["", ""]
        assert office.after(1) == ["suspending", ""]

    asyncio.run(run())


def test_a_call_between_two_looks_is_not_overlooked_when_it_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        office = Office(monkeypatch, 1)
        office.waits(16_000)
        assert office.after(2 * COST_S) == ["suspending"]
        office.calls(0)
        office.after(1)
        assert not office.machine.growth.leaves(office.jobs[0])

    asyncio.run(run())


def test_what_has_no_compute_promised_gives_none(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        office = Office(monkeypatch, 1)
        away(office)
        job, other = office.jobs
        job.share, other.share, other.best_effort = (1000, 4096), (1000, 8000), True
        taking = office.waits(1000)
        assert office.machine.book.placed(taking.id, taking.version, (0,), (500, 1000), office.machine.now_ms)
        office.machine.granter(0).wishes = [COMES_BACK]
        office.machine.growth._wake(job.id)
        await asyncio.sleep(0)
        assert (job.resumes, other.suspension) == (True, "")

    asyncio.run(run())


def test_a_call_before_it_has_left_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        office = Office(monkeypatch, 1)
        office.waits(16_000)
        office.after(2 * COST_S)
        growth, (job,) = office.machine.growth, office.jobs
        assert growth.leaves(job)
        assert office.machine.granter(0).watching is Watching.AWAY
        office.calls(0)
        assert not growth.leaves(job)
        office.machine.book.stayed(job, office.machine.now_ms)
        growth.go_on(job)
        assert (job.suspension, job.stop, job.idle) == ("", "", False)
        assert office.machine.granter(0).watching is Watching.COUNTS

    asyncio.run(run())


def away(office: Office) -> None:
    """The only job has left its GPU while it idled, and another that runs has all of its memory."""
    waiting = office.waits(14_000)
    office.after(2 * COST_S)
    office.machine.growth.leaves(office.jobs[0])
    leaves(office.machine, 0)
    book = office.machine.book
    assert book.placed(waiting.id, waiting.version, (0,), (100, 14_000), office.machine.now_ms)
    book.confirmed(waiting, office.machine.now_ms, office.machine.now_ms)
    office.jobs.append(waiting)
    book.events.clear()


def test_its_next_call_brings_it_back_in_place_of_the_one_that_came(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        office = Office(monkeypatch, 1)
        away(office)
        machine, (job, other) = office.machine, office.jobs
        assert office.after(60) == ["suspended", ""], "it has not asked"
        machine.granter(0).calls += 1
        machine.granter(0).wishes = [COMES_BACK]
        machine.growth.room_made()
        assert (job.resumes, other.suspension) == (False, ""), "nobody has told"
        machine.granter(0).wishes = [COMES_BACK]
        machine.growth._wake(job.id)
        await asyncio.sleep(0)
        assert (job.resumes, other.suspension, other.lends_to) == (True, "suspending", job.id)
        assert not other.resumes, "it does not come back before the one that it leaves for"
        machine.granter(0).lent = True
        machine.book.left_gpus(other, 14_000)
        machine.book.resumed_by_brain(job.id, office.machine.now_ms)
        machine.book.came_back(job, office.machine.now_ms)
        machine.granter(0).wishes = [COMES_BACK]
        machine.growth.go_on(job)
        assert machine.granter(0).answers[-1] == (0, True)
        assert (machine.granter(0).watching, job.idle, other.resumes) == (Watching.COUNTS, False, True)

    asyncio.run(run())


@pytest.mark.parametrize("changed", [{"priority": 1}, {"interactive": True}])
def test_one_that_matters_more_or_works_at_a_desk_too_is_not_sent_away(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any]
) -> None:
    async def run() -> None:
        office = Office(monkeypatch, 1)
        away(office)
        job, other = office.jobs
        other.request = Request(argv=("true",), milli=100, mem_mib=14_000, **changed)
        office.machine.granter(0).wishes = [COMES_BACK]
        office.machine.growth._wake(job.id)
        await asyncio.sleep(0)
        assert (job.resumes, other.suspension) == (True, "")

    asyncio.run(run())


def test_one_that_never_asks_comes_back_when_nobody_waits_or_in_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        office = Office(monkeypatch, 1)
        away(office)
        office.after(1)
        assert not office.jobs[0].resumes
        office.after(AWAY_MS / 1000)
        assert office.jobs[0].resumes
        office = Office(monkeypatch, 1)
        away(office)
        office.machine.book.cancel(office.jobs[1], office.machine.now_ms)
        del office.machine.book.active[office.jobs[1].id]
        office.after(1)
        assert office.jobs[0].resumes, "its room is free"

    asyncio.run(run())


def test_an_idle_job_that_its_user_suspends_waits_for_its_user(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        office = Office(monkeypatch, 1)
        away(office)
        (job, _), book = office.jobs, office.machine.book
        book.suspend(job, office.machine.now_ms)
        office.machine.granter(0).wishes = [COMES_BACK]
        office.machine.growth._wake(job.id)
        await asyncio.sleep(0)
        assert (job.suspension, job.resumes) == (SUSPENDED, False)

    asyncio.run(run())


def test_what_has_no_gpu_of_its_own_to_leave_is_not_interactive() -> None:
    for flags in ({"gpus": "0"}, {"gang": "x/2"}):
        with pytest.raises(LiveError, match="--interactive is for a job that can leave its GPUs alone"):
            request_of({"interactive": True, **flags}, argv=["true"], cwd="/", now_ms=0)


# Real processes on a fake GPU


@pytest.fixture(params=[PLAIN, pytest.param(BRAIN, marks=pytest.mark.slow)])
def office(request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(gpus="1xA100-80G", brain=request.param, module="tests.live.local.idle_broker")
    try:
        made.up()
        yield made
    finally:
        made.close()


def starts(world: World, *words: object, **flags: Any) -> str:
    job = world.submit([sys.executable, JOB, *map(str, words)], **flags)
    world.until(lambda: says(world, job, f"holds {words[0]}"), f"job {job} holds its memory")
    return job


def says(world: World, job: str, text: str) -> bool:
    try:
        return text in world.output(job)
    except OSError:
        return False


def test_a_notebook_lends_its_gpu_while_it_idles_and_its_next_call_takes_it_back(office: World) -> None:
    go, end, late = (office.folder / name for name in ("go", "end", "late"))
    notebook = starts(office, 1000, go, 7, end, mem="60G", interactive=True)
    batch = starts(office, 2000, late, mem="40G")
    (shown,) = office.ask("queue", ids=[notebook])["rows"]
    assert "suspended while idle; it runs on with its next call of CUDA" in str(shown)
    assert f"Job {notebook} has been suspended for" in (why := berth(office, "why", notebook).stdout)
    assert "while idle; it runs on with its next call of CUDA" in why
    go.touch()
    office.until(lambda: says(office, notebook, "holds 7"), "its call has returned")
    end.touch()
    late.touch()
    assert office.wait(notebook, batch) == {notebook: ("completed", 0), batch: ("completed", 0)}
    attempts = [office.job(job)["attempts"][0] for job in (notebook, batch)]
    assert [each["attempt"] for each in attempts] == [1, 1]
    assert all(each["suspended_ms"] > 0 for each in attempts)
    assert [each["peak_mib"] for each in attempts] == [1007, 2000]


def test_the_program_of_an_idle_job_stops_when_its_user_suspends_it(office: World) -> None:
    go, late = office.folder / "go", office.folder / "late"
    notebook = starts(office, 1000, go, 7, mem="60G", interactive=True)
    starts(office, 2000, late, mem="40G")
    pid = pid_of(office, notebook)
    assert not is_stopped(pid)
    office.ask("suspend", ids=[notebook])
    office.until(lambda: is_stopped(pid), "its program is stopped")
    office.ask("resume", ids=[notebook])
    go.touch()
    late.touch()
    assert office.wait(notebook) == {notebook: ("completed", 0)}


@pytest.mark.slow
def test_kills_while_jobs_ask_grow_leave_and_come_back_lose_nothing() -> None:
    told = storm(kills=15, seed=1)
    assert told.faults == {}, told


def test_a_notebook_comes_back_though_the_broker_was_killed_while_it_was_away(office: World) -> None:
    go, late = office.folder / "go", office.folder / "late"
    notebook = starts(office, 1000, go, 7, mem="60G", interactive=True)
    batch = starts(office, 2000, late, mem="40G")
    office.kill_broker()
    go.touch()
    office.up()
    assert office.wait(notebook) == {notebook: ("completed", 0)}
    late.touch()
    assert office.wait(batch) == {batch: ("completed", 0)}
