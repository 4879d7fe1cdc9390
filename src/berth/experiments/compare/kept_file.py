"""A finished run as a Parquet file, so that an experiment can be continued and DuckDB reads all runs as one table.

A row a file: what was run (`policy`, `seed`, `trace`, `task`), every number of its summary under the names of the
JSON, nested ones joined by an underscore (`waiting_time_s_mean`), `summary` as JSON, and `curves`, the arrays that
plots are drawn from, as NumPy's own file format. `task` is a digest of all that decides the result; a run is taken
from a file only where it is the same.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import duckdb
import numpy as np
from numpy.typing import NDArray

from berth.errors import HistoryError
from berth.experiments.compare.interruption import interruption_put_off
from berth.files import whole_file
from berth.history.store.database import first_line
from berth.policies import Progress
from berth.policies.options import files_named
from berth.version import __version__

Work = TypeVar("Work")
Done = TypeVar("Done")
Asked = TypeVar("Asked", contravariant=True)


@dataclass(frozen=True, slots=True, eq=False)
class KeptFile:
    """What is in the file of one run."""

    policy: str
    seed: int
    trace: str
    task: str
    summary: dict[str, Any]
    """Numbers, texts and dicts of them, as JSON has them: NaN is None."""
    curves: dict[str, NDArray[Any]]
    skipped: tuple[dict[str, Any], ...] = ()


class Kept(Protocol[Asked, Done]):
    """The finished runs of one experiment."""

    def load(self, task: Asked, /) -> Done | None:
        """The finished run of a task; None where there is none, or one under other conditions."""

    def save(self, task: Asked, done: Done, /) -> None:
        """Keep a finished run; the file is there whole or not at all."""


def continued(
    tasks: Sequence[Work],
    store: Kept[Work, Done],
    run: Callable[[Sequence[Work], Progress | None], Iterator[tuple[Work, Done]]],
    progress: Progress | None = None,
) -> Iterator[tuple[Work, Done]]:
    """Every task with its run: the kept ones first, then the others as `run` has done them, kept in turn."""
    missing: list[Work] = []
    for task in tasks:
        found = store.load(task)
        if found is None:
            missing.append(task)
        else:
            yield task, found
    done = len(tasks) - len(missing)
    part = None if progress is None else lambda number, _: progress(done + number, len(tasks))
    for task, result in run(missing, part) if missing else ():
        store.save(task, result)
        yield task, result


def kept_path(folder: Path, name: str, *more: object) -> Path:
    """Where the run of a policy of that name is kept; whatever else tells it from other runs follows."""
    readable = re.sub(r"[^A-Za-z0-9_.+-]", "_", name)
    mark = hashlib.sha256(name.encode()).hexdigest()[:6]
    return folder / ".".join([readable, mark, *map(str, more), "parquet"])


def read_kept(path: Path, task: str) -> KeptFile | None:
    """The run in a file; None where there is none, it is damaged, or it is not of this task."""
    if not path.exists():
        return None
    with interruption_put_off(), duckdb.connect() as database:
        try:
            row = database.execute(
                "SELECT policy, seed, trace, task, summary, curves, skipped FROM read_parquet(?)", [str(path)]
            ).fetchone()
        except duckdb.Error:
            return None  # damaged, or of another kind: it is run again and written anew
    if row is None or row[3] != task:
        return None
    policy, seed, trace, _, summary, packed, skipped = row
    with np.load(io.BytesIO(packed), allow_pickle=False) as arrays:
        curves = {name: arrays[name] for name in arrays.files}
    return KeptFile(policy, seed, trace, task, json.loads(summary), curves, tuple(json.loads(skipped)))


def write_kept(path: Path, run: KeptFile) -> None:
    """Write the file of a run aside and rename it. HistoryError where that cannot be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stream = io.BytesIO()
    arrays: dict[str, Any] = dict(run.curves)
    with interruption_put_off():  # NumPy's archive would end in an error of its own
        np.savez_compressed(stream, **arrays)
    columns: dict[str, tuple[str, object]] = {
        "policy": ("VARCHAR", run.policy),
        "seed": ("BIGINT", run.seed),
        "trace": ("VARCHAR", run.trace),
        "task": ("VARCHAR", run.task),
        **_values(run.summary),
        "summary": ("VARCHAR", json.dumps(run.summary)),
        "curves": ("BLOB", stream.getvalue()),
        "skipped": ("VARCHAR", json.dumps(run.skipped)),
    }
    chosen = ", ".join(f'?::{kind} AS "{name}"' for name, (kind, _) in columns.items())
    with interruption_put_off(), duckdb.connect() as database:
        try:
            database.execute(f"CREATE TABLE run AS SELECT {chosen}", [value for _, value in columns.values()])
            with whole_file(path) as part_file:
                quoted = str(part_file).replace("'", "''")
                database.execute(f"COPY run TO '{quoted}' (FORMAT parquet)")
        except (duckdb.Error, OSError) as error:
            raise HistoryError(f"{path} cannot be written: {first_line(error)}") from error


def digest_of(*parts: object) -> str:
    """A fingerprint of what decides a result, the program's version included."""
    return hashlib.sha256(repr((__version__, *parts)).encode()).hexdigest()


def policy_marks(name: str) -> list[object]:
    """Marks of the files that a policy's settings mention, such as limits or a model."""
    return [file_mark(path) for path in files_named(name)]


def file_mark(path: str) -> object:
    """By what a file is told from another, or from itself after a change: path, size and time of change."""
    file = Path(path)
    status = file.stat() if file.exists() else None
    return path, status and (status.st_size, status.st_mtime_ns)


def _values(value: dict[str, Any], before: str = "") -> dict[str, tuple[str, object]]:
    columns: dict[str, tuple[str, object]] = {}
    for name, inner in value.items():
        if isinstance(inner, dict):
            if name not in ("failures", "rejections"):
                columns |= _values(inner, f"{before}{name}_")
        elif not isinstance(inner, list | tuple):
            kind = "VARCHAR" if isinstance(inner, str) else "BIGINT" if isinstance(inner, int) else "DOUBLE"
            columns[f"{before}{name}"] = (kind, inner)
    return columns
