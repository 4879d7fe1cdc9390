"""Keep the finished runs of a sweep, continue it with a second call, and read them with DuckDB."""

import tempfile

import duckdb

import berth

with tempfile.TemporaryDirectory() as folder:
    policies = ["fifo+best-fit", "sjf+best-fit", "random"]
    berth.compare("synthetic:demo?jobs=100", policies[:2], seeds=3, keep=folder)
    berth.compare("synthetic:demo?jobs=100", policies, seeds=3, keep=folder)  # runs `random` alone
    rows = duckdb.sql(
        "SELECT policy, count(*), round(avg(completion_time_s_mean))"
        f" FROM '{folder}/runs/*.parquet' GROUP BY 1 ORDER BY 1"
    ).fetchall()
for policy, seeds, completion_s in rows:
    print(f"{policy:14} {seeds} seeds, mean completion {completion_s:.0f} s")
