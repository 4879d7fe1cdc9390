"""On a real Slurm: a job's user gets a mail with berth's report at its end, whoever writes its AdminComment."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.slurm.real_slurm import needs_slurm, tell

pytestmark = [pytest.mark.slow, needs_slurm]

STORY = r"""
printf '#!/bin/bash\nset -C\ncat >"%s/mail-$(date +%%s.%%N)-${2//\//_}"\n' "$PWD" >mailer; chmod +x mailer
echo "MailProg=$PWD/mailer" >>slurm.conf; mv mailer mailx; sed -i 's/mailer/mailx/' slurm.conf
install_berth "${GPU_SETTINGS[@]}"
job=$(sbatch --parsable -t 10 -o /dev/null --gres=gpu:1 --comment "app gpu_mem=256M gpu_pct=50" --mail-type=END \
    --wrap "export CUDA_VISIBLE_DEVICES=0; $PYTHON $GPU_JOB 100")
scontrol update JobId=$job AdminComment="ticket 12"
het=$(sbatch --parsable -t 10 -o /dev/null -w node1 --wrap 'sleep 60' : -w node2 --wrap 'sleep 60')
place --card v100=1G
until_is $job COMPLETED
admin $job >admin.txt
"$BERTH" slurm report $job --wait 60 --state "$PWD/state" >report.txt
until_so 'grep ^Job mail-*Ended*'
cat mail-*Ended* >mail.txt
"$BERTH" slurm why $het+1 --state "$PWD/state" --json >het.json; scancel $het
scontrol update NodeName=node[1-2] State=DRAIN Reason="a fan"
waits=$(submit --gres=gpu:1 --wrap true)
"$BERTH" slurm why $waits --state "$PWD/state" >why.txt
"$BERTH" slurm check --partitions gpu --state "$PWD/state" --card v100=1G >check.txt && exit 9
scancel $waits
"""


def test_a_jobs_user_reads_what_it_used_and_an_operator_why_nothing_starts(open_folder: Path) -> None:
    told = tell(open_folder / "c", STORY)
    report = (told / "report.txt").read_text()
    assert "0.1 of a GPU and 128 MiB of GPU memory would have done" in report
    assert "| 0.1 GiB of 0.2 GiB, card 1.0 GiB" in report
    assert (told / "mail.txt").read_text().startswith("Job ")
    assert (told / "admin.txt").read_text().startswith("ticket 12 berth:1;")
    assert '"job": "' in (told / "het.json").read_text()
    why = (told / "why.txt").read_text()
    assert "nodes: 2 of 2 with GPUs take no jobs: node1 is IDLE+DRAIN (a fan" in why
    assert "no job starts on node node2: it is IDLE+DRAIN (a fan" in (told / "check.txt").read_text()
