"""The broker with a store that cannot be written while the file `full` lies beside it, as on a full disk."""

from __future__ import annotations

import os
import sqlite3
from functools import partial

from berth.live.local import __main__ as broker
from berth.live.local.places import state_folder
from berth.live.local.store import Store


def fault(step: str) -> None:
    """Called before each step of a write."""
    if step == "row" and os.path.exists(os.path.join(state_folder(), "full")):
        raise sqlite3.OperationalError("database or disk is full")


if __name__ == "__main__":
    broker.Store = partial(Store, fault=fault)  # type: ignore[misc,assignment]
    broker.main()
