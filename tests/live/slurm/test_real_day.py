"""A day's worth of jobs in minutes, from nothing, as docs/slurm.md tells it: advise, install, place, kill, report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.live.slurm.real_slurm import needs_root, needs_slurm, tell

pytestmark = [pytest.mark.slow, needs_slurm]

A_PART = 8
"""Jobs of each of two users, under `advise` and again under `place`."""

STORY = r"""
chmod 777 .
day() { # FILE: the jobs of two users, on whole GPUs: Slurm 22.05 now and then counts a shard of a job that has ended
    local n user
    for n in $(seq 8); do
        for user in games daemon; do
            as $user sbatch --parsable -t 10 -o /dev/null --gres=gpu:1 -J app$((n % 4)) --wrap "sleep 0.$((n % 9 + 1))"
        done
    done >$1.ids
}
completed() { squeue -h -a -t COMPLETED -j "$(paste -sd, $1.ids)" -o %i | wc -l; }
until_ended() {
    until_so "[ \$(completed $1) -ge $2 ]"
}

# 1 and 2. Look, and change nothing.
"$BERTH" slurm run --state "$PWD/state" --interval 0.2 --history "$PWD/history" 2>>berth.err &
adviser=$!
until_so [ -e state/status.json ]
day advised; until_ended advised 16
until_so '[ "$(logged ended)" = 16 ]'
kill $adviser; wait $adviser 2>/dev/null || true

# 3 to 5. Install, place, and kill it while jobs of both users wait and run.
install_berth "${GPU_SETTINGS[@]}"
place --card v100=1G
day placed & users=$!
until_so [ -s placed.ids ]
until_ended placed 4; stop_berth KILL
sleep 1; "$BERTH" slurm status --state "$PWD/state" --json >killed.json
place --card v100=1G
wait $users; until_ended placed 16
until_so '[ "$(logged ended)" = 32 ]'
stop_berth

# 6. Report.
until_so 'sacct -a -X -n -P -o JobIDRaw,User,Submit,Start,End,State >sacct.txt
    [ "$(grep -c COMPLETED sacct.txt)" = 32 ]' # slurmdbd hears of an end a little later
"$BERTH" import slurmdbd "$BERTH_SLURMDBD" --shards-per-gpu 4 --decisions state/decisions.jsonl --history history \
    --json >import.json
"$BERTH" slurm compare --state "$PWD/state" --gpus 4 --json >compare.json
"$BERTH" report report.html --history history >report.out
"""


@needs_root
def test_a_day_is_advised_on_then_placed_berth_is_killed_and_the_figures_agree_with_sacct(
    open_folder: Path,
) -> None:
    pytest.importorskip("pymysql", reason="the extra 'slurm' is not installed")
    folder = tell(open_folder / "c", STORY, CLUSTER_ACCOUNTING="yes", SLURM_TIME_FORMAT="%s")
    rows = {
        row[0]: row[1:]
        for row in (line.split("|") for line in (folder / "sacct.txt").read_text().splitlines())
    }
    assert len(rows) == 4 * A_PART
    assert {row[4] for row in rows.values()} == {"COMPLETED"}
    events: list[dict[str, Any]] = [
        json.loads(line) for line in (folder / "state" / "decisions.jsonl").read_text().splitlines()
    ]
    # berth's log has each start and each end once, to the second and in the state that sacct tells, though killed.
    assert [sum(e["event"] == name for e in events) for name in ("started", "ended")] == [4 * A_PART] * 2
    assert {
        e["raw"]: [e["user"], *(str(e[name] // 1000) for name in ("submit_ms", "start_ms", "end_ms")), e["state"]]
        for e in events if e["event"] == "ended"
    } == rows  # fmt: skip
    by_part = [set((folder / f"{part}.ids").read_text().split()) for part in ("advised", "placed")]
    assert {e["job"] for e in events if e["event"] == "placed"} == by_part[1]
    assert {e["job"] for e in events if e["event"] == "advised"} <= by_part[0]
    assert {e["user"] for e in events if e["event"] == "placed"} == {"games", "daemon"}
    # All of it is one history, and the figures that are shown are those of sacct.
    compared = json.loads((folder / "compare.json").read_text())
    both = {e["raw"]: e["at_ms"] for e in reversed(events) if e["event"] in ("advised", "placed")}
    waits = [int(rows[raw][2]) - int(rows[raw][1]) for raw in both]
    assert compared["jobs"] == 4 * A_PART
    assert compared["slurm_wait_mean_s"] == pytest.approx(sum(waits) / len(waits))
    assert (folder / "report.html").stat().st_size > 1_000_000
