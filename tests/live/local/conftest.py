"""Queues of real processes for tests."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.local.world import World

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session", autouse=True)
def native() -> None:
    """What `make native` builds: the shim, libberth and the fake driver."""
    subprocess.run(
        ["make", "-s", "-C", str(ROOT / "native"), "all", "tests"], check=True, capture_output=True
    )


@pytest.fixture
def world() -> Iterator[World]:
    """A queue that is up, with two fake GPUs and a brain that starts at once."""
    made = World()
    try:
        made.up()
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[World]:
    """A queue for tests that leave nothing behind; it is never killed."""
    made = World()
    try:
        made.up()
        yield made
    finally:
        made.close()
