"""A report for tests, with chapters of two experiments."""

from __future__ import annotations

from collections.abc import Sequence

from papers.tests.inflate.curves import curves

from berth.experiments.compare.chapters import comparison_chapters
from berth.model import Node
from berth.report import Report
from berth.statistics import InflationCurve, Run
from berth_papers.inflate.chapters import inflation_chapter
from tests.experiments.compare.runs import NODES, made_runs

__all__ = ["report"]


def report(
    runs: Sequence[Run] | None = None,
    inflation: Sequence[InflationCurve] | None = None,
    nodes: Sequence[Node] = NODES,
    **changes: str,
) -> Report:
    """A report with chapters of every kind, or with what the arguments say."""
    told = {
        "title": "Two policies",
        "command": "berth compare trace.csv --policies fifo+first-fit,sjf+best-fit",
        "trace": "trace.csv: 60 jobs over 10 minutes",
        "cluster": "4 nodes, 10 GPUs",
        "created": "2026-11-21 03:00 UTC",
        "version": "1.2.3",
    }
    drawn = curves() if inflation is None else inflation
    chapters = [
        *comparison_chapters(made_runs() if runs is None else runs, nodes),
        *([inflation_chapter(drawn)] if drawn else []),
    ]
    return Report(**{**told, **changes}, chapters=chapters)
