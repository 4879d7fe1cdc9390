"""The pages of comparisons and inflations, written by one function."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from berth.experiments.compare.comparison import Comparison
from berth.experiments.compare.page import comparison_report
from berth.experiments.inflate import Inflation
from berth.experiments.inflate.chapters import inflation_report
from berth.report import write

__all__ = ["write_report"]


def write_report(
    result: Comparison | Sequence[Inflation],
    path: str | os.PathLike[str],
    *,
    command: str = "",
    created: datetime | None = None,
) -> Path:
    """Write a comparison, or inflations on one workload, as one self-contained HTML page; returns its path.

    `command` is what makes the same again, and `created` the time that the page tells, now by default.
    """
    made = f"{created or datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    if isinstance(result, Comparison):
        report = comparison_report(result, command, made)
    else:
        report = inflation_report(result, command, made)
    target = Path(path)
    write(report, target)
    return target
