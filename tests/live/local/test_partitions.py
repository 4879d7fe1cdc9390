"""Memory that is promised to partitions that no job of the queue has."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.live.local.world import World, berth


def _partition(world: World, name: str, size: str, gpu: str = "0") -> None:
    world.environment |= {
        "BERTH_FAKE_GPUS": "2",
        "BERTH_FAKE_MEM_MIB": str(80 << 10),
        "BERTH_FAKE_CARD": world.places.fake_card,
    }
    done = berth(world, "partition", "create", name, "--fake-gpu", "--gpu", gpu, "--mem", size)
    assert done.returncode == 0, done.stderr


def test_a_job_waits_for_a_partition_that_the_queue_did_not_make_and_why_names_it(world: World) -> None:
    _partition(world, "team-a", "16G")
    job = world.submit("true", gpu="0")
    beside = world.submit("true", gpu="0", mem="20G")
    assert world.wait(beside) == {beside: ("completed", 0)}
    world.until(
        lambda: any(gpu["partitions"] for gpu in (world.status() or {})["gpus"]), "the partition is seen"
    )
    status = world.status()
    assert status is not None
    assert [gpu["partitions"] for gpu in status["gpus"]] == [
        [{"name": "team-a", "mem_mib": 16 << 10, "core_pct": 0, "processes": 0}],
        [],
    ]
    assert (world.state_of(job), world.job(job)["attempts"]) == ("waiting", [])
    assert berth(world, "partition", "remove", "team-a", "--fake-gpu").returncode == 0
    assert world.wait(job) == {job: ("completed", 0)}


def test_a_start_that_finds_no_room_never_fails_for_good(world: World) -> None:
    from berth.live.local.book import MOST_START_FAILURES, Book
    from berth.live.local.entry import End, Limits
    from berth.live.local.request import request_of, tasks_of

    book = Book(Limits((1000,), 8000, 0))
    (entry,) = book.draft(
        request_of({}, argv=["true"], cwd="/", now_ms=0), tasks_of({}), key=1, uid=1, user="ann", now_ms=0
    )
    book.add([entry], 0)
    now_ms = 0
    for _ in range(3 * MOST_START_FAILURES):
        now_ms += 100_000
        book.tick(now_ms)
        assert book.placed(entry.id, entry.version, (0,), (1000, 0), now_ms)
        book.ended(entry, End(None, "16 MiB are short", never_ran=True, no_room=True), now_ms)
        assert (entry.state, entry.reason) == ("waiting", "it could not be started: 16 MiB are short")


def test_a_partition_that_a_killed_queue_left_is_removed(world: World) -> None:
    job = world.submit("while [ ! -e go ]; do sleep 0.02; done", mem="30G")
    world.until(lambda: world.state_of(job) == "running", "it runs")
    root = Path(world.environment["BERTH_ROOT"])
    (made,) = root.glob("job-*")
    world.kill_broker()
    left = made.with_name(made.name.replace(f"job-{job}-1", "job-77-1"))
    shutil.copytree(made, left)
    world.up()
    assert (left.exists(), made.exists(), world.state_of(job)) == (False, True, "running")
    shutil.copytree(made, left)  # as one whose removal failed
    world.until(lambda: not left.exists(), "it is removed while the queue is up")
    (world.folder / "go").touch()
    assert world.wait(job) == {job: ("completed", 0)}
