"""A job that holds GPU memory which its partition did not count is found by the driver's word, and reported."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from berth.partition import Partition, partitions
from tests.live.local.test_enforcement import GPU_JOB
from tests.live.local.world import World, berth
from tests.partition.test_reconciling import forge, write


@pytest.fixture
def policy() -> str:
    return "throttle"


@pytest.fixture
def acting(policy: str) -> Iterator[World]:
    """A queue that does something about memory that is not counted."""
    world = World(options=["--uncounted", policy])
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


def test_a_job_that_unloads_the_library_is_found_reported_and_throttled(acting: World) -> None:
    world = acting
    honest = world.submit(
        [sys.executable, str(GPU_JOB), "900", str(world.folder / "gone")], mem="1G", gpus="0.1"
    )
    job = _past_the_limit(world)
    world.until(lambda: bool(_trouble(world)), "the difference is seen")
    (text,) = _trouble(world)
    assert text.startswith(f"job {job} holds ")
    assert "its partition counted 0 B: a process of it runs without libberth" in text
    assert text.endswith("it is left 5 % of the time")
    assert world.ask("why", id=job)["jobs"][0]["reason"] == text
    assert set(world.ask("metrics")["uncounted_mib"]) == {job}
    listed = berth(world, "partition", "list", "--json").stdout
    assert listed.count('"core_pct": 5') == 1
    (world.folder / "gone").touch()
    assert world.wait(job, honest) == {job: ("completed", 0), honest: ("completed", 0)}
    world.until(lambda: not _trouble(world), "nothing is left to report")
    assert world.log().count('"event": "uncounted"') == 1


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["with the broker up", "with the broker down", "after a broker's restart"])
def test_it_has_its_share_again_when_the_difference_is_gone(acting: World, ends: str) -> None:
    world = acting
    gone, end = world.folder / "gone", world.folder / "end"
    past = f"env -u LD_PRELOAD {sys.executable} {GPU_JOB} 4000 {gone}"
    job = world.submit(
        ["sh", "-c", f"{past}; exec {sys.executable} {GPU_JOB} 100 {end}"], mem="1G", gpus="0.5"
    )

    def share() -> str:
        return berth(world, "partition", "list", "--json").stdout

    world.until(lambda: '"core_pct": 5,' in share(), "it is throttled")
    if ends != "with the broker up":
        world.kill_broker()
    if ends == "after a broker's restart":
        world.up()
        world.until(lambda: bool(_trouble(world)), "the next broker sees it")
        world.until(lambda: '"core_pct": 5,' in share(), "it is throttled again")
    gone.touch()
    if ends == "with the broker down":
        world.up()
    world.until(lambda: '"core_pct": 50,' in share(), "it has its half of the time again")
    assert not _trouble(world)
    end.touch()
    assert world.wait(job) == {job: ("completed", 0)}


@pytest.mark.slow
@pytest.mark.parametrize("restarts", [False, True])
def test_one_that_was_throttled_before_it_left_has_its_share_again_when_it_is_back(
    acting: World, restarts: bool
) -> None:
    world = acting
    end = world.folder / "end"
    job = world.submit([sys.executable, str(GPU_JOB), "900", str(end)], mem="1G", gpus="0.5")

    def parts() -> list[Partition]:
        return [each for each in partitions(world.folder / "root") if isinstance(each, Partition)]

    world.until(lambda: any(each.used_bytes >= 900 << 20 for each in parts()), "it holds its memory")
    (part,) = parts()
    (use,) = part.folder.glob("*.use")
    places = forge(use, part.used_bytes)
    world.until(lambda: parts()[0].core_pct == 5, "it is throttled")
    assert berth(world, "suspend", job).returncode == 0
    world.until(lambda: world.state_of(job) == "suspended", "it has left")
    write(use, places, part.used_bytes)
    world.until(lambda: not world.ask("metrics")["uncounted_mib"], "the difference is gone")
    if restarts:
        world.kill_broker()
        world.up()
    assert berth(world, "resume", job).returncode == 0
    world.until(lambda: parts()[0].core_pct == part.core_pct == 50, "it has its half of the time again")
    end.touch()
    assert world.wait(job) == {job: ("completed", 0)}


@pytest.mark.parametrize("policy", ["suspend"])
def test_it_is_suspended_with_the_process_that_nobody_counted(acting: World) -> None:
    world = acting
    job = _past_the_limit(world)
    world.until(lambda: world.state_of(job) == "suspended", "the job leaves its GPU")
    why = world.ask("why", id=job)["jobs"][0]["reason"]
    assert why.startswith(f"suspended: job {job} held ")
    assert f"after `berth resume {job}` it runs on" in why
    world.until(lambda: not world.ask("metrics")["uncounted_mib"], "the 4,000 MiB have left the card")
    (world.folder / "gone").touch()
    assert berth(world, "resume", job).returncode == 0
    assert world.wait(job) == {job: ("completed", 0)}


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["suspend"])
def test_it_is_throttled_where_it_cannot_be_suspended(acting: World) -> None:
    world = acting
    gone = world.folder / "gone"
    command = f"env -u LD_PRELOAD BERTH_FAKE_CHECKPOINT=shares {sys.executable} {GPU_JOB} 4000 {gone}"
    job = world.submit(command, mem="1G", gpus="0.5")
    said = "it is left 5 % of the time, since it cannot be suspended: process "
    world.until(lambda: any(said in text for text in _trouble(world)), "it is throttled instead")
    assert "shares memory with other processes" in world.ask("why", id=job)["jobs"][0]["reason"]
    assert berth(world, "partition", "list", "--json").stdout.count('"core_pct": 5') == 1
    gone.touch()
    assert world.wait(job) == {job: ("completed", 0)}


def test_another_answer_to_uncounted_memory_is_refused(world: World) -> None:
    answer = berth(world, "up", "--uncounted", "kill")
    assert (answer.returncode, answer.stderr) == (
        2,
        "berth: --uncounted 'kill'; there are report, throttle, suspend\n",
    )
