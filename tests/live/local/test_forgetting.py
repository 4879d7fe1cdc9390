"""What the queue's store keeps of jobs, and for whom."""

from __future__ import annotations

from pathlib import Path

from berth.live.local.entry import End
from berth.live.local.store import of_pruning, of_recorded
from tests.live.local.fake_world import FakeWorld
from tests.live.local.test_book import ONE, request


def test_what_the_history_has_is_forgotten_after_a_time_and_nothing_else(tmp_path: Path) -> None:
    world = FakeWorld(tmp_path / "queue.db")
    for _ in range(3):
        world.submit(request(), ONE)
        world.decide()
        world.commit()
    for entry in world.running()[:2]:
        world.end(entry, End(0))
    world.commit()
    world.store.write([of_recorded("1", 1)])
    world.store.write(of_pruning(world.now_ms + 1, 3))
    assert (world.store.named("1"), world.store.attempts("1")) == ([], [])
    assert [entry.id for entry in world.store.named("2")] == ["2"]
    assert [attempt["attempt"] for attempt in world.store.attempts("2")] == [1]
    assert [entry.id for entry in world.store.live()] == ["3"]


def test_a_number_is_not_used_again_after_its_job_is_forgotten(tmp_path: Path) -> None:
    world = FakeWorld(tmp_path / "queue.db")
    for _ in range(2):
        world.book.cancel(world.submit(request(), ONE)[0], world.now_ms)
    world.commit()
    world.store.write([of_recorded("1", 1), of_recorded("2", 1)])
    world.store.write(of_pruning(world.now_ms + 1, world.book.next_number - 1))
    assert world.store.named("2") == []
    world.crash()
    assert world.submit(request(), ONE)[0].id == "3"


def test_the_store_is_its_owners_alone(tmp_path: Path) -> None:
    world = FakeWorld(tmp_path / "queue.db")
    world.submit(request(), ONE)
    world.store.keep_copy()
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.glob("queue.db*")}
    assert set(modes.values()) == {0o600}
