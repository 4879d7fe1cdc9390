"""Prediction intervals that keep what they promise while the world changes: conformal, rolling, for censored values.

An interval is moved outwards by how far outside recent values lay (Romano, Patterson and Candès, "Conformalized
Quantile Regression", NeurIPS 2019). A wait that has not ended is known to be at least as long as the time that has
passed, so quantiles are those of Kaplan and Meier (JASA 53, 1958). The level that is aimed at goes up while less than
the wanted share of past intervals held, and down while more did (Gibbs and Candès, "Adaptive Conformal Inference Under
Distribution Shift", NeurIPS 2021). Letters: N questions, in order of time.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

DAY_S: Final = 86_400
WINDOW_S: Final = 7 * DAY_S
"""What lies further back does not count."""
FEWEST: Final = 1000
"""If the window has fewer, what training measured makes them up to this number."""
GAIN: Final = 0.3
"""By how much the level moves for a day's worth of questions that the intervals have missed or held too many of."""
LEVELS: Final = (0.5, 0.99)
FEWEST_DAYS: Final = 5
"""The least number of days from which it is told how much days differ."""


def censored_quantile(values: Floats, seen: Flags, share: float) -> float:
    """The value that a share of the true values (N,) is at most, where those not `seen` are only known to be larger.

    The largest value if too few are seen to tell.
    """
    order = np.lexsort((~seen, values))
    ordered, events = values[order], seen[order]
    at_risk = len(ordered) - np.arange(len(ordered))
    above = np.cumprod(np.where(events, 1 - 1 / at_risk, 1.0))
    reached = np.flatnonzero(above <= 1 - share + 1e-12)
    return float(ordered[reached[0]] if len(reached) else ordered[-1])


def rolling_interval(
    asked_s: Floats,
    wait_s: Floats,
    ends: tuple[Floats, Floats, Floats],
    before: Floats,
    wanted: float,
    *,
    window_s: float = WINDOW_S,
    fewest: int = FEWEST,
    gain: float = GAIN,
) -> tuple[Floats, Floats]:
    """Low and high ends (N,) in log10(1 + s), each day's from what was known when its first question was asked.

    `ends` are low, median and high as the model gives them, in log10(1 + s); `before` is how far outside training's
    own later waits lay. Nothing that was not known at the moment of asking is used: of a wait under way only the time
    that has passed.
    """
    low, median, high = ends
    target = np.log10(1 + wait_s)
    lower, upper = np.full(len(asked_s), np.nan), np.full(len(asked_s), np.nan)
    days = asked_s // DAY_S
    for day in np.unique(days):
        today = days == day
        now = float(asked_s[today][0])
        past = asked_s < now
        ended = past & (asked_s + wait_s < now)
        passed = np.log10(1 + np.maximum(now - asked_s, 0.0))
        held = ended & (lower <= target) & (target <= upper)
        known = int(ended.sum() + (past & ~ended & (passed > upper)).sum())
        level = wanted
        if known:
            a_day = max(known / len(np.unique(days[past])), 1.0)
            level += gain * (wanted * known - int(held.sum())) / a_day
        recent = past & (asked_s >= now - window_s)
        so_far = np.where(ended, target, passed)[recent]
        outside, seen = np.maximum(low[recent] - so_far, so_far - high[recent]), ended[recent]
        lacking = max(fewest - len(outside), 0)
        if lacking:
            outside = np.concatenate((outside, before[-lacking:]))
            seen = np.concatenate((seen, np.ones(len(before[-lacking:]), np.bool_)))
        offset = censored_quantile(outside, seen, min(max(level, LEVELS[0]), LEVELS[1]))
        lower[today] = np.minimum(low[today] - offset, median[today])
        upper[today] = np.maximum(high[today] + offset, median[today])
    return lower, upper


def days_of(asked_s: Floats) -> int:
    """On how many days questions (N,) were asked."""
    return len(np.unique(asked_s // DAY_S))


def held_between(asked_s: Floats, held: Flags) -> tuple[float, float] | None:
    """The range of the share of intervals that hold, at 95 %, from which of the questions (N,) they held.

    Questions of one day hold or fail together, so a day is one draw of several (the ratio estimator of Cochran,
    Sampling Techniques, 1977, chapter 9). None if there are too few days to tell.
    """
    days = np.unique(asked_s // DAY_S, return_inverse=True)[1]
    count, good = np.bincount(days), np.bincount(days, held)
    number = len(count)
    if number < FEWEST_DAYS:
        return None
    share = good.sum() / count.sum()
    variance = number / (number - 1) * float(((good - share * count) ** 2).sum()) / float(count.sum()) ** 2
    return max(float(share - 2 * variance**0.5), 0.0), min(float(share + 2 * variance**0.5), 1.0)
