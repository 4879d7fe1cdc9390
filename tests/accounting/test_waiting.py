"""Predictions of waits: what they may know, how they are judged, what they answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pytest

from berth.errors import HistoryError, SettingError
from berth.history.folder import open_history
from berth.history.questions import LEAKS, history_features, polled_features
from berth.history.sacct import import_text
from berth.history.staging import Options
from berth.waiting import Questions, WaitModel, evaluate, train

from . import exports

pytest.importorskip("lightgbm", reason="the extra 'account' is not installed")


def made_up(jobs: int = 3000) -> Questions:
    """Waits that follow the length of the queue, with some noise."""
    random = np.random.default_rng(7)
    queue = random.integers(0, 100, jobs).astype(np.float64)
    gpus = random.integers(1, 9, jobs).astype(np.float64)
    wait = 10 ** (0.02 * queue + 0.1 * gpus + random.normal(0, 0.2, jobs))
    return Questions(("gpus", "queue"), np.column_stack([gpus, queue]), np.arange(jobs) * 600.0, wait)


def test_what_drives_waits_is_learned_and_the_interval_holds_four_fifths() -> None:
    found = evaluate(made_up())
    assert found.mse_log10 < 0.1 < 0.3 < found.baseline_mse_log10
    assert 0.74 < found.coverage_80 < 0.86
    assert (found.trained, found.tested) == (2400, 600)


def test_only_waits_that_had_ended_before_the_split_are_learned_from() -> None:
    questions = made_up()
    questions.wait_s[2000:2400] = 1e9
    assert evaluate(questions).trained == 2000


def test_an_answer_survives_its_file_and_names_its_drivers(tmp_path: Path) -> None:
    questions = made_up()
    model = train(questions)
    model.save(tmp_path / "model.json")
    again = WaitModel.load(tmp_path / "model.json")
    busy, idle = np.array([4.0, 95.0]), np.array([4.0, 2.0])
    assert again.answer(busy) == model.answer(busy)
    answer = model.answer(busy)
    assert answer.low_s <= answer.median_s <= answer.high_s
    assert answer.drivers[0][0] == "queue"
    assert answer.drivers[0][1] > 1 > model.answer(idle).drivers[0][1]


def test_too_few_waits_and_a_missing_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="too few"):
        evaluate(made_up(100))
    with pytest.raises(HistoryError, match="predict-wait train"):
        WaitModel.load(tmp_path / "none.json")


def test_the_queue_is_counted_as_it_was_at_the_moment_of_asking(tmp_path: Path) -> None:
    base = 1_700_000_000
    rows = [
        exports.line(JobIDRaw=1, User="ann", Submit=base, Eligible=base, Start=base + 10, End=base + 100),
        exports.line(
            JobIDRaw=2, User="bob", Submit=base + 5, Eligible=base, Start=base + 100, End=base + 200
        ),
        exports.line(
            JobIDRaw=3, User="ann", Submit=base + 50, Eligible=base, Start=base + 150, End=base + 300
        ),
    ]
    history = open_history(tmp_path / "h")
    import_text(history, exports.write(tmp_path / "f", rows), Options())
    with history.database() as database:
        features, asked, waits = history_features(database)
    assert asked.tolist() == [base, base + 5, base + 50]
    assert waits.tolist() == [10, 95, 100]
    assert features["waiting_jobs_all"].tolist() == [0, 1, 1]
    assert features["running_jobs_all"].tolist() == [0, 0, 1]
    assert features["running_gpus_user"].tolist() == [0, 0, 2]
    assert features["waiting_jobs_user"].tolist() == [0, 0, 0]


def test_nothing_of_the_future_is_a_feature(real_data: Callable[[str], Path], tmp_path: Path) -> None:
    path = real_data("drac/drac_graham_submitday.parquet")
    small, other = tmp_path / "small.parquet", tmp_path / "other.parquet"
    with duckdb.connect() as database:
        some = f"SELECT * FROM read_parquet('{path}') ORDER BY poll_time, job_unique_id LIMIT 2000"
        database.execute(f"COPY ({some}) TO '{small}' (FORMAT parquet)")
        shuffled = "start_time[:0] AS start_time, '' AS end_time, '' AS state, 0::BIGINT AS elapsed_time"
        later = "CASE WHEN eligible_time > poll_time THEN '2030-01-01 00:00:00' ELSE eligible_time END"
        future = f"{later} AS eligible_time"
        changed = (
            f"SELECT * REPLACE ({shuffled}, {future}, 1::BIGINT AS run_time_sec, 1::BIGINT AS priority_x)"
        )
        database.execute(f"COPY ({changed} FROM read_parquet('{small}')) TO '{other}' (FORMAT parquet)")
    features, _, _ = polled_features(small)
    assert not LEAKS & features.keys()
    again, _, _ = polled_features(other)
    assert features.keys() == again.keys()
    for name, column in features.items():
        np.testing.assert_array_equal(column, again[name], err_msg=name)


@pytest.mark.slow
def test_waits_of_a_real_cluster_are_told_better_than_asked(real_data: Callable[[str], Path]) -> None:
    from berth.cli.waiting import questions_of

    found = evaluate(questions_of(real_data("drac/drac_graham_submitday.parquet"), Path("history")))
    assert found.mse_log10 < 0.275
    assert 0.78 <= found.coverage_80 <= 0.82
    assert json.dumps(found.to_dict(), allow_nan=False)
