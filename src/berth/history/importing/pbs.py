"""PBS accounting logs into jobs: the `E` (end) records of PBS Professional, OpenPBS, Torque.

A line is `DATE TIME;KIND;JOB;key=value key="a value" …`. An `R` line tells of a run that was given up and
queued again, an attempt of its own; a `D` or `A` line of a job that was deleted or aborted before it ran.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from berth.history.importing.job_row import JobRow, exit_code, since_1970_ms
from berth.history.store.database import readable
from berth.history.store.import_result import Rejections
from berth.history.values.tres import Resources

ABSENT: Final = ()
_LINE: Final = re.compile(r"(\d\d/\d\d/\d{4} \d\d:\d\d:\d\d);([A-Za-z]);([^;]*);(.*)")
_PAIR: Final = re.compile(r"""([\w.\-]+)=("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\S*)""")
_TIME_LIMIT_STATUS: Final = frozenset((-29, 271 + 24))
_CANCELLED_STATUS: Final = frozenset((271, 265, 143))
"""What a job ends with that was killed by SIGTERM or SIGKILL, as `qdel` does."""


def pbs_rows(path: Path, rejections: Rejections) -> Iterator[JobRow]:
    """Yield a row for each attempt that ended; note those that cannot be read. Other kinds of lines are no attempts."""
    with readable(path), path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            found = _LINE.fullmatch(line.rstrip("\r\n"))
            if found is None:
                rejections.add(f"{path}, line {number}", "not 'MM/DD/YYYY HH:MM:SS;KIND;JOB;key=value …'")
            elif found[2] in ("E", "R"):
                row = _row(found[3], found[2], dict(_pairs(found[4])))
                if row is None:
                    rejections.add(f"{path}, line {number}", f"job {found[3]} has no ctime, start or end")
                else:
                    yield row


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for found in _PAIR.finditer(text):
        value = found[2]
        if value[:1] in "\"'" and len(value) > 1 and value[-1] == value[0]:
            value = value[1:-1]
        yield found[1], value


def _row(job: str, kind: str, fields: Mapping[str, str]) -> JobRow | None:
    if not all(fields.get(name, "").isdecimal() for name in ("ctime", "start", "end")):
        return None
    nodes = _nodes(fields)
    cpus = _whole(fields.get("resources_used.ncpus") or fields.get("Resource_List.ncpus"))
    mem_mib = _kib(fields.get("Resource_List.mem", "")) // 1024
    resources = Resources(gpus=_gpus(fields), cpus=cpus, mem_mib=mem_mib, nodes=len(nodes))
    queued = fields.get("qtime", "") if fields.get("qtime", "").isdecimal() else fields["ctime"]
    return JobRow(
        job_id=job.split(".", 1)[0],
        name=fields.get("jobname", ""),
        user=fields.get("user", ""),
        account=fields.get("account") or fields.get("project") or fields.get("group") or "",
        partition=fields.get("queue", ""),
        state="PREEMPTED" if kind == "R" else _state(fields.get("Exit_status", "0"), fields),
        submit_ms=since_1970_ms(int(queued)),
        eligible_ms=since_1970_ms(_whole(fields.get("etime"))),
        start_ms=since_1970_ms(int(fields["start"])),
        end_ms=since_1970_ms(int(fields["end"])),
        limit_min=_seconds(fields.get("Resource_List.walltime", "")) // 60 or None,
        node_count=len(nodes),
        nodes=tuple(nodes),
        cpus=cpus,
        allocated=resources,
        requested=resources,
        comment=fields.get("comment", ""),
        command=fields.get("Submit_arguments", ""),
        exit_code=_exit_code(fields.get("Exit_status", "")),
    )


def _exit_code(status: str) -> int | None:
    """The exit code; PBS adds 256 to the signal that ended a job, and has negative codes of its own."""
    if not re.fullmatch(r"-?\d{1,9}", status):
        return None
    code = int(status)
    return exit_code(0, code - 256) if 256 < code < 384 else code


def _state(status: str, fields: Mapping[str, str]) -> str:
    code = int(status) if re.fullmatch(r"-?\d+", status) else 1
    if code == 0:
        return "COMPLETED"
    limit, used = (
        _seconds(fields.get(f"{kind}.walltime", "")) for kind in ("Resource_List", "resources_used")
    )
    if code in _TIME_LIMIT_STATUS or (limit and used >= limit):
        return "TIMEOUT"
    return "CANCELLED" if code in _CANCELLED_STATUS else "FAILED"


def _nodes(fields: Mapping[str, str]) -> list[str]:
    """Hosts in order: `exec_host=n1/0*4+n2/0*4`, or `(n1:ncpus=4:ngpus=1)+(n2:…)` of exec_vnode."""
    host = fields.get("exec_host")
    if host:
        names = [part.split("/", 1)[0] for part in host.split("+")]
    else:
        names = re.findall(r"\(?([\w.\-]+):", fields.get("exec_vnode", ""))
    return list(dict.fromkeys(name for name in names if name))


def _gpus(fields: Mapping[str, str]) -> int:
    given = sum(int(number) for number in re.findall(r":ngpus=(\d+)", fields.get("exec_vnode", "")))
    if given:
        return given
    if asked := _whole(fields.get("Resource_List.ngpus")):
        return asked
    torque = re.findall(
        r"(?:(\d+)|[A-Za-z][\w.\-]*)(?::[\w=.\-]+)*?:gpus=(\d+)", fields.get("Resource_List.nodes", "")
    )
    return sum(int(nodes or 1) * int(gpus) for nodes, gpus in torque)


def _whole(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0


def _seconds(text: str) -> int:
    parts = text.split(":")
    if not all(part.isdecimal() for part in parts):
        return 0
    total = 0
    for part in parts:
        total = total * 60 + int(part)
    return total


def _kib(text: str) -> int:
    found = re.fullmatch(r"(\d+)([kmgt]?)[bw]?", text.lower())
    return int(found[1]) * {"": 1, "k": 1, "m": 1024, "g": 1024**2, "t": 1024**3}[found[2]] if found else 0
