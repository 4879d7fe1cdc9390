"""Lines of groups over time: whatever was measured is seen."""

from __future__ import annotations

from berth.plots.accounting import MOST_MARKED, Series, group_bars, group_lines


def test_of_many_days_a_value_that_no_line_leads_to_has_a_mark() -> None:
    days = [f"day {at}" for at in range(MOST_MARKED + 1)]
    values: list[float | None] = [None] * len(days)
    values[3] = 12.0
    values[10:12] = [40.0, 50.0]
    (trace,) = group_lines(days, [Series("ann", values)], "use", "day").data
    assert [at for at, size in enumerate(trace.marker.size) if size] == [3]
    assert "markers" in trace.mode
    (first,) = group_lines(days[:5], [Series("ann", values[:5])], "use", "day").data
    assert set(first.marker.size) == {6}


def test_a_user_with_one_measured_day_is_not_an_empty_frame() -> None:
    days = [f"day {at}" for at in range(365)]
    figure = group_lines(days, [Series("ann", [7.0, *[None] * 364])], "use", "day", top=100.0)
    (trace,) = figure.data
    assert (trace.y[0], trace.marker.size[0]) == (7.0, 6)
    assert tuple(figure.layout.yaxis.range) == (0, 102.0)


def test_bars_have_a_legend_unless_the_axis_names_the_only_ones() -> None:
    told = {
        name: group_bars(["ann"], [Series(name, [1.0])], "Wait, h").layout.showlegend
        for name in ("Wait, h", "90 %")
    }
    assert told == {"Wait, h": False, "90 %": True}
