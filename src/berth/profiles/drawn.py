"""Applications drawn at random: what networks are trained on beside the thesis's, and what none has seen."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from berth.arrays import FloatArray
from berth.model import GpuModel, Job, Profile
from berth.profiles.thesis import THESIS_GPU

DRAWN = "drawn"
"""The name of the workload: twelve applications that are drawn anew for each set."""
APPLICATIONS = 12
INTERVAL_MS = 5_000
RETRIES = 1_000


def drawn_usage(draw: np.random.Generator) -> FloatArray:
    """(steps of 5 s, 4): a run that loads, then works in one phase or several by turns, as fractions of the card."""
    loading, turns = int(draw.integers(1, 4)), int(draw.integers(1, 4))
    steps = int(np.exp(draw.uniform(np.log(6), np.log(60))))
    share = draw.choice([0.08, 0.2, 0.4, 0.7]) * draw.uniform(0.7, 1.2)
    rows = [[draw.integers(0, 150), 300 * share, draw.integers(0, 80), draw.integers(200, 700)]] * loading
    for _ in range(turns):
        use, mem, cores = draw.integers(100, 1001), share * draw.uniform(0.6, 1.0), draw.uniform(0.2, 1.0)
        rows += [[use, 1000 * mem, int(use * cores), draw.integers(0, 300)]] * max(1, steps // turns)
    return np.array(rows, dtype=np.float64) / 1000


def drawn_profiles(seed: int, gpu: GpuModel = THESIS_GPU) -> Mapping[str, Profile]:
    """Twelve applications on a card; the same for a seed."""
    draw = np.random.default_rng([seed, 7])
    return {
        name: Profile(name, "drawn", 0, "", gpu, INTERVAL_MS, drawn_usage(draw))
        for name in (f"drawn-{seed}-{at}" for at in range(APPLICATIONS))
    }


def drawn_jobs(profiles: Mapping[str, Profile], jobs: int, seed: int) -> tuple[Job, ...]:
    """Jobs of these applications, each about as long as the profile of its own, all submitted at 0."""
    draw, names = np.random.default_rng([seed, 8]), list(profiles)
    found = []
    for number in range(jobs):
        profile = profiles[names[int(draw.integers(len(names)))]]
        work_ms = int(len(profile.usage) * profile.interval_ms * np.exp(draw.normal(0, 0.2)))
        found.append(
            Job(
                f"{DRAWN}-{number:03d}",
                0,
                max(1000, work_ms),
                application=profile.application,
                retries=RETRIES,
            )
        )
    return tuple(found)
