"""A store that is broken: what has started is found again, and no number is used twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.local.world import World, berth

GATE = "echo ran >> ran-$BERTH_JOB_ID; while [ ! -e go ]; do sleep 0.02; done; exit 3"


def _break(world: World, *, copy: bool) -> None:
    path = Path(world.places.store)
    for end in ("-wal", "-shm"):
        Path(f"{path}{end}").unlink(missing_ok=True)
    path.write_bytes(b"\0" * 8192)
    if not copy:
        Path(world.places.copy).unlink()


@pytest.mark.slow
def test_a_job_that_was_submitted_and_started_after_the_copy_is_taken_up_again(world: World) -> None:
    job, array = world.submit(GATE, mem="4G"), world.submit("true", gpus=0, array="1-2", begin="now+1h")
    ended = world.submit("exit 5", mem="1G")
    world.until(lambda: world.state_of(job) == "running", "it runs")
    assert world.wait(ended) == {ended: ("failed", 5)}
    world.kill_broker()
    _break(world, copy=True)  # the copy was made when the queue first began, without a job
    world.up()
    assert world.state_of(job) == "running"
    assert world.wait(ended) == {ended: ("failed", 5)}
    told = world.job(job)
    assert (told["mem_mib"], told["slots"], told["command"][:2]) == (4096, [0], ["sh", "-c"])
    later = world.submit("true", gpus=0)
    assert int(later) > max(map(int, (job, array, ended)))
    (world.folder / "go").touch()
    assert world.wait(job) == {job: ("failed", 3)}
    assert (world.folder / f"ran-{job}").read_text() == "ran\n"
    world.ask("requeue", ids=[job])  # with its environment, which the store had lost
    assert world.wait(job) == {job: ("failed", 3)}


def test_an_empty_queue_after_a_broken_store_says_so_and_uses_no_number_again(world: World) -> None:
    first = world.submit("echo mine", gpus=0)
    assert world.wait(first) == {first: ("completed", 0)}
    world.kill_broker()
    _break(world, copy=False)
    world.gpus = "2xnothing"  # the first start after it fails
    world.up(wait=False, ready=False)
    assert world.broker is not None
    assert world.broker.wait(300) == 2
    world.gpus = "2xA100-80G"
    world.up()
    assert "is broken" in berth(world, "status").stdout
    assert world.broker is not None
    world.kill_broker()  # before a number was used; the store is whole now
    world.up()
    job = world.submit("true", gpus=0)
    assert int(job) > int(first) + 900  # those up to a thousand may have been given out
    assert world.output(first) == "mine\n"
