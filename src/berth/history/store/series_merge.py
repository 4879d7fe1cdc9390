"""Values of GPU series into the history, and which hours of which GPUs they say something new of.

HISTORY/series/*.parquet    a row a value, in the columns of SERIES; where several files have one, the largest counts

`ROWS_OF_HOURS` is what the series of GPUs say of the jobs that had them, hour by hour, as SQL. The rows of an hour
follow from the values of that hour and of those next to it alone, so that they are the same however the series came in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import duckdb

from berth.history.store.database import at, copy_rows, count, literal, read_parquet

SERIES: Final = {
    "cluster": "VARCHAR",
    "node": "VARCHAR",
    "gpu": "VARCHAR",
    "job_id": "VARCHAR",
    "metric": "VARCHAR",
    "moment_ms": "BIGINT",
    "value": "DOUBLE",
}
_KEY: Final = "cluster, node, gpu, job_id, metric, moment_ms"
_GPU: Final = "cluster, node, gpu"
_HOURS_AT_ONCE: Final = 256
"""Hours of GPUs whose values are in memory together, with those of the hours next to them."""


class SeriesMerge:
    """One merge of staged values into those of some files; the tables live in the database that it was given."""

    fresh: Final = f"SELECT {', '.join(SERIES)} FROM fresh"
    """A query of the values that are new or larger than they were."""

    def __init__(self, database: duckdb.DuckDBPyConnection, staged: Path, files: Sequence[Path]) -> None:
        self._database = database
        self.read = count(database, f"SELECT count(*) FROM read_parquet({at(staged)})")
        database.execute(
            f"CREATE TABLE staged AS SELECT {_KEY}, max(value) AS value FROM read_parquet({at(staged)}) GROUP BY ALL"
        )
        # Values before and after an hour tell of it, so those of two hours more are looked at on both sides.
        far = 2 * HOUR_MS
        database.execute(
            f"CREATE TABLE known AS SELECT {_KEY}, max(value) AS value FROM {read_parquet(files, SERIES)} "
            f"SEMI JOIN staged USING ({_GPU}) "
            f"WHERE moment_ms >= (SELECT min(moment_ms) // {HOUR_MS} * {HOUR_MS} - {far} FROM staged) "
            f"AND moment_ms < (SELECT (max(moment_ms) // {HOUR_MS} + 1) * {HOUR_MS} + {far} FROM staged) "
            "GROUP BY ALL"
        )
        database.execute(
            f"CREATE TABLE fresh AS SELECT s.*, k.value IS NOT NULL AS was_there FROM staged s "
            f"LEFT JOIN known k USING ({_KEY}) WHERE k.value IS NULL OR s.value > k.value"
        )
        self.changed = count(database, "SELECT count(*) FROM fresh WHERE was_there")
        self.new = count(database, "SELECT count(*) FROM fresh") - self.changed
        database.execute(
            f"CREATE TABLE hours AS SELECT DISTINCT {_GPU}, moment_ms // {HOUR_MS} + away AS hour "
            "FROM fresh, (VALUES (-1), (0), (1)) t(away)"
        )

    def sources(self) -> tuple[str, ...]:
        """The sources of all rows that are to be made anew, of some of which there are none."""
        return tuple(name for (name,) in self._database.execute(f"SELECT {SOURCE} FROM hours").fetchall())

    def write_rows(self, target: Path) -> None:
        """Write the rows of usage of every hour that the new values say something of."""
        self._database.execute(
            f"CREATE TABLE numbered_hours AS SELECT *, row_number() OVER (ORDER BY {_GPU}, hour) - 1 AS slot, "
            f"dense_rank() OVER (ORDER BY {_GPU}) AS card FROM hours"
        )
        self._database.execute(
            f"CREATE TABLE every AS {OF_KINDS} FROM (SELECT {_KEY}, max(value) AS value "
            f"FROM (FROM staged UNION ALL FROM known) GROUP BY ALL) JOIN kinds USING (metric) "
            f"JOIN (SELECT DISTINCT {_GPU}, card FROM numbered_hours) USING ({_GPU}) GROUP BY ALL ORDER BY card, ms"
        )
        for first in range(0, max(count(self._database, "SELECT count(*) FROM hours"), 1), _HOURS_AT_ONCE):
            among = f"slot BETWEEN {first} AND {first + _HOURS_AT_ONCE - 1}"
            self._database.execute(f"CREATE OR REPLACE TABLE some_hours AS FROM numbered_hours WHERE {among}")
            self._database.execute(
                f"{'INSERT INTO made' if first else 'CREATE TABLE made AS'} {ROWS_OF_HOURS}"
            )
        self._database.execute(f"COPY made TO {literal(target)} (FORMAT parquet)")


def copy_series(database: duckdb.DuckDBPyConnection, query: str, target: Path) -> None:
    """Write values to a file, those of one hour and GPU together."""
    copy_rows(database, f"FROM ({query}) ORDER BY moment_ms // {HOUR_MS}, {_KEY}", target)


def all_values(files: Iterable[Path]) -> str:
    """The values of some files as a table, each once."""
    return f"(SELECT {_KEY}, max(value) AS value FROM {read_parquet(files)} GROUP BY ALL)"


HOUR_MS: Final = 3_600_000
LONGEST_STEP_MS: Final = 600_000
"""A value counts until the next one, but no longer than twice the usual step of its GPU, nor than this."""
LONE_STEP_MS: Final = 15_000
"""The step of series that have one value."""

JOB: Final = "nvidia_gpu_jobId"
METRICS: Final = {
    "DCGM_FI_DEV_GPU_UTIL": ("use", 0.01),
    "nvidia_gpu_duty_cycle": ("use", 0.01),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": ("use", 1.0),
    "DCGM_FI_PROF_SM_ACTIVE": ("sm", 1.0),
    "DCGM_FI_DEV_FB_USED": ("used", 1.0),
    "nvidia_gpu_memory_used_bytes": ("used", 1 / 2**20),
    "DCGM_FI_DEV_FB_FREE": ("free", 1.0),
    "DCGM_FI_DEV_FB_TOTAL": ("total", 1.0),
    "nvidia_gpu_memory_total_bytes": ("total", 1 / 2**20),
    "DCGM_FI_DEV_POWER_USAGE": ("power", 1.0),
    "nvidia_gpu_power_usage_milliwatts": ("power", 1e-3),
    JOB: ("job", 1.0),
}
"""What each metric measures, and what makes a fraction, MiB or W of its values; of two that measure the same at one
moment, the first counts."""
MOST: Final = {name: 1 / factor for name, (kind, factor) in METRICS.items() if kind in ("use", "sm")}
"""The largest value of the metrics that have one."""

_KINDS: Final = ", ".join(
    f"('{name}', '{kind}', {factor!r}::DOUBLE, {rank})"
    for rank, (name, (kind, factor)) in enumerate(METRICS.items())
)
_COLUMNS: Final = ", ".join(
    f"any_value(value) FILTER (kind = '{kind}') AS {kind}"
    for kind in dict.fromkeys(kind for kind, _ in METRICS.values())
)
_TRACK: Final = "slot, label, kind"
_STEPS: Final = f"SELECT *, ms - lag(ms) OVER (PARTITION BY {_TRACK} ORDER BY ms) AS step FROM"


def _mean(name: str) -> str:
    """The mean of what is known, times all the time; a moment without a value says nothing."""
    known = f"nullif(sum(lasts) FILTER ({name} IS NOT NULL), 0)"
    return f"sum({name} * lasts ORDER BY ms) * sum(lasts) / {known}"


SOURCE: Final = "concat_ws('/', nullif(cluster, ''), node, gpu, hour)"
"""What the rows of a GPU's hour have as their source."""

OF_KINDS: Final = f"""
    WITH kinds AS (FROM (VALUES {_KINDS}) AS t(metric, kind, factor, rank))
    SELECT card, moment_ms // {HOUR_MS} AS within, job_id AS label, kind, moment_ms AS ms,
        arg_min(value * factor, rank) AS value
"""
"""What values are of, each once; to be selected from values, `kinds` and the numbers of GPUs."""

ROWS_OF_HOURS: Final = f"""
    WITH next_to AS (
        SELECT card, slot, away, hour + away AS within FROM some_hours, (VALUES (-1), (0), (1)) AS t(away)
    ),
    around AS (
        SELECT slot, label, kind, ms, value, away FROM every JOIN next_to USING (card, within)
    ),
    usuals AS (
        SELECT slot, least(coalesce(floor(median(step))::BIGINT, {LONE_STEP_MS}), {LONGEST_STEP_MS}) AS usual
        FROM ({_STEPS} around WHERE kind <> 'job') GROUP BY ALL
    ),
    labels AS (SELECT DISTINCT slot, label FROM around WHERE label <> ''),
    -- What came without a job's name fills what came with it.
    nameless AS (
        SELECT slot, labels.label, kind, ms, value, away FROM around JOIN labels USING (slot)
        WHERE around.label = '' AND kind <> 'job'
    ),
    tracks AS (FROM around UNION ALL FROM nameless ANTI JOIN around USING ({_TRACK}, ms)),
    lasting AS (FROM tracks WHERE kind IN ('free', 'total', 'job')),
    reaches AS (
        SELECT {_TRACK}, coalesce(floor(median(step)), 0) AS own,
            least(2 * greatest(own, any_value(usual)), {LONGEST_STEP_MS}) AS reach
        FROM ({_STEPS} lasting) JOIN usuals USING (slot) GROUP BY ALL
    ),
    reaching AS (SELECT {_TRACK}, ms, ms AS since, value, reach FROM lasting JOIN reaches USING ({_TRACK})),
    -- Of the next hour the first one alone, which tells how long the last of this hour lasts.
    moments AS (
        SELECT DISTINCT slot, label, ms FROM around WHERE kind <> 'job' AND away = 0
        UNION ALL SELECT slot, label, min(ms) FROM around WHERE kind <> 'job' AND away = 1 GROUP BY ALL
    ),
    -- The memory that there is, and the job that has the GPU, count until they are sent anew.
    last_known AS (
        SELECT {_TRACK}, ms, CASE WHEN ms - since <= reach THEN value END AS value
        FROM (FROM moments CROSS JOIN (VALUES ('free'), ('total'), ('job')) AS t(kind))
        ASOF JOIN reaching USING ({_TRACK}, ms)
    ),
    sent AS (FROM tracks SEMI JOIN moments USING (slot, label, ms) WHERE kind NOT IN ('free', 'total', 'job')),
    seen AS (
        SELECT slot, label, ms, {_COLUMNS} FROM (FROM sent UNION ALL BY NAME FROM last_known) GROUP BY ALL
    ),
    held AS (
        SELECT *, lead(ms) OVER (PARTITION BY slot, label ORDER BY ms) - ms AS step,
            least(coalesce(step, usual), 2 * usual, {LONGEST_STEP_MS}) AS lasts,
            CASE WHEN label <> '' THEN label WHEN job > 0 THEN try_cast(trunc(job) AS HUGEINT)::VARCHAR END AS job_id,
            coalesce(total, used + free) AS whole, CASE WHEN whole > 0 AND used <= whole THEN used / whole END AS mem
        FROM seen JOIN usuals USING (slot) JOIN some_hours USING (slot)
    ),
    -- Where nothing was seen of a job for long, it was another attempt.
    runs AS (
        SELECT *, count(*) FILTER (apart) OVER (PARTITION BY slot, job_id ORDER BY ms) AS run FROM (
            SELECT *, ms - lag(ms) OVER (PARTITION BY slot, job_id ORDER BY ms) > 2 * usual AS apart FROM held
            WHERE ms // {HOUR_MS} = hour AND job_id IS NOT NULL
            AND (label <> '' OR (slot, job_id) NOT IN (SELECT (slot, label) FROM labels)))
    )
    -- Each GPU has rows of its own, so the time that the job was watched for is in those of its GPUs alone.
    SELECT 'series' AS kind, {SOURCE} AS source, node, cluster, job_id, min(ms) AS begin_ms, max(ms + lasts) AS end_ms,
        count(*) AS samples, 0.0::DOUBLE AS watched_ms, sum(lasts)::DOUBLE AS gpu_ms, {_mean("use")} AS use_ms,
        {_mean("mem")} AS mem_ms, {_mean("sm")} AS sm_ms, NULL::DOUBLE AS pcie_kb, {_mean("power")} / 1000 AS energy_j,
        max(use) AS use_peak, max(mem) AS mem_peak
    FROM runs GROUP BY slot, cluster, node, gpu, hour, job_id, run
"""
"""The rows of usage of the GPUs and hours in `some_hours`, each by its number `slot`, by the values in `every`.

A GPU has the number `card` in both, and the values of `every` lie within an hour.
"""
