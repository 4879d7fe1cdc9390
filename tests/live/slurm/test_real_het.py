"""On a real Slurm: the components of a heterogeneous job start together, on the nodes and GPUs that berth chose."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.live.slurm.real_slurm import as_before, needs_root, needs_slurm, tell

pytestmark = [pytest.mark.slow, needs_slurm]

PLAIN = "sed -i 's/^PartitionName=.*/&\\nPartitionName=plain Nodes=ALL MaxTime=60 DefMemPerCPU=500/' $DIR/slurm.conf\n"
STORY = r"""
install_berth "${GPU_SETTINGS[@]}"
mkdir -m 777 out; chmod 777 .
script() { # COMMAND: a job of three components: CPUs alone, two GPUs, a part of one
    printf '#!/bin/bash\n#SBATCH -t 10 --requeue -o /dev/null -c 2\n'
    printf '#SBATCH hetjob\n#SBATCH --gres=gpu:2\n#SBATCH hetjob\n'
    printf '#SBATCH --gres=gpu:1 --comment="app gpu_mem=256M"\n%s\n' "$1"
}
rows() { squeue -h -a -t all -j "$1" -O 'JobArrayID:|,State:|,NodeList:|,tres-per-node:|' | sort; }
request() { squeue -h -a -t all -j "$1" -O 'JobArrayID:|,Reason:|,tres-per-node:|,admin_comment:|' | sort; }
all_are() { # JOB STATE
    until_so "[ \"\$(squeue -h -a -t all -j $1 -o %T | sort | uniq -c | xargs)\" = '3 $2' ]"
}

# It waits while a node's GPUs are taken, as one job: with a berth that is killed meanwhile.
big=$(submit -w node3 -p plain --gres=gpu:2 --wrap 'sleep 300')
more=$(submit -w node2 -p plain --gres=gpu:2 --wrap 'sleep 300')
script "srun --het-group=1-2 --gres=none bash -c 'echo \$SLURMD_NODENAME \${LD_PRELOAD##*/} >>out/tasks'
$(until_there het.go)" >het.sh
place --card v100=1G
until_is $big RUNNING; until_is $more RUNNING
het=$(as games sbatch --parsable het.sh)
until_so '"$BERTH" slurm why $het --state "$PWD/state" >why.txt; grep gang why.txt'
rows $het >waits.txt
stop_berth KILL; place --card v100=1G
scancel $more; all_are $het RUNNING
rows $het >runs.txt; touch het.go
all_are $het COMPLETED

# One of which a component runs out of GPU memory is queued again whole, with more.
script "srun --het-group=2 --gres=none --export=ALL,CUDA_VISIBLE_DEVICES=0 $PYTHON $GPU_JOB 300" >het.sh
more=$(sbatch --parsable het.sh)
until_so 'admin $((more + 2)) | grep -q retries=1'
all_are $more COMPLETED
admin $((more + 2)) >more.txt

# Those that berth does not take, or not whole, are Slurm's.
left=$(sbatch --parsable -t 10 -o /dev/null --gres=gpu:1 : -p plain --gres=gpu:1 het.sh)
until_so '[ -z "$(admin $left | tr -d " ")" ]'
request $left >left.txt; scancel $left
stop_berth
lonely=$(sbatch --parsable het.sh); sleep 2
berth/watchdog.sh 1 "$PWD/state" >watchdog.txt 2>&1
request $lonely >lonely.txt
scancel $lonely $big
"""


@needs_root
def test_a_heterogeneous_job_waits_and_starts_as_one(open_folder: Path) -> None:
    setup = open_folder / "setup.sh"
    setup.write_text(PLAIN)
    folder = tell(open_folder / "c", STORY, CLUSTER_NODES="3", CLUSTER_SETUP=str(setup))

    def read(name: str) -> list[list[str]]:
        return [line.split("|")[1:4] for line in as_before((folder / name).read_text()).splitlines()]

    assert "waits for room for 3 tasks of gang" in (folder / "why.txt").read_text()
    assert read("waits.txt") == [["PENDING", "", "N/A"]] * 3
    assert [row[:2] for row in read("runs.txt")] == [
        ["RUNNING", name] for name in ("node3", "node1", "node2")
    ]
    gres = [row[2] for row in read("runs.txt")]
    assert gres[:2] == ["N/A", "gres:gpu:v100_0:1,gres:gpu:v100_1:1"]
    assert gres[2] in ("gres:shard:v100_0:1", "gres:shard:v100_1:1")
    # Each component's tasks are limited by its own partition.
    tasks = (folder / "out" / "tasks").read_text().splitlines()
    assert sorted(tasks) == ["node1 libberth.so", "node2 libberth.so"]
    events = [json.loads(line) for line in (folder / "state" / "decisions.jsonl").read_text().splitlines()]
    parts = [e["state"] for e in events if e["event"] == "ended" and e["job"].endswith("+2")]
    assert parts == ["COMPLETED", "FAILED", "COMPLETED"]
    assert {
        e["where"] == e.get("planned")
        for e in events
        if e["event"] == "started" and "+" in e["job"] and e.get("gpus")
    } == {True}
    assert "retries=1" in (folder / "more.txt").read_text()
    assert read("left.txt")[0][1] == "gres:gpu:1"
    assert {row[2].strip() for row in read("left.txt")} == {""}
    assert [row[1:] for row in read("lonely.txt")] == [
        ["N/A", " "], ["gres:gpu:2", " "], ["gres:gpu:1", " "],
    ]  # fmt: skip
    assert "jobs given back: 1" in (folder / "watchdog.txt").read_text()
