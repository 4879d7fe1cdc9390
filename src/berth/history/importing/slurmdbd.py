"""The tables of a live slurmdbd (MariaDB or MySQL) into the history; nothing is ever written there.

Rows come as one text each, put together by the server, and go the way of sacct's text. They are streamed in
windows of `time_end`, which has an index; after each window the history has advanced, so that a connection
lost half-way costs one window.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

import pymysql

from berth.errors import HistoryError, MissingExtraError, SettingError
from berth.history.importing.columns import Layout, TextTable
from berth.history.importing.sacct import SEPARATOR, import_table
from berth.history.store.folder import History
from berth.history.store.import_result import ImportResult, Options, Rejections
from berth.history.values.tres import MOST_AMOUNT

WINDOW_ROWS: Final = 500_000
PACKED_ROWS: Final = 200
AGAIN_S: Final = 86_400
"""How far behind the place that it had reached an import begins: rows are changed after the job has ended."""

_STATES: Final = (
    *("PENDING", "RUNNING", "SUSPENDED", "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL"),
    *("PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY"),
)
_NEEDED: Final = frozenset(
    (
        *("id_job", "id_assoc", "id_qos", "job_name", "account", "partition", "state", "time_submit"),
        *("time_eligible", "time_start", "time_end", "timelimit", "nodes_alloc", "cpus_req", "tres_alloc"),
        *("tres_req", "nodelist", "state_reason_prev", "derived_es", "deleted", "mod_time"),
    )
)
_LABEL: Final = (
    "if(j.id_array_job > 0 and j.id_array_task < 4294967293, concat(j.id_array_job, '_', j.id_array_task), "
    "if(j.het_job_id > 0 and j.het_job_offset < 4294967293, concat(j.het_job_id, '+', j.het_job_offset), j.id_job))"
)
"""What sacct shows as JobID."""
_OF_STEPS: Final = ("user_sec", "user_usec", "sys_sec", "sys_usec", "tres_usage_in_tot")


@dataclass(frozen=True, slots=True)
class Table:
    """One cluster's table of jobs."""

    cluster: str
    columns: frozenset[str]
    others: Mapping[str, frozenset[str]]
    """The columns of the tables `step` and `suspend` of the same cluster."""


def import_slurmdbd(
    history: History, url: str, options: Options, *, since_s: int | None = None, window: int = WINDOW_ROWS
) -> ImportResult:
    """Import the jobs of all clusters of a database, or of `options.cluster`, that have ended.

    It goes on a day before where the last import of the same cluster had come, or begins at `since_s`.
    HistoryError, without the password, where the database does not answer, forbids it or lacks a column.
    """
    total = ImportResult(0, 0, 0, 0, (), 0)
    with connection(url) as database:
        names = _tres_names(database)
        for table in _tables(database, options.cluster):
            key, changed_key = f"slurmdbd:{table.cluster}", f"slurmdbd-changed:{table.cluster}"
            cursors = history.index().cursors
            reached = cursors.get(key)
            begin = since_s if since_s is not None else max((reached or 0) - AGAIN_S, 1)
            source = (history, database, table, replace(options, tres_names=names))
            changed = int(database.value("SELECT unix_timestamp()") or 0)
            if reached is not None:
                before = cursors.get(changed_key, reached)
                if since_s is None:
                    # Rows that came, or were put right, after the import had passed the time at which they ended.
                    late = "j.mod_time >= %s AND j.time_end BETWEEN 1 AND %s", (before - 3600, begin - 1)
                    total = _sum(total, _import_window(*source, late, {}))
                elif since_s > reached:
                    changed = min(before, changed)  # what is passed over is late
            while True:
                end = _window_end(database, table, begin, window)
                if end is None:
                    latest = database.value(
                        f"SELECT max(time_end) FROM `{table.cluster}_job_table` WHERE time_end >= %s",
                        (begin,),
                    )
                    rows: _Rows = ("j.time_end >= %s", (begin,))
                    reached_now = {key: int(latest)} if latest else {}
                    total = _sum(total, _import_window(*source, rows, {**reached_now, changed_key: changed}))
                    break
                rows = ("j.time_end BETWEEN %s AND %s", (begin, end))
                total = _sum(total, _import_window(*source, rows, {key: end}))
                begin = end + 1
    return total


def _tables(database: Connection, cluster: str) -> list[Table]:
    shown = database.shown
    rows = database.all(
        "SELECT table_name, column_name FROM information_schema.columns "
        "WHERE table_schema = database() AND table_name REGEXP '_(job|step|suspend)_table$'"
    )
    found: dict[str, set[str]] = {}
    others: dict[tuple[str, str], set[str]] = {}
    for table, column in rows:
        name, _, kind = str(table).removesuffix("_table").rpartition("_")
        if kind == "job":
            found.setdefault(name, set()).add(str(column))
        else:
            others.setdefault((name, kind), set()).add(str(column))
    if not found or (cluster and cluster not in found):
        have = f"it has {', '.join(sorted(found))}" if found else "it has none, or this user may read none"
        raise HistoryError(
            f"{shown}: no jobs of cluster '{cluster or '…'}' (table CLUSTER_job_table); {have}"
        )
    for name, columns in found.items():
        if lacking := sorted(_NEEDED - columns):
            raise HistoryError(
                f"{shown}: table {name}_job_table lacks {', '.join(lacking)}; it is of a Slurm version that "
                "berth does not know (22.05 and later are read). `berth import sacct --run` works with any"
            )
        if not re.fullmatch(r"\w+", name):
            raise HistoryError(f"{shown}: a cluster's name has letters, digits and _, not {name!r}")
    return [
        Table(
            name,
            frozenset(found[name]),
            {kind: frozenset(others.get((name, kind), ())) for kind in ("step", "suspend")},
        )
        for name in sorted(found)
        if not cluster or name == cluster
    ]


def _tres_names(database: Connection) -> tuple[tuple[str, str], ...]:
    rows = database.all("SELECT id, type, name FROM tres_table")
    return tuple((str(number), f"{kind}/{name}" if name else str(kind)) for number, kind, name in rows)


def _window_end(database: Connection, table: Table, begin: int, rows: int) -> int | None:
    """The last second of a window of about this many rows; None if the rest has no more."""
    found = database.value(
        f"SELECT time_end FROM `{table.cluster}_job_table` WHERE time_end >= %s ORDER BY time_end LIMIT 1 OFFSET %s",
        (begin, rows),
    )
    return None if found is None else int(found)


_Rows = tuple[str, tuple[int, ...]]
"""Which rows of the table `j` are read: a condition, and its values."""


def _import_window(
    history: History,
    database: Connection,
    table: Table,
    options: Options,
    rows: _Rows,
    cursors: Mapping[str, int],
) -> ImportResult:
    with history.import_space() as space:
        path = space / "rows.txt"
        header = _write_rows(database, table, rows, path, dict(options.tres_names))
        where = f"{database.shown}, {table.cluster}"
        plain = replace(options, cluster=table.cluster, encoding="utf-8", timezone="UTC")
        text = TextTable(where, plain, Rejections(), path, SEPARATOR, Layout(header, where))
        return import_table(history, space, text, cursors)


def _write_rows(
    database: Connection, table: Table, wanted: _Rows, path: Path, names: Mapping[str, str]
) -> Sequence[str]:
    """Stream rows into a file; returns the names of their columns."""
    condition, values = wanted[0], wanted[1] * 2  # once for the steps, once for the jobs
    rows = (
        f"FROM `{table.cluster}_job_table` j "
        f"LEFT JOIN `{table.cluster}_assoc_table` a ON a.id_assoc = j.id_assoc "
        f"LEFT JOIN qos_table q ON q.id = j.id_qos {_steps(table, condition, names)} "
        f"WHERE {condition} AND j.deleted = 0"
    )
    database.renew()
    # A driver in Python takes its time for each row that comes, so the server packs many into one text. Where one is
    # too long and cut off, or a value holds what separates rows and fields, rows come one by one and are cleaned.
    database.all("SET SESSION group_concat_max_len = 8388608")
    columns = columns_of(table, _plain, names)
    packed = (
        f"SELECT count(*), group_concat({_row(columns)} SEPARATOR '\n') {rows} "
        f"GROUP BY j.job_db_inx DIV {PACKED_ROWS} ORDER BY NULL"
    )
    whole = True
    with path.open("w", encoding="utf-8", errors="replace", newline="") as file:
        file.write(SEPARATOR.join(columns) + "\n")
        for number, text in database.stream(packed, values):
            whole = whole and is_whole(text, number, len(columns))
            file.write(f"{text}\n")
        if not whole:
            file.seek(0)
            file.truncate()
            file.write(SEPARATOR.join(columns) + "\n")
            one_by_one = f"SELECT {_row(columns_of(table, _clean, names))} {rows}"
            file.writelines(f"{row[0]}\n" for row in database.stream(one_by_one, values))
    return tuple(columns)


def is_whole(text: str | None, rows: int, columns: int) -> bool:
    """Whether a text holds this many rows and columns, and no value holds what separates rows and fields."""
    if text is None or "\r" in text or "\0" in text:
        return False
    return text.count("\n") + 1 == rows and text.count(SEPARATOR) == rows * (columns - 1)


def _suspended(table: Table) -> str:
    """Seconds for which a job was suspended, as sreport leaves them out."""
    if not {"time_start", "time_end"} <= table.others.get("suspend", frozenset()):
        return "''"
    end = "least(if(s.time_end, s.time_end, j.time_end), j.time_end)"
    return (
        f"if(j.time_suspended, coalesce((SELECT sum(greatest({end} - greatest(s.time_start, j.time_start), 0)) "
        f"FROM `{table.cluster}_suspend_table` s WHERE s.job_db_inx = j.job_db_inx), ''), '')"
    )


def _amount(text: str, name: str, names: Mapping[str, str]) -> str:
    """What a list of resources says of one of them, as a number of SQL; NULL where it says nothing, or none."""
    number = next((number for number, known in names.items() if known == name), None)
    if number is None:
        return "NULL"
    value = (
        f"cast(substring_index(substring_index(concat(',', {text}), ',{number}=', -1), ',', 1) AS unsigned)"
    )
    # Most lists say nothing of it, and for these the number must cost nothing.
    return f"if(instr(concat(',', {text}), ',{number}='), if({value} <= {MOST_AMOUNT}, {value}, NULL), NULL)"


def _steps(table: Table, condition: str, names: Mapping[str, str]) -> str:
    """What the steps of each wanted job used, to be joined as `u`: CPU time in ms, peak memory in MiB, GPUs' peaks.

    Made once for all jobs: asked for job by job it took the server half as long again.
    """
    if not {"job_db_inx", *_OF_STEPS} <= table.others["step"]:
        none = "SELECT NULL AS job_db_inx, '' AS cpu_ms, '' AS mem, '' AS util, '' AS gpu_mem FROM"
        source = f"({none} `{table.cluster}_job_table` j WHERE {condition} AND false)"
        return f"LEFT JOIN {source} u ON u.job_db_inx = j.job_db_inx"
    used = "p.tres_usage_in_tot"
    return (
        "LEFT JOIN (SELECT p.job_db_inx, "
        "sum((p.user_sec + p.sys_sec) * 1000000 + p.user_usec + p.sys_usec) DIV 1000 AS cpu_ms, "
        f"ceil(max({_amount(used, 'mem', names)}) / 1048576) AS mem, "
        f"max({_amount(used, 'gres/gpuutil', names)}) AS util, "
        f"ceil(max({_amount(used, 'gres/gpumem', names)}) / 1048576) AS gpu_mem "
        f"FROM `{table.cluster}_step_table` p JOIN `{table.cluster}_job_table` j ON j.job_db_inx = p.job_db_inx "
        f"WHERE {condition} AND p.deleted = 0 GROUP BY p.job_db_inx) u ON u.job_db_inx = j.job_db_inx"
    )


def columns_of(table: Table, text_of: Callable[[str], str], names: Mapping[str, str]) -> dict[str, str]:
    """The SQL expression of each column of a row, by sacct's name; `text_of` makes the expression of a text column."""
    # An attempt that was given up to be queued again is "pending" with a flag, and has an end.
    states = ", ".join(f"'{name}'" for name in _STATES)
    ended = f"coalesce(elt((j.state & 255) + 1, {states}), j.state)"
    reasons = ", ".join(f"'{name}'" for name in _reasons("sluid" in table.columns))
    # It is kept as what wait(2) gives: the code in the second byte, the signal in the last seven bits.
    status = "if(j.exit_code < 65536, concat(j.exit_code >> 8, ':', j.exit_code & 127), '')"
    return {
        "JobIDRaw": "j.id_job",
        "Cluster": f"'{table.cluster}'",
        "JobName": text_of("j.job_name"),
        "User": text_of("coalesce(a.user, '')"),
        "Account": text_of("j.account"),
        "Partition": text_of("j.`partition`"),
        "QOS": text_of("q.name"),
        "State": f"if(j.state & 1024 and j.state & 255 < 2, 'REQUEUED', {ended})",
        "Submit": "j.time_submit",
        "Eligible": "j.time_eligible",
        "Start": "j.time_start",
        "End": "j.time_end",
        "TimelimitRaw": "j.timelimit",
        "NNodes": "j.nodes_alloc",
        "NCPUS": "j.cpus_req",
        "AllocTRES": "j.tres_alloc",
        "ReqTRES": "j.tres_req",
        "NodeList": "coalesce(j.nodelist, '')",
        "Reason": f"coalesce(elt(j.state_reason_prev + 1, {reasons}), j.state_reason_prev)",
        "Comment": text_of("j.derived_es"),
        "Container": text_of("j.container") if "container" in table.columns else "''",
        "SubmitLine": text_of("j.submit_line") if "submit_line" in table.columns else "''",
        "ExitCode": f"coalesce({status}, '')" if "exit_code" in table.columns else "''",
        "JobID": _LABEL if {"id_array_job", "het_job_id"} <= table.columns else "j.id_job",
        "SuspendedRaw": _suspended(table),
        "ConsumedEnergyRaw": f"coalesce({_amount('j.tres_alloc', 'energy', names)}, '')",
        "TotalCPURaw": "coalesce(u.cpu_ms, '')",
        "MemPeakMiB": "coalesce(u.mem, '')",
        "GPUUtilPeak": "coalesce(u.util, '')",
        "GPUMemPeakMiB": "coalesce(u.gpu_mem, '')",
    }


def _row(columns: Mapping[str, str]) -> str:
    """A row as one text of SQL."""
    return f"CONCAT_WS(CHAR(31 USING utf8mb4), {', '.join(columns.values())})"


def _plain(column: str) -> str:
    """A text as it is."""
    return f"coalesce({column}, '')"


def _clean(column: str) -> str:
    """A text without what separates fields and rows."""
    clean = f"coalesce({column}, '')"
    for code in (31, 10, 13, 0):
        clean = f"replace({clean}, CHAR({code} USING utf8mb4), ' ')"
    return clean


@lru_cache(maxsize=2)
def _reasons(with_sluid: bool) -> tuple[str, ...]:
    """Slurm's names of why a job waits, by their number, as 22.05, 24.11 and 26.05 have them.

    Later Slurms have added to them. One number was given away: to the last of them, whose jobs have a SLUID.
    """
    text = (files("berth.history.values") / "rules" / "slurm_reasons.txt").read_text(encoding="utf-8")
    names = text.split()
    if with_sluid:
        names[names.index("FrontEndDown")] = "NvidiaImexChannels"
    return tuple(names)


def _sum(one: ImportResult, other: ImportResult) -> ImportResult:
    return ImportResult(*(getattr(one, each.name) + getattr(other, each.name) for each in fields(one)))


Values = tuple[int, ...]

_EXPECTED: Final = "expected mysql+pymysql://user:password@host/database"
_ADDRESS: Final = re.compile(
    r"(?P<kind>\w+)(?:\+(?P<driver>\w+))?://(?:(?P<user>[^:/]*)(?::(?P<password>[^@]*))?@)?"
    r"(?:\[(?P<host6>[^]/?]+)\]|(?P<host>[^:/?]*))(?::(?P<port>\d+))?(?:/(?P<database>[^?]*))?(?:\?(?P<query>.*))?"
)
_OPTIONS: Final = ("ssl_ca", "ssl_cert", "ssl_key", "unix_socket")
"""What may follow the address, as `?ssl_ca=/etc/ca.pem`."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A session that only reads."""

    _session: pymysql.Connection[Any]
    shown: str
    """The address as it may be shown, without the password."""

    def all(self, query: str, values: Values = ()) -> Sequence[tuple[Any, ...]]:
        """All rows."""
        with self._session.cursor() as cursor:
            cursor.execute(query, values or None)
            return tuple(cursor.fetchall())

    def value(self, query: str, values: Values = ()) -> Any:
        """The first value of the first row; None if there is no row."""
        rows = self.all(query, values)
        return rows[0][0] if rows else None

    def stream(self, query: str, values: Values = ()) -> Iterator[tuple[Any, ...]]:
        """Rows as the server sends them."""
        from pymysql.cursors import SSCursor

        with self._session.cursor(SSCursor) as cursor:
            cursor.execute(query, values or None)
            yield from cursor

    def renew(self) -> None:
        """Begin a transaction anew: what is asked from now on is of one moment."""
        self._session.rollback()


@contextmanager
def connection(url: str) -> Iterator[Connection]:
    """A connection to the database of an address such as `mysql+pymysql://user:password@host:3306/name`.

    SettingError if it is no such address; HistoryError, without the password, if the database does not answer or
    forbids what it is asked.
    """
    words, shown = _parts(url)
    try:
        import pymysql
    except ImportError as error:
        raise MissingExtraError("berth import slurmdbd", "slurm") from error
    try:
        session = pymysql.connect(**words, charset="utf8mb4")
        try:
            found = Connection(session, shown)
            found.all("SET SESSION TRANSACTION READ ONLY")
            found.all("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            found.renew()  # the settings hold from the next transaction on
            yield found
        finally:
            session.close()
    except (pymysql.MySQLError, OSError) as error:
        reason = re.sub(r"\s+", " ", str(error))
        raise HistoryError(
            f"{shown}: {reason[:300]}. What came before is kept; the next import goes on from there"
        ) from error


def _parts(url: str) -> tuple[dict[str, Any], str]:
    """What PyMySQL is to be called with, and the address without its password."""
    parts = _ADDRESS.fullmatch(url)
    if parts is None:
        raise SettingError(f"no address of a database; {_EXPECTED}")
    if parts["kind"] not in ("mysql", "mariadb") or parts["driver"] not in (None, "pymysql"):
        kind = parts["kind"] + (f"+{parts['driver']}" if parts["driver"] else "")
        raise SettingError(f"slurmdbd keeps its jobs in MySQL or MariaDB, not in '{kind}'; {_EXPECTED}")
    options = dict(parse_qsl(parts["query"] or ""))
    options.pop("charset", None)
    if odd := sorted(options.keys() - set(_OPTIONS)):
        raise SettingError(
            f"the address of the database has {', '.join(odd)}; it may have {', '.join(_OPTIONS)}"
        )
    words = {
        "host": parts["host6"] or parts["host"] or "localhost",
        "port": int(parts["port"] or 3306),
        "user": unquote(parts["user"] or ""),
        "password": unquote(parts["password"] or ""),
        "database": unquote(parts["database"] or ""),
        **options,
    }
    first, last = (parts.start("password"), parts.end("password"))
    return words, url if first < 0 else f"{url[:first]}***{url[last:]}"
