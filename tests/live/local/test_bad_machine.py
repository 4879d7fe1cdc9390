"""A machine that fails: a full disk, a clock that jumps, a GPU that falls off the bus."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from berth.errors import StoreError
from berth.live.local.broker import Broker
from berth.live.local.cards import Card, GpuReading, Stranger
from berth.live.local.keeping import Commits
from berth.live.local.log import Log
from berth.live.local.places import Places
from berth.live.local.request import request_of, tasks_of
from berth.live.local.store import Store, of_meta
from tests.live.local.world import World

FAILS = """
from berth.live.local import __main__ as broker
from berth.live.local.store import Store

class Failing(Store):
    def close(self):
        raise OSError("no disk")

broker.Store = Failing
broker.main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("at", "code"), [("sweep", 0), ("close", 2)])
def test_a_new_queue_whose_first_broker_fails_as_it_goes_down_keeps_all(at: str, code: int) -> None:
    world = World()
    try:
        if at == "close":
            world.module = "failing"
            (world.folder / "failing.py").write_text(FAILS)
        world.up()
        job = world.submit("echo done")
        assert world.wait(job) == {job: ("completed", 0)}
        if at == "sweep":
            Path(world.places.runs).rename(world.state / "away")
        world.ask("down")
        assert world.broker is not None
        assert world.broker.wait(600) == code
        world.module = "berth.live.local"
        world.up()
        assert (world.state_of(job), world.output(job)) == ("completed", "done\n")
    finally:
        world.close()


def test_on_a_full_disk_submissions_are_refused_and_what_has_happened_is_written_later(
    tmp_path: Path,
) -> None:
    store = Store(str(tmp_path / "queue.db"))
    used = store._writer.execute("PRAGMA page_count").fetchone()[0]
    store._writer.execute(f"PRAGMA max_page_count = {used}")  # SQLite's own "database or disk is full"
    happened = [of_meta("must", "x" * 50_000)]
    failures: list[str] = []

    async def run() -> None:
        def collect() -> tuple[list[Any], Any]:
            rows, happened[:] = list(happened), []
            return rows, lambda: done.append("followed")

        done: list[str] = []
        commits = Commits(store, collect, lambda event, **said: failures.append(event))
        task = asyncio.create_task(commits.run())
        with pytest.raises(StoreError, match="free some room on its disk"):
            await commits.ask([of_meta("asked", "y" * 50_000)])
        assert (done, store.meta("must"), store.meta("asked")) == ([], None, None)
        assert "disk is full" in commits.broken
        store._writer.execute("PRAGMA max_page_count = 100000")
        await commits.flushed()
        assert (store.meta("must"), store.meta("asked"), commits.broken) == ("x" * 50_000, None, "")
        assert "followed" in done
        task.cancel()
        await commits.close()

    asyncio.run(run())
    assert "not-written" in failures
    store.close()


@pytest.mark.slow
def test_a_full_disk_that_refuses_nothing_but_submissions_is_told_until_there_is_room(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "queue.db"))
    used = store._writer.execute("PRAGMA page_count").fetchone()[0]
    store._writer.execute(f"PRAGMA max_page_count = {used}")

    async def run() -> None:
        commits = Commits(store, lambda: ([], lambda: None))
        task = asyncio.create_task(commits.run())
        with pytest.raises(StoreError, match="free some room on its disk"):
            await commits.ask([of_meta("asked", "y" * 50_000)])
        assert "disk is full" in commits.broken
        commits.doubt(StoreError("the file of numbers cannot be written"))
        with pytest.raises(StoreError):
            await commits.flushed()
        assert "disk is full" in commits.broken
        store._writer.execute("PRAGMA max_page_count = 100000")
        await commits.flushed()
        assert commits.broken == ""
        commits.doubt(StoreError("the file of numbers cannot be written"))
        assert "numbers" in commits.broken  # at once, before the store is tried
        await commits.flushed()
        with pytest.raises(StoreError, match="cannot be"):
            await commits.ask([("INSERT INTO meta VALUES (?, ?)", ("number", 1 << 65))])
        assert commits.broken == ""  # that is no matter of the disk
        task.cancel()
        await commits.close()

    asyncio.run(run())
    store.close()


def test_a_clock_that_jumps_moves_no_time_of_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = Places(str(tmp_path / "state"))
    places.make()
    store = Store(places.store)

    class NoCards:
        fake, cards = False, ()
        nodes = staticmethod(lambda limits: [])

    before = _broker(places, store, NoCards()).now_ms()
    monkeypatch.setattr(time, "time_ns", lambda: 0)  # back to 1970
    after = _broker(places, store, NoCards()).now_ms()
    assert 0 <= after - before < 60_000
    store.close()


def _broker(places: Places, store: Store, cards: Any) -> Broker:
    async def make() -> Broker:
        return Broker(places, store, cards, Log(None))

    return asyncio.run(make())


def test_a_gpu_that_falls_off_the_bus_gets_no_job_and_loses_those_on_it(tmp_path: Path) -> None:
    places = Places(str(tmp_path / "state"))
    places.make()
    store = Store(places.store)

    class TwoCards:
        fake = True
        cards = (Card(0, "GPU-a", "A100", 80_000), Card(1, "GPU-b", "A100", 80_000))
        nodes = staticmethod(lambda limits: [])

    async def run() -> None:
        broker = Broker(places, store, TwoCards(), Log(None))  # type: ignore[arg-type]
        request = request_of({"mem": "1G"}, argv=["true"], cwd="/", now_ms=0)
        made = broker.book.draft(request, tasks_of({}), key=1, uid=0, user="root", now_ms=0)
        broker.book.add(made, 0)
        (entry,) = made
        assert broker.book.placed(entry.id, entry.version, (1,), (100, 1024), 0)
        broker.book.confirmed(entry, 0, 0)
        broker.link.state = "ready"
        broker.deciding.outstanding = 1  # nobody is asked
        broker.runner.stop = lambda stopped: None  # type: ignore[method-assign, assignment]
        broker.book.take_events()
        broker.watch.take(
            (GpuReading(0, 10, 0, (Stranger(7, 3, "x"),)), GpuReading(1, 0, None, (), lost=True))
        )
        assert entry.stop == "node-fail"
        assert broker.book.events == [{"event": "others", "slots": [(0, 0, 3), (1, 1000, 80_000)]}]

    asyncio.run(run())
    store.close()


def test_a_gpu_that_fell_off_while_no_broker_was_there_is_lost_and_the_others_keep_their_numbers(
    world: World,
) -> None:
    kept, gone = world.submit("sleep 600", gpu=0, mem="1G"), world.submit("sleep 600", gpu=1, mem="1G")
    world.until(lambda: {world.state_of(kept), world.state_of(gone)} == {"running"}, "both run")
    world.kill_broker()
    world.environment["BERTH_FAKE_NVML"] = "lost"  # the last GPU
    world.up()
    assert world.wait(gone)[gone][0] == "node-fail"
    status = world.status()
    assert status is not None
    assert [gpu["health"] for gpu in status["gpus"]] == ["", "it has fallen off the bus"]
    assert world.state_of(kept) == "running"
    waits, runs = world.submit("true", gpu=1, mem="1G"), world.submit("true", mem="1G")
    assert world.wait(runs)[runs] == ("completed", 0)
    assert world.state_of(waits) == "waiting"
