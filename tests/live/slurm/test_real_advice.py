"""Beside a real Slurm with its accounting: advice is compared with what Slurm did, limits are Slurm's, REST places."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.live.slurm.real_slurm import needs_slurm, tell

pytestmark = [pytest.mark.slow, needs_slurm]

STORY = r"""
me=$(id -un)
sacctmgr -i add account ai >/dev/null; sacctmgr -i add user $me account=ai >/dev/null
for _ in $(seq 300); do # until the controller has heard of it
    scontrol -o show assoc_mgr users=$me flags=assoc | grep -q "Account=ai UserName=$me(" && break; sleep .2
done
J() { sbatch -A ai --parsable -o /dev/null -t 10 "$@"; }
"$BERTH" slurm run --state "$PWD/advice" --interval 0.1 --policy fifo+first-fit --history "$PWD/h" 2>>berth.err &
adviser=$!
for _ in $(seq 200); do [ -e advice/status.json ] && break; sleep .1; done
ids=(); for n in 1 2 3 4 5 6 7; do ids+=($(J --gres=gpu:1 -J "app$n" --wrap 'sleep 2')); done
for id in "${ids[@]}"; do until_is $id COMPLETED; done; sleep 2
kill $adviser; wait $adviser 2>/dev/null || true
"$BERTH" import slurmdbd "$BERTH_SLURMDBD" --history h --json >import.json
"$BERTH" slurm compare --state "$PWD/advice" --gpus 4 --history h --json >advice.json
"$BERTH" slurm compare --state "$PWD/advice" --gpus 4 --history h >advice.txt
sacct -X -n -P -o JobIDRaw,Start,End,State >sacct.txt

# Placing, through slurmrestd, with a limit of Slurm's own.
echo AccountingStorageEnforce=associations,limits >>slurm.conf
install_berth
sacctmgr -i modify user where name=$me account=ai set GrpTRES=gres/gpu=1 >/dev/null
for _ in $(seq 100); do
    scontrol -o show assoc_mgr users=$me flags=assoc | grep -q 'gres/gpu=1(' && break; sleep .1
done
export $(scontrol token lifespan=600) SLURM_JWT_USER=$me
place --card v100=1G --rest "$PWD/rest" --patience 8
one=$(J --gres=gpu:1 --wrap 'sleep 8'); until_is $one RUNNING
two=$(J --gres=gpu:1 --wrap 'sleep 1')
for _ in $(seq 300); do
    "$BERTH" slurm why $two --state "$PWD/state" --json >why.json
    grep -q AssocGrpGRES why.json && break; sleep .1
done
state $two >limited.txt
until_is $one COMPLETED; until_is $two COMPLETED
# slurmrestd is gone: scontrol does it.
kill $(cat rest.pid); sleep .5
three=$(J --gres=gpu:1 --wrap 'sleep 1'); until_is $three COMPLETED
stop_berth
"$BERTH" import slurmdbd "$BERTH_SLURMDBD" --history h --json >second.json
"$BERTH" slurm compare --state "$PWD/state" --gpus 4 --history h --json >placed.json
"""


@pytest.mark.xfail(
    reason="known defect: a job that an association's limit kept back is not always started when the limit is free"
)
def test_advice_and_placements_agree_with_the_accounting_and_limits_are_slurms(open_folder: Path) -> None:
    pytest.importorskip("sqlalchemy", reason="the extra 'slurm' is not installed")
    pytest.importorskip("pymysql", reason="the extra 'slurm' is not installed")
    folder = tell(open_folder / "c", STORY, CLUSTER_ACCOUNTING="yes", CLUSTER_REST="yes")
    rows = [line.split("|") for line in (folder / "sacct.txt").read_text().splitlines()]
    assert len(rows) == 7
    advice = json.loads((folder / "advice.json").read_text())
    assert (advice["jobs"], advice["records"], advice["records_of_berth"], advice["ends_agree"]) == (
        7,
        7,
        7,
        True,
    )
    assert 0 < advice["slurm_use"] <= 1
    text = (folder / "advice.txt").read_text()
    assert "accounting: 7 of 7 attempts are in berth's log; ends agree" in text
    why = json.loads((folder / "why.json").read_text())
    assert "AssocGrpGRES" in why["slurm"] + why["berth"]
    assert (folder / "limited.txt").read_text() == "PENDING\n"
    placed = json.loads((folder / "placed.json").read_text())
    assert (placed["jobs"], placed["records_of_berth"], placed["ends_agree"]) == (3, 3, True)
    assert placed["taken_back"] >= 1
