"""Conditions of a run that cannot be, from the command line: one line that names the option, and status 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BERTH = Path(sys.executable).parent / "berth"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--mtbf", "nan"), "--mtbf is nan; expected a number"),
        (("--mtbf", "9", "--mttr", "inf"), "--mttr is inf; expected a number"),
        (("--mttr", "3"), "--mttr tells how long repairs take of nodes that fail by --mtbf; give both"),
        (("--checkpoint", "inf"), "--checkpoint is inf; expected a number"),
        (("--restart", "nan"), "--restart is nan; expected a number"),
        (("--round", "nan"), "--round is nan; expected a number"),
        (("--quota", "vcX=2"), "quotas of 'vcX', of which there is no job; the jobs are of ''"),
    ],
)
def test_a_condition_that_cannot_be_is_told(options: tuple[str, ...], told: str) -> None:
    done = subprocess.run(
        [BERTH, "simulate", "synthetic:demo?jobs=20", *options], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"berth: {told}\n")
