"""What a report tells of; all of it comes in as values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from berth.statistics.comparison import Row


@dataclass(frozen=True, slots=True, eq=False)
class Chapter:
    """A section of a page: tables and figures, each left out where it is empty."""

    title: str
    hint: str = ""
    """How to read it."""
    figures: Sequence[tuple[str, go.Figure]] = ()
    """What each shows, for those who do not see it, and the figure."""
    headings: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    """The table under the headings; its first column names the row."""
    policies: Sequence[str] = ()
    """The policies that it tells of."""
    seeds: Sequence[int] = ()
    names: Sequence[str] = ()
    """What each figure is called on the page, as no other there; by default by its number."""
    small: bool = False
    """Whether the figures stand beside one another."""
    standings: Sequence[Row] = ()
    """A table of metrics down and `policies` across, the best of each marked."""
    first: Sequence[str] = ()
    """The metrics of it that are shown at once; the rest is folded away. Without any, all are shown."""
    definitions: Sequence[tuple[str, str]] = ()
    """Words, and what each means."""
    words: bool = False
    """Whether most cells of the table are texts, which stand on the left."""


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that a page says."""

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
    chapters: Sequence[Chapter] = ()
    """In the order of the page."""
    answers: Sequence[str] = ()
    """What was found, in sentences: the first thing on the page."""
    picture: str = ""
    """An SVG that the page opens with, made by berth itself."""
    lead: str = ""
    """One sentence under the picture."""
