"""A table of jobs that were polled while they waited, such as that of DRAC's Graham, as questions of their waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
from numpy.typing import NDArray

from berth.errors import HistoryError
from berth.history.store.database import first_line, read_parquet
from berth.waiting import Questions

Floats = NDArray[np.float64]

LEAKS: Final = frozenset(
    (
        *("start_time", "end_time", "state", "submit_wait_sec", "eligible_wait_sec", "elapsed_time"),
        *("run_time_sec", "alloc_nodes", "priority_x", "poll_wait_sec"),
        *(f"q_{of}{what}_run_hours" for of in ("", "p_", "a_", "p_a_") for what in ("core", "gpu")),
    )
)
"""Columns of a table of polled jobs that only the future knows.

The run hours sum how long the jobs ahead in the queue ran in the end. The authors of Graham's table drop those of
cores, too.
"""

_NO_FEATURE: Final = frozenset(
    (
        *("poll_time", "submit_time", "eligible_time", "snapshot_date", "req_tres", "job_unique_id"),
        *("pending_id", "running_id", "sshare_id", "cluster_id"),
    )
)
_NEEDED: Final = (
    "poll_time",
    "submit_time",
    "eligible_time",
    "poll_wait_sec",
    "req_tres",
    "account_id",
    "time_limit_sec",
)
_TRES: Final = ("billing", "cpu", "gres/gpu", "node")


def polled_features(path: Path) -> tuple[dict[str, Floats], Floats, Floats]:
    """A table of pending jobs at the moments of a poll: features (N,) by name, moments, waits; in order of time.

    What was still to come at the poll, such as a time of eligibility that lies behind it, is not used.
    """
    with duckdb.connect() as database:
        try:
            table = read_parquet([path])
            columns = [row[0] for row in database.execute(f"DESCRIBE SELECT * FROM {table}").fetchall()]
            if lacking := [name for name in _NEEDED if name not in columns]:
                raise HistoryError(
                    f"{path} has no column {', '.join(lacking)}, which a table of polled jobs has"
                )
            numbers = [name for name in columns if name not in LEAKS and name not in _NO_FEATURE]
            tres = ", ".join(
                f"try_cast(regexp_extract(req_tres, '(?:^|,){name}=(\\d+)', 1) AS DOUBLE) AS \"t_{name}\""
                for name in _TRES
            )
            seconds = ", ".join(
                f"epoch(try_cast({name} AS TIMESTAMP)) AS {name}_s"
                for name in ("poll_time", "submit_time", "eligible_time")
            )
            chosen = ", ".join(f'try_cast("{name}" AS DOUBLE) AS "{name}"' for name in numbers)
            found = database.execute(
                f"SELECT {chosen}, {tres}, {seconds}, poll_wait_sec::DOUBLE AS wait, hash(req_tres) AS shape, "
                f"account_id AS account FROM {table} ORDER BY poll_time_s, submit_time_s, hash(req_tres, account_id)"
            ).fetchnumpy()
        except duckdb.Error as error:
            raise HistoryError(f"{path} cannot be read: {first_line(error)}") from error
    data = {name: _plain(column) for name, column in found.items() if name not in ("shape", "account")}
    asked, submitted, eligible = (
        data.pop(f"{name}_s") for name in ("poll_time", "submit_time", "eligible_time")
    )
    wait = data.pop("wait")
    features = {name: np.where(np.isfinite(column), column, np.nan) for name, column in data.items()}
    features["age_s"] = asked - submitted
    was = eligible <= asked
    features["is_eligible"] = was.astype(np.float64)
    features["eligible_for_s"] = np.where(was, asked - eligible, -1.0)
    features["hour_submitted"] = submitted % 86_400 / 3600
    features["weekday"] = (asked // 86_400 + 4) % 7
    account, shape = np.asarray(found["account"]), np.asarray(found["shape"])
    limit = data["time_limit_sec"]
    groups: dict[str, tuple[NDArray[Any], ...]] = {
        "all": (),
        "account": (account,),
        "same_request": (account, shape, limit),
        "same_burst": (account, shape, limit, submitted),
    }
    if "partition_id_x" in data:
        groups |= {
            "partition": (data["partition_id_x"],),
            "account_partition": (account, data["partition_id_x"]),
        }
    for name, keys in groups.items():
        features[f"asking_{name}"], features[f"asking_before_{name}"] = _company((asked, *keys), submitted)
    return features, asked, wait


def _company(keys: tuple[NDArray[Any], ...], order: Floats) -> tuple[Floats, Floats]:
    """For each row (N,) how many have the same keys, and how many of those come before it in an order."""
    codes = np.zeros(len(order), np.int64)
    for key in keys:
        codes = np.unique(
            codes * (len(order) + 1) + np.unique(key, return_inverse=True)[1], return_inverse=True
        )[1]
    counts = np.bincount(codes)
    by_group = np.lexsort((order, codes))
    before = np.empty(len(order))
    before[by_group] = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    return counts[codes].astype(np.float64), before


def _plain(column: Any) -> Floats:
    return np.asarray(np.ma.filled(np.ma.asarray(column, np.float64), np.nan))


def questions_of(path: Path) -> Questions:
    """The questions of such a table."""
    features, moments, waits = polled_features(path)
    names = tuple(sorted(features))
    return Questions(names, np.column_stack([features[name] for name in names]), moments, waits, {})
