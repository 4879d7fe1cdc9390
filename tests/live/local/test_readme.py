"""The commands that the README begins the queue with, as they stand there, and the demonstration."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.local.world import ROOT, World, berth


@pytest.mark.slow
def test_three_commands_of_the_readme_run_two_jobs_on_one_gpu() -> None:
    page = (ROOT / "README.md").read_text()
    block = re.search(r"## My machine\n\n```sh\n(.*?)```", page, re.DOTALL)
    assert block is not None
    commands = block[1].splitlines()
    assert len(commands) == 3
    world = World()
    try:
        for command in commands:
            environment = {**world.environment, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
            done = subprocess.run(
                ["bash", "-ec", command],
                env=environment,
                cwd=world.folder,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
        told = json.loads(berth(world, "queue", "--ended", "--json").stdout)["jobs"]
        assert [job["state"] for job in told] == ["completed", "completed"]
    finally:
        berth(world, "down", "--cancel")
        world.close()
