"""What Epilogs measured, from berth's log into the history."""

from __future__ import annotations

from collections.abc import Iterable

from berth.history.store.usage import UsageRow
from berth.live.slurm.decisions import ENDED, Decision


def measured(decisions: Iterable[Decision], cluster: str = "") -> list[UsageRow]:
    """What Epilogs measured of each job, for the history: the most memory that it held, as a part of its GPU's."""
    return [
        UsageRow(
            "sampled",
            f"slurm-{line.raw}-{line.start_ms}",
            line.where,
            cluster,
            line.raw,
            line.start_ms,
            line.end_ms,
            0,
            0.0,
            1.0,
            None,
            None,
            None,
            None,
            None,
            None,
            min(1.0, line.peak_mib / line.card_mib),
        )
        for line in decisions
        if line.event == ENDED and line.peak_mib and line.card_mib and line.start_ms and line.end_ms
    ]
