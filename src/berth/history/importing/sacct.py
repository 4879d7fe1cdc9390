"""sacct's output into the history: text with any delimiter, JSON, or what a run of sacct itself prints."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, Final

import duckdb

from berth.errors import HistoryError, SettingError, cause_of
from berth.gpu_models import GPU_MODELS
from berth.history.importing.columns import (
    STATE_CASE,
    Layout,
    Source,
    TextTable,
    layout_of,
    read_file,
    size_mib,
)
from berth.history.importing.job_row import JobRow, stage_rows
from berth.history.store.database import (
    at,
    connect,
    count,
    first_line,
    literal,
    named_errors,
    readable,
    storable,
)
from berth.history.store.folder import History
from berth.history.store.identity import IS_LABEL
from berth.history.store.import_result import (
    LISTED_PER_REASON,
    ImportResult,
    Options,
    Rejected,
    Rejections,
    Staged,
)
from berth.history.store.lookups import applications_of, hide, look_up
from berth.history.store.pseudonyms import PSEUDONYMISED, key_mark
from berth.history.values.applications import read_rules

SEPARATOR: Final = "\x1f"
"""What cannot be in a job's name, unlike `|`."""

FIELDS: Final = (
    *("JobIDRaw", "JobID", "Cluster", "JobName", "User", "Account", "Partition", "QOS", "State", "Submit"),
    *("Eligible", "Start", "End", "TimelimitRaw", "NNodes", "NCPUS", "AllocTRES", "ReqTRES", "NodeList"),
    *("Reason", "Comment", "Container", "SubmitLine", "ExitCode", "Suspended"),
)

_DELIMITERS: Final = (SEPARATOR, "|", "\t", ";", ",")
_BLOCK: Final = 1 << 20


def import_text(
    history: History,
    path: Path | None,
    options: Options,
    *,
    delimiter: str | None = None,
) -> ImportResult:
    """Import a table of text with a header line; None reads standard input.

    The delimiter is found in the header where none is given. HistoryError where the file is no such table.
    """
    where = str(path) if path else "standard input"
    with history.import_space() as space:
        if path is None:
            path = space / "input.txt"
            with path.open("wb") as file:
                shutil.copyfileobj(sys.stdin.buffer, file, _BLOCK)
        header = _header(path, where, options.encoding)
        chosen = delimiter or next((mark for mark in _DELIMITERS if mark in header), "|")
        if len(chosen.encode()) > 4:
            raise HistoryError(f"a delimiter has up to 4 bytes, not {chosen!r}")
        layout = layout_of(header, chosen, where)
        table = TextTable(where, options, Rejections(), path, chosen, layout)
        return import_table(history, space, table)


def import_table(
    history: History, space: Path, table: TextTable, cursors: Mapping[str, int] | None = None
) -> ImportResult:
    """Import a text table whose header is known, in the space of an import."""
    with connect(space) as database:
        try:
            staged = _staged_table(database, table, space)
        except duckdb.Error as error:
            message = f"{table.where}: {first_line(error)}"
            if line := _bare_return(table.path):
                message = (
                    f"{table.where}, line {line}: nothing but a carriage return; expected lines that all end in the"
                    f" same way. `tr -d '\\r' < {table.where}` makes them so"
                )
            raise HistoryError(message) from error
        return history.merge(database, staged, table.rejections, cursors)


def import_rows(
    history: History,
    rows: Iterable[Sequence[object]],
    header: Sequence[str],
    options: Options,
    where: str,
    rejections: Rejections,
    *,
    tasks: bool = False,
) -> ImportResult:
    """Import rows of texts that another reader made, in sacct's columns; `rejections` are those that it left out.

    With `tasks` rows of one job and moment of submission, but of other times, are tasks of an array.
    """
    with history.import_space() as space:
        path = space / "rows.txt"
        with path.open("w", encoding="utf-8", newline="") as file:
            for row in (header, *rows):
                texts = ("" if value is None else storable(str(value)) for value in row)
                file.write(SEPARATOR.join(texts) + "\n")
        plain = replace(options, encoding="utf-8")
        table = TextTable(where, plain, rejections, path, SEPARATOR, Layout(header, where), tasks)
        return import_table(history, space, table)


def import_jobs(
    history: History,
    jobs: Iterable[JobRow],
    options: Options,
    where: str,
    rejections: Rejections,
    absent: Sequence[str] = (),
) -> ImportResult:
    """Import jobs of another accounting; `rejections` are those that its reader left out.

    `absent` are the texts of a record that this accounting does not have.
    """
    source = Source(where, options, rejections)
    with history.import_space() as space, connect(space) as database:
        with named_errors(where):
            rows = stage_rows(database, jobs, options.cluster, read_models(options.nodes))
            staged = _staged(database, rows, source, absent, labelled=True)
        return history.merge(database, staged, rejections)


def run_sacct(
    history: History, options: Options, *, since: str = "", until: str = "", command: str = "sacct"
) -> ImportResult:
    """Run sacct for all users and import what it prints; HistoryError with its words where it fails.

    Times are asked for as seconds since 1970, so that no time zone is guessed. Without `since`, it goes on
    where the last run that read so far ended, an hour earlier.
    """
    key = f"sacct:{options.cluster}"
    known = history.index().cursors.get(key)
    if not since:
        since = (
            f"{datetime.fromtimestamp(max(known - 3600, 0), UTC):%Y-%m-%dT%H:%M:%S}"
            if known
            else "1970-01-02"
        )
    words = [
        command,
        "--allusers",
        "--duplicates",
        "--allocations",
        "--parsable2",
        f"--delimiter={SEPARATOR}",
    ]
    words += [f"--starttime={since}", f"--endtime={until or 'now'}", f"--format={','.join(FIELDS)}"]
    if options.cluster:
        words.append(f"--clusters={options.cluster}")
    began_s = int(datetime.now(UTC).timestamp())
    with history.import_space() as space:
        path = space / "sacct.txt"
        with path.open("wb") as out:
            run(words, out)
        layout = layout_of(_header(path, "sacct", "utf-8"), SEPARATOR, "sacct")
        cursors = {} if until else {key: began_s}
        table = TextTable("sacct", options, Rejections(), path, SEPARATOR, layout)
        return import_table(history, space, table, cursors)


def run(words: Sequence[str], out: BinaryIO | int) -> bytes:
    """What a command of Slurm prints, if `out` is a pipe; HistoryError with its words where it fails."""
    environment = {**os.environ, "SLURM_TIME_FORMAT": "%s", "TZ": "UTC"}
    try:
        done = subprocess.run(words, stdout=out, stderr=subprocess.PIPE, env=environment, check=False)
    except OSError as error:
        raise HistoryError(f"{words[0]} cannot be run: {error.strerror or error}") from error
    if done.returncode:
        errors = done.stderr.decode(errors="replace").strip().splitlines()
        raise HistoryError(
            f"{words[0]} failed with status {done.returncode}: {errors[-1] if errors else 'no message'}"
        )
    return done.stdout or b""


def _header(path: Path, where: str, encoding: str) -> str:
    with readable(where), path.open("rb") as file:
        line = file.readline(_BLOCK)
    if not line.strip():
        raise HistoryError(f"{where} is empty; expected a header line and rows, as `sacct -P` prints them")
    try:
        return line.decode(encoding).lstrip("\ufeff")
    except LookupError as error:
        raise HistoryError(
            f"no encoding '{encoding}'; there are utf-8, latin-1, utf-16 and others of Python"
        ) from error
    except UnicodeDecodeError as error:
        raise HistoryError(f"{where}, line 1 is not {encoding}: {error}") from error


def _staged_table(database: duckdb.DuckDBPyConnection, table: TextTable, space: Path) -> Staged:
    """Stage a text table. What is staged can be used while the database and the files of `space` exist."""
    layout, options = table.layout, table.options
    read_file(database, table, space / "rows")
    rows = _with_comments_of_steps(database, f"read_parquet({at(space / 'rows')})", layout, space)
    look_up(database, rows, dict(options.tres_names), read_models(options.nodes))
    rows = _with_use_of_steps(database, rows, layout)
    ruled = not layout.has("application")
    staged = _staged(database, rows, table, layout.absent(), labelled=layout.labelled, ruled=ruled)
    return replace(staged, tasks=table.tasks)


def _staged(
    database: duckdb.DuckDBPyConnection,
    rows: str,
    source: Source,
    absent: Sequence[str],
    *,
    labelled: bool,
    ruled: bool = True,
) -> Staged:
    """Judge `rows`, a relation of SQL, and make views of those that come in."""
    options, rules = source.options, read_rules(source.options.rules)
    applications_of(database, "apps", rows, rules)
    left_out = source.rejections.count
    read = left_out + _judged_rows(database, rows, source, labelled=labelled)
    hide(database, rows, options.key)
    database.execute(f"CREATE VIEW staged AS SELECT * EXCLUDE whole_gpus FROM ({attempts_of(options)})")
    database.execute(
        "CREATE VIEW staged_keys AS "
        "SELECT cluster, id AS job_id, submit_ms AS queued_ms, end_ms FROM judged WHERE why IS NULL"
    )
    database.execute(
        "CREATE VIEW staged_silent AS SELECT cluster, id AS job_id, submit_ms AS queued_ms FROM judged "
        "WHERE why IS NULL AND alloc = '' AND req = ''"
    )
    database.execute(
        "CREATE VIEW staged_labels AS SELECT cluster, id AS job_id, label, submit_ms AS queued_ms FROM judged "
        "WHERE why IS NULL AND label <> id"
    )
    return Staged(
        read,
        tuple(absent),
        key_mark=key_mark(options.key),
        silent="staged_silent",
        rules=rules if ruled else None,
        labels="staged_labels" if labelled else "",
    )


def _bare_return(source: Path) -> int | None:
    """The first line that is a carriage return alone, which DuckDB cannot read among others; None for none."""
    with source.open("rb") as file:
        return next((number for number, line in enumerate(file, 1) if line in (b"\r\n", b"\r")), None)


_YEAR_1971_MS = 31_536_000_000
_YEAR_2100_MS = 4_102_444_800_000
_DAY_MS = 86_400_000
"""A time in 1970 is a clock or a field that stood at nothing, unless the whole table counts from there."""


def _impossible(name: str) -> str:
    """The reason why a job that ended cannot have this time."""
    time = f"{name}_ms"
    outside = f"{time} NOT BETWEEN {-_DAY_MS} AND {_YEAR_2100_MS - 1}"
    unset = f"{time} < {_YEAR_1971_MS} AND end_ms >= {_YEAR_1971_MS}"
    shown = f"strftime(make_timestamp({time} * 1000), '%Y-%m-%d %H:%M:%S')"
    return f"WHEN {outside} OR ({unset}) THEN '{name.title()} is ' || {shown} || ' UTC, which cannot be'"


_WHY = f"""
    CASE
        WHEN contains(label, '.') OR contains(id, '.') THEN 'step'
        WHEN id = '' THEN 'no job id'
        WHEN state IS NULL THEN 'state ''' || state_text || ''' is none of Slurm''s'
        WHEN submit_bad IS NOT NULL THEN 'Submit is ''' || submit_bad || ''', which is no time'
        WHEN start_bad IS NOT NULL THEN 'Start is ''' || start_bad || ''', which is no time'
        WHEN end_bad IS NOT NULL THEN 'End is ''' || end_bad || ''', which is no time'
        WHEN submit_ms IS NULL THEN 'no time of submission'
        WHEN state = '…' OR end_ms IS NULL THEN 'has not ended; it comes in once it has'
        {" ".join(_impossible(name) for name in ("submit", "start", "end"))}
        WHEN end_ms < submit_ms THEN 'ends before it was submitted'
        WHEN start_ms > end_ms THEN 'ends before it starts'
        WHEN start_ms < submit_ms THEN 'starts before it was submitted'
        WHEN gpu_use NOT BETWEEN 0 AND 1 OR gpu_mem NOT BETWEEN 0 AND 1 THEN
            'GPU use is no fraction from 0 to 1'
    END
"""

_RESOURCES = {"gpu": "GPUs", "cpu": "CPUs", "mem": "memory"}


def _no_number(what: str) -> str:
    """The reason why a job stays out of whose resources one has a mark of Slurm's for none, and nothing tells more."""

    def among(text: str, condition: str) -> str:
        return f"{text} IN (SELECT text FROM tres WHERE {condition})"

    marked = f"contains(unknown, ' {what}')"
    if what == "gpu":
        odd = among("CASE WHEN start_ms IS NULL THEN req ELSE alloc END", marked)
    else:
        given = {"cpu": "cpus > 0", "mem": "mem_mib > 0"}[what]
        odd = f"({among('alloc', marked)} OR {among('req', marked)})"
        odd += f" AND NOT {among('alloc', given)} AND NOT {among('req', given)}"
        odd += " AND coalesce(cpus, 0) = 0" if what == "cpu" else ""
    name = _RESOURCES[what]
    return (
        f"WHEN {odd} THEN 'AllocTRES and ReqTRES tell no number for {name}, but a mark of Slurm''s for none'"
    )


STEP = "a step; its job's own row counts it"


def _judged_rows(database: duckdb.DuckDBPyConnection, rows: str, source: Source, *, labelled: bool) -> int:
    """Make the view `judged` of all rows and why they stay out; note those; returns how many rows there are."""
    label = "" if labelled else "id AS label, "
    why = _WHY
    if count(database, "SELECT count(*) FROM tres WHERE unknown <> ''"):
        why = f"CASE WHEN {_WHY} IS NOT NULL THEN {_WHY} {' '.join(map(_no_number, _RESOURCES))} END"
    database.execute(
        f"CREATE VIEW judged AS SELECT *, {why} AS why FROM "
        f"(SELECT *, {label}{STATE_CASE.format(column='state_text')} AS state FROM {rows})"
    )
    counts = database.execute(
        "SELECT coalesce(why, ''), count(*) FROM judged GROUP BY 1 ORDER BY 1"
    ).fetchall()
    for why, number in counts:
        if why:
            listed = database.execute(
                "SELECT label, submit_ms FROM judged WHERE why = ? ORDER BY label, submit_ms LIMIT ?",
                [why, LISTED_PER_REASON],
            ).fetchall()
            text = STEP if why == "step" else why
            source.rejections.extend(
                (Rejected(f"{source.where}, job {label}", text) for label, _ in listed), number - len(listed)
            )
    return sum(number for _, number in counts)


def _with_use_of_steps(database: duckdb.DuckDBPyConnection, rows: str, layout: Layout) -> str:
    """The rows of a table, those of jobs with what was measured of their steps, if there are any.

    A job's memory is that of the step that had most. A step belongs to the attempt in whose run it began.
    """
    if not layout.of_steps:
        return rows
    pattern = "regexp_extract(usage, '(?:^|,){}=([^,]+)', 1)"
    memory, gpu_memory = (size_mib(pattern.format(name)) for name in ("mem", "gres/gpumem"))
    database.execute(
        f"CREATE TABLE steps AS SELECT cluster, split_part(id, '.', 1) AS id, start_ms AS begun_ms, cpu_used_ms, "
        f"coalesce(nullif({memory}, 0), mem_peak_mib) AS mem_peak_mib, nullif({gpu_memory}, 0) AS gpu_peak_mib, "
        f"nullif(try_cast({pattern.format('gres/gpuutil')} AS BIGINT), 0) AS gpu_peak_pct "
        f"FROM {rows} WHERE contains(id, '.') AND start_ms IS NOT NULL"
    )
    if not count(database, "SELECT count(*) FROM steps"):
        return rows
    kinds = {"cpu_used_ms": "sum", "mem_peak_mib": "max", "gpu_peak_pct": "max", "gpu_peak_mib": "max"}
    database.execute(
        "CREATE TABLE of_steps AS SELECT cluster, id, submit_ms, "
        + ", ".join(f"{kind}(s.{name})::BIGINT AS {name}" for name, kind in kinds.items())
        + f" FROM {rows} j JOIN steps s USING (cluster, id) "
        "WHERE s.begun_ms BETWEEN j.start_ms AND j.end_ms GROUP BY ALL"
    )
    merged = ", ".join(f"coalesce(j.{name}, s.{name}) AS {name}" for name in kinds)
    return (
        f"(SELECT j.* REPLACE ({merged}) FROM {rows} j LEFT JOIN of_steps s USING (cluster, id, submit_ms))"
    )


def _with_comments_of_steps(
    database: duckdb.DuckDBPyConnection, rows: str, layout: Layout, space: Path
) -> str:
    """The rows of a table, those of jobs without a comment with that of their first step that has one."""
    if not layout.has("comment"):
        return rows
    steps = f"(SELECT cluster, split_part(id, '.', 1) AS id, start_ms AS begun_ms, comment FROM {rows} "
    steps += "WHERE contains(id, '.') AND comment <> '')"
    if not count(database, f"SELECT count(*) FROM {steps}"):
        return rows
    path = space / "commented"
    found = (
        f"SELECT cluster, id, submit_ms, arg_min(s.comment, s.begun_ms) AS said FROM {rows} j "
        f"JOIN {steps} s USING (cluster, id) WHERE s.begun_ms BETWEEN j.start_ms AND j.end_ms GROUP BY ALL"
    )
    database.execute(
        "COPY (SELECT j.* REPLACE (CASE WHEN j.comment = '' THEN coalesce(said, '') ELSE j.comment END AS comment) "
        f"FROM {rows} j LEFT JOIN ({found}) USING (cluster, id, submit_ms)) TO {literal(path)} (FORMAT parquet)"
    )
    return f"read_parquet({at(path)})"


_GPU_TYPE = re.compile(r"(?:^|,)gpu:([A-Za-z][\w.-]*)(?::\d+)?")


def read_models(path: Path | None) -> dict[str, str]:
    """The GPU model of each node, for jobs whose accounting does not tell; empty without a file.

    SettingError where no line of it names a node and its GPU type.
    """
    if path is None:
        return {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"{path} cannot be read as a list of nodes: {cause_of(error)}") from error
    found = {}
    for line in lines:
        node, _, gres = line.strip().partition(" ")
        if model := _GPU_TYPE.search(gres.strip()):
            found[node] = model[1]
    if not found:
        raise SettingError(
            f"{path} names no node with a GPU type; expected lines such as 'gpu01 gpu:a100:8', as "
            "`sinfo -h -N -o '%N %G'` prints them"
        )
    return found


_AMBIGUOUS: Final = frozenset(("V100", "P100"))
"""Names under which cards of different memory are sold."""


def attempts_of(options: Options) -> str:
    """A SELECT of the `judged` rows that come in, with every column of a record but `attempt` and `submit_ms`.

    It joins the tables `tres`, `hosts`, `apps` and, with a key, `hidden`. `whole_gpus` is a column more.
    """
    names = {kind: f"judged.{kind}" for kind in PSEUDONYMISED}
    hidden = ""
    if options.key:
        names = {kind: f"hidden_{kind}.pseudonym" for kind in PSEUDONYMISED}
        hidden = " ".join(
            f"JOIN hidden hidden_{kind} ON hidden_{kind}.kind = '{kind}' AND hidden_{kind}.text = judged.{kind}"
            for kind in PSEUDONYMISED
        )
    ran = "start_ms IS NOT NULL"
    # A number of nodes that Slurm marks as none, or that is not there, is that of the names, or of the resources.
    nodes = (
        "coalesce(node_count, nullif(len(hosts.names), 0), nullif(given.nodes, 0), nullif(asked.nodes, 0), 0)"
    )
    gpus = f"coalesce(nullif({{0}}.gpus, 0), {{0}}.gpus_a_node * greatest({nodes}, 1))"
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
    # Slurm's CODE:SIGNAL, or a code alone; a job that never ran has 0:0 there.
    code, signal = (f"try_cast(split_part(judged.exit::VARCHAR, ':', {at}) AS INTEGER)" for at in (1, 2))
    exit_code = f"CASE WHEN {code} = 0 AND {signal} BETWEEN 1 AND 127 THEN 128 + {signal} ELSE {code} END"
    comment, command = ("''", "''") if options.key else ("judged.comment", "judged.command")
    of_all, memory = (
        "gpu_mem_peak / nullif(gpus, 0)",
        f"(CASE replace(upper(gpu_model), '_', '-') {_memory_cases()} END)",
    )
    return f"""
        SELECT * REPLACE (
            CASE WHEN gpus > 0 AND gpu_use_peak > 0 THEN least(gpu_use_peak / 100 / gpus, 1.0) END AS gpu_use_peak,
            CASE WHEN {of_all} <= {memory} THEN {of_all} / {memory} END AS gpu_mem_peak) FROM (
        SELECT id AS job_id, {names["user"]} AS user,
            coalesce(nullif(judged.application, ''), apps.application) AS application,
            partition AS virtual_cluster, submit_ms AS queued_ms, start_ms, end_ms, state,
            (CASE WHEN {ran} THEN {given} ELSE {asked} END) AS whole_gpus,
            (CASE WHEN whole_gpus > 0 THEN whole_gpus {of_shards} ELSE 0 END)::INTEGER AS gpus,
            ({milli})::INTEGER AS share_milli, 0::BIGINT AS share_mem_mib,
            1000 * coalesce(nullif(given.cpus, 0), nullif(asked.cpus, 0), judged.cpus, 0) AS cpu_milli,
            coalesce(nullif(given.mem_mib, 0), asked.mem_mib) AS mem_mib,
            hosts.names AS nodes,
            coalesce(nullif(given.gpu_model, ''), nullif(asked.gpu_model, ''),
                CASE WHEN whole_gpus > 0 THEN hosts.gpu_model ELSE '' END) AS gpu_model,
            NULL::BIGINT AS work_ms, gpu_use AS gpu_use_mean,
            gpu_peak_pct::DOUBLE AS gpu_use_peak, gpu_mem AS gpu_mem_mean, gpu_peak_mib::DOUBLE AS gpu_mem_peak,
            cluster, {names["name"]} AS name,
            {names["account"]} AS account, qos,
            (CASE WHEN {ran} THEN {nodes} ELSE 0 END)::INTEGER AS node_count,
            limit_min * 60000 AS time_limit_ms, eligible_ms,
            (CASE WHEN reason = 'None' THEN '' ELSE reason END) AS wait_reason,
            {comment} AS comment, {command} AS command,
            (CASE WHEN {ran} THEN {exit_code} END)::INTEGER AS exit_code, '' AS end_reason,
            CASE WHEN label <> id OR {IS_LABEL.format("id")} THEN label ELSE '' END AS label,
            CASE WHEN {ran} THEN suspended_ms END AS suspended_ms, cpu_used_ms, mem_peak_mib,
            nullif(energy_j, 0) AS energy_j, -- 0 is what Slurm writes where nothing measures it
            []::VARCHAR[] AS gpu_slots, NULL::BIGINT AS priority
        FROM judged {hidden}
        JOIN tres given ON given.text = alloc JOIN tres asked ON asked.text = req
        JOIN hosts ON hosts.text = node_list
        JOIN apps ON apps.name = judged.name AND apps.comment = judged.comment AND apps.command = judged.command
        WHERE why IS NULL)
    """


@lru_cache(maxsize=1)
def _memory_cases() -> str:
    """What the memory of one GPU of a model is, MiB; NULL if the name does not say."""
    return " ".join(
        f"WHEN '{name.upper()}' THEN {model.mem_mib}.0"
        for name, model in GPU_MODELS.items()
        if model.mem_mib and name not in _AMBIGUOUS
    )
