"""The queue as it is now: jobs that wait or run, from `squeue --json` or from what sacct prints of them."""

from __future__ import annotations

import csv
import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from berth.errors import HistoryError
from berth.history.importing.sacct import SEPARATOR, run
from berth.history.store.database import readable
from berth.history.store.pseudonyms import pseudonym
from berth.history.values.applications import read_rules
from berth.history.values.causes import BEFORE, note_in
from berth.history.values.durations import slurm_ms, slurm_s
from berth.history.values.tres import resources

_STARTED: Final = ("RUNNING", "SUSPENDED")
_NEEDED: Final = ("jobidraw", "state", "submit")
_TASKS = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?")
MOST_TASKS: Final = 4_000_000
"""Slurm numbers the tasks of an array to at most this."""


@dataclass(frozen=True, slots=True)
class Queued:
    """A job that waits, or runs since `start_ms`."""

    job_id: str
    user: str
    account: str
    virtual_cluster: str
    application: str
    qos: str
    gpu_model: str
    gpus: int
    share_milli: int
    cpu_milli: int
    mem_mib: int
    time_limit_ms: int | None
    node_count: int
    queued_ms: int
    start_ms: int | None
    """None where it waits."""
    label: str = ""
    """What people call it if that is not its id: `12_3` of a task of an array that runs."""
    reason: str = ""
    """Why it waits, in Slurm's word or in those of this machine's queue."""
    suspended: bool = False
    """It runs no further for now, and keeps its GPUs."""
    blocked: bool = False
    """It waits for something else than GPUs: it is held, or comes after another job or a time."""

    @property
    def order(self) -> tuple[int, tuple[int, ...], str]:
        """By which queues are listed: by submission, then tasks by their number."""
        return self.queued_ms, tuple(map(int, re.findall(r"\d+", self.job_id))), self.job_id


def read_queue(path: Path) -> tuple[Queued, ...]:
    """The jobs of a file that wait or run; HistoryError where it is of neither form."""
    with readable(path):
        text = path.read_text(encoding="utf-8", errors="replace")
    rows = _of_json(text, path) if text.lstrip().startswith("{") else _of_text(text, path)
    return tuple(sorted(rows, key=lambda job: job.order))


def run_squeue(command: str = "squeue") -> tuple[tuple[Queued, ...], int]:
    """The queue now, from `squeue --json`, and when that is, in ms; HistoryError with its words where it fails."""
    now_ms = round(datetime.now(UTC).timestamp() * 1000)
    printed = run([command, "--json"], subprocess.PIPE).decode(errors="replace")
    rows = _of_json(printed, Path(f"{command} --json"))
    return tuple(sorted(rows, key=lambda job: job.order)), now_ms


def hidden(jobs: Sequence[Queued], key: bytes) -> tuple[Queued, ...]:
    """The same jobs with pseudonyms for users and accounts."""
    return tuple(
        replace(job, user=pseudonym(key, "user", job.user), account=pseudonym(key, "account", job.account))
        for job in jobs
    )


def _of_json(text: str, path: Path) -> Iterator[Queued]:
    try:
        jobs = json.loads(text)["jobs"]
        for job in jobs:
            yield from _queued(_row(job), str(path))
    except KeyError as error:
        if error.args[0] == "job_state" and "time" in job:
            raise HistoryError(
                f"{path} is what `sacct --json` prints, which `berth import sacct` reads; the queue is what "
                "`squeue --json` prints"
            ) from error
        raise HistoryError(
            f"{path} is not what `squeue --json` prints: there is no '{error.args[0]}' in a job"
        ) from error
    except (ValueError, TypeError, AttributeError, IndexError) as error:
        raise HistoryError(f"{path} is not what `squeue --json` prints: {error}") from error


_IN_SQUEUE: Final = {
    **{"jobidraw": "job_id", "account": "account", "partition": "partition", "qos": "qos"},
    **{"reqtres": "tres_req_str", "comment": "comment", "jobname": "name", "submitline": "command"},
    **{"reason": "state_reason"},
}
"""sacct's names of columns, in lower case, and squeue's of the same texts."""


def _row(job: Mapping[str, Any]) -> dict[str, str]:
    """A job of squeue's as a row of sacct's."""
    state = job["job_state"]
    row = {name: str(job.get(other) or "") for name, other in _IN_SQUEUE.items()}
    limit, array = _number(job.get("time_limit")), _number(job.get("array_job_id")) or job["job_id"]
    note = note_in(str(job.get("admin_comment") or ""))
    return {
        **row,
        "state": state[0] if isinstance(state, list) else state,
        "user": str(job.get("user_name") or job.get("user_id") or ""),
        "submit": str(_number(job["submit_time"])),
        "start": str(_number(job.get("start_time"))),
        "timelimitraw": "" if limit is None else str(limit),
        "nnodes": str(_number(job.get("node_count")) or 1),
        "jobid": f"{array}_[{job.get('array_task_string') or ''}",
        "label": _label(job),
        # A job that berth holds until it places it waits for GPUs.
        "freed": "yes" if note and row["reason"] == "JobHeldAdmin" else "",
    }


def _label(job: Mapping[str, Any]) -> str:
    array, task = _number(job.get("array_job_id")), _number(job.get("array_task_id"))
    return f"{array}_{task}" if array and task is not None else ""


def _number(value: Any) -> int | None:
    """A number, plain or with the mark of being set."""
    if isinstance(value, Mapping):
        value = value.get("number") if value.get("set") and not value.get("infinite") else None
    return int(value) if value is not None and int(value) < 2**32 - 2 else None


def tasks_of(text: str) -> tuple[int, ...]:
    """The tasks of an array that wait, which Slurm shows as one job: `1-4,7%2` is 1, 2, 3, 4 and 7; `0-8:4` 0, 4 and 8.

    A list that is cut off (`1-4,...`) gives the tasks that it names; nothing where it names none.
    """
    found: list[int] = []
    for part in text.strip("[]").partition("%")[0].split(","):
        if of := _TASKS.fullmatch(part.strip()):
            first, last, step = int(of[1]), int(of[2] or of[1]), int(of[3] or 1)
            found.extend(range(first, min(last, first + MOST_TASKS) + 1, max(step, 1)))
    return tuple(dict.fromkeys(found))[:MOST_TASKS]


def _of_text(text: str, path: Path) -> Iterator[Queued]:
    lines = text.splitlines()
    header = lines[0] if lines else ""
    delimiter = next((mark for mark in (SEPARATOR, "|", "\t", ";", ",") if mark in header), "|")
    names = [name.strip().lower() for name in header.split(delimiter)]
    if lacking := [name for name in _NEEDED if name not in names]:
        raise HistoryError(
            f"{path} has no column {', '.join(lacking)}; expected what `squeue --json` prints, or `sacct -X -P -s "
            "PENDING,RUNNING,SUSPENDED -o JobIDRaw,User,Account,Partition,QOS,State,Submit,Start,TimelimitRaw,ReqTRES,"
            "NNodes,Reason`"
        )
    for number, values in enumerate(csv.reader(lines[1:], delimiter=delimiter, quoting=csv.QUOTE_NONE), 2):
        row = dict(zip(names, values, strict=False))
        yield from _queued({**row, "state": row.get("state", "").partition(" ")[0]}, f"{path}, line {number}")


def _queued(row: Mapping[str, str], where: str) -> Iterator[Queued]:
    """The jobs of a row of sacct's: none for a step or one that has ended, and one for each task that waits."""
    state, reason, nodes = row["state"], row.get("reason", "").removeprefix("None"), row.get("nnodes", "")
    if state not in ("PENDING", *_STARTED) or "." in row["jobidraw"]:
        return
    waits = state == "PENDING"
    asked = resources(row.get("reqtres", ""))
    queued_ms = slurm_ms(row["submit"])
    if queued_ms is None:
        raise HistoryError(f"{where}: Submit is {row['submit']!r}, which is no time")
    one = Queued(
        job_id=row["jobidraw"],
        user=row.get("user", ""),
        account=row.get("account", ""),
        virtual_cluster=row.get("partition", ""),
        application=read_rules().application(
            row.get("comment", ""), row.get("jobname", ""), row.get("submitline", "")
        ),
        qos=row.get("qos", ""),
        gpu_model=asked.gpu_model,
        gpus=asked.gpus,
        share_milli=1000,
        cpu_milli=1000 * asked.cpus,
        mem_mib=asked.mem_mib,
        time_limit_ms=_limit_ms(row),
        node_count=int(nodes) if nodes.isdecimal() else 1,
        queued_ms=queued_ms,
        start_ms=None if waits else slurm_ms(row.get("start", "")),
        label=row.get("label", ""),
        reason=reason if waits else "",
        suspended=state == "SUSPENDED",
        blocked=waits and reason in BEFORE and not row.get("freed"),
    )
    array, bracket, tasks = row.get("jobid", "").partition("_[")
    waiting = tasks_of(tasks) if bracket and waits else ()
    yield from (replace(one, job_id=f"{array}_{task}", label="") for task in waiting)
    if not waiting:
        yield one


def _limit_ms(row: Mapping[str, str]) -> int | None:
    raw = row.get("timelimitraw", "")
    if raw.isdecimal():
        return int(raw) * 60_000
    limit_s = slurm_s(row.get("timelimit", ""))
    return None if limit_s is None else 1000 * limit_s
