"""sacct's output into the history: text with any delimiter, JSON, or what a run of sacct itself prints."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final

from berth.errors import HistoryError
from berth.history.importing.columns import Layout, layout_of
from berth.history.importing.job_row import JobRow
from berth.history.importing.staging import stage_file, stage_jobs
from berth.history.store.database import connect, storable
from berth.history.store.folder import History
from berth.history.store.import_result import ImportResult, Options, Rejections

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
    name: str = "",
    cursors: Mapping[str, int] | None = None,
) -> ImportResult:
    """Import a table of text with a header line; None reads standard input.

    The delimiter is found in the header where none is given. HistoryError where the file is no such table.
    """
    where = name or (str(path) if path else "standard input")
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
        return import_file(history, space, path, chosen, layout, options, where, cursors=cursors)


def import_file(
    history: History,
    space: Path,
    path: Path,
    delimiter: str,
    layout: Layout,
    options: Options,
    where: str,
    *,
    cursors: Mapping[str, int] | None = None,
    rejections: Rejections | None = None,
    tasks: bool = False,
) -> ImportResult:
    """Import a text table whose header is known, in the space of an import; `where` is what messages call it."""
    rejections = rejections or Rejections()
    with connect(space) as database:
        staged = stage_file(database, path, delimiter, layout, space, options, rejections, where, tasks=tasks)
        return history.merge(database, staged, rejections, cursors)


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
        layout = Layout(header, where)
        return import_file(
            history, space, path, SEPARATOR, layout, plain, where, rejections=rejections, tasks=tasks
        )


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
    with history.import_space() as space, connect(space) as database:
        staged = stage_jobs(database, jobs, options, rejections, where, absent)
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
            _run(words, out)
        layout = layout_of(_header(path, "sacct", "utf-8"), SEPARATOR, "sacct")
        cursors = {} if until else {key: began_s}
        return import_file(history, space, path, SEPARATOR, layout, options, "sacct", cursors=cursors)


def _run(words: Sequence[str], out: BinaryIO) -> None:
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


def _header(path: Path, where: str, encoding: str) -> str:
    try:
        with path.open("rb") as file:
            line = file.readline(_BLOCK)
    except OSError as error:
        raise HistoryError(f"{where} cannot be read: {error.strerror or error}") from error
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
