from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import pytest

from berth import plots
from berth.model import GpuModel, Node
from berth.plots.profiles import profile_figure
from berth.plots.style import OF_POLICY
from berth.policies import names
from berth.profiles import thesis_profiles
from berth.statistics import HEADLINES, Run, cdf
from tests.report.runs import NODES, curves, made_runs

TWO = ("fifo+first-fit", "sjf+best-fit")


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return made_runs()


def lines(figure: go.Figure) -> list[go.Scatter]:
    """The traces that are named in the legend."""
    return [trace for trace in figure.data if trace.name and trace.showlegend is not False]


def test_a_policy_has_its_colour_in_every_figure(runs: list[Run]) -> None:
    styles = plots.policy_styles([*TWO, "fgd", "random"])
    figures = [
        plots.allocation_over_time(runs, styles),
        plots.queue_over_time(runs, styles),
        plots.waiting_cdf(runs, styles),
        plots.completion_cdf(runs, styles),
        plots.inflation_allocation(curves(), styles),
        plots.inflation_fragmentation(curves(), styles),
    ]
    seen = {(line.name, line.line.color) for figure in figures for line in lines(figure)}
    assert seen - {("all that fits", "#707070")} == {(name, styles[name].colour) for name in styles}


def test_a_policy_has_its_colour_on_every_page() -> None:
    seven = ["round-robin", "first-fit", "tetris", "best-fit", "fgd", "genetic-paper", "genetic"]
    styles = plots.policy_styles(seven)
    assert len({style.colour for style in styles.values()}) == 7
    for some in (["genetic"], ["fgd", "genetic"], seven[::-1], ["easy+fgd", "my:thing", *seven[3:]]):
        assert all(plots.policy_styles(some)[name] == styles[name] for name in some if name in styles)
    alone = plots.policy_styles(["genetic?budget_ms=50", "fgd"])
    assert alone["genetic?budget_ms=50"] == styles["genetic"]
    beside = plots.policy_styles(["genetic?budget_ms=50", "genetic"])
    assert beside["genetic"] == styles["genetic"]
    assert beside["genetic?budget_ms=50"] != styles["genetic"]
    assert (
        len({style.colour for style in plots.policy_styles(["fifo", "first-fit", "learned"]).values()}) == 3
    )


def test_every_policy_of_the_registry_has_a_colour_of_its_name() -> None:
    assert set(OF_POLICY) <= set(names())
    missing = set(names()) - set(OF_POLICY)
    assert missing <= {"preempt", "limits"}  # never alone: what they stand around has its own name


def test_many_policies_are_told_apart_by_colour_and_dash() -> None:
    names = [f"policy-{at}" for at in range(20)]
    assert len(set(plots.policy_styles(names).values())) == 20


def test_time_begins_with_the_first_submission_and_the_unit_is_in_the_axis(runs: list[Run]) -> None:
    figure = plots.allocation_over_time(runs, plots.policy_styles(TWO))
    assert [line.name for line in lines(figure)] == list(TWO)
    assert all(line.x[0] == 0 for line in lines(figure))
    assert figure.layout.title.text == "GPU allocation, % of all GPUs"
    assert figure.layout.xaxis.title.text.startswith("Minutes since the first submission")


def test_the_drawn_allocation_has_the_mean_of_the_runs(runs: list[Run]) -> None:
    alone = [run for run in runs if run.policy == TWO[0]][:1]
    line = lines(plots.allocation_over_time(alone, plots.policy_styles(TWO)))[0]
    mean = np.average(line.y[:-1], weights=np.diff(line.x))
    assert mean == pytest.approx(alone[0].summary.gpu_allocation_pct, rel=1e-4)


def test_the_peak_of_a_queue_is_in_the_shade(runs: list[Run]) -> None:
    figure = plots.queue_over_time(runs, plots.policy_styles(TWO))
    highest = max(float(np.max(trace.y)) for trace in figure.data)
    assert highest == max(run.timeline.waiting_max.max() for run in runs)


def test_a_long_tail_does_not_squeeze_what_happened(runs: list[Run]) -> None:
    run = runs[0]
    edges = np.append(run.timeline.edges_ms, run.timeline.edges_ms[-1] * 100)
    levels = {
        f"{name}_{kind}": np.append(getattr(run.timeline, f"{name}_{kind}"), np.float32(0))
        for name in ("allocated_milli", "waiting", "running")
        for kind in ("mean", "max")
    }
    long = replace(run, timeline=replace(run.timeline, edges_ms=edges, **levels))
    figure = plots.allocation_over_time([long], plots.policy_styles(TWO))
    assert figure.layout.xaxis.range[1] < float(lines(figure)[0].x[-1]) / 50
    assert "(the last event is at " in figure.layout.xaxis.title.text


def test_zero_waits_are_where_a_curve_begins(runs: list[Run]) -> None:
    run = replace(runs[0], waiting=cdf([0.0, 0.0, 0.0, 0.5, 3600.0]))
    figure = plots.waiting_cdf([run], plots.policy_styles(TWO))
    line = lines(figure)[0]
    assert (line.x[0], line.y[0]) == (1.0, 80.0)
    assert (line.x[-1], line.y[-1]) == (3600.0, 100.0)
    assert figure.layout.xaxis.type == "log"
    assert figure.layout.xaxis.ticktext[0] == "≤ 1 s"


def test_waits_that_are_all_zero_still_make_a_line(runs: list[Run]) -> None:
    figure = plots.waiting_cdf([replace(runs[0], waiting=cdf([0.0]))], plots.policy_styles(TWO))
    assert lines(figure)[0].y.tolist() == [100.0, 100.0]
    assert len(figure.layout.xaxis.tickvals) == 2


def test_coinciding_curves_are_both_seen(runs: list[Run]) -> None:
    twin = replace(runs[0], policy="twin")
    figure = plots.waiting_cdf([runs[0], twin], plots.policy_styles([runs[0].policy, "twin"]))
    assert [line.line.dash for line in lines(figure)] == ["solid", "dash"]


def test_inflation_curves_have_a_point_at_each_per_cent_and_a_shade_over_seeds() -> None:
    given = curves(("fgd",), (1, 5))
    figure = plots.inflation_allocation(given, plots.policy_styles(["fgd"]))
    line = lines(figure)[0]
    assert np.array_equal(line.x, np.arange(131))
    assert line.y == pytest.approx((given[0].allocation_pct + given[1].allocation_pct) / 2)
    high, low = figure.data[0], figure.data[1]
    assert (high.y[-1], low.y[-1], low.fill) == (95.0, 91.0, "tonexty")


def test_the_allocation_plot_begins_before_any_policy_falls_behind() -> None:
    figure = plots.inflation_allocation(curves(), plots.policy_styles(["fgd", "random"]))
    assert (figure.layout.xaxis.range, figure.layout.yaxis.range) == ((80, 130), (80, 102))


def test_a_headline_has_a_bar_only_where_seeds_tell_one(runs: list[Run]) -> None:
    styles = plots.policy_styles(TWO)
    several = plots.headline(runs, HEADLINES[0], styles)
    one = plots.headline([run for run in runs if run.seed == 1], HEADLINES[0], styles)
    assert [trace.y[0] for trace in several.data] == list(TWO)
    assert all(trace.error_x.array[0] > 0 for trace in several.data)
    assert all(trace.error_x.visible is False for trace in one.data)


def maps(figure: go.Figure) -> list[go.Heatmap]:
    return [trace for trace in figure.data if trace.type == "heatmap"]


def test_the_map_has_every_gpu_once_with_its_node_and_model(runs: list[Run]) -> None:
    figure = plots.cluster_map(runs, NODES, plots.policy_styles(TWO))
    assert [trace.name for trace in maps(figure)] == list(TWO)
    for trace in maps(figure):
        texts = [text for row in trace.text for text in row if text]
        expected = [
            f"{node.name} · {node.gpu_model.name}"
            for node in NODES
            if node.gpu_model
            for _ in range(node.gpus)
        ]
        assert sorted(texts) == sorted(expected)
        assert np.count_nonzero(~np.isnan(trace.z)) == sum(node.gpus for node in NODES)


def test_the_slider_shows_every_time_of_every_policy(runs: list[Run]) -> None:
    figure = plots.cluster_map(runs, NODES, plots.policy_styles(TWO))
    firsts = [next(run for run in runs if run.policy == policy) for policy in TWO]
    for at, step in enumerate(figure.layout.sliders[0].steps):
        change, which = step.args
        assert [figure.data[index].type for index in which] == ["heatmap", "heatmap"]
        for run, cells in zip(firsts, change["z"], strict=True):
            used = run.occupancies[at].used_milli
            assert np.nansum(cells) == used[used > 0].sum()


@pytest.mark.parametrize("count", [1, 4, 40, 311, 1523])
def test_a_map_of_any_size_keeps_within_sight(runs: list[Run], count: int) -> None:
    nodes = [Node(f"node-{at}", (8, 4, 2)[at % 3], GpuModel(f"M{at % 5}")) for at in range(count)]
    empty = np.where(np.arange(8) < np.array([node.gpus for node in nodes])[:, None], 0, -1).astype(np.int16)
    occupancy = replace(runs[0].occupancies[0], used_milli=empty, jobs=empty)
    run = replace(runs[0], occupancies=(occupancy,))
    figure = plots.cluster_map([run], nodes, plots.policy_styles([run.policy]))
    cells = maps(figure)[0].z
    assert np.count_nonzero(~np.isnan(cells)) == sum(node.gpus for node in nodes)
    assert 150 < figure.layout.height < 480
    assert 1060 / cells.shape[1] > 3.5


def test_names_are_texts_and_no_markup(runs: list[Run]) -> None:
    name = "<b>bold</b> & <a href='x'>%{x}</a>"
    shown = "&lt;b&gt;bold&lt;/b&gt; &amp; &lt;a href=&#x27;x&#x27;&gt;%{x}&lt;/a&gt;"
    run = replace(runs[0], policy=name)
    styles = plots.policy_styles([name])
    assert lines(plots.queue_over_time([run], styles))[0].name == shown
    assert plots.headline([run], HEADLINES[0], styles).data[0].y[0] == shown
    drawn = plots.cluster_map(
        [run], [replace(node, name=f"{name}{at}") for at, node in enumerate(NODES)], styles
    )
    assert maps(drawn)[0].name == shown
    assert "<a href" not in drawn.to_json()


def test_nothing_to_draw_is_an_empty_figure_and_no_error() -> None:
    styles = plots.policy_styles([])
    for draw in (plots.allocation_over_time, plots.queue_over_time, plots.waiting_cdf, plots.completion_cdf):
        assert len(draw([], styles).data) == 0
    assert len(plots.inflation_fragmentation([], styles).data) == 0
    assert len(plots.cluster_map([], [], styles).data) == 0


def test_a_profile_is_drawn_as_steps_with_its_memory_below() -> None:
    profile = thesis_profiles()["QMCPACK"]
    figure = profile_figure(profile)
    gpu, cores, pcie, memory = figure.data
    assert [trace.name for trace in figure.data] == ["GPU", "GPU cores", "PCIe", "GPU memory"]
    assert (len(gpu.x), gpu.x[-1], gpu.line.shape) == (39, 190, "hv")
    assert sorted(set(gpu.y)) == [35, 60, 90]
    assert [round(value) for value in memory.y] == [0] * 19 + [5_135] * 20
    assert figure.layout.yaxis2.range == (0, 1.05 * 12_288)
    assert (max(cores.y), max(pcie.y)) == (45, 2)
    assert figure.layout.title.text == "QMCPACK alone on TITAN-XP-THESIS"
