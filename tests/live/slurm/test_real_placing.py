"""On a real Slurm, installed by what `berth slurm install` says: held jobs run where berth tells, whoever meddles."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from berth.live.slurm.service import owner_of
from tests.live.slurm.real_slurm import as_before, needs_root, needs_slurm, tell

pytestmark = [pytest.mark.slow, needs_slurm]

STORY = r"""
"$BERTH" slurm check --partitions gpu --state "$PWD/state" --json >before.json || echo $? >before.rc
install_berth "${GPU_SETTINGS[@]}"
"$BERTH" slurm check --partitions gpu --state "$PWD/state" --card v100=1G --json >after.json
mkdir -m 777 out; chmod 777 .

# Before berth is there: the user can neither release what is held nor change its GPUs, and its queue shows no GPU.
early=$(as games sbatch --parsable -t 10 -o /dev/null --gres=gpu:1 --wrap "$(until_there early.go)")
as games scontrol release $early 2>release.txt && exit 3
as games scontrol update JobId=$early Gres=gpu:2 2>gres.txt && exit 4
as games scontrol update JobId=$early ReqNodeList=node2 2>nodes.txt && exit 5
as daemon scontrol release $early 2>other.txt && exit 6
state $early >early.txt; reason $early >>early.txt; admin $early >>early.txt
# The race: a user lets go of his job again and again while berth begins.
( for _ in $(seq 40); do as games scontrol release $early 2>/dev/null || true; sleep .05; done ) & racer=$!
place --card v100=1G --retries 1
until_is $early RUNNING
gpus_of $early >early.gpus; touch early.go
wait $racer
until_is $early COMPLETED

# Whole GPUs of two users, several nodes, parts of a GPU, and an array with a limit.
two=$(as games sbatch --parsable -t 10 -o /dev/null -N2 --gres=gpu:2 --wrap "$(until_there two.go)")
until_is $two RUNNING; gpus_of $two >two.gpus; touch two.go; until_is $two COMPLETED
part() { as "$1" sbatch --parsable -t 10 -o /dev/null --gres=shard:2 --wrap "$(until_there parts.go)"; }
first=$(part games); second=$(part daemon)
until_is $first RUNNING; until_is $second RUNNING
for job in $first $second; do squeue -h -j $job -O nodelist:,tres-per-node:; done >parts.txt; touch parts.go
array=$(as daemon sbatch --parsable -t 10 -o /dev/null --array=1-3%2 --gpus=1 --wrap 'sleep 1')
for task in 1 2 3; do until_is ${array}_$task COMPLETED; done
big=$(submit --gres=gpu:9 --wrap 'sleep 1'); sleep 1
"$BERTH" slurm why $big --state "$PWD/state" --json >why.json
scancel $big

# Memory: within its part; more than its part, and then enough; more than there is.
gpu() { sbatch --parsable -t 10 -o out/$1 --gres=gpu:1 --comment "app gpu_mem=256M" \
    --wrap "export CUDA_VISIBLE_DEVICES=0; $PYTHON $GPU_JOB $2"; }
small=$(gpu small 100); until_is $small COMPLETED
more=$(gpu more 300)
# It is FAILED for a moment, until it is queued again.
until_so 'grep -q retries=1 <(admin $more)'
until_is $more COMPLETED; admin $more >more.txt
# Where the Prolog made no partition, a job of berth's has no GPU, and is told so.
mv berth/prolog.sh prolog.sh; printf '#!/bin/bash\nexit 0\n' >berth/prolog.sh; chmod 755 berth/prolog.sh
closed=$(sbatch --parsable -t 10 -o out/closed --gres=gpu:1 \
    --wrap 'echo "GPUs: $SLURM_JOB_GPUS, seen: $CUDA_VISIBLE_DEVICES"')
until_is $closed COMPLETED; mv prolog.sh berth/prolog.sh
huge=$(gpu huge 5000); until_is $huge FAILED; until_so '[ "$(logged given-up)" -ge 1 ]'
until_so '[ -z "$(ls root)" ]' # the Epilog runs after the end
ls root >left.txt # fails where no partition was ever made

# berth is killed; a job waits; the watchdog gives it back and Slurm runs it with its GPU. A second berth is refused.
"$BERTH" slurm run --mode place --partitions gpu --state "$PWD/state" --interval 0.1 --for 1 2>twice.txt & twice=$!
"$BERTH" slurm run --mode place --partitions gpu --state "$PWD/elsewhere" --interval 0.1 --for 1 2>elsewhere.txt || true
wait $twice || true
scontrol -o show node node1 | grep -o '\[berth places: [^ ]*' >>elsewhere.txt
stop_berth KILL
lonely=$(as games sbatch --parsable -t 10 -o /dev/null --gres=gpu:1 --wrap "$(until_there lonely.go)")
berth/watchdog.sh 60 "$PWD/state"; state $lonely >lonely.txt
sleep 2; berth/watchdog.sh 1 "$PWD/state" >watchdog.txt 2>&1
until_is $lonely RUNNING; gpus_of $lonely >lonely.gpus; touch lonely.go
# It comes back, knows what runs, and goes on; the controller is restarted under it.
place --card v100=1G
next=$(as games sbatch --parsable -t 10 -o /dev/null --gres=gpu:1 --wrap 'sleep 1')
until_is $next COMPLETED
pid=$(cat slurmctld.pid); kill $pid; ended $pid; sleep 1; slurmctld
until_so 'last=$(submit --gres=gpu:1 --wrap "sleep 1")'
until_is $last COMPLETED
scontrol update NodeName=node1 State=DRAIN Reason=test
drained=$(submit --gres=gpu:1 --wrap 'sleep 1'); until_is $drained COMPLETED
squeue -h -t all -j $drained -o %N >drained.txt
sinfo -h -N -o '%N %T' >nodes.after
"$BERTH" slurm status --state "$PWD/state" >status.txt
stop_berth
"""


def _lines(folder: Path, name: str) -> list[str]:
    return (folder / name).read_text().split()


@needs_root
def test_held_jobs_run_where_berth_tells_whoever_meddles(open_folder: Path) -> None:
    folder = tell(open_folder / "c", STORY)
    before = json.loads((folder / "before.json").read_text())
    assert _lines(folder, "before.rc") == ["1"]
    assert {"slurm.conf: JobSubmitPlugins=lua", "slurm.conf: GresTypes=gpu,shard"} <= {
        f["line"] for f in before
    }
    assert json.loads((folder / "after.json").read_text()) == []
    # A user has no way around the hold, before berth looks and while it does.
    for name in ("release", "gres", "nodes", "other"):
        assert (folder / f"{name}.txt").read_text(), name
    note = "berth:1;node=gres:gpu:1;job=;task="
    state, reason, admin = _lines(folder, "early.txt")
    assert (state, reason, as_before(admin)) == ("PENDING", "JobHeldUser", note)
    assert _lines(folder, "early.gpus")[0].startswith("gpu:v100_")
    # Both GPUs of both nodes; two parts on one card; an array two at a time.
    assert _lines(folder, "two.gpus") == ["gpu:v100_0:1(IDX:0),gpu:v100_1:1(IDX:1)"]
    parts = [line.split("gres:") for line in as_before((folder / "parts.txt").read_text()).splitlines()]
    assert parts[0] == parts[1]
    assert parts[0][1].startswith("shard:v100_")
    events = [json.loads(line) for line in (folder / "state" / "decisions.jsonl").read_text().splitlines()]
    assert _most_at_once(events, "_") == 2
    assert "asks for 9 GPUs" in json.loads((folder / "why.json").read_text())["berth"]
    # Memory is enforced, measured and asked for again; partitions are gone.
    assert _lines(folder, "out/small") == ["holds", "100"]
    assert re.search(r";share=\d+:337:1;retries=1;needs=337$", _lines(folder, "more.txt")[0])
    said, has = (folder / "out" / "closed").read_text().splitlines()
    assert re.fullmatch(
        r"berth: node\d made no GPU partition for job \d+, so the job gets no GPU there; .*", said
    )
    assert re.fullmatch(r"GPUs: \d, seen: ", has)
    assert (folder / "out" / "huge").read_text() == "out of memory\n"
    assert {e["event"] for e in events if "5000 MiB" in e.get("why", "")} == {"given-up"}
    assert max(e.get("peak_mib", 0) for e in events) >= 300
    assert _lines(folder, "left.txt") == []
    # Without berth nothing is lost; with two, one decides.
    assert "another berth runs" in (folder / "twice.txt").read_text()
    assert (
        f"another berth places on these nodes, {owner_of(folder / 'state')}"
        in (folder / "elsewhere.txt").read_text()
    )
    assert f"[berth places: {owner_of(folder / 'state')}" in (folder / "elsewhere.txt").read_text()
    assert _lines(folder, "lonely.txt") == ["PENDING"]
    assert "jobs given back: 1" in (folder / "watchdog.txt").read_text()
    assert _lines(folder, "lonely.gpus")[0].startswith("gpu:v100_")
    assert _lines(folder, "drained.txt") == ["node2"]
    assert "drained" in (folder / "nodes.after").read_text()
    assert "node2 down" not in (folder / "nodes.after").read_text()
    assert "mode       place" in (folder / "status.txt").read_text()
    # Each job that berth placed started where it was told, by what Slurm says of its nodes and GPUs.
    started = {
        e["job"]: (e["planned"], e["where"]) for e in events if e["event"] == "started" and e.get("planned")
    }
    assert len(started) > 10
    assert {job: (told, told) for job, (told, _) in started.items()} == started
    # A controller that was restarted, a berth that was killed: all jobs ran once, and none waits.
    began = {e["job"] for e in events if e["event"] == "started"}
    ended = {e["job"] for e in events if e["event"] == "ended" and e["state"] != "CANCELLED"}
    assert began <= ended
    assert len(ended - began) <= 1  # what the watchdog released may run already when berth comes back


def _most_at_once(events: list[dict[str, Any]], mark: str) -> int:
    """The most jobs of this mark that ran at one time, by Slurm's own times."""
    starts = [(e["start_ms"], 1) for e in events if e["event"] == "started" and mark in e["job"]]
    ends = [(e["end_ms"], -1) for e in events if e["event"] == "ended" and mark in e["job"]]
    now = most = 0
    for _, change in sorted(starts + ends):
        now += change
        most = max(most, now)
    return most
