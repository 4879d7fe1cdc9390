"""On a real Slurm: memory grows on a node that has an agent, and a suspended job leaves its GPU and runs on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.live.slurm.real_slurm import needs_root, needs_slurm, tell

pytestmark = [pytest.mark.slow, needs_slurm]

STORY = r"""
install_berth "${GPU_SETTINGS[@]}"
mkdir -m 777 out; chmod 777 .
BERTH_SLURM_FAKE_GPU=1 BERTH_ROOT="$PWD/root" BERTH_FAKE_CARD="$PWD/card" BERTH_SLURM_LOG="$PWD/agent.log" \
    "$BERTH" slurm agent --state "$PWD/state" &
place --card v100=1G
job=$(sbatch --parsable -t 10 -o out/job --gres=gpu:1 --comment "app gpu_mem=256M..1G" \
    --wrap "export CUDA_VISIBLE_DEVICES=0; exec $PYTHON $GROWING_JOB 200 400 $PWD/go")
until_is $job RUNNING
for _ in $(seq 600); do grep -q "holds 400" out/job && break; sleep .1; done
"$BERTH" slurm suspend $job --state "$PWD/state" >suspend.txt
state $job >suspended.txt
"$BERTH" slurm why $job --state "$PWD/state" --json >why.json
"$BERTH" slurm resume $job --state "$PWD/state" >resume.txt
touch go
until_is $job COMPLETED
"""


@needs_root
def test_a_job_grows_leaves_its_gpu_and_runs_on(open_folder: Path) -> None:
    growing = Path(__file__).parents[1] / "local" / "growing_job.py"
    folder = tell(open_folder / "slurm", STORY, GROWING_JOB=str(growing))
    assert (folder / "out" / "job").read_text().splitlines() == ["holds 200", "holds 400"]
    assert (folder / "suspend.txt").read_text().endswith(" is suspended\n")
    assert (folder / "suspended.txt").read_text() == "SUSPENDED\n"
    (memory,) = json.loads((folder / "why.json").read_text())["memory"].values()
    assert "granted: 1" in memory
    assert "suspended, with 600M" in memory
    assert not [*(folder / "state" / "orders").iterdir()]
