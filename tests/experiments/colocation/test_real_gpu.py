"""The bench of real pairs says why it does not run, where it cannot."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from berth.errors import ProfileError
from berth.profiles.recorder import NvmlCard

BENCH = Path(__file__).parents[3] / "bench"


def a_gpu_is_there() -> bool:
    try:
        NvmlCard.open()
    except ProfileError:
        return False
    return True


def test_without_a_gpu_or_pytorch_it_says_so_and_runs_nothing() -> None:
    if a_gpu_is_there() and importlib.util.find_spec("torch") is not None:
        pytest.skip("there is a GPU and PyTorch: it would run for minutes")
    ran = subprocess.run(
        [sys.executable, str(BENCH / "colocation_real_gpu.py")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith(
        ("not run: there is no GPU on this machine (", "not run: PyTorch is not installed")
    )
    assert len(ran.stdout.splitlines()) == 1


def test_steps_are_counted_between_two_moments() -> None:
    sys.path.insert(0, str(BENCH))
    try:
        from colocation_real_gpu import rate
    finally:
        sys.path.remove(str(BENCH))
    assert rate([(10.0, 0), (12.0, 4), (14.0, 20)], 11.0, 14.0) == 6.0
