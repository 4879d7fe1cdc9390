"""One line a policy, with a shade behind it from the lowest of its seeds to the highest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Protocol, TypeVar

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from berth.plots.style import DASHES, Style

Floats = NDArray[np.floating[Any]]


class OfPolicy(Protocol):
    """What was measured of one policy."""

    @property
    def policy(self) -> str:
        """Its name."""


Item = TypeVar("Item", bound=OfPolicy)


def add_line(
    figure: go.Figure,
    group: Sequence[OfPolicy],
    styles: Mapping[str, Style],
    x: NDArray[np.generic],
    middle: Floats,
    low: Floats,
    high: Floats,
    hover: str,
    shape: str = "hv",
    raw: Floats | None = None,
    label: str = "",
) -> None:
    """A policy's line, and behind it a shade from low to high where they differ from it, and thin the `raw` line that
    it smooths. `label` is its name in the legend, by default the policy's."""
    name = group[0].policy
    style = styles[name]
    if len(x) == len(middle) + 1:  # bins: the last level lasts to the last edge
        middle, low, high = (np.append(level, level[-1]) for level in (middle, low, high))
        raw = None if raw is None else np.append(raw, raw[-1])
    if float(np.max(high - low, initial=0.0)) > 0.02:
        for level, fill in ((high, None), (low, "tonexty")):
            figure.add_trace(
                go.Scatter(
                    x=x,
                    y=level.astype(np.float32),
                    mode="lines",
                    line={"width": 0, "shape": shape, "color": style.colour},
                    fill=fill,
                    fillcolor=style.shade(),
                    legendgroup=name,
                    showlegend=False,
                    hoverinfo="skip",
                )
            )
    if raw is not None and float(np.max(np.abs(raw - middle), initial=0.0)) > 0.02:
        figure.add_trace(
            go.Scatter(
                x=x,
                y=raw.astype(np.float32),
                mode="lines",
                line={"width": 1, "shape": shape, "color": style.shade(0.4)},
                legendgroup=name,
                showlegend=False,
                hoverinfo="skip",
            )
        )
    y = middle.astype(np.float32)
    # Dashed over the line that it lies on, both are seen.
    same = sum(np.array_equal(trace.y, y) for trace in figure.data if trace.name)
    dash = DASHES[(DASHES.index(style.dash) + same) % len(DASHES)]
    figure.add_trace(
        go.Scatter(
            x=x,
            y=y,
            mode="lines",
            name=escape(label or name),
            line={"color": style.colour, "dash": dash, "width": 2, "shape": shape},
            legendgroup=name,
            hovertemplate=hover,
        )
    )


def by_policy(items: Sequence[Item]) -> list[list[Item]]:
    """The items of each policy, in the order in which policies come first."""
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(item.policy, []).append(item)
    return list(groups.values())
