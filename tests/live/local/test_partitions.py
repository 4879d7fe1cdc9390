"""Memory that is promised to partitions that no job of the queue has."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from berth.live.driver.snapshot import Stranger
from berth.live.local.snapshot import gpus_of
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
        lambda: any(gpu["strangers"] for gpu in (world.status() or {})["gpus"]), "the partition is seen"
    )
    status = world.status()
    assert status is not None
    seen = Stranger("partition team-a", 16 << 10, remedy="nothing uses it; berth partition remove team-a")
    assert [gpu.strangers for gpu in gpus_of(status["gpus"])] == [(seen,), ()]
    assert (world.state_of(job), world.job(job)["attempts"]) == ("waiting", [])
    assert berth(world, "partition", "remove", "team-a", "--fake-gpu").returncode == 0
    assert world.wait(job) == {job: ("completed", 0)}


@pytest.mark.slow
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


def test_a_partition_that_was_half_made_when_the_broker_was_killed_is_removed(world: World) -> None:
    world.kill_broker()
    world.module, module = "tests.live.local.killed_maker", world.module
    world.up(ready=False)
    job = world.submit("true", mem="30G")
    assert world.broker is not None
    assert world.broker.wait(600) == -signal.SIGKILL
    root = Path(world.environment["BERTH_ROOT"])
    assert [path.name for path in root.glob("job-*/*")] == ["ld.so.preload"]
    world.module = module
    world.up()
    assert world.wait(job) == {job: ("completed", 0)}
    world.until(lambda: not [*root.glob("job-*")], "no folder is left")
