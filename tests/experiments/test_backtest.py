"""Predictions of the next week, judged by what happened then."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from berth.cli.app import app
from berth.errors import SettingError
from berth.experiments.backtest import FEWEST_ERRORS, FIRST, LAST_WEEK, Backtest, backtest
from berth.experiments.weeks import WEEK_MS, Waits
from tests.experiments.test_believable import history_of

JOBS = 40


def weeks(*means_s: float) -> Waits:
    """As many jobs in each week, which all wait that long."""
    submit_ms = np.arange(len(means_s) * JOBS, dtype=np.int64) * (WEEK_MS // JOBS)
    return Waits(submit_ms, np.repeat(np.array(means_s, float), JOBS))


def test_a_week_is_predicted_by_its_replay_corrected_by_the_weeks_before() -> None:
    """The replays say half of what was, so that the correction is twofold from the first prediction on."""
    real, replay = weeks(1000, 2000, 4000, 500), weeks(500, 1000, 2000, 250)
    found = backtest(real, {"fifo": replay}).of("p90")
    assert [(each.week, each.real_s, round(each.predicted_s), each.last_week_s) for each in found] == [
        (3, 4000, 4000, 2000), (4, 500, 500, 4000),
    ]  # fmt: skip
    assert [round(each.error_pct) for each in found] == [0, 0]
    assert [round(each.last_week_error_pct) for each in found] == [50, 700]


def test_the_candidate_that_was_nearest_before_is_taken() -> None:
    real = weeks(1000, 2000, 1000, 3000)
    far, near = weeks(4000, 100, 4000, 100), weeks(1000, 2000, 1000, 3000)
    assert {each.policy for each in backtest(real, {"far": far, "near": near}).predicted} == {"near"}


def test_where_replays_tell_nothing_the_week_before_is_the_prediction() -> None:
    real = weeks(1000, 1000, 1100, 1100, 1000, 1000)
    erratic = weeks(100, 9000, 50, 4000, 20_000, 70)
    for each in backtest(real, {"fifo": erratic}).predicted:
        assert (each.policy, each.predicted_s) == (LAST_WEEK, pytest.approx(each.last_week_s))


def test_a_replay_that_is_far_off_in_every_fourth_week_is_not_taken() -> None:
    """It is right in all other weeks, but the week before is nearer on average."""
    real = np.array([1000.0, 1200.0] * 10)
    replay = np.where(np.arange(20) % 4 == 1, 100 * real, real)
    assert {each.policy for each in backtest(weeks(*real), {"fifo": weeks(*replay)}).predicted} == {LAST_WEEK}


def test_waits_below_a_minute_are_predicted_as_one() -> None:
    found = backtest(weeks(300, 300, 300, 0, 30), {"fifo": weeks(600, 600, 600, 10, 20)}).of("mean")
    assert [(each.predicted_s, each.error_pct) for each in found[1:]] == [(pytest.approx(60), 0)] * 2


def drawn(seed: int, count: int, growth: float = 0.0) -> Backtest:
    """Replays that err by a factor that is drawn anew each week, and may grow."""
    draw = np.random.default_rng(seed)
    real = draw.uniform(2000, 20_000, count)
    errors = draw.normal(0.2, 0.4, count) * (1 + growth * np.arange(count))
    return backtest(weeks(*real), {"fifo": weeks(*real * np.exp(errors))})


@pytest.mark.parametrize("growth", [0, 0.05])
def test_the_interval_holds_in_four_weeks_of_five(growth: float) -> None:
    found = [each.held for seed in range(40) for each in drawn(seed, 40, growth).of("p90")]
    assert 0.75 <= float(np.mean([held for held in found if held is not None])) <= 0.85


@pytest.mark.parametrize(
    ("count", "caution"),
    [
        (4, "Caution: 0 of 2 predicted weeks had an interval; judging it needs 12 more weeks."),
        (15, "Caution: 9 of 13 predicted weeks had an interval; judging it needs 1 more week."),
        (16, ""),
    ],
)
def test_few_intervals_come_with_a_caution(count: int, caution: str) -> None:
    found = drawn(1, count)
    with_interval = sum(each.held is not None for each in found.of("p90"))
    assert with_interval == max(count - FIRST - FEWEST_ERRORS, 0)
    assert found.caution == caution
    assert found.sentences[2:] == ((caution,) if caution else ())


def test_nothing_of_a_week_is_known_before_it_is_over() -> None:
    """Other numbers in the last week change no prediction but their own error."""
    before = (1000.0, 3000.0, 2000.0, 5000.0, 800.0, 900.0, 1200.0, 4000.0)
    replay = weeks(900, 2000, 2500, 5000, 700, 900, 1500, 3000, 2000)
    one, other = (backtest(weeks(*before, last), {"fifo": replay}).of("mean") for last in (100.0, 90_000.0))
    assert [(each.predicted_s, each.low_s, each.high_s) for each in one] == [
        (each.predicted_s, each.low_s, each.high_s) for each in other
    ]
    assert sum(each.low_s is not None for each in one) == len(one) - FEWEST_ERRORS


def test_too_few_weeks_are_said() -> None:
    with pytest.raises(SettingError, match="it needs 3 weeks of 10 jobs or more; there are 2"):
        backtest(weeks(1, 2), {"fifo": weeks(1, 2)})


def test_the_command_tests_a_history_and_a_trace(tmp_path: Path) -> None:
    folder = history_of(tmp_path / "made", "fifo+first-fit")
    words = ["backtest", "--history", str(folder), "--json"]
    told = json.loads(CliRunner().invoke(app, words, catch_exceptions=False).stdout)
    assert {week["policy"] for week in told["weeks"]} == {"fifo+first-fit"}
    assert told["answers"][-1] == told["caution"]
    assert told["caution"].startswith("Caution: 0 of ")
    assert max(week["error_pct"] for week in told["weeks"]) <= 5
    shown = CliRunner().invoke(app, words[:-1], catch_exceptions=False).stdout
    assert "the predicted 90th percentile of waits was off by 0 % (median), last week's value by" in shown
    done = CliRunner().invoke(app, ["backtest", "synthetic:demo", "--since", "7d"])
    assert isinstance(done.exception, SettingError)
    assert "a TRACE is taken as a whole" in str(done.exception)


@pytest.mark.parametrize("command", ["backtest", "size", "compare"])
def test_no_policy_at_all_is_refused(command: str) -> None:
    done = CliRunner().invoke(app, [command, "synthetic:demo?jobs=5", "--policies", ","])
    assert isinstance(done.exception, SettingError)
    assert str(done.exception).startswith("--policies ',' names none")
