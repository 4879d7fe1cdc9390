"""A job that holds GPU memory which its partition did not count is found by the driver's word, and reported."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.live.local.test_enforcement import GPU_JOB
from tests.live.local.world import World, berth


@pytest.fixture
def throttling() -> Iterator[World]:
    world = World(options=["--uncounted", "throttle"])
    try:
        world.up()
        yield world
    finally:
        world.close()


def _trouble(world: World) -> list[str]:
    return list((world.status() or {}).get("trouble", ()))


def _past_the_limit(world: World) -> str:
    """A job of 1 GiB, one process of which holds 4,000 MiB without libberth."""
    gone = world.folder / "gone"
    return world.submit(f"env -u LD_PRELOAD {sys.executable} {GPU_JOB} 4000 {gone}", mem="1G", gpus="0.5")


def test_a_job_that_unloads_the_library_is_found_reported_and_throttled(throttling: World) -> None:
    world = throttling
    honest = world.submit(
        [sys.executable, str(GPU_JOB), "900", str(world.folder / "gone")], mem="1G", gpus="0.1"
    )
    job = _past_the_limit(world)
    world.until(lambda: bool(_trouble(world)), "the difference is seen")
    (text,) = _trouble(world)
    assert text.startswith(f"job {job} holds ")
    assert "its partition counted 0M: a process of it runs without libberth" in text
    assert text.endswith("it is left 5 % of the time")
    assert world.ask("why", id=job)["jobs"][0]["reason"] == text
    assert set(world.ask("metrics")["uncounted_mib"]) == {job}
    listed = berth(world, "partition", "list", "--json").stdout
    assert listed.count('"core_pct": 5') == 1
    (world.folder / "gone").touch()
    assert world.wait(job, honest) == {job: ("completed", 0), honest: ("completed", 0)}
    world.until(lambda: not _trouble(world), "nothing is left to report")
    assert world.log().count('"event": "uncounted"') == 1


def test_another_answer_to_uncounted_memory_is_refused(world: World) -> None:
    answer = berth(world, "up", "--uncounted", "kill")
    assert (answer.returncode, answer.stderr) == (
        2,
        "berth: berth up: --uncounted 'kill'; there are report and throttle\n",
    )
