"""LSF's accounting file `lsb.acct` into jobs: its JOB_FINISH records.

The order of the fields is that of *lsb.acct*, IBM Spectrum LSF configuration reference. Texts stand in double quotes, a
quote within is doubled. The GPUs of a job are not a field of their own: they are `ngpus_physical` of the resource
requirement that took effect, for each host.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from berth.errors import HistoryError
from berth.history.importing.job_row import JobRow, exit_code, since_1970_ms
from berth.history.store.database import readable
from berth.history.store.import_result import Rejections
from berth.history.values.tres import Resources

ABSENT: Final = ("comment",)
_ASKED_AT: Final = 22
"""The field that counts the hosts which were asked for; what stands before it is always there."""
_RUSAGE: Final = 19
_EXIT, _DONE = 32, 64
_GPUS = re.compile(r"\bngpus_physical=(\d+(?:\.\d+)?)")
_MOST_HOSTS: Final = 1_000_000


def lsf_rows(path: Path, rejections: Rejections) -> Iterator[JobRow]:
    """Yield a row for each job that finished; note records that cannot be read. Other kinds of records are no jobs."""
    try:
        with readable(path), path.open(encoding="utf-8", errors="replace", newline="") as file:
            reader = csv.reader(file, delimiter=" ", quotechar='"', doublequote=True)
            for fields in reader:
                if not fields or fields[0] != "JOB_FINISH":
                    if fields and not re.fullmatch(r"[A-Z_]{3,}", fields[0]):
                        rejections.add(
                            f"{path}, line {reader.line_num}",
                            "not a record of lsb.acct, such as JOB_FINISH",
                        )
                    continue
                try:
                    yield _row(fields)
                except IndexError:
                    why = f"this JOB_FINISH has only {len(fields)} fields; the line may be cut off"
                    rejections.add(f"{path}, line {reader.line_num}", why)
                except ValueError as error:
                    rejections.add(
                        f"{path}, line {reader.line_num}", f"this JOB_FINISH cannot be read: {error}"
                    )
    except csv.Error as error:
        raise HistoryError(f"{path} is not LSF's lsb.acct: {error}") from error


def _row(fields: Sequence[str]) -> JobRow:
    end, job, cpus, submit = (_whole(fields, at) for at in (2, 3, 6, 7))
    begin, start = _whole(fields, 8), _whole(fields, 10)
    _, at = _hosts(fields, _ASKED_AT)
    hosts, at = _hosts(fields, at)
    status, name, command = _whole(fields, at), fields[at + 2], fields[at + 3]
    used = [_number(fields, place) for place in range(at + 4, at + 4 + _RUSAGE)]
    at += 4 + _RUSAGE
    project, exit_status = fields[at + 1], _whole(fields, at + 2)
    task, memory_kib = _whole(fields, at + 6), _whole(fields, at + 7)
    nodes = list(dict.fromkeys(hosts))
    found = _GPUS.findall(" ".join(fields[at:]) + " " + fields[13])
    gpus = round(max(map(float, found), default=0.0) * max(len(nodes), 1))
    cpu_s = max(used[0], 0.0) + max(used[1], 0.0)
    return JobRow(
        job_id=f"{job}_{task}" if task else str(job),
        name=name,
        user=fields[11],
        account=project,
        partition=fields[12],
        state=_state(status, exit_status, started=bool(start)),
        submit_ms=since_1970_ms(submit),
        eligible_ms=since_1970_ms(max(begin, submit) if begin else None),
        start_ms=since_1970_ms(start),
        end_ms=since_1970_ms(end),
        node_count=len(nodes) or None,
        nodes=tuple(nodes),
        cpus=cpus,
        allocated=Resources(gpus=gpus, cpus=cpus, nodes=len(nodes)),
        command=command,
        exit_code=exit_code(exit_status >> 8 & 0xFF, exit_status & 0x7F) if exit_status >= 0 else None,
        cpu_used_ms=round(cpu_s * 1000),
        mem_peak_mib=-(-memory_kib // 1024),
    )


def _whole(fields: Sequence[str], at: int) -> int:
    """The whole number of a field."""
    try:
        return int(fields[at])
    except ValueError:
        raise ValueError(f"field {at + 1} is '{fields[at]}'; expected a whole number") from None


def _number(fields: Sequence[str], at: int) -> float:
    """The number of a field."""
    try:
        return float(fields[at])
    except ValueError:
        raise ValueError(f"field {at + 1} is '{fields[at]}'; expected a number") from None


def _hosts(fields: Sequence[str], at: int) -> tuple[Sequence[str], int]:
    """The hosts that are counted at a place, and the place behind them."""
    number = _whole(fields, at)
    if not 0 <= number <= min(_MOST_HOSTS, len(fields)):
        raise ValueError(f"field {at + 1} says {number} hosts, which do not follow")
    return fields[at + 1 : at + 1 + number], at + 1 + number


def _state(status: int, exit_status: int, *, started: bool) -> str:
    """LSF tells that a job was done or not; a killed one ended by SIGTERM, SIGINT or SIGKILL or never began."""
    if status == _DONE:
        return "COMPLETED"
    if status != _EXIT:
        raise ValueError(f"jStatus is {status}; expected {_EXIT} or {_DONE}")
    signal = exit_status & 0x7F or max((exit_status >> 8) - 128, 0)
    return "CANCELLED" if not started or signal in (2, 9, 15) else "FAILED"
