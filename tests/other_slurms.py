"""The Slurms beside this machine's own that newer_slurm.sh has fetched, for tests that run on each of them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

_CACHES = (Path("/var/cache"), Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"))


def _roots() -> list[Path]:
    """The one that is asked for, else those that are in the cache whole."""
    if told := os.environ.get("BERTH_TEST_SLURM"):
        return [Path(told)]
    found = (mark.with_name("root") for cache in _CACHES for mark in cache.glob("berth-tests/slurm-*/recipe"))
    return sorted(root for root in found if os.access(root, os.R_OK))


def version_of(root: Path) -> str:
    """Such as `24.11.5`."""
    words = subprocess.run([root / "usr/sbin/slurmctld", "-V"], capture_output=True, text=True, check=True)
    return words.stdout.split()[-1]


each_other_slurm = pytest.mark.parametrize(
    "slurm",
    [pytest.param(root, id=version_of(root)) for root in _roots()]
    or [
        pytest.param(
            Path(), marks=pytest.mark.skip(reason="needs another Slurm: tests/newer_slurm.sh trixie")
        )
    ],
)
"""Runs a test on each of them; its id is the version."""


def newest_parser(slurm: Path) -> str:
    """The newest version of the interface that this Slurm speaks, such as `v0.0.42`."""
    parsers = [path.stem.removeprefix("data_parser_") for path in slurm.glob("usr/lib/*/*/data_parser_*.so")]
    return max(parsers).replace("_", ".")
