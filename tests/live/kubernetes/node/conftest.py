"""Nodes with fake GPUs for tests."""

from __future__ import annotations

import fcntl
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
    """A folder with a short name: a socket's path has at most 107 bytes.

    Children of a killed program may still write there when it goes.
    """
    with tempfile.TemporaryDirectory(prefix="bk-", dir="/tmp", ignore_cleanup_errors=True) as made:
        yield Path(made)


@pytest.fixture
def kubelets_turn() -> Iterator[None]:
    """Waits until no other test of this machine runs a real kubelet: its folder, ports and control groups are one."""
    with Path("/tmp/berth-test-kubelet.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
