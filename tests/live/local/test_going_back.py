"""The page on upgrades, followed by 0.2 itself: there and back with one queue and its history."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.local.make_store_0_2 import COMMIT
from tests.live.local.world import World

ROOT = Path(__file__).resolve().parents[3]
UPGRADE, GO_BACK = re.findall(
    r"```console\n(.*?)```", (ROOT / "docs" / "how-to" / "upgrade.md").read_text(), re.DOTALL
)


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of 0.2's packages, from the history of this repository."""
    folder = tmp_path_factory.mktemp("0.2")
    packed = subprocess.run(
        ["git", "archive", COMMIT, "src", "native"], cwd=ROOT, capture_output=True, check=False
    )
    if packed.returncode != 0:
        pytest.skip(f"commit {COMMIT} of 0.2 is not here: this is no whole clone")
    subprocess.run(["tar", "x"], cwd=folder, input=packed.stdout, check=True)
    subprocess.run(["make", "-s", "-C", str(folder / "native")], capture_output=True, check=True)
    return folder / "src"


@pytest.mark.slow
def test_the_queue_and_history_of_0_2_are_upgraded_and_put_back_as_the_page_says(old: Path) -> None:
    world = World()
    world.state = world.folder / ".local/state/berth"
    environment = world.environment | {
        "HOME": str(world.folder),
        "BERTH_STATE": str(world.state),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    script = f"""
        pipx() {{ case "$3" in *OLD*) export PYTHONPATH={old};; *) export PYTHONPATH={ROOT / "src"};; esac; }}
        history() {{ berth stats --by application --json; }}

        pipx install --force berth_gpu-OLD.whl
        berth up --fake-gpus 2xA100-80G
        berth submit --name ended -- true
        berth wait 1
        berth submit --name later --begin now+24h -- true
        until history > history.before 2> not_yet; do sleep 0.1; done
        {UPGRADE}
        history > history.upgraded
        berth submit --name new -- true
        berth wait 3
        berth submit --name grows --mem 8G..20G --begin now+24h -- true
        berth queue --json > queue.upgraded
        {GO_BACK}
        history > history.back
        berth queue --json > queue.back
        berth cancel 2
        berth submit --name again -- true
        berth wait 3
        berth queue --ended --json > queue.ended
    """
    try:
        done = subprocess.run(
            ["bash", "-ec", script],
            cwd=world.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        told = {path.name: path.read_text() for path in world.folder.iterdir() if path.is_file()}
    finally:
        down = ["berth", "down", "--cancel"]
        subprocess.run(down, cwd=world.folder, env=environment, capture_output=True, check=False)
        world.close()
    before, upgraded, back = (json.loads(told[f"history.{when}"]) for when in ("before", "upgraded", "back"))
    assert upgraded["rows"][0]["gpu_hours"] == before["rows"][0]["gpu_hours"] > 0
    assert back == before
    states = {
        when: {job["name"]: job["state"] for job in json.loads(told[f"queue.{when}"])["jobs"]}
        for when in ("upgraded", "back", "ended")
    }
    assert states == {
        "upgraded": {"later": "waiting", "grows": "waiting"},
        "back": {"later": "waiting"},
        "ended": {"ended": "completed", "later": "cancelled", "again": "completed"},
    }
