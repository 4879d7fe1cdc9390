"""Jobs as real processes: what they are given, how they end, and what a kill of anything changes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from berth.errors import LiveError
from berth.live.local.protocol import Caller
from berth.live.local.service import Service
from berth.live.local.snapshot import jobs_of
from tests.live.local.world import World, berth, storm

GATE = "while [ ! -e go ]; do sleep 0.02; done; "
"""Nothing ends before the test says so."""


def test_a_job_runs_in_its_folder_with_its_environment_and_its_exit_is_kept(shared: World) -> None:
    job = shared.submit("echo $BERTH_JOB_ID $CUDA_VISIBLE_DEVICES; pwd; echo oops >&2; exit 3", mem="1G")
    assert shared.wait(job) == {job: ("failed", 3)}
    told, folder, oops = shared.output(job).splitlines()
    assert told.split()[0] == job
    assert told.split()[1].startswith("GPU-")
    assert (folder, oops) == (str(shared.folder), "oops")


def test_a_job_of_the_cpu_alone_sees_no_gpu_and_has_no_partition(shared: World) -> None:
    job = shared.submit('echo "[$CUDA_VISIBLE_DEVICES]$BERTH_REGION"', gpus=0)
    assert shared.wait(job) == {job: ("completed", 0)}
    assert shared.output(job) == "[]\n"


def test_parameters_make_the_product_and_stand_in_the_command(shared: World) -> None:
    job = shared.submit(["echo", "{lr}", "{bs}"], param=["lr=1,2", "bs=8,16"], gpus=0)
    ids = [f"{job}_{number}" for number in (1, 2, 3, 4)]
    assert set(shared.wait(job).values()) == {("completed", 0)}
    assert [shared.output(each) for each in ids] == ["1 8\n", "1 16\n", "2 8\n", "2 16\n"]


@pytest.mark.slow
def test_a_time_limit_ends_a_job_that_ignores_sigterm(shared: World) -> None:
    job = shared.submit("trap '' TERM; echo on; while :; do sleep 0.1; done", gpus=0, time="3s", grace="0.3")
    assert shared.wait(job) == {job: ("timeout", 137)}
    assert shared.output(job) == "on\n"


@pytest.mark.slow
def test_a_time_limit_holds_while_the_queue_is_down() -> None:
    world = World(gpus="")
    try:
        world.up()
        job = world.submit("exec sleep 600", gpus=0, time="3s")
        world.until(lambda: world.state_of(job) in ("running", "timeout"), "it runs")
        world.kill_broker()
        world.until(lambda: not world.shims(), "its time limit has ended it")
        world.up()
        assert world.wait(job) == {job: ("timeout", 143)}
        assert world.job(job)["reason"] == "it reached its time limit"
    finally:
        world.close()


def test_a_cancelled_job_has_its_grace(shared: World) -> None:
    job = shared.submit("trap 'echo saved; exit 0' TERM; echo on; while :; do sleep 0.05; done", gpus=0)
    shared.until(lambda: shared.state_of(job) == "running" and "on" in shared.output(job), "it runs")
    shared.ask("cancel", ids=[job])
    assert shared.wait(job) == {job: ("cancelled", 0)}
    assert shared.output(job).splitlines()[-1] == "saved"


def test_daemons_that_left_the_job_are_ended_with_it(shared: World) -> None:
    pid_file = shared.folder / "daemon"
    script = f"(setsid sh -c 'echo $$ > {pid_file}; sleep 1000' &) ; while [ ! -s {pid_file} ]; do sleep 0.01; done"
    job = shared.submit(script, gpus=0)
    assert shared.wait(job) == {job: ("completed", 0)}
    pid = int(pid_file.read_text())
    shared.until(lambda: not _alive(pid), "the daemon is gone")


def test_no_such_command_is_told_with_the_job(shared: World) -> None:
    job = shared.submit(["/no/such/program"], gpus=0)
    assert shared.wait(job) == {job: ("failed", 127)}
    assert "/no/such/program: No such file or directory" in shared.job(job)["reason"]


def test_a_command_is_found_on_its_users_path(shared: World) -> None:
    folder = shared.folder / "tools"
    folder.mkdir()
    (folder / "mine").write_text("#!/bin/sh\necho found\n")
    (folder / "mine").chmod(0o755)
    told = {"argv": ["mine"], "flags": {"gpus": "0"}}
    path = f"{folder}:{os.environ['PATH']}"
    (job,) = shared.ask("submit", cwd="/", env={"PATH": path}, jobs=[told])["ids"]
    assert shared.wait(job) == {job: ("completed", 0)}
    assert shared.output(job) == "found\n"


def test_a_script_runs_as_it_was_when_it_was_submitted(shared: World) -> None:
    script = shared.folder / "job.sh"
    script.write_text("#!/bin/sh\n#BERTH --gpus 0 --name said --time 1:00:00\necho $BERTH_JOB_ID $1\n")
    done = berth(shared, "submit", "--begin", "now+1s", "job.sh", "word")
    assert done.stderr == ""
    job = done.stdout.split()[1]
    script.write_text("#!/bin/sh\nexit 9\n")
    told = shared.job(job)
    assert (told["name"], told["gpus"], told["time_limit_ms"]) == ("said", 0, 3_600_000)
    assert shared.wait(job) == {job: ("completed", 0)}
    assert shared.output(job) == f"{job} word\n"


def test_held_jobs_wait_and_dependencies_hold(shared: World) -> None:
    gate = GATE.replace("go", "first")
    first, held = shared.submit_many([(gate, {"gpus": 0}), ("true", {"gpus": 0, "begin": "now+1h"})])
    after = shared.submit("true", gpus=0, after=f"ok:{first}")
    assert shared.state_of(after) == "waiting"
    assert shared.state_of(held) == "waiting"
    shared.ask("hold", ids=[held])
    (shared.folder / "first").touch()
    assert shared.wait(after) == {after: ("completed", 0)}
    assert shared.state_of(held) == "held"
    shared.ask("cancel", ids=[held])
    assert shared.state_of(held) == "cancelled"


def test_what_one_job_holds_another_does_not_get(shared: World) -> None:
    jobs = [shared.submit(GATE.replace("go", "room"), mem="50G") for _ in range(3)]
    shared.until(lambda: [shared.state_of(job) for job in jobs].count("running") == 2, "two run")
    assert shared.state_of(jobs[2]) == "waiting"
    reasons = {job.id: job.why for job in jobs_of(shared.ask("queue"))}
    assert reasons[jobs[2]].startswith("waits for room")
    (shared.folder / "room").touch()
    assert set(shared.wait(*jobs).values()) == {("completed", 0)}


def test_named_gpus_are_those_that_a_job_runs_on(shared: World) -> None:
    job = shared.submit(GATE.replace("go", "named"), gpu="1", mem="1G")
    shared.until(lambda: shared.state_of(job) == "running", "it runs")
    assert shared.job(job)["slots"] == [1]
    assert (Path(shared.places.allotments) / job).read_text() == "gpus=1\n"
    (shared.folder / "named").touch()
    shared.wait(job)
    assert not (Path(shared.places.allotments) / job).exists()


def test_of_an_array_each_task_is_changed_that_can_be_and_the_others_are_named(shared: World) -> None:
    gate = GATE.replace("go", "array")
    array = shared.submit(f"[ $BERTH_ARRAY_INDEX = 1 ] && exit 0; {gate}", gpus=0, array="1-5%2")
    shared.until(
        lambda: [shared.state_of(f"{array}_{at}") for at in (1, 2, 3)] == ["completed", "running", "running"],
        "one has ended and two run",
    )
    told = shared.ask("hold", ids=[array])
    assert [each["id"] for each in told["jobs"]] == [f"{array}_4", f"{array}_5"]
    assert [(each["id"], each["state"]) for each in told["refused"]] == [
        (f"{array}_1", "completed"), (f"{array}_2", "running"), (f"{array}_3", "running"),
    ]  # fmt: skip
    told = shared.ask("edit", ids=[array], flags={"mem": "2G", "gpus": "1"})
    assert [each["id"] for each in told["jobs"]] == [f"{array}_4", f"{array}_5"]
    done = berth(shared, "edit", array, "--name", "zz")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == f"job {array}_5: held"
    assert f"job {array}_1 has ended (completed); queue it again with: berth requeue {array}_1" in done.stderr
    assert [shared.job(f"{array}_{at}")["name"] for at in range(1, 6)] == ["", "zz", "zz", "zz", "zz"]
    assert len(shared.ask("release", ids=[array])["jobs"]) == 2
    with pytest.raises(LiveError, match=f"job {array}_1 has ended"):
        shared.ask("cancel", ids=[f"{array}_1"])
    (shared.folder / "array").touch()
    assert set(shared.wait(array).values()) == {("completed", 0)}


def test_a_waiting_job_can_be_changed_in_all_that_it_asks_for(shared: World) -> None:
    first = shared.submit(GATE.replace("go", "edited"), gpus=0)
    job = shared.submit("true", mem="1G", begin="now+1h")
    flags = {"cpus": "2", "host_mem": "1G", "gpu": "1", "rerun": True, "after": f"ok:{first}", "begin": "now"}
    shared.ask("edit", ids=[job], flags=flags)
    told = shared.job(job)
    assert (told["cpu_milli"], told["host_mem_mib"], told["after"]) == (2000, 1024, [f"ok:{first}"])
    assert told["reason"] == f"it waits for job {first} (ok)"
    with pytest.raises(LiveError, match="a job cannot wait for itself"):
        shared.ask("edit", ids=[job], flags={"after": f"ok:{job}"})
    (shared.folder / "edited").touch()
    assert shared.wait(job) == {job: ("completed", 0)}
    assert shared.job(job)["attempts"][0]["slots"] == [1]


def test_the_prediction_of_waits_asks_the_queue_of_this_machine(
    shared: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from berth.cli.waiting import _queue_now

    monkeypatch.setenv("BERTH_STATE", str(shared.state))
    job = shared.submit("true", mem="1G", gpus=0.3, begin="now+1h", name="later", time="30")
    (queued,), _ = _queue_now(None, "", b"")
    assert (queued.job_id, queued.application, queued.gpus, queued.share_milli, queued.time_limit_ms) == (
        job, "later", 1, 300, 1_800_000,
    )  # fmt: skip
    shared.ask("cancel", ids=[job])


def test_the_queues_own_output_files_are_open_to_their_users_alone(shared: World) -> None:
    job = shared.submit("echo secret", gpus=0)
    assert shared.wait(job) == {job: ("completed", 0)}
    path = shared.state / "output" / f"{job}.1.out"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_killed_broker_finds_its_jobs_again_and_knows_their_exits(world: World) -> None:
    long, short = world.submit_many(
        [(f"{GATE} echo end; exit 5", {"gpus": 0.1}), (f"{GATE.replace('go', 'soon')} exit 4", {"gpus": 0.1})]
    )
    world.until(lambda: [world.state_of(long), world.state_of(short)] == ["running"] * 2, "both run")
    world.kill_broker()
    (world.folder / "soon").touch()
    world.until(lambda: any((world.state / "runs").glob("*/exit")), "one has ended while there is no broker")
    world.up()
    (world.folder / "go").touch()
    assert world.wait(long, short) == {long: ("failed", 5), short: ("failed", 4)}
    assert world.output(long) == "end\n"


def test_a_killed_brain_stops_no_job_and_is_started_again(world: World) -> None:
    job = world.submit(GATE)
    world.until(lambda: world.state_of(job) == "running", "it runs")
    before = world.status()
    world.kill_brain()
    later = world.submit("touch go")
    assert world.wait(job, later) == {job: ("completed", 0), later: ("completed", 0)}
    after = world.status()
    assert before is not None
    assert after is not None
    assert after["brain_pid"] != before["brain_pid"]
    assert after["brain_restarts"] == 1


def test_a_job_whose_shim_was_killed_runs_on_and_its_exit_comes_to_the_broker(world: World) -> None:
    job = world.submit(f"{GATE} exit 6")
    world.until(lambda: world.state_of(job) == "running", "it runs")
    (shim,) = world.shims()
    os.kill(shim, signal.SIGKILL)
    world.until(lambda: "shim-killed" in world.log(), "the broker has seen it")
    (world.folder / "go").touch()
    assert world.wait(job) == {job: ("failed", 6)}


@pytest.mark.slow
@pytest.mark.parametrize("rerun", [False, True])
def test_an_exit_that_nobody_can_know_is_unknown_and_runs_again_only_if_its_user_said_so(
    world: World, rerun: bool
) -> None:
    flags = {"rerun": True} if rerun else {}
    job = world.submit(f"echo $BERTH_ATTEMPT >> ran; {GATE}", **flags)
    world.until(lambda: world.state_of(job) == "running", "it runs")
    (shim,) = world.shims()
    world.kill_broker()
    os.kill(shim, signal.SIGKILL)
    world.up()
    (world.folder / "go").touch()
    told = world.wait(job)
    ran = (world.folder / "ran").read_text().split()
    if rerun:
        assert (told, ran) == ({job: ("completed", 0)}, ["1", "2"])
    else:
        assert (told, ran) == ({job: ("exit-unknown", None)}, ["1"])


def test_a_queue_ends_no_job_of_another_that_has_the_same_id(world: World) -> None:
    other = World(gpus="")
    try:
        other.up()
        ours, theirs = (each.submit(GATE, gpus=0) for each in (world, other))
        assert ours == theirs == "1"
        for each in (world, other):
            each.until(lambda each=each: each.state_of("1") == "running", "it runs")
        (shim,) = other.shims()
        os.kill(shim, signal.SIGKILL)
        other.until(lambda: "shim-killed" in other.log(), "its shim is gone")
        (other.folder / "go").touch()
        other.wait("1")  # what is left of its processes has been ended
        (world.folder / "go").touch()
        assert world.wait("1") == {"1": ("completed", 0)}
    finally:
        other.close()


def test_a_broker_that_goes_down_leaves_its_jobs_running(world: World) -> None:
    job = world.submit(f"{GATE} exit 2")
    world.until(lambda: world.state_of(job) == "running", "it runs")
    assert world.ask("down")["running"] == 1
    assert world.broker is not None
    world.broker.wait()
    world.up()
    (world.folder / "go").touch()
    assert world.wait(job) == {job: ("failed", 2)}


def test_users_see_all_and_change_their_own(shared: World) -> None:
    job = shared.submit(GATE.replace("go", "mine"), gpus=0)
    service = Service(_BrokerOf("ann", 1001))  # type: ignore[arg-type]
    assert service._controlled({"ids": ["1"]}, Caller(1001, lambda: False))
    assert service._controlled({"ids": ["1"]}, Caller(0, lambda: False))
    with pytest.raises(LiveError, match="job 1 belongs to ann"):
        service._controlled({"ids": ["1"]}, Caller(1002, lambda: False))
    (shared.folder / "mine").touch()
    assert shared.wait(job) == {job: ("completed", 0)}


class _BrokerOf:
    """As much of a broker as says whose a job is."""

    def __init__(self, user: str, uid: int) -> None:
        self.entry = SimpleNamespace(id="1", uid=uid, user=user, serial=1)
        self.book = SimpleNamespace(jobs={}, named=lambda job_id: [self.entry])
        self.just_finished: dict[str, object] = {}
        self.store = SimpleNamespace(named=lambda job_id: [])


@pytest.mark.slow
def test_a_storm_of_kills_loses_no_job_and_runs_none_twice(world: World) -> None:
    told = storm(world, 200, 60, seed=1)
    assert (told["lost"], told["twice"]) == ([], [])
    assert sum(told["killed"].values()) == 60 or sum(told["states"].values()) == 200
    assert set(told["states"]) <= {"completed", "exit-unknown"}


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
