"""A job of another system's accounting, in typed columns, and the table of them that is judged and merged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

import duckdb

from berth.history.store.database import make_table, storable
from berth.history.store.lookups import LOOKUPS, hosts_row
from berth.history.values.tres import MARKS_MIB, MOST, MOST_AMOUNT, NO_RESOURCES, Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One attempt of a job. None and empty values: the source has none."""

    job_id: str
    state: str
    """In Slurm's words, such as COMPLETED or OUT_OF_MEMORY."""
    submit_ms: int | None
    start_ms: int | None
    end_ms: int | None
    eligible_ms: int | None = None
    label: str = ""
    """What users see as its id, if that is another: `12_3` for a task of an array."""
    cluster: str = ""
    name: str = ""
    user: str = ""
    account: str = ""
    partition: str = ""
    qos: str = ""
    application: str = ""
    comment: str = ""
    command: str = ""
    reason: str = ""
    """Why it waited, in Slurm's words."""
    node_count: int | None = None
    nodes: tuple[str, ...] = ()
    cpus: int | None = None
    allocated: Resources = NO_RESOURCES
    requested: Resources = NO_RESOURCES
    limit_min: int | None = None
    exit_code: int | None = None
    suspended_ms: int | None = None
    cpu_used_ms: int | None = None
    mem_peak_mib: int | None = None
    energy_j: int | None = None
    gpu_peak_pct: int | None = None
    gpu_peak_mib: int | None = None
    gpu_use: float | None = None
    """Mean GPU utilisation, from 0 to 1."""


_TEXTS: Final = (
    *("cluster", "name", "user", "account", "partition", "qos", "application", "comment", "command"),
    "reason",
)
_TIMES: Final = ("submit_ms", "eligible_ms", "start_ms", "end_ms")
_COUNTS: Final = ("node_count", "cpus", "limit_min")
_AMOUNTS: Final = (
    *("suspended_ms", "cpu_used_ms", "mem_peak_mib", "energy_j", "gpu_peak_pct", "gpu_peak_mib"),
)
_COLUMNS: Final = {
    **{"id": "VARCHAR", "label": "VARCHAR", "state_text": "VARCHAR", "exit": "VARCHAR"},
    **dict.fromkeys(("alloc", "req", "node_list", *_TEXTS), "VARCHAR"),
    **dict.fromkeys((*_TIMES, *_COUNTS, *_AMOUNTS), "BIGINT"),
    **dict.fromkeys(("gpu_use", "gpu_mem"), "DOUBLE"),
    **dict.fromkeys(("submit_bad", "start_bad", "end_bad"), "VARCHAR"),
}


def stage_rows(
    database: duckdb.DuckDBPyConnection, rows: Iterable[JobRow], cluster: str, models: Mapping[str, str]
) -> str:
    """Make the table `staged_rows`, and `tres` and `hosts` of what its keys stand for; returns its name.

    `cluster` is the name of the cluster for rows without one, `models` the GPU model of each node.
    """
    resources: dict[Resources, str] = {NO_RESOURCES: ""}
    hosts: dict[tuple[str, ...], str] = {(): ""}
    texts, times, counts, amounts = (attrgetter(*names) for names in (_TEXTS, _TIMES, _COUNTS, _AMOUNTS))

    def values(row: JobRow) -> tuple[object, ...]:
        own_cluster, *own_texts = map(storable, texts(row))
        job_id = storable(row.job_id)
        nodes = tuple(storable(name) for name in row.nodes if "|" not in name)
        return (
            job_id,
            row.label or job_id,
            row.state,
            "" if row.exit_code is None else str(row.exit_code),
            resources.setdefault(row.allocated, str(len(resources))),
            resources.setdefault(row.requested, str(len(resources))),
            hosts.setdefault(nodes, str(len(hosts))),
            own_cluster or cluster,
            *own_texts,
            *times(row),
            *(value if value is not None and 0 <= value <= MOST else None for value in counts(row)),
            *map(_amount, amounts(row)),
            row.gpu_use,
            *(None, None, None, None),
        )

    make_table(database, "staged_rows", _COLUMNS, map(values, rows))
    of_keys = {
        "tres": ((key, *found) for found, key in resources.items()),
        "hosts": ((key, *hosts_row(names, models)) for names, key in hosts.items()),
    }
    for name, looked_up in of_keys.items():
        make_table(database, name, LOOKUPS[name], looked_up)
    return "staged_rows"


def _amount(value: int | None) -> int | None:
    """A measured amount; None for 0 and for Slurm's marks, which stand for "not measured"."""
    return value if value and 0 < value <= MOST_AMOUNT and value not in MARKS_MIB else None


def since_1970_ms(seconds: int | None) -> int | None:
    """Milliseconds since 1970; None for 0 and for times after the year 9999, which are marks for "none"."""
    return 1000 * seconds if seconds and seconds < _YEAR_10000_S else None


_YEAR_10000_S: Final = 253_402_300_800


def exit_code(code: int, signal: int) -> int:
    """The exit code as a shell reports it: 128 + N if signal N ended the job."""
    return 128 + signal if code == 0 and 1 <= signal <= 127 else code
