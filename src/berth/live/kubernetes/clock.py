"""The time that decisions go by: it never runs back, even if the machine's clock is set back."""

from __future__ import annotations

import time
from collections.abc import Callable


def steady_clock() -> Callable[[], int]:
    """Return a clock in ms since 1970: this machine's time as it is now, advanced by its monotonic clock."""
    begun_ns = time.time_ns() - time.monotonic_ns()
    return lambda: (begun_ns + time.monotonic_ns()) // 1_000_000
