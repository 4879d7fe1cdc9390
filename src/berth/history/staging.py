"""A text table of jobs, as sacct prints it, into a staged Parquet file of tries, and the rows that cannot be.

The file is read once, in parallel and with bounded memory, by DuckDB. What there are few different values of
(resources, lists of nodes, what names an application) is looked up once for each value, not for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from glob import escape
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import duckdb

from berth.errors import HistoryError, SettingError
from berth.history.applications import Rules, read_rules
from berth.history.columns import STATE_CASE, Layout
from berth.history.hostlist import expand
from berth.history.imports import LISTED_PER_REASON, Rejected, Rejections
from berth.history.parquet import rows_to_columns
from berth.history.pseudonyms import PSEUDONYMISED, key_mark, pseudonym
from berth.history.tres import resources

__all__ = ["Options", "Staged", "connect", "stage"]

MEMORY_MIB = 512
_LOOKED_UP_AT_ONCE = 50_000
_EPOCH_TOO_LATE_S = 253_402_300_800
"""The year 10000: a larger number of seconds is one of Slurm's sentinels."""


@dataclass(frozen=True, slots=True)
class Options:
    """How the text is to be understood."""

    cluster: str = ""
    """The cluster's name where the rows do not tell; two clusters in one history need different ones."""
    timezone: str = "UTC"
    """In which zone times without one are; numbers are seconds since 1970."""
    encoding: str = "utf-8"
    shards_per_gpu: int = 0
    """How many shards a GPU has; 0: not known, and then a job of shards counts as one without GPUs."""
    rules: Path | None = None
    """Rules for applications; None: those that ship with berth."""
    tres_names: tuple[tuple[str, str], ...] = ()
    """What a database's numbers of resources stand for."""
    key: bytes = field(default=b"", repr=False)
    """With it users, accounts and names are replaced by pseudonyms, and comments and commands left out."""


@dataclass(frozen=True, slots=True)
class Staged:
    """What became of a text table: two views of the database that it was staged in."""

    read: int
    absent: tuple[str, ...] = ()
    """Columns that the table said nothing about; what is known of a try in these stays."""
    keys: str = "staged_keys"
    """cluster, job_id, queued_ms and end_ms of each try: cheap to go over."""
    tries: str = "staged"
    """Tries with every column of a record but for `attempt` and `submit_ms`."""
    key_mark: int = 0
    """Which key its names are hidden by; 0: none."""


@contextmanager
def connect(folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database in memory that spills into a folder and keeps to a bounded part of the memory."""
    with duckdb.connect() as database:
        database.execute(f"SET memory_limit = '{MEMORY_MIB}MiB'")
        database.execute("SET preserve_insertion_order = false")
        database.execute("SET temp_directory = ?", [str(folder)])
        database.execute("SET TimeZone = 'UTC'")
        yield database


def stage(
    database: duckdb.DuckDBPyConnection,
    source: Path,
    delimiter: str,
    layout: Layout,
    raw: Path,
    options: Options,
    rejections: Rejections,
    where: str,
) -> Staged:
    """Read a text table with a header line into the file `raw`, and make views of its tries.

    Notes rows that stay out. The views are good as long as the database and the file are.
    """
    rules = read_rules(options.rules)
    try:
        bad = _read(database, source, delimiter, layout, raw, options, rejections, where)
        rows = _rejected_rows(database, raw, layout, rejections, where)
        _look_up(database, raw, rules, dict(options.tres_names))
        _hide(database, raw, options.key)
        database.execute(f"CREATE VIEW staged AS SELECT * EXCLUDE whole_gpus FROM ({_final(options)})")
        database.execute(
            "CREATE VIEW staged_keys AS "
            "SELECT cluster, id AS job_id, submit_ms AS queued_ms, end_ms FROM judged WHERE why IS NULL"
        )
    except duckdb.Error as error:
        raise HistoryError(f"{where}: {_first_line(error)}") from error
    return Staged(rows + bad, layout.absent(), key_mark=key_mark(options.key))


def _read(
    database: duckdb.DuckDBPyConnection,
    source: Path,
    delimiter: str,
    layout: Layout,
    raw: Path,
    options: Options,
    rejections: Rejections,
    where: str,
) -> int:
    """Copy the table to Parquet with times as numbers; returns how many lines were none of its rows."""
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
    total = _count(database, "SELECT count(DISTINCT line) FROM reject_errors")
    rejections.extend(
        (
            Rejected(f"{where}, line {line}", _why_broken(kind, fields, len(layout.header), delimiter))
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
        *(f"CASE WHEN {name} BETWEEN 0 AND 4294967000 THEN {name} END AS {name}" for name in _COUNTS),
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


_WHY = """
    CASE
        WHEN contains(label, '.') OR contains(id, '.') THEN 'step'
        WHEN id = '' THEN 'no job id'
        WHEN state IS NULL THEN 'state ''' || state_text || ''' is none of Slurm''s'
        WHEN submit_bad IS NOT NULL THEN 'Submit is ''' || submit_bad || ''', which is no time'
        WHEN start_bad IS NOT NULL THEN 'Start is ''' || start_bad || ''', which is no time'
        WHEN end_bad IS NOT NULL THEN 'End is ''' || end_bad || ''', which is no time'
        WHEN submit_ms IS NULL THEN 'no time of submission'
        WHEN state = '…' OR end_ms IS NULL THEN 'has not ended; it comes in once it has'
        WHEN end_ms < submit_ms THEN 'ends before it was submitted'
        WHEN start_ms > end_ms THEN 'ends before it starts'
        WHEN start_ms < submit_ms THEN 'starts before it was submitted'
        WHEN gpu_use NOT BETWEEN 0 AND 1 OR gpu_mem NOT BETWEEN 0 AND 1 THEN
            'GPU use is no fraction from 0 to 1'
    END
"""

STEP = "a step; its job's own row counts it"


def _rejected_rows(
    database: duckdb.DuckDBPyConnection, raw: Path, layout: Layout, rejections: Rejections, where: str
) -> int:
    """Make the view `judged` of all rows and why they stay out; note those; returns how many rows there are."""
    label = "" if layout.labelled else "id AS label, "
    database.execute(
        f"CREATE VIEW judged AS SELECT *, {_WHY} AS why FROM "
        f"(SELECT *, {label}{STATE_CASE.format(column='state_text')} AS state FROM read_parquet({at(raw)}))"
    )
    counts = database.execute(
        "SELECT coalesce(why, ''), count(*) FROM judged GROUP BY 1 ORDER BY 1"
    ).fetchall()
    for why, count in counts:
        if why:
            listed = database.execute(
                "SELECT label, submit_ms FROM judged WHERE why = ? ORDER BY label, submit_ms LIMIT ?",
                [why, LISTED_PER_REASON],
            ).fetchall()
            text = STEP if why == "step" else why
            rejections.extend(
                (Rejected(f"{where}, job {label}", text) for label, _ in listed), count - len(listed)
            )
    return sum(count for _, count in counts)


def _look_up(
    database: duckdb.DuckDBPyConnection, raw: Path, rules: Rules, tres_names: Mapping[str, str]
) -> None:
    """Fill the tables `tres`, `hosts` and `apps`, a row for each different value."""
    file = f"read_parquet({at(raw)})"
    _table(
        database,
        "tres",
        ("text", "gpus", "gpu_model", "shards", "cpus", "mem_mib", "a_node"),
        "VARCHAR, BIGINT, VARCHAR, BIGINT, BIGINT, BIGINT, BIGINT",
        f"SELECT DISTINCT alloc FROM {file} UNION SELECT DISTINCT req FROM {file}",
        lambda row: (row[0], *resources(row[0], tres_names)),
    )
    _table(
        database,
        "hosts",
        ("text", "names"),
        "VARCHAR, VARCHAR",
        f"SELECT DISTINCT node_list FROM {file}",
        lambda row: (row[0], "|".join(_hosts(row[0]))),
    )
    _table(
        database,
        "apps",
        ("name", "comment", "command", "application"),
        "VARCHAR, VARCHAR, VARCHAR, VARCHAR",
        f"SELECT DISTINCT name, comment, command FROM {file}",
        lambda row: (*row, rules.application(row[1], row[0], row[2])),
    )


def _hide(database: duckdb.DuckDBPyConnection, raw: Path, key: bytes) -> None:
    """Fill the table `hidden`, a row for each user, account and name; empty without a key."""
    kinds = PSEUDONYMISED if key else ()
    query = " UNION ALL ".join(
        f"SELECT DISTINCT '{kind}', {kind} FROM read_parquet({at(raw)})" for kind in kinds
    )
    _table(
        database,
        "hidden",
        ("kind", "text", "pseudonym"),
        "VARCHAR, VARCHAR, VARCHAR",
        query or "SELECT '', '' WHERE false",
        lambda row: (row[0], row[1], pseudonym(key, row[0], row[1])),
    )


def _hosts(text: str) -> tuple[str, ...]:
    """The names of a list; none where it cannot be read, for the number of nodes is known all the same."""
    try:
        return tuple(name for name in expand(text) if "|" not in name)
    except ValueError:
        return ()


def _table(
    database: duckdb.DuckDBPyConnection,
    name: str,
    columns: Sequence[str],
    types: str,
    query: str,
    make: Callable[[tuple[Any, ...]], tuple[object, ...]],
) -> None:
    described = ", ".join(f"{column} {kind}" for column, kind in zip(columns, types.split(", "), strict=True))
    database.execute(f"CREATE TABLE {name} ({described})")
    with database.cursor() as reader:
        found = reader.execute(query)
        while rows := found.fetchmany(_LOOKED_UP_AT_ONCE):
            database.register("chunk", rows_to_columns([make(row) for row in rows], columns))
            database.execute(f"INSERT INTO {name} SELECT {', '.join(columns)} FROM chunk")
            database.unregister("chunk")


def _final(options: Options) -> str:
    """What a try is: a SELECT over `judged` and the tables of looked-up values."""
    ran = "start_ms IS NOT NULL"
    gpus = "coalesce(nullif({0}.gpus, 0), {0}.a_node * greatest(coalesce(node_count, 0), 1))"
    given, asked = gpus.format("given"), gpus.format("asked")
    milli, of_shards = "1000", ""
    if options.shards_per_gpu:
        shards = f"(CASE WHEN {ran} THEN given.shards ELSE asked.shards END)"
        of_shards = (
            f"WHEN {shards} > 0 THEN greatest(1, ceil({shards} / {options.shards_per_gpu}.0))::INTEGER"
        )
        held = f"(ceil({shards} / {options.shards_per_gpu}.0)::BIGINT * {options.shards_per_gpu})"
        one = f"{shards} * 1000 // {held}"
        milli = f"CASE WHEN whole_gpus = 0 AND {shards} > 0 THEN {one} ELSE 1000 END"
    hidden, user, account, name = "", "judged.user", "judged.account", "judged.name"
    comment, command = "judged.comment", "judged.command"
    if options.key:
        user, account, name = (f"hidden_{kind}.pseudonym" for kind in PSEUDONYMISED)
        comment = command = "''"
        hidden = " ".join(
            f"JOIN hidden hidden_{kind} ON hidden_{kind}.kind = '{kind}' AND hidden_{kind}.text = judged.{kind}"
            for kind in PSEUDONYMISED
        )
    return f"""
        SELECT id AS job_id, {user} AS user, coalesce(nullif(judged.application, ''), apps.application) AS application,
            partition AS virtual_cluster, submit_ms AS queued_ms, start_ms, end_ms, state,
            (CASE WHEN {ran} THEN {given} ELSE {asked} END) AS whole_gpus,
            (CASE WHEN whole_gpus > 0 THEN whole_gpus {of_shards} ELSE 0 END)::INTEGER AS gpus,
            ({milli})::INTEGER AS share_milli, 0::BIGINT AS share_mem_mib,
            1000 * coalesce(nullif(given.cpus, 0), nullif(asked.cpus, 0), judged.cpus, 0) AS cpu_milli,
            coalesce(nullif(given.mem_mib, 0), asked.mem_mib) AS mem_mib,
            (CASE WHEN hosts.names = '' THEN [] ELSE string_split(hosts.names, '|') END) AS nodes,
            coalesce(nullif(given.gpu_model, ''), asked.gpu_model) AS gpu_model,
            NULL::BIGINT AS work_ms, gpu_use AS gpu_use_mean, NULL::DOUBLE AS gpu_use_peak,
            gpu_mem AS gpu_mem_mean, NULL::DOUBLE AS gpu_mem_peak, cluster, {name} AS name,
            {account} AS account, qos,
            (CASE WHEN {ran} THEN coalesce(node_count, 0) ELSE 0 END)::INTEGER AS node_count,
            limit_min * 60000 AS time_limit_ms, eligible_ms,
            (CASE WHEN reason = 'None' THEN '' ELSE reason END) AS wait_reason,
            {comment} AS comment, {command} AS command
        FROM judged {hidden}
        JOIN tres given ON given.text = alloc JOIN tres asked ON asked.text = req
        JOIN hosts ON hosts.text = node_list
        JOIN apps ON apps.name = judged.name AND apps.comment = judged.comment AND apps.command = judged.command
        WHERE why IS NULL
    """


def timezone(name: str) -> str:
    """The name of a zone that there is; SettingError elsewhere."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise SettingError(f"no time zone '{name}'; expected a name such as UTC or Asia/Seoul") from error
    return name


def _count(database: duckdb.DuckDBPyConnection, query: str) -> int:
    found = database.execute(query).fetchone()
    return int(found[0]) if found else 0


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]


def literal(value: object) -> str:
    """A text as a literal of SQL: for paths and settings of ours, where DuckDB takes no parameters."""
    return "'" + str(value).replace("'", "''") + "'"


def at(path: Path) -> str:
    """A file to read as a literal of SQL, whatever characters its name has."""
    return literal(escape(str(path)))
