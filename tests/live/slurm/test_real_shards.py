"""On a real Slurm: shards with types outlive a killed slurmctld, and a job that is queued again keeps its type."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.live.slurm.real_slurm import needs_slurm, tell

pytestmark = [pytest.mark.slow, needs_slurm]
STORY = r"""
install_berth
place --card v100=1G
shards() { # of each node what it has, and what is used
    scontrol -d -o show node | grep -oE ' Gres=\S+| GresUsed=\S+' | tr , '\n' | grep -oE 'shard:[^(]*'
}
saved() { # what slurmctld has not saved when it is killed, it forgets; it saves if a job has changed
    local _
    for _ in 1 2; do
        touch mark; scancel "$(submit --begin=now+1hour --wrap true)"
        until_so [ state/job_state -nt mark ]
    done
}
part() { submit --requeue --mem=1 --gres=gpu:1 --comment 'gpu_mem=300M' --wrap "$(until_there "$1")"; }
one=$(part go); two=$(part go)
until_is "$one" RUNNING; until_is "$two" RUNNING
saved
pid=$(cat slurmctld.pid); kill -KILL "$pid"; ended "$pid"; slurmctld
until_so 'scontrol ping | grep -q "is UP"'
until_so '[ "$(scontrol -o show node | grep -c shard:v100_1:)" = 2 ]'
shards >restarted
kind() { squeue -h -a -t all -j "$1" -O tres-per-node: | cut -d: -f1-3; }
kind "$one" >kinds
scontrol requeue "$one"
until_is "$one" PENDING; touch go; until_is "$one" COMPLETED; until_is "$two" COMPLETED
kind "$one" >>kinds
until_so 'shards >after; ! grep "v100_.:[1-3]" after'
stop_berth
"$BERTH" slurm check --partitions gpu --state "$PWD/state" --card v100=1G --json >check.json || true
"""


def test_no_shard_is_lost_by_a_killed_slurmctld_or_kept_of_a_job_that_is_queued_again(
    open_folder: Path,
) -> None:
    told = tell(open_folder / "c", STORY)
    all_shards = ["shard:v100_0:4", "shard:v100_1:4"]
    restarted, after = ((told / name).read_text().split() for name in ("restarted", "after"))
    assert [each for each in restarted if each.endswith(":4")] == all_shards * 2
    assert sorted(after) == sorted([*all_shards, "shard:v100_0:0", "shard:v100_1:0"] * 2)
    first, second = (told / "kinds").read_text().split()
    assert first == second
    assert not [each for each in json.loads((told / "check.json").read_text()) if "shards" in each["what"]]
