"""On a real Slurm: memory grows on a node that has an agent, and a suspended job leaves its GPU and runs on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.live.slurm.real_slurm import needs_root, needs_slurm, tell

pytestmark = [pytest.mark.slow, needs_slurm]

AGENT_RUNS = r"""
install_berth "${GPU_SETTINGS[@]}"
mkdir -m 777 out; chmod 777 .
BERTH_SLURM_FAKE_GPU=1 BERTH_ROOT="$PWD/root" BERTH_FAKE_CARD="$PWD/card" BERTH_SLURM_LOG="$PWD/agent.log" \
    "$BERTH" slurm agent --state "$PWD/state" &
place --card v100=1G
"""

STORY = r"""
job=$(sbatch --parsable -t 10 -o out/job --gres=gpu:1 --comment "app gpu_mem=256M..1G" \
    --wrap "export CUDA_VISIBLE_DEVICES=0; exec $PYTHON $GROWING_JOB 200 400 $PWD/go")
until_is $job RUNNING
until_so grep "holds 400" out/job
"$BERTH" slurm suspend $job --state "$PWD/state" >suspend.txt
state $job >suspended.txt
# Slurm stops the job two seconds later, and one that it has not stopped yet it cannot let go on.
until_so 'grep -q "Suspended StepId=$job.batch" log/slurmd.*'
"$BERTH" slurm why $job --state "$PWD/state" --json >why.json
"$BERTH" slurm resume $job --state "$PWD/state" >resume.txt
touch go
until_is $job COMPLETED
"""


@needs_root
def test_a_job_grows_leaves_its_gpu_and_runs_on(open_folder: Path) -> None:
    growing = Path(__file__).parents[1] / "local" / "growing_job.py"
    folder = tell(open_folder / "slurm", AGENT_RUNS + STORY, GROWING_JOB=str(growing))
    assert (folder / "out" / "job").read_text().splitlines() == ["holds 200", "holds 400"]
    assert (folder / "suspend.txt").read_text().endswith(" is suspended\n")
    assert (folder / "suspended.txt").read_text() == "SUSPENDED\n"
    (memory,) = json.loads((folder / "why.json").read_text())["memory"].values()
    assert "granted: 1" in memory
    assert "suspended, with 600M" in memory
    assert not [*(folder / "state" / "orders").iterdir()]


WAITS_FOR_GROWN = r"""
grows=$(sbatch --parsable -t 10 -o out/job --gres=gpu:1 --comment "app gpu_mem=256M..1G" \
    --wrap "export CUDA_VISIBLE_DEVICES=0; exec $PYTHON $GROWING_JOB 200 400 $PWD/go")
until_is $grows RUNNING
until_so '"$BERTH" slurm why $grows --state "$PWD/state" --json | grep "granted: 1"'
other=$(submit --gres=gpu:1 --wrap "sleep 600")
until_is $other RUNNING
waits=$(submit --gres=gpu:1 --comment gpu_mem=500M --wrap true)
why() { "$PYTHON" -c "import json; print(json.load(open('state/status.json'))['why'].get('$waits', ''))"; }
until_so 'why | grep -v "^Slurm decides" | grep .'
why >why.txt
touch go
until_is $waits COMPLETED
state $other >other.txt
"""


@needs_root
def test_a_job_waits_for_what_another_has_grown_by_though_slurm_has_shards_left(open_folder: Path) -> None:
    growing = Path(__file__).parents[1] / "local" / "growing_job.py"
    folder = tell(
        open_folder / "slurm", AGENT_RUNS + WAITS_FOR_GROWN, GROWING_JOB=str(growing), CLUSTER_NODES="1"
    )
    assert (folder / "why.txt").read_text().startswith("waits for room")
    assert (folder / "other.txt").read_text() == "RUNNING\n"


SUSPENDED = r"""
chmod 777 .
has=$(submit -w node1 --gres=gpu:2 --wrap "sleep 600")
until_is $has RUNNING
scontrol suspend $has
wants=$(submit -w node1 --gres=gpu:1 --wrap true)
until_so '[ "$(reason $wants)" = Resources ]'
scontrol -o -d show node node1 | grep -o ' GresUsed=[^ ]*' >used.txt
reason $wants >reason.txt
scancel $has
until_is $wants COMPLETED
"""


@needs_root
def test_slurm_gives_the_gpus_of_a_suspended_job_to_no_other(open_folder: Path) -> None:
    """So berth suspends no job for an urgent one, but queues it again: else Slurm would not start the urgent one."""
    folder = tell(open_folder / "slurm", SUSPENDED)
    assert (folder / "used.txt").read_text() == " GresUsed=gpu:v100:2(IDX:0-1)\n"
    assert (folder / "reason.txt").read_text() == "Resources\n"
