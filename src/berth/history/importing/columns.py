"""sacct's texts into rows with times and counts as numbers: the columns that an import uses, as DuckDB expressions.

Every value of a job is read as text, and only ever stands in a column: no text of a job gets into SQL.

A file is read once, in parallel and with bounded memory, by DuckDB; lines that are none of its rows are noted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import duckdb

from berth.errors import HistoryError, SettingError
from berth.history.store.database import at, count, literal, quoted_name
from berth.history.store.import_result import LISTED_PER_REASON, Options, Rejected, Rejections
from berth.history.values.durations import NO_TIME
from berth.history.values.tres import MARKS_MIB, MOST, MOST_AMOUNT
from berth.model import RecordState

# The first name of each that a header holds is used; upper and lower case do not matter.
_ALIASES: Final = {
    "id": ("jobidraw", "jobid"),
    "label": ("jobid", "jobidraw"),
    "name": ("jobname",),
    "user": ("user",),
    "account": ("account",),
    "partition": ("partition",),
    "qos": ("qos",),
    "cluster": ("cluster",),
    "state": ("state",),
    "submit": ("submit",),
    "eligible": ("eligible",),
    "start": ("start",),
    "end": ("end",),
    "limit_min": ("timelimitraw",),
    "limit": ("timelimit",),
    "elapsed": ("elapsedraw", "elapsed"),
    "suspended": ("suspendedraw", "suspended"),
    "cpu_used_ms": ("totalcpuraw",),
    "cpu_used": ("totalcpu",),
    "mem_peak_mib": ("mempeakmib",),
    "mem_peak": ("maxrss",),
    "task_count": ("ntasks",),
    "usage": ("tresusageintot",),
    "energy_j": ("consumedenergyraw",),
    "gpu_peak_pct": ("gpuutilpeak",),
    "gpu_peak_mib": ("gpumempeakmib",),
    "node_count": ("nnodes", "allocnodes"),
    "cpus": ("ncpus", "alloccpus", "reqcpus"),
    "alloc": ("alloctres", "allocgres"),
    "req": ("reqtres", "reqgres"),
    "node_list": ("nodelist",),
    "reason": ("reason",),
    "comment": ("comment",),
    "command": ("submitline",),
    "container": ("container",),
    "exit": ("exitcode",),
    "application": ("application",),
    "gpu_use": ("ugpucore",),
    "gpu_mem": ("ugpumem",),
}

_NEEDED: Final = ("id", "state", "submit", "start", "end")

STATES: Final = {
    "COMPLETED": RecordState.COMPLETED,
    "FAILED": RecordState.FAILED,
    "BOOT_FAIL": RecordState.FAILED,
    "SPECIAL_EXIT": RecordState.FAILED,
    "OUT_OF_MEMORY": RecordState.OUT_OF_MEMORY,
    "NODE_FAIL": RecordState.NODE_FAIL,
    "TIMEOUT": RecordState.TIMEOUT,
    "DEADLINE": RecordState.TIMEOUT,
    "PREEMPTED": RecordState.PREEMPTED,
    "REQUEUED": RecordState.PREEMPTED,
    "CANCELLED": RecordState.CANCELLED,
    "REVOKED": RecordState.CANCELLED,
}
"""Slurm's states of a job that has ended, and berth's."""

_READ_FROM: Final[dict[str, tuple[str, ...]]] = {
    "name": ("name",),
    "user": ("user",),
    "account": ("account",),
    "virtual_cluster": ("partition",),
    "qos": ("qos",),
    "eligible_ms": ("eligible",),
    "time_limit_ms": ("limit_min", "limit"),
    "nodes": ("node_list",),
    "wait_reason": ("reason",),
    "comment": ("comment",),
    "exit_code": ("exit",),
    "energy_j": ("energy_j",),
    "suspended_ms": ("suspended",),
    **dict.fromkeys(("gpus", "share_milli", "mem_mib", "gpu_model"), ("alloc", "req")),
    "cpu_milli": ("alloc", "req", "cpus"),
    "node_count": ("node_count",),
    "command": ("command", "container"),
    **dict.fromkeys(("gpu_use_mean", "gpu_mem_mean"), ("gpu_use", "gpu_mem")),
    **dict.fromkeys(("gpu_use_peak", "gpu_mem_peak"), ("usage", "gpu_peak_pct")),
    "cpu_used_ms": ("cpu_used", "cpu_used_ms"),
    "mem_peak_mib": ("mem_peak", "mem_peak_mib", "usage"),
    "application": ("name", "comment", "command", "container", "application"),
    **dict.fromkeys(("work_ms", "end_reason", "gpu_slots", "priority"), ()),
}
"""Each column of a record is read from any of these; if a file has none of them, what another file gave stays."""

NOT_ENDED: Final = (
    *("PENDING", "RUNNING", "SUSPENDED", "REQUEUE_HOLD", "REQUEUE_FED", "RESIZING", "CONFIGURING"),
    *("COMPLETING", "STOPPED", "SIGNALING", "STAGE_OUT", "RESV_DEL_HOLD"),
)

STATE_CASE: Final = (
    "CASE regexp_extract(upper({column}), '^[A-Z_]+') "
    + " ".join(f"WHEN '{name}' THEN '{state.value}'" for name, state in STATES.items())
    + " "
    + " ".join(f"WHEN '{name}' THEN '…'" for name in NOT_ENDED)
    + " ELSE NULL END"
)
"""berth's state of a column; '…' if the job has not ended, NULL if the state is unknown."""


class Layout:
    """Where each thing stands in a header."""

    def __init__(self, header: Sequence[str], where: str) -> None:
        """Raises HistoryError where a needed column is missing or one stands twice."""
        lowered = [name.strip().lower() for name in header]
        twice = sorted({name for name in lowered if name and lowered.count(name) > 1})
        if twice:
            raise HistoryError(f"{where}: column '{twice[0]}' stands twice in the header")
        self.header = tuple(name.strip() or f"empty_{at}" for at, name in enumerate(header))
        self._at: dict[str, str] = {}
        for thing, names in _ALIASES.items():
            found = next((name for name in names if name in lowered), None)
            if found is not None:
                self._at[thing] = self.header[lowered.index(found)]
        missing = [_ALIASES[thing][0] for thing in _NEEDED if thing not in self._at]
        if missing:
            raise HistoryError(
                f"{where}: the header has no column {', '.join(missing)}; it has {', '.join(header)[:300]}. "
                "Export with `sacct -P -D -X -a -o JobIDRaw,JobName,User,State,Submit,Eligible,Start,End,…`"
            )

    def text(self, thing: str) -> str:
        """The column as an expression; an empty text where there is none."""
        name = self._at.get(thing)
        return "''" if name is None else quoted_name(name)

    def has(self, thing: str) -> bool:
        """Whether the header holds it."""
        return thing in self._at

    @property
    def labelled(self) -> bool:
        """Whether a job's id for people stands apart from its number."""
        return self._at["label"] != self._at["id"]

    @property
    def of_steps(self) -> bool:
        """Whether it has columns that Slurm fills in the rows of steps only, or as text that is to be read first."""
        return bool({"usage", "mem_peak", "cpu_used"} & self._at.keys())

    def absent(self) -> tuple[str, ...]:
        """The columns of a record that this table says nothing about."""
        return tuple(column for column, things in _READ_FROM.items() if not self._at.keys() & set(things))


def layout_of(header_line: str, delimiter: str, where: str) -> Layout:
    """The layout of a file whose first line this is."""
    return Layout(header_line.rstrip("\r\n").split(delimiter), where)


_EPOCH_TOO_LATE_S = 253_402_300_800
"""The year 10000: a larger number of seconds is one of Slurm's sentinels."""


@dataclass(frozen=True, slots=True)
class Source:
    """What is imported. `where` is its name in messages."""

    where: str
    options: Options
    rejections: Rejections
    """Those that a reader left out before; those that stay out are added."""


@dataclass(frozen=True, slots=True)
class TextTable(Source):
    """A text table with a header line, as sacct prints it."""

    path: Path
    delimiter: str
    layout: Layout
    tasks: bool = False
    """Whether rows of one job and submission with different times are tasks of an array."""


def read_file(database: duckdb.DuckDBPyConnection, table: TextTable, target: Path) -> None:
    """Copy a text table to Parquet with times as numbers; lines that are none of its rows are noted."""
    layout, options, delimiter = table.layout, table.options, table.delimiter
    types = ", ".join(f"{literal(name)}: 'VARCHAR'" for name in layout.header)
    reader = (
        f"read_csv({at(table.path)}, delim = {literal(delimiter)}, quote = '', escape = '', header = true, "
        f"auto_detect = false, columns = {{{types}}}, encoding = {literal(options.encoding)}, "
        f"nullstr = {literal(_NO_TEXT)}, store_rejects = true, rejects_limit = 0, max_line_size = 4194304)"
    )
    database.execute(
        f"COPY ({_typed_rows(layout, options, reader)}) TO {literal(target)} (FORMAT parquet, COMPRESSION snappy)"
    )
    found = database.execute(
        "SELECT line, any_value(error_type::VARCHAR), any_value(len(string_split(csv_line, ?))) "
        "FROM reject_errors GROUP BY line ORDER BY line LIMIT ?",
        [delimiter, LISTED_PER_REASON],
    ).fetchall()
    total = count(database, "SELECT count(DISTINCT line) FROM reject_errors")
    table.rejections.extend(
        (
            Rejected(f"{table.where}, line {line}", _why_broken(kind, fields, len(layout.header), delimiter))
            for line, kind, fields in found
        ),
        total - len(found),
    )


def _why_broken(kind: str, fields: int, wanted: int, delimiter: str) -> str:
    if "COLUMNS" in kind:
        more = (
            f"; a value holds {delimiter!r}: export with --delimiter=$'\\x1f'"
            if fields > wanted
            else "; the line is cut off or a value holds a line break"
        )
        return f"{fields} fields, expected {wanted}{more}"
    if "UNICODE" in kind or "ENCODING" in kind:
        return "not UTF-8; if it is Latin-1, import with --encoding latin-1"
    return f"not a row of the table ({kind.lower()})"


_NO_TIME = f"({', '.join(map(literal, NO_TIME))})"
_NO_TEXT = "\x1e\x1e"
"""What stands for NULL in a table: nothing that occurs, so that an empty text is an empty text."""

_TIMES = ("submit", "eligible", "start", "end")
_COUNTS = ("limit_min", "node_count", "cpus")
_AMOUNTS = ("cpu_used_ms", "mem_peak_mib", "energy_j", "gpu_peak_pct", "gpu_peak_mib")
_MARKS = f"({', '.join(map(str, MARKS_MIB))})"


def _typed_rows(layout: Layout, options: Options, reader: str) -> str:
    """The rows of a table with times in ms since 1970, and counts as numbers: NULL for Slurm's sentinels."""
    zone = timezone(options.timezone)
    plain = (
        "id",
        "label",
        "name",
        "user",
        "account",
        "partition",
        "qos",
        "alloc",
        "req",
        "node_list",
        "reason",
        "exit",
    )
    inner = [
        *(f"{layout.text(name)} AS {name}" for name in (*plain, "comment", "application")),
        f"{layout.text('cluster')} AS cluster_text",
        f"{layout.text('state')} AS state_text",
        *(f"{layout.text(name)} AS {name}_text" for name in _TIMES),
        *(f"try_cast({layout.text(name)} AS TIMESTAMP) AS {name}_at" for name in _TIMES),
        *(f"try_cast({layout.text(name)} AS BIGINT) AS {name}" for name in _COUNTS),
        *(f"try_cast({layout.text(name)} AS DOUBLE) AS {name}" for name in ("gpu_use", "gpu_mem")),
        *(f"try_cast({layout.text(name)} AS BIGINT) AS {name}_n" for name in _AMOUNTS),
        *(f"{layout.text(name)} AS {name}_text" for name in ("limit", "elapsed", "suspended", "cpu_used")),
        *(f"{layout.text(name)} AS {name}_text" for name in ("mem_peak", "task_count", "usage")),
        f"{layout.text('container')} AS container",
        f"{layout.text('command')} AS submit_line",
    ]
    amounts = {
        name: f"CASE WHEN {name}_n BETWEEN 0 AND {MOST_AMOUNT} AND {name}_n NOT IN {_MARKS} THEN {name}_n END"
        for name in _AMOUNTS
    }
    amounts["cpu_used_ms"] = f"coalesce({amounts['cpu_used_ms']}, {_duration_ms('cpu_used_text')})"
    amounts["mem_peak_mib"] = (
        f"coalesce({amounts['mem_peak_mib']}, {size_mib('mem_peak_text')} * "
        "greatest(coalesce(try_cast(task_count_text AS BIGINT), 1), 1))"
    )
    suspended_ms = (
        f"nullif(coalesce(CASE WHEN try_cast(suspended_text AS BIGINT) BETWEEN 0 AND {MOST_AMOUNT} "
        f"AND try_cast(suspended_text AS BIGINT) NOT IN {_MARKS} THEN "
        f"try_cast(suspended_text AS BIGINT) * 1000 END, {_duration_ms('suspended_text')}), 0)"
    )
    elapsed_ms = f"coalesce(try_cast(elapsed_text AS BIGINT) * 1000, {_duration_ms('elapsed_text')})"
    start = _time("start", zone, layout.has("alloc"))
    outer = [
        *(name for name in plain if name != "label"),
        # An array whose tasks never were jobs of their own is `12_[2-8%1]` in sacct's text, and 12 elsewhere.
        *(["CASE WHEN contains(label, '_[') THEN id ELSE label END AS label"] if layout.labelled else []),
        *("comment", "application", "gpu_use", "gpu_mem", "state_text"),
        f"CASE WHEN cluster_text = '' THEN {literal(options.cluster)} ELSE cluster_text END AS cluster",
        *(
            f"{_time(name, zone, layout.has('alloc'))} AS {name}_ms"
            for name in ("submit", "eligible", "start")
        ),
        # A row without an end that tells how long the job ran has one all the same.
        f"coalesce({_time('end', zone, False)}, "
        f"{start} + CASE WHEN {elapsed_ms} > 0 THEN {elapsed_ms} + coalesce({suspended_ms}, 0) END) AS end_ms",
        *(f"{_unreadable(name)} AS {name}_bad" for name in ("submit", "start", "end")),
        *(
            f"CASE WHEN {name} BETWEEN 0 AND {MOST} THEN {name} END AS {name}"
            for name in ("node_count", "cpus")
        ),
        f"coalesce(CASE WHEN limit_min BETWEEN 0 AND {MOST} THEN limit_min END, "
        f"{_duration_ms('limit_text')} // 60000) AS limit_min",
        f"{suspended_ms} AS suspended_ms",
        *(f"nullif({value}, 0) AS {name}" for name, value in amounts.items()),
        "usage_text AS usage",
        "CASE WHEN container = '' THEN submit_line ELSE trim(container || ' ' || submit_line) END AS command",
    ]
    return f"SELECT {', '.join(outer)} FROM (SELECT {', '.join(inner)} FROM {reader})"


def _duration_ms(text: str) -> str:
    """Milliseconds of a text such as 1-02:03:04, 02:03:04 or 03:04.567; NULL for any other."""
    days, hours, minutes, seconds = (
        f"coalesce(try_cast(regexp_extract({text}, '{_DURATION}', {at}) AS BIGINT), 0)" for at in range(1, 5)
    )
    parts = f"rpad(regexp_extract({text}, '{_DURATION}', 5), 3, '0')"
    whole = f"((({days} * 24 + {hours}) * 60 + {minutes}) * 60 + {seconds}) * 1000"
    return f"(CASE WHEN regexp_full_match({text}, '{_DURATION}') THEN {whole} + try_cast({parts}[1:3] AS BIGINT) END)"


_DURATION = r"(?:(\d{1,9})-)?(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9})(?:\.(\d+))?"
_SIZE = r"(\d{1,12}(?:\.\d+)?)([KMGTP]?)"


def size_mib(text: str) -> str:
    """MiB, rounded up, of a text such as 10820K or 1.5G; without a unit it is bytes, as in Slurm's use of memory."""
    number = f"try_cast(regexp_extract({text}, '{_SIZE}', 1) AS DOUBLE)"
    unit = f"regexp_extract({text}, '{_SIZE}', 2)"
    factor = f"CASE {unit} WHEN 'K' THEN 1024 WHEN 'M' THEN 1048576 WHEN 'G' THEN 1073741824 "
    factor += "WHEN 'T' THEN 1099511627776 WHEN 'P' THEN 1125899906842624 ELSE 1 END"
    return f"(CASE WHEN regexp_full_match({text}, '{_SIZE}') THEN ceil({number} * {factor} / 1048576)::BIGINT END)"


def _time(name: str, zone: str, allocated: bool) -> str:
    """Milliseconds since 1970 of a text such as 2026-11-21T01:10:19 or 1795223419."""
    moment = f"{name}_at" if zone == "UTC" else f"timezone({literal(zone)}, {name}_at)"
    seconds = f"try_cast({name}_text AS BIGINT)"
    # Cancelled before it ran: Slurm writes its end as its start, and resources of none.
    never = "WHEN alloc = '' AND start_text = end_text THEN NULL " if name == "start" and allocated else ""
    return (
        f"CASE {never}WHEN {name}_at IS NOT NULL THEN epoch_ms({moment}) WHEN {name}_text IN {_NO_TIME} THEN NULL "
        f"WHEN {seconds} BETWEEN 1 AND {_EPOCH_TOO_LATE_S} THEN {seconds} * 1000 END"
    )


def _unreadable(name: str) -> str:
    """The text where it is neither a time nor nothing; NULL elsewhere."""
    return (
        f"CASE WHEN {name}_at IS NOT NULL THEN NULL WHEN {name}_text IN {_NO_TIME} THEN NULL "
        f"WHEN try_cast({name}_text AS UBIGINT) IS NULL THEN {name}_text END"
    )


def timezone(name: str) -> str:
    """The name of a zone that there is; SettingError elsewhere."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise SettingError(f"no time zone '{name}'; expected a name such as UTC or Asia/Seoul") from error
    return name
