"""The contract of sites: one script of events gives the same decisions, Records, memory and reasons at each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from berth.model import Record, RecordState
from tests.live.driver.worlds import CARD_MIB, WORLDS, Asked, Seen, World

WHOLE = Asked(gpus=1, milli=1000, mem_mib=0)
GANG = Asked(gpus=2, milli=1000, mem_mib=0, application="gang")


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return WORLDS[request.param](tmp_path)


def seen(
    running: dict[str, tuple[int, ...]] | None = None,
    memory_mib: dict[str, int] | None = None,
    waiting: dict[str, str] | None = None,
    over: dict[str, RecordState] | None = None,
) -> Seen:
    return Seen(running or {}, memory_mib or {}, waiting or {}, over or {})


def of(records: list[Record]) -> list[tuple[str, int, RecordState, str]]:
    return [(each.job_id, each.attempt, each.state, each.end_reason) for each in records]


def test_jobs_start_where_there_is_room_and_others_wait_for_it(world: World) -> None:
    for asked in (WHOLE, WHOLE, WHOLE, Asked()):
        world.submit(asked)
    world.step(1000)
    room, turn = "waits for room", "waits for room; 1 job before it"
    assert world.seen() == seen({"1": (0,), "2": (1,)}, {"1": 0, "2": 0}, {"3": room, "4": turn})
    world.end("1", RecordState.COMPLETED, peak_mib=20_000)
    world.step(2000)
    done = {"1": RecordState.COMPLETED}
    assert world.seen() == seen({"2": (1,), "3": (0,)}, {"2": 0, "3": 0}, {"4": room}, done)
    (record,) = world.records
    assert (record.job_id, record.state, record.gpus, record.cpu_milli, record.mem_mib) == (
        "1", RecordState.COMPLETED, 1, 1000, 100,
    )  # fmt: skip
    assert (record.start_ms, record.end_ms) == (1000, 1000) or record.end_ms >= record.start_ms
    assert (record.gpu_mem_peak, record.gpu_use_mean) == (20_000 / CARD_MIB, None)


def test_a_job_that_runs_out_of_memory_gets_more_by_one_rule(world: World) -> None:
    world.submit(Asked(mem_mib=4500))
    given = []
    for at, needed_mib in enumerate((5000, 6500, 9000), start=1):
        world.step(1000 * at)
        given.append(world.seen().memory_mib["1"])
        world.end("1", RecordState.OUT_OF_MEMORY, needed_mib=needed_mib, peak_mib=needed_mib - 100)
    world.step(5000)
    given.append(world.seen().memory_mib["1"])
    assert given == [4500, 5625, 8125, 0]  # after the third time whole GPUs
    world.end("1", RecordState.OUT_OF_MEMORY, needed_mib=30_000, peak_mib=29_000)
    world.step(6000)
    assert world.seen() == seen(over={"1": RecordState.OUT_OF_MEMORY})
    assert of(world.records) == [
        ("1", attempt, RecordState.OUT_OF_MEMORY, "out-of-memory") for attempt in (1, 2, 3, 4)
    ]


def test_what_no_gpu_has_is_not_tried_again(world: World) -> None:
    world.submit(Asked())
    world.step(1000)
    world.end("1", RecordState.OUT_OF_MEMORY, needed_mib=CARD_MIB + 1)
    world.step(2000)
    assert world.seen() == seen(over={"1": RecordState.OUT_OF_MEMORY})


def test_a_start_that_fails_is_tried_again_later_each_time_and_not_for_ever(world: World) -> None:
    world.submit(Asked())
    world.submit(Asked())
    now_ms = 1000
    for failures in range(1, 5):
        world.fail_next_start("1", "no memory")
        world.step(now_ms)
        assert world.seen().waiting == {"1": "it could not be started: no memory"}
        assert list(world.seen().running) == ["2"]
        world.step(now_ms + (1000 << (failures - 1)) - 100)
        assert list(world.seen().running) == ["2"], "it was tried too soon"
        now_ms += 1000 << (failures - 1)
    world.fail_next_start("1", "no memory")
    world.step(now_ms)
    assert world.seen().over == {"1": RecordState.FAILED}


def test_what_was_lost_with_its_node_runs_again_if_its_user_said_so(world: World) -> None:
    world.submit(Asked(reruns=True))
    world.submit(Asked())
    world.step(1000)
    world.lose_node()
    world.step(2000)
    world.bring_node_back()
    world.step(3000)
    assert world.seen() == seen({"1": (0,)}, {"1": 5000}, over={"2": RecordState.NODE_FAIL})
    assert sorted(of(world.records)) == [
        ("1", 1, RecordState.NODE_FAIL, "node-lost"), ("2", 1, RecordState.NODE_FAIL, "node-lost"),
    ]  # fmt: skip


def test_a_gang_starts_with_all_of_its_tasks_or_not_at_all(world: World) -> None:
    world.submit(WHOLE)
    world.submit(GANG)
    world.submit(replace(WHOLE, application="other"))
    world.step(1000)
    assert set(world.seen().running) == {"1"}
    world.end("1", RecordState.COMPLETED)
    world.step(2000)
    assert world.seen().running == {"2": (0, 1)}
    assert world.seen().waiting == {"3": "waits for room"}


def test_what_strangers_hold_is_not_given_away(world: World) -> None:
    world.hold(0, 39_000)
    world.submit(WHOLE)
    world.submit(WHOLE)
    world.step(1000)
    assert (world.seen().running, world.seen().waiting) == ({"1": (1,)}, {"2": "waits for room"})
    world.hold(0, 0)
    world.step(2000)
    assert world.seen().running == {"1": (1,), "2": (0,)}


def script(world: World, restart: Callable[[], None]) -> list[Seen]:
    """A day of all that may happen; `restart` is called after each event."""
    found = []
    for asked in (Asked(), WHOLE, GANG, Asked(application="other"), Asked(application="other")):
        world.submit(asked)
    world.step(1000)
    found.append(world.seen())
    restart()
    world.end("1", RecordState.OUT_OF_MEMORY, needed_mib=7000, peak_mib=5000)
    world.step(2000)
    found.append(world.seen())
    restart()
    world.end("1", RecordState.COMPLETED, peak_mib=7000)
    world.end("2", RecordState.FAILED)
    world.fail_next_start("3", "no memory")
    world.step(3000)
    found.append(world.seen())
    restart()
    world.step(3500)
    found.append(world.seen())
    restart()
    world.step(9000)
    found.append(world.seen())
    return found


def test_a_driver_that_is_restarted_after_every_event_decides_the_same(world: World, tmp_path: Path) -> None:
    first = WORLDS["memory"](tmp_path)
    expected, records = script(first, lambda: None), of(first.records)
    found = script(world, world.restart)
    assert found == expected
    assert of(world.records) == records


def gang_world(world: World) -> World:
    if world.no_gangs:
        pytest.skip(world.no_gangs)
    return world


BIG = Asked(gpus=1, milli=1000, mem_mib=0, application="head", gang=("g", 2))
SMALL = Asked(gpus=1, milli=500, mem_mib=5000, application="worker", gang=("g", 2), reruns=True)


def test_tasks_of_a_gang_wait_for_each_other_and_start_together(world: World) -> None:
    gang_world(world)
    world.submit(SMALL)
    world.step(1000)
    assert world.seen() == seen(waiting={"1": "waits for 1 more task of gang g"})
    world.submit(WHOLE)
    world.step(2000)
    assert world.seen().running == {"2": (0,)}, "a gang that is not there holds up nobody"
    world.submit(BIG)
    world.step(3000)
    room = "waits for room for 2 tasks of gang g"
    assert world.seen() == seen({"2": (0,)}, {"2": 0}, {"1": room, "3": room})


def test_a_gang_that_could_never_start_together_holds_up_nobody(world: World) -> None:
    gang_world(world)
    for _ in range(3):
        world.submit(replace(BIG, gang=("g", 3)))
    world.submit(WHOLE)
    world.step(1000)
    assert world.seen().running == {"4": (0,)}
    (why,) = {*world.seen().waiting.values()}
    assert "ask for 3 GPUs, 3000 milli of CPU and 300 MiB together, and the nodes could not hold them" in why


def gang_script(world: World, restart: Callable[[], None]) -> list[Seen]:
    """All that may happen to a gang of unlike tasks of which two start together."""
    found = []

    def shown(now_ms: int) -> None:
        world.step(now_ms)
        found.append(world.seen())
        restart()

    world.submit(SMALL)
    shown(1000)
    world.submit(BIG)
    world.submit(replace(SMALL, application="tail"))
    world.submit(WHOLE)
    shown(2000)
    world.end("1", RecordState.OUT_OF_MEMORY, needed_mib=7000, peak_mib=5000)
    shown(3000)
    world.end("2", RecordState.COMPLETED, peak_mib=9000)
    shown(4000)
    world.lose_node()
    world.step(4500)
    world.bring_node_back()
    shown(4800)
    world.fail_next_start("5", "no memory")
    world.submit(replace(BIG, gang=("h", 2), application="h"))
    shown(5000)
    world.submit(replace(SMALL, gang=("h", 2), application="i"))
    shown(6000)
    world.end("1", RecordState.COMPLETED)
    world.end("3", RecordState.COMPLETED)
    shown(9000)
    shown(20_000)
    world.end("5", RecordState.OUT_OF_MEMORY, needed_mib=20_000, peak_mib=9000)
    shown(21_000)
    world.end("6", RecordState.COMPLETED)
    shown(22_000)
    world.end("5", RecordState.OUT_OF_MEMORY, needed_mib=22_000, peak_mib=9000)
    shown(23_000)
    return found


def test_a_gang_is_decided_the_same_by_a_driver_that_is_restarted_after_every_event(
    world: World, tmp_path: Path
) -> None:
    gang_world(world)
    first = WORLDS["memory"](tmp_path / "first")
    expected, records = gang_script(first, lambda: None), of(first.records)
    found = gang_script(world, world.restart)
    assert found == expected
    assert sorted(of(world.records)) == sorted(records)


def test_a_task_that_is_lost_stops_the_others_if_too_few_are_left(world: World) -> None:
    gang_world(world)
    world.submit(SMALL)
    world.submit(BIG)
    world.fail_next_start("2", "no memory")
    world.step(1000)
    assert world.seen() == seen(
        waiting={"1": "waits for 1 more task of gang g", "2": "it could not be started: no memory"}
    )
    world.step(3000)
    assert set(world.seen().running) == {"1", "2"}
    world.end("2", RecordState.OUT_OF_MEMORY, needed_mib=7000, peak_mib=5000)
    world.step(4000)
    assert set(world.seen().running) == {"1", "2"}, "they wait as one gang, and start again"
    assert sorted(each[:3] for each in of(world.records)) == [
        ("1", 1, RecordState.PREEMPTED), ("1", 2, RecordState.PREEMPTED), ("2", 1, RecordState.OUT_OF_MEMORY),
    ]  # fmt: skip
    world.end("1", RecordState.COMPLETED)
    world.step(5000)
    assert set(world.seen().running) == {"2"}
    world.end("2", RecordState.OUT_OF_MEMORY, needed_mib=8000, peak_mib=5000)
    world.step(6000)
    assert set(world.seen().running) == {"2"}, "what has ended counts as if it ran"


def test_a_gang_of_which_a_waiting_task_is_cancelled_waits_for_another(world: World) -> None:
    gang_world(world)
    for _ in range(2):
        world.submit(WHOLE)
    world.step(1000)
    for _ in range(3):
        world.submit(replace(SMALL, gang=("g", 3)))
    world.step(2000)
    assert world.seen().waiting == dict.fromkeys(("3", "4", "5"), "waits for room for 3 tasks of gang g")
    world.cancel("4")
    world.end("1", RecordState.COMPLETED)
    world.step(3000)
    assert world.seen().waiting == dict.fromkeys(("3", "5"), "waits for 1 more task of gang g")
    world.submit(replace(SMALL, gang=("g", 3)))
    world.end("2", RecordState.COMPLETED)
    world.step(4000)
    assert set(world.seen().running) == {"3", "5", "6"}


def suspending_world(world: World) -> World:
    if world.no_suspension:
        pytest.skip(world.no_suspension)
    return world


def suspensions(world: World, restart: Callable[[], None]) -> list[Seen]:
    """A job is suspended, and lets another have its GPU; it runs on when that has ended. Then one ends suspended."""
    found = []
    for asked in (WHOLE, WHOLE, replace(WHOLE, application="other")):
        world.submit(asked)
    world.step(1000)
    world.suspend("1")
    restart()
    world.step(2000)
    found.append(world.seen())
    world.resume("1")
    restart()
    world.step(3000)
    found.append(world.seen())
    world.end("3", RecordState.COMPLETED)
    world.step(4000)
    restart()
    found.append(world.seen())
    world.end("1", RecordState.COMPLETED)
    world.suspend("2")
    world.step(5000)
    restart()
    world.step(6000)
    world.end("2", RecordState.FAILED)
    world.step(7000)
    found.append(world.seen())
    return found


def check_suspensions(world: World, found: list[Seen]) -> None:
    completed, failed = RecordState.COMPLETED, RecordState.FAILED
    both = {"2": (1,), "3": (0,)}
    assert found == [
        seen(both, {"2": 0, "3": 0}),
        seen(both, {"2": 0, "3": 0}),
        seen({"1": (0,), "2": (1,)}, {"1": 0, "2": 0}, over={"3": completed}),
        seen(over={"3": completed, "1": completed, "2": failed}),
    ]
    ended = {each.job_id: each for each in world.records}
    assert {job_id: (each.attempt, each.state) for job_id, each in ended.items()} == {
        "1": (1, completed), "2": (1, failed), "3": (1, completed),
    }  # fmt: skip
    assert (ended["1"].suspended_ms, ended["2"].suspended_ms, ended["3"].suspended_ms) == (2000, 1000, None)
    assert (ended["1"].start_ms, ended["1"].end_ms) == (1000, 4000)


def test_a_suspended_job_gives_its_gpu_away_and_runs_on_when_there_is_room(world: World) -> None:
    suspending_world(world)
    check_suspensions(world, suspensions(world, lambda: None))


def test_suspensions_are_decided_the_same_by_a_driver_that_is_restarted(world: World) -> None:
    suspending_world(world)
    check_suspensions(world, suspensions(world, world.restart))


def test_jobs_that_waited_behind_a_cancelled_one_start_though_nothing_has_ended(world: World) -> None:
    gang_world(world)
    world.submit(WHOLE)
    world.submit(GANG)
    world.submit(WHOLE)
    world.step(1000)
    assert set(world.seen().running) == {"1"}
    world.cancel("2")
    world.step(2000)
    assert set(world.seen().running) == {"1", "3"}
