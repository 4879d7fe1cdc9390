"""The page on upgrades, followed by 0.2 itself: there and back with one queue and its history."""

from __future__ import annotations

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
    environment = world.environment | {
        "HOME": str(world.folder),
        "BERTH_STATE": str(world.folder / ".local/state/berth"),
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
        until history > before 2> not_yet; do sleep 0.1; done
        {UPGRADE}
        berth submit --name new -- true
        berth wait 3
        berth queue --json > upgraded
        berth down
        pipx install --force berth_gpu-OLD.whl
        ! berth up 2> refused
        {GO_BACK}
        history > back
        berth queue --json > waiting
        berth cancel 2
        berth submit --name again -- true
        berth wait 3
        berth queue --ended --json > ended
        berth down
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
        print(done.stdout, done.stderr)
        for name in sorted(world.folder.glob("*")):
            if name.is_file():
                print(name, name.read_text())
    finally:
        subprocess.run(
            ["berth", "down", "--cancel"], cwd=world.folder, env=environment, capture_output=True, check=False
        )
        world.close()
    assert 0
