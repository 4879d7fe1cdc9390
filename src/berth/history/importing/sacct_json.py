"""`sacct --json`, and slurmrestd's jobs, into rows in sacct's columns.

Slurm has changed this format between versions: a number may be `7` or `{"set": true, "number": 7}`, a state
a text or a list of them. Both are read; a job in which something is of another kind is left out and named.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from berth.errors import HistoryError
from berth.history.store.import_result import Rejections

__all__ = ["HEADER", "json_rows"]

HEADER: Final = (
    *("JobIDRaw", "Cluster", "JobName", "User", "Account", "Partition", "QOS", "State", "Submit", "Eligible"),
    *("Start", "End", "TimelimitRaw", "NNodes", "NCPUS", "AllocTRES", "ReqTRES", "NodeList", "Reason"),
    *("Comment", "Container", "SubmitLine", "ExitCode"),
)


NO_NUMBER: Final = 2**64 - 2
"""What sacct prints for a number that is not set."""


class _NoNumberError(Exception):
    """What stands where a number was expected."""


def json_rows(path: Path | None, rejections: Rejections) -> Iterator[tuple[object, ...]]:
    """Yield a row for each job; a job that cannot be read is noted instead."""
    where = str(path) if path else "standard input"
    try:
        text = path.read_bytes() if path else sys.stdin.buffer.read()
        content = json.loads(text)
    except OSError as error:
        raise HistoryError(f"{where} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise HistoryError(f"{where} is no whole JSON document: {error}") from error
    jobs = content.get("jobs") if isinstance(content, dict) else None
    if not isinstance(jobs, list):
        raise HistoryError(f"{where} holds no list 'jobs', as `sacct --json` writes it")
    for number, job in enumerate(jobs, 1):
        place = f"{where}, jobs[{number - 1}]"
        if not isinstance(job, dict) or "job_id" not in job:
            rejections.add(place, "no job with a 'job_id'")
            continue
        try:
            yield _row(job)
        except KeyError as error:
            here = f"{place}, job {job['job_id']}"
            if "submit_time" in job:
                rejections.add(
                    here, "a job of squeue's, which tells of no end; import what `sacct --json` prints"
                )
            else:
                rejections.add(here, f"no '{error.args[0]}' in it, as `sacct --json` writes it")
        except _NoNumberError as error:
            rejections.add(f"{place}, job {job['job_id']}", str(error))
        except (TypeError, AttributeError, IndexError):
            why = "something in it is of another kind than `sacct --json` writes, such as a text for a list"
            rejections.add(f"{place}, job {job['job_id']}", why)


def _row(job: Mapping[str, Any]) -> tuple[object, ...]:
    time = job["time"]
    state = job["state"]["current"]
    return (
        job["job_id"],
        job.get("cluster"),
        job.get("name"),
        (job.get("association") or {}).get("user") or job.get("user"),
        job.get("account"),
        job.get("partition"),
        job.get("qos"),
        state[0] if isinstance(state, list) else state,
        *(_number(time.get(name)) for name in ("submission", "eligible", "start", "end", "limit")),
        _number(job.get("allocation_nodes")),
        _number((job.get("required") or {}).get("CPUs")),
        *(_tres((job.get("tres") or {}).get(name) or []) for name in ("allocated", "requested")),
        job.get("nodes"),
        job["state"].get("reason"),
        (job.get("comment") or {}).get("job"),
        job.get("container"),
        job.get("submit_line"),
        _exit_code(job.get("exit_code") or {}),
    )


def _exit_code(told: Mapping[str, Any]) -> str:
    """As sacct's text has it, code:signal; older versions call the signal's number `signal_id`."""
    signal = told.get("signal") or {}
    code, number = _number(told.get("return_code")), _number(signal.get("id", signal.get("signal_id")))
    return "" if code is None and number is None else f"{code or 0}:{number or 0}"


def _number(value: Any) -> int | None:
    """A number, whether plain or with the mark of being set; None for nothing."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") and not value.get("infinite") else None
    if value is not None and not isinstance(value, int):
        raise _NoNumberError(f"{value!r} stands where a number was expected")
    return value


def _tres(items: list[Mapping[str, Any]]) -> str:
    parts = []
    for item in items:
        kind = f"{item['type']}/{item['name']}" if item.get("name") else item["type"]
        count = _number(item.get("count"))
        parts.append(f"{kind}={NO_NUMBER if count is None else count}")
    return ",".join(parts)
