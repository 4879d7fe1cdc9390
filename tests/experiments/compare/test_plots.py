from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import pytest

from berth.experiments.compare import plots
from berth.plots import policy_styles
from berth.statistics import HEADLINES, Run, cdf
from tests.experiments.compare.runs import made_runs

TWO = ("fifo+first-fit", "sjf+best-fit")


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return made_runs()


def lines(figure: go.Figure) -> list[go.Scatter]:
    """The traces that are named in the legend."""
    return [trace for trace in figure.data if trace.name and trace.showlegend is not False]


def test_a_policy_has_its_colour_in_every_figure(runs: list[Run]) -> None:
    styles = policy_styles(TWO)
    figures = [
        plots.allocation_over_time(runs, styles),
        plots.queue_over_time(runs, styles),
        plots.waiting_cdf(runs, styles),
        plots.completion_cdf(runs, styles),
    ]
    seen = {(line.name, line.line.color) for figure in figures for line in lines(figure)}
    assert seen == {(name, styles[name].colour) for name in styles}


def test_time_begins_with_the_first_submission_and_the_unit_is_in_the_axis(runs: list[Run]) -> None:
    figure = plots.allocation_over_time(runs, policy_styles(TWO))
    assert [line.name for line in lines(figure)] == list(TWO)
    assert all(line.x[0] == 0 for line in lines(figure))
    assert figure.layout.title.text == "GPU allocation, % of all GPUs"
    assert figure.layout.xaxis.title.text.startswith("Minutes since the first submission")


def test_the_drawn_allocation_has_the_mean_of_the_runs_and_is_smoothed(runs: list[Run]) -> None:
    alone = [run for run in runs if run.policy == TWO[0]][:1]
    figure = plots.allocation_over_time(alone, policy_styles(TWO))
    (raw,) = (trace for trace in figure.data if trace.line.width == 1)
    mean = np.average(raw.y[:-1], weights=np.diff(raw.x))
    assert mean == pytest.approx(alone[0].summary.gpu_allocation_pct, rel=1e-4)
    edges = alone[0].timeline.edges_ms - alone[0].timeline.edges_ms[0]
    every_ms = np.repeat(raw.y[:-1].astype(np.float64), np.diff(edges))
    half = plots.SMOOTHED * len(every_ms) / 2
    (line,) = lines(figure)
    narrow = np.diff(edges) < half  # a wide bin is drawn as it is
    assert narrow.sum() > 10
    for at in np.flatnonzero(narrow):
        middle = (edges[at] + edges[at + 1]) / 2
        around = every_ms[max(0, round(middle - half)) : round(middle + half)]
        assert line.y[at] == pytest.approx(around.mean(), abs=0.05)


def test_the_time_that_is_averaged_over_is_told_in_words(runs: list[Run]) -> None:
    run = runs[0]
    hour = replace(
        run.timeline, edges_ms=np.linspace(0, 3_600_000, len(run.timeline.edges_ms)).astype(np.int64)
    )
    assert plots.smoothed_over([replace(run, timeline=hour)]) == "72 seconds"
    day = replace(run.timeline, edges_ms=hour.edges_ms * 24)
    assert plots.smoothed_over([replace(run, timeline=day)]) == "28.8 minutes"


def test_the_shade_of_allocation_is_of_the_seeds_and_one_seed_has_none(runs: list[Run]) -> None:
    styles = policy_styles(TWO)
    several = [run for run in runs if run.policy == TWO[0]]
    high, low, _raw, line = plots.allocation_over_time(several, styles).data
    assert (low.fill, line.line.width) == ("tonexty", 2)
    assert (low.y <= line.y + 1e-3).all()
    assert (line.y <= high.y + 1e-3).all()
    assert (high.y - low.y).max() > 1
    assert [trace.line.width for trace in plots.allocation_over_time(several[:1], styles).data] == [1, 2]


def test_allocation_of_many_policies_has_one_smooth_line_each(runs: list[Run]) -> None:
    many = [*runs, *(replace(run, policy="easy+fifo+best-fit") for run in runs if run.policy == TWO[0])]
    styles = policy_styles([*TWO, "easy+fifo+best-fit"])
    drawn = plots.allocation_over_time(many, styles).data
    assert [(trace.name, trace.line.width) for trace in drawn] == [(name, 2) for name in styles]
    assert len({(trace.line.color, trace.line.dash) for trace in drawn}) == 3


def test_the_peak_of_a_queue_is_in_the_shade(runs: list[Run]) -> None:
    figure = plots.queue_over_time(runs, policy_styles(TWO))
    highest = max(float(np.max(trace.y)) for trace in figure.data)
    assert highest == max(run.timeline.waiting_max.max() for run in runs)


def test_a_long_tail_does_not_squeeze_what_happened(runs: list[Run]) -> None:
    run = runs[0]
    edges = np.append(run.timeline.edges_ms, run.timeline.edges_ms[-1] * 100)
    levels = {
        name: np.append(getattr(run.timeline, name), np.float32(0))
        for name in ("allocated_milli_mean", "waiting_mean", "waiting_max")
    }
    long = replace(run, timeline=replace(run.timeline, edges_ms=edges, **levels))
    figure = plots.allocation_over_time([long], policy_styles(TWO))
    assert figure.layout.xaxis.range[1] < float(lines(figure)[0].x[-1]) / 50
    assert "(the last event is at " in figure.layout.xaxis.title.text


def test_zero_waits_are_where_a_curve_begins(runs: list[Run]) -> None:
    run = replace(runs[0], waiting=cdf([0.0, 0.0, 0.0, 0.5, 3600.0]))
    figure = plots.waiting_cdf([run], policy_styles(TWO))
    line = lines(figure)[0]
    assert (line.x[0], line.y[0]) == (1.0, 80.0)
    assert (line.x[-1], line.y[-1]) == (3600.0, 100.0)
    assert figure.layout.xaxis.type == "log"
    assert figure.layout.xaxis.ticktext[0] == "≤ 1 s"


def test_waits_that_are_all_zero_still_make_a_line(runs: list[Run]) -> None:
    figure = plots.waiting_cdf([replace(runs[0], waiting=cdf([0.0]))], policy_styles(TWO))
    assert lines(figure)[0].y.tolist() == [100.0, 100.0]
    assert len(figure.layout.xaxis.tickvals) == 2


def test_coinciding_curves_are_both_seen(runs: list[Run]) -> None:
    twin = replace(runs[0], policy="twin")
    figure = plots.waiting_cdf([runs[0], twin], policy_styles([runs[0].policy, "twin"]))
    assert [line.line.dash for line in lines(figure)] == ["solid", "dash"]


def test_a_headline_has_a_bar_only_where_seeds_tell_one(runs: list[Run]) -> None:
    styles = policy_styles(TWO)
    several = plots.headline(runs, HEADLINES[0], styles)
    one = plots.headline([run for run in runs if run.seed == 1], HEADLINES[0], styles)
    assert [trace.y[0] for trace in several.data] == list(TWO)
    assert all(trace.error_x.array[0] > 0 for trace in several.data)
    assert all(trace.error_x.visible is False for trace in one.data)


def test_names_are_texts_and_no_markup(runs: list[Run]) -> None:
    name = "<b>bold</b> & <a href='x'>%{x}</a>"
    shown = "&lt;b&gt;bold&lt;/b&gt; &amp; &lt;a href=&#x27;x&#x27;&gt;%{x}&lt;/a&gt;"
    run = replace(runs[0], policy=name)
    styles = policy_styles([name])
    assert lines(plots.queue_over_time([run], styles))[0].name == shown
    assert plots.headline([run], HEADLINES[0], styles).data[0].y[0] == shown


def test_nothing_to_draw_is_an_empty_figure_and_no_error() -> None:
    styles = policy_styles([])
    for draw in (plots.allocation_over_time, plots.queue_over_time, plots.waiting_cdf, plots.completion_cdf):
        assert len(draw([], styles).data) == 0
