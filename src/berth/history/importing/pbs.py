"""PBS accounting logs into rows in sacct's columns: the `E` (end) records of PBS Professional, OpenPBS, Torque.

A line is `DATE TIME;KIND;JOB;key=value key="a value" …`. An `R` line tells of a run that was given up and
queued again: a try of its own; a `D` or `A` line of a job that was deleted or aborted before it ran.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from berth.errors import HistoryError
from berth.history.store.import_result import Rejections

__all__ = ["HEADER", "pbs_rows"]

HEADER: Final = (
    *(
        "JobIDRaw",
        "JobName",
        "User",
        "Account",
        "Partition",
        "QOS",
        "State",
        "Submit",
        "Eligible",
        "Start",
        "End",
    ),
    *(
        "TimelimitRaw",
        "NNodes",
        "NCPUS",
        "AllocTRES",
        "ReqTRES",
        "NodeList",
        "Reason",
        "Comment",
        "SubmitLine",
        "ExitCode",
    ),
)
_LINE: Final = re.compile(r"(\d\d/\d\d/\d{4} \d\d:\d\d:\d\d);([A-Za-z]);([^;]*);(.*)")
_PAIR: Final = re.compile(r"""([\w.\-]+)=("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\S*)""")
_TIME_LIMIT_STATUS: Final = frozenset((-29, 271 + 24))
_CANCELLED_STATUS: Final = frozenset((271, 265, 143))
"""What a job ends with that was killed by SIGTERM or SIGKILL, as `qdel` does."""


def pbs_rows(path: Path, rejections: Rejections) -> Iterator[tuple[object, ...]]:
    """Yield a row for each try that ended; notes those that cannot be read. Other kinds of lines are not tries."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
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
    except OSError as error:
        raise HistoryError(f"{path} cannot be read: {error.strerror or error}") from error


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for found in _PAIR.finditer(text):
        value = found[2]
        if value[:1] in "\"'" and len(value) > 1 and value[-1] == value[0]:
            value = value[1:-1]
        yield found[1], value


def _row(job: str, kind: str, said: Mapping[str, str]) -> tuple[object, ...] | None:
    if not all(said.get(name, "").isdecimal() for name in ("ctime", "start", "end")):
        return None
    nodes = _nodes(said)
    gpus = _gpus(said)
    cpus = _whole(said.get("resources_used.ncpus") or said.get("Resource_List.ncpus"))
    queued = said.get("qtime", "") if said.get("qtime", "").isdecimal() else said["ctime"]
    tres = (
        f"cpu={cpus},gres/gpu={gpus},mem={_kib(said.get('Resource_List.mem', '')) // 1024}M,node={len(nodes)}"
    )
    return (
        job.split(".", 1)[0],
        said.get("jobname"),
        said.get("user"),
        said.get("account") or said.get("project") or said.get("group"),
        said.get("queue"),
        "",
        "PREEMPTED" if kind == "R" else _state(said.get("Exit_status", "0"), said),
        queued,
        said.get("etime"),
        said["start"],
        said["end"],
        _seconds(said.get("Resource_List.walltime", "")) // 60 or "",
        len(nodes),
        cpus,
        tres,
        tres,
        ",".join(nodes),
        "",
        said.get("comment") or "",
        said.get("Submit_arguments") or "",
        _exit_code(said.get("Exit_status", "")),
    )


def _exit_code(status: str) -> str:
    """As Slurm writes it; PBS adds 256 to the signal that ended a job, and has negative codes of its own."""
    if not re.fullmatch(r"-?\d+", status):
        return ""
    code = int(status)
    return f"0:{code - 256}" if 256 < code < 384 else str(code)


def _state(status: str, said: Mapping[str, str]) -> str:
    code = int(status) if re.fullmatch(r"-?\d+", status) else 1
    if code == 0:
        return "COMPLETED"
    limit, used = (_seconds(said.get(f"{kind}.walltime", "")) for kind in ("Resource_List", "resources_used"))
    if code in _TIME_LIMIT_STATUS or (limit and used >= limit):
        return "TIMEOUT"
    return "CANCELLED" if code in _CANCELLED_STATUS else "FAILED"


def _nodes(said: Mapping[str, str]) -> list[str]:
    """Hosts in order: `exec_host=n1/0*4+n2/0*4`, or `(n1:ncpus=4:ngpus=1)+(n2:…)` of exec_vnode."""
    host = said.get("exec_host")
    if host:
        names = [part.split("/", 1)[0] for part in host.split("+")]
    else:
        names = re.findall(r"\(?([\w.\-]+):", said.get("exec_vnode", ""))
    return list(dict.fromkeys(name for name in names if name))


def _gpus(said: Mapping[str, str]) -> int:
    given = sum(int(number) for number in re.findall(r":ngpus=(\d+)", said.get("exec_vnode", "")))
    if given:
        return given
    if asked := _whole(said.get("Resource_List.ngpus")):
        return asked
    torque = re.findall(
        r"(?:(\d+)|[A-Za-z][\w.\-]*)(?::[\w=.\-]+)*?:gpus=(\d+)", said.get("Resource_List.nodes", "")
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
