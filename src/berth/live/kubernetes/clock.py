"""The time that decisions go by: it never runs back, whatever becomes of the machine's clock."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["steady_clock"]


def steady_clock() -> Callable[[], int]:
    """Tells the time in ms since 1970, by this machine's clock as it is now and from then on by its monotonic one."""
    begun_ns = time.time_ns() - time.monotonic_ns()
    return lambda: (begun_ns + time.monotonic_ns()) // 1_000_000
