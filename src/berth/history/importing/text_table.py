"""A text table of jobs, as sacct prints it, into Parquet with times and counts as numbers.

The file is read once, in parallel and with bounded memory, by DuckDB; lines that are none of its rows are noted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import duckdb

from berth.errors import SettingError
from berth.history.importing.columns import Layout
from berth.history.store.database import at, count, literal
from berth.history.store.import_result import LISTED_PER_REASON, Options, Rejected, Rejections
from berth.history.values.tres import MOST

__all__ = ["read_table", "timezone"]

_EPOCH_TOO_LATE_S = 253_402_300_800
"""The year 10000: a larger number of seconds is one of Slurm's sentinels."""


def read_table(
    database: duckdb.DuckDBPyConnection,
    source: Path,
    delimiter: str,
    layout: Layout,
    raw: Path,
    options: Options,
    rejections: Rejections,
    where: str,
    numbers: Sequence[int] | None = None,
) -> int:
    """Copy the table to Parquet with times as numbers; returns how many lines were none of its rows.

    With `numbers` the lines after the header are some of a longer file, and these are their numbers there.
    """
    types = ", ".join(f"{literal(name)}: 'VARCHAR'" for name in layout.header)
    reader = (
        f"read_csv({at(source)}, delim = {literal(delimiter)}, quote = '', escape = '', header = true, "
        f"auto_detect = false, columns = {{{types}}}, encoding = {literal(options.encoding)}, "
        f"nullstr = {literal(_NO_TEXT)}, store_rejects = true, rejects_limit = 0, max_line_size = 4194304)"
    )
    database.execute(
        f"COPY ({_raw(layout, options, reader)}) TO {literal(raw)} (FORMAT parquet, COMPRESSION snappy)"
    )
    found = database.execute(
        "SELECT line, any_value(error_type::VARCHAR), any_value(len(string_split(csv_line, ?))) "
        "FROM reject_errors GROUP BY line ORDER BY line LIMIT ?",
        [delimiter, LISTED_PER_REASON],
    ).fetchall()
    total = count(database, "SELECT count(DISTINCT line) FROM reject_errors")
    rejections.extend(
        (
            Rejected(
                f"{where}, line {numbers[line - 2] if numbers else line}",
                _why_broken(kind, fields, len(layout.header), delimiter),
            )
            for line, kind, fields in found
        ),
        total - len(found),
    )
    return total


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


_NO_TIME = "('', 'Unknown', 'None', 'N/A', 'NONE', '0')"
_NO_TEXT = "\x1e\x1e"
"""What stands for NULL in a table: nothing that occurs, so that an empty text is an empty text."""

_TIMES = ("submit", "eligible", "start", "end")
_COUNTS = ("limit_min", "node_count", "cpus")


def _raw(layout: Layout, options: Options, reader: str) -> str:
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
        f"{layout.text('container')} AS container",
        f"{layout.text('command')} AS submit_line",
    ]
    outer = [
        *(name for name in plain if name != "label" or layout.labelled),
        *("comment", "application", "gpu_use", "gpu_mem", "state_text"),
        f"CASE WHEN cluster_text = '' THEN {literal(options.cluster)} ELSE cluster_text END AS cluster",
        *(f"{_time(name, zone, layout.has('alloc'))} AS {name}_ms" for name in _TIMES),
        *(f"{_unreadable(name)} AS {name}_bad" for name in ("submit", "start", "end")),
        *(f"CASE WHEN {name} BETWEEN 0 AND {MOST} THEN {name} END AS {name}" for name in _COUNTS),
        "CASE WHEN container = '' THEN submit_line ELSE trim(container || ' ' || submit_line) END AS command",
    ]
    return f"SELECT {', '.join(outer)} FROM (SELECT {', '.join(inner)} FROM {reader})"


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
