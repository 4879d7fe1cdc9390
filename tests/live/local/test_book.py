"""The book and the store through everything that may happen, in any order, with a broker that is killed in between."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from berth.errors import LiveError
from berth.live.local.entry import ENDED, End, Entry
from berth.live.local.request import Request, Tasks
from berth.live.local.store import of_request
from tests.examples import examples
from tests.live.local.fake_world import CARD_MIB, Crash, FakeWorld

ONE = Tasks(None, ((),))


def request(**changed: Any) -> Request:
    return replace(Request(argv=("true",), milli=100, mem_mib=400), **changed)


class Everything(RuleBasedStateMachine):
    """Submit, end, edit, hold, lose, restart."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="book-", dir="/dev/shm"))
        self.world = FakeWorld(self.folder / "queue.db")

    def teardown(self) -> None:
        self.world.finish()
        ended = {job_id for job_id in self.world.submitted if self.world.store.ended_states(job_id)}
        assert ended == self.world.submitted, "a job that was submitted has no end"
        self.world.store.close()
        shutil.rmtree(self.folder)

    def some(self, at: int, *states: str) -> Entry | None:
        found = [job for job in self.world.book.jobs.values() if job.state in states]
        return found[at % len(found)] if found else None

    @rule(
        mem=st.sampled_from([100, 400, 1000]),
        gpus=st.integers(0, 2),
        rerun=st.booleans(),
        retries=st.integers(0, 2),
    )
    def submit(self, mem: int, gpus: int, rerun: bool, retries: int) -> None:
        wanted = request(mem_mib=mem if gpus else 0, gpus=gpus, rerun=rerun, retries=retries)
        self.world.submit(wanted, ONE)

    @rule(count=st.integers(1, 4), most=st.integers(0, 2))
    def submit_an_array(self, count: int, most: int) -> None:
        self.world.submit(request(), Tasks(tuple(range(1, count + 1)), ((),) * count, most))

    @rule(at=st.integers(0, 99), kind=st.sampled_from(["ok", "fail", "any"]))
    def submit_a_dependent(self, at: int, kind: str) -> None:
        before = sorted(self.world.submitted)
        if before:
            self.world.submit(request(after=((kind, before[at % len(before)]),)), ONE)

    @rule(in_ms=st.integers(1, 5000))
    def submit_for_later(self, in_ms: int) -> None:
        self.world.submit(request(begin_ms=self.world.now_ms + in_ms), ONE)

    @rule(passed_ms=st.integers(1, 5000))
    def time_passes(self, passed_ms: int) -> None:
        self.world.now_ms += passed_ms
        self.world.book.tick(self.world.now_ms)
        self.world.heed()

    @rule()
    def decide(self) -> None:
        self.world.decide()

    @rule()
    def commit(self) -> None:
        self.world.commit()

    @rule(at=st.integers(0, 99), code=st.sampled_from([0, 0, 1, None]))
    def end(self, at: int, code: int | None) -> None:
        if running := self.world.running():
            self.world.end(running[at % len(running)], End(code))

    @rule(at=st.integers(0, 99), needed=st.integers(401, 2 * CARD_MIB))
    def run_out_of_memory(self, at: int, needed: int) -> None:
        running = [job for job in self.world.running() if job.slots]
        if running:
            self.world.end(running[at % len(running)], End(1, refused=1, needed_mib=needed))

    @rule(at=st.integers(0, 99), mem=st.sampled_from([100, 1000]))
    def edit(self, at: int, mem: int) -> None:
        entry = self.some(at, "waiting", "held")
        if entry is not None and entry.request.gpus:
            self.world.key += 1
            self.world.store.write([])
            changed = replace(entry.request, mem_mib=mem)
            self.world.store.write([of_request(self.world.key, changed)])
            self.world.book.edit(entry, changed, self.world.key, self.world.now_ms)
            self.world.heed()

    @rule(at=st.integers(0, 99))
    def hold(self, at: int) -> None:
        if entry := self.some(at, "waiting"):
            self.world.book.hold(entry, self.world.now_ms)
            self.world.heed()

    @rule(at=st.integers(0, 99))
    def release(self, at: int) -> None:
        if entry := self.some(at, "held"):
            self.world.book.release(entry, self.world.now_ms)
            self.world.heed()

    @rule(at=st.integers(0, 99), what=st.sampled_from(["cancel", "requeue", "evicted", "expire", "lose"]))
    def stop(self, at: int, what: str) -> None:
        entry = (
            self.some(at, "running", "starting")
            if what != "cancel"
            else self.some(at, "waiting", "running", "held")
        )
        if entry is not None:
            self.world.book.evicted(entry.id, self.world.now_ms) if what == "evicted" else getattr(
                self.world.book, what
            )(entry, self.world.now_ms)
            self.world.heed()

    @precondition(lambda self: any(job.stop for job in self.world.running()))
    @rule(at=st.integers(0, 99))
    def a_stopped_one_ends(self, at: int) -> None:
        stopped = [job for job in self.world.running() if job.stop]
        self.world.end(stopped[at % len(stopped)], End(143))

    @rule()
    def kill_the_broker(self) -> None:
        self.world.crash()

    @rule()
    def restart_the_machine(self) -> None:
        self.world.reboot()

    @invariant()
    def nothing_is_wrong(self) -> None:
        self.world.check()


TestEverything = Everything.TestCase
TestEverything.settings = settings(
    max_examples=examples(40),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)


def script(world: FakeWorld) -> None:
    """A short life with every kind of write in it."""
    first = world.submit(request(), ONE)[0]
    second = world.submit(request(after=(("ok", first.id),)), ONE)[0]
    world.submit(request(rerun=True), Tasks((1, 2), ((), ()), 1))
    world.decide()
    world.commit()
    for entry in world.running():
        world.end(entry, End(0))
    world.commit()
    world.decide()
    world.commit()
    if second.state == "running":
        world.end(second, End(1, refused=2, needed_mib=600))
    world.commit()
    world.finish()


@pytest.mark.parametrize("step", ["begin", "row", "commit", "written"])
def test_a_broker_that_is_killed_at_any_write_loses_no_job_and_starts_none_twice(
    step: str, tmp_path: Path
) -> None:
    """`written` is the moment after a commit, when what follows from it has not been done."""
    steps = 0
    for at in range(10_000):
        count = 0

        def fault(name: str, at: int = at) -> None:
            nonlocal count
            if name == step:
                count += 1
                if count == at + 1:
                    raise Crash

        folder = Path(tempfile.mkdtemp(prefix="fault-", dir="/dev/shm"))
        try:
            world = FakeWorld(folder / "queue.db", fault=fault)
            try:
                script(world)
            except Crash:
                steps += 1
                world.crash()
                world.finish()
            told = {job_id for job_id in world.submitted if world.store.ended_states(job_id)}
            assert told == world.submitted
            world.store.close()
        finally:
            shutil.rmtree(folder)
        if count <= at:
            break
    assert steps == at > 5


def run_out_of_memory_once(world: FakeWorld) -> None:
    """Submit a job if there is none, have its first attempt run out of memory, and the next one end well."""
    if not world.store.named("1"):
        world.submit(request(), ONE)
    while not world.store.ended_states("1"):
        world.now_ms += 60_000
        world.book.tick(world.now_ms)
        world.decide()
        world.commit()
        for entry in world.running():
            if entry.over is not None:
                continue
            first = entry.attempt == 1
            end = End(1, refused=1, needed_mib=600, peak_mib=390) if first else End(0, peak_mib=600)
            world.end_before_brain(entry, end)
            world.commit_before_brain()


@pytest.mark.slow
@pytest.mark.parametrize("step", ["begin", "row", "commit", "written"])
def test_whenever_a_broker_is_killed_what_ran_out_of_memory_runs_once_again_with_more(
    step: str, tmp_path: Path
) -> None:
    """Also if it is killed after an end was written and before the brain has said what follows."""
    kills = 0
    for at in range(100):
        count = 0

        def fault(name: str, at: int = at) -> None:
            nonlocal count
            if name == step:
                count += 1
                if count == at + 1:
                    raise Crash

        world = FakeWorld(tmp_path / f"{at}.db", fault=fault)
        try:
            run_out_of_memory_once(world)
        except Crash:
            kills += 1
            world.crash()
            run_out_of_memory_once(world)
        found = [
            (each["attempt"], each["state"], each["share"][1], each["peak_mib"])
            for each in world.store.attempts("1")
        ]
        assert found == [(1, "out-of-memory", 400, 390), (2, "completed", 675, 600)]
        assert world.attempts == {("1", 1), ("1", 2)}
        assert world.store.ended_states("1") == {"1": "completed"}
        world.store.close()
        if count <= at:
            break
    assert kills == at > 4


def test_what_is_over_is_found_again_until_the_brain_has_said_what_follows(tmp_path: Path) -> None:
    world = FakeWorld(tmp_path / "queue.db")
    entry = world.submit(request(), ONE)[0]
    world.start(entry)
    world.end_before_brain(entry, End(1, refused=1, needed_mib=600))
    world.commit_before_brain()
    assert world.forgotten == set()
    (kept,) = world.store.live()
    assert (kept.over, kept.over_as) == (entry.over, "out-of-memory")
    world.heed()
    world.commit()
    assert world.forgotten == {("1", 1)}
    (kept,) = world.store.live()
    assert (kept.over, kept.over_as, kept.attempt) == (None, "", 2)


def test_of_two_attempts_each_is_in_the_store_once(tmp_path: Path) -> None:
    world = FakeWorld(tmp_path / "queue.db")
    entry = world.submit(request(), ONE)[0]
    world.decide()
    world.commit()
    world.end(entry, End(1, refused=1, needed_mib=600, peak_mib=390))
    world.commit()
    assert (entry.state, entry.attempt, entry.needs_mib) == ("waiting", 2, 675)
    assert world.offers[entry.id].share == (100, 675)
    world.decide()
    world.commit()
    world.end(entry, End(0, peak_mib=600))
    world.commit()
    found = [(each["attempt"], each["state"], each["peak_mib"]) for each in world.store.attempts(entry.id)]
    assert found == [(1, "out-of-memory", 390), (2, "completed", 600)]
    assert world.store.ended_states(entry.id) == {entry.id: "completed"}


def test_a_job_that_ran_out_of_memory_keeps_its_place_also_after_a_restart(tmp_path: Path) -> None:
    world = FakeWorld(tmp_path / "queue.db")
    first = world.submit(request(), ONE)[0]
    world.decide()
    world.commit()
    world.now_ms += 1000
    second = world.submit(request(begin_ms=world.now_ms + 10_000), ONE)[0]
    third = world.submit(request(), ONE)[0]
    world.now_ms += 1000
    world.end(first, End(1, refused=1, needed_mib=600))
    world.now_ms += 10_000
    world.book.tick(world.now_ms)
    order = ["1", "3", "2"]  # the second waited for its time first
    waiting = [first, third, second]
    assert sorted(waiting, key=lambda job: job.order) == waiting
    assert first.queued_ms == 3000  # what its second attempt waits is counted from there
    world.heed()
    world.commit()
    world.crash()
    again = sorted(world.book.jobs.values(), key=lambda job: job.order)
    assert [job.id for job in again] == list(world.book.jobs) == order


@pytest.mark.parametrize("stop", ["requeue", "evicted"])
def test_a_job_that_was_stopped_for_others_goes_behind_them(stop: str, tmp_path: Path) -> None:
    world = FakeWorld(tmp_path / "queue.db")
    first = world.submit(request(), ONE)[0]
    world.decide()
    world.commit()
    world.now_ms += 1000
    second = world.submit(request(), ONE)[0]
    world.now_ms += 1000
    if stop == "evicted":
        world.book.evicted(first.id, world.now_ms)
    else:
        world.book.requeue(first, world.now_ms)
    world.end(first, End(143))
    assert second.order < first.order


def test_a_start_that_is_cut_off_often_is_no_failure_of_the_job(tmp_path: Path) -> None:
    world = FakeWorld(tmp_path / "queue.db")
    world.submit(request(), ONE)
    for _ in range(20):
        world.now_ms += 1000
        world.book.tick(world.now_ms)
        world.heed()
        world.decide()
        (entry,) = world.book.jobs.values()
        world.book.ended(entry, End(None, never_ran=True), world.now_ms)
        world.heed()
    world.finish()
    assert world.store.ended_states("1") == {"1": "completed"}


def test_a_start_that_fails_again_and_again_fails_the_job(tmp_path: Path) -> None:
    world = FakeWorld(tmp_path / "queue.db")
    entry = world.submit(request(), ONE)[0]
    for _ in range(5):
        world.now_ms += 100_000
        world.book.tick(world.now_ms)
        world.heed()
        world.decide()
        world.book.ended(entry, End(None, "no memory", never_ran=True), world.now_ms)
        world.heed()
    assert (entry.state, entry.reason) == ("failed", "it could not be started 5 times: no memory")


def test_a_start_that_finds_no_room_never_fails_for_good(tmp_path: Path) -> None:
    world = FakeWorld(tmp_path / "queue.db")
    entry = world.submit(request(), ONE)[0]
    for _ in range(15):
        world.now_ms += 100_000
        world.decide()
        assert entry.state == "starting"
        world.book.ended(entry, End(None, "16 MiB are short", never_ran=True, no_room=True), world.now_ms)
        world.heed()
        assert (entry.state, entry.reason) == ("waiting", "it could not be started: 16 MiB are short")


def test_a_job_that_reached_its_time_limit_stays_so_whoever_stops_it_then(tmp_path: Path) -> None:
    world = FakeWorld(tmp_path / "queue.db")
    for evicted in (True, False):
        entry = world.submit(request(time_limit_ms=1000), ONE)[0]
        world.decide()
        world.commit()
        world.book.expire(entry, world.now_ms)
        if evicted:
            world.book.evicted(entry.id, world.now_ms)
        else:
            world.book.cancel(entry, world.now_ms)
        world.end(entry, End(143))
        assert entry.state == "timeout"


def test_what_can_never_fit_after_it_ran_out_of_memory_ends(tmp_path: Path) -> None:
    world = FakeWorld(tmp_path / "queue.db")
    entry = world.submit(request(), ONE)[0]
    world.decide()
    world.commit()
    world.end(entry, End(1, refused=1, needed_mib=CARD_MIB + 1))
    assert entry.state == "out-of-memory"


def test_a_dependency_that_cannot_come_true_cancels_and_says_so(tmp_path: Path) -> None:
    world = FakeWorld(tmp_path / "queue.db")
    first = world.submit(request(), ONE)[0]
    after = world.submit(request(after=(("ok", first.id),)), ONE)[0]
    world.decide()
    world.commit()
    world.end(first, End(3))
    assert (after.state, after.reason) == ("cancelled", "it waited for ok:1, which can no longer happen")


def test_of_an_array_no_more_tasks_run_at_a_time_than_its_user_said(tmp_path: Path) -> None:
    world = FakeWorld(tmp_path / "queue.db", cards=4)
    world.submit(request(), Tasks(tuple(range(20)), ((),) * 20, 3))
    most = 0
    while world.book.jobs:
        world.decide()
        world.commit()
        running = world.running()
        most = max(most, len(running))
        world.end(running[0], End(0))
        world.commit()
    assert most == 3


def test_what_an_application_ran_out_of_memory_for_is_given_to_its_next_jobs(tmp_path: Path) -> None:
    world = FakeWorld(tmp_path / "queue.db", cards=1)
    asked = Request(("train",), mem_mib=400)
    first, second = (world.submit(asked, Tasks(None, ((),)))[0] for _ in "12")
    (other,) = world.submit(Request(("other",), mem_mib=400), Tasks(None, ((),)))
    (stubborn,) = world.submit(Request(("train",), mem_mib=400, retries=0), Tasks(None, ((),)))
    world.start(first)
    world.end(first, End(1, refused=1, needed_mib=480))
    (later,) = world.submit(asked, Tasks(None, ((),)))
    jobs = (first, second, later, other, stubborn)
    assert [world.offers[job.id].share.mem_mib for job in jobs] == [540, 540, 540, 400, 400]


def test_a_job_is_queued_from_when_it_waits_for_nothing_but_room(tmp_path: Path) -> None:
    world = FakeWorld(tmp_path / "queue.db")
    (first,) = world.submit(Request(("true",), mem_mib=100), Tasks(None, ((),)))
    (after,) = world.submit(Request(("true",), mem_mib=100, after=(("any", first.id),)), Tasks(None, ((),)))
    (later,) = world.submit(Request(("true",), mem_mib=100, begin_ms=9_000), Tasks(None, ((),)))
    (held,) = world.submit(Request(("true",), mem_mib=100), Tasks(None, ((),)))
    world.book.hold(held, world.now_ms)
    world.now_ms = 5_000
    world.book.cancel(first, world.now_ms)
    world.book.release(held, world.now_ms)
    world.now_ms = 9_000
    world.book.tick(world.now_ms)
    assert [job.queued_ms for job in (after, held, later)] == [5_000, 5_000, 9_000]
    assert {after.reason, held.reason, later.reason} == {""}


def test_a_decision_on_what_a_job_was_before_it_was_edited_is_refused(tmp_path: Path) -> None:
    world = FakeWorld(tmp_path / "queue.db")
    entry = world.submit(request(), ONE)[0]
    before = entry.version
    world.book.edit(entry, request(mem_mib=800), 2, world.now_ms)
    assert not world.book.placed(entry.id, before, (0,), (100, 400), world.now_ms)
    assert world.book.placed(entry.id, entry.version, (0,), (100, 800), world.now_ms)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (request(gpus=3), "--gpus 3, but this machine has 2 GPUs"),
        (request(mem_mib=2000), "--mem 2G on each GPU"),
        (request(pins=(7,)), "--gpu 7"),
        (request(cpu_milli=9000), "--cpus 9"),
        (request(after=(("ok", "77"),)), "--after names job 77"),
    ],
)
def test_what_this_machine_could_never_run_is_refused(wanted: Request, said: str, tmp_path: Path) -> None:
    world = FakeWorld(tmp_path / "queue.db")
    with pytest.raises(LiveError, match=said):
        world.submit(wanted, ONE)
    assert not world.book.jobs


def test_every_state_that_is_no_end_is_left(tmp_path: Path) -> None:
    assert not ENDED & {"waiting", "held", "starting", "running"}


def test_what_was_learned_of_one_command_is_given_to_no_other_and_to_none_that_could_not_start(
    tmp_path: Path,
) -> None:
    world = FakeWorld(tmp_path / "queue.db", cards_mib=(CARD_MIB, 500))
    world.submit(request(milli=1000, mem_mib=500, pins=(1,)), ONE)
    asked = Request(("sh", "-c", "train a"), milli=100, mem_mib=400)
    (first,) = world.submit(asked, ONE)
    others = [
        world.submit(replace(asked, **changed), ONE)[0]
        for changed in ({}, {"argv": ("sh", "-c", "train b")}, {"pins": (1,)}, {"gpus": 2, "mem_mib": 300})
    ]
    world.start(first)
    world.end(first, End(1, refused=1, needed_mib=480))
    shares = [world.offers[job.id].share.mem_mib for job in (first, *others)]
    assert shares == [540, 540, 400, 400, 300]


@pytest.mark.parametrize(
    ("argv", "given"),
    [
        (("sh", "-c", "train 2 > out.2"), 675),
        (("sh", "-c", "serve 2"), 0),
        (("python", "train 1"), 0),
    ],
)
def test_jobs_of_one_name_and_program_are_alike_whatever_their_parameters(
    argv: tuple[str, ...], given: int, tmp_path: Path
) -> None:
    world = FakeWorld(tmp_path / "queue.db")
    first = world.submit(request(argv=("sh", "-c", "train 1 > out.1"), name="train"), ONE)[0]
    world.decide()
    world.commit()
    second = world.submit(request(argv=argv, name="train"), ONE)[0]
    world.end(first, End(1, refused=1, needed_mib=600))
    assert (first.needs_mib, second.needs_mib) == (675, given)


def test_the_memory_that_a_user_says_after_a_need_was_learned_counts(tmp_path: Path) -> None:
    world = FakeWorld(tmp_path / "queue.db")
    (entry,) = world.submit(request(), ONE)
    world.start(entry)
    world.end(entry, End(1, refused=1, needed_mib=480))
    world.book.edit(entry, replace(entry.request, name="new"), 2, world.now_ms)
    world.heed()
    assert world.offers[entry.id].share.mem_mib == 540
    world.book.edit(entry, replace(entry.request, mem_mib=450), 3, world.now_ms)
    world.book.hold(entry, world.now_ms)
    world.book.release(entry, world.now_ms)
    world.heed()
    assert world.offers[entry.id].share.mem_mib == 450


def test_what_waits_for_its_array_or_failed_to_start_is_queued_from_when_it_could_have_started(
    tmp_path: Path,
) -> None:
    world = FakeWorld(tmp_path / "queue.db")
    (first,) = world.submit(request(), ONE)
    one, two = world.submit(request(after=(("any", first.id),)), Tasks((1, 2), ((), ()), 1))
    (cut,) = world.submit(request(), ONE)
    world.now_ms = 5_000
    world.heed(lambda job_id: job_id == cut.id)
    world.book.ended(cut, End(None, never_ran=True), world.now_ms)
    world.heed()
    world.book.cancel(first, world.now_ms)
    world.now_ms = 9_000
    world.book.tick(world.now_ms)
    world.book.cancel(one, world.now_ms)
    assert [job.offered for job in (two, cut)] == [True, True]
    assert [job.queued_ms for job in (two, cut)] == [5_000, 1_000]
