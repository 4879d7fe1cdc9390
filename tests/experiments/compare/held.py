"""A policy whose runs last for as long as a test wants, also in other processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from berth.cluster import Cluster, Queue
from berth.policies import make_policy
from berth.policies.protocol import Decision

HELD = f"{__name__}:held"
"""Its name for `--policies`."""
ROOT = Path(__file__).parents[3]

_first_fit = make_policy("fifo+first-fit")


def held(queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Decision]:
    """First fit; while the folder that `BERTH_TEST_HOLD` names is there, write this process's id in it and wait."""
    folder = Path(os.environ.get("BERTH_TEST_HOLD", "/nowhere"))
    while folder.exists():
        (folder / str(os.getpid())).touch()
        time.sleep(0.05)
    return _first_fit(queue, cluster, now_ms)


def holding(folder: Path) -> dict[str, str]:
    """The environment of a command whose runs of this policy last until the folder is gone."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "BERTH_TEST_HOLD": str(folder)}
