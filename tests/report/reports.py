"""A report for tests, with chapters of two experiments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from berth.experiments.compare.page import comparison_chapters
from berth.model import Node
from berth.plots.style import dress
from berth.report import Chapter, Report
from berth.statistics import Run
from tests.experiments.compare.runs import NODES, made_runs


def report(
    runs: Sequence[Run] | None = None,
    load: bool = True,
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
    chapters = [
        *comparison_chapters(made_runs() if runs is None else runs, nodes),
        *([load_chapter()] if load else []),
    ]
    return Report(**{**told, **changes}, chapters=chapters)


def load_chapter() -> Chapter:
    """A chapter of two figures of lines and a table, as an experiment of another package makes one."""
    load_pct = np.arange(131)
    figures = []
    for title in ("GPU allocation", "Fragmentation"):
        figure = go.Figure([go.Scatter(x=load_pct, y=np.minimum(load_pct, most)) for most in (90, 95, 100)])
        dress(figure, f"{title}, %")
        figures.append((title, figure))
    return Chapter(
        "Load",
        "How to read the lines.",
        figures,
        ("Policy", "at 100 %"),
        [("fgd", "95.00"), ("random", "90.00")],
        policies=("fgd", "random"),
        seeds=(1, 2),
        names=("load-allocation", "load-fragmentation"),
    )
