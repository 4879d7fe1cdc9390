"""The console beside a real Slurm and berth: which GPU each job has, and what a hold from it does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.live.slurm.real_slurm import needs_root, needs_slurm, tell

pytestmark = [pytest.mark.slow, needs_slurm, needs_root]
ROOT = Path(__file__).parents[3]

STORY = r"""
install_berth "${GPU_SETTINGS[@]}"
chmod 777 .
place --card v100=1G
scontrol update NodeName=node2 State=DRAIN Reason=test
whole=$(as games sbatch --parsable -J whole -t 10 -o /dev/null --gres=gpu:1 --wrap 'sleep 300')
part=$(as games sbatch --parsable -J part -t 10 -o /dev/null --gres=shard:2 --wrap 'sleep 300')
until_is $whole RUNNING; until_is $part RUNNING
large=$(as games sbatch --parsable -J large -t 10 -o /dev/null --gres=gpu:2 --wrap 'sleep 300')
held=$(as daemon sbatch --parsable -J held -t 10 -o /dev/null --gres=gpu:1 --wrap 'sleep 300')
for moment in now+3650days now; do as daemon scontrol update JobId=$held StartTime=$moment; done # as its user may
PYTHONPATH=$ROOT "$PYTHON" -m tests.live.slurm.console_look "$PWD/state" "$PWD/seen.json" $whole $part $large $held
scancel $large # it asks for more than there is room for, and goes first
until_is $held RUNNING
"""


def test_gpus_have_their_jobs_and_a_held_job_waits_until_it_is_released(open_folder: Path) -> None:
    """One job has a GPU, one half of another; the next two wait by berth's own reason, one of them held meanwhile."""
    seen = json.loads((tell(open_folder, STORY, ROOT=str(ROOT)) / "seen.json").read_text())
    gpus = {(gpu["node"], gpu["index"]): gpu for gpu in seen["gpus"]}
    held = {name: [(each["user"], each["milli"]) for each in gpu["tenants"]] for name, gpu in gpus.items()}
    assert sorted(held["node1", 0] + held["node1", 1]) == [("games", 500), ("games", 1000)]
    assert {gpu["model"] for gpu in gpus.values()} == {"v100"}
    assert [gpu["drained"] for _, gpu in sorted(gpus.items())] == [False, False, True, True]
    whole, part, large = (seen["jobs"][name] for name in ("whole", "part", "large"))
    assert (whole["where"][:10], part["milli"]) == ("node1 GPU ", 500)
    assert (large["state"], large["gpus"], "JobHeld" in large["reason"]) == ("waiting", 2, False)
    assert seen["hold"].endswith("StartTime=now+3650days")
    assert (seen["while_held"], seen["with_room"], seen["pages"]) == ("held", "held", [200, 200, 200])
