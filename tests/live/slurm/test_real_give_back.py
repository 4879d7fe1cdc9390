"""On a real Slurm: a job that berth gives back while there is no room for it stays Slurm's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.live.slurm.real_slurm import needs_slurm, tell

pytestmark = [pytest.mark.slow, needs_slurm]

STORY = r"""
install_berth
scontrol update NodeName=node[1-2] State=DRAIN Reason=test
plain=$(submit -N 2 --gpus=3 --wrap true)
noted=$(submit -N 2 --gpus=3 --wrap true)
scontrol update JobId=$noted AdminComment=ticket-7
place --card v100=1G
for job in $plain $noted; do until_so '! grep -q berth:1 <(admin $job)'; done
looks() { grep -o '"queries": [0-9]*' state/status.json | tr -dc 0-9; }
before=$(looks)
until_so '[ "$(looks)" -ge $((before + 10)) ]'
for job in $plain $noted; do echo "$(state $job) $(reason $job | cut -c1-5) $(admin $job)"; done >after.txt
stop_berth
"""


def test_a_job_that_is_given_back_without_room_is_held_no_more_and_keeps_only_what_others_wrote(
    open_folder: Path,
) -> None:
    folder = tell(open_folder / "c", STORY)
    lines = [line.split() for line in (folder / "after.txt").read_text().splitlines()]
    assert [line[0] for line in lines] == ["PENDING", "PENDING"]
    assert not any("JobHe" in line for line in lines)
    assert [[word for word in line if "berth" in word or "ticket" in word] for line in lines] == [
        [],
        ["ticket-7"],
    ]
    events = [
        json.loads(line)["event"] for line in (folder / "state" / "decisions.jsonl").read_text().splitlines()
    ]
    assert events == ["given-back"] * 2
