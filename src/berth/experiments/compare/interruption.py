"""Ctrl-C, put off while something must not be cut short."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruption_put_off() -> Iterator[None]:
    """Raise KeyboardInterrupt for an interruption only when this is over.

    For the starting of processes, which then never hear of an interruption: a terminal sends it to them too, and they
    would die of it while what they have done is still wanted. And for DuckDB, which makes a RuntimeError of it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # interruptions go to the main thread
        return
    interruptions: list[object] = []
    before = signal.signal(signal.SIGINT, lambda *_: interruptions.append(None))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, before)
        if interruptions:
            raise KeyboardInterrupt  # of an error, too, which is told as what came before
