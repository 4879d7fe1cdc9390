"""Tables of a history by SQL: use, waits and distributions of millions of records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

import duckdb
import numpy as np
from numpy.typing import NDArray

from berth.history.values.causes import cause_after, cause_before
from berth.statistics.accounting import (
    DIMENSION_SQL,
    NOTHING_USED,
    UNKNOWN,
    USES,
    Usage,
    check_dimensions,
    keys_of,
)
from berth.statistics.attempts import (
    HELD_SQL,
    READY_SQL,
    VARIABLE_SQL,
    WAIT_SQL,
    WASTED_SQL,
    Attempt,
    Picked,
    Waited,
    attempts_query,
    conditions_of,
)
from berth.statistics.cost import Held
from berth.statistics.spread import CDF_POINTS, Cdf, cdf_of_counts

HOUR = 3_600_000.0

_RAN: Final = "greatest(coalesce(end_ms - start_ms - coalesce(suspended_ms, 0), 0), 0)"
"""Run time in ms without what a job was suspended for, as sacct counts it, and sreport for CPUs."""
_SUMS: Final = (
    f"sum({HELD_SQL}) AS held",
    f"sum({_RAN}) AS ran",
    f"sum(CASE WHEN {WASTED_SQL} THEN {HELD_SQL} END) AS wasted",
    f"sum(CASE WHEN gpu_use_mean IS NOT NULL THEN {HELD_SQL} END) AS measured",
    f"sum({HELD_SQL} * (1 - gpu_use_mean)) AS idle",
    f"sum(CASE WHEN cpu_milli > 0 AND {_RAN} > 0 THEN cpu_used_ms END) AS cpu_used",
    f"sum(CASE WHEN cpu_used_ms IS NOT NULL THEN {_RAN} * cpu_milli END) AS cpu_held",
    f"sum(CASE WHEN mem_mib > 0 THEN mem_peak_mib::HUGEINT * {_RAN} END) AS mem_used",
    f"sum(CASE WHEN mem_peak_mib IS NOT NULL THEN mem_mib::HUGEINT * {_RAN} END) AS mem_held",
)
_SUM_NAMES: Final = tuple(each.rpartition(" AS ")[2] for each in _SUMS)


def _usage_of(keys: Sequence[object], jobs: int, users: int, sums: Sequence[Any]) -> Usage:
    """A group by its sums, in the order of _SUMS."""
    held, ran, wasted, measured, idle, cpu, cpu_held, mem, mem_held = (float(each or 0) for each in sums)
    gpu_hour, gib_hour = HOUR * 1000, HOUR * 1024
    return Usage(
        *(tuple(map(str, keys)), held / gpu_hour, ran / HOUR, jobs, users),
        wasted_gpu_hours=wasted / gpu_hour,
        measured_gpu_hours=measured / gpu_hour,
        idle_gpu_hours=idle / gpu_hour,
        cpu_hours=cpu / HOUR,
        cpu_held_hours=cpu_held / HOUR / 1000,
        mem_gib_hours=mem / gib_hour,
        mem_held_gib_hours=mem_held / gib_hour,
    )


@dataclass(frozen=True, slots=True)
class Period:
    """Which tries are looked at: those that ended from `begin_ms` on and before `end_ms`."""

    begin_ms: int | None = None
    end_ms: int | None = None
    only: tuple[tuple[str, str], ...] = ()
    """Dimensions and the one value that is looked at."""


EVERYTHING: Final = Period()


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals(Usage):
    """A period in a few numbers, and what it used as one group; None where there is nothing to tell it from."""

    tries: int
    multi_node_share: float | None
    """Of the tries that started."""
    first_ms: int | None
    last_ms: int | None
    wait_s: tuple[float | None, float | None, float | None, float | None]
    """Median, 90th and 99th percentile, longest."""
    run_s: tuple[float | None, float | None, float | None, float | None]
    slowdown: tuple[float | None, float | None, float | None, float | None]
    """Of tries' time in the system over their run time, which counts as 10 s where it is less."""

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {name: value for name, value in asdict(self).items() if name not in _NO_TOTALS}


_NO_TOTALS: Final = ("keys", "cpu_hours", "cpu_held_hours", "mem_gib_hours", "mem_held_gib_hours")
"""Fields of a group that tell nothing of a whole period."""


@dataclass(frozen=True, slots=True)
class JobUse:
    """One job and what it used, all its attempts together; its name for people is the key of `use`."""

    cluster: str
    user: str
    application: str
    state: str
    """Of its last attempt."""
    attempts: int
    use: Usage


_BY_JOB: Final = {
    "gpu-hours": "held",
    "run-hours": "ran",
    "jobs": "count(*)",
    "idle-gpu-hours": "idle",
    "failed-gpu-hours": "wasted",
    "gpu-use": "-idle / nullif(measured, 0)",
    "cpu-use": "cpu_used / nullif(cpu_held, 0)",
    "mem-use": "mem_used / nullif(mem_held, 0)",
}


class Tables:
    """Tables of one period; the database has a view `records`."""

    def __init__(self, database: duckdb.DuckDBPyConnection, period: Period = EVERYTHING) -> None:
        self._database = database
        self._period = period
        check_dimensions([name for name, _ in period.only])
        conditions = ["true"]
        self._values: list[Any] = []
        if period.begin_ms is not None:
            conditions.append(f"end_ms >= {int(period.begin_ms)}")
        if period.end_ms is not None:
            conditions.append(f"end_ms < {int(period.end_ms)}")
        for name, value in period.only:
            conditions.append(f"{DIMENSION_SQL[name]} = ?")
            self._values.append("" if value == UNKNOWN else value)
        several = database.execute("SELECT max(attempt) > 1 FROM records").fetchone()
        self._several = bool(several and several[0])
        self._from = f"FROM records WHERE {' AND '.join(conditions)}"

    def of(self, begin_ms: int, end_ms: int) -> Tables:
        """The tables of another time, with the same conditions."""
        return Tables(self._database, Period(begin_ms, end_ms, self._period.only))

    def where(self, dimension: str, value: str) -> Tables:
        """The tables of the same time, under one condition more."""
        only = (*self._period.only, (dimension, value))
        return Tables(self._database, Period(self._period.begin_ms, self._period.end_ms, only))

    def _all(self, query: str, *more: Any) -> list[tuple[Any, ...]]:
        return self._database.execute(query, [*self._values, *more]).fetchall()

    def usage(self, by: Sequence[str]) -> list[Usage]:
        """Use of each group, most GPU-hours first, then by name."""
        return self.usages(by)[0]

    def usages(self, *groupings: Sequence[str]) -> list[list[Usage]]:
        """The use of each group by several groupings, as `usage` gives it, of one pass over the attempts."""
        keys = list(dict.fromkeys(name for by in groupings for name in by))
        keyed = keys_of(keys)[0]
        # By user, too: counting distinct users of each group would cost three times as much.
        columns = ", ".join([*keyed, '"user" AS u', *_SUMS, "count(*) AS tries"])
        self._database.execute(
            f"CREATE OR REPLACE TEMP TABLE usage_sums AS SELECT {columns} {self._from} GROUP BY ALL",
            self._values,
        )
        # Counting distinct jobs costs even more, and so those with several attempts alone are told apart.
        columns = ", ".join([*keyed, "(cluster, job_id) AS job"])
        again = (
            "job IN (SELECT (cluster, job_id) FROM records WHERE attempt > 1)" if self._several else "false"
        )
        self._database.execute(
            f"CREATE OR REPLACE TEMP TABLE usage_again AS SELECT {columns} {self._from} AND {again}",
            self._values,
        )
        try:
            return [
                self._usage(by, [f"k{keys.index(name)} AS k{at}" for at, name in enumerate(by)])
                for by in groupings
            ]
        finally:
            self._database.execute("DROP TABLE usage_sums; DROP TABLE usage_again")

    def _usage(self, by: Sequence[str], chosen: Sequence[str]) -> list[Usage]:
        """Use of each group, of the tables that `usages` makes; `chosen` are their columns that are its keys."""
        named = keys_of(by)[1]
        groups = "".join(f"k{at}, " for at in range(len(by)))
        added = [f"sum({name}) AS {name}" for name in (*_SUM_NAMES, "tries")]
        inner = f"SELECT {', '.join([*chosen, 'u', *added])} FROM usage_sums GROUP BY ALL"
        sums = [*(f"sum({name})" for name in (*_SUM_NAMES, "tries")), "count(*) FILTER (tries > 0)"]
        rows = self._database.execute(
            f"SELECT {', '.join([*named, *sums])} FROM ({inner}) GROUP BY {groups}true"
        ).fetchall()
        inner = f"SELECT {', '.join([*chosen, 'count(*) - count(DISTINCT job) AS n'])} FROM usage_again GROUP BY ALL"
        again = self._database.execute(f"SELECT {', '.join([*named, 'n'])} FROM ({inner})").fetchall()
        twice = {row[:-1]: row[-1] for row in again}
        found = []
        for row in rows:
            keys, (*sums, tries, users) = row[: len(by)], row[len(by) :]
            found.append(_usage_of(keys, int(tries or 0) - twice.get(keys, 0), users, sums))
        return sorted((row for row in found if row.jobs), key=lambda row: (-row.gpu_hours, row.keys))

    def held(self, by: Sequence[str]) -> list[Held]:
        """What each group held of each GPU model, for a price list; attempts that never started hold nothing."""
        keys, named = keys_of(by)
        groups = ", ".join([*(f"k{at}" for at in range(len(by))), "model"])
        rows = self._all(
            f"SELECT {', '.join([*named, 'model', 'held', 'cpus', 'energy'])} FROM (SELECT "
            f"{', '.join([*keys, 'gpu_model AS model'])}, sum({HELD_SQL}) AS held, "
            f"sum(nullif({_RAN} * cpu_milli, 0)) AS cpus, "
            f"sum(energy_j) AS energy {self._from} AND start_ms IS NOT NULL GROUP BY {groups}) ORDER BY ALL"
        )
        return [
            Held(
                tuple(str(key) for key in row[: len(by)]),
                row[-4],
                float(row[-3] or 0) / HOUR / 1000,
                None if row[-2] is None else float(row[-2]) / HOUR / 1000,
                None if row[-1] is None else float(row[-1]) / 3_600_000,
            )
            for row in rows
        ]

    def jobs(self, measure: str, most: int) -> list[JobUse]:
        """The jobs that are first by a measure: the largest, of a use the least; what was not measured is left out."""
        order = _BY_JOB[measure]
        rows = self._all(
            'SELECT cluster, job_id, arg_max(label, attempt), arg_max("user", attempt), '
            "arg_max(application, attempt), arg_max(state, attempt), count(*), "
            f"{', '.join(_SUMS)} {self._from} GROUP BY cluster, job_id HAVING {order} IS NOT NULL "
            f"ORDER BY {order} {'ASC' if measure in USES else 'DESC'}, held DESC NULLS LAST, cluster, job_id LIMIT ?",
            most,
        )
        found = []
        for cluster, job, label, user, application, state, tries, *sums in rows:
            use = _usage_of([label or job], 1, 1, sums)
            found.append(JobUse(cluster, user, application or UNKNOWN, state, tries, use))
        return found

    def span(self) -> tuple[int | None, int | None]:
        """The first submission and the last end, in ms since 1970; None of an empty period."""
        row = self._all(f"SELECT min(queued_ms), max(end_ms) {self._from}")[0]
        return row[0], row[1]

    def waits_and_all(self, by: Sequence[str]) -> tuple[list[Waited], Waited | None]:
        """How long the attempts of each group waited, the longest median first, then by name; and all attempts as one
        group, None if none has started."""
        keys, named = keys_of(by)
        groups = ", ".join(f"k{at}" for at in range(len(keys)))
        whole, sets = (
            (f"grouping({groups}) > 0", f"GROUP BY GROUPING SETS (({groups}), ())") if by else ("true", "")
        )
        spread = f"quantile_cont({WAIT_SQL}, [0.5, 0.9]) AS middle, avg({WAIT_SQL}) AS mean, max({WAIT_SQL}) AS longest"
        rows = self._all(
            f"SELECT {', '.join([*named, 'whole, n, middle[1], middle[2], mean, longest'])} FROM (SELECT "
            f"{', '.join([*keys, f'{whole} AS whole, count(*) AS n', spread])} "
            f"{self._from} AND start_ms IS NOT NULL {sets})"
        )
        found, everything = [], None
        for *names, whole, started, median, p90, mean, longest in rows:
            if started:
                waits_s = (each / 1000 for each in (median, p90, mean, longest))
                waited = Waited(() if whole else tuple(map(str, names)), started, *waits_s)
                if whole:
                    everything = waited
                else:
                    found.append(waited)
        return sorted(found, key=lambda each: (-each.median_s, each.keys)), everything

    def attempts(self, picked: Picked, most: int, skip: int = 0) -> tuple[int, list[Attempt]]:
        """How many attempts were picked, and `most` of them after the first `skip`, in the order that was asked for."""
        count = int(self._all(f"SELECT count(*) {self._from} AND {conditions_of(picked)}")[0][0])
        if count <= skip:
            return count, []
        page = f"{attempts_query(self._from, picked)} LIMIT {int(most)} OFFSET {int(skip)}"
        return count, [Attempt(*row) for row in self._all(page)]

    def totals(self) -> Totals:
        """The whole period."""
        slow = f"greatest(1.0, (end_ms - {READY_SQL}) / greatest(end_ms - start_ms, 10000.0))"
        spread = ", ".join(
            f"quantile_cont({what}, [0.5, 0.9, 0.99, 1.0]) FILTER (start_ms IS NOT NULL)"
            for what in (f"{WAIT_SQL} / 1000.0", "(end_ms - start_ms) / 1000.0", slow)
        )
        used = self.whole()
        row = self._all(
            "SELECT count(*), avg((node_count > 1)::INTEGER) FILTER (start_ms IS NOT NULL), min(queued_ms), "
            f"max(end_ms), {spread} {self._from}"
        )[0]
        nothing = (None, None, None, None)
        wait_s, run_s, slowdown = (tuple(each) if each else nothing for each in row[4:7])
        return Totals(
            **{field.name: getattr(used, field.name) for field in fields(used)},
            tries=row[0],
            multi_node_share=row[1],
            first_ms=row[2],
            last_ms=row[3],
            wait_s=wait_s,
            run_s=run_s,
            slowdown=slowdown,
        )

    def whole(self) -> Usage:
        """All of the period as one group."""
        one = self.usage(())
        return one[0] if one else NOTHING_USED

    def cdfs(self, applications: Sequence[str], points: int = CDF_POINTS) -> dict[str, dict[str, Cdf]]:
        """The empirical distributions of the six variables of some applications."""
        wanted = ["" if name == UNKNOWN else name for name in applications]
        found: dict[str, dict[str, Cdf]] = {name: {} for name in applications}
        for variable, value in VARIABLE_SQL.items():
            columns = self._database.execute(
                f"SELECT list_position(?, application) AS app, {value} AS value, count(*) AS number "
                f"{self._from} AND list_contains(?, application) AND {value} IS NOT NULL "
                "GROUP BY ALL ORDER BY app, value",
                [wanted, *self._values, wanted],
            ).fetchnumpy()
            app = np.asarray(columns["app"], np.int64)
            for at, name in enumerate(applications, 1):
                here = app == at
                if here.any():
                    found[name][variable] = cdf_of_counts(
                        np.asarray(columns["value"], np.float64)[here],
                        np.asarray(columns["number"], np.int64)[here],
                        points,
                    )
        return found

    def multi_node_shares(self) -> dict[str, float]:
        """For each application the share of its started tries that ran on two nodes or more."""
        rows = self._all(
            f"SELECT application, avg((node_count > 1)::INTEGER) {self._from} AND start_ms IS NOT NULL GROUP BY 1"
        )
        return {name or UNKNOWN: share for name, share in sorted(rows)}

    def waits_by_cause(self) -> dict[str, float]:
        """Hours from the submission of tries to their start, by cause.

        The part until a job could have started, which counts as no wait elsewhere, is its dependency's, its begin
        time's, a hold's or an array limit's; the rest, its wait, is that of resources, priority or a limit.
        """
        rows = self._all(
            f"SELECT wait_reason, sum({READY_SQL} - queued_ms), sum({WAIT_SQL}) {self._from} "
            "AND start_ms IS NOT NULL GROUP BY 1"
        )
        hours: dict[str, float] = {}
        for reason, before, after in rows:
            for cause, ms in ((cause_before(reason), before), (cause_after(reason), after)):
                if ms:
                    hours[cause] = hours.get(cause, 0.0) + ms / HOUR
        return dict(sorted(hours.items()))

    def daily_gpu_hours(self, by: str = "server") -> dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]]:
        """GPU-hours that each group held on each day, hours going to the day in which they passed.

        Days are numbers since 1970, in UTC.
        """
        check_dimensions([by])
        day = 24 * 3_600_000
        hours = f"(least(end_ms, (d + 1) * {day}) - greatest(start_ms, d * {day})) / {HOUR}"
        within = f"{hours} * gpus * share_milli / 1000"
        rows = self._all(
            f"SELECT k, d, sum({within}) FROM (SELECT {DIMENSION_SQL[by]} AS k, start_ms, end_ms, gpus, share_milli, "
            f"unnest(range(start_ms // {day}, (end_ms - 1) // {day} + 1)) AS d {self._from} "
            "AND start_ms IS NOT NULL AND gpus > 0 AND end_ms > start_ms) GROUP BY ALL ORDER BY k, d"
        )
        groups: dict[str, list[tuple[int, float]]] = {}
        for key, number, hours in rows:
            groups.setdefault(key or UNKNOWN, []).append((number, hours))
        return {
            key: (np.array([d for d, _ in each], np.int64), np.array([h for _, h in each], np.float64))
            for key, each in groups.items()
        }

    def heat(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Days (D,), as numbers since 1970, and the GPU-hours that ended on each."""
        rows = self._all(
            f"SELECT end_ms // {24 * 3_600_000} AS d, sum({HELD_SQL}) / {HOUR * 1000} {self._from} "
            "GROUP BY d ORDER BY d"
        )
        return np.array([d for d, _ in rows], np.int64), np.array([h or 0 for _, h in rows], np.float64)

    def lines(
        self, application: str | None, most: int = 500
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """At most about `most` tries (L, 6) of an application or of all, by their six variables, and for how many each
        stands.

        NaN if not measured. Up to that number, each stands for itself. Where there are more, the space of the
        variables, of hours the logarithm of their minutes, is cut into cells and one try stands for all of its cell:
        what is rare lies in a cell of its own and is never lost.
        """
        values = [f"({value})::DOUBLE AS v{at}" for at, value in enumerate(VARIABLE_SQL.values())]
        places = [f"ln(1 + 60 * v{at})" if at in (2, 3) else f"v{at}" for at in range(6)]
        names = () if application is None else ("" if application == UNKNOWN else application,)
        # Cells are counted again and again, and so what they are made of is read once.
        self._database.execute(
            f"CREATE OR REPLACE TEMP TABLE line_values AS SELECT {', '.join(values)} {self._from} "
            f"{'AND application = ? ' * len(names)}AND start_ms IS NOT NULL",
            [*self._values, *names],
        )
        limits = self._database.execute(
            f"SELECT count(*), {', '.join(f'max({place})' for place in places)} FROM line_values"
        ).fetchall()[0]
        if not limits[0]:
            return np.empty((0, 6)), np.empty(0, np.int64)
        if limits[0] <= most:
            found = self._database.execute("SELECT *, 1 AS n FROM line_values ORDER BY ALL").fetchnumpy()
            return _six(found), np.asarray(found["n"], np.int64)
        steps = 64
        while True:
            cells = ", ".join(
                f"CAST(round({place} / {float(most_there or 1)!r} * {steps}) AS INTEGER)"
                for place, most_there in zip(places, limits[1:], strict=True)
            )
            counted = self._database.execute(
                f"SELECT count(*) FROM (SELECT DISTINCT {cells} FROM line_values)"
            ).fetchall()[0][0]
            if counted <= most or steps <= 2:
                break
            steps = steps * 3 // 4
        picked = ", ".join(f"arg_min(v{at}, hash(v2, v3, v0, v1)) AS v{at}" for at in range(6))
        columns = self._database.execute(
            f"SELECT {picked}, count(*) AS n FROM line_values GROUP BY {cells} ORDER BY ALL"
        ).fetchnumpy()
        return _six(columns), np.asarray(columns["n"], np.int64)

    def unknown(self, limit: int) -> list[tuple[str, str, float, int]]:
        """Names and comments of jobs whose application no rule knows, with GPU-hours and tries; the most first."""
        rows = self._all(
            f"SELECT name, comment, sum({HELD_SQL}) / {HOUR * 1000} AS h, count(*) {self._from} AND application = '' "
            "GROUP BY name, comment ORDER BY h DESC, count(*) DESC, name, comment LIMIT ?",
            limit,
        )
        return [(name, comment, hours or 0.0, count) for name, comment, hours, count in rows]


def _six(columns: Mapping[str, Any]) -> NDArray[np.float64]:
    """The columns `v0` to `v5` as rows (L, 6), NaN for NULL."""
    return np.column_stack(
        [np.ma.filled(np.ma.asarray(columns[f"v{at}"], np.float64), np.nan) for at in range(6)]
    )
