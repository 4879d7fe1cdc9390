"""On a real Slurm: an operator's first hour takes six commands, and leaves every file as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.slurm.real_slurm import needs_slurm, tell

pytestmark = [pytest.mark.slow, needs_slurm]

STORY = r"""
sums() { sha256sum slurm.conf *.conf *.lua 2>/dev/null || true; }
berth() { echo "$1" >>commands; "$BERTH" slurm "$@"; }
export BERTH_SLURM_STATE=$PWD/state
sums >before

berth check --partitions gpu --card v100=1G >check.txt || true
echo run >>commands
"$BERTH" slurm run --interval 0.2 >advice.txt 2>>berth.err &
adviser=$!
until_so [ -e state/status.json ]
for _ in $(seq 8); do submit --gres=gpu:1 --wrap 'sleep 1' >/dev/null; done
until_so '[ "$(logged ended)" = 8 ]'
kill $adviser; wait $adviser
berth install --partitions gpu --apply --folder "$PWD/berth" "${GPU_SETTINGS[@]}" >install.diff
restart
echo run >>commands
place --card v100=1G
job=$(submit --gres=gpu:1 --comment "app gpu_mem=256M gpu_pct=50" --wrap \
    "export CUDA_VISIBLE_DEVICES=0; $PYTHON $GPU_JOB 100")
until_is $job COMPLETED
berth report $job --wait 60 >report.txt
stop_berth
berth uninstall --folder "$PWD/berth"
restart
sinfo -h -N -o '%N %T' | sort -u >nodes.txt
sums >after
"""


def test_check_advise_install_place_report_and_uninstall_are_six_commands(open_folder: Path) -> None:
    told = tell(open_folder / "c", STORY)
    commands = (told / "commands").read_text().split()
    assert commands == ["check", "run", "install", "run", "report", "uninstall"]
    assert (
        "the Lua plugin is not loaded, so no job is ever held for berth" in (told / "check.txt").read_text()
    )
    advice = (told / "advice.txt").read_text()
    assert "8 starts; berth would have started" in advice
    assert advice.endswith(" % of 4\n")
    assert "GPU memory would have done: sbatch --gres=gpu:1" in (told / "report.txt").read_text()
    assert (told / "nodes.txt").read_text() == "node1 idle\nnode2 idle\n"
    assert (told / "before").read_text() == (told / "after").read_text()
