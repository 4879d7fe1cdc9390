"""The attempts behind a figure: picked, ordered, a page of them at a time; and how long groups of them waited."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from berth.errors import SettingError
from berth.history.store.database import literal, quoted_name
from berth.statistics.accounting import UNKNOWN, WASTED

_HOUR: Final = 3_600_000.0
HELD_SQL: Final = "coalesce(end_ms - start_ms, 0) * gpus * share_milli"
"""What an attempt held, as SQL over `records`, in ms and per mille of a GPU: whole numbers add up faster, and to the
same whatever their order.

A suspended job keeps its GPUs, and sreport counts them.
"""
READY_SQL: Final = "least(greatest(coalesce(eligible_ms, queued_ms), queued_ms), coalesce(start_ms, end_ms))"
"""When an attempt could have started, as SQL over `records`: as `Record.ready_ms`."""
WAIT_SQL: Final = f"(start_ms - {READY_SQL})"
"""How long an attempt waited in ms, as SQL over `records`: from when it could have started, so that neither a hold nor
a wait for another job or a time counts."""
WASTED_SQL: Final = "state IN (" + ", ".join(f"'{state.value}'" for state in sorted(WASTED)) + ")"
"""Whether an attempt failed, as SQL over `records`."""

VARIABLE_SQL: Final[Mapping[str, str]] = {
    "nNODE": "CASE WHEN start_ms IS NULL THEN NULL WHEN node_count > 0 THEN node_count::DOUBLE "
    "ELSE nullif(len(nodes), 0)::DOUBLE END",
    "nGPU": "CASE WHEN start_ms IS NOT NULL THEN gpus * share_milli / 1000.0 END",
    "WAIT_h": f"{WAIT_SQL} / {_HOUR}",
    "RUN_h": f"(end_ms - start_ms) / {_HOUR}",
    "uGPUcore": "gpu_use_mean",
    "uGPUmem": "gpu_mem_mean",
}
"""Each of the six variables of the paper's table 1 as SQL over `records`."""

ORDERS: Final[Mapping[str, tuple[str, str]]] = {
    "gpu-hours": ("true", f"{HELD_SQL} DESC"),
    "wait": ("start_ms IS NOT NULL", f"{WAIT_SQL} DESC"),
    "failed-gpu-hours": (WASTED_SQL, f"{HELD_SQL} DESC"),
    "idle-gpu-hours": ("gpu_use_mean IS NOT NULL", f"{HELD_SQL} * (1 - gpu_use_mean) DESC"),
    "end": ("true", "end_ms DESC"),
}
"""What attempts are ordered by: which of them count at all, and in which order."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt in a list of many; what its reader may not see, or is unknown, is None or empty."""

    job: str
    """The job's name for people, such as 12_3."""
    job_id: str
    cluster: str
    attempt: int
    user: str
    account: str
    application: str
    server: str
    """The partition, which names the type of GPU server."""
    gpu_model: str
    state: str
    gpus: float
    queued_ms: int
    start_ms: int | None
    end_ms: int
    wait_s: float | None
    run_s: float | None
    gpu_hours: float
    name: str
    command: str
    nodes: str
    exit_code: int | None
    gpu_use: float | None
    """Mean use of its GPUs, 0 to 1."""
    gpu_mem: float | None


_COLUMNS: Final = {field.name: quoted_name(field.name) for field in fields(Attempt)} | {
    "job": "coalesce(nullif(label, ''), job_id)",
    "application": f"coalesce(nullif(application, ''), '{UNKNOWN}')",
    "server": "virtual_cluster",
    "gpus": "gpus * share_milli / 1000.0",
    "wait_s": f"{WAIT_SQL} / 1000.0",
    "run_s": "(end_ms - start_ms) / 1000.0",
    "gpu_hours": f"{HELD_SQL} / {_HOUR * 1000}",
    "nodes": "array_to_string(nodes, ' ')",
    "gpu_use": "gpu_use_mean",
    "gpu_mem": "gpu_mem_mean",
}
assert [*_COLUMNS] == [field.name for field in fields(Attempt)]

HIDDEN: Final[Mapping[str, str]] = {
    **dict.fromkeys(("name", "command", "nodes"), "''"),
    **dict.fromkeys(("exit_code", "gpu_use", "gpu_mem"), "NULL"),
}
"""What is not shown of other people's attempts, and what stands there instead."""
_MEASURED: Final = frozenset({"uGPUcore", "uGPUmem"})
"""Variables that a range would tell of other people's attempts."""


@dataclass(frozen=True, slots=True)
class Picked:
    """Which attempts, in which order, and for whose eyes."""

    order: str = "end"
    """One of ORDERS."""
    ranges: tuple[tuple[str, float, float], ...] = ()
    """Variables of the paper's table 1, and the least and the largest value that is picked."""
    sees_all: bool = True
    user: str = ""
    """Where not everything may be seen: whose attempts may be."""

    @property
    def own_only(self) -> bool:
        """Whether other people's attempts are left out, because the ranges or the order would tell what is hidden."""
        needs_measured = self.order == "idle-gpu-hours" or any(
            name in _MEASURED for name, _, _ in self.ranges
        )
        return needs_measured and not self.sees_all


@dataclass(frozen=True, slots=True)
class Waited:
    """How long the attempts of one group waited that started."""

    keys: tuple[str, ...]
    started: int
    median_s: float
    p90_s: float
    mean_s: float
    longest_s: float


def attempts_query(source: str, picked: Picked) -> str:
    """All attempts of `FROM records WHERE …` that are picked, in their order, with the columns of `Attempt`."""
    by_name = {**_COLUMNS}
    if not picked.sees_all:
        own = f'"user" = {literal(picked.user)} AND "user" <> \'\''
        by_name |= {
            name: f"CASE WHEN {own} THEN {_COLUMNS[name]} ELSE {instead} END"
            for name, instead in HIDDEN.items()
        }
    columns = ", ".join(f"{value} AS {quoted_name(name)}" for name, value in by_name.items())
    order = ORDERS[picked.order][1]
    return (
        f"SELECT {columns} {source} AND {conditions_of(picked)} "
        f"ORDER BY {order} NULLS LAST, records.end_ms DESC, records.cluster, records.job_id, records.attempt"
    )


def conditions_of(picked: Picked) -> str:
    """Which attempts are picked, as a condition of SQL. Raises SettingError for an order or variable that is none."""
    if picked.order not in ORDERS:
        raise SettingError(f"no order '{picked.order}'; there are {', '.join(ORDERS)}")
    conditions = [ORDERS[picked.order][0]]
    for name, low, high in picked.ranges:
        if name not in VARIABLE_SQL:
            raise SettingError(f"no variable '{name}'; there are {', '.join(VARIABLE_SQL)}")
        if not (math.isfinite(low) and math.isfinite(high)):
            raise SettingError(f"the range of {name} goes from {low} to {high}; expected two finite numbers")
        conditions.append(f"{VARIABLE_SQL[name]} BETWEEN {float(low)!r} AND {float(high)!r}")
    if picked.ranges:
        conditions.append("start_ms IS NOT NULL")
    if picked.own_only:
        conditions.append(f'"user" = {literal(picked.user)} AND "user" <> \'\'')
    return " AND ".join(f"({each})" for each in conditions)
