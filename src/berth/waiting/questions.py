"""Jobs as questions of how long they will wait: what was known of them, and of the queue, when they asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import duckdb
import numpy as np
from numpy.typing import NDArray

from berth.history.importing.pending import Queued
from berth.history.store.record_files import SCHEMA

Floats = NDArray[np.float64]

Categories = Mapping[str, tuple[str, ...]]
"""The values of each text in the order in which they first appeared: the code of one is its place."""

_TEXTS: Final = ("user", "account", "virtual_cluster", "application", "qos")


def categories_of(database: duckdb.DuckDBPyConnection) -> Categories:
    """The texts of the view `records`, in the order of the first submission that has them."""
    return {
        name: tuple(
            row[0]
            for row in database.execute(
                f'SELECT "{name}" FROM records GROUP BY 1 ORDER BY min(queued_ms), 1'
            ).fetchall()
        )
        for name in _TEXTS
    }


def live_features(
    database: duckdb.DuckDBPyConnection,
    queue: Sequence[Queued],
    now_ms: int,
    categories: Categories | None = None,
) -> tuple[dict[str, Floats], Floats, Floats, Floats]:
    """Features, moments, waits, and the place in the queue (−1 for an attempt of the history) of every question (N,).

    They are in order of time. The history and the whole queue tell of each moment, and nothing that is known only once
    a job has its place, such as the model of its GPUs. Of a job that runs or waits at `now_ms` nothing later is known;
    the wait of one that waits is infinite, of an attempt that never started NaN. A text that no category has is NaN.
    """
    known = categories_of(database) if categories is None else categories
    for name in _TEXTS:
        places = np.arange(len(known[name]), dtype=np.float64)
        words = np.empty(len(known[name]), dtype=object)
        words[:] = known[name]
        database.register(f"words_{name}", {"word": words, "code": places})
        database.execute(
            f"CREATE OR REPLACE TEMP TABLE category_{name} AS SELECT word::VARCHAR AS word, code FROM words_{name}"
        )
        database.unregister(f"words_{name}")
    codes = ", ".join(f'category_{name}.code AS "{name}"' for name in _TEXTS)
    joins = " ".join(f'LEFT JOIN category_{name} ON category_{name}.word = r."{name}"' for name in _TEXTS)
    numbers = "gpus * share_milli / 1000.0 AS gpus, mem_mib, time_limit_ms"
    row = f"{codes}, {numbers}, queued_ms, start_ms, end_ms"
    columns = (*_TEXTS, "gpus", "share_milli", "mem_mib", "time_limit_ms")
    query = f"SELECT {row}, -1 AS place FROM records r {joins}"
    if queue:
        kinds = ", ".join(
            f'"{name}" {SCHEMA[name]}' for name in (*columns, "queued_ms", "start_ms", "end_ms")
        )
        database.execute(f"CREATE TEMP TABLE queue ({kinds}, place INTEGER)")
        marks = ", ".join("?" * (len(columns) + 4))
        rows = [
            [*(getattr(job, name) for name in columns), job.queued_ms, job.start_ms, now_ms + 1, place]
            for place, job in enumerate(queue)
        ]
        database.executemany(f"INSERT INTO queue VALUES ({marks})", rows)
        query += f" UNION ALL SELECT {row}, place FROM queue r {joins}"
    found = database.execute(
        f'SELECT * FROM ({query}) ORDER BY queued_ms, end_ms, "user", gpus, place'
    ).fetchnumpy()
    data = {name: _plain(column) for name, column in found.items()}
    queued, start, end, places = (data.pop(name) for name in ("queued_ms", "start_ms", "end_ms", "place"))
    began = np.where(np.isnan(start), end, start)  # one that never started left the queue when it ended
    features = dict(data)
    features["hour"] = queued % 86_400_000 / 3_600_000
    features["weekday"] = (queued // 86_400_000 + 4) % 7
    for name, group in (
        ("all", np.zeros(len(queued))),
        ("user", np.nan_to_num(data["user"], nan=-1.0)),
        ("account", np.nan_to_num(data["account"], nan=-1.0)),
        ("server", np.nan_to_num(data["virtual_cluster"], nan=-1.0)),
    ):
        for what, weight in (("jobs", np.ones(len(queued))), ("gpus", data["gpus"])):
            features[f"waiting_{what}_{name}"] = _between(group, queued, began, weight, queued)
            features[f"running_{what}_{name}"] = _between(group, began, end, weight, queued)
    waits = np.where((places >= 0) & np.isnan(start), np.inf, (start - queued) / 1000)
    return features, queued / 1000, waits, places


def _plain(column: Any) -> Floats:
    return np.asarray(np.ma.filled(np.ma.asarray(column, np.float64), np.nan))


def _between(group: Floats, begin: Floats, end: Floats, weight: Floats, at: Floats) -> Floats:
    """For each row (N,) the weight of its group's rows that had begun before its moment and not ended by then."""
    codes = np.unique(group, return_inverse=True)[1].astype(np.float64)
    span = max(float(end.max(initial=0.0) - begin.min(initial=0.0)), 1.0) * 2
    low = float(begin.min(initial=0.0))

    def up_to(moments: Floats, side: str) -> Floats:
        place = codes * span + (moments - low)
        order = np.argsort(place, kind="stable")
        sums = np.concatenate(([0.0], np.cumsum(weight[order])))
        return np.asarray(sums[np.searchsorted(place[order], codes * span + (at - low), side=side)])  # type: ignore[call-overload]

    return np.asarray(up_to(begin, "left") - up_to(np.maximum(begin, end), "right") * 1.0).clip(min=0.0)
