"""Gangs of the local queue: what is kept of them, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from berth.errors import LiveError
from berth.live.local.entry import RUNNING, End
from berth.live.local.request import Request, Tasks
from tests.live.local.fake_world import FakeWorld

TASK = Request(("train",), gpus=1, milli=500, mem_mib=500, gang="train", gang_starts=2)


def world_of(path: Path) -> FakeWorld:
    return FakeWorld(path / "queue.db", cards=2, now_ms=1000)


def states(world: FakeWorld) -> dict[str, str]:
    return {job_id: job.state for job_id, job in world.book.jobs.items()}


def test_a_broker_that_was_killed_knows_which_tasks_have_ended(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.submit(TASK, Tasks((1, 2, 3), ((), (), ())))
    world.decide()
    world.commit()
    assert set(states(world).values()) == {RUNNING}
    world.end(world.book.jobs["1_1"], End(0))
    world.end(world.book.jobs["1_2"], End(1))
    world.commit()
    world.crash()
    assert world.book.gangs.ended("ann/train") == 2
    assert world.brain.driver.site.ended_tasks("ann/train") == 2
    assert states(world) == {"1_3": RUNNING}
    world.submit(TASK, Tasks(None, ((),)))
    world.decide()
    world.commit()
    assert states(world) == {"1_3": RUNNING, "2": RUNNING}, "a further task starts by itself"


def test_a_gang_that_is_over_may_begin_anew(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.submit(TASK, Tasks((1, 2), ((), ())))
    world.decide()
    world.commit()
    for job_id in ("1_1", "1_2"):
        world.end(world.book.jobs[job_id], End(0))
    world.commit()
    world.submit(TASK, Tasks(None, ((),)))
    world.decide()
    world.commit()
    assert states(world) == {"2": "waiting"}
    assert {each.text for each in world.brain.driver.reasons().values()} == {
        "waits for 1 more task of gang train"
    }


def test_tasks_of_one_gang_say_the_same_number(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.submit(TASK, Tasks(None, ((),)))
    said = "--gang train/3, but 2 tasks of gang train start together, as job 1 says"
    with pytest.raises(LiveError, match=said):
        world.submit(Request(("train",), gang="train", gang_starts=3), Tasks(None, ((),)))
    world.book.draft(
        Request(("train",), gang="train", gang_starts=3),
        Tasks(None, ((),)),
        key=9,
        uid=2,
        user="bob",
        now_ms=1000,
    )  # another user's gang of the same name is another gang


def test_a_cancelled_waiting_task_does_not_count(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    (first,) = world.submit(TASK, Tasks(None, ((),)))
    world.submit(Request(("x",), gang="other", gang_starts=2), Tasks(None, ((),)))
    world.book.cancel(first, 2000)
    world.submit(TASK, Tasks(None, ((),)))
    world.decide()
    world.commit()
    assert states(world) == {"2": "waiting", "3": "waiting"}
