"""What is enough for a job by its application's profile, where it asks for more."""

from __future__ import annotations

from collections.abc import Set

import numpy as np

from berth.knowledge import History
from berth.model import GpuModel, Job, Share

COMPUTE_QUANTILE = 0.95
"""The compute that is enough covers this part of a run; a job slows down in the rest."""
STEP_MILLI = 50
MARGIN = 8
"""The memory that is enough is the highest that is believed, and one part in this more."""


def enough(knowledge: History, job: Job, cards: Set[GpuModel]) -> Share | None:
    """The part of its GPU that is enough for a job; None if it asks for no more, or nothing certain is known.

    `cards` are those that the job may run on: a profile tells of cards like the one that it was recorded on.
    """
    profile = knowledge.recorded_profile(job.application)
    believed = knowledge.peak_mem_mib(job)
    if job.gpus != 1 or profile is None or believed is None or believed.basis != "history":
        return None
    card_mib = profile.hardware.mem_mib
    if not cards or any((card.name, card.mem_mib) != (profile.hardware.name, card_mib) for card in cards):
        return None
    used = float(np.quantile(np.asarray(profile.usage)[:, 2], COMPUTE_QUANTILE))
    milli = max(STEP_MILLI, -(-round(1000 * used) // STEP_MILLI) * STEP_MILLI)
    mem_mib = believed.high + believed.high // MARGIN
    asked = Share(job.share.milli, job.share.mem_mib or card_mib)
    found = Share(min(asked.milli, milli), min(asked.mem_mib, mem_mib))
    return None if found == asked else found
