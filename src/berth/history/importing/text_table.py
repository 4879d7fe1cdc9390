"""Texts of jobs, as sacct prints them, into rows with times and counts as numbers.

A file is read once, in parallel and with bounded memory, by DuckDB; lines that are none of its rows are noted.
"""

from __future__ import annotations

from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import duckdb

from berth.errors import SettingError
from berth.history.importing.columns import Layout
from berth.history.store.database import at, count, literal
from berth.history.store.import_result import LISTED_PER_REASON, Options, Rejected, Rejections
from berth.history.values.durations import NO_TIME
from berth.history.values.tres import MARKS_MIB, MOST, MOST_AMOUNT

_EPOCH_TOO_LATE_S = 253_402_300_800
"""The year 10000: a larger number of seconds is one of Slurm's sentinels."""


def read_file(
    database: duckdb.DuckDBPyConnection,
    source: Path,
    delimiter: str,
    layout: Layout,
    target: Path,
    options: Options,
    rejections: Rejections,
    where: str,
) -> None:
    """Copy a text table to Parquet with times as numbers; lines that are none of its rows are noted."""
    types = ", ".join(f"{literal(name)}: 'VARCHAR'" for name in layout.header)
    reader = (
        f"read_csv({at(source)}, delim = {literal(delimiter)}, quote = '', escape = '', header = true, "
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
    rejections.extend(
        (
            Rejected(f"{where}, line {line}", _why_broken(kind, fields, len(layout.header), delimiter))
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
        *(f"try_cast({layout.text(name)} AS BIGINT) AS {name}_told" for name in _AMOUNTS),
        *(f"{layout.text(name)} AS {name}_text" for name in ("limit", "elapsed", "suspended", "cpu_used")),
        *(f"{layout.text(name)} AS {name}_text" for name in ("mem_peak", "task_count", "usage")),
        f"{layout.text('container')} AS container",
        f"{layout.text('command')} AS submit_line",
    ]
    amounts = {
        name: f"CASE WHEN {name}_told BETWEEN 0 AND {MOST_AMOUNT} AND {name}_told NOT IN {_MARKS} THEN {name}_told END"
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
