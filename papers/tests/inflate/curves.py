"""Curves for tests of what is made of an inflation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from berth_papers.inflate.inflation import InflationCurve


def curves(
    policies: Sequence[str] = ("fgd", "random"), seeds: Sequence[int] = (1, 2)
) -> list[InflationCurve]:
    """Curves that rise with the load up to a limit, another for each policy and seed."""
    load = np.arange(131.0)
    return [
        InflationCurve(policy, seed, np.minimum(load, 90.0 + 3 * at + seed), load / 130 * (60 + at + seed))
        for at, policy in enumerate(policies)
        for seed in seeds
    ]
