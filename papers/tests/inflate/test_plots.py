from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import pytest
from papers.tests.inflate.curves import curves

from berth.plots import policy_styles
from berth_papers.inflate.chapters import inflation_answers, inflation_chapter
from berth_papers.inflate.plots import inflation_allocation, inflation_fragmentation


def lines(figure: go.Figure) -> list[go.Scatter]:
    """The traces that are named in the legend."""
    return [trace for trace in figure.data if trace.name and trace.showlegend is not False]


def test_a_policy_has_its_colour_in_both_figures() -> None:
    styles = policy_styles(["fgd", "random"])
    figures = [inflation_allocation(curves(), styles), inflation_fragmentation(curves(), styles)]
    seen = {(line.name, line.line.color) for figure in figures for line in lines(figure)}
    assert seen - {("all that fits", "#707070")} == {(name, styles[name].colour) for name in styles}


def test_inflation_curves_have_a_point_at_each_per_cent_and_a_shade_over_seeds() -> None:
    given = curves(("fgd",), (1, 5))
    figure = inflation_allocation(given, policy_styles(["fgd"]))
    line = lines(figure)[0]
    assert np.array_equal(line.x, np.arange(131))
    assert line.y == pytest.approx((given[0].allocation_pct + given[1].allocation_pct) / 2)
    high, low = figure.data[0], figure.data[1]
    assert (high.y[-1], low.y[-1], low.fill) == (95.0, 91.0, "tonexty")


def test_the_allocation_plot_begins_before_any_policy_falls_behind() -> None:
    figure = inflation_allocation(curves(), policy_styles(["fgd", "random"]))
    assert (figure.layout.xaxis.range, figure.layout.yaxis.range) == ((80, 130), (80, 102))


def test_nothing_to_draw_is_an_empty_figure_and_no_error() -> None:
    assert len(inflation_fragmentation([], policy_styles([])).data) == 0


def test_the_table_and_the_answers_show_both_100_and_130_per_cent() -> None:
    crossing = [
        replace(
            curve,
            allocation_pct=np.minimum(np.arange(131.0), limit) + np.where(np.arange(131) > 100, gain, 0),
        )
        for curve, limit, gain in zip(curves(seeds=(1,)), (95.0, 94.0), (0.0, 3.0), strict=True)
    ]
    chapter = inflation_chapter(crossing)
    assert [list(row) for row in chapter.rows] == [
        ["fgd", "95.00", "95.00", "95.00", "95.00"],
        ["random", "94.00", "94.00", "97.00", "97.00"],
    ]
    at_full, at_most = inflation_answers(crossing)
    assert at_full.startswith("fgd packs best: 95.0 % of the GPUs held when jobs for 100 % have arrived")
    assert at_most.startswith("random holds most under overload: 97.0 % of the GPUs held when jobs for 130 %")
