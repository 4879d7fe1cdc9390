"""On a real Slurm: what changes between decision and release, an expired token, meddled jobs, a Prolog that cannot run.

And a berth that dies while a job waits for another's end: Slurm starts that job all the same.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.live.slurm.real_slurm import needs_root, needs_slurm, tell

pytestmark = [pytest.mark.slow, needs_slurm, needs_root]
ROOT = Path(__file__).parents[3]

STORY = r"""
install_berth "${GPU_SETTINGS[@]}"
mkdir -m 777 out; mkdir between; chmod 777 .
J() { as games sbatch --parsable -t 5 -o /dev/null --gres=gpu:1 "$@"; }

# Between decision and release: one is cancelled, one changed by an administrator, the node of the third drained.
cancelled=$(J --wrap 'sleep 1'); changed=$(J --wrap 'sleep 1'); drained=$(J --wrap 'sleep 1')
PYTHONPATH=$ROOT "$PYTHON" -m tests.live.slurm.between "$PWD/between" $cancelled $changed $drained
for job in $cancelled $changed $drained; do echo "$(state $job) $(gpus_of $job)"; done >between.txt
scontrol update NodeName=node2 State=RESUME

# A new berth goes on from there; its token expires under it.
token=$(scontrol token lifespan=3); token=${token#*=}; sleep 4
SLURM_JWT=$token "$BERTH" slurm check --partitions gpu --rest "$PWD/rest" --state "$PWD/state" --card v100=1G --json \
    >token.json || true
SLURM_JWT=$token place --card v100=1G --rest "$PWD/rest"
for job in $changed $drained; do until_is $job COMPLETED; done
first=$(J --wrap 'sleep 1'); until_is $first COMPLETED

# An AdminComment that others write, before and after berth: the job is berth's all the same, and both texts stay.
# A job that its user requeues is placed once more.
stop_berth
other=$(J --wrap 'sleep 1'); scontrol update JobId=$other AdminComment=ours
as games scontrol release $other 2>release.txt && exit 8
again=$(J --wrap "$(until_there again.go)")
place --card v100=1G
until_is $again RUNNING
until_is $other COMPLETED; admin $other >other.txt
as games scontrol requeue $again; touch again.go
until_is $again COMPLETED; squeue -h -t all -j $again -O 'restartcnt: ,tres-per-node:' >again.txt
stop_berth

# A Prolog that cannot run: no GPU for the job, and its node stays up.
cp berth/prolog.sh prolog.sh; sed -i "s|timeout 8 [^ ]*|timeout 8 $PWD/gone|" berth/prolog.sh
place --card v100=1G
blind=$(as games sbatch --parsable -t 5 -o out/blind --gres=gpu:1 --wrap 'echo "seen: $CUDA_VISIBLE_DEVICES"')
until_is $blind COMPLETED; sinfo -h -N -o '%N %T' >nodes.txt; cp prolog.sh berth/prolog.sh
"""


def test_what_changes_under_berth_loses_no_job_and_starts_none_without_its_gpu(open_folder: Path) -> None:
    folder = tell(open_folder / "c", STORY, CLUSTER_REST="yes", SLURM_TIME_FORMAT="%s", ROOT=str(ROOT))

    def text(name: str) -> str:
        return (folder / name).read_text()

    # None of the three was started: it is gone, it asks for other GPUs than it was told, its node takes no jobs.
    assert [line.split()[0] for line in text("between.txt").splitlines()] == [
        "CANCELLED",
        "PENDING",
        "PENDING",
    ]
    said = [json.loads(line) for line in text("between/decisions.jsonl").splitlines()]
    assert [e["event"] for e in said][:3] == ["placed"] * 3
    assert any("its GPUs were changed before its release" in e.get("why", "") for e in said)
    assert [fault["line"] for fault in json.loads(text("token.json"))] == [
        "export $(scontrol token lifespan=31536000)"
    ]
    events = [json.loads(line) for line in text("state/decisions.jsonl").splitlines()]
    assert {e["planned"] == e["where"] for e in events if e["event"] == "started" and e.get("planned")} == {
        True
    }
    assert text("other.txt").startswith("ours berth:1;node=gres")
    assert "denied" in text("release.txt")
    assert text("again.txt").split()[0] == "1"
    assert text("again.txt").count("gpu:v100_") == 1
    assert "made no GPU partition" in text("out/blind")
    assert text("out/blind").endswith("seen: \n")
    assert {line.split()[1] for line in text("nodes.txt").splitlines()} <= {
        "idle",
        "mixed",
        "allocated",
        "completing",
    }
    assert "it ended with 127" in text("node.log")
