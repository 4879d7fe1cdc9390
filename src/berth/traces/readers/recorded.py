"""The history as a trace: berth's records of attempts, one job for each that was ever submitted.

A job works as long as its record says; where that is unknown, as long as its last completed attempt took, else as
its longest one. An attempt's share may be less than the job asked for, so the largest counts. A record does not
tell whether several nodes were asked for or came about: a job that ran on several, or on none, may run on as
few as will hold it. A job is told by its cluster and id; an id that several clusters have comes as CLUSTER/ID.
Models asked for, labels and retries are not recorded and have their defaults.
"""

from __future__ import annotations

from typing import Final

from berth.errors import TraceError
from berth.traces.table import ParquetTable, Table

_JOBS: Final = """
    SELECT
        CASE
            WHEN count(*) OVER (PARTITION BY job_id) > 1 THEN concat_ws('/', nullif({cluster}, ''), job_id)
            ELSE job_id
        END AS id,
        min(submit_ms) AS submit_ms,
        coalesce(
            max(work_ms),
            arg_max(end_ms - start_ms, attempt) FILTER (state = 'completed'),
            max(end_ms - start_ms)
        ) AS work_ms,
        first("user" ORDER BY attempt) AS "user",
        first(application ORDER BY attempt) AS application,
        first(gpus ORDER BY attempt) AS gpus,
        max(share_milli) AS share_milli,
        max(share_mem_mib) AS share_mem_mib,
        CASE WHEN max(len(nodes)) = 1 OR max(gpus) <= 1 THEN 1 ELSE 0 END AS nodes,
        max(cpu_milli) AS cpu_milli,
        max(mem_mib) AS mem_mib,
        first(virtual_cluster ORDER BY attempt) AS virtual_cluster,
        nullif(first({limit} ORDER BY attempt), 0) AS time_limit_ms
    FROM read_parquet(?, file_row_number = true)
    GROUP BY job_id, {cluster}
    ORDER BY min(submit_ms), min(file_row_number)
"""


def jobs_table(table: Table) -> Table:
    """The jobs of an open table of records, in order of submission, which takes its place."""
    if not isinstance(table, ParquetTable):
        raise TraceError(table.path, "a Parquet file, as records are written", line=table.header_line)
    cluster = "coalesce(cluster, '')" if "cluster" in table.header else "''"
    limit = "time_limit_ms" if "time_limit_ms" in table.header else "NULL::BIGINT"
    return table.through(_JOBS.format(cluster=cluster, limit=limit))
