"""Jobs in a container image, by a Podman that is as strict as the real one, and the words for Apptainer."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from berth.errors import LiveError
from berth.live.local.image import contained, runtime_for
from tests.live.local import fake_podman
from tests.live.local.world import World


def program(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    (world.folder / "bin").mkdir()
    runs = f"exec {shlex.quote(sys.executable)} {shlex.quote(fake_podman.__file__)}"
    program(world.folder / "bin", "podman", f'#!/bin/sh\n{runs} "$@"\n')
    try:
        world.up()
        yield world
    finally:
        world.close()


def submit(world: World, command: str, image: str = fake_podman.IMAGE, **flags: str) -> str:
    environment = {"PATH": f"{world.folder}/bin:{os.environ['PATH']}", "SECRET": "s3", "VIRTUAL_ENV": "/mine"}
    job = {"argv": ["sh", "-c", command], "flags": {"image": image, **flags}}
    answer = world.ask("submit", cwd=str(world.folder), env=environment, jobs=[job])
    return str(answer["ids"][0])


def written(world: World, job: str) -> str:
    return world.output(job) if world.state_of(job) == "running" else ""


def test_a_job_in_an_image_has_its_gpu_its_limit_its_folder_and_its_user(world: World) -> None:
    shows = (
        'echo "$PWD $(id -u) $SECRET $VIRTUAL_ENV- $container $BERTH_JOB_ID $LD_LIBRARY_PATH";'
        ' grep -c libberth /proc/self/maps; test -d "$BERTH_REGION" && echo region; exit 7'
    )
    job = submit(world, shows, gpus="0.5", mem="4G")
    assert world.wait(job) == {job: ("failed", 7)}
    first, preloaded, region = world.output(job).splitlines()
    fake = first.rpartition(" ")[2]
    assert first == f"{world.folder} {os.geteuid()} s3 - podman {job} {fake}"
    assert (Path(fake, "libcuda.so.1").exists(), int(preloaded) > 0, region) == (True, True, "region")


def test_a_job_in_an_image_ends_when_it_is_cancelled(world: World) -> None:
    job = submit(world, "echo ready; exec sleep 600", gpus="0", name="long")
    world.until(lambda: written(world, job) == "ready\n", "it runs")
    world.ask("cancel", ids=[job], all=False)
    assert world.wait(job)[job][0] == "cancelled"


def test_a_container_whose_maker_was_killed_is_ended(world: World) -> None:
    job = submit(world, "trap '' TERM; echo $$; while :; do sleep 0.1; done", gpus="0", grace="0.2")
    world.until(lambda: written(world, job).endswith("\n"), "it runs")
    pid = int(world.output(job))
    world.ask("cancel", ids=[job], all=False)
    assert world.wait(job)[job][0] == "cancelled"
    world.until(lambda: not os.path.exists(f"/proc/{pid}"), "the container is gone")


def test_an_image_that_is_not_there_fails_with_what_podman_says(world: World) -> None:
    job = submit(world, "true", image="example.org/none", gpus="0")
    assert world.wait(job) == {job: ("failed", 125)}
    assert "manifest unknown" in world.output(job)


def test_the_gpus_and_the_users_ids_are_given_to_podman_and_secrets_are_not_among_its_words(
    tmp_path: Path,
) -> None:
    podman = program(tmp_path, "podman", "")
    words, environment = contained(
        "pytorch:2", {"TOKEN": "secret", "PATH": "/mine", "LD_PRELOAD": "/l.so"}, path=str(tmp_path), cwd="/work",
        uid=1000, mounts=["/run/1", "/work"], devices=["GPU-a", "GPU-b"], inside={"LD_PRELOAD": "/l.so"},
        host_mem_mib=512, terminal=True,
    )  # fmt: skip
    assert environment == {"TOKEN": "secret", "PATH": "/mine"}
    assert words == [
        podman, "run", "--rm", "--pid=host", "--network=host", "--ipc=host",
        "--log-driver=none", "--security-opt=label=disable", "--workdir=/work", "--userns=keep-id", "--memory=512m",
        "--interactive", "--tty", "--volume=/work:/work", "--volume=/run/1:/run/1", "--device=nvidia.com/gpu=GPU-a",
        "--device=nvidia.com/gpu=GPU-b", "--env=TOKEN", "--env=LD_PRELOAD=/l.so", "--entrypoint=", "pytorch:2",
    ]  # fmt: skip


def test_apptainer_runs_files_and_what_podman_would_where_it_is_alone(tmp_path: Path) -> None:
    apptainer = program(tmp_path, "apptainer", "")
    words, environment = contained(
        "python:3.12", {"LD_LIBRARY_PATH": "/mine"}, path=str(tmp_path), cwd="/work", uid=0, mounts=["/run/1"],
        devices=["GPU-a"], inside={"LD_PRELOAD": "/l.so"}, host_mem_mib=0, terminal=False,
    )  # fmt: skip
    assert words == [
        apptainer, "exec", "--nv", "--bind", "/work", "--bind", "/run/1", "--pwd", "/work", "docker://python:3.12",
    ]  # fmt: skip
    assert environment == {"APPTAINERENV_LD_PRELOAD": "/l.so"}
    program(tmp_path, "podman", "")
    assert Path(runtime_for("python:3.12", str(tmp_path))).name == "podman"
    assert Path(runtime_for("mine.sif", str(tmp_path))).name == "apptainer"


def test_without_podman_and_apptainer_an_image_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(LiveError, match="--image python: podman and apptainer are not on the PATH"):
        runtime_for("python", str(tmp_path))
    with pytest.raises(LiveError, match=r"--image a\.sif: apptainer is not on the PATH"):
        runtime_for("a.sif", str(tmp_path))


def test_the_command_line_refuses_an_image_that_is_an_option(world: World) -> None:
    berth = Path(sys.executable).with_name("berth")
    words = [berth, "submit", "--image=-v/:/mnt", "sh", "-c", "true"]
    environment = world.environment | {"PATH": f"{world.folder}/bin:{os.environ['PATH']}"}
    done = subprocess.run(
        words, env=environment, capture_output=True, text=True, check=False, cwd=world.folder
    )
    assert (done.returncode, "--image '-v/:/mnt'; expected a name" in done.stderr) == (2, True)
