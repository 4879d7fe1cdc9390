"""Nodes with fake GPUs for tests."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="session")
def native() -> None:
    """What `make native` builds: libberth and the fake driver."""
    subprocess.run(
        ["make", "-s", "-C", str(ROOT / "native"), "all", "tests"], check=True, capture_output=True
    )


@pytest.fixture
def folder(native: None) -> Iterator[Path]:
    """A folder with a short name: a socket's path has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="bk-", dir="/tmp") as made:
        yield Path(made)
