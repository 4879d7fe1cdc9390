"""A table of polled jobs becomes questions of waits, of which none knows the future."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pytest
from bench.polled_jobs import LEAKS, polled_features, questions_of

from berth.errors import HistoryError

TABLE = """
SELECT * FROM (VALUES
    ('2024-01-01 12:00:00', '2024-01-01 10:00:00', '2024-01-01 11:00:00', 60, 'cpu=4,gres/gpu=2,node=1', 7, 3600, 5),
    ('2024-01-01 12:00:00', '2024-01-01 11:00:00', '2024-01-01 13:00:00', 90, 'cpu=8,node=1', 7, 7200, 6),
    ('2024-01-02 12:00:00', '2024-01-02 11:30:00', '2024-01-02 11:30:00', 30, 'cpu=8,node=1', 8, 7200, 9)
) AS jobs (poll_time, submit_time, eligible_time, poll_wait_sec, req_tres, account_id, time_limit_sec, run_time_sec)
"""


def table(folder: Path, query: str = TABLE) -> Path:
    path = folder / "jobs.parquet"
    with duckdb.connect() as database:
        database.execute(f"COPY ({query}) TO '{path}' (FORMAT parquet)")
    return path


def test_a_polled_job_has_its_size_its_age_and_its_company_at_that_moment(tmp_path: Path) -> None:
    features, asked, wait = polled_features(table(tmp_path))
    assert wait.tolist() == [60, 90, 30]
    assert np.diff(asked).tolist() == [0, 86_400]
    assert features["age_s"].tolist() == [7200, 3600, 1800]
    assert features["eligible_for_s"].tolist() == [3600, -1, 1800]  # one becomes eligible only later
    np.testing.assert_array_equal(features["t_gres/gpu"], [2, np.nan, np.nan])
    assert features["asking_all"].tolist() == [2, 2, 1]
    assert features["asking_before_account"].tolist() == [0, 1, 0]
    assert not LEAKS & features.keys()
    questions = questions_of(table(tmp_path))
    assert (questions.names, len(questions)) == (tuple(sorted(features)), 3)


def test_a_table_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match=r"has no column poll_time, submit_time, .*a table of polled jobs"):
        polled_features(table(tmp_path, "SELECT 1 AS one"))
    (tmp_path / "jobs.parquet").write_text("no table")
    with pytest.raises(HistoryError, match="cannot be read"):
        polled_features(tmp_path / "jobs.parquet")


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
            f"SELECT * REPLACE ({shuffled}, {future}, 1::BIGINT AS run_time_sec, 1::BIGINT AS priority_x,"
            " 1::FLOAT AS q_core_run_hours, 1::FLOAT AS q_p_a_gpu_run_hours)"
        )
        database.execute(f"COPY ({changed} FROM read_parquet('{small}')) TO '{other}' (FORMAT parquet)")
    features, _, _ = polled_features(small)
    again, _, _ = polled_features(other)
    assert features.keys() == again.keys()
    for name, column in features.items():
        np.testing.assert_array_equal(column, again[name], err_msg=name)
