"""The section of a report that puts several ways of scheduling the same jobs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, median
from typing import Protocol

from berth.plots.schedules import gpus_held, waits
from berth.report.report import Chapter


class _Schedule(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def waits_s(self) -> Sequence[float]: ...
    @property
    def spans(self) -> Sequence[tuple[float, float, float]]: ...
    @property
    def lasts_s(self) -> float: ...
    def use(self, gpus: int) -> float: ...


def slurm_comparison(schedules: Sequence[_Schedule], gpus: int, notes: Sequence[str]) -> Chapter:
    """Waits and use of `gpus` GPUs; `notes` are sentences about the log that this comes from."""
    rows = (
        ("jobs", *(f"{len(each.waits_s):,}" for each in schedules)),
        ("wait, mean", *(_seconds(mean(each.waits_s) if each.waits_s else None) for each in schedules)),
        ("wait, median", *(_seconds(median(each.waits_s) if each.waits_s else None) for each in schedules)),
        ("first submission to last end", *(_seconds(each.lasts_s or None) for each in schedules)),
        (
            f"GPUs held, of {gpus:,}",
            *(f"{100 * each.use(gpus):.1f} %" if each.spans else "–" for each in schedules),
        ),
    )
    return Chapter(
        "Slurm and berth",
        "The same jobs, by berth’s log: as Slurm started them, when berth decided to start them, and as a replay in "
        "which each has its GPUs for itself. A part of a GPU counts as that part. The replay takes run times as they "
        f"were, which sharing may have lengthened. {' '.join(notes)}",
        (
            ("Distribution of waits", waits({each.name: each.waits_s for each in schedules})),
            ("GPUs held over time", gpus_held({each.name: each.spans for each in schedules})),
        ),
        ("", *(each.name for each in schedules)),
        rows,
        names=("slurm-waits", "slurm-gpus"),
    )


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f} s"
