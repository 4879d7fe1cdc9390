"""What is never started, whatever a chooser says: what ends later together than in turn, or costs more than to wait."""

from __future__ import annotations

import numpy as np

from berth.arrays import BoolArray, IntArray, compiled
from berth.policies.colocation.forecast import Forecasts
from berth.policies.colocation.scene import Scene, Waits


def shielded(scene: Scene) -> BoolArray:
    """(O, C): which combinations fit, would not end later together than one after the other and, where there are
    several GPUs, cost no more time than if each job waited for an empty one."""
    forecasts = scene.forecasts
    allowed = np.empty(forecasts.fits.shape, np.bool_)
    _in_time(forecasts.ends_ms, forecasts.left_us, forecasts.tenants, allowed)
    allowed &= forecasts.fits
    waits = scene.waits()
    return allowed if waits is None else allowed & _worth_it(forecasts, waits)


def _worth_it(forecasts: Forecasts, waits: Waits) -> BoolArray:
    """(O, C): which combinations cost no more time than waiting. Three delays are added up: of the tenants' ends, of
    the ends of the jobs that start, and of the jobs behind them, which wait while the GPU is in use."""
    ends_ms = forecasts.ends_ms  # (O, C, K)
    place = np.arange(ends_ms.shape[2])
    tenant = (place < forecasts.tenants[:, None])[:, None]  # (O, 1, K)
    starts = (ends_ms > 0) & ~tenant
    column = np.clip(place - forecasts.tenants[:, None], 0, waits.empty_ms.shape[1] - 1)
    # When each job would end on an empty GPU, and each tenant if none starts.
    otherwise_ms = np.take_along_axis(waits.empty_ms, column, axis=1) - (-forecasts.left_us // 1000)
    lost_ms = np.where(tenant, ends_ms - ends_ms[:, :1], 0)
    lost_ms += np.where(starts, ends_ms - otherwise_ms[:, None], 0)
    used_ms = forecasts.total_ms - forecasts.total_ms[:, :1] - forecasts.alone_ms()
    alone = starts.sum(axis=2) + forecasts.tenants[:, None] <= 1
    return np.asarray(alone | (lost_ms.sum(axis=2) + waits.behind * used_ms <= 0))


@compiled
def _in_time(
    ends_ms: IntArray,  # (O, C, K)
    left_us: IntArray,  # (O, K), 0 where there is no job
    tenants: IntArray,  # (O,)
    found: BoolArray,  # (O, C), out
) -> None:
    """Which end no later than one after the other. Tests hold this equal to `total_ms` and `alone_ms`."""
    places = left_us.shape[1]
    for offer in range(found.shape[0]):
        without = 0
        for place in range(places):
            without = max(without, ends_ms[offer, 0, place])
        for combination in range(found.shape[1]):
            together, in_turn = 0, without
            for place in range(places):
                together = max(together, ends_ms[offer, combination, place])
                job = place - tenants[offer]
                if job >= 0 and combination >> job & 1:
                    in_turn += -(-left_us[offer, place] // 1000)
            found[offer, combination] = together <= in_turn
