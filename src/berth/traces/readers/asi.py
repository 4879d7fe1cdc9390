"""Alibaba's ASI trace of 2026: hours of pods on GPU servers, as records of attempts and as jobs.

Published as cluster-trace-gpu-v2026 in github.com/alibaba/clusterdata; `asi_opensource_pod_hourly` is a folder of
Parquet, `day=D/hour=H/part-000.parquet`, with a row for each pod and hour. DuckDB streams it:
memory holds one row a pod, and what does not fit goes to disk.

- A pod is submitted at the start of the first hour that shows it. It runs for the GPU-hours that it held over the GPUs
  that it asked for, so that a pod of minutes does not count as an hour.
- Use is the mean of its hours by the GPU-hours in each. Peaks within an hour are not published, so there are none.
- A pod without a hour outside `Pending` never started: as a job it leaves unserved when it was last seen.
- A pod that is there in the last hour has not ended: as a job it never ends, and it is no record.

Lost: pods without GPUs, which take CPU on the same servers; the request of GPU memory, whose unit is not published.
"""

from __future__ import annotations

from typing import Final

from berth.gpu_models import GPU_MODELS
from berth.model import FOREVER_MS
from berth.traces.table import ParquetTable, Table

_HOUR_MS: Final = 3_600_000
_CARDS: Final = ", ".join(
    f"('{model.name}', {model.mem_mib})" for model in GPU_MODELS.values() if model.mem_mib
)
PODS: Final = f"""
    WITH hours AS (
        SELECT *, day::BIGINT * 24 + hour::BIGINT AS hour_at, ceil(round(gpu_request * 1000) / 1000) AS cards
        FROM read_parquet($1, hive_partitioning = true) WHERE gpu_request > 0
    ),
    pods AS (
        SELECT
            pod_id AS id,
            min(hour_at) * {_HOUR_MS} AS first_ms,
            (max(hour_at) + 1) * {_HOUR_MS} AS last_ms,
            max(hour_at) = (SELECT max(day::BIGINT * 24 + hour::BIGINT)
                FROM read_parquet($1, hive_partitioning = true))
                AND arg_max(state_public, hour_at) NOT IN ('Succeeded', 'Failed') AS still_there,
            coalesce(bool_or(state_public <> 'Pending'), false) AS started,
            arg_max(state_public, hour_at) AS state,
            coalesce(max(schedule_delay_sec), 0) * 1000 AS delay_ms,
            round({_HOUR_MS} * sum(coalesce(used_gpu_hours, gpu_request)
                / gpu_request) FILTER (state_public <> 'Pending'))::BIGINT AS work_ms,
            coalesce(any_value(workload_id), '') AS application,
            coalesce(any_value(job_type_public), '') AS virtual_cluster,
            coalesce(any_value(cluster_id), '') AS cluster,
            any_value(server_id) AS server,
            coalesce(any_value(gpu_spec_public), '') AS gpu_model,
            max(cards)::INTEGER AS gpus,
            greatest(1, round(1000 * max(gpu_request) / max(cards)))::INTEGER AS share_milli,
            round(1000 * coalesce(max(cpu_request_cores), 0))::BIGINT AS cpu_milli,
            CASE any_value(priority_class) WHEN 'HP' THEN 10 ELSE 0 END AS priority,
            sum(avg_gpu_sm_util * used_gpu_hours) / sum(used_gpu_hours) / 100 AS gpu_use_mean,
            sum(avg_gpu_mem_gib * used_gpu_hours) / sum(used_gpu_hours) AS gpu_mem_gib
        FROM hours GROUP BY pod_id
    )
"""
"""A row a pod; the parameter is the pattern of the files."""

_JOBS: Final = f"""{PODS}
    SELECT
        id, first_ms AS submit_ms,
        CASE WHEN NOT started THEN last_ms - first_ms WHEN still_there THEN {FOREVER_MS} ELSE work_ms END AS work_ms,
        CASE WHEN started OR still_there THEN NULL ELSE last_ms - first_ms END AS patience_ms,
        application, virtual_cluster, gpus, share_milli, cpu_milli, priority, gpu_model AS models
    FROM pods ORDER BY first_ms, id
"""
RECORDS: Final = f"""{PODS}
    SELECT
        id AS job_id, 1 AS attempt, '' AS "user", application, virtual_cluster,
        first_ms AS submit_ms, first_ms AS queued_ms,
        CASE WHEN started THEN first_ms + delay_ms END AS start_ms,
        CASE WHEN started THEN first_ms + delay_ms + work_ms ELSE last_ms END AS end_ms,
        CASE state WHEN 'Succeeded' THEN 'completed' WHEN 'Failed' THEN 'failed' ELSE 'cancelled' END AS state,
        gpus, share_milli, 0 AS share_mem_mib, cpu_milli, 0 AS mem_mib,
        CASE WHEN started THEN [server] ELSE [] END AS nodes, gpu_model,
        CASE WHEN started THEN work_ms END AS work_ms,
        gpu_use_mean, NULL::DOUBLE AS gpu_use_peak,
        gpu_mem_gib * 1024 / gpus / mem_mib AS gpu_mem_mean, NULL::DOUBLE AS gpu_mem_peak,
        cluster, priority
    FROM pods LEFT JOIN (VALUES {_CARDS}) AS cards(name, mem_mib) ON name = gpu_model
    WHERE NOT still_there
"""
"""Columns of berth's records; those that are absent are not known."""


def jobs_table(table: Table) -> Table:
    """The jobs of an open folder of hours, in order of submission, which takes its place."""
    assert isinstance(table, ParquetTable)  # only Parquet has partitions as columns
    return table.through(_JOBS)
