"""`sacct --json`, and slurmrestd's jobs, into jobs.

Slurm has changed this format between versions: a number may be `7` or `{"set": true, "number": 7}`, a state
a text or a list of them. Both are read; a job in which something is of another kind is left out and named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from berth.history.importing.job_row import JobRow, exit_code, since_1970_ms
from berth.history.importing.json_list import listed_in_json
from berth.history.store.import_result import Rejections
from berth.history.store.lookups import host_names
from berth.history.values.tres import Resources, resources_of

NO_NUMBER: Final = 2**64 - 2
"""What sacct prints for a number that is not set."""


class _NoNumberError(Exception):
    """What stands where a number was expected."""


def json_rows(path: Path | None, rejections: Rejections) -> Iterator[JobRow]:
    """Yield a row for each job; note each job that cannot be read."""
    where, jobs = listed_in_json(path, "jobs", "`sacct --json` writes it")
    for number, job in enumerate(jobs):
        place = f"{where}, jobs[{number}]"
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


def _row(job: Mapping[str, Any]) -> JobRow:
    time = job["time"]
    states = job["state"]["current"]
    tres = job.get("tres") or {}
    allocated, requested = (_resources(tres.get(name) or []) for name in ("allocated", "requested"))
    submit_ms, eligible_ms, start_ms, end_ms = (
        _moment_ms(time.get(name)) for name in ("submission", "eligible", "start", "end")
    )
    if start_ms == end_ms and not tres.get("allocated"):
        start_ms = None  # cancelled before it ran: Slurm writes its end as its start, and resources of none
    elapsed_s, suspended_s = (_number(time.get(name)) or 0 for name in ("elapsed", "suspended"))
    if end_ms is None and start_ms is not None and elapsed_s > 0:
        end_ms = start_ms + 1000 * (elapsed_s + suspended_s)
    memory_mib, energy_j, gpu_peak_pct, gpu_peak_mib = _of_steps(job.get("steps") or [])
    return JobRow(
        job_id=str(job["job_id"]),
        label=_label(job),
        cluster=_text(job.get("cluster")),
        name=_text(job.get("name")),
        user=_text((job.get("association") or {}).get("user") or job.get("user")),
        account=_text(job.get("account")),
        partition=_text(job.get("partition")),
        qos=_text(job.get("qos")),
        state=_state(states if isinstance(states, list) else [states]),
        submit_ms=submit_ms,
        eligible_ms=eligible_ms,
        start_ms=start_ms,
        end_ms=end_ms,
        limit_min=_number(time.get("limit")),
        node_count=_number(job.get("allocation_nodes")),
        nodes=host_names(_text(job.get("nodes"))),
        cpus=_number((job.get("required") or {}).get("CPUs")),
        allocated=allocated,
        requested=requested,
        reason=_text(job["state"].get("reason")),
        comment=_text((job.get("comment") or {}).get("job")),
        command=f"{_text(job.get('container'))} {_text(job.get('submit_line'))}".strip(),
        exit_code=_exit_code(job.get("exit_code") or {}, states),
        suspended_ms=1000 * suspended_s,
        cpu_used_ms=_cpu_ms(job, time),
        mem_peak_mib=memory_mib,
        energy_j=energy_j,
        gpu_peak_pct=gpu_peak_pct,
        gpu_peak_mib=gpu_peak_mib,
    )


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _state(states: Sequence[str]) -> str:
    """One state of a list: an attempt that was given up to be queued again is "pending", too."""
    given_up = states[0] in ("PENDING", "RUNNING") and bool({"REQUEUED", "SPECIAL_EXIT"} & set(states))
    return "REQUEUED" if given_up else states[0]


def _label(job: Mapping[str, Any]) -> str:
    """What sacct's text has as JobID: the task of an array, the component of a heterogeneous job, or the id."""
    for part, mark, of, which in (("array", "_", "job_id", "task_id"), ("het", "+", "job_id", "job_offset")):
        fields = job.get(part) or {}
        whole, place = _number(fields.get(of)), _number(fields.get(which))
        if whole and place is not None and place < 2**32 - 3:
            return f"{whole}{mark}{place}"
    return str(job["job_id"])


def _cpu_ms(job: Mapping[str, Any], time: Mapping[str, Any]) -> int | None:
    """CPU time of the job, or of its steps together, in ms."""

    def us(times: Mapping[str, Any]) -> int:
        total = times.get("total") or {}
        return (_number(total.get("seconds")) or 0) * 1_000_000 + (_number(total.get("microseconds")) or 0)

    return (us(time) or sum(us(step.get("time") or {}) for step in job.get("steps") or [])) // 1000 or None


def _of_steps(steps: Sequence[Mapping[str, Any]]) -> tuple[int | None, ...]:
    """Peak memory in MiB, energy in J, and the peaks of GPU utilisation in % and GPU memory in MiB, of all tasks."""
    memory = energy = util = gpu_memory = 0
    for step in steps:
        used = ((step.get("tres") or {}).get("requested") or {}).get("total") or []
        most = {(each.get("type"), each.get("name") or ""): _number(each.get("count")) or 0 for each in used}
        memory = max(memory, most.get(("mem", ""), 0))
        util = max(util, most.get(("gres", "gpuutil"), 0))
        gpu_memory = max(gpu_memory, most.get(("gres", "gpumem"), 0))
        consumed = _number(((step.get("statistics") or {}).get("energy") or {}).get("consumed"))
        energy += consumed if consumed is not None and consumed < 2**63 else 0
    return -(-memory // 2**20) or None, energy or None, util or None, -(-gpu_memory // 2**20) or None


def _exit_code(status: Mapping[str, Any], state: str | Sequence[str]) -> int | None:
    """The exit code; older versions call the signal's number `signal_id`.

    Slurm 22.05 writes 0 for any job, which is no exit code of a job that failed.
    """
    signal = status.get("signal") or {}
    code, number = _number(status.get("return_code")), _number(signal.get("id", signal.get("signal_id")))
    if not code and not number and "FAILED" in ([state] if isinstance(state, str) else state):
        return None
    return None if code is None and number is None else exit_code(code or 0, number or 0)


def _number(value: Any) -> int | None:
    """A number, whether plain or with the mark of being set; None for nothing."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") and not value.get("infinite") else None
    if value is not None and not isinstance(value, int):
        raise _NoNumberError(f"{value!r} stands where a number was expected")
    return value


def _moment_ms(value: Any) -> int | None:
    """Milliseconds since 1970; since Slurm 23.11 a job that never started has 2**32 - 2 there."""
    moment = _number(value)
    return None if moment == 2**32 - 2 else since_1970_ms(moment)


def _resources(items: list[Mapping[str, Any]]) -> Resources:
    amounts = []
    for item in items:
        kind = f"{item['type']}/{item['name']}" if item.get("name") else item["type"]
        count = _number(item.get("count"))
        amounts.append((str(kind).lower(), NO_NUMBER if count is None else count))
    return resources_of(amounts)
