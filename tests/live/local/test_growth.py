"""GPU memory grows while a job runs: within its limits, within the card, and whatever is killed meanwhile."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth import partition as partitions
from berth.errors import LiveError
from berth.growth import ASK_MS, AWAY_MS, BURST, ROOM_MS, STEP_MIB, Growth, is_safe
from berth.live.local.book import Book
from berth.live.local.cards import Card
from berth.live.local.entry import End, Entry, Limits
from berth.live.local.host import BookHost
from berth.live.local.request import Request, Tasks, edited, request_of
from berth.partition import Demand
from berth.partition.reconciling import Difference
from tests.examples import examples
from tests.live.local.world import World, berth

JOB = str(Path(__file__).with_name("growing_job.py"))
CARD = Card(0, "GPU-b0b7bec5-ccd3-dae1-e8ef-f6fd040b1219", "fake", 16384)
MIB = 1 << 20


def growing_job(*words: object) -> list[str]:
    return [sys.executable, JOB, *map(str, words)]


def share_mib(world: World, job: str) -> int:
    return int(world.job(job)["share"][1])


@pytest.fixture
def growing() -> Iterator[World]:
    """A queue as `berth up` starts it: --mem grows up to the card."""
    world = World(gpus="1xA100-80G")
    try:
        world.up()
        yield world
    finally:
        world.close()


# What a user says


def asked(**flags: str) -> tuple[int, int, bool]:
    request = request_of(flags, argv=["true"], cwd="/", now_ms=0)
    return request.mem_mib, request.mem_max_mib, request.mem_shows_max


def test_a_job_says_what_it_begins_with_and_how_far_that_may_grow() -> None:
    assert asked(mem="4G") == (4096, 0, False)
    assert asked(mem="4G..8G") == asked(mem="4G", mem_max="8G") == (4096, 8192, False)
    assert asked(gpus="0.25", mem_max="8G", mem_shows_max="1") == (0, 8192, True)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"mem": "8G..4G"}, "write the smaller size first"),
        ({"mem": "4G..8G", "mem_max": "8G"}, "leave --mem-max out"),
        ({"mem_max": "8G"}, "say with --mem what it begins with"),
        ({"mem": "4G.."}, r"--mem '4G\.\.'; write both sizes"),
    ],
)
def test_a_size_that_makes_no_sense_is_refused(flags: dict[str, str], said: str) -> None:
    with pytest.raises(LiveError, match=said):
        asked(**flags)


def test_how_far_memory_grows_is_changed_alone_or_with_what_it_begins_with() -> None:
    before = request_of({"mem": "4G..8G"}, argv=["true"], cwd="/", now_ms=0)
    sizes = [
        (new.mem_mib, new.mem_max_mib)
        for flags in ({"mem": "6G"}, {"mem_max": "16G"}, {"mem": "1G..2G"}, {"name": "x"})
        if (new := edited(before, flags, 0))
    ]
    assert sizes == [(6144, 8192), (4096, 16384), (1024, 2048), (4096, 8192)]


def test_only_a_part_of_a_card_grows_and_no_further_than_the_card() -> None:
    limits = Limits((16384, 8192), grows=True)
    fixed = Limits((16384, 8192))
    part = Request(milli=100, mem_mib=4096)
    assert (limits.most_mib(part), fixed.most_mib(part)) == (16384, 0)
    named = Request(milli=100, mem_mib=4096, mem_max_mib=12288, pins=(1,))
    assert (limits.most_mib(named), fixed.most_mib(named)) == (8192, 8192)
    assert limits.most_mib(Request()) == limits.most_mib(Request(gpus=0)) == 0
    with pytest.raises(LiveError, match="up to 20G, but the largest GPU"):
        fixed.check(Request(milli=100, mem_mib=4096, mem_max_mib=20480))


def test_a_job_that_named_a_gpu_which_is_gone_may_grow_as_on_those_that_are_left() -> None:
    limits = Limits((16384, 8192), grows=True)
    named = [Request(milli=100, mem_mib=4096, pins=pins) for pins in ((1, 7), (7,))]
    assert [limits.most_mib(each) for each in named] == [8192, 16384]


# The banker's rule

JOBS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=4)


@given(st.integers(0, 6), JOBS)
@settings(max_examples=examples(100), deadline=None)
def test_jobs_are_safe_if_there_is_an_order_in_which_all_can_end(
    free: int, jobs: list[tuple[int, int]]
) -> None:
    claims = [(held, held + more) for held, more in jobs]

    def all_end(order: tuple[tuple[int, int], ...]) -> bool:
        left = free
        for held, claim in order:
            if claim - held > left:
                return False
            left += held
        return True

    assert is_safe(free, claims) == any(map(all_end, permutations(claims)))


# One process: real partitions, wishes written by hand


class Granter:
    """What stands for a region: the limit that its page has, and the wishes that are read from it."""

    made: ClassVar[dict[str, Granter]] = {}

    def __init__(self, folder: Path, uuid: str, woken: Any) -> None:
        self.woken, self.used_mib, self.wishes = woken, 0, list[partitions.Wish]()
        self.limit_bytes, self.answers, self.closed = 4096 * MIB, list[tuple[int, bool]](), False
        self.calls, self.watching = 0, partitions.Watching.OFF
        self.lent = False
        """Whether the driver has moved what it limits to the host."""
        Granter.made[folder.name] = self

    def ask(self, *mib: int) -> None:
        self.wishes = [partitions.Wish(at, 1, 1, each * MIB, 0) for at, each in enumerate(mib)]
        self.woken()

    def watch(self, watching: partitions.Watching) -> None:
        self.watching = watching

    def wake(self, wish: partitions.Wish) -> None:
        self.answers.append((wish.slot, True))

    def allow(self, *, ask_ms: int, **_: object) -> None:
        self.ask_ms = ask_ms

    def demand(self) -> Demand:
        wishes, self.wishes = tuple(self.wishes), []
        return Demand(self.limit_bytes, self.used_mib * MIB, wishes, self.calls)

    def limit(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        held = [each.limit_bytes for each in Granter.made.values() if not each.closed and not each.lent]
        assert sum(held) <= CARD.mem_mib * MIB

    def grant(self, wish: partitions.Wish, limit_bytes: int) -> None:
        self.limit(limit_bytes)
        self.used_mib += wish.wanted_bytes // MIB
        self.answers.append((wish.slot, True))

    def refuse(self, wish: partitions.Wish) -> None:
        self.answers.append((wish.slot, False))

    def close(self) -> None:
        self.closed = True


class Machine:
    """A card, and jobs on it that began with 4 GiB each."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, jobs: int, *, kept: set[str] | None = None, **changed: Any
    ) -> None:
        """`kept` are jobs that cannot be suspended; None: none is for another that grows."""
        monkeypatch.setattr("berth.growth.Granter", Granter)
        monkeypatch.setattr("berth.growth.REPORT_S", 0.0)
        Granter.made = {}
        self.book = Book(Limits((CARD.mem_mib,), grows=True))
        self.others_mib = 0
        self.acts = 0
        runner: Any = SimpleNamespace(partition_of=lambda entry: f"job-{entry.id}")
        watch: Any = SimpleNamespace(others_mib=lambda at: self.others_mib, uncounted={})
        self.watch = watch

        def act() -> None:
            self.acts += 1

        self.now_ms = 0
        self.host = BookHost(
            self.book, (CARD,), runner, watch, lambda *_, **__: None, lambda: self.now_ms, act, lambda: None
        )
        self.growth = Growth(
            self.host, can_suspend=lambda entry: entry.id not in (kept or ()), suspends=kept is not None
        )
        self.jobs = [self._start(**changed) for _ in range(jobs)]

    def _start(self, peak_mib: int = 0, **changed: Any) -> Entry:
        request = Request(argv=("true",), milli=100, mem_mib=4096, **changed)
        (entry,) = self.book.draft(request, Tasks(None, ((),)), key=1, uid=1, user="ada", now_ms=0)
        self.book.add([entry], 0)
        placed = self.book.placed(entry.id, entry.version, (0,), (100, 4096), 0, peak_mib=peak_mib)
        assert placed
        self.book.confirmed(entry, 0, 0)
        self.book.events.clear()
        self.growth.begin(entry)
        return entry

    def granter(self, at: int) -> Granter:
        return Granter.made[f"job-{self.jobs[at].id}"]


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_limit_grows_by_whole_steps_and_the_brain_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        machine = Machine(monkeypatch, 2)
        machine.granter(0).ask(4097)
        await turns()
        assert machine.granter(0).answers == [(0, True)]
        assert machine.jobs[0].share == (100, 4096 + STEP_MIB)
        told = [event for event in machine.book.events if event["event"] == "runs"]
        assert [(event["job"]["id"], event["share"]) for event in told] == [(machine.jobs[0].id, (100, 4352))]
        assert (machine.jobs[0].promise_mib, machine.acts) == (4096, 1)
        growing = machine.growth.jobs[machine.jobs[0].id]
        assert (growing.asked, growing.granted, growing.refused) == (1, 1, 0)

    asyncio.run(run())


def test_the_last_of_a_card_is_given_to_the_byte_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        machine = Machine(monkeypatch, 2)
        machine.others_mib = 100
        machine.granter(0).ask(12288 - 100)
        await turns()
        assert machine.jobs[0].share[1] == 12188
        machine.granter(1).ask(4097)
        machine.granter(0).ask(1)
        await turns()
        assert (machine.granter(0).answers, machine.granter(1).answers) == ([(0, True)], [(0, False)])

    asyncio.run(run())


def ends(machine: Machine, at: int) -> None:
    """What follows when the processes of a job have ended."""
    entry = machine.jobs[at]
    machine.growth.end(entry)
    machine.book.ended(entry, End(0), 0)
    machine.growth.room_made()


def test_of_two_that_ask_at_once_for_the_last_room_the_older_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        machine = Machine(monkeypatch, 2)
        machine.granter(1).ask(10000)
        machine.granter(0).ask(10000)
        await turns()
        assert (machine.granter(0).answers, machine.granter(1).answers) == ([(0, True)], [])

    asyncio.run(run())


def test_a_call_waits_until_another_job_has_ended_and_no_new_job_takes_its_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        machine = Machine(monkeypatch, 3)
        asks = partitions.Wish(0, 1, 1, 9000 * MIB, 0)
        machine.granter(2).ask(9000)
        await turns()
        assert (machine.granter(2).answers, machine.granter(2).ask_ms) == ([], ROOM_MS)
        assert machine.jobs[2].share[1] == 8192  # all that is left of the card
        machine.granter(2).wishes = [asks]
        ends(machine, 1)
        assert (machine.granter(2).answers, machine.granter(2).ask_ms) == ([(0, True)], ASK_MS)
        assert machine.jobs[2].share[1] == 36 * STEP_MIB

    asyncio.run(run())


def test_of_two_that_wait_for_each_other_the_younger_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        machine = Machine(monkeypatch, 2)
        asks = partitions.Wish(0, 1, 1, 14000 * MIB, 0)
        machine.granter(1).ask(14000)
        await turns()
        assert machine.granter(1).answers == []
        machine.granter(1).wishes = [asks]
        machine.granter(0).ask(14000)
        await turns()
        assert (machine.granter(0).answers, machine.granter(1).answers) == ([], [(0, False)])
        machine.granter(0).wishes = [asks]
        ends(machine, 1)
        assert machine.granter(0).answers == [(0, True)]

    asyncio.run(run())


def test_the_younger_waits_where_neither_could_end_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are expected to need 12 GiB of 16. With 6 each, neither could get as much."""

    async def run() -> None:
        machine = Machine(monkeypatch, 2, peak_mib=12288)
        for at, mib in ((0, 6144), (1, 6144), (0, 6144)):
            machine.granter(at).ask(mib)
            await turns()
        assert (machine.granter(0).answers, machine.granter(1).answers) == ([(0, True), (0, True)], [])

    asyncio.run(run())


def test_a_job_that_holds_what_nobody_counted_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        machine = Machine(monkeypatch, 1)
        machine.watch.uncounted[machine.jobs[0].id] = Difference("", 0, seen_mib=5000, counted_mib=4096)
        machine.granter(0).ask(5000)
        await turns()
        assert machine.granter(0).answers == [(0, False)]

    asyncio.run(run())


def test_the_broker_wakes_once_for_each_wish_and_never_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        machine = Machine(monkeypatch, 3)
        await turns()
        assert machine.growth.looks == 0
        for count in range(1, 4):
            machine.granter(count - 1).ask(4096 + 16 * count)
            await turns()
            assert (machine.growth.looks, machine.acts) == (count, count)
        await turns(100)
        assert (machine.growth.looks, machine.acts) == (3, 3)

    asyncio.run(run())


def test_a_job_that_asks_without_end_waits_and_keeps_the_others_from_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        machine = Machine(monkeypatch, 2)
        machine.granter(0).ask(*[1] * 2 * BURST)
        await turns()
        machine.granter(0).ask(1)
        await turns()
        assert len(machine.granter(0).answers) == 2 * BURST
        machine.granter(1).ask(5000)
        await turns()
        assert machine.granter(1).answers == [(0, True)]

    asyncio.run(run())


def test_a_job_that_has_ended_is_answered_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        machine = Machine(monkeypatch, 1)
        machine.granter(0).ask(5000)
        machine.growth.end(machine.jobs[0])
        await turns()
        assert (machine.granter(0).answers, machine.granter(0).closed, machine.growth.jobs) == ([], True, {})

    asyncio.run(run())


def test_what_a_broker_granted_before_it_was_killed_is_known_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        machine = Machine(monkeypatch, 1)
        entry = machine.jobs[0]
        machine.growth.close()
        found = Granter.__init__

        def grown(self: Granter, *words: Any) -> None:
            found(self, *words)
            self.limit_bytes = 8192 * MIB

        monkeypatch.setattr(Granter, "__init__", grown)
        machine.growth.begin(entry)
        assert (entry.share, entry.promise_mib) == ((100, 8192), 4096)

    asyncio.run(run())


def suspensions(machine: Machine) -> list[str]:
    return [job.suspension for job in machine.jobs]


def leaves(machine: Machine, at: int) -> None:
    """What follows when the driver has suspended a job."""
    machine.granter(at).lent = True
    machine.book.left_gpus(machine.jobs[at], 4096)
    machine.growth.room_made()


def test_a_wish_without_room_waits_until_the_youngest_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        machine = Machine(monkeypatch, 3, kept=set())
        machine.granter(0).ask(12288)
        await turns()
        assert (suspensions(machine), machine.granter(0).answers) == (["", "", "suspending"], [])
        assert machine.granter(0).ask_ms == ROOM_MS
        assert not machine.jobs[2].left_gpus  # the brain gives nobody else what it leaves
        machine.granter(0).wishes = [partitions.Wish(0, 1, 1, 12288 * MIB, 0)]
        leaves(machine, 2)
        assert machine.granter(0).answers == [(0, True)]
        assert (machine.jobs[0].share[1], machine.granter(0).ask_ms) == (12288, ASK_MS)
        assert [entry.id for entry in machine.book.pending.moves] == [machine.jobs[2].id]

    asyncio.run(run())


def test_several_make_room_for_one_if_none_has_enough_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        kept = set[str]()
        machine = Machine(monkeypatch, 4, kept=kept)
        kept.add(machine.jobs[2].id)
        asks = partitions.Wish(0, 1, 1, 12_288 * MIB, 0)
        machine.granter(0).ask(12_288)
        await turns()
        assert suspensions(machine) == ["", "suspending", "", "suspending"]
        machine.granter(0).wishes = [asks]
        leaves(machine, 3)
        assert machine.granter(0).answers == []
        machine.granter(0).wishes = [asks]
        leaves(machine, 1)
        assert (machine.granter(0).answers, machine.jobs[0].share[1]) == ([(0, True)], 12_288)

    asyncio.run(run())


def test_no_job_leaves_if_all_together_have_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        kept = set[str]()
        machine = Machine(monkeypatch, 4, kept=kept)
        kept.add(machine.jobs[0].id)
        machine.granter(1).ask(13_000)
        await turns()
        assert suspensions(machine) == [""] * 4

    asyncio.run(run())


def test_a_job_that_is_suspended_while_it_asks_is_answered_when_it_runs_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        machine = Machine(monkeypatch, 1)
        (job,), asking = machine.jobs, machine.granter(0)
        machine.book.suspend(job, 0)
        machine.growth.leaves(job)
        asking.ask(8192)
        await turns()
        assert (asking.answers, asking.ask_ms) == ([], AWAY_MS)
        asking.wishes = [partitions.Wish(0, 1, 1, 8192 * MIB, 0)]
        machine.book.left_gpus(job, 4096)
        machine.book.let_resume(job, 0)
        machine.book.resumed_by_brain(job.id, 0)
        machine.book.came_back(job, 0)
        machine.growth.go_on(job)
        assert (asking.answers, asking.ask_ms, job.share[1]) == ([(0, True)], ASK_MS, 8192)

    asyncio.run(run())


def test_no_job_leaves_for_one_of_lower_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        machine = Machine(monkeypatch, 3, kept=set(), priority=5)
        machine.jobs.append(machine._start())
        machine.granter(3).ask(8192)
        await turns()
        assert (suspensions(machine), machine.granter(3).answers) == ([""] * 4, [])

    asyncio.run(run())


def test_an_older_job_leaves_if_no_younger_one_can_unless_it_waits_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        kept = set[str]()
        machine = Machine(monkeypatch, 4, kept=kept)
        kept.add(machine.jobs[3].id)
        machine.granter(2).ask(8192)
        await turns()
        assert suspensions(machine) == ["", "suspending", "", ""]
        machine.granter(2).wishes = [partitions.Wish(0, 1, 1, 8192 * MIB, 0)]
        machine.granter(3).ask(8192)
        await turns()
        assert suspensions(machine) == ["suspending", "suspending", "", ""]

    asyncio.run(run())


def test_priority_counts_before_age(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        machine = Machine(monkeypatch, 3, kept=set())
        machine.jobs.append(machine._start(priority=5))
        machine.granter(3).ask(8192)
        await turns()
        assert suspensions(machine) == ["", "", "suspending", ""]

    asyncio.run(run())


def test_a_job_that_cannot_leave_stays_and_runs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """One is known to be unable to; of the other the driver says so when it is tried. Each is tried once."""

    async def run() -> None:
        kept = set[str]()
        machine = Machine(monkeypatch, 4, kept=kept)
        kept.add(machine.jobs[3].id)
        machine.granter(0).ask(8192)
        await turns()
        assert suspensions(machine) == ["", "", "suspending", ""]
        kept.add(machine.jobs[1].id)
        machine.granter(0).wishes = [partitions.Wish(0, 1, 1, 8192 * MIB, 0)]
        machine.book.stayed(machine.jobs[2], 0)
        machine.growth.room_made()
        assert (suspensions(machine), machine.granter(0).answers) == ([""] * 4, [])
        assert [job.stop for job in machine.jobs] == [""] * 4

    asyncio.run(run())


# Real processes


def test_a_job_grows_and_the_next_sees_only_what_is_left(growing: World) -> None:
    world = growing
    gate = world.folder / "gate"
    first = world.submit(growing_job(2000, 50_000, gate), mem="4G")
    world.until(lambda: share_mib(world, first) > 52_000, "the first has grown")
    second = world.submit(growing_job(1000), mem="40G")
    third = world.submit(growing_job(1000), mem="4G")
    assert world.wait(third) == {third: ("completed", 0)}
    assert world.state_of(second) == "waiting"
    gate.touch()
    assert world.wait(first, second) == {first: ("completed", 0), second: ("completed", 0)}
    (attempt,) = world.job(first)["attempts"]
    assert (attempt["refused"], attempt["attempt"]) == (0, 1)
    assert '"event": "grown"' in world.log()


def test_a_program_waits_for_the_memory_of_another_and_is_not_refused(growing: World) -> None:
    world = growing
    gate, more = world.folder / "gate", world.folder / "more"
    first = world.submit(growing_job(60_000, gate), mem="64G", retries=0)
    second = world.submit(growing_job(1000, more, 50_000), mem="4G", retries=0)
    world.until(lambda: "holds 60000" in output_of(world, first), "the first holds its memory")
    more.touch()
    world.until(lambda: share_mib(world, second) > 15_000, "the second has taken what is left, and waits")
    gate.touch()
    assert world.wait(first, second) == {first: ("completed", 0), second: ("completed", 0)}
    assert [world.job(job)["attempts"][0]["refused"] for job in (first, second)] == [0, 0]


def test_the_youngest_makes_room_and_both_end_well() -> None:
    world = World(options=["--grow", "suspend"], gpus="1xA100-80G")
    try:
        world.up()
        gate, done = world.folder / "gate", world.folder / "done"
        old = world.submit(growing_job(10_000, gate, 50_000, done), mem="12G", retries=0)
        world.until(lambda: world.state_of(old) == "running", "the older runs")
        young = world.submit(growing_job(38_000, done), mem="40G", retries=0)
        world.until(lambda: "holds 38000" in output_of(world, young), "the younger holds its memory")
        gate.touch()
        world.until(lambda: "holds 50000" in output_of(world, old), "the older has grown")
        assert (world.ask("status")["jobs"]["suspended"], share_mib(world, old) > 60_000) == (1, True)
        done.touch()
        assert world.wait(old, young) == {old: ("completed", 0), young: ("completed", 0)}
        refused = [world.job(job)["attempts"][0]["refused"] for job in (old, young)]
        assert refused == [0, 0]
    finally:
        world.close()


def output_of(world: World, job: str) -> str:
    try:
        return world.output(job)
    except OSError:
        return ""


def test_what_was_promised_asked_and_granted_is_shown_everywhere(shared: World) -> None:
    gate = shared.folder / "shown"
    job = shared.submit(growing_job(900, 2000, gate), mem="1G..4G")
    shared.until(lambda: share_mib(shared, job) > 2900, "it has grown")
    growth = {"mem_mib": 3072, "promise_mib": 1024, "max_mib": 4096, "asked": 1, "granted": 1, "refused": 0}
    (told,) = shared.ask("why", id=job)["jobs"]
    assert told["growth"] == growth
    tenants = [each for gpu in shared.ask("status")["gpus"] for each in gpu["tenants"]]
    (tenant,) = [each for each in tenants if each["job"] == job]
    assert {key: tenant[key] for key in growth} == growth
    line = "its GPU memory grows: 3G now, 1G promised, 4G at most; asked 1 time, 1 granted, 0 refused"
    assert line in berth(shared, "why", job).stdout
    assert "3G (1G promised, at most 4G), running" in berth(shared, "status").stdout
    told = shared.ask("metrics")["growth"]
    assert told["asked"] == told["granted"] + told["refused"] >= 1
    gate.touch()
    assert shared.wait(job) == {job: ("completed", 0)}


def test_a_job_whose_memory_may_not_grow_is_refused_as_ever(shared: World) -> None:
    job = shared.submit(growing_job(2000), mem="1G..1G", retries=0)
    assert shared.wait(job) == {job: ("out-of-memory", 1)}


def test_with_growth_off_only_a_range_grows() -> None:
    world = World(options=["--grow", "off"], gpus="1xA100-80G")
    try:
        world.up()
        plain = world.submit(growing_job(2000), mem="1G", retries=0)
        ranged = world.submit(growing_job(900, 2000), mem="1G..4G", retries=0)
        assert world.wait(plain, ranged) == {plain: ("out-of-memory", 1), ranged: ("completed", 0)}
        assert (world.status() or {})["settings"]["grow"] == "off"
    finally:
        world.close()


def test_a_job_says_how_far_it_may_grow_and_gets_no_more(shared: World) -> None:
    enough = shared.submit(growing_job(900, 2000), mem="1G..4G", retries=0)
    too_much = shared.submit(growing_job(900, 4000), mem="1G", mem_max="4G", retries=0)
    assert shared.wait(enough, too_much) == {enough: ("completed", 0), too_much: ("out-of-memory", 1)}
    assert shared.output(too_much) == "holds 900\nrefused 4000\n"


def test_growth_goes_on_after_the_broker_was_killed(growing: World) -> None:
    world = growing
    gate, more = world.folder / "gate", world.folder / "more"
    job = world.submit(growing_job(6000, gate, 20_000, more), mem="4G", retries=0)
    world.until(lambda: share_mib(world, job) > 6000, "it has grown")
    world.kill_broker()
    world.up()
    assert share_mib(world, job) > 6000
    gate.touch()
    world.until(lambda: share_mib(world, job) > 26_000, "it has grown again")
    more.touch()
    assert world.wait(job) == {job: ("completed", 0)}


def test_an_answer_to_growth_that_is_none_is_refused(shared: World) -> None:
    answer = berth(shared, "up", "--grow", "maybe")
    assert (answer.returncode, answer.stderr) == (
        2,
        "berth: --grow 'maybe'; there are off, on and suspend\n",
    )
