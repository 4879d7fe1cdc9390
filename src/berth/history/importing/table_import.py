"""Any table of jobs as CSV into rows in sacct's columns: for clusters that run neither Slurm nor PBS.

A map says which column holds what: `job=id,submit=created_at,start=…,end=…`. What it does not name is absent.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from berth.errors import HistoryError, SettingError
from berth.history.store.import_result import Rejections
from berth.traces.fields import read_map as columns_of

FIELDS: Final = {
    "job": "JobIDRaw",
    "submit": "Submit",
    "start": "Start",
    "end": "End",
    "state": "State",
    "eligible": "Eligible",
    "name": "JobName",
    "user": "User",
    "account": "Account",
    "server": "Partition",
    "qos": "QOS",
    "cluster": "Cluster",
    "application": "Application",
    "limit_min": "TimelimitRaw",
    "nodes": "NNodes",
    "cpus": "NCPUS",
    "gpus": "AllocTRES",
    "gpu_model": "AllocTRES",
    "node_list": "NodeList",
    "reason": "Reason",
    "comment": "Comment",
    "command": "SubmitLine",
    "container": "Container",
    "exit_code": "ExitCode",
    "gpu_use": "uGPUcore",
    "gpu_mem": "uGPUmem",
}
"""What a map may name, and sacct's column for it. Times are ISO 8601 or seconds since 1970; use is 0 to 1."""

MOST_GPUS: Final = 1_000_000
"""No job has more; a larger number is something else, such as bytes."""

_MARKS: Final = re.compile(r"[,=:\s]+")
"""What separates the parts of a list of resources, which no GPU model may have in its name."""
_NEEDED: Final = ("job", "submit", "start", "end")


def read_map(text: str) -> dict[str, str]:
    """`field=column,…`; SettingError where it names no field, or not those that are needed."""
    found = columns_of(text, FIELDS)
    if "gpu_model" in found and "gpus" not in found:
        raise SettingError("--map names gpu_model without gpus: how many there are of it must be known")
    if lacking := [name for name in _NEEDED if name not in found]:
        raise SettingError(f"--map names no {', '.join(lacking)}; {', '.join(_NEEDED)} are needed")
    return found


def header_of(columns: Mapping[str, str]) -> tuple[str, ...]:
    """The header of the rows that `csv_rows` makes."""
    return (
        *(FIELDS[name] for name in columns if name != "gpu_model"),
        *(() if "state" in columns else ("State",)),
    )


def _columns_there(header: Sequence[str]) -> str:
    if not header:
        return "it is empty"
    there = ", ".join(header)[:300]
    return f"it has {there}" if there.isprintable() else "its first line is no text; expected a CSV file"


def csv_rows(path: Path, columns: Mapping[str, str], rejections: Rejections) -> Iterator[tuple[object, ...]]:
    """Yield a row for each line; a line of another length is noted instead. Without a state it is completed."""
    from berth.history.store.database import readable

    try:
        with readable(path), path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            reader = csv.reader(file)
            header = next(reader, [])
            if lacking := dict.fromkeys(name for name in columns.values() if name not in header):
                raise HistoryError(f"{path} has no column {', '.join(lacking)}; {_columns_there(header)}")
            places = [(field, header.index(name)) for field, name in columns.items() if field != "gpu_model"]
            model_at = header.index(columns["gpu_model"]) if "gpu_model" in columns else None
            for values in reader:
                if len(values) != len(header):
                    why = f"{len(values)} fields, expected {len(header)}"
                    rejections.add(f"{path}, line {reader.line_num}", why)
                    continue
                if "gpus" in columns and not _is_count(gpus := values[header.index(columns["gpus"])]):
                    rejections.add(f"{path}, line {reader.line_num}", f"{gpus!r} is no number of GPUs")
                    continue
                model = "" if model_at is None else _MARKS.sub("_", values[model_at].strip())
                row = [
                    f"gres/gpu{':' * bool(model)}{model}={round(float(values[at] or 0))}"
                    if field == "gpus"
                    else values[at]
                    for field, at in places
                ]
                yield tuple(row if "state" in columns else [*row, "COMPLETED"])
    except csv.Error as error:
        raise HistoryError(f"{path} is no CSV: {error}") from error


def _is_count(text: str) -> bool:
    """Whether it is a whole number from 0 on; nothing is 0, and 2.0 is 2."""
    try:
        number = float(text or 0)
    except ValueError:
        return False
    return number.is_integer() and 0 <= number <= MOST_GPUS
