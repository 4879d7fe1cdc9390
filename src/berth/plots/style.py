"""What all figures share: one colour a policy, a plain ground, thin grids."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from html import escape
from typing import NamedTuple

import plotly.graph_objects as go

INK = "#707070"
GRID = "rgba(128, 128, 128, 0.22)"
CLEAR = "rgba(0, 0, 0, 0)"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A8A8A")
OF_POLICY = {
    "first-fit": 0,
    "fifo": 0,
    "learned": 0,
    "fastest-fit": 5,
    "priority": 5,
    "best-fit": 1,
    "sjf": 1,
    "tetris-sharing": 1,
    "rollouts": 1,
    "gavel": 1,
    "elastic": 3,
    "rule": 4,
    "deadline-first": 4,
    "dqn": 3,
    "pair-packer": 6,
    "pairs": 5,
    "whole-gpus": 6,
    "random-sharing": 6,
    "fgd": 2,
    "sjf-estimated": 2,
    "sjf-expected": 2,
    "longest-expected": 3,
    "greedy": 2,
    "genetic-paper": 3,
    "random": 3,
    "fair-share": 3,
    "tetris": 4,
    "easy": 4,
    "conservative": 6,
    "dot-product": 4,
    "deeprm-max": 4,
    "genetic": 5,
    "gpu-packing": 5,
    "largest-first": 5,
    "deeprm-mean": 5,
    "round-robin": 6,
    "worst-fit": 6,
    "gpu-clustering": 6,
    "sjf-requested": 6,
    "least-attained-service": 6,
}
"""The colour of each policy that has a name of its own: those that are compared with each other differ."""
DASHES = ("solid", "dash", "dot", "dashdot")
HEIGHT_PX = 380


class Style(NamedTuple):
    """How a policy is drawn."""

    colour: str
    dash: str

    def shade(self, opacity: float = 0.11) -> str:
        """Its colour, as a fill that lets others through."""
        red, green, blue = (int(self.colour[at : at + 2], 16) for at in (1, 3, 5))
        return f"rgba({red}, {green}, {blue}, {opacity})"


def policy_styles(policies: Iterable[str], oracles: Collection[str] = ()) -> dict[str, Style]:
    """A style for each policy, on every page the same for one with a name of its own; oracles are dashed.

    Where two of them have the same colour, and for all others, it is the first that is free. Repeated names are
    counted once. With settings a policy has the colour of its name where that is free.
    """
    names = list(dict.fromkeys(policies))
    taken: dict[str, int] = {}
    for bare in (True, False):
        for name in names:
            wanted = OF_POLICY.get(name if bare else name.split("?")[0])
            if name not in taken and wanted is not None and wanted not in taken.values():
                taken[name] = wanted
    free = (at for at in itertools.count() if at not in set(taken.values()))
    numbers = {name: taken[name] if name in taken else next(free) for name in names}
    return {
        name: Style(
            COLOURS[at % len(COLOURS)],
            "dash" if name in oracles else DASHES[at // len(COLOURS) % len(DASHES)],
        )
        for name, at in numbers.items()
    }


def dress(figure: go.Figure, title: str, height: int = HEIGHT_PX) -> None:
    """What all figures share: a plain ground that any page shows through, a title at the left, thin grids."""
    figure.update_layout(
        template="none",
        title={
            "text": title,
            "x": 0,
            "xref": "container",
            "xanchor": "left",
            "y": 0.985,
            "font": {"size": 15},
        },
        height=height,
        margin={"l": 8, "r": 14, "t": 74, "b": 44},
        font={"family": "system-ui, sans-serif", "size": 13, "color": INK},
        paper_bgcolor=CLEAR,
        plot_bgcolor=CLEAR,
        modebar={"bgcolor": CLEAR, "color": INK, "activecolor": COLOURS[0]},
        hovermode="x unified",
        hoverlabel={"bgcolor": "#FFFFFF", "bordercolor": INK, "font": {"color": "#1D2329"}, "namelength": -1},
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1.01, "yanchor": "bottom"},
    )
    # One call for all of an axis: each checks the whole figure. 0.0008 and 1,200,000 in place of 800µ and 1.2M.
    figure.update_xaxes(
        gridcolor=GRID,
        zeroline=False,
        automargin=True,
        title={"standoff": 8, "font": {"size": 13}},
        exponentformat="none",
        separatethousands=True,
        ticklabelstandoff=5,
        spikethickness=1,
        spikecolor=INK,
        spikedash="solid",
    )
    figure.update_yaxes(
        exponentformat="none",
        separatethousands=True,
        gridcolor=GRID,
        zeroline=False,
        automargin=True,
        title={"font": {"size": 13}},
    )


def shortened(name: str, most: int = 28) -> str:
    """A foreign text, escaped because Plotly reads markup, and cut to at most `most` characters."""
    return escape(name if len(name) <= most else name[: most - 1] + "…")
