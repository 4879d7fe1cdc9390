"""On real Slurms of other versions: what berth checks, installs, holds and places, through slurmrestd."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.live.slurm.real_slurm import as_before, needs_root, needs_slurm, tell
from tests.other_slurms import each_other_slurm, newest_parser

STORY = r"""
"$BERTH" slurm check --partitions gpu --state "$PWD/state" --json >before.json || true
install_berth "${GPU_SETTINGS[@]}"
export $(scontrol token lifespan=600) SLURM_JWT_USER=root
"$BERTH" slurm check --partitions gpu --state "$PWD/state" --rest "$PWD/rest" --card v100=1G --json >after.json
early=$(submit --gres=gpu:1 --wrap "$(until_there early.go)"); admin $early >early.txt
alone=$(submit --gres=gpu:1 --exclusive --wrap 'sleep 1'); admin $alone >alone.txt
place --card v100=1G --rest "$PWD/rest"
until_is $early RUNNING; gpus_of $early >early.gpus; touch early.go
part=$(submit --gres=shard:2 --wrap 'sleep 1')
until_is $part COMPLETED; until_is $early COMPLETED; until_is $alone COMPLETED
until_so '[ "$(logged ended)" -ge 3 ]'
stop_berth
grep -o 'POST /slurm/[^ ]*' log/rest >posts.txt
"""


@pytest.mark.slow  # a Slurm, some seconds of jobs
@needs_slurm
@needs_root
@each_other_slurm
def test_another_slurm_is_checked_installed_and_placed_on(slurm: Path, open_folder: Path) -> None:
    folder = tell(open_folder / "c", STORY, CLUSTER_REST="yes", BERTH_TEST_SLURM=str(slurm))
    lines = {each["line"] for each in json.loads((folder / "before.json").read_text())}
    assert {"slurm.conf: JobSubmitPlugins=lua", "slurm.conf: Prolog=/etc/slurm/berth/prolog.sh"} <= lines
    assert json.loads((folder / "after.json").read_text()) == []
    # Whole nodes are Slurm's; the others are held, and run on the GPU that they are told, shares of one too.
    assert as_before((folder / "early.txt").read_text()) == "berth:1;node=gres:gpu:1;job=;task=\n"
    assert (folder / "alone.txt").read_text() == "(null)\n"
    assert (folder / "early.gpus").read_text().startswith("gpu:v100_")
    events = [json.loads(line) for line in (folder / "state" / "decisions.jsonl").read_text().splitlines()]
    told = {
        e["job"]: (e["planned"], e["where"]) for e in events if e["event"] == "started" and e.get("planned")
    }
    assert len(told) == 2
    assert {job: (where, where) for job, (_, where) in told.items()} == told
    assert not [e for e in events if "no GPU" in e.get("why", "")]  # its Prolog made the partition
    # slurmrestd was spoken to in the newest version that it has, once for each placement; a slow Slurm has several.
    posts = (folder / "posts.txt").read_text().split("\n")[:-1]
    assert {post.rpartition("/")[0] for post in posts} == {f"POST /slurm/{newest_parser(slurm)}/job"}
    placed = sorted(e["job"] for e in events if e["event"] == "placed")
    assert sorted(post.rpartition("/")[2] for post in posts) == placed
    assert set(placed) == set(told)
