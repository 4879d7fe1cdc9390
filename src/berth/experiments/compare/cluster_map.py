"""The map of a cluster: every GPU of every node as one cell, under each policy, at a chosen time.

In the shapes, N is the number of nodes with GPUs, G the most GPUs of any node. Nodes stand below one another
in as many columns as keep the map in sight, G cells wide each, so that 4 nodes read as well as 1,500.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from berth.model import Node
from berth.plots.style import CLEAR, INK, Style, dress
from berth.statistics import NOT_A_GPU, Occupancy, Run, Unit, readable_unit

WIDTH_PX = 1060
"""What a map is laid out for; it is drawn as wide as its page lets it be."""
LEGEND = 4
"""Traces before the maps, which stand for the entries of the legend."""
HIGHEST_PX = 240
CELL_PX = 22
LEAST_CELLS = 16
"""A map of fewer cells does not fill its width."""
LABELLED_NODES = 40
"""At most this many nodes in one column have their names beside them."""

TITLE = "GPUs in use"
IDLE, PART_LOW, PART_HIGH, FULL = "rgba(128, 128, 128, 0.28)", "#F6D7A7", "#C4560C", "#0072B2"
COLOURS = [(0.0, IDLE), (0.0005, IDLE), (0.0005, PART_LOW), (0.9995, PART_HIGH), (0.9995, FULL), (1.0, FULL)]


@dataclass(frozen=True, slots=True)
class _Grid:
    """Where each GPU of each node is drawn; the map has `rows` × `width` cells."""

    nodes: NDArray[np.int64]  # (N,)
    """Ordinals of the nodes with GPUs in the order of drawing: by model, then those with most GPUs first."""
    gpus: int
    rows: int
    lefts: NDArray[np.int64]  # (columns,)
    """The first cell of each column of nodes; a column is as wide as its widest node, and a gap."""
    width: int
    cell_px: float

    @property
    def height_px(self) -> float:
        return max(self.rows * self.cell_px, CELL_PX)

    def laid_out(self, values: NDArray[np.generic], outside: object) -> NDArray[np.generic]:
        """(nodes, G) values of all nodes as (rows, width) cells, `outside` where there is nothing."""
        cells = np.full((self.rows, self.width), outside, values.dtype)
        place = np.arange(len(self.nodes))
        row, left = place % self.rows, self.lefts[place // self.rows]
        for slot in range(self.gpus):
            there = values[self.nodes, slot]
            present = there != outside
            cells[row[present], left[present] + slot] = there[present]
        return cells


def cluster_map(runs: Sequence[Run], nodes: Sequence[Node], styles: Mapping[str, Style]) -> go.Figure:
    """How much of every GPU is held: one map for each policy's first seed, and a slider over the times.

    `nodes` are those that the runs' occupancies were taken on.
    """
    firsts = list({run.policy: run for run in sorted(runs, key=lambda run: run.seed, reverse=True)}.values())
    order = list(dict.fromkeys(run.policy for run in runs))
    firsts.sort(key=lambda run: order.index(run.policy))
    steps = min((len(run.occupancies) for run in firsts), default=0)
    figure = go.Figure()
    if not steps or not any(node.gpus for node in nodes):
        dress(figure, TITLE)
        return figure

    for colour, text in (
        (IDLE, "idle"),
        (PART_LOW, "little held"),
        (PART_HIGH, "nearly full"),
        (FULL, "full"),
    ):
        marker = {"symbol": "square", "size": 11, "color": colour}
        figure.add_trace(go.Scatter(x=[None], y=[None], mode="markers", marker=marker, name=text))
    grid = _grid(nodes)
    labels = _labels(nodes, grid)
    panel_px = grid.height_px + 34
    above_px, below_px = 158, 8
    height = above_px + panel_px * len(firsts) + below_px
    inside = height - above_px - below_px
    for at, run in enumerate(firsts):
        axis = "" if at == 0 else str(at + 1)
        figure.add_trace(
            go.Heatmap(
                **_cells(run.occupancies[0], grid),
                text=labels,
                xaxis="x" + axis,
                yaxis="y" + axis,
                zmin=0,
                zmax=1000,
                colorscale=COLOURS,
                showscale=False,
                hoverongaps=False,
                xgap=1 if grid.cell_px >= 5 else 0,
                ygap=1 if grid.cell_px >= 5 else 0,
                name=escape(run.label),
                hovertemplate="%{text}<br>%{z} ‰ held · jobs: %{customdata}<extra>%{fullData.name}</extra>",
            )
        )
        top = 1 - at * panel_px / inside - 26 / inside
        figure.update_layout(
            {
                f"xaxis{axis}": {
                    "anchor": f"y{axis}",
                    "range": [-0.5, max(grid.width, LEAST_CELLS) - 0.5],
                    "visible": False,
                    "showspikes": False,
                },
                f"yaxis{axis}": {
                    "anchor": f"x{axis}",
                    "domain": [max(0.0, top - grid.height_px / inside), top],
                    "range": [grid.rows - 0.5, -0.5],
                    "showgrid": False,
                    **_names_beside(nodes, grid),
                },
            }
        )
        figure.add_annotation(
            text=f'<span style="color:{styles[run.policy].colour}">●</span> {escape(run.label)}',
            x=0,
            y=top,
            xref="paper",
            yref="paper",
            xanchor="left",
            yanchor="bottom",
            showarrow=False,
            font={"size": 13},
        )
    dress(figure, TITLE, int(height))
    figure.update_layout(
        margin={"t": above_px, "b": below_px},
        hovermode="closest",
        legend={
            "itemclick": False,
            "itemdoubleclick": False,
            "y": 1.0,
            "yref": "container",
            "yanchor": "top",
        },
        sliders=[_slider(firsts, steps, grid)],
        hoverlabel={"align": "left"},
    )
    figure.update_xaxes(automargin=False)
    return figure


def _grid(nodes: Sequence[Node]) -> _Grid:
    with_gpus = [at for at, node in enumerate(nodes) if node.gpus]
    with_gpus.sort(key=lambda at: (_model(nodes[at]), -nodes[at].gpus))
    gpus = np.array([nodes[at].gpus for at in with_gpus])
    for columns in range(1, len(with_gpus) + 1):
        rows = -(-len(with_gpus) // columns)
        widths = np.maximum.reduceat(gpus, np.arange(0, len(gpus), rows)) + 1
        width = int(widths.sum()) - 1
        cell_px = min(CELL_PX, WIDTH_PX / width)
        if rows * cell_px <= HIGHEST_PX:
            break
    return _Grid(
        np.array(with_gpus), int(gpus.max()), rows, np.cumsum(widths) - widths, width, float(cell_px)
    )


def _labels(nodes: Sequence[Node], grid: _Grid) -> list[list[str]]:
    names = np.zeros((len(nodes), grid.gpus), object)
    for at, node in enumerate(nodes):
        model = f" · {escape(_model(node))}" if node.gpu_model else ""
        names[at] = [f"{escape(node.name)}{model}" if slot < node.gpus else "" for slot in range(grid.gpus)]
    rows: list[list[str]] = grid.laid_out(names, "").tolist()
    return rows


def _cells(occupancy: Occupancy, grid: _Grid) -> dict[str, NDArray[np.generic]]:
    used = grid.laid_out(occupancy.used_milli, NOT_A_GPU).astype(np.float32)
    used[used == NOT_A_GPU] = np.nan
    jobs = grid.laid_out(occupancy.jobs, NOT_A_GPU)
    small = int(jobs.max()) < 128
    return {"z": used, "customdata": jobs.astype(np.int8) if small else jobs}


def _names_beside(nodes: Sequence[Node], grid: _Grid) -> dict[str, object]:
    if len(grid.lefts) > 1 or grid.rows > LABELLED_NODES:
        return {"showticklabels": False, "ticks": ""}
    names = [escape(nodes[at].name) for at in grid.nodes]
    return {"tickvals": list(range(grid.rows)), "ticktext": names, "ticksuffix": " "}


def _slider(runs: Sequence[Run], steps: int, grid: _Grid) -> dict[str, object]:
    begin_ms = int(runs[0].timeline.edges_ms[0])
    times_s = [(runs[0].occupancies[step].time_ms - begin_ms) / 1000 for step in range(steps)]
    factor, unit = readable_unit(Unit.SECONDS, times_s)
    marks = []
    maps = list(range(LEGEND, LEGEND + len(runs)))
    for step, time_s in enumerate(times_s):
        cells = [_cells(run.occupancies[step], grid) for run in runs]
        change = {key: [cell[key] for cell in cells] for key in ("z", "customdata")}
        marks.append({"label": f"{time_s * factor:.3g}", "method": "restyle", "args": [change, maps]})
    return {
        "steps": marks,
        "active": 0,
        "currentvalue": {
            "prefix": f"{unit.capitalize()} since the first submission: ",
            "font": {"color": INK},
        },
        "pad": {"t": 0, "b": 14, "l": 4, "r": 4},
        "y": 1,
        "yanchor": "bottom",
        "len": 1.0,
        "x": 0,
        "bgcolor": CLEAR,
        "bordercolor": INK,
        "tickcolor": INK,
    }


def _model(node: Node) -> str:
    return node.gpu_model.name if node.gpu_model else ""
