"""What a job was given is what it gets: memory is enforced, wrong estimates are mended, strangers are seen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from berth.live.local.store import Reader
from tests.live.local.world import ROOT, World

GPU_JOB = str(Path(__file__).with_name("gpu_job.py"))


def gpu_job(*words: object) -> list[str]:
    return [sys.executable, GPU_JOB, *map(str, words)]


def test_a_job_gets_the_memory_that_it_asked_for_and_its_peak_is_kept(shared: World) -> None:
    job = shared.submit(gpu_job(3000), mem="4G")
    assert shared.wait(job) == {job: ("completed", 0)}
    (attempt,) = shared.job(job)["attempts"]
    assert attempt["share"] == [100, 4096]
    assert 3000 <= attempt["peak_mib"] < 3200
    assert attempt["refused"] == 0


def test_an_estimate_ten_times_too_small_is_queued_again_with_what_was_measured(shared: World) -> None:
    job = shared.submit(gpu_job(10_000), mem="1G..1G")
    assert shared.wait(job) == {job: ("completed", 0)}
    first, second = shared.job(job)["attempts"]
    assert (first["state"], first["refused"], second["state"]) == ("out-of-memory", 1, "completed")
    assert 10_000 <= second["share"][1] < 12_000


@pytest.mark.slow
@pytest.mark.parametrize("written", [False, True])
def test_what_ran_out_of_memory_is_queued_again_whenever_the_broker_is_killed(written: bool) -> None:
    """Before its end could be written, and after it was while the brain does not answer."""
    world = World(module="tests.live.local.faulty_broker")
    try:
        world.up()
        command = f"until [ -e go ]; do sleep 0.02; done; exec {sys.executable} {GPU_JOB} 10000"
        job = world.submit(command, mem="1G..1G")
        world.until(lambda: world.state_of(job) == "running", "it runs")
        store = Reader(world.places.store)
        brain = int(world.ask("status")["brain_pid"])
        if written:
            os.kill(brain, signal.SIGSTOP)
        else:
            (world.state / "full").touch()
        (world.folder / "go").touch()
        world.until(lambda: '"ended"' in world.log(), "its end is seen")
        if written:
            world.until(lambda: bool(store.attempts(job)), "its end is written")
            assert (world.state / "runs" / f"{job}-1").exists()
        assert bool(store.attempts(job)) == written
        store.close()
        world.kill_broker()
        if written:
            os.kill(brain, signal.SIGKILL)
        (world.state / "full").unlink(missing_ok=True)
        world.up()
        assert world.wait(job) == {job: ("completed", 0)}
        first, second = world.job(job)["attempts"]
        assert (first["state"], first["refused"], second["state"]) == ("out-of-memory", 1, "completed")
        assert [first["run"], second["run"]] == [f"{job}-1", f"{job}-2"]
        assert 10_000 <= second["share"][1] < 12_000
    finally:
        world.close()


def test_without_retries_it_runs_out_of_memory_for_good(shared: World) -> None:
    job = shared.submit(gpu_job(10_000), mem="1G..1G", retries=0)
    assert shared.wait(job) == {job: ("out-of-memory", 1)}


def test_what_no_card_has_is_not_tried_again(shared: World) -> None:
    job = shared.submit(gpu_job(100_000), mem="1G")
    assert shared.wait(job) == {job: ("out-of-memory", 1)}
    assert len(shared.job(job)["attempts"]) == 1


def test_an_estimate_ten_times_too_large_runs_and_its_peak_tells(shared: World) -> None:
    job = shared.submit(gpu_job(1000), mem="10G")
    assert shared.wait(job) == {job: ("completed", 0)}
    assert shared.job(job)["attempts"][0]["peak_mib"] < 1200


def test_an_exit_code_without_a_refused_call_is_a_failure(shared: World) -> None:
    job = shared.submit(f"{sys.executable} {GPU_JOB} 100; exit 1", mem="1G")
    assert shared.wait(job) == {job: ("failed", 1)}


@pytest.mark.slow
def test_what_a_stranger_holds_is_not_given_away(world: World) -> None:
    environment = {
        **os.environ, "LD_LIBRARY_PATH": str(ROOT / "build" / "native" / "fake"),
        "BERTH_FAKE_CARD": world.places.fake_card,
    }  # fmt: skip
    gone = world.folder / "gone"
    stranger = subprocess.Popen(gpu_job(60_000, gone), env=environment, stdout=subprocess.DEVNULL)
    try:
        world.until(
            lambda: any(gpu["strangers"] for gpu in (world.status() or {}).get("gpus", ())),
            "the stranger is seen",
        )
        (seen,) = (world.status() or {})["gpus"][0]["strangers"]
        assert (seen["pid"], 60_000 <= seen["mem_mib"] < 60_200) == (stranger.pid, True)
        job = world.submit("true", mem="40G", gpu="0")
        other = world.submit("true", mem="10G", gpu="0")
        assert world.wait(other) == {other: ("completed", 0)}
        assert world.state_of(job) == "waiting"
        gone.touch()
        assert world.wait(job) == {job: ("completed", 0)}
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts jobs as other users")
def test_a_broker_of_root_starts_a_job_as_its_user_and_keeps_its_output_from_others(world: World) -> None:
    world.folder.chmod(0o755)
    ask = (
        "import os, sys\n"
        "from berth.live.local.protocol import Connection\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "job = {'argv': ['sh', '-c', 'id -u; id -G'], 'flags': {'gpus': '0.1', 'mem': '1G'}}\n"
        "env = {'PATH': '/usr/bin:/bin'}\n"
        "told = Connection(sys.argv[1]).ask({'do': 'submit', 'cwd': '/', 'env': env, 'jobs': [job]})\n"
        "print(told['ids'][0])\n"
    )
    words = [sys.executable, "-c", ask, world.places.socket]
    job = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    told = world.wait(job)
    assert told == {job: ("completed", 0)}, world.job(job)
    path = world.state / "output" / f"{job}.1.out"
    assert path.read_text().split()[0] == "65534"
    assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (65534, 0o600)
