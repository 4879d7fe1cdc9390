"""Sums that a page is filtered by."""

from __future__ import annotations

import duckdb

from berth.statistics.cells import FACETS, cells_of

DAY_MS = 86_400_000


def test_attempts_without_an_account_are_counted_too() -> None:
    database = duckdb.connect()
    database.execute(
        "CREATE TABLE records AS SELECT * FROM (VALUES ('ann', 'c', 'j1', 1, $1::BIGINT, 0::BIGINT, 1000::BIGINT), "
        "(NULL, 'c', 'j2', 1, $1, 0, 2000)) t(who, cluster, job_id, attempt, end_ms, queued_ms, start_ms), "
        "(SELECT NULL::BIGINT AS eligible_ms)",
        [DAY_MS],
    )
    sums = [f"count(*) AS {name}" for name in ("held", "wasted", "measured", "idle")]
    source = "FROM records WHERE end_ms > 0"
    days, *_ = cells_of(database, source, [], dict.fromkeys(FACETS, "who"), sums, sampled=10)
    assert days.names["account"] == ["", "ann"]
    assert (days.group.tolist(), days.day.tolist(), days.sums["held"].tolist()) == ([0, 1], [1, 1], [1, 1])
    assert sorted(days.sample_wait_ms.tolist()) == [1000, 2000]


def test_the_tables_that_sums_are_made_of_are_gone_afterwards_also_when_only_the_first_were_wanted() -> None:
    database = duckdb.connect()
    database.execute(
        "CREATE TABLE records AS SELECT 'ann' AS who, 'c' AS cluster, 'j' AS job_id, 1 AS attempt, "
        f"{DAY_MS} AS end_ms, 0 AS queued_ms, NULL::BIGINT AS eligible_ms, 0 AS start_ms"
    )
    sums = [f"count(*) AS {name}" for name in ("held", "wasted", "measured", "idle")]
    cells = cells_of(database, "FROM records WHERE true", [], dict.fromkeys(FACETS, "who"), sums, sampled=10)
    assert next(cells).unit == "day"
    cells.close()
    assert database.execute("SELECT table_name FROM duckdb_tables()").fetchall() == [("records",)]
