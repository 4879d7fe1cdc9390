"""A job's page: of the live queue first, else of the history, and to whom its command and output are shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from berth.console.roles import Role
from berth.console.sources.values import ValuesSource, look_of
from tests.console.world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, sources=[ValuesSource(look_of(gpus=8, waiting=12))], actions=True)


def test_its_owner_sees_command_output_and_use(world: World) -> None:
    job = world.program("ann").get("/api/v1/jobs/1").json()
    assert (job["user"], job["command"], job["output"]) == (
        "ann",
        "python train.py --name train-0",
        "epoch 1\nepoch 2\n",
    )
    assert len(job["series"]) == 50
    page = world.browser("ann").get("/job/1").text
    assert "epoch 2" in page
    assert 'data-action="cancel"' in page


@pytest.mark.parametrize(("user", "role"), [("bob", Role.USER), ("ann", Role.VIEWER)])
def test_nobody_else_sees_them_or_gets_a_button(world: World, user: str, role: Role) -> None:
    job = world.program(user, role).get("/api/v1/jobs/1").json()
    assert (job["command"], job["output"], job["name"], job["series"]) == (None, None, "", [])
    page = world.browser(user, role).get("/job/1").text
    assert "epoch" not in page
    assert "train.py" not in page
    assert "data-action" not in page


def test_a_waiting_job_says_why_and_can_be_held_by_its_owner_alone(world: World) -> None:
    page = world.browser("ann").get("/job/100000").text
    assert "waits for room" in page
    assert 'data-command="berth hold 100000"' in page
    assert "data-action" not in world.browser("bob").get("/job/100000").text


def test_a_job_that_nobody_knows_is_not_found_with_what_each_said(world: World) -> None:
    answer = world.program("ann").get("/api/v1/jobs/none")
    assert answer.status_code == 404
    assert answer.json()["detail"] == "no job 'none'; there is no job 'none'"
