"""How many requests one client may make."""

from __future__ import annotations

A_SECOND = 50.0
BURST = 400.0
LOGINS_A_SECOND = 0.2
LOGINS = 20.0
MOST_CLIENTS = 10_000


class RateLimits:
    """A bucket of requests a client, which fills again with time; another for attempts to log in."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[str, bool], tuple[float, float]] = {}

    def wait_s(self, client: str, now_s: float, login: bool) -> float:
        """Take one request of a client; 0, or the seconds after which it may ask again."""
        rate, most = (LOGINS_A_SECOND, LOGINS) if login else (A_SECOND, BURST)
        left, then_s = self._buckets.pop((client, login), (most, now_s))
        left = min(most, left + rate * max(0.0, now_s - then_s))
        wait_s = 0.0 if left >= 1 else (1 - left) / rate
        self._buckets[client, login] = (left - 1 if left >= 1 else left, now_s)
        if len(self._buckets) > MOST_CLIENTS:
            del self._buckets[next(iter(self._buckets))]
        return wait_s if wait_s == 0 else max(1.0, wait_s)
