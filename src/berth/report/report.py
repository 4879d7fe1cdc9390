"""What a report tells of; all of it comes in as values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from berth.model import Node
from berth.statistics import InflationCurve, Run

__all__ = ["Chapter", "Report"]


@dataclass(frozen=True, slots=True, eq=False)
class Chapter:
    """A section of an experiment of its own: a table and figures."""

    title: str
    hint: str
    """How to read it."""
    figures: Sequence[tuple[str, go.Figure]] = ()
    """What each shows, for those who do not see it, and the figure."""
    headings: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    """The table under the headings; its first column names the row."""
    policies: Sequence[str] = ()
    """The policies that it tells of."""
    seeds: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a page says; sections without anything to show are left out."""

    title: str
    command: str
    """The command line, or whatever else makes the same runs again."""
    trace: str
    """What was replayed, in words: its name, how many jobs, how much time, what was changed."""
    cluster: str
    """The cluster in words: how many nodes, how many GPUs of which models."""
    created: str
    """When it was made, as it is to be read."""
    version: str
    """berth's version."""
    runs: Sequence[Run] = ()
    """Policies in the order in which the page names them; the seeds of one policy in any order."""
    inflation: Sequence[InflationCurve] = ()
    chapters: Sequence[Chapter] = ()
    """Sections of other experiments."""
    nodes: Sequence[Node] = ()
    """The nodes that the runs' occupancies speak of; without them there is no map."""
