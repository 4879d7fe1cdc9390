"""A recorded run becomes a profile: means an interval, memory without what was there before."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pytest

from berth.errors import ProfileError
from berth.gpu_models import gpu_model
from berth.profiles import profile_text, read_profile
from berth.profiles.recorder import NvmlCard, Sample, SmActivity, profile_of, record

V100 = gpu_model("V100")


class Counting:
    """A card that is a little busier each time it is asked."""

    model = V100
    cores_are = "sm-activity"

    def __init__(self) -> None:
        self.asked = 0

    def sample(self) -> Sample:
        self.asked += 1
        return Sample(min(1.0, self.asked / 10_000), 1_000 + min(self.asked, 100), 0.25, 100.0)


def test_samples_become_rows() -> None:
    taken = [
        (0, Sample(0.2, 700, 0.1, 0)),
        (500, Sample(0.4, 900, 0.3, 1575.4)),
        (2_100, Sample(1.0, 600, 0.5, 99_999)),
    ]
    profile = profile_of(taken, 500, V100, "mine", "ML", 7, "--epochs 3")
    wanted = [
        [0.3, 400 / 16_384, 0.2, 0.05],
        [0.3, 400 / 16_384, 0.2, 0.05],  # nobody sampled it: as before
        [1.0, 100 / 16_384, 0.5, 1.0],
    ]
    assert np.allclose(profile.usage, wanted)
    assert (profile.application, profile.kind, profile.input_bytes, profile.parameters) == (
        *("mine", "ML"),
        *(7, "--epochs 3"),
    )


def test_a_run_without_a_sample_has_no_profile() -> None:
    with pytest.raises(ProfileError, match="nothing was sampled of 'mine'"):
        profile_of([], 0, V100, "mine")


def test_a_command_runs_and_is_sampled_until_it_ends(tmp_path: Path) -> None:
    card, over = Counting(), tmp_path / "over"
    wait = f"import os, sys, time\nwhile not os.path.exists({str(over)!r}): time.sleep(0.01)\nsys.exit(3)"
    clock = [0.0]

    def sleep(seconds: float) -> None:
        """Time that goes by as the recorder sleeps; after 25 samples the command is told to end."""
        clock[0] += seconds
        if card.asked > 25:
            over.touch()
            time.sleep(0.01)

    profile, status = record(
        card, [sys.executable, "-c", wait], "mine", interval_ms=100, now_s=lambda: clock[0], sleep=sleep
    )
    assert status == 3
    assert len(profile.usage) >= 5  # five samples an interval
    assert (np.diff(profile.usage[:, 0]) >= 0).all()
    assert profile.usage[0, 1] > 0
    assert set(profile.usage[:, 2]) == {0.25}
    assert profile.cores_are == "sm-activity"
    kept = tmp_path / "mine.profile.csv"
    kept.write_text(profile_text(profile))
    assert read_profile(kept).cores_are == "sm-activity"
    kept.write_text(profile_text(profile).replace("sm-activity", "cores"))
    with pytest.raises(ProfileError, match=r'cores_are is "cores"; expected sm-activity or memory-activity'):
        read_profile(kept)


def dcgmi(folder: Path, says: str) -> str:
    """A program that says this, and goes on."""
    program = folder / "dcgmi"
    program.write_text(f"#!/bin/sh\ntest \"$*\" = 'dmon -i 2 -e 1002 -d 100' || exit 1\n{says}\n")
    program.chmod(0o755)
    return str(program)


def test_the_activity_of_the_cores_is_what_dcgm_tells(tmp_path: Path) -> None:
    says = "echo '#Entity   SMACT'\necho 'ID'\necho 'GPU 2     N/A'\necho 'GPU 2     0.532'\nexec sleep 60"
    found = SmActivity.open(2, dcgmi(tmp_path, says))
    assert found is not None
    assert found.latest == 0.532
    found.close()


@pytest.mark.parametrize("says", ["exit 1", "echo 'Error: unable to connect'", "echo 'GPU 2     N/A'"])
def test_where_dcgm_tells_nothing_there_is_no_activity_of_the_cores(says: str, tmp_path: Path) -> None:
    assert SmActivity.open(2, dcgmi(tmp_path, says)) is None
    assert SmActivity.open(2, str(tmp_path / "none")) is None


def test_a_command_that_is_not_there_is_told() -> None:
    with pytest.raises(ProfileError, match="'no-such-program' cannot be started"):
        record(Counting(), ["no-such-program"], "mine")


def test_a_machine_without_a_driver_says_so(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"there is no libnvidia-ml.so.1 on this machine"):
        NvmlCard.open(0, tmp_path)
