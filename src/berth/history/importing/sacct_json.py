"""`sacct --json`, and slurmrestd's jobs, into rows in sacct's columns.

Slurm has changed this format between versions: a number may be `7` or `{"set": true, "number": 7}`, a state
a text or a list of them. Both are read; a job in which something is of another kind is left out and named.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from berth.errors import HistoryError
from berth.history.store.import_result import Rejections

__all__ = ["HEADER", "json_rows"]

HEADER: Final = (
    *("JobIDRaw", "Cluster", "JobName", "User", "Account", "Partition", "QOS", "State", "Submit", "Eligible"),
    *("Start", "End", "TimelimitRaw", "NNodes", "NCPUS", "AllocTRES", "ReqTRES", "NodeList", "Reason"),
    *("Comment", "Container", "SubmitLine", "ExitCode"),
    *("JobID", "ElapsedRaw", "SuspendedRaw", "TotalCPURaw", "MemPeakMiB", "ConsumedEnergyRaw"),
    *("GPUUtilPeak", "GPUMemPeakMiB"),
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
        _state(state if isinstance(state, list) else [state]),
        *(_moment(time.get(name)) for name in ("submission", "eligible", "start", "end")),
        _number(time.get("limit")),
        _number(job.get("allocation_nodes")),
        _number((job.get("required") or {}).get("CPUs")),
        *(_tres((job.get("tres") or {}).get(name) or []) for name in ("allocated", "requested")),
        job.get("nodes"),
        job["state"].get("reason"),
        (job.get("comment") or {}).get("job"),
        job.get("container"),
        job.get("submit_line"),
        _exit_code(job.get("exit_code") or {}, state),
        _label(job),
        *(_number(time.get(name)) for name in ("elapsed", "suspended")),
        _cpu_ms(job, time),
        *_of_steps(job.get("steps") or []),
    )


def _state(told: Sequence[str]) -> str:
    """One state of all that are told: an attempt that was given up to be queued again has "pending" beside it."""
    given_up = told[0] in ("PENDING", "RUNNING") and bool({"REQUEUED", "SPECIAL_EXIT"} & set(told))
    return "REQUEUED" if given_up else told[0]


def _label(job: Mapping[str, Any]) -> str:
    """What sacct's text has as JobID: the task of an array, the component of a heterogeneous job, or the id."""
    for part, mark, of, which in (("array", "_", "job_id", "task_id"), ("het", "+", "job_id", "job_offset")):
        told = job.get(part) or {}
        whole, place = _number(told.get(of)), _number(told.get(which))
        if whole and place is not None and place < 2**32 - 3:
            return f"{whole}{mark}{place}"
    return str(job["job_id"])


def _cpu_ms(job: Mapping[str, Any], time: Mapping[str, Any]) -> int | None:
    """CPU time of the job, or of its steps together, in ms."""

    def us(told: Mapping[str, Any]) -> int:
        total = told.get("total") or {}
        return (_number(total.get("seconds")) or 0) * 1_000_000 + (_number(total.get("microseconds")) or 0)

    return (us(time) or sum(us(step.get("time") or {}) for step in job.get("steps") or [])) // 1000 or None


def _of_steps(steps: Sequence[Mapping[str, Any]]) -> tuple[int | None, ...]:
    """Peak memory in MiB, energy in J, and the peaks of GPU utilisation in % and GPU memory in MiB, of all tasks."""
    memory = energy = util = gpu_memory = 0
    for step in steps:
        used = ((step.get("tres") or {}).get("requested") or {}).get("total") or []
        told = {(each.get("type"), each.get("name") or ""): _number(each.get("count")) or 0 for each in used}
        memory = max(memory, told.get(("mem", ""), 0))
        util = max(util, told.get(("gres", "gpuutil"), 0))
        gpu_memory = max(gpu_memory, told.get(("gres", "gpumem"), 0))
        consumed = _number(((step.get("statistics") or {}).get("energy") or {}).get("consumed"))
        energy += consumed if consumed is not None and consumed < 2**63 else 0
    return -(-memory // 2**20) or None, energy or None, util or None, -(-gpu_memory // 2**20) or None


def _exit_code(told: Mapping[str, Any], state: str | Sequence[str]) -> str:
    """As sacct's text has it, code:signal; older versions call the signal's number `signal_id`.

    Slurm 22.05 writes 0 for any job; of one that failed that tells nothing.
    """
    signal = told.get("signal") or {}
    code, number = _number(told.get("return_code")), _number(signal.get("id", signal.get("signal_id")))
    if not code and not number and "FAILED" in ([state] if isinstance(state, str) else state):
        return ""
    return "" if code is None and number is None else f"{code or 0}:{number or 0}"


def _number(value: Any) -> int | None:
    """A number, whether plain or with the mark of being set; None for nothing."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") and not value.get("infinite") else None
    if value is not None and not isinstance(value, int):
        raise _NoNumberError(f"{value!r} stands where a number was expected")
    return value


def _moment(value: Any) -> int | None:
    """Seconds since 1970; from Slurm 23.11 on a job that never started has 2**32 - 2 there."""
    moment = _number(value)
    return None if moment in (2**32 - 2, NO_NUMBER) else moment


def _tres(items: list[Mapping[str, Any]]) -> str:
    parts = []
    for item in items:
        kind = f"{item['type']}/{item['name']}" if item.get("name") else item["type"]
        count = _number(item.get("count"))
        parts.append(f"{kind}={NO_NUMBER if count is None else count}")
    return ",".join(parts)
