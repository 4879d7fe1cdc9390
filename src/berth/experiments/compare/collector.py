"""Python's cycle collector, held while there can be no cycles to collect."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_collector() -> Iterator[None]:
    """Hold the collector while jobs are read and replayed.

    They are a million values without a cycle among them, and it would look through all of them again and
    again, for up to a third of the time. What is left of them in the end counts as old, so that it does not look
    through it at once.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if not gc.get_freeze_count():  # else a caller has frozen what is to stay so
                gc.freeze()
                gc.unfreeze()
            gc.enable()
