"""Beside a real Slurm with its accounting: advice is compared with what Slurm did, limits are Slurm's, REST places."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.live.slurm.real_slurm import needs_slurm, tell

pytestmark = [pytest.mark.slow, needs_slurm]

STORY = r"""
me=$(id -un)
sacctmgr -i add account ai >/dev/null; sacctmgr -i add user $me account=ai >/dev/null
until_so 'scontrol -o show assoc_mgr users=$me flags=assoc | grep -q "Account=ai UserName=$me("'
J() { sbatch -A ai --parsable -o /dev/null -t 10 "$@"; }
"$BERTH" slurm run --state "$PWD/advice" --interval 0.1 --policy fifo+first-fit --history "$PWD/h" 2>>berth.err &
adviser=$!
until_so [ -e advice/status.json ]
ids=(); for n in 1 2 3 4 5 6; do ids+=($(J --gres=gpu:1 -J "app$n" --wrap 'sleep 3')); done
for id in "${ids[@]}"; do until_is $id COMPLETED; done
until_so '[ "$(logged ended advice)" = 6 ]'
kill $adviser; wait $adviser 2>/dev/null || true

# Placing, through slurmrestd, with a limit of Slurm's own.
echo AccountingStorageEnforce=associations,limits >>slurm.conf
install_berth
sacctmgr -i modify user where name=$me account=ai set GrpTRES=gres/gpu=1 >/dev/null
until_so 'scontrol -o show assoc_mgr users=$me flags=assoc | grep -q "gres/gpu=1("'
export $(scontrol token lifespan=600) SLURM_JWT_USER=$me
place --card v100=1G --rest "$PWD/rest" --patience 2
one=$(J --gres=gpu:1 --wrap "$(until_there one.go)"); until_is $one RUNNING
two=$(J --gres=gpu:1 --wrap "$(until_there two.go)")
until_so grep -q '"taken-back".*AssocGrpGRES' state/decisions.jsonl
state $two >limited.txt; touch one.go
# It is placed anew, and has one GPU alone.
until_is $one COMPLETED; until_is $two RUNNING; gpus_of $two >two.gpus; touch two.go; until_is $two COMPLETED
# slurmrestd is gone: scontrol does it.
kill $(cat rest.pid); sleep .2
three=$(J --gres=gpu:1 --wrap 'sleep 1'); until_is $three COMPLETED
until_so '[ "$(logged ended)" = 3 ]'
stop_berth
sacct_() { env -u SLURM_JWT sacct -X -n -P -o JobIDRaw,Start,End,State >sacct.txt; }
until_so 'sacct_; [ "$(grep -c COMPLETED sacct.txt)" = 9 ]' # slurmdbd hears of an end a little later
for name in advice state; do "$BERTH" slurm compare --state "$PWD/$name" --gpus 4 --json >$name.json; done
"""


def test_advice_and_placements_agree_with_the_accounting_and_limits_are_slurms(open_folder: Path) -> None:
    folder = tell(
        open_folder / "c", STORY, CLUSTER_ACCOUNTING="yes", CLUSTER_REST="yes", SLURM_TIME_FORMAT="%s"
    )
    # On a busy machine a job may begin and end between two looks of the adviser; those that berth placed are all seen.
    for name, least, most in (("advice", 4, 6), ("state", 3, 3)):
        told = json.loads((folder / f"{name}.json").read_text())
        assert least <= told["jobs"] <= most
        assert 0 < told["slurm_use"] <= 1
    # What berth saw is what sacct tells, job by job.
    rows = {
        line.split("|")[0]: line.split("|")[1:] for line in (folder / "sacct.txt").read_text().splitlines()
    }
    seen = _seen(folder / "advice" / "decisions.jsonl") | _seen(folder / "state" / "decisions.jsonl")
    assert len(rows) == 9
    assert len(seen) >= 7
    assert {job: rows.get(job) for job in seen} == seen
    events = [json.loads(line) for line in (folder / "state" / "decisions.jsonl").read_text().splitlines()]
    # Until Slurm has looked at a released job its reason is None, and that may be longer than berth's patience here.
    assert "Slurm: AssocGrpGRES" in {e["why"] for e in events if e["event"] == "taken-back"}
    assert (folder / "limited.txt").read_text() == "PENDING\n"
    gpus = [each for each in (folder / "two.gpus").read_text().strip().split(",") if ":0(" not in each]
    assert len(gpus) == 1  # one GPU alone, and the one that it was told last
    started = [e for e in events if e["event"] == "started"]
    assert len(started) == 3
    assert [e["planned"] for e in started] == [e["where"] for e in started]
    # Without slurmrestd a job is placed once; a Slurm that is slower than berth's patience has it placed again.
    last = [e["event"] for e in events if e["job"] == events[-1]["job"]]
    assert last.count("placed") == 1 + last.count("taken-back")


def _seen(path: Path) -> dict[str, list[str]]:
    """Start, end and state of each job by its number, as sacct prints them."""
    lines: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    return {
        e["raw"]: [str(e["start_ms"] // 1000), str(e["end_ms"] // 1000), e["state"]]
        for e in lines
        if e["event"] == "ended"
    }
